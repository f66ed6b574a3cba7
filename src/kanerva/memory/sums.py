"""The memory as two sums over all that was written: what can be added, taken out again, and looked into.

    U⁻¹ − U0⁻¹ = WᵀW / noise_var          U⁻¹R − U0⁻¹R0 = WᵀZ / noise_var

This is `condition` read backwards [app. A]. moments.py has the same memory as a mean and a covariance.
"""

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..support import checks
from ..support.checks import Variance
from ..support.door import public
from ..support.linalg import broadcast, cholesky, resolution, ridge, solve, solve_lower, symmetric
from .moments import MemoryState, Whole, _like

# Rounding alone leaves at most so many eps of a memory's norm where nothing was written.
# Trained on Omniglot, 24 and 31 codes in 32 rows: 0.1; what was written in 192 memories of 32: at least 5.9.
ROUNDING = 2
# What `forget` may be off by, relative to the largest entry, through the rounding of the state.
FORGOTTEN = 1e-2

Told = Annotated[MemoryState, checks.unfaded, checks.definite]
"""A memory whose writes can be told apart."""


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


@public
@torch.no_grad()
def span(state: Told, R0: Float[Tensor, "*#b K C"], prior_var: Variance) -> Float[Tensor, "*b n C"]:
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


@public
@torch.no_grad()
def frame(state: Told, R0: Float[Tensor, "*#b K C"], prior_var: Variance, noise_var: Variance) -> Frame:
    """Find the codes and weights that were written into `prior(R0, prior_var)`, up to a rotation; beyond the paper.

        A = noise_var (U⁻¹ − U0⁻¹) = WᵀW          B = noise_var (U⁻¹R − U0⁻¹R0) = WᵀZ
        A = V Λ Vᵀ      weights = Λ^½ Vᵀ      codes = Λ^−½ Vᵀ B

    This is `condition` read backwards [app. A], in float64. A direction counts where B stands out of rounding (A
    holds squares, and loses a weight that is nearly a mixture of others), and outside of these, where A does: a
    code that is written again leaves its trace in A alone. Exact for up to K codes with independent weights; of
    more than K it is a frame of their sums, which no code need fit. Passes no gradients. Cost K²·C + K³.
    Proof: test_frame_*.
    """
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


@public
def absorb(state: Whole, G: Float[Tensor, "*#b K K"], H: Float[Tensor, "*#b K C"]) -> MemoryState:
    """Condition on codes of which only sums are known, wherever they were taken [app. A].

        G = Σ_t w wᵀ / noise_var     H = Σ_t w (z − Rᵀw)ᵀ / noise_var     U_T = (U⁻¹ + G)⁻¹     R_T = R + U_T H

    Computed as U_T = V Vᵀ with U = L Lᵀ and V = L chol(I + LᵀG L)⁻ᵀ: no inverse of U. Cost K²·C + K³.
    """
    L = cholesky(symmetric(state.U), "state.U")
    B = symmetric(ridge(L.mT @ G @ L, 1.0))
    Vt = solve_lower(cholesky(B, "I + LᵀG L"), L.mT)
    U = symmetric(Vt.mT @ Vt)
    return _like(state, state.R + U @ H, U)


@public
def forget(
    state: Whole, w: Float[Tensor, "*#b T K"], z: Float[Tensor, "*#b T C"], noise_var: Variance
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
    dtype, eps = state.R.dtype, resolution(state.U)
    R, U = (part.double() for part in broadcast(state, w, z))
    w, z, s2 = w.double(), z.double(), float(noise_var) if not isinstance(noise_var, Tensor) else noise_var.double()
    c = w @ U
    S = symmetric(ridge(-c @ w.mT, s2))
    L = cholesky(S, "noise_var I − W U Wᵀ (usual cause: weights never written)")
    V = solve_lower(L, c)
    U = symmetric(U + V.mT @ V)
    U = U.masked_fill(_lost(U, S, w, s2, eps), torch.nan)
    return _like(state, R - U @ (w.mT @ (z - w @ R)) / s2, U).to(dtype)


@torch.no_grad()
def _lost(
    U: Float[Tensor, "*b K K"],
    S: Float[Tensor, "*b T T"],
    w: Float[Tensor, "*#b T K"],
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
    K = state.R.shape[-2]
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
