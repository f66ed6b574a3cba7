"""Fixed points: whether stored patterns are attractors, which the paper's proof takes for granted [app. E]."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .. import checks
from ..checks import deep_checks
from ..memory import MemoryState
from ..models import DKM, Model
from ..recall.reader import Reader
from ..support.pixels import LEVEL
from .base import Experiment, Subject, distinct, mean, means, only, pack
from .tables import Share, Table, point

LIMITS = (0.0, 0.01, 0.02, 0.05)
"""Shares of an image's pixels that may be wrong."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Less than this share of a weight moves in a step: it has arrived.
STILL = 1e-3
EXAMPLES = 16
# At the address of the cue, of the image where recall ends, and where the smooth map leads.
PLACES = ("image", "recall", "smooth")


@dataclass(frozen=True, kw_only=True)
class FixedPoints(Experiment):
    """Where recall by least squares goes from clean stored images, and whether it is stable there [app. E].

    The proof assumes that a stored pattern is a minimum of the energy, hence a fixed point, and that no step raises
    the energy. Here recall starts at each stored image: how far it moves, whether it stops (at a fixed point), goes
    round (a cycle) or neither. Images that were never stored are the contrast; they are measured against the
    nearest stored image.

    Stability is that of the smooth map w → address(encoder(mean p(x | decoder(Rᵀw)))): recall itself takes the
    mode of binary images, which is piecewise constant, so that its derivative is zero wherever it has one. The
    spectral radius of the smooth map's K×K Jacobian says whether small deviations die out (< 1). At a fixed point
    its eigenvalues, but for zeros, are those of the map from images to images. It is taken at three places: at the
    address of the cue, at that of the image where recall ends, and where iterating the smooth map leads. Only the
    last is a fixed point of the smooth map, but iteration leads away from unstable ones: alone it would flatter.
    """

    length: int = 32
    """Images stored."""
    episodes: int = 8
    """Memories, each of other images."""
    steps: int = 100
    """Most steps of recall."""

    NAME: ClassVar[str] = "fixed-points"
    TITLE: ClassVar[str] = "Fixed points"
    ABOUT: ClassVar[str] = (
        "Recall starts at clean stored images, which in theory are fixed points: it should stay there. One sees "
        "how far it moves, and whether it comes to rest, goes round in a cycle, or neither; and whether small "
        "deviations die out, which they do where the spectral radius is below 1. Images that were not stored are "
        "the contrast."
    )
    FIGURES: ClassVar[dict[str, str]] = {
        "": "How far recall moves from stored and from other images, how many stored images move how far, and how "
        "recall ends.",
        "stability": "Spectral radii of the smooth map of recall: at the image, where recall ends, and where "
        "iterating the map leads. Left of the dashed line small deviations die out.",
        "pictures": "Stored images, what one step of recall makes of them, and where recall ends.",
    }
    NEEDS: ClassVar[str | None] = "dkm"
    SMOKE: ClassVar[dict[str, Any]] = {"length": 6, "episodes": 2, "steps": 12}

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, length=1, episodes=1, steps=1)

    def rounds(self, model: Model) -> int:
        return 2 * self.episodes

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        model = only(subject.model, DKM)
        exact = in_double(model)
        found: dict[str, list[Found]] = {"stored": [], "others": []}
        pictures = []
        for _ in range(self.episodes):
            stored, others = distinct(subject.unseen, 1, 2 * self.length, generator)[0].split(self.length)
            state = model.write(stored)
            for name, cues in (("stored", stored), ("others", others)):
                path = model.recall(state, cues, self.steps, "least-squares").x
                smooth = settle(model, exact, state, cues, path[-1], self.steps)
                found[name].append(follow(path, stored, name == "stored", smooth))
                tick()
                if name == "stored":
                    pictures.append(torch.stack([stored, path[0], path[-1]]))
        pixels = stored[0].numel()
        return {
            "length": self.length,
            "pixels": pixels,
            "cues": {name: summary(memories, pixels) for name, memories in found.items()},
            "examples": pack(torch.cat(pictures, 1)[:, :EXAMPLES]),
        }

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """How far recall goes from stored and from other images, how it ends, and whether it is stable."""

        def within(found: dict[str, Any]) -> Share:
            return Share(found["within"]["last"][found["within"]["limits"].index(0.05)])

        def stable(place: str) -> Callable[[dict[str, Any]], Share]:
            return lambda found: Share(found["smooth"]["radius"][place]["stable"])

        wanted: tuple[tuple[str, Callable[[dict[str, Any]], Any]], ...] = (
            (f"{unit(result)} after one step", lambda found: point(found["wrong"], 0)),
            (f"{unit(result)} at the end", lambda found: point(found["wrong"], -1)),
            (f"{unit(result)} at the end: at most 5 %", within),
            ("nearest to the right image at the end", lambda found: Share(found["right"])),
            ("ends at a fixed point", lambda found: Share(found["ends"]["fixed"])),
            ("ends in a cycle", lambda found: Share(found["ends"]["cycle"])),
            ("different ends in a memory", lambda found: found["attractors"]),
            ("stable at the image", stable("image")),
            ("stable where recall ends", stable("recall")),
            ("stable where its smooth map leads", stable("smooth")),
        )
        both = [result["cues"][name] for name in ("stored", "others")]
        rows = [[label, *map(pick, both)] for label, pick in wanted]
        return Table(["", "from stored images", "from other images"], rows)


