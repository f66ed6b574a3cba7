"""Sampling: pictures, energies step by step, what samples are near to, and how chains mix."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from . import curve, each, legend, look, numbers, rising, sheet, singles, unit

MIXED = 1.1
"""R̂ above which chains have not forgotten where they began."""


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """Pictures, steps, novelty and chains, for each model."""
    return each(results, {"pictures": pictures, "steps": steps, "novelty": novelty, "chains": chains})


def pictures(result: dict[str, Any]) -> Figure:
    """What was written, above; samples below, a row each, improved from column to column."""
    shown = result["pictures"]
    count, columns = len(shown["samples"]), len(shown["steps"])
    rows, stored = next(iter(shown["samples"].values()))["shape"][0], shown["stored"]["shape"][:2]
    wide = count * (columns + 1)
    top = stored[0] * wide / stored[1]
    figure = Figure(figsize=(0.42 * wide, 0.42 * (rows + top) + 0.9), layout="constrained")
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(top + 1, rows + 1.4))[:, 0]
    box, below = parts[0].subplots(), parts[1].subplots(1, count, squeeze=False)[0]
    sheet(box, shown["stored"])
    box.set_title("written into the memory")
    for axes, (method, packed) in zip(below, shown["samples"].items(), strict=True):
        sheet(axes, packed)
        axes.set_title(f"{method}\nsteps {', '.join(map(str, shown['steps']))}")
    return figure


def steps(result: dict[str, Any]) -> Figure:
    """Energy (where there is one), and distance to the nearest stored image, at every step."""
    colours = numbers(result["steps"])
    keys = ("energy", "to stored") if result["paths"] else ("to stored",)
    figure = Figure(figsize=(3.7 * len(keys), 3.5), layout="constrained")
    panels = dict(zip(keys, figure.subplots(1, len(keys), squeeze=False)[0], strict=True))
    for key, axes in panels.items():
        for method, values in result["steps"].items():
            if key in values:
                curve(axes, 1 + np.arange(len(values[key]["mean"])), values[key], method, colours[method])
        axes.set_xlabel("step (1: the draw)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "energy" in panels:
        singles(panels["energy"], result["paths"], colours)
        panels["energy"].set_title("energy (thin: single samples)")
    near = panels["to stored"]
    near.set_title(f"nearest stored image, {unit(result)}")
    near.axhline(result["sets"]["fresh images"]["to stored"]["mean"], color="0.4", ls="--", label="fresh images")
    legend(figure, rising(result), 2)
    return figure


def novelty(result: dict[str, Any]) -> Figure:
    """Distances to the nearest stored and training image, and which stored images samples are near to."""
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    colours = numbers(result["sets"])
    for name, values in result["sets"].items():
        colour, marker = look(colours[name])
        a, b = values["to stored"], values["to training"]
        left.errorbar(a["mean"], b["mean"], b["stderr"], a["stderr"], color=colour, marker=marker, ls="none")
        reached = f"{values['reached']['mean']:.3g} reached, e^entropy {np.exp(values['entropy']['mean']):.3g}"
        label = f"{name}: {values['distinct']['mean']:.3g} distinct, {reached}"
        ranks = 1 + np.arange(len(values["shares"]["mean"]))
        curve(right, ranks, values["shares"], label, colours[name])
    bounds = [left.get_xlim(), left.get_ylim()]
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    left.plot([low, high], [low, high], color="0.7", lw=0.8, zorder=0)
    left.set_xlabel("nearest stored image")
    left.set_ylabel("nearest training image")
    left.set_title(f"distance, {unit(result)}")
    right.axhline(
        1 / result["length"], color="0.5", ls=":", label=f"all alike (by chance {result['by chance']:.3g} reached)"
    )
    right.set_xlabel("stored images, most frequent first")
    right.set_title("share of samples nearest to each")
    right.yaxis.set_major_formatter(PercentFormatter(1))
    right.legend(fontsize=7)
    return figure


def chains(result: dict[str, Any]) -> Figure | None:
    """Autocorrelation along Markov chains, by temperature; None where the model has no chain."""
    if not result["chains"]:
        return None
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    for number, chain in enumerate(result["chains"]):
        lags = chain["autocorrelation"]
        axes.plot(range(len(lags)), lags, color=look(number)[0], label=text(chain))
    axes.axhline(0, color="0.5", lw=0.8)
    axes.set_xlabel("steps apart")
    judged = "energy" if "energy" in chain else "distance to the nearest stored image"
    axes.set_title(f"autocorrelation of a chain's {judged}")
    axes.legend(fontsize=7)
    return figure


def text(chain: dict[str, Any]) -> str:
    """How long a chain is to be, at the least where chains have not mixed, and how many stored images it visits."""
    r_hat, time = chain["r_hat"]["mean"], chain["time"]["mean"]
    steps = f"{'over ' if r_hat > MIXED else ''}{time:.0f} steps to forget"
    visited = f"{chain['visited']['mean']:.0f} images visited"
    return f"temperature {chain['temperature']:g}: {steps}, R̂ {r_hat:.2f}, {visited}"
