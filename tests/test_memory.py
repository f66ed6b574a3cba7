"""kanerva.memory against the dense Gaussian of oracle.py and against identities that must hold exactly.

Tolerances are float64 rounding times the size and conditioning of the cases (about 1e2 to 1e4 of 1e-16), unless a
comment says otherwise.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

import oracle
from cases import AWKWARD, Case, case, normal
from kanerva import MemoryState, memory
from kanerva.memory import moments
from oracle import array

EXACT = {"rtol": 1e-11, "atol": 1e-11}


def close(a: Tensor, b: Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(a, b, **(tolerance or EXACT))


def same_memory(a: MemoryState, b: MemoryState, **tolerance: float) -> None:
    close(a.R, b.R, **tolerance)
    close(a.U, b.U, **tolerance)


def one(c: Case, t: int) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments after `state` of an update with the t-th weight and code."""
    return c.w[..., t, :], c.z[..., t, :], c.noise_var


# update, condition: the posterior


@pytest.mark.parametrize("T", [1, 2, 3, 9])
def test_condition_is_the_dense_posterior(T: int, device: str) -> None:
    c = case(K=4, C=3, T=T, device=device)
    new = memory.condition(c.state, c.w, c.z, c.noise_var)
    mean, cov = oracle.posterior(*map(array, (*c.state, c.w, c.z)), 0.3)
    np.testing.assert_allclose(array(new.R), mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.kron(array(new.U), np.eye(3)), cov, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("K", "C", "T"), [(8, 20, 3), (8, 20, 8), (8, 20, 0), (20, 8, 3), (1, 7, 1), (32, 99, 31)])
def test_span_holds_every_code_that_was_written(K: int, C: int, T: int, dtype: torch.dtype, device: str) -> None:
    """Up to K codes, after an ordinary write; and it says how many there were."""
    R0, z = (normal(*shape, seed=i, dtype=dtype).to(device) for i, shape in enumerate([(K, C), (2, T, C)]))
    state, _ = memory.write(memory.prior(R0, 1.5, (2,)), z, 0.7)
    rows = memory.span(state, R0, 1.5)
    assert rows.shape == (2, min(K, C), C)
    # the faintest of 31 codes stands 1,000 times lower than the strongest
    tolerance = 1e-9 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close(z @ rows.mT @ rows, z, rtol=0, atol=tolerance)
    gram = torch.diag_embed((torch.arange(min(K, C), device=device) < T).to(dtype)).expand(2, -1, -1)
    torch.testing.assert_close(rows @ rows.mT, gram, rtol=0, atol=1e-5)
    if 0 < T < min(K, C):
        other = normal(C, seed=9, dtype=dtype).to(device)
        inside = (other @ rows.mT @ rows).norm(dim=-1).square() / other.norm().square()
        assert bool((inside < (T / C + 1) / 2).all())  # T / C on average


def test_absorbing_sums_is_conditioning() -> None:
    """Sums over the codes are all that the posterior needs of them."""
    c = case((2,), K=5, C=7, T=9)
    G = c.w.mT @ c.w / c.noise_var
    H = c.w.mT @ (c.z - memory.read(c.state, c.w)) / c.noise_var
    same_memory(memory.absorb(c.state, G, H), memory.condition(c.state, c.w, c.z, c.noise_var))


# the bound


def test_bound_is_tight_with_given_weights() -> None:
    """E[ln p(Z | W, M)] − KL(q(M) ‖ p(M)) = ln p(Z | W) for the exact posterior q; catches a missing ½."""
    c = case(K=4, C=3, T=5)
    q = memory.condition(c.state, c.w, c.z, c.noise_var)
    T, C = c.z.shape
    spread = torch.einsum("ti,ij,tj->t", c.w, q.U, c.w)  # E‖z − Mᵀw‖² = ‖z − Rᵀw‖² + C wᵀU w
    square = (c.z - memory.read(q, c.w)).square().sum(-1) + C * spread
    likelihood = -0.5 * (T * C * torch.log(2 * math.pi * c.noise_var) + square.sum() / c.noise_var)
    evidence = oracle.log_evidence(*map(array, (*c.state, c.w, c.z)), 0.3)
    assert float(likelihood - memory.kl_memory(q, c.state)) == pytest.approx(evidence, rel=1e-12)


