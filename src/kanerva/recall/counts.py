"""How often vectors were written, from the memory alone; −1 where it cannot be known. Beyond the paper.

Images have a codec, by which hardly any mixture of stored codes is a code (`frame.contains`). Vectors have none, so
a count means: a memory with this content could have been written so. In the sums of all that was written,

    A = noise_var (U⁻¹ − U0⁻¹) = WᵀW    B = noise_var (U⁻¹R − U0⁻¹R0) = WᵀZ    z = uᵀF = Bᵀy    |u|² = yᵀA y

what was written m times has |u|² = 1/m, and the u of different vectors are orthogonal, where the weights W are
independent, and the vectors Z too but for copies. Where they are not, |u|² is no 1/m but by chance. U and R are
rounded: `traces` says what that leaves unsure. Weights of copies may differ by less than rounding, or there may be
as many writes as rows: then |u|² is a little more than 1/m, and counts must agree with each other (`agrees`).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .. import memory
from ..memory import Frame, MemoryState
from ..support import checks, linalg
from .retriever import Hyper

# A vector that differs from a mixture of what was written by this share of its length or less, or by what rounding
# leaves, is one; by more than the second, it is none. In between it may be either.
SAME, OTHER = 1e-5, 1e-2
# A state is off by so many times eps of U and R. U was by 1.8 at most in 400 memories of up to 46 vectors.
MARGIN = 4
# |u|² must be sure to this share, for a count to be known by itself.
UNSURE = 1e-2
# One that would have left less than so many times the rounding of B in it may have been written without a trace.
FAINT = 256
# Where weights are crowded, |u|² may be more than 1/m by this share, for counts up to MANY of more than FEW
# different vectors. In 4,851 memories with as many writes as rows or more, none of 8,968 counts was wrong; without
# `agrees`, 26 of 9,905.
CROWDED, MANY, FEW = 0.1, 3, 3
# How unsure a count may be that agrees with those of all others.
AGREED = 0.2

UNKNOWN = (
    "the memory cannot tell; usual causes: as many writes as rows, vectors that depend on each other or are nearly "
    "alike, or lengths or a noise_var that its precision cannot hold (float64 holds more)"
)


class Traces(NamedTuple):
    """What is left of vectors in B memories, in float64, and how surely."""

    u: Float[Tensor, "B Q K"]
    far: Float[Tensor, "B Q"]
    """How far they are from all mixtures of what was written, relative to their length."""
    unsure_far: Float[Tensor, "B Q"]
    """What rounding may leave of that where it is 0."""
    unsure: Float[Tensor, "B Q"]
    """The relative error of |u|² that rounding may leave."""
    loose: Float[Tensor, "B Q"]
    """How far A y lies outside of the known weights, in units of rounding. Over 1, weights are lost in rounding."""
    faint: Bool[Tensor, "B Q"]
    """Which could have been written without a trace."""


def how_often(
    hyper: Hyper, state: MemoryState, z: Float[Tensor, "B Q C"], keys: int, strict: bool = False
) -> Int64[Tensor, "B Q"]:
    """How often codes could have been written, 0 for never, −1 where the memory cannot tell.

    keys: the first so many numbers of a code address the memory; where these are zero, nothing is written. strict:
    −1 also where a code could not be taken out again exactly.
    """
    checks.unfaded("state", state)
    with checks.deep_checks(False):  # a U that rounding has spoilt tells nothing
        frames = memory.frame(state, *hyper)
        at, most = traces(hyper, state, frames, z.double(), keys), min(state.R.shape[-2], keys)
        every = traces(hyper, state, frames, frames.codes.nan_to_num(0), keys) if strict else at
    distinct, rank = frames.distinct[:, None], frames.rank[:, None]
    full = rank >= most  # and maybe more writes than that
    size, none = at.u.square().sum(-1), (z[..., :keys] == 0).all(-1)
    times = (1 / size.clamp(min=1e-12)).round().clamp(min=1)
    off, bound = times * size - 1, SAME + at.unsure

    there = (at.far < at.unsure_far.clamp(min=SAME)) & (at.unsure_far < OTHER)
    never = (at.far > at.unsure_far.clamp(min=OTHER)) & ~at.faint
    sure, rough = there & (at.unsure < UNSURE), full | (at.loose > 1)
    too_long = sure & ~rough & (size > torch.where(rank > distinct, 4.0, 1.5))
    # whole numbers are come by more easily the larger they are
    company, luck = agrees(at, times, there, distinct, full), times * bound
    whole = (luck < UNSURE / 10) | ((luck < UNSURE) & (company | (times == 1)))
    whole &= sure & (off.abs() < bound) & ~full
    crowded = off * times.clamp(min=2) < 2 * torch.where(rough | (rank > distinct), CROWDED, 0.0) + luck
    crowded &= there & company & (off > -bound) & (times <= MANY) & (luck < AGREED)
    if strict:
        crowded = torch.zeros_like(crowded)
        whole &= at.unsure * at.loose < UNSURE / 10
        whole &= (every.unsure < 5 * UNSURE).all(-1, keepdim=True)
    # weights that surely differ, one for each write: those of copies have none of the different codes
    p = hyper.prior_var.double()
    least = p * (1 - MARGIN * rounding(state))
    written = (torch.linalg.eigvalsh(state.U.double().nan_to_num(0)) < least).sum(-1, keepdim=True)
    explained = (times == 1) | (times - 1 <= written - distinct) | (written >= most)

    lost = frames.codes.isnan().any(-1).any(-1)[:, None]
    blind = lost | (distinct >= most) | (distinct >= z.shape[-1])
    said = torch.where(never | too_long, 0, torch.where((whole | crowded) & explained, times.long(), -1))
    return torch.where(none, 0, torch.where(blind, -1, said))


def traces(hyper: Hyper, state: MemoryState, frames: Frame, z: Float[Tensor, "B Q C"], keys: int) -> Traces:
    """What a memory says of vectors. With h = U⁻¹y, G = U⁻¹R and g = F⁺u, what rounding does is, to first order,

    δ|u|² = noise_var hᵀ(δU h + 2 (δU G − δR) g)        δz = noise_var (Gᵀ δU − δRᵀ) h
    """
    eps, p, s2 = rounding(state), hyper.prior_var.double(), hyper.noise_var.double()
    R, U, R0 = state.R.double(), linalg.symmetric(state.U.double()), hyper.R0.double()
    F, W = frames.codes.nan_to_num(0), frames.weights.nan_to_num(0)
    L, size, Q = torch.linalg.svd(F, full_matrices=False)
    kept = torch.arange(size.shape[-1], device=z.device) < frames.distinct[:, None]
    back, Q = torch.where(kept, 1 / size, 0)[:, None], Q * kept[..., None]
    a = z @ Q.mT
    u, g, rest = (a * back) @ L.mT, (a * back.square()) @ Q, (z - a @ Q).norm(dim=-1)
    roots = W.norm(dim=-1).clamp(min=1e-300)
    one = W / roots[..., None]
    h = linalg.solve(linalg.cholesky(U, "state.U"), (u / roots[:, None] @ one).mT).mT
    length, norm, B = z.norm(dim=-1).clamp(min=1e-300), h.norm(dim=-1), W.mT @ F
    G = R0 / p + B / s2
    R_g, R_h = ((x.square() @ y).sum(-1).sqrt() for x, y in ((g, R.square().mT), (h, R.square())))
    error = norm * (p * norm + 2 * p * (g @ G.mT).norm(dim=-1) + 2 * R_g)
    # the weights that vectors would get, now or at first, where no other vector has any: none for a key again
    P = torch.linalg.svd(B, full_matrices=False)[0] * kept[:, None]
    with_keys = ((M.expand_as(R)[..., :keys]) for M in (R0, R))
    found = [memory.address(z[..., :keys], MemoryState(M, U), s2) for M in with_keys]
    own = [((v - v @ P @ P.mT).norm(dim=-1), v.norm(dim=-1)) for v in found]
    w = torch.minimum(*(torch.where(alone > SAME * whole, alone, 0) for alone, whole in own))
    return Traces(
        u,
        rest / length,
        MARGIN * eps * s2 * (norm * torch.linalg.matrix_norm(R0) + R_h) / length,
        MARGIN * eps * s2 * error / u.square().sum(-1).clamp(min=1e-300),
        (h - h @ one.mT @ one).norm(dim=-1) / (eps * norm.clamp(min=1e-300)),
        w * rest < FAINT * eps * s2 * torch.linalg.matrix_norm(G)[:, None],
    )


def rounding(state: MemoryState) -> Float[Tensor, ""]:
    """What a state is rounded by, and the float64 that it is looked at in."""
    return linalg.resolution(state.U) + 64 * torch.finfo(torch.float64).eps


def agrees(
    at: Traces,
    times: Float[Tensor, "B Q"],
    there: Bool[Tensor, "B Q"],
    distinct: Int64[Tensor, "B 1"],
    full: Bool[Tensor, "B 1"],
) -> Bool[Tensor, "B Q"]:
    """Whether counts fit to those of all other vectors of the memory, which must be asked for too.

    The products of the u of all different vectors are diag(1/m) + S. S comes from what the weights of copies have
    beyond what W can tell apart, and is positive semi-definite: S_ij² ≤ S_ii S_jj.
    """
    u, left, fits, number = at.u, there.clone(), there.clone(), torch.zeros_like(distinct)
    size = u.square().sum(-1)
    direction = u / size.sqrt().clamp(min=1e-300)[..., None]
    S = (size - 1 / times).clamp(min=0) + (1e-3 + at.unsure) / times
    for _ in range(u.shape[-1] if u.shape[-2] else 0):  # one vector of each direction
        first = left.int().argmax(-1, keepdim=True)
        v, some = u.take_along_dim(first[..., None], 1), left.gather(-1, first)
        parallel = (direction @ direction.take_along_dim(first[..., None], 1).mT)[..., 0].abs() > 0.99
        equal = (size / size.gather(-1, first) - 1).abs() < 1e-3
        fits &= ~some | torch.where(parallel, equal, (u @ v.mT)[..., 0].square() <= S * S.gather(-1, first))
        number, left = number + some, left & ~parallel
    return fits & (number >= distinct) & ((number > FEW) | ~full)