def unit(result: dict[str, Any]) -> str:
    """What is counted: see `differ`."""
    return "wrong pixels" if result["examples"]["binary"] else "values off by more than a grey level"


class Smooth(NamedTuple):
    """What the smooth map does from Q cues."""

    radius: Float[Tensor, "3 Q"]
    """Spectral radius of the Jacobian at each of PLACES."""
    residual: Float[Tensor, "Q"]
    """How far one more step would move at the last of PLACES, relative to w."""
    x: Float[Tensor, "Q c h w"]
    """The modes there."""


class Found(NamedTuple):
    """What became of Q cues in one memory; distances count pixels."""

    wrong: Int64[Tensor, "S Q"]
    """From the right stored image (or from the nearest, for other cues), after each step."""
    right: Bool[Tensor, "Q"]
    """No other stored image is nearer at the end."""
    blank: Bool[Tensor, "Q"]
    """Nothing is left at the end: all pixels are alike."""
    period: Int64[Tensor, "Q"]
    """1 for a fixed point, more for a cycle, 0 for neither."""
    attractors: int
    """Fixed points and cycles that differ."""
    smooth_wrong: Int64[Tensor, "Q"]
    smooth: Smooth


def follow(path: Float[Tensor, "S Q c h w"], stored: Float[Tensor, "T c h w"], own: bool, smooth: Smooth) -> Found:
    """Judge a path of recall, where cue q is the q-th stored image or, if not `own`, none of them."""

    def distance(x: Float[Tensor, "Q c h w"]) -> tuple[Tensor, Tensor]:
        apart = differ(x[:, None], stored)
        nearest = apart.amin(-1)
        wrong = apart.diagonal() if own else nearest
        return wrong, wrong == nearest

    steps = [distance(x) for x in path]
    period = periods(path)
    wrong = torch.stack([step[0] for step in steps])
    blank = differ(path[-1], path[-1, :, :1, :1, :1]) == 0
    number = count_attractors(path, period)
    return Found(wrong, steps[-1][1], blank, period, number, distance(smooth.x)[0], smooth)


def differ(a: Float[Tensor, "*#b c h w"], b: Float[Tensor, "*#b #c #h #w"]) -> Int64[Tensor, "*b"]:
    """The number of pixels in which images differ, by more than a grey level."""
    return ((a - b).abs() > LEVEL).sum((-3, -2, -1))


def periods(path: Float[Tensor, "S Q c h w"]) -> Int64[Tensor, "Q"]:
    """After how many steps each path was last where it is now; 0 if it never was."""
    before = differ(path[:-1].flip(0), path[-1]) == 0
    return torch.where(before.any(0), before.int().argmax(0) + 1, 0) if len(before) else before.sum(0)


def count_attractors(path: Float[Tensor, "S Q c h w"], period: Int64[Tensor, "Q"]) -> int:
    """How many different fixed points and cycles paths have reached; a cycle goes by the least of its images."""
    levels = (path / LEVEL).round().to(torch.int16).cpu().flatten(2).numpy()
    return len({min(x.tobytes() for x in levels[-p:, q]) for q, p in enumerate(period.tolist()) if p})


