"""Basins: recovery against noise and load, and the energy around three stored images."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from matplotlib.ticker import PercentFormatter

from ..runner import unpack
from . import COLOURS, curve, each, legend, look, numbers


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """Recovery, and the slice where there is one, for each model."""
    return each(results, {"recovery": recovery, "energy": energy})


def recovery(result: dict[str, Any]) -> Figure:
    """The shares of cues that end nearest to the right image, at it, and at nothing, against noise and load."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, part in ((left, result["noise"]), (right, result["loads"])):
        for method, number in numbers(name for name in part if name != "x").items():
            shares(axes, part, method, number, result)
    left.set_xlabel("share of bits flipped" if result["binary"] else "standard deviation of noise")
    right.set_xlabel(f"images in memory; {noise(result)}")
    right.set_xticks(result["loads"]["x"])
    left.set_ylim(0, 1.03)
    left.set_title("share of cues, by noise")
    right.set_title("share of cues, by load")
    left.yaxis.set_major_formatter(PercentFormatter(1))
    if result["binary"]:
        left.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    legend(figure, columns=2)
    return figure


def noise(result: dict[str, Any]) -> str:
    return f"{100 * result['level']:g} % flips" if result["binary"] else f"noise {result['level']:g}"


def shares(axes: Axes, part: dict[str, Any], method: str, number: int, result: dict[str, Any]) -> None:
    """Three lines for a method."""
    reached = f"within {100 * result['near']:g} % of {'pixels' if result['binary'] else 'the range'} of"
    texts = {"right": "nearest to the right image", "near": f"and {reached} it", "blank": "blank"}
    for (key, text), line in zip(texts.items(), ("-", "--", ":"), strict=True):
        curve(axes, part["x"], part[method][key], f"{method}: {text}", number, ls=line)


def energy(result: dict[str, Any]) -> Figure | None:
    """Contours of E(w) on the plane through three addresses, and paths of recall as they are seen from above.

    None for a model that has no such plane.
    """
    if "slice" not in result:
        return None
    part, colours = result["slice"], numbers(result["slice"]["paths"])
    figure = Figure(figsize=(9, 4), layout="constrained")
    both = figure.subplots(1, 2, sharex=True, sharey=True)
    middle = np.mean(part["stored"]["places"], 0)
    for axes, (method, paths) in zip(both, part["paths"].items(), strict=True):
        filled = axes.contourf(part["across"], part["up"], part["energy"], levels=24, cmap="Greys", alpha=0.6)
        axes.contour(part["across"], part["up"], part["energy"], levels=24, colors="0.4", linewidths=0.3)
        landmarks(axes, part["lowest"], middle, "x", "lowest point of the slice")
        landmarks(axes, part["stored"], middle, "*", "stored images")
        for path in paths:
            arrows(axes, path["places"], look(colours[method])[0], part["across"][-1] - part["across"][0])
        ends = ", ".join(f"{path['outside'][-1]:.1f}" for path in paths)
        axes.set_title(f"{method}, from {noise(result)}\npaths end {ends} from the plane")
        axes.set_xlabel(f"along the plane; stored images lie {np.mean(part['sides']):.1f} apart")
        axes.set_aspect("equal")
        axes.grid(visible=False)
    figure.colorbar(filled, ax=both, label="energy at the mode, nats", shrink=0.8)
    legend(figure, columns=4)
    return figure


def arrows(axes: Axes, places: list[list[float]], colour: str, size: float) -> None:
    """A path from its cue to its end, with an arrow on every step that is long enough to carry one."""
    x, y = np.array(places).T
    axes.plot(x, y, color=colour, lw=1.2)
    style = {"arrowstyle": "-|>", "color": colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
    for i in range(len(x) - 1):
        if np.hypot(x[i + 1] - x[i], y[i + 1] - y[i]) > 0.03 * size:
            axes.annotate("", (x[i + 1], y[i + 1]), (x[i], y[i]), arrowprops=style)
    axes.plot(x[0], y[0], "o", color=colour, mfc="white", ms=5, label="cue")
    axes.plot(x[-1], y[-1], "o", color=colour, ms=5, label="end of recall")


def landmarks(axes: Axes, points: dict[str, Any], middle: Any, marker: str, label: str) -> None:
    """Points of the plane, each with the image that the memory decodes there."""
    packed = points["decoded"]
    low, high = np.array([axes.get_xlim(), axes.get_ylim()]).T
    for place, image in zip(np.array(points["places"]), unpack(packed)[0], strict=True):
        style = {"mew": 0.5, "ms": 13} if marker == "*" else {"mew": 2, "ms": 7, "zorder": 5}  # above images
        axes.plot(*place, marker, color=COLOURS[4], mec="black", label=label, **style)
        picture = 1 - image[0] if packed["binary"] else image.transpose(1, 2, 0).squeeze()
        way = (place - middle) / (np.linalg.norm(place - middle) + 1e-9)
        end = place + 0.15 * way * (high - low)
        way = np.where((low < end) & (end < high), way, -way)  # away from the others, but not over the edge
        inset = OffsetImage(picture, zoom=28 / picture.shape[0], cmap="gray", interpolation="nearest")
        inset.image.set_clim(0, 1)
        axes.add_artist(AnnotationBbox(inset, place, xybox=28 * way, boxcoords="offset points", pad=0.1))
