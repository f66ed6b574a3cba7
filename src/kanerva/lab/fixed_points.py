"""Fixed points: whether stored patterns are attractors, which the paper's proof takes for granted [app. E]."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..memory import MemoryState
from ..models import DKM
from ..recall.retriever import Retriever
from ..support.checks import deep_checks
from ..support.pixels import LEVEL
from ..support.say import bar
from .drawing import COLOURS, curve, look
from .measures import answers, distances, distinct, mean, means
from .runner import Subject
from .tables import Share, Table, point

NEEDS = "dkm"
SMOKE = {"length": 6, "episodes": 2, "steps": 12}
LIMITS = (0.0, 0.01, 0.02, 0.05)
"""Shares of an image's pixels that may be wrong."""
PLACES = ("image", "recall", "smooth")
"""At the address of the cue, of the image where recall ends, and where the smooth map leads."""


def run(who: Subject, seed: int = 0, *, length: int = 32, episodes: int = 8, steps: int = 100) -> dict[str, Any]:
    """Where recall by least squares goes from clean stored images, and whether it is stable there [app. E].

    The proof assumes that a stored pattern is a minimum of the energy, hence a fixed point, and that no step raises
    the energy. Here recall starts at each stored image: how far it moves, whether it stops (at a fixed point), goes
    round (a cycle) or neither. Images that were never stored are the contrast; they are measured against the
    nearest stored image.

    Stability is that of the smooth map w → address(encoder(mean p(x | decoder(Rᵀw)))): recall itself takes the
    mode of binary images, which is piecewise constant, so that its derivative is zero wherever it has one. The
    spectral radius of the smooth map's K×K Jacobian says whether small deviations die out (< 1). It is taken at the
    address of the cue, at that of the image where recall ends, and where iterating the smooth map leads. Only the
    last is a fixed point of the smooth map, but iteration leads away from unstable ones: alone it would flatter.

    length: Images stored.
    episodes: Memories, each of other images.
    steps: Most steps of recall.
    """
    model, found = who.model, dict[str, list[Found]](stored=[], others=[])
    assert isinstance(model, DKM)
    exact, generator = copy.deepcopy(model).double().requires_grad_(False), torch.Generator().manual_seed(seed)
    with bar(f"fixed-points: {who.name}", 2 * episodes) as advance:
        for x in distinct(who.unseen.to("cpu"), episodes, 2 * length, generator).to(model.device):
            stored, others = x.split(length)
            state = model.write(stored)
            for name, cues in (("stored", stored), ("others", others)):
                path = model.recall(state, cues, steps, "least-squares").x
                radii = settle(model, exact, state, cues, path[-1], steps)
                found[name].append(follow(path, stored, name == "stored", radii))
                advance(1)
    pixels = stored[0].numel()
    return {
        "length": length,
        "pixels": pixels,
        "binary": who.unseen.binary,
        "cues": {name: summary(memories, pixels) for name, memories in found.items()},
    }


class Found(NamedTuple):
    """What became of Q cues in one memory."""

    wrong: Int64[Tensor, "S Q"]
    """Pixels that differ from the right stored image (or from the nearest, for other cues), after each step."""
    right: Bool[Tensor, "Q"]
    """No other stored image is nearer at the end."""
    blank: Bool[Tensor, "Q"]
    """Nothing is left at the end: all pixels are alike."""
    period: Int64[Tensor, "Q"]
    """1 for a fixed point, more for a cycle, 0 for neither."""
    attractors: int
    """Fixed points and cycles that differ."""
    radius: Float[Tensor, "3 Q"]
    """Spectral radius of the smooth map's Jacobian at each of PLACES."""


def follow(
    path: Float[Tensor, "S Q c h w"], stored: Float[Tensor, "T c h w"], own: bool, radius: Float[Tensor, "3 Q"]
) -> Found:
    """Judge a path of recall, where cue q is the q-th stored image or, if not `own`, none of them."""
    apart = torch.stack([differ(x[:, None], stored) for x in path])
    wrong = apart.diagonal(dim1=-2, dim2=-1) if own else apart.amin(-1)
    right = answers(distances(path[-1], stored))[1] if own else torch.ones_like(wrong[-1], dtype=torch.bool)
    period = periods(path)
    blank = differ(path[-1], path[-1, :, :1, :1, :1]) == 0
    return Found(wrong, right, blank, period, count_attractors(path, period), radius)


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


