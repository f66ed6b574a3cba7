"""What must hold for any memory: hypothesis draws sizes, batch shapes, seeds and conditioning."""

from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases import Case, case
from kanerva import MemoryState, memory


@st.composite
def cases(draw: st.DrawFn, most: int = 12) -> Case:
    """A memory with eigenvalues of U over up to six decades and a noise over six."""
    return case(
        tuple(draw(st.lists(st.integers(1, 3), max_size=2))),
        K=draw(st.integers(1, most)),
        C=draw(st.integers(1, most)),
        T=draw(st.integers(0, most)),
        seed=draw(st.integers(0, 2**20)),
        noise_var=10.0 ** draw(st.floats(-4, 2)),
        condition=10.0 ** draw(st.floats(0, 6)),
    )


def near(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Equal up to `tolerance` of the larger norm; NaN is never near."""
    return bool((a - b).norm() <= tolerance * torch.maximum(a.norm(), b.norm()) + 1e-300)


def steps(c: Case) -> MemoryState:
    state = c.state
    for t in range(c.z.shape[-2]):
        state = memory.update(state, c.w[..., t, :], c.z[..., t, :], c.noise_var)
    return state


# Rounding 1e-16 grows with wᵀU w / noise_var, at most 1e7 here, and the number of steps.
LOOSE = 1e-8


@given(cases())
def test_condition_is_update_after_update(c: Case) -> None:
    at_once, one_by_one = memory.condition(c.state, c.w, c.z, c.noise_var), steps(c)
    assert near(at_once.R, one_by_one.R, LOOSE)
    assert near(at_once.U, one_by_one.U, LOOSE)


@given(cases(), st.randoms(use_true_random=False))
def test_order_does_not_matter_with_given_weights(c: Case, random: Random) -> None:
    order = list(range(c.z.shape[-2]))
    random.shuffle(order)
    a = memory.condition(c.state, c.w, c.z, c.noise_var)
    b = memory.condition(c.state, c.w[..., order, :], c.z[..., order, :], c.noise_var)
    assert near(a.R, b.R, LOOSE)
    assert near(a.U, b.U, LOOSE)


@given(cases())
def test_observing_never_adds_uncertainty(c: Case) -> None:
    """0 ≺ U_T ⪯ U_0, and U_T is symmetric to the last bit."""
    state, _ = memory.write(c.state, c.z, c.noise_var)
    assert torch.equal(state.U, state.U.mT)
    assert bool((torch.linalg.eigvalsh(state.U) > 0).all())
    # rounding of eigenvalues of at most 1
    assert bool((torch.linalg.eigvalsh(c.state.U - state.U) > -1e-12).all())


@given(cases())
def test_address_is_the_least_of_its_cost(c: Case) -> None:
    """Any step away from w raises ‖z − Rᵀw‖² + noise_var ‖w‖², by the curvature along the step."""
    w = memory.address(c.z, c.state, c.noise_var)

    def cost(w: Tensor) -> Tensor:
        return (c.z - memory.read(c.state, w)).square().sum(-1) + c.noise_var * w.square().sum(-1)

    step = 0.1 * c.w
    rise = memory.read(c.state, step).square().sum(-1) + c.noise_var * step.square().sum(-1)
    assert near(cost(w + step) - cost(w), rise, 1e-7)


@given(cases(), st.integers(1, 3), st.integers(1, 5))
def test_write_is_the_posterior_given_its_weights(c: Case, iterations: int, block: int) -> None:
    state, w = memory.write(c.state, c.z, c.noise_var, iterations, block)
    exact = memory.condition(c.state, w, c.z, c.noise_var)
    assert near(state.R, exact.R, LOOSE)
    assert near(state.U, exact.U, LOOSE)


@given(cases())
def test_divergences_are_not_negative_and_agree(c: Case) -> None:
    assert bool((memory.kl_weights(c.w, c.noise_var) >= 0).all())
    if c.z.shape[-2] == 0:
        return
    w, z = c.w[..., 0, :], c.z[..., 0, :]
    fast = memory.kl_update(c.state, w, z, c.noise_var)
    exact = memory.kl_memory(memory.update(c.state, w, z, c.noise_var), c.state)
    assert bool((fast >= 0).all())
    # kl_memory subtracts C·K from a trace: what is left of small numbers is good to 1e-16 times that and cond(U)
    assert bool(((fast - exact).abs() <= 1e-8 * (1 + exact.abs())).all())


@given(cases())
def test_determinant_needs_no_factorisation(c: Case) -> None:
    state, total = c.state, torch.logdet(c.state.U)
    for t in range(c.z.shape[-2]):
        _, var = memory.predict(state, c.w[..., t : t + 1, :], c.noise_var)
        total = total + c.noise_var.log() - var[..., 0].log()
        state = memory.update(state, c.w[..., t, :], c.z[..., t, :], c.noise_var)
    assert near(torch.logdet(state.U), total, 1e-6)


@given(cases(), st.integers(0, 2**20))
def test_rotating_code_space_rotates_the_memory(c: Case, seed: int) -> None:
    """Codes enter by inner products alone: Z → Z Q turns R into R Q and leaves w and U as they are."""
    C = c.z.shape[-1]
    Q, _ = torch.linalg.qr(case(K=C, C=C, seed=seed).state.R)
    state, w = memory.write(c.state, c.z, c.noise_var)
    turned, w_turned = memory.write(MemoryState(c.state.R @ Q, c.state.U), c.z @ Q, c.noise_var)
    # dynamic addressing feeds rounding back into itself, more so the smaller the noise
    assert near(w, w_turned, 1e-5)
    assert near(state.R @ Q, turned.R, 1e-5)
    assert near(state.U, turned.U, 1e-5)
