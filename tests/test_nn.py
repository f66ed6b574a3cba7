"""kanerva.nn against one dense Gaussian in NumPy, and as part of somebody's network.

The oracle here knows of joint Gaussians and of conditioning on some of their entries, and of nothing else.
"""

import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases import normal
from kanerva import MemoryState, memory
from kanerva.nn import Memory
from oracle import Array, array

# What is asked of float64: rounding, 1e-16, times the conditioning of small memories.
EXACT = 1e-10


def layer(size: int = 5, rows: int = 4, values: int = 0, seed: int = 0) -> Memory:
    made = Memory(size, rows, values).double()
    with torch.no_grad():
        made.R0.copy_(normal(rows, size + values, seed=seed))
        made.log_prior_var.fill_(0.3)
        made.log_noise_var.fill_(-1.0)
    return made


def variances(m: Memory) -> tuple[float, float]:
    return float(m.prior_var.detach()), float(m.noise_var.detach())


# the oracle


def conditioned(mean: Array, cov: Array, known: Array, seen: Array) -> tuple[Array, Array]:
    """Mean and covariance of a Gaussian, given the entries `known`."""
    gain = np.linalg.solve(cov[np.ix_(known, known)], cov[known]).T
    return mean + gain @ (seen - mean[known]), cov - gain @ cov[known]


def given_code(R: Array, noise_var: float, z: Array, known: Array) -> tuple[Array, Array]:
    """The joint Gaussian of w ~ N(0, I) and z = Rᵀw + noise, given some entries of z; [w; z]."""
    K, C = R.shape
    both = np.concatenate([np.eye(K), R], axis=1)  # [w; z] = bothᵀ w + noise in z
    cov = both.T @ both + np.diag([0.0] * K + [noise_var] * C)
    where = K + np.flatnonzero(known)
    return conditioned(np.zeros(K + C), cov, where, z[known])


def dense_write(m: Memory, codes: Array, mask: Array | None = None) -> tuple[Array, Array]:
    """Mean and full covariance of vec(M) after codes [key; value] were written, addressed by their keys."""
    (K, C), (prior_var, noise_var) = m.R0.shape, variances(m)
    mean, cov = array(m.R0).reshape(-1), prior_var * np.eye(K * C)
    for t, z in enumerate(codes):
        if mask is not None and not mask[t]:
            continue
        is_key = np.arange(C) < m.size
        w = given_code(mean.reshape(K, C), noise_var, z, is_key)[0][:K]
        H = np.kron(w, np.eye(C))
        # [M; z] with z = H M + noise
        joint = np.block([[cov, cov @ H.T], [H @ cov, H @ cov @ H.T + noise_var * np.eye(C)]])
        at = K * C + np.arange(C)
        both, joint = conditioned(np.concatenate([mean, H @ mean]), joint, at, z)
        mean, cov = both[: K * C], joint[: K * C, : K * C]
    return mean.reshape(K, C), cov


def is_dense(state: MemoryState, dense: tuple[Array, Array]) -> None:
    R, cov = dense
    np.testing.assert_allclose(array(state.R), R, rtol=0, atol=EXACT)
    np.testing.assert_allclose(np.kron(array(state.U), np.eye(R.shape[1])), cov, rtol=0, atol=EXACT)


# writing


BACKENDS = ["reference", "gram", *(["cpu"] if importlib.util.find_spec("numba") else [])]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("values", [0, 2])
@pytest.mark.parametrize(("rows", "size"), [(1, 3), (4, 5), (5, 3)])
def test_a_write_is_dense_conditioning(backend: str, rows: int, size: int, values: int) -> None:
    m = layer(size, rows, values)
    m.backend = backend
    codes, mask = normal(6, size + values, seed=3), torch.tensor([True, False, True, True, False, True])
    z, v = codes[:, :size], codes[:, size:] if values else None
    is_dense(m.write(z, values=v), dense_write(m, array(codes)))
    is_dense(m.write(z, mask=mask, values=v), dense_write(m, array(codes), array(mask) > 0))


