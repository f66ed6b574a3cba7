"""The layer against one dense Gaussian, in NumPy and float64: masks, keys and values, missing entries."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kanerva.nn import Memory
from oracle import Array, kl, log_density

Batch = tuple[int, ...]

CLOSE = 1e-10  # float64, memories with condition numbers below 1e4: rounding stays some orders below


def gaussian_given(mean: Array, cov: Array, A: Array, y: Array, noise: float) -> tuple[Array, Array]:
    """Mean and covariance of v ~ N(mean, cov), given y = A v + e with e ~ N(0, noise I): textbook conditioning."""
    S = A @ cov @ A.T + noise * np.eye(len(y))
    gain = np.linalg.solve(S, A @ cov).T
    return mean + gain @ (y - A @ mean), cov - gain @ A @ cov


class Dense:
    """One memory as a Gaussian over all of its K·C numbers (row-major); nothing factorised, nothing shared."""

    def __init__(self, R0: Array, prior_var: float, noise_var: float, size: int) -> None:
        self.K, self.C = R0.shape
        self.size, self.noise = size, noise_var
        self.mean, self.cov = R0.reshape(-1).copy(), prior_var * np.eye(R0.size)
        self.blank = self.mean, self.cov
        self.weights: list[Array] = []

    @property
    def R(self) -> Array:
        return self.mean.reshape(self.K, self.C)

    @property
    def U(self) -> Array:
        return self.cov.reshape(self.K, self.C, self.K, self.C)[:, 0, :, 0]

    def address(self, cue: Array, known: Array) -> tuple[Array, Array]:
        """w ~ N(0, I) given the known entries of cue = Rᵀw + noise."""
        return gaussian_given(np.zeros(self.K), np.eye(self.K), self.R.T[known], cue[known], self.noise)

    def write(self, code: Array, w: Array | None = None) -> None:
        """Condition on code = Mᵀw + noise, with w found from the key."""
        if w is None:
            w, _ = self.address(code, np.arange(self.size))
        self.weights.append(w)
        A = np.kron(w[None], np.eye(self.C))  # (C, K·C): Mᵀw of the flat M
        self.mean, self.cov = gaussian_given(self.mean, self.cov, A, code, self.noise)

    def predict(self, cue: Array, known: Array) -> tuple[Array, Array]:
        """Mean of Rᵀw, and the variance of each entry of Mᵀw + noise, with M and w independent."""
        mu, sigma = self.address(cue, known)
        var = np.empty(self.C)
        for c in range(self.C):
            r = self.R[:, c]
            second = self.U + np.outer(r, r)  # E[m mᵀ] of a column m
            var[c] = np.trace(second @ (sigma + np.outer(mu, mu))) - (r @ mu) ** 2 + self.noise
        return self.R.T @ mu, var

    def energy(self, cue: Array, known: Array) -> float:
        Rk = self.R[:, known]
        return -log_density(cue[known], np.zeros(len(known)), Rk.T @ Rk + self.noise * np.eye(len(known)))

    def kl(self) -> float:
        return kl(self.mean, self.cov, *self.blank)


SIZES = [  # K, size, values, T, batch
    (1, 1, 1, 1, ()),
    (1, 4, 0, 3, (2,)),
    (3, 5, 2, 7, (2,)),
    (5, 3, 4, 4, (2, 2)),  # more rows than entries of a key
    (4, 6, 0, 9, ()),
    (6, 7, 1, 3, (3,)),
    (4, 5, 3, 70, ()),  # longer than a chunk of the fast write
]


def case(
    K: int, size: int, values: int, T: int, batch: Batch
) -> tuple[Memory, Tensor, Tensor | None, Tensor, list[Dense]]:
    """A layer with odd parameters, with codes, a mask, and a dense twin for each memory of the batch."""
    torch.manual_seed(97 * K + 7 * size + values)
    layer = Memory(size, rows=K, values=values).double()
    with torch.no_grad():
        layer.log_prior_var.fill_(0.4)
        layer.log_noise_var.fill_(-1.1)
    z = torch.randn(*batch, T, size, dtype=torch.float64)
    v = torch.randn(*batch, T, values, dtype=torch.float64) if values else None
    mask = torch.rand(*batch, T) > 0.4
    R0, prior_var, noise_var = layer.R0.detach().numpy(), layer.prior_var.item(), layer.noise_var.item()
    dense = [Dense(R0, prior_var, noise_var, size) for _ in range(math.prod(batch))]
    codes = z if v is None else torch.cat([z, v], -1)
    flat, kept = codes.reshape(-1, T, size + values).numpy(), mask.reshape(-1, T)
    for one, code, there in zip(dense, flat, kept, strict=True):
        for t in range(T):
            if there[t]:
                one.write(code[t])
    return layer, z, v, mask, dense


def stacked(batch: Batch, arrays: list[Any]) -> Array:
    arrays = [np.asarray(a) for a in arrays]
    return np.stack(arrays).reshape((*batch, *arrays[0].shape))


def near(got: Tensor, want: Array) -> None:
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("backend", ["auto", "reference", "gram"])
@pytest.mark.parametrize(("K", "size", "values", "T", "batch"), SIZES)
def test_written_state_is_dense_conditioning(
    K: int, size: int, values: int, T: int, batch: Batch, backend: str
) -> None:
    layer, z, v, mask, dense = case(K, size, values, T, batch)
    layer.backend = backend
    junk = z.masked_fill(~mask[..., None], float("nan"))
    state = layer.write(junk, mask=mask, values=v)
    near(state.R, stacked(batch, [d.R for d in dense]))
    near(state.U, stacked(batch, [d.U for d in dense]))
    near(layer.kl(state), stacked(batch, [d.kl() for d in dense]))
    half = layer.write(
        z[..., : T // 2, :], mask=mask[..., : T // 2], values=None if v is None else v[..., : T // 2, :]
    )
    rest = None if v is None else v[..., T // 2 :, :]
    whole = layer.write(z[..., T // 2 :, :], half, mask=mask[..., T // 2 :], values=rest)
    near(whole.R, state.R.detach().numpy())


@pytest.mark.parametrize(("K", "size", "values", "T", "batch"), SIZES)
@pytest.mark.parametrize("kind", ["key", "value", "some", "none", "all"])
def test_cues_are_dense_conditioning(K: int, size: int, values: int, T: int, batch: Batch, kind: str) -> None:
    layer, z, v, mask, dense = case(K, size, values, T, batch)
    state, C, Q = layer.write(z, mask=mask, values=v), size + values, 5
    cue = torch.randn(*batch, Q, C, dtype=torch.float64)
    known = {
        "key": (torch.arange(C) < size).expand(cue.shape),
        "value": (torch.arange(C) >= size).expand(cue.shape),
        "some": torch.rand(cue.shape) > 0.5,
        "none": torch.zeros(cue.shape, dtype=torch.bool),
        "all": torch.ones(cue.shape, dtype=torch.bool),
    }[kind]
    cues, knowns = cue.reshape(-1, Q, C).numpy(), known.reshape(-1, Q, C).numpy()

    def each(ask: Callable[[Dense, Array, Array], Any]) -> Array:
        return stacked(
            batch,
            [
                np.stack([ask(d, c, np.flatnonzero(k)) for c, k in zip(cs, ks, strict=True)])
                for d, cs, ks in zip(dense, cues, knowns, strict=True)
            ],
        )

    given = cue.masked_fill(~known, float("inf"))  # what is not known may hold anything
    near(layer.address(state, given, known), each(lambda d, c, k: d.address(c, k)[0]))
    found = layer.predict(state, given, known)
    near(found.mean, each(lambda d, c, k: d.predict(c, k)[0]))
    near(found.var, each(lambda d, c, k: d.predict(c, k)[1]))
    near(layer.energy(state, given, known), each(lambda d, c, k: d.energy(c, k)))
    start = size if values else 0
    near(layer.read(state, given, known), each(lambda d, c, k: d.predict(c, k)[0])[..., start:])
    if kind == "key":
        near(layer.read(state, cue[..., :size]), each(lambda d, c, k: d.predict(c, k)[0])[..., start:])
        near(layer.energy(state, cue[..., :size]), each(lambda d, c, k: d.energy(c, k)))


@pytest.mark.parametrize(("K", "size", "values", "T"), [(8, 12, 0, 5), (8, 12, 3, 5), (8, 9, 3, 7)])
def test_forgetting_is_never_having_written_with_these_weights(K: int, size: int, values: int, T: int) -> None:
    layer, z, v, _, _ = case(K, size, values, T, ())
    state = layer.write(z, values=v)
    codes = (z if v is None else torch.cat([z, v], -1)).numpy()
    whole, left = (
        Dense(layer.R0.detach().numpy(), layer.prior_var.item(), layer.noise_var.item(), size) for _ in range(2)
    )
    for code in codes:
        whole.write(code)
    gone = 2
    for t in range(T):
        if t != gone:
            left.write(codes[t], whole.weights[t])
    after = layer.forget(state, z[gone : gone + 1], None if v is None else v[gone : gone + 1])
    # through a frame: eigenvalues are cut off
    np.testing.assert_allclose(after.R.detach().numpy(), left.R, atol=1e-6)
    np.testing.assert_allclose(after.U.detach().numpy(), left.U, atol=1e-6)
    assert layer.contains(after, z, v).tolist() == [int(t != gone) for t in range(T)]


def test_gradients_of_masked_codes_and_unknown_entries_are_zero() -> None:
    layer, z, v, mask, _ = case(4, 6, 2, 8, (2,))
    assert v is not None
    z, v = z.masked_fill(~mask[..., None], torch.nan).requires_grad_(), v.requires_grad_()
    state = layer.write(z, mask=mask, values=v)
    cue = torch.randn(2, 3, 8, dtype=torch.float64)
    known = torch.rand(2, 3, 8) > 0.5
    cue = cue.masked_fill(~known, float("nan")).requires_grad_()
    found = layer.predict(state, cue, known)
    (found.mean.square().sum() + found.var.sum() + layer.energy(state, cue, known).sum()).backward()
    for leaf, there in ((z, mask), (v, mask), (cue, known)):
        assert leaf.grad is not None
        assert not leaf.grad[~there].any()
        assert bool((leaf.grad[there] != 0).all())
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
