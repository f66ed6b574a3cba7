"""Fixed points: whether stored patterns are attractors, which the paper's proof takes for granted [app. E]."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from ..models.checkpoint import as_dkm
from ..recall.retriever import Retriever
from ..support.checks import deep_checks
from ..support.pixels import LEVEL, distances
from ..support.say import bar
from .drawing import curve, look
from .measures import answers, distinct, mean, means
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

    The proof assumes that a stored pattern is a fixed point, and that no step raises the energy. Recall starts at
    each stored image, and at images that were never stored, which are measured against the nearest stored one: how
    far it moves, and whether it ends at a fixed point, in a cycle or in neither.

    Stability is that of the smooth map w → address(encoder(mean p(x | decoder(Rᵀw)))), since the mode that recall
    takes of binary images is piecewise constant. Below a spectral radius of 1 of its K×K Jacobian, small deviations
    die out. It is taken at the address of the cue, at that of the image where recall ends, and where iterating the
    smooth map leads. Only the last is a fixed point of it, but iteration leads away from unstable ones.

    length: Images stored.
    episodes: Memories, each of other images.
    steps: Most steps of recall.
    """
    model, found = as_dkm(who.model, who.name), dict[str, list[Ends]](stored=[], others=[])
    exact, generator = copy.deepcopy(model).double().requires_grad_(False), torch.Generator().manual_seed(seed)
    with bar(f"fixed-points: {who.name}", 2 * episodes) as advance:
        for x in distinct(who.unseen.to("cpu"), episodes, 2 * length, generator).to(model.device):
            stored, others = x.split(length)
            state = model.write(stored)
            at, double = model.retriever(state), exact.retriever(state.to(torch.float64))
            for name, cues in (("stored", stored), ("others", others)):
                path = model.recall(state, cues, steps, "least-squares").x
                radii = settle(at, double, cues, path[-1], steps)
                found[name].append(follow(path, stored, name == "stored", radii))
                advance(1)
    pixels = stored[0].numel()
    return {
        "length": length,
        "pixels": pixels,
        "binary": who.unseen.binary,
        "cues": {name: summary(memories, pixels) for name, memories in found.items()},
    }


class Ends(NamedTuple):
    """What became of Q cues in one memory."""

    wrong: Int64[Tensor, "S Q"]
    """Pixels that differ from the right stored image (or from the nearest, for other cues), after each step."""
    right: Bool[Tensor, "Q"]
    """No other stored image is nearer at the end."""
    period: Int64[Tensor, "Q"]
    """1 for a fixed point, more for a cycle, 0 for neither."""
    attractors: int
    """Fixed points and cycles that differ."""
    radius: Float[Tensor, "3 Q"]
    """Spectral radius of the smooth map's Jacobian at each of PLACES."""


def follow(
    path: Float[Tensor, "S Q c h w"], stored: Float[Tensor, "T c h w"], own: bool, radius: Float[Tensor, "3 Q"]
) -> Ends:
    """Judge a path of recall, where cue q is the q-th stored image or, if not `own`, none of them."""
    apart = torch.stack([differ(x[:, None], stored) for x in path])
    wrong = apart.diagonal(dim1=-2, dim2=-1) if own else apart.amin(-1)
    right = answers(distances(path[-1], stored))[1] if own else torch.ones_like(wrong[-1], dtype=torch.bool)
    period = periods(path)
    return Ends(wrong, right, period, count_attractors(path, period), radius)


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
    at: Retriever, exact: Retriever, cues: Float[Tensor, "Q c h w"], ends: Float[Tensor, "Q c h w"], steps: int
) -> Float[Tensor, "3 Q"]:
    """Iterate the smooth map from the addresses of cues; the spectral radius at PLACES, in double precision."""
    start = w = at.find(cues)
    with deep_checks(False):  # what a model reads may leave the range of pixels
        for _ in range(steps):
            w = smooth_step(at, w)
        return torch.stack([radius(jacobian(exact, v.double())) for v in (start, at.find(ends), w)])


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


def summary(memories: list[Ends], pixels: int) -> dict[str, Any]:
    """The numbers of all memories together; memories are the independent unit."""

    def each(field: str) -> Tensor:
        return torch.stack([torch.as_tensor(getattr(found, field)) for found in memories])

    wrong, period, radii = each("wrong"), each("period"), each("radius")
    ends = {"fixed": period == 1, "cycle": period > 1, "neither": period == 0}
    stable = {place: {"stable": mean(radii[:, i] < 1)} for i, place in enumerate(PLACES)}
    return {
        "wrong": means(wrong.transpose(0, 1)),
        "within": {
            "limits": list(LIMITS),
            "first": [mean(wrong[:, 0] <= limit * pixels) for limit in LIMITS],
            "last": [mean(wrong[:, -1] <= limit * pixels) for limit in LIMITS],
        },
        "right": mean(each("right")),
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


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """How far recall moves from stored images, and how near others come, step by step; a panel for each model."""
    figure = Figure(figsize=(4.6 * len(models), 3), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        for number, (kind, name) in enumerate({"stored": "stored images", "others": "other images"}.items()):
            wrong = model["result"]["cues"][kind]["wrong"]
            curve(axes, range(1, len(wrong["mean"]) + 1), wrong, f"from {name}", look(number), markevery=[0, -1])
        axes.set(xscale="log", xlabel="step of recall", title=model["name"])
        axes.set_ylabel(f"{unit(model['result'])} to the right,\nor else the nearest, stored image")
        axes.xaxis.set_major_formatter(lambda step, _: f"{step:g}")
        axes.set_ylim(bottom=0)
        axes.legend()
    return {"": figure}