def padded(z: Tensor, mask: Tensor, what: float) -> Tensor:
    return torch.where(mask[..., None], z, torch.tensor(what, dtype=z.dtype)).requires_grad_()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("values", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_masked_code_changes_nothing_to_the_last_bit(backend: str, values: int, dtype: torch.dtype) -> None:
    m = layer(8, 4, values).to(dtype)
    m.backend = backend
    z, v = normal(3, 5, 8, dtype=dtype), normal(3, 5, values, seed=1, dtype=dtype)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    found = []
    for what in (0.0, 7e30, torch.nan, torch.inf):
        codes, more = padded(z, mask, what), padded(v, mask, what)
        state = m.write(codes, mask=mask, values=more if values else None)
        total = sum((x * normal(*x.shape, seed=9).to(x)).sum() for x in state)
        grads = torch.autograd.grad(total, [codes, more, *m.parameters()], allow_unused=True)
        found.append([*state, *(g for g in grads if g is not None)])
        assert not grads[0][~mask].any()
        assert grads[0][mask].any()
        if values:
            assert not grads[1][~mask].any()
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    blank = m.prior()
    assert torch.equal(found[0][0][2], blank.R)
    assert torch.equal(found[0][1][2], blank.U)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_masked_code_is_one_that_was_left_out(backend: str) -> None:
    m = layer(8, 4, values=2)
    m.backend = backend
    z, v, keep = normal(5, 8), normal(5, 2, seed=1), torch.tensor([1, 0, 1, 1, 0], dtype=torch.bool)
    a, b = m.write(z, mask=keep, values=v), m.write(z[keep], values=v[keep])
    if backend == "reference":  # the same operations; elsewhere products of another size may round differently
        assert torch.equal(a.R, b.R)
    torch.testing.assert_close(a.R, b.R, rtol=0, atol=1e-13)
    torch.testing.assert_close(a.U, b.U, rtol=0, atol=1e-13)


def test_masks_broadcast() -> None:
    m, z = layer(), normal(6, 5)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    both = m.write(z, mask=mask)
    assert both.R.shape == (2, 4, 5)
    torch.testing.assert_close(both.R[0], m.write(z[:2]).R)
    torch.testing.assert_close(both.R[1], m.write(z).R)


# reading


@st.composite
def cues(draw: st.DrawFn) -> tuple[Memory, Tensor, Tensor]:
    size, rows, values = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(0, 3))
    m = layer(size, rows, values, seed=draw(st.integers(0, 2**16)))
    known = draw(st.lists(st.booleans(), min_size=size + values, max_size=size + values))
    return m, normal(2, size + values, seed=7), torch.tensor(known)


@given(cues())
def test_known_entries_alone_are_conditioned_on(case: tuple[Memory, Tensor, Tensor]) -> None:
    """Any entries of key and value: mean and variance of w, and of every entry, known or not."""
    m, cue, known = case
    _, noise_var = variances(m)
    state = m.write(normal(3, m.size, seed=5), values=normal(3, m.values, seed=6) if m.values else None).detach()
    lost = torch.where(known, cue, torch.nan)
    w, found, energy = m.address(state, lost, known), m.predict(state, lost, known), m.energy(state, lost, known)
    for q in range(2):
        R = array(state.R)
        mean, cov = given_code(R, noise_var, array(cue[q]), np.asarray(known))
        K = len(R)
        np.testing.assert_allclose(array(w[q]), mean[:K], rtol=0, atol=EXACT)
        np.testing.assert_allclose(array(found.mean[q]), R.T @ mean[:K], rtol=0, atol=EXACT)
        np.testing.assert_allclose(
            array(found.var[q]), variance(R, array(state.U), mean[:K], cov[:K, :K]) + noise_var
        )
        seen, own = R[:, np.asarray(known)], array(cue[q])[np.asarray(known)]
        S = seen.T @ seen + noise_var * np.eye(len(own))
        wanted = 0.5 * (own @ np.linalg.solve(S, own) + np.linalg.slogdet(2 * np.pi * S)[1]) if len(own) else 0.0
        assert float(energy[q].detach()) == pytest.approx(wanted, abs=1e-8)