def in_double(model: DKM) -> DKM:
    """A copy in double precision, without gradients of its own."""
    return copy.deepcopy(model).double().requires_grad_(False)


def settle(
    model: DKM,
    exact: DKM,
    state: MemoryState,
    cues: Float[Tensor, "Q c h w"],
    ends: Float[Tensor, "Q c h w"],
    steps: int,
) -> Smooth:
    """Iterate the smooth map from the addresses of cues; judge PLACES in double precision."""
    at = Reader.of(model, state)
    start = w = at.address(cues)
    with deep_checks(False):  # what a model reads may leave the range of pixels
        for _ in range(steps):
            w = smooth_step(at, w)
        double = Reader.of(exact, state.to(torch.float64))
        places = [v.double() for v in (start, at.address(ends), w)]
        residual = (smooth_step(double, places[-1]) - places[-1]).norm(dim=-1) / places[-1].norm(dim=-1)
        radii = torch.stack([radius(jacobian(double, v)) for v in places])
    return Smooth(radii, residual, at.decode(w).mode())


def smooth_step(at: Reader, w: Float[Tensor, "Q K"]) -> Float[Tensor, "Q K"]:
    """Recall with the mean image instead of the mode: w → address(encoder(mean p(x | decoder(Rᵀw))))."""
    return at.address(at.decode(w).mean)


def jacobian(at: Reader, w: Float[Tensor, "Q K"]) -> Float[Tensor, "Q K K"]:
    """The Jacobian of `smooth_step` at each w; one backward pass gives a row of all of them."""
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        after = smooth_step(at, w).sum(0)
        rows = [torch.autograd.grad(y, w, retain_graph=True)[0] for y in after]
    return torch.stack(rows, dim=-2)


def radius(matrices: Float[Tensor, "*b K K"]) -> Float[Tensor, "*b"]:
    """The largest modulus of the eigenvalues."""
    return torch.linalg.eigvals(matrices).abs().amax(-1)


def summary(memories: list[Found], pixels: int) -> dict[str, Any]:
    """The numbers of all memories together; memories are the independent unit."""

    def each(field: str) -> Tensor:
        return torch.stack([getattr(found, field) for found in memories])

    wrong, period = each("wrong"), each("period")
    ends = {"fixed": period == 1, "cycle": period > 1, "neither": period == 0}
    return {
        "wrong": means(wrong.transpose(0, 1)),
        "first": sorted(wrong[:, 0].flatten().tolist()),
        "last": sorted(wrong[:, -1].flatten().tolist()),
        "within": {
            "limits": list(LIMITS),
            "first": [mean(wrong[:, 0] <= limit * pixels) for limit in LIMITS],
            "last": [mean(wrong[:, -1] <= limit * pixels) for limit in LIMITS],
        },
        "right": mean(each("right")),
        "blank": mean(each("blank")),
        "ends": {name: mean(which) for name, which in ends.items()},
        "periods": {str(p): n for p, n in sorted(Counter(period.flatten().tolist()).items())},
        "attractors": mean(torch.tensor([found.attractors for found in memories])),
        "smooth": smooth_summary([found.smooth for found in memories]) | {"wrong": mean(each("smooth_wrong"))},
    }


def smooth_summary(memories: list[Smooth]) -> dict[str, Any]:
    """Distributions over all cues, and shares with memories as the independent unit."""
    residual = torch.stack([found.residual for found in memories])
    radii = dict(zip(PLACES, torch.stack([found.radius for found in memories], 1), strict=True))
    return {
        "residual": distribution(residual),
        "settled": mean(residual < STILL),
        "radius": {name: {**distribution(r), "stable": mean(r < 1)} for name, r in radii.items()},
    }


def distribution(values: Float[Tensor, "..."]) -> dict[str, Any]:
    flat = values.flatten().double()
    levels = torch.tensor(QUANTILES, dtype=flat.dtype, device=flat.device)
    return {
        "quantiles": dict(zip(map(str, QUANTILES), flat.quantile(levels).tolist(), strict=True)),
        "values": [float(f"{value:.4g}") for value in flat.sort().values.tolist()],
    }
