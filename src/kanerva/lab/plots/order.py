"""Order: before and after training, and what refinement and blocks change."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import COLOURS, columns, curve

KINDS = {"score": "score", "readout": "read-outs", "memory": "memory R"}
LOOKS: dict[str, dict[str, Any]] = {
    "untrained": {"color": "0.7"},
    "trained": {"color": COLOURS[0]},
}


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    return {"": training(results["models"]), "refinement": refinement(results["models"])}


def training(models: list[dict[str, Any]]) -> Figure:
    """Before and after training: spreads as shares, and how stale the weights are."""
    figure = Figure(figsize=(8, 2.7 * len(models) + 0.3), layout="constrained")
    grid = figure.subplots(len(models), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), model in zip(grid, models, strict=True):
        result = model["result"]
        for offset, (name, look) in zip((-0.2, 0.2), LOOKS.items(), strict=True):
            numbers = result[name]["write"]
            heights = [100 * numbers[kind]["share"] for kind in KINDS]
            label = f"{name} ({numbers['nats']['mean']:.1f} nats per image)"
            bars(left, np.arange(len(KINDS)) + offset, heights, None, label, look)
            both = [result[name][way]["stale"] for way in ("write", "conditioned")]
            errors = [value["stderr"] for value in both]
            bars(right, np.arange(2) + offset, [value["mean"] for value in both], errors, name, look)
        left.set_xticks(range(len(KINDS)), KINDS.values())
        left.set_ylabel("spread over orders, % of\nthat of images or episodes")
        left.set_title(f"{model['name']}: {result['length']} images in {result['orders']} orders")
        right.set_xticks(range(2), ["as written", "then conditioned\nat once"])
        right.set_ylabel("nats per image")
        right.set_title("KL of the weights written with,\nabove its least in the final memory")
        left.legend()
    return figure


def bars(axes: Axes, x: Any, heights: list[float], errors: Any, name: str, look: dict[str, Any]) -> None:
    drawn = axes.bar(x, heights, 0.36, yerr=errors, label=name, error_kw={"linewidth": 0.8}, **look)
    axes.bar_label(drawn, [f"{height:.3g}" for height in heights], fontsize=7, padding=1)
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    axes.margins(y=0.12)


def refinement(models: list[dict[str, Any]]) -> Figure:
    """Score, bound and spread over orders against iterations, a line for each size of block."""
    figure = Figure(figsize=(10, 2.8 * len(models) + 0.2), layout="constrained")
    for row, model in zip(figure.subplots(len(models), 3, squeeze=False), models, strict=True):
        result = model["result"]
        base, again = result["trained"]["write"], result["trained"]["conditioned"]
        for number, block in enumerate(dict.fromkeys(entry["block"] for entry in result["grid"])):
            entries = [entry for entry in result["grid"] if entry["block"] == block]
            label = "one by one" if block == 1 else f"{block} at once"
            for axes, values in zip(row, zip(*map(shown, entries), strict=True), strict=True):
                curve(axes, [entry["iterations"] for entry in entries], columns(values), label, number)
        for axes, value in zip(row, shown(again), strict=True):
            label = "one by one, then\nconditioned at once"
            axes.axhline(value["mean"], color="0.4", linestyle="--", linewidth=1, label=label)
            axes.set_xticks([entry["iterations"] for entry in entries])
            axes.set_xlabel("iterations for each image or block")
            axes.set_ylabel("nats per image")
        row[0].set_title(f"{model['name']}: score, change from {base['nats']['mean']:.1f}")
        whole = base["nats"]["mean"] + base["kl_memory"]["mean"]
        row[1].set_title(f"score with KL(M), change from {whole:.1f}")
        row[2].set_title(f"deviation of the score over {result['orders']} orders")
        row[2].set_ylim(bottom=0)
        row[0].legend()
    return figure


def shown(entry: dict[str, Any]) -> tuple[dict[str, float], ...]:
    return entry["change"]["nats"], entry["change"]["bound"], entry["score"]["spread"]
