"""Fixed points: where recall goes from stored images and from others, and whether it is stable there."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..fixed_points import unit
from . import COLOURS, curve, sheet

KINDS = {"stored": "stored images", "others": "other images"}
ENDS = {"fixed": COLOURS[0], "cycle": COLOURS[4], "neither": "0.75"}
PLACES = {"image": "at the image", "recall": "where recall ends", "smooth": "where the smooth map leads"}
ENDS_SHOWN = {"fixed": "fixed point", "cycle": "cycle", "neither": "neither"}


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    models = results["models"]
    return {"": paths(models), "stability": stability(models), "pictures": pictures(models)}


def paths(models: list[dict[str, Any]]) -> Figure:
    """How far recall moves, how many images it moves how far, and how it ends."""
    figure = Figure(figsize=(10.5, 2.9 * len(models)), layout="constrained")
    grid = figure.subplots(len(models), 3, squeeze=False, width_ratios=(4, 4, 3.4))
    for (left, middle, right), model in zip(grid, models, strict=True):
        result = model["result"]
        for number, (kind, name) in enumerate(KINDS.items()):
            wrong = result["cues"][kind]["wrong"]
            curve(left, range(1, len(wrong["mean"]) + 1), wrong, f"from {name}", number, markevery=[0, -1])
        left.set(xscale="log", xlabel="step of recall", ylabel=unit(result))
        left.set_title(f"{model['name']}: distance from the right,\nor else the nearest, stored image")
        left.xaxis.set_major_formatter(lambda step, _: f"{step:g}")
        left.set_ylim(bottom=0)
        left.legend()
        cumulative(middle, result)
        ends(right, result)
    return figure


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
    for end, colour in ENDS.items():
        heights = np.array([100 * result["cues"][kind]["ends"][end]["mean"] for kind in KINDS])
        axes.bar(range(len(KINDS)), heights, 0.6, bottom, color=colour, label=ENDS_SHOWN[end])
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


def stability(models: list[dict[str, Any]]) -> Figure:
    """Spectral radii of the smooth map at three places."""
    figure = Figure(figsize=(9, 2.7 * len(models) + 0.3), layout="constrained")
    grid = figure.subplots(len(models), 2, squeeze=False, sharex=True, sharey="row")
    edges = bins([m["result"]["cues"][kind]["smooth"]["radius"] for m in models for kind in KINDS])
    for row, model in zip(grid, models, strict=True):
        for axes, (kind, name) in zip(row, KINDS.items(), strict=True):
            smooth = model["result"]["cues"][kind]["smooth"]
            for (place, label), colour in zip(PLACES.items(), COLOURS[1:], strict=False):
                radius = smooth["radius"][place]
                text = f"{label}: {100 * radius['stable']['mean']:.0f} % below 1"
                counts, _ = np.histogram(radius["values"], edges)
                axes.stairs(counts, edges, color=colour, fill=True, alpha=0.2)
                axes.stairs(counts, edges, color=colour, linewidth=1.3, label=text)
            axes.axvline(1, ymax=0.68, color="black", linewidth=0.9, linestyle="--")
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            settled = f"the smooth map settles from {100 * smooth['settled']['mean']:.0f} %"
            axes.set_title(f"{model['name']}, {name}: {settled}")
            axes.legend(loc="upper left")
        row[0].set_ylabel("cues")
        row[0].set_ylim(top=1.5 * row[0].get_ylim()[1])  # room for the legends
    for axes in grid[-1]:
        axes.set_xlabel("spectral radius of the recall map (stable below 1)")
    return figure


def bins(radii: list[dict[str, Any]]) -> Any:
    """Edges of bins for all radii, evenly spaced in their logarithm, one of them at 1."""
    values = [value for places in radii for place in places.values() for value in place["values"]]
    low, high = np.floor(10 * np.log10([max(min(values), 1e-3), max(1.1, *values)])) / 10 + (0, 0.1)
    return 10 ** np.arange(low, high + 0.01, 0.05)


def pictures(models: list[dict[str, Any]]) -> Figure:
    """Stored images, after one step, and at the end."""
    figure = Figure(figsize=(8, 1.75 * len(models)), layout="constrained")
    for axes, model in zip(figure.subplots(len(models), 1, squeeze=False)[:, 0], models, strict=True):
        sheet(axes, model["result"]["examples"])
        height = model["result"]["examples"]["shape"][-2] + 2
        for row, label in enumerate(("stored", "after one step", "at the end")):
            axes.text(-4, (row + 0.5) * height, label, ha="right", va="center", fontsize=8)
        axes.set_title(model["name"])
    return figure