def test_predict_is_the_dense_predictive(device: str) -> None:
    c = case(K=4, C=3, T=1, device=device)
    mean, var = memory.predict(c.state, c.w, c.noise_var)
    m, S, _ = oracle.observe(*map(array, (*c.state, c.w)), 0.3)
    np.testing.assert_allclose(array(mean[0]), m, rtol=1e-12)
    np.testing.assert_allclose(array(var) * np.eye(3), S, rtol=1e-12, atol=1e-14)


# address


@pytest.mark.parametrize(("batch", "K", "C", "T"), AWKWARD)
def test_address_meets_the_ridge_condition(batch: tuple[int, ...], K: int, C: int, T: int, device: str) -> None:
    """At the optimum R (z − Rᵀw) = noise_var w [eq. least_squares]."""
    c = case(batch, K, C, T, device=device)
    w = memory.address(c.z, c.state, c.noise_var)
    assert w.shape == (*batch, T, K)
    residual = c.z - memory.read(c.state, w)
    close(residual @ c.state.R.mT, c.noise_var * w)


# write


@pytest.mark.parametrize(("batch", "K", "C", "T"), AWKWARD)
@pytest.mark.parametrize("iterations", [1, 3])
def test_write_is_algorithm_1(batch: tuple[int, ...], K: int, C: int, T: int, iterations: int) -> None:
    """Address, update, and (optionally) address the result again to update the old memory anew."""
    c = case(batch, K, C, T)
    state, weights = c.state, []
    for t in range(T):
        z = c.z[..., t, :]
        w = memory.address(z[..., None, :], state, c.noise_var)[..., 0, :]
        new = memory.update(state, w, z, c.noise_var)
        for _ in range(iterations - 1):
            w = memory.address(z[..., None, :], new, c.noise_var)[..., 0, :]
            new = memory.update(state, w, z, c.noise_var)
        state = new
        weights.append(w)
    written, w = memory.write(c.state, c.z, c.noise_var, iterations=iterations)
    same_memory(written, state)
    close(w, torch.stack(weights, dim=-2))


@pytest.mark.parametrize("iterations", [1, 2, 4])
@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_write_is_consistent_with_bayes(iterations: int, block: int) -> None:
    """However the weights were found, the memory is the posterior given them: every code counts once."""
    c = case((2,), K=5, C=7, T=8)
    state, w = memory.write(c.state, c.z, c.noise_var, iterations, block)
    same_memory(state, memory.condition(c.state, w, c.z, c.noise_var))


def test_write_in_one_block_addresses_the_old_memory() -> None:
    """All at once, so that codes may come in any order."""
    c = case((2,), T=6)
    state, w = memory.write(c.state, c.z, c.noise_var, block=6)
    close(w, memory.address(c.z, c.state, c.noise_var))
    same_memory(memory.write(c.state, c.z.flip(-2), c.noise_var, block=100)[0], state)


def test_write_depends_on_order() -> None:
    """Dynamic addressing sees the memory so far, so exchangeability is lost [sec. 3.3]."""
    c = case((2,), T=6)
    state, _ = memory.write(c.state, c.z, c.noise_var)
    turned, _ = memory.write(c.state, c.z.flip(-2), c.noise_var)
    assert (state.R - turned.R).norm() > 1e-2 * state.R.norm()
    assert (state.U - turned.U).norm() > 1e-2 * state.U.norm()


def test_write_in_blocks_is_writing_the_blocks() -> None:
    c = case((2,), T=7)
    first, w1 = memory.write(c.state, c.z[:, :4], c.noise_var, block=4)
    second, w2 = memory.write(first, c.z[:, 4:], c.noise_var, block=4)
    state, w = memory.write(c.state, c.z, c.noise_var, block=4)
    same_memory(state, second)
    close(w, torch.cat([w1, w2], dim=-2))


# divergences


def test_kl_memory_is_the_dense_divergence() -> None:
    q, p = case(K=4, C=3, seed=0).state, case(K=4, C=3, seed=10).state
    dense = oracle.kl(*oracle.joint(*map(array, q)), *oracle.joint(*map(array, p)))
    assert float(memory.kl_memory(q, p)) == pytest.approx(dense, rel=1e-12)


def test_kl_prior_is_the_divergence_from_a_prior() -> None:
    c = case((2,), K=4, C=5, T=3)
    p = memory.prior(c.state.R[0], 0.7, (2,))
    q, _ = memory.write(p, c.z, c.noise_var)
    log_det = torch.linalg.slogdet(q.U).logabsdet - torch.linalg.slogdet(p.U).logabsdet
    close(moments.kl_prior(q, c.state.R[0], 0.7, log_det), memory.kl_memory(q, p))


