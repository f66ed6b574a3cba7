"""The memory as a Gaussian over a matrix: how it is written and read, and what both cost.

    M ~ MN(R, U, I)     K rows for codes of C numbers; columns are independent, rows covary by U     [sec. 2.1]
    z = Mᵀw + ξ         w ~ N(0, I),  ξ ~ N(0, noise_var I)                                          [eq. read]

Read in this order: prior, address, update, write, read, kl_memory. Everything else follows from these six.
All functions are pure, take any leading batch axes *b, which broadcast, in float32 or float64, and change nothing
in place. The outermost call checks its arguments against its signature; the functions that it calls trust them. The
same memory as two sums is sums.py. The same write, faster, is kanerva.kernels. The judge is tests/oracle.py. U is
symmetric: of its gradient, only the symmetric part has a meaning.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..support import checks
from ..support.checks import Count, Random, Share, Sizes, Variance
from ..support.door import public
from ..support.linalg import broadcast, cholesky, log_det, ridge, ridge_inverse, solve, solve_lower, symmetric


class MemoryState(NamedTuple):
    """The memory's distribution, MN(R, U, I): columns are independent, rows covary by U [sec. 2.1]."""

    R: Annotated[Float[Tensor, "*#b K C"], checks.filled]
    """The mean."""
    U: Float[Tensor, "*#b K K"]
    """The covariance of the rows."""

    def to(self, *args: Any, **kwargs: Any) -> "MemoryState":
        """Move or convert both tensors, as Tensor.to does."""
        return type(self)(self.R.to(*args, **kwargs), self.U.to(*args, **kwargs))

    def detach(self) -> "MemoryState":
        """Cut both tensors off the graph, as Tensor.detach does."""
        return type(self)(self.R.detach(), self.U.detach())

    def __add__(self, other: Any) -> Any:
        """Refuse to be joined or repeated as a tuple, which is neither a sum nor a batch of memories."""
        raise TypeError(
            "state: expected no + or *, which tensors have and memories do not; memory.condition, or for sums "
            "memory.absorb, adds what was written elsewhere; torch.stack of all R and of all U makes a batch"
        )

    __radd__ = __mul__ = __rmul__ = __add__  # type: ignore[misc]


MemoryState.hint = (  # type: ignore[attr-defined]
    "; memory.prior makes one, and memory.write gives a pair (state, weights)"
)


class Faded(MemoryState):
    """A memory that has faded (`drift`), and may have been written to since.

    It is read like any other. But old writes count for less than one each, by an amount that it does not know, so
    they cannot be told apart any more: `span`, `frame` and all that is built on them refuse it. `forget` takes out
    what was written since, and nothing older.
    """

    __slots__ = ()
    faded = True

    def _asdict(self) -> dict[str, Any]:
        """Refuse to become a dictionary of R and U, from which a memory that never faded would be made again."""
        raise ValueError(
            "state: expected a memory that never faded, got one that has; a dictionary of R and U would lose the "
            "mark, and torch.save(state) keeps it"
        )


Whole = Annotated[MemoryState, checks.definite]
"""A memory whose covariance is used, and so must be one."""


class Inverse(NamedTuple):
    """A⁻¹ and ln det A⁻¹ for A = R Rᵀ + noise_var I, which addresses every code of one memory [app. D]."""

    P: Float[Tensor, "*#b K K"]
    log_det: Float[Tensor, "*#b"]


class Weights(NamedTuple):
    """q(w) = N(mean, rootᵀ root) for every code; codes of one memory may share a root (T = 1 there)."""

    mean: Float[Tensor, "*#b T K"]
    root: Float[Tensor, "*#b #T n K"]
    log_det: Float[Tensor, "*#b #T"]
    """ln det of the covariance."""

    @property
    def cov(self) -> Float[Tensor, "*#b #T K K"]:
        """The covariance."""
        return self.root.mT @ self.root


Known = Bool[Tensor, "... C"] | Annotated[Float[Tensor, "... C"], checks.not_negative] | None
"""Which entries of a code are known; numbers are precisions relative to 1 / noise_var, 0 where nothing is known.

Its leading axes broadcast to those of the codes.
"""

