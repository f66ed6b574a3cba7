"""The exact mathematics of the memory, as pure functions on MemoryState(R, U).

This is the plain form, the reference that every fast path is judged by. Letters are the paper's: M (K×C) is the
memory, R its mean, U the covariance of its rows, w an address (K), z a code (C), T the length of an episode.
Variances are named *_var and are one positive number each (a float or a tensor of shape ()).

Any number of leading batch axes *b, which broadcast; float32 and float64; nothing is changed in place. Bad input
raises an error that names the argument; see `kanerva.checks` for what is checked when, and what it costs.
U is symmetric: of its gradient, only the symmetric part has a meaning.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from . import checks
from .checks import full_precision
from .linalg import (
    Number,
    broadcast,
    cholesky,
    log_det,
    resolution,
    ridge,
    ridge_inverse,
    solve,
    solve_lower,
    symmetric,
)

Variance = Number

# Rounding alone leaves at most so many eps of a memory's norm where nothing was written.
# Trained on Omniglot, 24 and 31 codes in 32 rows: 0.1; what was written in 192 memories of 32: at least 5.9.
ROUNDING = 2
# What `forget` may be off by, relative to the largest entry, through the rounding of the state.
FORGOTTEN = 1e-2


class MemoryState(NamedTuple):
    """The memory's distribution, MN(R, U, I): columns are independent, rows covary by U [sec. 2.1]."""

    R: Float[Tensor, "*b K C"]
    """The mean."""
    U: Float[Tensor, "*b K K"]
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


class Inverse(NamedTuple):
    """A⁻¹ and ln det A⁻¹ for A = R Rᵀ + noise_var I, which addresses every code of one memory [app. D]."""

    P: Float[Tensor, "*b K K"]
    log_det: Float[Tensor, "*b"]


class Frame(NamedTuple):
    """What a memory gives away of up to K codes: all of them, up to one rotation; in float64.

    W = Q · weights and Z = Q · codes with one unknown rotation Q. So each code that was written is uᵀ · codes for
    some vector u, and was written with the weight uᵀ · weights. Vectors of different codes are orthogonal. That of
    a code written once has length 1; written m times, it is the mean of m such vectors and has length 1/√m. Rows
    beyond `rank` are zero.
    """

    codes: Float[Tensor, "*b K C"]
    """F, of which every written code is a mixture."""
    weights: Float[Tensor, "*b K K"]
    """The weights, mixed in the same way."""
    rank: Int64[Tensor, "*b"]
    """Writes that can be told apart."""
    distinct: Int64[Tensor, "*b"]
    """Different codes among them. As many as K (or C): there may be more than a memory can tell apart."""


class Weights(NamedTuple):
    """The posterior N(mean, cov) of addresses; codes that share a covariance have one between them (T = 1)."""

    mean: Float[Tensor, "*b T K"]
    cov: Float[Tensor, "*#b #T K K"]


# torch.load takes a saved MemoryState as it takes a tensor, without unpickling anything else
torch.serialization.add_safe_globals([MemoryState, Faded])


@full_precision
def prior(R0: Float[Tensor, "*p K C"], prior_var: Variance, batch: tuple[int, ...] = ()) -> MemoryState:
    """Make the memory before anything is written, p(M) = MN(R0, prior_var I, I) [app. B].

    `batch` is put before the axes of R0, one independent memory each. R0 must not be zero: rows that are all alike
    stay so, and a memory of zeros can be addressed by nothing.
    """
    checks.mean("R0", R0)
    checks.variance("prior_var", prior_var, like=R0)
    checks.batch("batch", batch)
    U0 = prior_var * torch.eye(R0.shape[-2], dtype=R0.dtype, device=R0.device)
    R = R0.expand(*batch, *R0.shape)
    return MemoryState(R.contiguous(), U0.expand(*R.shape[:-2], *U0.shape).contiguous())


@full_precision
def address(
    z: Float[Tensor, "*#b T C"],
    state: MemoryState,
    noise_var: Variance,
    inverse: Inverse | None = None,
    known: Bool[Tensor, "*#b T C"] | None = None,
) -> Float[Tensor, "*#b T K"]:
    """Find the weights that read each code best, by ridge regression [eq. least_squares, app. D].

        w = argmin ‖z − Rᵀw‖² + noise_var ‖w‖²        A w = R z,  A = R Rᵀ + noise_var I

    One factor of A serves all T codes. Cost T·K·C + K²·C + K³. The `inverse` of this memory, if it is at hand,
    replaces the factor for K ≤ C: T·(K·C + K²) + K²·C with one step of refinement, as exact as the solve.
    known: entries that are not are left out of the sum over C, whatever z has there, NaN included; each code then
    has an A of its own. Cost T·(K²·C + K³). Proof: test_address_*, test_inverse_*, test_cues_*.
    """
    if known is not None:
        checks.known(known, z)
        z = torch.where(known, z, 0)
        checks.inputs(state, z=z, noise_var=noise_var, uses_U=False)
        return _address_known(z, state.R, noise_var, known)
    checks.inputs(state, z=z, noise_var=noise_var, uses_U=False)
    if inverse is not None:
        checks.inverse(inverse, state)
    if inverse is None or state.R.shape[-2] > state.R.shape[-1]:
        return _address(z, state.R, noise_var)
    b = z @ state.R.mT
    w = b @ inverse.P
    return w + (b - w @ ridge(state.R @ state.R.mT, noise_var)) @ inverse.P


