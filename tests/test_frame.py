"""memory.frame and memory.forget against weights and codes that are known."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import kanerva
from cases import Case, case, normal
from kanerva import MemoryState, memory

PRIOR_VAR, NOISE_VAR = 1.5, 0.7


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    """Equal up to a share of the largest entry."""
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance * max(1.0, float(b.abs().amax()) if b.numel() else 1.0))


def look(state: MemoryState, R0: Tensor) -> memory.Frame:
    return memory.frame(state, R0, PRIOR_VAR, NOISE_VAR)


def is_a_rotation(frame: memory.Frame, w: Tensor, z: Tensor, tolerance: float) -> None:
    """W = Q · weights and Z = Q · codes for one Q whose rows are orthonormal; rows beyond the rank are zero."""
    n = int(frame.rank)
    assert frame.codes.dtype == frame.weights.dtype == torch.float64
    assert not frame.codes[n:].any()
    assert not frame.weights[n:].any()
    w, z = w.double(), z.double()
    Q = w @ torch.linalg.pinv(frame.weights[:n])
    close(Q @ frame.weights[:n], w, tolerance)
    close(Q @ frame.codes[:n], z, tolerance)
    if n == len(w):
        close(Q @ Q.mT, torch.eye(n, dtype=torch.float64), tolerance)


class Sizes(NamedTuple):
    """A memory to be made."""

    K: int
    C: int
    T: int
    seed: int
    alike: float = 1.0
    """What codes have of their own; the rest is common to all."""
    calls: int = 1


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    """Of any size up to K codes; some nearly alike; in one call or in several."""
    K = draw(st.integers(1, 33))
    return Sizes(
        K,
        draw(st.sampled_from([7, 8, 33, 100])),
        draw(st.integers(0, K)),
        draw(st.integers(0, 2**20)),
        draw(st.sampled_from([1.0, 0.1, 1e-3])),
        draw(st.integers(1, 3)),
    )


def made(of: Sizes) -> tuple[MemoryState, Tensor, Tensor, Tensor]:
    """A memory of T codes, its prior's mean, the weights and the codes; lengths of mixed weights differ 30-fold."""
    K, C, T, seed, alike, calls = of
    R0, common, z = normal(K, C, seed=seed), normal(1, C, seed=seed + 1), normal(T, C, seed=seed + 2)
    left, right = (torch.linalg.qr(normal(n, n, seed=seed + 3)).Q for n in (T, K))
    w = (left * torch.logspace(0.5, -1, T, dtype=torch.float64)) @ right[:T]
    z = (1 - alike) * common + alike * z
    state = memory.prior(R0, PRIOR_VAR)
    for some_w, some_z in zip(w.tensor_split(calls), z.tensor_split(calls), strict=True):
        state = memory.condition(state, some_w, some_z, NOISE_VAR)
    return state, R0, w, z


# float64 and squares of weights that differ 1,000-fold, with 33 of them
EXACT = 1e-8


@given(sizes())
def test_frame_is_all_that_was_written_up_to_a_rotation(of: Sizes) -> None:
    state, R0, w, z = made(of)
    frame = look(state, R0)
    assert (int(frame.rank), int(frame.distinct)) == (of.T, min(of.T, of.C))
    is_a_rotation(frame, w, z, EXACT)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 2**20))
def test_frame_of_codes_that_were_written_again(times: list[int], seed: int) -> None:
    """Directions of A alone; the vector of a code that was written m times has length 1/√m and its mean weight."""
    which = torch.repeat_interleave(torch.arange(len(times)), torch.tensor(times))
    _, R0, w, z = made(Sizes(30, 20, len(which), seed))
    z = z[: len(times)]
    frame = look(memory.condition(memory.prior(R0, PRIOR_VAR), w, z[which], NOISE_VAR), R0)
    assert (int(frame.rank), int(frame.distinct)) == (len(which), len(times))
    is_a_rotation(frame, w, z[which], EXACT)
    u = z @ torch.linalg.pinv(frame.codes, rtol=1e-7)
    close(1 / u.square().sum(-1), torch.tensor(times, dtype=torch.float64), EXACT)
    close(u @ frame.weights, torch.stack([w[which == i].mean(0) for i in range(len(times))]), EXACT)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
def test_frame_of_each_memory_is_its_own(batch: tuple[int, ...]) -> None:
    R0, z = normal(8, 20), normal(*batch, 5, 20, seed=1)
    state, w = memory.write(memory.prior(R0, PRIOR_VAR, batch), z, NOISE_VAR)
    frame = look(state, R0)
    assert frame.codes.shape == (*batch, 8, 20)
    assert frame.weights.shape == (*batch, 8, 8)
    assert frame.rank.shape == frame.distinct.shape == batch
    flat = zip(*(part.reshape(-1, *part.shape[len(batch) :]) for part in (*frame, w, z)), strict=True)
    for *one, weights, codes in flat:
        is_a_rotation(memory.Frame(*one), weights, codes, 1e-9)


