"""Recall in the space of codes, where there is no codec: what a memory knows of a vector that is noisy or has gaps.

Reading is linear in the cue, so reading again what was read only shrinks it: without a codec there is nothing that
attracts. What is left to know is the noise of the cue, and what the memory says of all that was written:

    y = Gᵀa + ε on the known entries     a ~ N(0, prior I)     ε ~ N(0, var I)

With fewer codes than rows, G is the frame (`memory.frame`): stored codes are aᵀG exactly, |a| = 1, and var is the
cue's noise alone. So a clean cue is completed exactly from as many known entries as there are codes. In a fuller
memory G is R, a is the address, and var has noise_var as well. An unknown noise is the one under which the cue is
likeliest.

Who can tell a valid vector from others gives `valid`, a map to the nearest valid one. It does for vectors what a
codec does for images, and with it the dynamics and the search of recall.frame run.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..memory import MemoryState, inverse, moments
from ..support import linalg
from . import frame
from .frame import EXACT, STEP, Frames
from .retriever import Cue, Hyper, Retriever

Valid = Callable[[Tensor], Tensor]

# Values of an unknown variance that are tried: so many over its whole range, and again around the best, ever finer.
GRID, ZOOMS = 48, 3


class Origin(NamedTuple):
    """Where the codes of B memories come from: y = Gᵀa + ε, in float64."""

    G: Float[Tensor, "B K C"]
    prior: Float[Tensor, "B"]
    var: Float[Tensor, "B"]
    """The least variance of ε: of the memory itself, or of rounding."""
    framed: Bool[Tensor, "B"]
    """Where G is the frame."""


def origin(frames: Frames, state: MemoryState, noise_var: Float[Tensor, ""], exact: bool) -> Origin:
    """The frame of each memory that it fits, where it is exact, or the memory's mean."""
    framed, n = ~(frames.full() | frames.lost()) & exact, frames.exact.distinct.double()
    G = torch.where(framed[:, None, None], frames.exact.codes.nan_to_num(0), state.R.double())
    rounding = torch.finfo(state.R.dtype).eps * G.square().mean((-2, -1)).clamp(min=1e-30)
    prior, var = torch.where(framed, 1 / n.clamp(min=1), 1.0), torch.where(framed, rounding, noise_var.double())
    return Origin(G, prior, var, framed)


def estimate(
    of: Origin, y: Float[Tensor, "B Q C"], known: Bool[Tensor, "B Q C"], cue_var: Float[Tensor, "B Q"] | None
) -> Float[Tensor, "B Q C"]:
    """The posterior mean of codes given cues, of known noise or of the likeliest.

    G D Gᵀ · prior = V Λ Vᵀ, D = diag(known): y has the variance Λ + var along K directions, var along the others.
    """
    y, D, G = torch.where(known, y.double(), 0), known.double(), of.G * of.prior.sqrt()[:, None, None]
    Λ, V = torch.linalg.eigh(linalg.symmetric((G[:, None] * D[:, :, None]) @ G.mT[:, None]))
    Λ = Λ.clamp(min=0)
    b = (V.mT @ (y @ G.mT)[..., None])[..., 0]
    least = of.var[:, None].expand(y.shape[:2])
    var = likeliest(y, D.sum(-1), Λ, b, least) if cue_var is None else least + cue_var.double()
    a = (V @ (b / (Λ + var[..., None]))[..., None])[..., 0]
    return a @ G


def likeliest(
    y: Float[Tensor, "B Q C"],
    entries: Float[Tensor, "B Q"],
    Λ: Float[Tensor, "B Q K"],
    b: Float[Tensor, "B Q K"],
    least: Float[Tensor, "B Q"],
) -> Float[Tensor, "B Q"]:
    """The variance, `least` or more, under which the known entries of a cue are likeliest: a search on a line.

    −2 ln p(y) = Σ_k (ln(1 + Λ_k/var) − b_k²/(var (Λ_k + var))) + ‖y‖²/var + entries · ln var + const
    """
    size = y.square().sum(-1)
    low, high = least.log(), torch.maximum(least, 2 * size / entries.clamp(min=1)).log()
    for _ in range(ZOOMS):
        step = (high - low) / (GRID - 1)
        tried = low[..., None] + step[..., None] * torch.arange(GRID, device=y.device)
        var = tried.exp()[..., None]
        cost = ((Λ[..., None, :] / var).log1p() - b[..., None, :].square() / (var * (Λ[..., None, :] + var))).sum(
            -1
        )
        cost = cost + size[..., None] / var[..., 0] + entries[..., None] * tried
        best = tried.gather(-1, cost.argmin(-1, keepdim=True))[..., 0]
        low, high = torch.maximum(best - step, least.log()), best + step
    return best.exp()