@pytest.mark.parametrize(("batch", "K", "C", "T"), AWKWARD)
def test_inverse_addresses_as_a_solve_does(batch: tuple[int, ...], K: int, C: int, T: int) -> None:
    c = case(batch, K, C, T)
    inverse = memory.inverse(c.state, c.noise_var)
    A = c.state.R @ c.state.R.mT + c.noise_var * torch.eye(K, dtype=torch.float64)
    close(inverse.P, torch.linalg.inv(A))
    close(inverse.log_det, -torch.linalg.slogdet(A).logabsdet)
    close(memory.address(c.z, c.state, c.noise_var, inverse), memory.address(c.z, c.state, c.noise_var))


def test_full_weights_are_the_exact_posterior_in_code_space() -> None:
    """Σ = scale (R Rᵀ/noise_var + I)⁻¹; KL against torch's multivariate normal."""
    c = case((2,), K=4, C=5, T=3)
    R = c.state.R
    cov = 0.25 * torch.linalg.inv(R @ R.mT / c.noise_var + torch.eye(4, dtype=R.dtype))
    q = MultivariateNormal(c.w, cov[:, None])
    p = MultivariateNormal(torch.zeros_like(c.w), torch.eye(4, dtype=R.dtype))
    found = moments.spread(c.w, c.state, c.noise_var, memory.inverse(c.state, c.noise_var))
    torch.testing.assert_close(moments.kl_address(moments.scaled(found, 0.25)), kl_divergence(q, p))


def test_kl_weights_is_the_divergence_of_torch() -> None:
    w = normal(2, 3, 5)
    q = MultivariateNormal(w, 0.3 * torch.eye(5, dtype=w.dtype))
    p = MultivariateNormal(torch.zeros_like(w), torch.eye(5, dtype=w.dtype))
    for weight_var in (0.3, torch.tensor(0.3, dtype=w.dtype)):
        close(memory.kl_weights(w, weight_var), kl_divergence(q, p))


def test_kl_update_is_kl_memory_after_the_update() -> None:
    c = case((2, 3), K=5, C=7, T=1)
    new = memory.update(c.state, *one(c, 0))
    close(memory.kl_update(c.state, *one(c, 0)), memory.kl_memory(new, c.state))


def test_kl_updates_do_not_add_up_to_kl_memory() -> None:
    """The chain of one-step divergences is a different number: B_T may not be built from it [app. C]."""
    c = case(T=4)
    state, total = c.state, torch.zeros((), dtype=torch.float64)
    for t in range(4):
        total = total + memory.kl_update(state, *one(c, t))
        state = memory.update(state, *one(c, t))
    assert abs(float(total - memory.kl_memory(state, c.state))) > 1e-2


# prior, read, sample


def test_prior_is_one_memory_for_each_batch_element(device: str) -> None:
    R0 = normal(4, 3).to(device)
    state = memory.prior(R0, 0.7, batch=(2, 5))
    close(state.R, R0.expand(2, 5, 4, 3))
    close(state.U, 0.7 * torch.eye(4, dtype=R0.dtype, device=device).expand(2, 5, 4, 4))
    assert state.R.is_contiguous()
    assert state.U.is_contiguous()


def test_sample_has_the_mean_and_covariance_of_the_memory(device: str) -> None:
    n = 200_000
    state = case(K=3, C=2).state.to(device)
    wide = MemoryState(state.R.expand(n, 3, 2), state.U.expand(n, 3, 3))
    M = memory.sample(wide, torch.Generator(device).manual_seed(0))
    mean, cov = oracle.joint(*map(array, state))
    flat = array(M.reshape(n, -1))
    # standard errors are below 1/√n = 0.0022 for the mean and √2 times that for the covariance
    np.testing.assert_allclose(flat.mean(0), mean, atol=0.01)
    np.testing.assert_allclose(np.cov(flat.T), cov, atol=0.015)


# limits


def test_tiny_noise_with_independent_weights_recalls_exactly() -> None:
    c = case((2,), K=5, C=7, T=4)
    state = memory.condition(c.state, c.w, c.z, 1e-12)
    # what is left is of the order of noise_var / (wᵀU w)
    close(memory.read(state, c.w), c.z, rtol=0, atol=1e-9)