# torch.load takes a saved MemoryState as it takes a tensor, without unpickling anything else
torch.serialization.add_safe_globals([MemoryState, Faded])


# Algorithm 1


@public
def prior(
    R0: Annotated[Float[Tensor, "*p K C"], checks.filled], prior_var: Variance, batch: Sizes = ()
) -> MemoryState:
    """Make the memory before anything is written, p(M) = MN(R0, prior_var I, I) [app. B].

    `batch` is put before the axes of R0, one independent memory each. R0 must not be zero: rows that are all alike
    stay so, and a memory of zeros can be addressed by nothing.
    """
    U0 = prior_var * torch.eye(R0.shape[-2], dtype=R0.dtype, device=R0.device)
    R = R0.expand(*batch, *R0.shape)
    return MemoryState(R.contiguous(), U0.expand(*R.shape[:-2], *U0.shape).contiguous())


@public
def address(
    z: Annotated[Float[Tensor, "*#b T C"], checks.finite_where("known")],
    state: MemoryState,
    noise_var: Variance,
    inverse: Inverse | None = None,
    known: Known = None,
) -> Float[Tensor, "*#b T K"]:
    """Find the weights that read each code best, by ridge regression [eq. least_squares, app. D].

        w = argmin ‖z − Rᵀw‖² + noise_var ‖w‖²        A w = R z,  A = R Rᵀ + noise_var I

    One factor of A serves all T codes. Cost T·K·C + K²·C + K³. With K > C the equal form w = R v,
    (RᵀR + noise_var I) v = z is solved, which is then also the one that is well conditioned: at K = 64, C = 16,
    noise_var = 0.01 it is 1,000 times more exact in float32. The `inverse` of this memory, if it is at hand,
    replaces the factor for K ≤ C: T·(K·C + K²) + K²·C with one step of refinement, as exact as the solve.
    known: entries that are unknown are left out, whatever z has there, NaN included; each code then has an A of its
    own, A = R diag(known) Rᵀ + noise_var I. Cost T·(K²·C + K³). Proof: test_address_*, test_inverse_*, test_cues_*.
    """
    if known is not None:
        return address(*weighed(z, state, known), noise_var)[..., 0, :]
    R = state.R
    K, C = R.shape[-2:]
    if K > C:
        L = cholesky(ridge(R.mT @ R, noise_var), "RᵀR + noise_var I")
        return solve(L, z.mT).mT @ R.mT
    if inverse is None:
        L = cholesky(ridge(R @ R.mT, noise_var), "R Rᵀ + noise_var I")
        return solve(L, R @ z.mT).mT
    b = z @ R.mT
    w = b @ inverse.P
    return w + (b - w @ ridge(R @ R.mT, noise_var)) @ inverse.P


@public
def update(state: Whole, w: Float[Tensor, "*#b K"], z: Float[Tensor, "*#b C"], noise_var: Variance) -> MemoryState:
    """Condition the memory on one code read by one weight, exactly [app. A].

        Δ = z − Rᵀw     c = U w     s = wᵀc + noise_var     R ← R + c Δᵀ/s     U ← U − c cᵀ/s

    w and z are one pattern for each memory of the batch; many patterns for one memory are `condition`'s. Cost
    K·C + K². Proof: test_update_*.
    """
    delta, c, s = _innovation(state, w, z, noise_var)
    # U − u uᵀ with u = c/√s is symmetric to the last bit and drifts least of the forms tried.
    u = c / s.sqrt()[..., None]
    R = state.R + (c / s[..., None])[..., :, None] * delta[..., None, :]
    return _like(state, R, state.U - u[..., :, None] * u[..., None, :])


@public
def condition(
    state: Whole, w: Float[Tensor, "*#b T K"], z: Float[Tensor, "*#b T C"], noise_var: Variance
) -> MemoryState:
    """Condition the memory on T codes with given weights at once, in any order [app. A, sec. 2.1].

        U_T⁻¹ = U⁻¹ + WᵀW / noise_var        R_T = U_T (U⁻¹R + WᵀZ / noise_var)

    Computed without an inverse of U, as `update` for T codes: s becomes the matrix S = W U Wᵀ + noise_var I = L Lᵀ,
    V = L⁻¹ W U, R ← R + Vᵀ L⁻¹ (Z − W R), U ← U − VᵀV. Cost T·(K² + K·C) for T > K > 64. Proof: test_condition_*.
    """
    after = _condition(_like(state, *broadcast(state, w, z)), w, z, noise_var)
    checks.written(after)
    return after


