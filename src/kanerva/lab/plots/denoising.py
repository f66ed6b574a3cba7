"""Denoising: pictures, measures step by step, and the grid of damages."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..runner import unpack
from . import columns, curve, each, legend, look, numbers, rising, sheet, singles, unit

NEAREST = "stored image nearest to the cue (keeps all images)"
"""The yardstick: what a memory that keeps every image could do."""


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """Pictures, steps and the grid, for each model."""
    return each(results, {"pictures": pictures, "steps": steps, "grid": grid})


def pictures(result: dict[str, Any]) -> Figure:
    """Originals, cues and steps of recall, a row each; steps that change nothing are left out."""
    names, images = result["pictures"]["rows"], result["pictures"]["images"]
    pixels = unpack(images)
    kept = [i for i in range(len(names)) if i == 0 or not np.array_equal(pixels[i], pixels[i - 1])]
    figure = Figure(figsize=(1.4 + 0.4 * pixels.shape[1], 0.4 * len(kept) + 0.3), layout="constrained")
    axes = figure.subplots()
    sheet(axes, images, kept)
    label_rows(axes, [names[i] for i in kept])
    axes.set_title(f"Recall from {result['headline']}")
    return figure


def label_rows(axes: Axes, names: list[str]) -> None:
    """Put a name to the left of each row of a sheet."""
    height = np.diff(axes.get_ylim()).item() / -len(names)
    for row, name in enumerate(names):
        axes.text(-2, (row + 0.5) * height, name, ha="right", va="center", fontsize=8)


def methods(result: dict[str, Any]) -> dict[str, int]:
    """The ways to recall that were tried, with the numbers of their colours."""
    return numbers(method for cell in result["cells"] for method in cell["methods"])


def steps(result: dict[str, Any]) -> Figure:
    """Wrong pixels, energy (where there is one) and the share that is right, at every step of recall."""
    colours = methods(result)
    keys = ("wrong", "energy", "right") if result["paths"] else ("wrong", "right")
    figure = Figure(figsize=(10 * len(keys) / 3, 3.6), layout="constrained")
    panels = dict(zip(keys, figure.subplots(1, len(keys)), strict=True))
    for key, axes in panels.items():
        for method, values in result["steps"].items():
            if key in values:
                curve(axes, 1 + np.arange(len(values[key]["mean"])), values[key], method, colours[method])
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "energy" in panels:
        singles(panels["energy"], result["paths"], colours)
        panels["energy"].set_title("energy (thin: single cues)")
        if "energy" in result["stored"]:
            level = result["stored"]["energy"]["mean"]
            panels["energy"].axhline(level, color="0.5", ls="-.", label="stored images themselves")
    wrong, right = panels["wrong"], panels["right"]
    yardsticks(wrong, right, result)
    wrong.set_title(f"{unit(result)}, from {result['headline']}")
    right.set_title("nearest to the right stored image")
    right.yaxis.set_major_formatter(PercentFormatter(1))
    wrong.set_ylim(bottom=0)
    right.set_ylim(0, 1.05)
    legend(figure, rising(result))
    return figure


def yardsticks(wrong: Axes, right: Axes, result: dict[str, Any]) -> None:
    """Lines for the cue itself, and for the nearest of the stored images."""
    cell = next(cell for cell in result["cells"] if cell["name"] == result["headline"])
    wrong.axhline(cell["cue"]["wrong"]["mean"], color="0.5", ls=(0, (1, 3)), label="cue")
    right.axhline(cell["nearest"]["right"]["mean"], color="0.4", ls="--", label=NEAREST)
    right.axhline(result["chance"], color="0.5", ls=":", label="chance")


def grid(result: dict[str, Any]) -> Figure:
    """The last step against the level of noise, and for every other kind of damage."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 2, height_ratios=(1.1, 1))
    lower[1].sharey(lower[0])
    colours = methods(result)
    levels = [cell for cell in result["cells"] if cell["kind"] != "other"]
    others = [cell for cell in result["cells"] if cell["kind"] == "other"][::-1]
    for above, below, key in zip(upper, lower, ("wrong", "right"), strict=True):
        against_level(above, levels, key, colours)
        by_damage(below, others, key, colours)
        above.set_xlabel("bits flipped, %" if result["binary"] else "standard deviation of noise")
        if result["binary"]:
            above.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
            above.set_xticks([cell["level"] for cell in levels])
        title = f"{unit(result)}, last step" if key == "wrong" else "nearest to the right stored image, last step"
        above.set_title(title)
        below.set_title(title)
    upper[1].yaxis.set_major_formatter(PercentFormatter(1))
    lower[1].xaxis.set_major_formatter(PercentFormatter(1))
    lower[1].tick_params(labelleft=False)
    legend(figure)
    return figure


def against_level(axes: Axes, cells: list[dict[str, Any]], key: str, colours: dict[str, int]) -> None:
    """A curve for each method over the levels it was tried at, and one for the nearest stored image."""
    for method, number in colours.items():
        tried = [cell for cell in cells if method in cell["methods"]]
        values = columns([cell["methods"][method][key] for cell in tried])
        curve(axes, [cell["level"] for cell in tried], values, method, number)
    nearest = [cell["nearest"][key]["mean"] for cell in cells]
    axes.plot([cell["level"] for cell in cells], nearest, color="0.4", marker="|", ms=10, ls="--", label=NEAREST)
    axes.set_ylim(0, 1.05 if key == "right" else None)


def by_damage(axes: Axes, cells: list[dict[str, Any]], key: str, colours: dict[str, int]) -> None:
    """A point for each method and kind of damage, one below the other."""
    methods = [method for method in colours if any(method in cell["methods"] for cell in cells)]
    for method, offset in zip(methods, np.linspace(0.2, -0.2, len(methods)), strict=True):
        rows = [i for i, cell in enumerate(cells) if method in cell["methods"]]
        values = columns([cells[i]["methods"][method][key] for i in rows])
        colour, marker = look(colours[method])
        axes.errorbar(
            values["mean"], np.add(rows, offset), xerr=values["stderr"], ls="none", color=colour, marker=marker
        )
    nearest = [cell["nearest"][key]["mean"] for cell in cells]
    axes.plot(nearest, range(len(cells)), color="0.4", marker="|", ms=14, ls="none")
    axes.set_yticks(range(len(cells)), [cell["name"] for cell in cells])
    axes.set_ylim(-0.5, len(cells) - 0.5)
    axes.set_xlim(0 if key == "right" else axes.get_xlim()[0], 1.05 if key == "right" else None)
