"""The course of a run: its loss, and its score on training and on test classes."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..tables import is_number
from . import COLOURS

SHARE = 50
"""A smoothed point is the mean over one part in so many of the run."""


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """From `metrics`, the lines of metrics.jsonl."""
    lines = results["metrics"]
    seen, unseen = steps(lines, ("loss", "nats")), tests(lines)
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    both(left, seen["step"], seen["loss"], "training", 0)
    left.set_title("Loss, nats per image")
    both(right, seen["step"], seen["nats"], "training", 0)
    band(right, unseen)
    right.set_title("Score, nats per image; lower is better")
    scale(left, seen["loss"])
    scale(right, np.concatenate([seen["nats"], unseen["nats"]]))
    for axes in (left, right):
        axes.set_xlabel("steps")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.xaxis.get_major_locator().set_params(nbins=5)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        else:
            axes.text(0.5, 0.5, "nothing recorded", ha="center", va="center", transform=axes.transAxes)
    return {"": figure}


def steps(lines: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    """Columns of the lines that have all these numbers; a value that was not finite is in none of them."""
    wanted = ("step", *names)
    rows = [[line[name] for name in wanted] for line in lines if all(is_number(line.get(name)) for name in wanted)]
    return dict(zip(wanted, np.array(rows, float).reshape(-1, len(wanted)).T, strict=True))


def tests(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The same of the evaluations."""
    scores = [(line.get("step"), line.get("validation", line.get("test"))) for line in lines]
    flat = [{**score, "step": step} for step, score in scores if isinstance(score, dict)]
    return steps(flat, ("nats", "nats_stderr"))


def both(axes: Axes, x: Any, y: Any, label: str, colour: int) -> None:
    """Values as they came, faint, and their running mean."""
    if len(x) == 0:
        return
    width = max(1, len(x) // SHARE)
    dot = "." if len(x) == 1 else ""
    axes.plot(x, y, color=COLOURS[colour], alpha=0.3 if width > 1 else 1, linewidth=0.7, marker=dot)
    kernel = np.ones(width) / width
    # only means of a whole window: at the ends a part of one would bend
    axes.plot(
        x[width // 2 :][: len(x) - width + 1], np.convolve(y, kernel, "valid"), color=COLOURS[colour], label=label
    )


def band(axes: Axes, test: dict[str, Any]) -> None:
    """Scores of held-out classes with one standard error on either side."""
    if len(test["step"]):
        y, spread = test["nats"], test["nats_stderr"]
        axes.plot(test["step"], y, color=COLOURS[1], marker="o", markersize=2.5, label="held-out classes")
        axes.fill_between(test["step"], y - spread, y + spread, color=COLOURS[1], alpha=0.25, linewidth=0)


def scale(axes: Axes, values: Any) -> None:
    """Logarithmic where it can be, as a run falls fast at first and slowly then; else without the first heights."""
    if len(values) and values.min() > 0:
        axes.set_yscale("log")
        # a run spans one or two powers of ten, too few to go without names between them
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.4g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif len(values):
        low, high = values.min(), np.quantile(values, 0.95)
        axes.set_ylim(low - 0.05 * (high - low) - 1, high + 0.05 * (high - low) + 1)