@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("block", [1, 4])
def test_an_empty_episode_changes_nothing(batch: tuple[int, ...], block: int) -> None:
    c = case(batch, K=4, C=5, T=0)
    state, w = memory.write(c.state, c.z, c.noise_var, block=block)
    assert w.shape == (*batch, 0, 4)
    assert torch.equal(state.R, c.state.R)
    assert torch.equal(state.U, c.state.U)
    same_memory(memory.condition(c.state, c.w, c.z, c.noise_var), c.state)


# batches, dtypes


def test_one_memory_meets_a_batch_of_episodes() -> None:
    """Batch axes broadcast: one prior for many episodes, many memories for one cue."""
    c = case((3,), K=4, C=5, T=6)
    single = MemoryState(c.state.R[0], c.state.U[0])
    wide = MemoryState(single.R.expand(3, 4, 5), single.U.expand(3, 4, 4))
    for a, b in [
        (memory.write(single, c.z, 0.3), memory.write(wide, c.z, 0.3)),
        (memory.write(c.state, c.z[0], 0.3), memory.write(c.state, c.z[:1].expand(3, 6, 5), 0.3)),
    ]:
        same_memory(a[0], b[0])
        close(a[1], b[1])
    same_memory(memory.condition(single, c.w, c.z, 0.3), memory.condition(wide, c.w, c.z, 0.3))
    same_memory(memory.update(single, *one(c, 0)), memory.update(wide, *one(c, 0)))
    assert memory.write(single, c.z[:, :0], 0.3)[0].R.shape == (3, 4, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_keep_the_dtype(dtype: torch.dtype, device: str) -> None:
    c = case((2,), device=device)
    state, w, z = c.state.to(dtype), c.w.to(dtype), c.z.to(dtype)
    written, weights = memory.write(state, z, 0.3, iterations=2, block=2)
    results = [
        *memory.prior(state.R, 1),
        *written,
        weights,
        *memory.update(state, w[:, 0], z[:, 0], 0.3),
        memory.read(state, w),
        *memory.predict(state, w, 0.3),
        memory.sample(state),
        memory.kl_memory(written, state),
        memory.kl_weights(w, 0.3),
        memory.kl_update(state, w[:, 0], z[:, 0], 0.3),
        memory.span(state, state.R, 0.3),
    ]
    assert {x.dtype for x in results} == {dtype}
    assert {x.device.type for x in results} == {device}


def test_float32_is_float64_rounded(device: str) -> None:
    c = case((2,), K=32, C=100, T=32, device=device)
    exact, w = memory.write(c.state, c.z, 0.3)
    state, w32 = memory.write(c.state.to(torch.float32), c.z.float(), 0.3)
    # 32 writes, each good to a few 6e-8 times the conditioning of A (about 30 here)
    same_memory(state.to(torch.float64), exact, rtol=1e-4, atol=2e-5)
    close(w32.double(), w, rtol=1e-4, atol=2e-5)


def test_a_memory_that_has_faded_stays_so(tmp_path: Path) -> None:
    c = case(T=3)
    state = memory.drift(c.state, c.state.R, 1.0, 0.5)
    G, H = c.w.mT @ c.w / c.noise_var, c.w.mT @ (c.z - c.w @ state.R) / c.noise_var
    absorbed = memory.absorb(state, G, H)
    torch.save(absorbed, tmp_path / "state.pt")
    for after in (
        absorbed,
        memory.forget(absorbed, c.w[:1], c.z[:1], c.noise_var),
        torch.load(tmp_path / "state.pt"),
    ):
        assert type(after) is memory.Faded
        with pytest.raises(ValueError, match="state: expected a memory that never faded"):
            memory.span(after, c.state.R, 1.0)
    with pytest.raises(ValueError, match=r"torch\.save\(state\) keeps it"):
        absorbed._asdict()


@pytest.mark.parametrize("operation", [lambda a: a + a, lambda a: 2 * a, lambda a: sum([a], ())])
def test_memories_are_not_concatenated_as_tuples(operation: Callable[[Any], Any]) -> None:
    state = case().state
    for one in (state, memory.drift(state, state.R, 1.0, 0.5)):
        with pytest.raises(TypeError, match=r"memory\.absorb, adds .* torch\.stack"):
            operation(one)


def test_nothing_is_changed_in_place() -> None:
    c = case((2,), T=6)
    before = [x.clone() for x in (*c.state, c.w, c.z, c.noise_var)]
    memory.write(c.state, c.z, c.noise_var, iterations=2, block=4)
    memory.condition(c.state, c.w, c.z, c.noise_var)
    memory.update(c.state, *one(c, 0))
    memory.kl_memory(c.state, c.state)
    memory.sample(c.state)
    assert all(torch.equal(a, b) for a, b in zip(before, (*c.state, c.w, c.z, c.noise_var), strict=True))


@pytest.mark.parametrize(("variance", "rank"), [(1e-20, 2), (1.0, 2), (1e30, 0)])
def test_span_where_squares_are_no_float32(variance: float, rank: int) -> None:
    """With little noise all is kept, with so much nothing is."""
    R0, z = (normal(*shape, seed=i, dtype=torch.float32) for i, shape in enumerate([(4, 9), (2, 9)]))
    state, _ = memory.write(memory.prior(R0, variance), z, variance)
    basis = memory.span(state, R0, variance)
    assert int(basis.any(-1).sum()) == rank


def test_update_leaves_u_symmetric_to_the_last_bit() -> None:
    c = case((5,), K=33, C=7, T=40)
    for state in (
        memory.update(c.state, *one(c, 0)),
        memory.condition(c.state, c.w, c.z, c.noise_var),
        memory.write(c.state, c.z, c.noise_var)[0],
    ):
        assert torch.equal(state.U, state.U.mT)


def test_write_goes_on_where_it_stopped() -> None:
    c = case((2,), T=6)
    first, w1 = memory.write(c.state, c.z[:, :2], c.noise_var)
    second, w2 = memory.write(first, c.z[:, 2:], c.noise_var)
    state, w = memory.write(c.state, c.z, c.noise_var)
    assert all(torch.equal(a, b) for a, b in zip((*state, w), (*second, torch.cat([w1, w2], -2)), strict=True))


@pytest.mark.parametrize(
    ("K", "C", "mean", "noise_var"), [(64, 16, 0.0, 1e-2), (8, 20, 20.0, 1e-2), (32, 100, 0.0, 1.0)]
)
def test_inverse_reads_as_exactly_as_a_solve(K: int, C: int, mean: float, noise_var: float) -> None:
    """In float32, where A is hard to invert (cond(A) from 10 to 2e4)."""
    R, z = normal(K, C) + mean, normal(50, C, seed=1) + mean
    exact = MemoryState(R, torch.eye(K, dtype=R.dtype))
    wanted = memory.address(z, exact, noise_var)
    state = exact.to(torch.float32)
    errors = []
    for inverse in (None, memory.inverse(state, noise_var)):
        w = memory.address(z.float(), state, noise_var, inverse)
        pairs = ((w, wanted), (memory.read(state, w), memory.read(exact, wanted)))
        errors.append([float((a.double() - b).norm() / b.norm()) for a, b in pairs])
    for solved, inverted in zip(*errors, strict=True):
        assert inverted <= 4 * solved + 1e-6  # the last for a solve that is right by luck


def test_full_weights_are_drawn_with_their_covariance() -> None:
    c = case(K=4, C=3, T=1)
    inverse = memory.inverse(c.state, c.noise_var)
    mean = normal(1, 4, seed=9).expand(100_000, 4)
    q = moments.scaled(moments.spread(mean, c.state, c.noise_var, inverse), 0.25)
    w = moments.draw(q, torch.Generator().manual_seed(0))
    # standard errors are √2/√100,000 = 0.0045 of the variances, which are at most 0.25
    close(w.mean(0), mean[0], atol=0.01, rtol=0)
    close(w.mT.cov(), 0.25 * c.noise_var * inverse.P, atol=0.005, rtol=0)


def test_a_batch_is_its_elements() -> None:
    c = case((2, 3), K=4, C=5, T=6)
    state, w = memory.write(c.state, c.z, c.noise_var, iterations=2, block=2)
    for i in range(2):
        for j in range(3):
            lone = MemoryState(c.state.R[i, j], c.state.U[i, j])
            alone, w_alone = memory.write(lone, c.z[i, j], c.noise_var, iterations=2, block=2)
            same_memory(MemoryState(state.R[i, j], state.U[i, j]), alone)
            close(w[i, j], w_alone)