@public
def write(
    state: Whole,
    z: Annotated[Float[Tensor, "*#b T C"], checks.finite_where("mask")],
    noise_var: Variance,
    iterations: Count = 1,
    block: Count = 1,
    mask: Bool[Tensor, "*#b T"] | None = None,
    keys: Annotated[Count, checks.at_most("C")] | None = None,
) -> tuple[MemoryState, Float[Tensor, "*b T K"]]:
    """Write an episode one code after another: address, then condition [alg. 1, sec. 3.2].

    mask: codes where it is False are not written, whatever they hold (`masked`). keys: address by the first so many
    entries of a code, not by all; the others are written with the weights that these have found.
    iterations > 1 refines each weight: address the updated memory, then update the old one with the weight found,
    so that every code is counted once. block > 1 addresses that many codes against the same memory and conditions
    on them at once: fewer sequential steps, weights that know less of each other. Returns the memory and the
    weights. Cost iterations · T/block · (K²·C + K³). Proof: test_write_*.
    Rows beyond C (or `keys`) hold nothing, since addresses span no more dimensions, and every write amplifies the
    rounding in them: with 32 rows for codes of 16 numbers and a small R0, R is 30 % off after 300 writes in float32
    and 45 % after 1,000 in float64. QᵀR0 of R0 = Q QᵀR0 (torch.linalg.qr) is the same memory in C rows: 1e-6.
    """
    z = masked(z, mask)
    state = _like(state, *broadcast(state, z))
    w = [z.new_empty(*state.R.shape[:-2], 0, state.R.shape[-2])]
    for z_t in z.split(block, dim=-2) if z.shape[-2] else ():
        old = state
        for _ in range(iterations):
            w_t = address(z_t[..., :keys], MemoryState(state.R[..., :keys], state.U), noise_var)
            state = _condition(old, w_t, z_t, noise_var)
        w.append(w_t)
    checks.written(state)
    return state, torch.cat(w, dim=-2)


# Reading


@public
def read(state: MemoryState, w: Float[Tensor, "*#b T K"]) -> Float[Tensor, "*#b T C"]:
    """Read the mean code at each weight, z = Rᵀw [eq. read]."""
    return w @ state.R


@public
def inverse(state: MemoryState, noise_var: Variance) -> Inverse:
    """Invert A = R Rᵀ + noise_var I once, for all that will be asked of one memory [app. D].

    Cost K²·C + K³. Proof: test_inverse_*.
    """
    return Inverse(*ridge_inverse(state.R @ state.R.mT, noise_var))


@public
def infer(
    z: Annotated[Float[Tensor, "*#b T C"], checks.finite_where("known")],
    state: MemoryState,
    noise_var: Variance,
    known: Known = None,
    invert: Callable[[MemoryState, Variance], Inverse] = inverse,
) -> Weights:
    """Find the posterior of each code's address, with the memory at its mean; beyond the paper [app. D].

        p(w) = N(0, I)    p(z | w) = N(Rᵀw, noise_var I)    p(w | z) = N(mean, noise_var A⁻¹),  mean = `address`

    known: as in `address`. invert: what gives A⁻¹. Cost T·(K·C + K²) + K²·C + K³; with known, T·(K²·C + K³).
    Proof: test_cues_*.
    """
    if known is not None:
        q = infer(*weighed(z, state, known), noise_var, invert=invert)
        return Weights(q.mean[..., 0, :], q.root[..., 0, :, :], q.log_det[..., 0])
    own = invert(state, noise_var)
    return spread(address(z, state, noise_var, own), state, noise_var, own)


@public
def predict(
    state: Whole, w: Float[Tensor, "*#b T K"], noise_var: Variance
) -> tuple[Float[Tensor, "*#b T C"], Float[Tensor, "*#b T"]]:
    """Predict the code at each weight, p(z | w) = N(mean, var I), with M integrated out [app. A].

    mean = Rᵀw        var = wᵀU w + noise_var
    """
    return w @ state.R, (w @ state.U * w).sum(-1) + noise_var


