"""Float64 gradcheck of every function of kanerva.memory, over every argument that can carry a gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import case, normal
from kanerva import MemoryState, memory
from kanerva.memory import moments

# (K, C): fewer rows than columns, and more, where `address` solves the other system
SIZES = [(3, 4), (4, 2), (1, 2)]


def check(function: Callable[..., Any], *inputs: Tensor) -> None:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    # gradcheck passes over outputs that carry no gradient
    assert all(x.requires_grad for x in ([outputs] if isinstance(outputs, Tensor) else outputs))
    assert torch.autograd.gradcheck(function, leaves)


@pytest.fixture(params=SIZES, ids=str)
def leaves(request: pytest.FixtureRequest) -> tuple[Tensor, ...]:
    """R, U, w, z and noise_var of a batch of two; U is handed over as it is, not as a factor."""
    K, C = request.param
    c = case((2,), K, C, T=3)
    return (*c.state, c.w, c.z, c.noise_var)


def test_prior() -> None:
    check(lambda R0, v: memory.prior(R0, v, batch=(2,)), normal(3, 4), torch.tensor(0.7, dtype=torch.float64))


def test_address(leaves: tuple[Tensor, ...]) -> None:
    R, U, _, z, s2 = leaves
    check(lambda R, z, s2: memory.address(z, MemoryState(R, U), s2), R, z, s2)


def test_update(leaves: tuple[Tensor, ...]) -> None:
    R, U, w, z, s2 = leaves
    check(lambda R, U, *rest: memory.update(MemoryState(R, U), *rest), R, U, w[:, 0], z[:, 0], s2)


def test_condition(leaves: tuple[Tensor, ...]) -> None:
    check(lambda R, U, *rest: memory.condition(MemoryState(R, U), *rest), *leaves)


@pytest.mark.parametrize(("iterations", "block"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_write(leaves: tuple[Tensor, ...], iterations: int, block: int) -> None:
    R, U, _, z, s2 = leaves

    def write(R: Tensor, U: Tensor, z: Tensor, s2: Tensor) -> tuple[Tensor, ...]:
        state, w = memory.write(MemoryState(R, U), z, s2, iterations, block)
        return (*state, w)

    check(write, R, U, z, s2)


def test_read(leaves: tuple[Tensor, ...]) -> None:
    R, U, w, _, _ = leaves
    check(lambda R, w: memory.read(MemoryState(R, U), w), R, w)


def test_predict(leaves: tuple[Tensor, ...]) -> None:
    R, U, w, _, s2 = leaves
    check(lambda R, U, w, s2: memory.predict(MemoryState(R, U), w, s2), R, U, w, s2)


def test_sample(leaves: tuple[Tensor, ...]) -> None:
    R, U, *_ = leaves
    check(lambda R, U: memory.sample(MemoryState(R, U), torch.Generator().manual_seed(0)), R, U)


def test_kl_memory(leaves: tuple[Tensor, ...]) -> None:
    R, U, *_ = leaves
    p = case((2,), *R.shape[-2:], seed=7).state
    check(lambda R, U, R0, U0: memory.kl_memory(MemoryState(R, U), MemoryState(R0, U0)), R, U, *p)


def test_absorb(leaves: tuple[Tensor, ...]) -> None:
    R, U, w, z, _ = leaves
    check(lambda R, U, w, H: memory.absorb(MemoryState(R, U), w.mT @ w, H), R, U, w, w.mT @ z)


def test_inverse_and_what_it_is_for(leaves: tuple[Tensor, ...]) -> None:
    R, U, w, z, s2 = leaves

    def all_of_it(R: Tensor, w: Tensor, z: Tensor, s2: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        state = MemoryState(R, U)
        inverse = memory.inverse(state, s2)
        q = moments.scaled(moments.spread(w, state, s2, inverse), scale)
        draw = moments.draw(q, torch.Generator().manual_seed(0))
        return *inverse, memory.address(z, state, s2, inverse), moments.kl_address(q), draw

    check(all_of_it, R, w, z, s2, torch.tensor(0.4, dtype=torch.float64))


def test_kl_prior(leaves: tuple[Tensor, ...]) -> None:
    R, U, _, _, s2 = leaves
    check(lambda R, U, R0, v, d: moments.kl_prior(MemoryState(R, U), R0, v, d), R, U, R + 1, s2, s2 * R[..., 0, 0])


def test_kl_weights(leaves: tuple[Tensor, ...]) -> None:
    check(memory.kl_weights, leaves[2], leaves[4])


def test_kl_update(leaves: tuple[Tensor, ...]) -> None:
    R, U, w, z, s2 = leaves
    check(lambda R, U, *rest: memory.kl_update(MemoryState(R, U), *rest), R, U, w[:, 0], z[:, 0], s2)


def test_second_derivatives_of_a_write() -> None:
    """Meta-learning and Laplace approximations differentiate twice."""
    c = case(K=2, C=3, T=2)
    leaves = [x.detach().clone().requires_grad_() for x in (*c.state, c.z, c.noise_var)]
    assert torch.autograd.gradgradcheck(lambda R, U, z, s2: memory.write(MemoryState(R, U), z, s2)[0], leaves)
