"""Basins of attraction: from how far away recall still finds a stored image, and a look at the energy around three.

The energy that is drawn is E(w) = min over x of E(x, w), the energy at the mode, on the plane through the addresses
of three stored images [fig. capacity]. It is a slice: w has K dimensions and paths leave the plane, so how far they
do is said with them. For a Gaussian likelihood of one scale the mode has the same density everywhere, and what is
left of E(w) is ½ ‖w‖² and a constant: its circles are no error.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from ..models import DKM, Model
from ..support.say import bar
from .drawing import COLOURS, curve, each, legend, looks
from .measures import NEAR, Damage, Outcome, Task, judge, means, noisy, recall, recalls, task
from .pictures import pack, unpack
from .plane import MARGIN, landscape, through
from .runner import Subject
from .tables import Share, Table, point, show

SMOKE = {"episodes": 2, "length": 5, "levels": (0.0, 0.2), "loads": (6,), "queries": 2, "steps": 3, "grid": 9}
SHARES = ("right", "near", "other", "blank")
"""The parts of an `Outcome` that are shares of cues."""


def run(
    who: Subject,
    seed: int = 0,
    *,
    episodes: int = 4,
    length: int = 32,
    levels: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45),
    loads: tuple[int, ...] = (8, 16, 32, 48, 64, 96),
    level: float = 0.15,
    queries: int = 32,
    steps: int = 15,
    grid: int = 61,
) -> dict[str, Any]:
    """Measure basins of attraction against noise and load, and draw the energy around three stored images.

    If a stored image is an attractor, recall that starts near it ends at it. Recall starts from more and more
    noise, and with more and more images in memory, and one counts where it ends.

    episodes: Memories for each point of a curve; the spread is over them.
    length: Images in each memory, where noise varies.
    levels: Shares of bits to flip, or standard deviations of noise for images that are not binary.
    loads: Images in each memory, where their number varies.
    level: The noise, where their number varies, and of the paths in the slice.
    queries: Images to recall from each memory, evenly spaced in the order of writing.
    steps: Steps of recall.
    grid: Points of the slice in each direction.
    """
    model, binary = who.model, who.unseen.binary
    methods, kinds, same = (
        recalls(model, chains=False),
        [noisy(binary, one) for one in levels],
        noisy(binary, level),
    )
    given = task(who.unseen, kinds, episodes, length, seed, queries).to(model.device)
    with bar(f"basins: {who.name}", len(levels) + len(loads)) as advance:
        noise, loaded = [], []
        for kind, cue in zip(kinds, given.cues, strict=True):
            noise.append(ends(model, given._replace(cues=[cue]), kind, methods, steps, seed))
            advance(1)
        for load in loads:
            other = task(who.unseen, [same], episodes, load, seed, queries).to(model.device)
            loaded.append(ends(model, other, same, methods, steps, seed))
            advance(1)
    result = {
        "binary": binary,
        "pixels": given.x[0, 0].numel(),
        "near": NEAR,
        "level": level,
        "noise": {"x": list(levels), **curves(noise)},
        "loads": {"x": list(loads), **curves(loaded)},
        "radius": {m: radius(levels, [float(made[m].right.mean()) for made in noise]) for m in methods},
    }
    if isinstance(model, DKM) and length >= 3:
        damaged = same.corrupt(given.x[0, :3].cpu(), torch.Generator().manual_seed(seed)).x.to(model.device)
        result["slice"] = energy_slice(model, given.x[0], damaged, steps, grid)
    return result


def ends(model: Model, given: Task, kind: Damage, methods: list[str], steps: int, seed: int) -> dict[str, Outcome]:
    """Where each way to recall ends."""
    state, (cue,) = model.write(given.x), given.cues
    paths = {method: recall(model, state, cue, kind, method, steps, seed) for method in methods}
    return {method: judge(path.last, given.x, given.asked) for method, path in paths.items()}


def curves(points: list[dict[str, Outcome]]) -> dict[str, Any]:
    """For each method, the mean of every measure at every point."""
    return {
        method: {
            key: means(torch.stack([getattr(point[method], key).mean(-1) for point in points])) for key in SHARES
        }
        for method in points[0]
    }


def radius(levels: Sequence[float], right: Sequence[float]) -> float | None:
    """The level at which recovery falls below one half, between the points measured; None where it does not."""
    for (a, here), (b, there) in pairwise(zip(levels, right, strict=True)):
        if here >= 0.5 > there:
            return a + (b - a) * (here - 0.5) / (here - there)
    return None


def table(result: dict[str, Any]) -> Table:
    """Where recall ends, from little, some and much noise, and with few, some and many images."""
    rows: list[list[Any]] = []
    for label, found in (("noise", result["noise"]), ("images", result["loads"])):
        for method in (name for name in found if name != "x"):
            for i in sorted({0, len(found["x"]) // 2, len(found["x"]) - 1}):
                shares = [Share(point(found[method][name], i)) for name in SHARES]
                rows.append([f"{method}, {label} {found['x'][i]:g}", *shares])
    for method, level in result["radius"].items():
        half = "none tried" if level is None else level
        rows.append([f"{method}, noise with which half go wrong", half, None, None, None])
    within = f"within {show(100 * result['near'])} % of"
    return Table(["", "nearest to the right image", f"{within} it", f"{within} another", "blank"], rows)


# The energy around three images


def energy_slice(
    model: DKM, x: Float[Tensor, "T c h w"], cue: Float[Tensor, "3 c h w"], steps: int, grid: int
) -> dict[str, Any]:
    """The energy on the plane through the addresses of three stored images, and paths of recall near it."""
    state = model.write(x)
    at = model.retriever(state)
    w = at.find(x[:3])
    plane = through(w)
    corners = plane.place(w)
    low, high = corners.amin(0), corners.amax(0)
    size = (0.5 + MARGIN) * (high - low).amax().clamp(min=0.01)
    along = torch.linspace(-1, 1, grid, dtype=w.dtype, device=w.device)[:, None]
    across, up = ((low + high) / 2 + along * size).unbind(-1)
    points = torch.stack(torch.meshgrid(across, up, indexing="xy"), dim=-1)
    energy = landscape(model, state, plane.at(points))

    def paths(method: str) -> list[dict[str, Any]]:
        w = model.recall(state, cue, steps, method).w
        assert w is not None
        return [
            {"places": plane.place(path).tolist(), "outside": plane.outside(path).tolist()}
            for path in torch.cat([at.find(cue)[None], w]).unbind(1)
        ]

    return {
        "across": across.tolist(),
        "up": up.tolist(),
        "energy": [[round(e, 3) for e in row] for row in energy.tolist()],
        "stored": {"places": corners.tolist()},
        "images": pack(x[None, :3]),
        "sides": torch.pdist(w).tolist(),
        "paths": {method: paths(method) for method in recalls(model, chains=False)},
    }


# Figures


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """Recovery, and the slice where there is one, for each model."""
    return each(models, recovery=recovery, energy=contours)


def recovery(result: dict[str, Any]) -> Figure:
    """The shares of cues that end nearest to the right image, and at it, against noise and load."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    unit = "share of bits flipped" if result["binary"] else "standard deviation of noise"
    labels = {unit: "noise", f"images in memory; {noise(result)}": "loads"}
    reached = f"within {100 * result['near']:g} % of {'pixels' if result['binary'] else 'the range'} of it"
    for axes, (label, name) in zip(figure.subplots(1, 2, sharey=True), labels.items(), strict=True):
        part = result[name]
        for method, look in looks(name for name in part if name != "x").items():
            curve(axes, part["x"], part[method]["right"], f"{method}: nearest to the right image", look)
            curve(axes, part["x"], part[method]["near"], f"{method}: {reached}", look, ls="--")
        axes.set(xlabel=label, ylim=(0, 1.03))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    figure.axes[0].set_ylabel("share of cues")
    legend(figure, columns=2)
    return figure