@full_precision
def inverse(state: MemoryState, noise_var: Variance) -> Inverse:
    """Invert A = R Rᵀ + noise_var I once, for all that will be asked of one memory [app. D].

    `kernels.write_and_invert` gives the same with the write. Cost K²·C + K³. Proof: test_inverse_*.
    """
    checks.inputs(state, noise_var=noise_var, uses_U=False)
    return Inverse(*ridge_inverse(state.R @ state.R.mT, noise_var))


@full_precision
def infer(
    z: Float[Tensor, "*#b T C"],
    state: MemoryState,
    noise_var: Variance,
    known: Bool[Tensor, "*#b T C"] | None = None,
) -> Weights:
    """Find the posterior of each code's address, with the memory at its mean; beyond the paper [app. D].

        p(w) = N(0, I)    p(z | w) = N(Rᵀw, noise_var I)    p(w | z) = N(mean, noise_var A⁻¹),  mean = `address`

    known: as in `address`. Cost T·(K·C + K²) + K²·C + K³; with known, T·(K²·C + K³). Proof: test_cues_*.
    """
    mean, R = address(z, state, noise_var, known=known), state.R
    if known is None:
        return Weights(mean, noise_var * ridge_inverse(R @ R.mT, noise_var)[0][..., None, :, :])
    return Weights(mean, noise_var * ridge_inverse(_known_gram(R, known), noise_var)[0])


@full_precision
def complete(
    state: MemoryState, weights: Weights, noise_var: Variance
) -> tuple[Float[Tensor, "*#b T C"], Float[Tensor, "*#b T C"]]:
    """Predict every entry of a code whose address has the posterior N(m, S) of `infer`; beyond the paper [app. A].

        mean = Rᵀm        var_j = noise_var + mᵀU m + tr(U S) + R_jᵀ S R_j

    The variance is exact for z = Mᵀw + ξ with M ~ MN(R, U, I) and w independent of it: the noise, the memory's
    uncertainty (the two terms with U), and the address's. Proof: test_cues_*.
    """
    (m, S), R, U = weights, state.R, state.U
    checks.inputs(state, w=m, noise_var=noise_var)
    memory = (m @ U * m).sum(-1) + (U[..., None, :, :] * S).sum((-2, -1))
    address = (S @ R[..., None, :, :] * R[..., None, :, :]).sum(-2)
    return m @ R, noise_var + memory[..., None] + address


@full_precision
def energy(
    z: Float[Tensor, "*#b T C"],
    state: MemoryState,
    noise_var: Variance,
    known: Bool[Tensor, "*#b T C"] | None = None,
) -> Float[Tensor, "*#b T"]:
    """−ln p(z) of codes with the memory at its mean and the address integrated out; beyond the paper [app. D].

        z ~ N(0, RᵀR + noise_var I):   ½ (‖z − Rᵀw‖²/noise_var + ‖w‖² + ln det A/noise_var + C ln 2π noise_var)

    with w = `address` and A = R Rᵀ + noise_var I. known: as in `address`; C counts these alone. Proof: test_cues_*.
    """
    z = z if known is None else torch.where(known, z, 0)
    w, R = address(z, state, noise_var, known=known), state.R
    v = torch.as_tensor(noise_var, dtype=R.dtype, device=R.device)
    delta = z - w @ R
    if known is None:
        log_det_P, count = ridge_inverse(R @ R.mT, noise_var)[1][..., None], v.new_full((), R.shape[-1])
    else:
        delta, count = torch.where(known, delta, 0), known.sum(-1)
        log_det_P = ridge_inverse(_known_gram(R, known), noise_var)[1]
    spread = -log_det_P - R.shape[-2] * v.log() + count * (2 * torch.pi * v).log()
    return 0.5 * (delta.square().sum(-1) / v + w.square().sum(-1) + spread)