@public
def complete(
    state: Whole, weights: Weights, noise_var: Variance
) -> tuple[Float[Tensor, "*#b T C"], Float[Tensor, "*#b T C"]]:
    """Predict every entry of a code whose address has the posterior N(m, S) of `infer`; beyond the paper [app. A].

        mean = Rᵀm        var_j = noise_var + mᵀU m + tr(U S) + R_jᵀ S R_j

    The variance is exact for z = Mᵀw + ξ with M ~ MN(R, U, I) and w independent of it: the noise, the memory's
    uncertainty (the two terms with U), and the address's. Proof: test_cues_*.
    """
    (m, root, _), R, U = weights, state.R, state.U
    memory = (m @ U * m).sum(-1) + (root @ U[..., None, :, :] * root).sum((-2, -1))
    address = (root @ R[..., None, :, :]).square().sum(-2)
    return m @ R, noise_var + memory[..., None] + address


@public
def energy(
    z: Annotated[Float[Tensor, "*#b T C"], checks.finite_where("known")],
    state: MemoryState,
    noise_var: Variance,
    known: Known = None,
) -> Float[Tensor, "*#b T"]:
    """−ln p(z) of codes with the memory at its mean and the address integrated out; beyond the paper [app. D].

        z ~ N(0, RᵀR + noise_var I):   ½ (‖z − Rᵀw‖²/noise_var + ‖w‖² + ln det A/noise_var + C ln 2π noise_var)

    with w = `address` and A = R Rᵀ + noise_var I. known: as in `address`; C counts these alone. Proof: test_cues_*.
    """
    v = torch.as_tensor(noise_var, dtype=z.dtype, device=z.device)
    if known is not None:
        a = torch.as_tensor(known).to(state.R)
        every = energy(*weighed(z, state, known), noise_var)[..., 0]
        # √known z has the density of z over Π √known; what is unknown has left the C ln 2π noise_var of a zero
        there = torch.where(a > 0, torch.where(a > 0, a, 1).log(), (2 * math.pi * v).log())
        return every - 0.5 * there.expand(*every.shape, a.shape[-1]).sum(-1)
    w, R = address(z, state, noise_var), state.R
    log_det_P = ridge_inverse(R @ R.mT, noise_var)[1][..., None]
    spread = -log_det_P - R.shape[-2] * v.log() + R.shape[-1] * (2 * math.pi * v).log()
    return 0.5 * ((z - w @ R).square().sum(-1) / v + w.square().sum(-1) + spread)


# The distribution of an address


def spread(w: Float[Tensor, "*#b T K"], state: MemoryState, noise_var: Variance, inverse: Inverse) -> Weights:
    """q(w) around given means, with the covariance noise_var A⁻¹ that all codes of a memory share.

    root = √noise_var [√noise_var I, R]ᵀ A⁻¹, so that what is drawn with it needs no factor of A: P A P = P.
    """
    v = torch.as_tensor(noise_var, dtype=w.dtype, device=w.device)
    root = v.sqrt() * torch.cat([v.sqrt() * inverse.P, state.R.mT @ inverse.P], -2)
    return Weights(w, root[..., None, :, :], (inverse.log_det + w.shape[-1] * v.log())[..., None])


def isotropic(w: Float[Tensor, "*b T K"], weight_var: Variance) -> Weights:
    """q(w) = N(w, weight_var I), the paper's [app. B]."""
    v, K = torch.as_tensor(weight_var, dtype=w.dtype, device=w.device), w.shape[-1]
    return Weights(w, v.sqrt() * torch.eye(K, dtype=w.dtype, device=w.device)[None], K * v.log()[None])


def scaled(q: Weights, scale: Variance) -> Weights:
    """q(w) with its covariance times a scale; 1 is exact for Gaussian codes."""
    v = torch.as_tensor(scale, dtype=q.mean.dtype, device=q.mean.device)
    return Weights(q.mean, v.sqrt() * q.root, q.log_det + q.mean.shape[-1] * v.log())