def noise(result: dict[str, Any]) -> str:
    return f"{100 * result['level']:g} % flips" if result["binary"] else f"noise {result['level']:g}"


def contours(result: dict[str, Any]) -> Figure | None:
    """Contours of E(w) on the plane through three addresses, and paths of recall as they are seen from above.

    None for a model that has no such plane.
    """
    if "slice" not in result:
        return None
    part, colours = result["slice"], looks(result["slice"]["paths"])
    figure = Figure(figsize=(9, 4), layout="constrained")
    both = figure.subplots(1, len(part["paths"]), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (method, paths) in zip(both, part["paths"].items(), strict=True):
        filled = axes.contourf(part["across"], part["up"], part["energy"], levels=24, cmap="Greys", alpha=0.6)
        axes.contour(part["across"], part["up"], part["energy"], levels=24, colors="0.4", linewidths=0.3)
        stored(axes, np.array(part["stored"]["places"]), part["images"])
        for path in paths:
            x, y = np.array(path["places"]).T
            axes.plot(x, y, ".-", color=colours[method][0], lw=1.2)
            axes.plot(x[0], y[0], "o", color=colours[method][0], mfc="white", ms=5, label="cue")
            axes.plot(x[-1], y[-1], "o", color=colours[method][0], ms=5, label="end of recall")
        ends = ", ".join(f"{path['outside'][-1]:.1f}" for path in paths)
        axes.set_title(f"{method}, from {noise(result)}\npaths end {ends} from the plane")
        axes.set_xlabel(f"along the plane; stored images lie {np.mean(part['sides']):.1f} apart")
        axes.set_aspect("equal")
        axes.grid(visible=False)
    figure.colorbar(filled, ax=both, label="energy at the mode, nats", shrink=0.8)
    legend(figure, columns=4)
    return figure


def stored(axes: Axes, places: Any, packed: dict[str, Any]) -> None:
    """The addresses of stored images, each with its image beside it, away from the others."""
    axes.plot(*places.T, "*", color=COLOURS[4], mec="black", mew=0.5, ms=13, label="stored images")
    for place, image in zip(places, unpack(packed)[0], strict=True):
        picture = 1 - image[0] if packed["binary"] else image.transpose(1, 2, 0).squeeze()
        way = place - places.mean(0)
        inset = OffsetImage(picture, zoom=28 / picture.shape[0], cmap="gray", interpolation="nearest")
        inset.image.set_clim(0, 1)
        beside = 28 * way / (np.linalg.norm(way) + 1e-9)
        axes.add_artist(AnnotationBbox(inset, place, xybox=beside, boxcoords="offset points", pad=0.1))