@full_precision
def drift(state: MemoryState, R0: Float[Tensor, "*#p K C"], prior_var: Variance, keep: Variance) -> Faded:
    """Let a memory fade towards its prior, as one whose content changes with time; beyond the paper [app. A].

        M' = R0 + √keep (M − R0) + √(1 − keep) ε,  ε ~ MN(0, prior_var I, I)
        R' = R0 + √keep (R − R0)        U' = keep U + (1 − keep) prior_var I

    This is the prediction step of a Kalman filter: exact, if M does change so. The prior does not change by it,
    and U never exceeds prior_var I, as it would if it were only divided by `keep`. Proof: test_fading_*.
    """
    checks.memory(state, "state", uses_U=False)
    checks.tensor(
        "R0", R0, ("K", "C"), dict(zip("KC", state.R.shape[-2:], strict=True)), state.R, "size of state.R"
    )
    checks.variance("prior_var", prior_var, like=state.R)
    checks.share("keep", keep, like=state.R)
    return Faded(R0 + keep**0.5 * (state.R - R0), ridge(keep * state.U, (1 - keep) * prior_var))


@full_precision
def update(
    state: MemoryState, w: Float[Tensor, "*#b K"], z: Float[Tensor, "*#b C"], noise_var: Variance
) -> MemoryState:
    """Condition the memory on one code read by one weight, exactly [app. A].

        Δ = z − Rᵀw     c = U w     s = wᵀc + noise_var     R ← R + c Δᵀ/s     U ← U − c cᵀ/s

    w and z are one pattern for each memory of the batch; many patterns for one memory are `condition`'s. Cost
    K·C + K². Proof: test_update_*.
    """
    checks.inputs(state, w=w, z=z, noise_var=noise_var, episode=False)
    return _like(state, _update(state, w, z, noise_var))


@full_precision
def condition(
    state: MemoryState, w: Float[Tensor, "*#b T K"], z: Float[Tensor, "*#b T C"], noise_var: Variance
) -> MemoryState:
    """Condition the memory on T codes with given weights at once, in any order [app. A, sec. 2.1].

        U_T⁻¹ = U⁻¹ + WᵀW / noise_var        R_T = U_T (U⁻¹R + WᵀZ / noise_var)

    Cost T·(K² + K·C) for T > K > 64, without an inverse of U. Proof: test_condition_*.
    """
    checks.inputs(state, w=w, z=z, noise_var=noise_var)
    after = _condition(MemoryState(*broadcast(state, w, z)), w, z, noise_var)
    checks.written(after)
    return _like(state, after)


@full_precision
def absorb(state: MemoryState, G: Float[Tensor, "*#b K K"], H: Float[Tensor, "*#b K C"]) -> MemoryState:
    """Condition on codes of which only sums are known, wherever they were taken [app. A].

        G = Σ_t w wᵀ / noise_var     H = Σ_t w (z − Rᵀw)ᵀ / noise_var     U_T = (U⁻¹ + G)⁻¹     R_T = R + U_T H

    Computed as U_T = V Vᵀ with U = L Lᵀ and V = L chol(I + LᵀG L)⁻ᵀ: no inverse of U. Cost K²·C + K³.
    """
    checks.inputs(state)
    K, C = state.R.shape[-2:]
    checks.tensor("G", G, ("K", "K"), {"K": K}, like=state.R, source="rows of state.R")
    checks.tensor("H", H, ("K", "C"), {"K": K, "C": C}, like=state.R, source="size of state.R")
    L = cholesky(symmetric(state.U), "state.U")
    B = symmetric(ridge(L.mT @ G @ L, 1.0))
    Vt = solve_lower(cholesky(B, "I + LᵀG L"), L.mT)
    U = symmetric(Vt.mT @ Vt)
    return _like(state, MemoryState(state.R + U @ H, U))