def draw(q: Weights, generator: torch.Generator | None = None) -> Float[Tensor, "*b T K"]:
    """A reparameterised draw, mean + ε root with ε ~ N(0, I)."""
    shape = (*q.mean.shape[:-1], q.root.shape[-2])
    noise = torch.randn(shape, generator=generator, dtype=q.mean.dtype, device=q.mean.device)
    if q.root.shape[-3] == 1:
        return q.mean + noise @ q.root[..., 0, :, :]
    return q.mean + (noise[..., None, :] @ q.root)[..., 0, :]


def kl_address(q: Weights) -> Float[Tensor, "*b T"]:
    """KL(q(w) ‖ N(0, I)) = ½ ( tr cov − K − ln det cov + ‖mean‖² ) [eq. elbo]. Proof: test_full_*."""
    shape = q.root.square().sum((-2, -1)) - q.mean.shape[-1] - q.log_det
    return 0.5 * (shape + q.mean.square().sum(-1))


def weighed(
    z: Float[Tensor, "*#b T C"], state: MemoryState, known: Known
) -> tuple[Float[Tensor, "*b T 1 C"], MemoryState]:
    """The code √known z, and a memory R √known of its own, for each code; what is unknown may be NaN.

    The noise of entry j has the variance noise_var / known_j. Divided by its deviation it is the same for all:

        z = Rᵀw + ξ        √known z = (R √known)ᵀ w + ξ',   ξ' ~ N(0, noise_var I)
    """
    a = torch.as_tensor(known).to(state.R)
    root = torch.where(a > 0, torch.where(a > 0, a, 1).sqrt(), 0)  # whose gradient is finite at 0
    code = torch.where(a > 0, z, 0) * root
    own = state.R[..., None, :, :] * root.expand(code.shape)[..., None, :]
    return code[..., None, :], MemoryState(own, state.U[..., None, :, :])


# Draws, divergences, time


@public
def sample(state: Whole, generator: Random = None) -> Float[Tensor, "*#b K C"]:
    """Draw a memory, M = R + L ε with L Lᵀ = U and ε ~ N(0, 1) [sec. 2.1]."""
    shape = torch.broadcast_shapes(state.R.shape[:-2], state.U.shape[:-2]) + state.R.shape[-2:]
    noise = torch.randn(shape, generator=generator, dtype=state.R.dtype, device=state.R.device)
    return state.R + cholesky(symmetric(state.U), "state.U") @ noise


@public
def kl_memory(q: Whole, p: Whole) -> Float[Tensor, "*#b"]:
    """KL(q(M) ‖ p(M)) of two memories of one size, the last term of eq. elbo.

        ½ ( C [tr(U0⁻¹U) − K + ln det U0 − ln det U] + tr((R − R0)ᵀ U0⁻¹ (R − R0)) )

    with (R, U) of q and (R0, U0) of p. Cost K²·C + K³. Proof: test_kl_memory_*.
    """
    K, C = q.R.shape[-2:]
    L, L0 = cholesky(symmetric(q.U), "q.U"), cholesky(symmetric(p.U), "p.U")
    trace = solve_lower(L0, L).square().sum((-2, -1))
    distance = solve_lower(L0, q.R - p.R).square().sum((-2, -1))
    return 0.5 * (C * (trace - K + log_det(L0) - log_det(L)) + distance)


@public
def kl_prior(
    q: MemoryState, R0: Float[Tensor, "*p K C"], prior_var: Variance, log_det: Float[Tensor, "*#b"]
) -> Float[Tensor, "*#b"]:
    """`kl_memory` against `prior(R0, prior_var)` where log_det = ln det U − ln det U0 is known [eq. elbo].

    ½ ( C [tr U / prior_var − K − log_det] + ‖R − R0‖² / prior_var ), without factorisation. Cost K·C.
    """
    K, C = q.R.shape[-2:]
    trace = q.U.diagonal(dim1=-2, dim2=-1).sum(-1) / prior_var
    return 0.5 * (C * (trace - K - log_det) + (q.R - R0).square().sum((-2, -1)) / prior_var)