def variance(R: Array, U: Array, m: Array, S: Array) -> Array:
    """Var of Mᵀw for w ~ N(m, S), M ~ MN(R, U, I), by quadrature: what is integrated is quadratic in w."""
    points, weights = np.polynomial.hermite_e.hermegauss(3)
    weights, root = weights / weights.sum(), np.linalg.svd(S)
    L = root[0] * np.sqrt(root[1])
    grid = np.stack(np.meshgrid(*[points] * len(m), indexing="ij"), -1).reshape(-1, len(m))
    p = np.prod(np.stack(np.meshgrid(*[weights] * len(m), indexing="ij"), -1).reshape(-1, len(m)), -1)
    w = m + grid @ L.T
    means, inner = w @ R, np.einsum("ni,ij,nj->n", w, U, w)
    return p @ (means - p @ means) ** 2 + p @ inner


def test_a_cue_is_a_key_alone_or_all_of_a_code() -> None:
    m = layer(4, 6, values=3)
    z, v = normal(5, 4), normal(5, 3, seed=1)
    state = m.write(z, values=v)
    assert m.read(state, z).shape == (5, 3)
    whole, known = torch.cat([z, v], -1), torch.arange(7) < 4
    torch.testing.assert_close(m.read(state, whole, known.expand(5, 7)), m.read(state, z))
    torch.testing.assert_close(m.predict(state, z).mean, m.predict(state, whole, known.expand(5, 7)).mean)
    torch.testing.assert_close(m.predict(state, z).var, m.predict(state, whole, known.expand(5, 7)).var)
    with pytest.raises(ValueError, match=r"cue: expected .* n = 4"):
        m.read(state, whole)


def test_forward_writes_and_reads() -> None:
    m, z, v = layer(6, 4, values=2), normal(2, 3, 6), normal(2, 3, 2, seed=1)
    torch.testing.assert_close(m(z, values=v), m.read(m.write(z, values=v), z))
    torch.testing.assert_close(m(z, z[:, :1], values=v), m.read(m.write(z, values=v), z[:, :1]))
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    torch.testing.assert_close(
        m(padded(z, mask, torch.nan), mask=mask, values=v)[0, :2], m(z[:1, :2], values=v[:1, :2])[0]
    )


def test_kl_is_the_memory_from_its_prior() -> None:
    m = layer()
    state = m.write(normal(2, 3, 5))
    torch.testing.assert_close(m.kl(state), memory.kl_memory(state, m.prior()))
    torch.testing.assert_close(m.kl(m.prior()), torch.zeros((), dtype=torch.float64))


# fading


def test_fading_is_conditioning_of_two_moments_at_once() -> None:
    """Codes seen of M before it drifts, and of M' after: the posterior of M' from one dense Gaussian of both."""
    m, keep = layer(2, 3), 0.7
    (K, C), (prior_var, noise_var) = m.R0.shape, variances(m)
    w, z = normal(4, K, seed=1), normal(4, C, seed=2)
    state = memory.condition(m.prior(), w[:2], z[:2], m.noise_var)
    state = memory.condition(m.fade(state, keep), w[2:], z[2:], m.noise_var)
    H = np.kron(array(w), np.eye(C))
    first, last = np.split(H, 2)
    zero = np.zeros_like(first)
    H = np.block([[first, zero], [zero, last]])
    prior = prior_var * np.kron(np.array([[1, np.sqrt(keep)], [np.sqrt(keep), 1]]), np.eye(K * C))
    mean = np.tile(array(m.R0).reshape(-1), 2)
    joint = np.block([[prior, prior @ H.T], [H @ prior, H @ prior @ H.T + noise_var * np.eye(len(H))]])
    at = len(mean) + np.arange(len(H))
    both, cov = conditioned(np.concatenate([mean, H @ mean]), joint, at, array(z).reshape(-1))
    after = slice(K * C, 2 * K * C)
    is_dense(state, (both[after].reshape(K, C), cov[after, after]))


def test_fading_ends_in_the_blank_memory() -> None:
    m = layer()
    state, blank = m.write(normal(3, 5)), m.prior()
    torch.testing.assert_close(m.fade(state, 1.0), state)
    for _ in range(60):
        state = m.fade(state, 0.5)
    torch.testing.assert_close(state, blank)
    torch.testing.assert_close(m.fade(blank, 0.5), blank)