@full_precision
def write(
    state: MemoryState,
    z: Float[Tensor, "*#b T C"],
    noise_var: Variance,
    iterations: int = 1,
    block: int = 1,
    mask: Bool[Tensor, "*#b T"] | None = None,
    keys: int | None = None,
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
    checks.inputs(state, z=z, noise_var=noise_var)
    checks.count("iterations", iterations)
    checks.count("block", block)
    checks.keys(keys, state)
    after, w = _write(state, z, noise_var, iterations, block, keys)
    checks.written(after)
    return _like(state, after), w


def masked(z: Float[Tensor, "*#b T C"], mask: Bool[Tensor, "*#b T"] | None) -> Float[Tensor, "*#b T C"]:
    """Put zeros for the codes that are not to be written [alg. 1].

    Writing a code of zeros is the identity, to the last bit, in every backend: its weight is A⁻¹R 0 = 0, so it says
    nothing of M, and c = U w, the gain and the surprise are all 0. The same zeros stop every gradient.
    """
    if mask is None:
        return z
    checks.mask_of_codes(mask, z)
    return torch.where(mask[..., None], z, 0)


@full_precision
def read(state: MemoryState, w: Float[Tensor, "*#b T K"]) -> Float[Tensor, "*#b T C"]:
    """Read the mean code at each weight, z = Rᵀw [eq. read]."""
    checks.inputs(state, w=w, uses_U=False)
    return w @ state.R


@full_precision
def predict(
    state: MemoryState, w: Float[Tensor, "*#b T K"], noise_var: Variance
) -> tuple[Float[Tensor, "*#b T C"], Float[Tensor, "*#b T"]]:
    """Predict the code at each weight, p(z | w) = N(mean, var I), with M integrated out [app. A].

    mean = Rᵀw        var = wᵀU w + noise_var
    """
    checks.inputs(state, w=w, noise_var=noise_var)
    return w @ state.R, (w @ state.U * w).sum(-1) + noise_var


@full_precision
@torch.no_grad()
def span(state: MemoryState, R0: Float[Tensor, "*#p K C"], prior_var: Variance) -> Float[Tensor, "*b n C"]:
    """Find an orthonormal basis of the codes that were written into `prior(R0, prior_var)`; beyond the paper.

        U⁻¹R − U0⁻¹R0 = WᵀZ / noise_var

    This is `condition` read backwards [app. A]: a memory without its prior is the sum of w zᵀ over all that was
    written. Up to K codes with independent weights lie in the span of its rows, as far as they stand out of
    rounding (in float32 a code a thousand times fainter than the rest does not); of more it holds what their sum
    has kept. Of n = min(K, C) rows those left over are zero. The prior must be the very one that was written into.
    Passes no gradients: a basis has none where two directions weigh the same. Cost K²·C + K³. Proof: test_span_*.
    """
    past = _past(state, R0, prior_var)
    _, size, basis = torch.linalg.svd(past.wz, full_matrices=False)
    return (basis * (size > past.rounding)[..., None]).masked_fill(past.lost, torch.nan).to(state.R.dtype)


@full_precision
@torch.no_grad()
def frame(state: MemoryState, R0: Float[Tensor, "*#p K C"], prior_var: Variance, noise_var: Variance) -> Frame:
    """Find the codes and weights that were written into `prior(R0, prior_var)`, up to a rotation; beyond the paper.

        A = noise_var (U⁻¹ − U0⁻¹) = WᵀW          B = noise_var (U⁻¹R − U0⁻¹R0) = WᵀZ
        A = V Λ Vᵀ      weights = Λ^½ Vᵀ      codes = Λ^−½ Vᵀ B

    This is `condition` read backwards [app. A], in float64. A direction counts where B stands out of rounding (A
    holds squares, and loses a weight that is nearly a mixture of others), and outside of these, where A does: a
    code that is written again leaves its trace in A alone. Exact for up to K codes with independent weights; of
    more than K it is a frame of their sums, which no code need fit. Passes no gradients. Cost K²·C + K³.
    Proof: test_frame_*.
    """
    checks.variance("noise_var", noise_var, like=state.R)
    past = _past(state, R0, prior_var)
    A, B = symmetric(noise_var * past.ww), noise_var * past.wz
    P, size, _ = torch.linalg.svd(B, full_matrices=False)
    P = P * (size > noise_var * past.rounding)[..., None, :]
    B = P @ (P.mT @ B)
    # eigenvalues below all that A can have keep what is left out apart from what is small
    low = 2 * torch.linalg.matrix_norm(A)[..., None, None].clamp(min=1e-300)
    outside = ridge(-P @ P.mT, 1.0)
    values, N = torch.linalg.eigh(symmetric(outside @ A @ outside - low * (P @ P.mT)))
    N = N * (values > noise_var * past.rounding_ww)[..., None, :]
    inside = symmetric(P @ P.mT + N @ N.mT)
    distinct, rank = (x.square().sum((-2, -1)).round().long() for x in (P, torch.cat([P, N], -1)))
    values, V = torch.linalg.eigh(symmetric(inside @ A @ inside - low * ridge(-inside, 1.0)))
    values, V = values.flip(-1), V.flip(-1)
    kept = torch.arange(values.shape[-1], device=values.device) < rank[..., None]
    codes = V.mT @ B
    # where rounding has lost an eigenvalue, but not B, a code's usual length there stands for it
    clear = kept & (values > noise_var * past.rounding_ww)
    length, root = (
        codes.norm(dim=-1),
        values.clamp(min=torch.finfo(state.U.dtype).eps * noise_var / prior_var).sqrt(),
    )
    usual = (length / root * clear).sum(-1, keepdim=True) / clear.sum(-1, keepdim=True).clamp(min=1)
    root = torch.where(clear | (length * usual == 0), root, length / usual)
    codes = codes * torch.where(kept, 1 / root, 0)[..., None]
    weights = V.mT * torch.where(kept, root, 0)[..., None]
    return Frame(codes.masked_fill(past.lost, torch.nan), weights.masked_fill(past.lost, torch.nan), rank, distinct)


@full_precision
def forget(
    state: MemoryState, w: Float[Tensor, "*#b T K"], z: Float[Tensor, "*#b T C"], noise_var: Variance
) -> MemoryState:
    """Take codes out again that were written with these weights: `condition` backwards [app. A]; beyond the paper.

        U'⁻¹ = U⁻¹ − WᵀW / noise_var        U'⁻¹R' = U⁻¹R − WᵀZ / noise_var

    Computed in float64 as U' = U + Vᵀ V, V = L⁻¹ W U with L Lᵀ = noise_var I − W U Wᵀ, and
    R' = R − U' Wᵀ (Z − W R) / noise_var. Weights that were not written leave no covariance, which is an error. So
    is a U' that is off by more than 1 % because the state is rounded: for x = ‖U'‖ ‖w‖² / noise_var over about 200
    in float32, over 4 million in a memory that was float64 when it was written. Two things are not noticed: R' is
    as exact in units of the state's R, whose entries may be far larger than those of R'; and where U' is far
    smaller than prior_var I, because other writes fill all K dimensions, prior_var takes the place of ‖U'‖ in x.
    Cost T·(K² + K·C) + T³ + K³. Proof: test_forget_*.
    """
    checks.inputs(state, w=w, z=z, noise_var=noise_var)
    dtype, eps = state.R.dtype, resolution(state.U)
    R, U = (part.double() for part in broadcast(state, w, z))
    w, z, s2 = w.double(), z.double(), float(noise_var) if not isinstance(noise_var, Tensor) else noise_var.double()
    c = w @ U
    S = symmetric(ridge(-c @ w.mT, s2))
    L = cholesky(S, "noise_var I − W U Wᵀ (usual cause: weights never written)")
    V = solve_lower(L, c)
    U = symmetric(U + V.mT @ V)
    U = U.masked_fill(_lost(U, S, w, s2, eps), torch.nan)
    return _like(state, MemoryState(R - U @ (w.mT @ (z - w @ R)) / s2, U).to(dtype))


@full_precision
def sample(state: MemoryState, generator: torch.Generator | None = None) -> Float[Tensor, "*b K C"]:
    """Draw a memory, M = R + L ε with L Lᵀ = U and ε ~ N(0, 1) [sec. 2.1]."""
    checks.inputs(state)
    shape = torch.broadcast_shapes(state.R.shape[:-2], state.U.shape[:-2]) + state.R.shape[-2:]
    noise = torch.randn(shape, generator=generator, dtype=state.R.dtype, device=state.R.device)
    return state.R + cholesky(symmetric(state.U), "state.U") @ noise


@full_precision
def kl_memory(q: MemoryState, p: MemoryState) -> Float[Tensor, "*#b"]:
    """KL(q(M) ‖ p(M)) of two memories of one size, the last term of eq. elbo.

        ½ ( C [tr(U0⁻¹U) − K + ln det U0 − ln det U] + tr((R − R0)ᵀ U0⁻¹ (R − R0)) )

    with (R, U) of q and (R0, U0) of p. Cost K²·C + K³. Proof: test_kl_memory_*.
    """
    checks.pair(q, p)
    K, C = q.R.shape[-2:]
    L, L0 = cholesky(symmetric(q.U), "q.U"), cholesky(symmetric(p.U), "p.U")
    trace = solve_lower(L0, L).square().sum((-2, -1))
    distance = solve_lower(L0, q.R - p.R).square().sum((-2, -1))
    return 0.5 * (C * (trace - K + log_det(L0) - log_det(L)) + distance)


@full_precision
def kl_prior(
    q: MemoryState, R0: Float[Tensor, "*#p K C"], prior_var: Variance, log_det: Float[Tensor, "*#b"]
) -> Float[Tensor, "*#b"]:
    """`kl_memory` against `prior(R0, prior_var)` where log_det = ln det U − ln det U0 is known [eq. elbo].

    ½ ( C [tr U / prior_var − K − log_det] + ‖R − R0‖² / prior_var ), without factorisation. Cost K·C.
    """
    checks.memory(q, "q", uses_U=False)
    K, C = q.R.shape[-2:]
    checks.tensor("R0", R0, ("K", "C"), {"K": K, "C": C}, like=q.R, source="size of q.R")
    checks.variance("prior_var", prior_var, like=q.R)
    checks.tensor("log_det", log_det, (), like=q.R)
    checks.broadcastable({"q": q.R.shape[:-2], "log_det": log_det.shape})
    trace = q.U.diagonal(dim1=-2, dim2=-1).sum(-1) / prior_var
    return 0.5 * (C * (trace - K - log_det) + (q.R - R0).square().sum((-2, -1)) / prior_var)


@full_precision
def kl_weights(w: Float[Tensor, "*b T K"], weight_var: Variance) -> Float[Tensor, "*b T"]:
    """KL(q(w) ‖ p(w)) of N(w, weight_var I) against N(0, I), for each weight [eq. elbo].

    ½ ( K (weight_var − 1 − ln weight_var) + ‖w‖² )
    """
    checks.tensor("w", w, ("T", "K"))
    checks.variance("weight_var", weight_var, like=w)
    v = torch.as_tensor(weight_var, dtype=w.dtype)
    return 0.5 * (w.shape[-1] * (v - 1 - v.log()) + w.square().sum(-1))


@full_precision
def kl_weights_full(
    w: Float[Tensor, "*#b T K"], inverse: Inverse, noise_var: Variance, scale: Variance
) -> Float[Tensor, "*#b T"]:
    """KL(q(w) ‖ p(w)) where q has the covariance that w has given its code, times a scale; beyond the paper.

        Σ = scale (R Rᵀ / noise_var + I)⁻¹ = scale · noise_var · P,   P = A⁻¹
        ½ ( tr Σ − K − ln det Σ + ‖w‖² )

    Σ is the same for all codes of a memory; scale = 1 is exact for Gaussian codes [app. D]. Proof: test_full_*.
    """
    checks.tensor("w", w, ("T", "K"))
    checks.inverse(inverse, like=w)
    checks.variance("noise_var", noise_var, like=w)
    checks.variance("scale", scale, like=w)
    v = torch.as_tensor(scale * noise_var, dtype=w.dtype)
    trace = v * inverse.P.diagonal(dim1=-2, dim2=-1).sum(-1)
    shape = trace - w.shape[-1] * (1 + v.log()) - inverse.log_det
    return 0.5 * (shape[..., None] + w.square().sum(-1))


@full_precision
def draw_weights_full(
    w: Float[Tensor, "*#b T K"],
    state: MemoryState,
    inverse: Inverse,
    noise_var: Variance,
    scale: Variance,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*#b T K"]:
    """Draw from N(w, Σ) with the Σ of `kl_weights_full`, without a root of it; beyond the paper [app. D].

    a = √noise_var ε + R η has covariance A for ε, η ~ N(0, 1), so that P a has P A P = P.
    """
    checks.inputs(state, w=w, noise_var=noise_var, uses_U=False)
    checks.inverse(inverse, state)
    checks.variance("scale", scale, like=w)
    K, C = state.R.shape[-2:]
    shape = (*torch.broadcast_shapes(w.shape[:-2], state.R.shape[:-2]), w.shape[-2], K + C)
    noise = torch.randn(shape, generator=generator, dtype=w.dtype, device=w.device)
    a = noise_var**0.5 * noise[..., :K] + noise[..., K:] @ state.R.mT
    return w + (scale * noise_var) ** 0.5 * a @ inverse.P


@full_precision
def kl_update(
    state: MemoryState, w: Float[Tensor, "*#b K"], z: Float[Tensor, "*#b C"], noise_var: Variance
) -> Float[Tensor, "*#b"]:
    """KL of the memory after `update` against the memory before it, without factorisation [app. C].

        ½ ( C [ln(s / noise_var) − b] + b ‖Δ‖²/s ),   b = wᵀU w / s

    Cost K·C + K². Proof: test_kl_update_*.
    """
    checks.inputs(state, w=w, z=z, noise_var=noise_var, episode=False)
    delta, c, s = _innovation(state, w, z, noise_var)
    C, wUw = z.shape[-1], (w * c).sum(-1)
    b = wUw / s
    return 0.5 * (C * (torch.log1p(wUw / noise_var) - b) + b * delta.square().sum(-1) / s)


@torch.no_grad()
def _lost(
    U: Float[Tensor, "*b K K"],
    S: Float[Tensor, "*b T T"],
    w: Float[Tensor, "*b T K"],
    noise_var: Variance,
    eps: Float[Tensor, ""],
) -> Bool[Tensor, "*b 1 1"]:
    """Which memories rounding has spoilt when weights were taken out, with U after it; an error if it may be seen.

    The state is rounded by eps of U as it is without w, S/noise_var = 1/(1 + x) by eps x, and U' along w, which is
    divided by S, relatively by eps x (1 + x), with x = ‖U‖‖w‖²/noise_var.
    """
    if not w.shape[-2]:
        return torch.zeros(U.shape[:-2], dtype=torch.bool, device=U.device)[..., None, None]
    least = torch.linalg.eigvalsh((S / noise_var).nan_to_num(0, 0, 0))[..., 0].clamp(min=1e-300)
    x = torch.linalg.eigvalsh(U.nan_to_num(0, 0, 0))[..., -1] * w.square().sum(-1).amax(-1) / noise_var
    off = ROUNDING * eps * x / least
    if checks.deep(off) and bool((off > FORGOTTEN).any()):
        raise ValueError(
            f"w: expected weights that the state has kept to {FORGOTTEN}, got some that would be taken out with an "
            f"error of about {float(off.max()):.1e}, eps x (1 + x) for x = prior_var ‖w‖² / noise_var, here "
            f"{float(x.max()):.3g}; usual cause: a small noise_var and float32; a memory that is float64 from its "
            "first write on keeps them"
        )
    return (off > FORGOTTEN)[..., None, None]


# The functions below are the ones above without the checks, for use inside loops.


def _address(
    z: Float[Tensor, "*#b T C"], R: Float[Tensor, "*#b K C"], noise_var: Variance
) -> Float[Tensor, "*#b T K"]:
    """Solve (R Rᵀ + noise_var I) w = R z, or (RᵀR + noise_var I) v = z and w = R v, whichever is smaller.

    The two are equal, since (R Rᵀ + a I)⁻¹ R = R (RᵀR + a I)⁻¹. With K > C the second is also the one that is well
    conditioned: at K = 64, C = 16, noise_var = 0.01 it is 1,000 times more exact in float32.
    """
    K, C = R.shape[-2:]
    if K <= C:
        L = cholesky(ridge(R @ R.mT, noise_var), "R Rᵀ + noise_var I")
        return solve(L, R @ z.mT).mT
    L = cholesky(ridge(R.mT @ R, noise_var), "RᵀR + noise_var I")
    return solve(L, z.mT).mT @ R.mT


def _address_known(
    z: Float[Tensor, "*#b T C"], R: Float[Tensor, "*#b K C"], noise_var: Variance, known: Bool[Tensor, "*#b T C"]
) -> Float[Tensor, "*#b T K"]:
    """`_address` over the entries that are known; z is zero elsewhere. With D = diag(known), solve either of

    (R D Rᵀ + noise_var I) w = R z          (D RᵀR D + noise_var I) v = z,  w = R v
    """
    if R.shape[-2] <= R.shape[-1]:
        L = cholesky(ridge(_known_gram(R, known), noise_var), "R Rᵀ + noise_var I")
        return solve(L, (z @ R.mT)[..., None])[..., 0]
    D = known.to(R.dtype)
    L = cholesky(
        ridge(D[..., None] * (R.mT @ R)[..., None, :, :] * D[..., None, :], noise_var), "RᵀR + noise_var I"
    )
    return solve(L, z[..., None])[..., 0] @ R.mT


def _known_gram(R: Float[Tensor, "*#b K C"], known: Bool[Tensor, "*#b T C"]) -> Float[Tensor, "*#b T K K"]:
    """R D Rᵀ for each code, D = diag(known)."""
    return (R[..., None, :, :] * known[..., None, :]) @ R.mT[..., None, :, :]


def _like(before: MemoryState, after: MemoryState) -> MemoryState:
    """The memory after a change: one that has faded stays so."""
    return Faded(*after) if isinstance(before, Faded) else after


class _Past(NamedTuple):
    """A memory without its prior, in float64: sums over all that was written, over noise_var."""

    ww: Float[Tensor, "*b K K"]
    """U⁻¹ − U0⁻¹ = WᵀW / noise_var."""
    wz: Float[Tensor, "*b K C"]
    """U⁻¹R − U0⁻¹R0 = WᵀZ / noise_var."""
    rounding: Float[Tensor, "*b 1"]
    """The singular values of wz that rounding alone could leave."""
    rounding_ww: Float[Tensor, "*b 1"]
    """The eigenvalues of ww that rounding alone could leave."""
    lost: Bool[Tensor, "*b 1 1"]
    """Which memories are not numbers; their sums are zero."""


def _past(state: MemoryState, R0: Float[Tensor, "*#p K C"], prior_var: Variance) -> _Past:
    checks.unfaded(state)
    checks.memory(state, "state")
    K, C = state.R.shape[-2:]
    checks.tensor("R0", R0, ("K", "C"), {"K": K, "C": C}, like=state.R, source="size of state.R")
    checks.broadcastable({"state": state.R.shape[:-2], "R0": R0.shape[:-2]})
    checks.variance("prior_var", prior_var, like=state.R)
    eps, tiny = resolution(state.U), torch.finfo(torch.float64).eps
    prior_var = torch.as_tensor(prior_var, dtype=state.R.dtype).double()  # as rounded as the state's own
    R, U = (part.double() for part in broadcast(state, R0))
    inverse = solve(cholesky(symmetric(U), "state.U"), torch.eye(K, dtype=U.dtype, device=U.device).expand_as(U))
    whole = inverse @ R
    lost = ~torch.cat([inverse, whole], -1).isfinite().all(-1).all(-1)[..., None, None]
    inverse, whole = inverse.masked_fill(lost, 0), whole.masked_fill(lost, 0)
    ww = symmetric(ridge(inverse, -1 / prior_var)).masked_fill(lost, 0)
    wz = (whole - R0.double() / prior_var).masked_fill(lost, 0)
    # what the state's own rounding leaves, where nothing was written and U is prior_var I, and what this one does
    rounding = (ROUNDING * eps + 64 * tiny) * torch.linalg.matrix_norm(whole)[..., None]
    rounding_ww = ROUNDING * eps / prior_var + 64 * tiny * torch.linalg.matrix_norm(inverse)[..., None]
    return _Past(ww, wz, rounding, rounding_ww, lost)


def _update(
    state: MemoryState, w: Float[Tensor, "*#b K"], z: Float[Tensor, "*#b C"], noise_var: Variance
) -> MemoryState:
    delta, c, s = _innovation(state, w, z, noise_var)
    # U − u uᵀ with u = c/√s is symmetric to the last bit and drifts least of the forms tried.
    u = c / s.sqrt()[..., None]
    R = state.R + (c / s[..., None])[..., :, None] * delta[..., None, :]
    return MemoryState(R, state.U - u[..., :, None] * u[..., None, :])


def _innovation(
    state: MemoryState, w: Float[Tensor, "*#b K"], z: Float[Tensor, "*#b C"], noise_var: Variance
) -> tuple[Float[Tensor, "*#b C"], Float[Tensor, "*#b K"], Float[Tensor, "*#b"]]:
    """Δ = z − Rᵀw, c = U w, s = wᵀc + noise_var: the surprise and its covariances [app. A]."""
    delta = z - (w[..., None, :] @ state.R)[..., 0, :]
    c = (state.U @ w[..., None])[..., 0]
    return delta, c, (w * c).sum(-1) + noise_var


def _write(
    state: MemoryState,
    z: Float[Tensor, "*#b T C"],
    noise_var: Variance,
    iterations: int,
    block: int,
    keys: int | None,
) -> tuple[MemoryState, Float[Tensor, "*b T K"]]:
    state = MemoryState(*broadcast(state, z))
    w = [z.new_empty(*state.R.shape[:-2], 0, state.R.shape[-2])]
    for z_t in z.split(block, dim=-2) if z.shape[-2] else ():
        old = state
        for _ in range(iterations):
            w_t = _address(z_t[..., :keys], state.R[..., :keys], noise_var)
            state = _condition(old, w_t, z_t, noise_var)
        w.append(w_t)
    return state, torch.cat(w, dim=-2)


def _condition(
    state: MemoryState, w: Float[Tensor, "*#b T K"], z: Float[Tensor, "*#b T C"], noise_var: Variance
) -> MemoryState:
    """Condition on T codes; since order does not matter, a few at a time, to keep the solves small."""
    if w.shape[-2] == 1:
        return _update(state, w[..., 0, :], z[..., 0, :], noise_var)
    # A T×T factor costs T³: up to K (or 64, so that a small memory is not a long loop) it is no burden.
    size = max(state.R.shape[-2], 64)
    for w_t, z_t in zip(w.split(size, dim=-2), z.split(size, dim=-2), strict=True):
        state = _condition_block(state, w_t, z_t, noise_var)
    return state


def _condition_block(
    state: MemoryState, w: Float[Tensor, "*#b T K"], z: Float[Tensor, "*#b T C"], noise_var: Variance
) -> MemoryState:
    """`_update` for T codes: s becomes the matrix S = W U Wᵀ + noise_var I, and 1/√s the inverse of its factor.

    S = L Lᵀ     V = L⁻¹ W U     R ← R + Vᵀ L⁻¹ (Z − W R)     U ← U − VᵀV
    """
    c = w @ state.U
    S = symmetric(ridge(c @ w.mT, noise_var))
    L = cholesky(S, "W U Wᵀ + noise_var I")
    V = solve_lower(L, c)
    return MemoryState(state.R + V.mT @ solve_lower(L, z - w @ state.R), symmetric(state.U - V.mT @ V))