# forget


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A memory in the middle of its life."""
    return case(
        tuple(draw(st.lists(st.integers(1, 3), max_size=2))),
        K=draw(st.integers(1, 12)),
        C=draw(st.integers(1, 12)),
        T=draw(st.integers(0, 15)),
        seed=draw(st.integers(0, 2**20)),
        noise_var=10.0 ** draw(st.floats(-2, 2)),
        condition=10.0 ** draw(st.floats(0, 2)),
    )


@given(cases())
def test_forget_is_condition_backwards(c: Case) -> None:
    after = memory.forget(memory.condition(c.state, c.w, c.z, c.noise_var), c.w, c.z, c.noise_var)
    # rounding 1e-16 of U grows by wᵀU w / noise_var, up to 1e4 here, once for U and once for R
    torch.testing.assert_close(after.U, c.state.U, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(after.R, c.state.R, rtol=1e-6, atol=1e-6)
    assert torch.equal(after.U, after.U.mT)


def test_forget_refuses_weights_that_were_never_written() -> None:
    c = case(K=5, C=7, T=3)
    state = memory.condition(c.state, c.w, c.z, c.noise_var)
    with pytest.raises(ValueError, match=r"noise_var I − W U Wᵀ .*weights never written"):
        memory.forget(state, 10 * c.w[:1], c.z[:1], c.noise_var)
    with pytest.raises(ValueError, match=r"weights never written"):  # once is forgotten, twice was never written
        memory.forget(state, c.w[[0, 0, 0]], c.z[[0, 0, 0]], c.noise_var)
    with kanerva.deep_checks(False):
        assert bool(memory.forget(state, 10 * c.w[:1], c.z[:1], c.noise_var).U.isnan().any())


def clear(x: float, n: int = 1) -> tuple[MemoryState, Tensor, Tensor, MemoryState]:
    """A float32 memory of 3 + n codes, n with weights of prior_var ‖w‖² / noise_var = x, and it without these."""
    R0, w, z = normal(8, 12), normal(3 + n, 8, seed=1), normal(3 + n, 12, seed=2)
    w *= (torch.tensor([x] * n + [1.0] * 3)[:, None] * NOISE_VAR / PRIOR_VAR).sqrt() / w.norm(dim=-1, keepdim=True)
    w, z, R0 = (a.float().double() for a in (w, z, R0))
    prior = memory.prior(R0, PRIOR_VAR)
    state = memory.condition(prior, w, z, NOISE_VAR).to(torch.float32)
    return state, w[:n], z[:n], memory.condition(prior, w[n:], z[n:], NOISE_VAR)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("x", [1e-3, 1.0, 30.0, 100.0])
def test_forget_takes_out_what_float32_has_kept(x: float, n: int) -> None:
    state, w, z, left = clear(x, n)
    for after, exact in zip(memory.forget(state, w.float(), z.float(), NOISE_VAR), left, strict=True):
        # eps (1 + n x)², where weights are alike; as the error says
        close(after.double(), exact, 1e-2)


@pytest.mark.parametrize("x", [1e3, 1e4, 1e6])
def test_forget_refuses_what_rounding_has_lost(x: float) -> None:
    state, w, z, left = clear(x)
    message = r"w: expected weights .* kept to 0.01, got .* error of about .* float64 from its first|never written"
    with pytest.raises(ValueError, match=message):
        memory.forget(state, w.float(), z.float(), NOISE_VAR)
    with pytest.raises(ValueError, match=message):  # what was rounded stays so
        memory.forget(state.to(torch.float64), w, z, NOISE_VAR)
    with kanerva.deep_checks(False):
        assert bool(memory.forget(state, w.float(), z.float(), NOISE_VAR).R.isnan().all())
    whole = memory.condition(left, w, z, NOISE_VAR)
    for after, exact in zip(memory.forget(whole, w, z, NOISE_VAR), left, strict=True):
        close(after, exact, 1e-2)


@pytest.mark.parametrize(("K", "C"), [(3, 4), (4, 2), (1, 2)])
def test_forget_has_gradients(K: int, C: int) -> None:
    c = case((2,), K, C, T=2)
    R, U = memory.condition(c.state, c.w, c.z, c.noise_var)
    leaves = [a.detach().clone().requires_grad_() for a in (R, U, c.w, c.z, c.noise_var)]
    assert torch.autograd.gradcheck(lambda R, U, *rest: memory.forget(MemoryState(R, U), *rest), leaves)