def settle(
    model: DKM,
    exact: DKM,
    state: MemoryState,
    cues: Float[Tensor, "Q c h w"],
    ends: Float[Tensor, "Q c h w"],
    steps: int,
) -> Float[Tensor, "3 Q"]:
    """Iterate the smooth map from the addresses of cues; the spectral radius at PLACES, in double precision."""
    at = model.retriever(state)
    start = w = at.find(cues)
    with deep_checks(False):  # what a model reads may leave the range of pixels
        for _ in range(steps):
            w = smooth_step(at, w)
        double = exact.retriever(state.to(torch.float64))
        return torch.stack([radius(jacobian(double, v.double())) for v in (start, at.find(ends), w)])


def smooth_step(at: Retriever, w: Float[Tensor, "Q K"]) -> Float[Tensor, "Q K"]:
    """Recall with the mean image instead of the mode: w → address(encoder(mean p(x | decoder(Rᵀw))))."""
    return at.find(at.read(w).mean)


def jacobian(at: Retriever, w: Float[Tensor, "Q K"]) -> Float[Tensor, "Q K K"]:
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
        return torch.stack([torch.as_tensor(getattr(found, field)) for found in memories])

    wrong, period, radii = each("wrong"), each("period"), each("radius")
    ends = {"fixed": period == 1, "cycle": period > 1, "neither": period == 0}
    stable = {place: {"stable": mean(radii[:, i] < 1)} for i, place in enumerate(PLACES)}
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
        "attractors": mean(each("attractors")),
        "smooth": {"radius": stable},
    }


def unit(result: dict[str, Any]) -> str:
    """What is counted: see `differ`."""
    return "wrong pixels" if result.get("binary", True) else "values off by more than a grey level"


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


# Figures

KINDS = {"stored": "stored images", "others": "other images"}
ENDS = {"fixed": ("fixed point", COLOURS[0]), "cycle": ("cycle", COLOURS[4]), "neither": ("neither", "0.75")}


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """How far recall moves, how many images it moves how far, and how it ends."""
    figure = Figure(figsize=(10.5, 2.9 * len(models)), layout="constrained")
    grid = figure.subplots(len(models), 3, squeeze=False, width_ratios=(4, 4, 3.4))
    for (left, middle, right), model in zip(grid, models, strict=True):
        result = model["result"]
        for number, (kind, name) in enumerate(KINDS.items()):
            wrong = result["cues"][kind]["wrong"]
            curve(left, range(1, len(wrong["mean"]) + 1), wrong, f"from {name}", look(number), markevery=[0, -1])
        left.set(xscale="log", xlabel="step of recall", ylabel=unit(result))
        left.set_title(f"{model['name']}: distance from the right,\nor else the nearest, stored image")
        left.xaxis.set_major_formatter(lambda step, _: f"{step:g}")
        left.set_ylim(bottom=0)
        left.legend()
        cumulative(middle, result)
        ends(right, result)
    return {"": figure}


def cumulative(axes: Axes, result: dict[str, Any]) -> None:
    """The share of stored images within so many pixels, after one step and at the end."""
    stored = result["cues"]["stored"]
    for name, label, colour in (("first", "after one step", COLOURS[2]), ("last", "at the end", COLOURS[0])):
        axes.ecdf(stored[name], color=colour, label=label)
    for limit in stored["within"]["limits"][1:]:
        axes.axvline(limit * result["pixels"], color="0.5", linestyle=":", linewidth=0.9)
        axes.text(limit * result["pixels"], 1.01, f"{100 * limit:g} %", fontsize=7, ha="center", va="bottom")
    axes.set_title(f"from stored images, {100 * stored['within']['first'][0]['mean']:.0f} % exactly fixed", pad=14)
    axes.set(xlabel=f"{unit(result)}, at most", ylabel="% of stored images")
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")
    axes.set_xlim(left=-0.5)
    axes.legend(loc="lower right", bbox_to_anchor=(0.97, 0))


def ends(axes: Axes, result: dict[str, Any]) -> None:
    """Shares of the ways in which recall ends."""
    bottom = np.zeros(len(KINDS))
    for end, (label, colour) in ENDS.items():
        heights = np.array([100 * result["cues"][kind]["ends"][end]["mean"] for kind in KINDS])
        axes.bar(range(len(KINDS)), heights, 0.6, bottom, color=colour, label=label)
        bottom += heights
    for place, kind in enumerate(KINDS):
        count = result["cues"][kind]["attractors"]["mean"]
        blank = 100 * result["cues"][kind]["blank"]["mean"]
        note = f"{count:.3g} different,\n{blank:.0f} % blank"
        axes.text(place, 101, note, fontsize=7, ha="center", va="bottom")
    axes.set_xticks(range(len(KINDS)), [f"from\n{name}" for name in KINDS.values()])
    axes.set_title(f"how recall ends, {result['length']} cues a memory", pad=24)
    axes.set_ylabel("% of cues")
    axes.grid(visible=False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