def settle(
    hyper: Hyper, frames: Frames, of: Origin, z: Float[Tensor, "B Q C"], valid: Valid, steps: int
) -> Float[Tensor, "B Q C"]:
    """Go from estimates to valid vectors that the memory holds; of those passed, the ones that it holds best.

    Framed: z ← z + β ( valid(2 P(z) − z) − P(z) ), P the projection on the frame; else z ← valid(read(z)).
    """
    G, noise_var = of.G.to(z), hyper.noise_var
    A = linalg.ridge(G @ G.mT, noise_var)
    whole = (frames.codes @ frames.back).to(z)
    best = applied(valid, z)
    nearest = away(frames, of, best, A, G)
    for _ in range(steps):
        held = frame.nearest(z @ frames.back, whole) @ frames.codes
        read = torch.linalg.solve(A, G @ z.mT).mT @ G
        held = torch.where(of.framed[:, None, None], held, read)
        x = applied(valid, torch.where(of.framed[:, None, None], 2 * held - z, read))
        z = torch.where(of.framed[:, None, None], z + STEP * (x - held), x)
        far = away(frames, of, x, A, G)
        better = far < nearest
        best, nearest = torch.where(better[..., None], x, best), torch.where(better, far, nearest)
        if bool((nearest < EXACT).all()):
            break
    return best


def away(
    frames: Frames, of: Origin, x: Float[Tensor, "B Q C"], A: Float[Tensor, "B K K"], G: Float[Tensor, "B K C"]
) -> Float[Tensor, "B Q"]:
    """How far vectors are from what their memories hold, relative to their length."""
    read = torch.linalg.solve(A, G @ x.mT).mT @ G
    plain = (x - read).norm(dim=-1) / x.norm(dim=-1).clamp(min=1e-12)
    return torch.where(of.framed[:, None], frame.fit(x, frames.codes, frames.back)[1], plain)


def applied(valid: Valid, z: Float[Tensor, "*b C"]) -> Float[Tensor, "*b C"]:
    """What `valid` makes of vectors."""
    x = valid(z)
    if not isinstance(x, Tensor) or x.shape != z.shape:
        came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"valid: expected a map of vectors to valid ones, (*b, {z.shape[-1]}), got {came}")
    return x.to(z)


@torch.no_grad()
def recall(
    hyper: Hyper,
    state: MemoryState,
    y: Float[Tensor, "B Q C"],
    known: Bool[Tensor, "B Q C"],
    cue_var: Float[Tensor, "B Q"] | None,
    valid: Valid | None,
    steps: int,
    exact: bool,
) -> Float[Tensor, "B Q C"]:
    """The codes that cues are of, with one batch axis."""
    frames = Frames.of(hyper, state)
    of = origin(frames, state, hyper.noise_var, exact)
    z = estimate(of, y, known, cue_var).to(state.R)
    return z if valid is None else settle(hyper, frames, of, z, valid, steps)


class Certain(NamedTuple):
    """What a codec's likelihood is asked for, of a valid vector."""

    mean: Float[Tensor, "*b 1 1 C"]

    def mode(self) -> Float[Tensor, "*b 1 1 C"]:
        return self.mean


def images(hyper: Hyper, state: MemoryState, valid: Valid) -> Retriever:
    """Valid vectors as images of one row and one channel, which memories hold as they are: for frame.Search."""

    noise_var, shared = hyper.noise_var, inverse(state, hyper.noise_var)

    def encode(x: Float[Tensor, "*b 1 1 C"]) -> Cue:
        z = x.flatten(-3)
        return Cue(z, z)

    return Retriever(
        state,
        hyper,
        noise_var,
        shared,
        encode,
        lambda e: moments.infer(e.seen, state, noise_var),
        lambda w: moments.spread(w, state, noise_var, shared),
        lambda z: Certain(applied(valid, z)[..., None, None, :]),  # type: ignore[arg-type, return-value]
        False,
        (1, 1, hyper.R0.shape[-1]),
        lambda other: images(hyper, other, valid),
    )
