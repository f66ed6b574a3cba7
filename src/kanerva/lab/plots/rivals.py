"""Rivals: how much is remembered against the floats that are kept, all models in one figure."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import look


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """The share of right images, and the wrong pixels."""
    return {"": grid(results["models"], "right"), "wrong": grid(results["models"], "wrong")}


def grid(models: list[dict[str, Any]], measure: str) -> Figure:
    """A column for each number of images, a row for each of the two levels of noise."""
    first = models[0]["result"]
    lengths = list(dict.fromkeys(found["length"] for found in first["recall"]))
    damages = list(first["recall"][0]["damage"])[:2]
    figure = Figure(figsize=(1.2 + 2.6 * len(lengths), 5.4), layout="constrained")
    axes = figure.subplots(len(damages), len(lengths), sharex=True, sharey=True, squeeze=False)
    for row, damage in zip(axes, damages, strict=True):
        for place, length in zip(row, lengths, strict=True):
            for number, model in enumerate(models):
                line(
                    place,
                    model,
                    [f for f in model["result"]["recall"] if f["length"] == length],
                    damage,
                    measure,
                    number,
                )
        row[0].set_ylabel(f"from {damage}\n" + label(first, measure))
    for place, length in zip(axes[0], lengths, strict=True):
        place.set_title(f"{length} images")
    for place in axes[-1]:
        place.set_xlabel("floats kept")
        place.set_xscale("symlog", linthresh=1000)  # a model may keep nothing
        place.set_xticks([0, 1000, 10_000], ["0", "1,000", "10,000"])
    most = max(found["kept"] for model in models for found in model["result"]["recall"])
    axes[0][0].set_xlim(-100, 2 * max(1000, most))
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=min(5, len(models)))
    return figure


def line(
    axes: Axes, model: dict[str, Any], found: list[dict[str, Any]], damage: str, measure: str, number: int
) -> None:
    """One model: a line over its budgets, or one point."""
    colour, marker = look(number)
    scale = 100 if measure == "right" else 1
    values = [row["damage"][damage][measure] for row in found]
    y, spread = (scale * np.array([value[key] for value in values], float) for key in ("mean", "stderr"))
    # hollow: two models that keep every image lie on top of each other
    face = "none" if model["result"]["grows"] else colour
    kept = [row["kept"] for row in found]
    axes.errorbar(kept, y, spread, label=model["name"], color=colour, marker=marker, mfc=face, capsize=2)
    axes.set_ylim(bottom=0)


def label(result: dict[str, Any], measure: str) -> str:
    """What is on the vertical axis."""
    if measure == "right":
        return "nearest to the right image (%)"
    return "wrong pixels" if result["binary"] else "root mean square error"
