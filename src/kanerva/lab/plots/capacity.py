"""Capacity: of one model, a colour for each number of classes; of several, a column for each, and a colour each."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..capacity import SCORES, score
from . import curve


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    models = results["models"]
    return {"": one(models[0]["result"]) if len(models) == 1 else several(models)}


def one(result: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(10, 3.1), layout="constrained")
    for axes, name in zip(figure.subplots(1, 3), (score(result), "distance", "right"), strict=True):
        for number, (classes, curves) in enumerate(zip(result["classes"], result["curves"], strict=True)):
            curve(axes, result["lengths"], curves[name], f"{classes} classes", number)
        dress(axes, [result], name)
        axes.set_xlabel("episode length T")
        axes.set_ylabel(label(name, result))
    axes.legend(title="unseen", loc="lower left", bbox_to_anchor=(0.18, 0))
    rows = f"a memory of {result['rows']} rows (dotted: as many images as rows)" if result["rows"] else "memory"
    figure.suptitle(f"Retrieval from {rows}", fontsize=10)
    return figure


def several(models: list[dict[str, Any]]) -> Figure:
    first = models[0]["result"]
    columns, names = first["classes"], (score(first), "distance")
    figure = Figure(figsize=(3.3 * len(columns), 5.2), layout="constrained")
    grid = figure.subplots(2, len(columns), sharey="row", sharex=True, squeeze=False)
    for row, name in zip(grid, names, strict=True):
        for number, model in enumerate(models):
            result = model["result"]
            for axes, curves in zip(row, result["curves"], strict=True):
                curve(axes, result["lengths"], curves[name], model["name"], number)
        for axes in row:
            dress(axes, [model["result"] for model in models], name)
        row[0].set_ylabel(label(name, first))
    for axes, classes in zip(grid[0], columns, strict=True):
        axes.set_title(f"{classes} unseen classes")
    for axes in grid[1]:
        axes.set_xlabel("episode length T")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
    return figure


def label(name: str, result: dict[str, Any]) -> str:
    return {
        **{key: f"retrieval error ({unit})" for key, unit in SCORES.items()},
        "distance": f"{result['unit']} of one read-out",
        "right": "nearest to the right image (%)",
    }[name]


def dress(axes: Axes, results: list[dict[str, Any]], name: str) -> None:
    """Begin at zero, or where shares can be told apart, and mark where there are as many images as rows, if any."""
    for rows in {result["rows"] for result in results} - {None}:
        axes.axvline(rows, color="0.5", linewidth=0.9, linestyle=":", zorder=0)
    if name == "right":
        axes.set_ylim(min(0.9, axes.get_ylim()[0]), 1.005)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")
    elif min(np.min(line.get_ydata()) for line in axes.lines) >= 0:  # nats of a density may be negative
        axes.set_ylim(bottom=0)