@public
def kl_weights(w: Float[Tensor, "*b T K"], weight_var: Variance) -> Float[Tensor, "*b T"]:
    """KL(q(w) ‖ p(w)) of N(w, weight_var I) against N(0, I), for each weight [eq. elbo].

    ½ ( K (weight_var − 1 − ln weight_var) + ‖w‖² )
    """
    v = torch.as_tensor(weight_var, dtype=w.dtype)
    return 0.5 * (w.shape[-1] * (v - 1 - v.log()) + w.square().sum(-1))


@public
def kl_update(
    state: Whole, w: Float[Tensor, "*#b K"], z: Float[Tensor, "*#b C"], noise_var: Variance
) -> Float[Tensor, "*#b"]:
    """KL of the memory after `update` against the memory before it, without factorisation [app. C].

        ½ ( C [ln(s / noise_var) − b] + b ‖Δ‖²/s ),   b = wᵀU w / s

    Cost K·C + K². Proof: test_kl_update_*.
    """
    delta, c, s = _innovation(state, w, z, noise_var)
    C, wUw = z.shape[-1], (w * c).sum(-1)
    b = wUw / s
    return 0.5 * (C * (torch.log1p(wUw / noise_var) - b) + b * delta.square().sum(-1) / s)


@public
def drift(state: MemoryState, R0: Float[Tensor, "*p K C"], prior_var: Variance, keep: Share) -> Faded:
    """Let a memory fade towards its prior, as one whose content changes with time; beyond the paper [app. A].

        M' = R0 + √keep (M − R0) + √(1 − keep) ε,  ε ~ MN(0, prior_var I, I)
        R' = R0 + √keep (R − R0)        U' = keep U + (1 − keep) prior_var I

    This is the prediction step of a Kalman filter: exact, if M does change so. The prior does not change by it,
    and U never exceeds prior_var I, as it would if it were only divided by `keep`. Proof: test_fading_*.
    """
    return Faded(R0 + keep**0.5 * (state.R - R0), ridge(keep * state.U, (1 - keep) * prior_var))


# Inside


def masked(z: Float[Tensor, "*#b T C"], mask: Bool[Tensor, "*#b T"] | None) -> Float[Tensor, "*#b T C"]:
    """Put zeros for the codes that are not to be written [alg. 1].

    Writing a code of zeros is the identity, to the last bit, in every backend: its weight is A⁻¹R 0 = 0, so it says
    nothing of M, and c = U w, the gain and the surprise are all 0. The same zeros stop every gradient.
    """
    return z if mask is None else torch.where(mask[..., None], z, 0)


def _like(before: MemoryState, R: Tensor, U: Tensor) -> MemoryState:
    """The memory after a change: one that has faded stays so."""
    return (Faded if isinstance(before, Faded) else MemoryState)(R, U)


def _innovation(
    state: MemoryState, w: Float[Tensor, "*#b K"], z: Float[Tensor, "*#b C"], noise_var: Variance
) -> tuple[Float[Tensor, "*#b C"], Float[Tensor, "*#b K"], Float[Tensor, "*#b"]]:
    """Δ = z − Rᵀw, c = U w, s = wᵀc + noise_var: the surprise and its covariances [app. A]."""
    delta = z - (w[..., None, :] @ state.R)[..., 0, :]
    c = (state.U @ w[..., None])[..., 0]
    return delta, c, (w * c).sum(-1) + noise_var


def _condition(
    state: MemoryState, w: Float[Tensor, "*#b T K"], z: Float[Tensor, "*#b T C"], noise_var: Variance
) -> MemoryState:
    """Condition on T codes; since order does not matter, a few at a time, to keep the solves small."""
    if w.shape[-2] == 1:
        return update(state, w[..., 0, :], z[..., 0, :], noise_var)
    # A T×T factor costs T³: up to K (or 64, so that a small memory is not a long loop) it is no burden.
    size = max(state.R.shape[-2], 64)
    for w_t, z_t in zip(w.split(size, dim=-2), z.split(size, dim=-2), strict=True):
        c = w_t @ state.U
        L = cholesky(symmetric(ridge(c @ w_t.mT, noise_var)), "W U Wᵀ + noise_var I")
        V = solve_lower(L, c)
        R = state.R + V.mT @ solve_lower(L, z_t - w_t @ state.R)
        state = _like(state, R, symmetric(state.U - V.mT @ V))
    return state
