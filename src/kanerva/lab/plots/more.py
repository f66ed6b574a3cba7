"""More of a class: what was written, and what was drawn."""

from typing import Any

from matplotlib.figure import Figure

from . import each, sheet


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """Pictures for each model."""
    return each(results, {"pictures": pictures})


def pictures(result: dict[str, Any]) -> Figure:
    """A class a row; written images, and beside them those that were drawn in each way."""
    shown = result["pictures"]
    rows, columns = next(iter(shown.values()))["shape"][:2]
    figure = Figure(figsize=(0.24 * (columns + 1) * len(shown), 0.24 * rows + 0.6), layout="constrained")
    for axes, (name, packed) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        sheet(axes, packed)
        found = result["sets"].get(name)
        axes.set_title(f"{name}\n{100 * found['right']['mean']:.0f} % of the class" if found else f"{name}\n")
    return figure
