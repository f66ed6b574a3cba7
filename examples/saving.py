"""What the examples share: two flags, a table on the screen, numbers and a figure on disk."""

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def arguments(about: str | None, given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds: to see that it runs")
    parser.add_argument("--out", type=Path, help="a folder for the numbers (JSON) and the figure (PNG)")
    return parser.parse_args(given)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: the first column to the left, numbers to the right."""
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}\n")
    for row in cells:
        first, *rest = zip(row, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard error over seeds."""
    return {"mean": float(np.mean(values)), "stderr": float(np.std(values, ddof=1) / len(values) ** 0.5)}


def curves(ax: Axes, x: Sequence[int], lines: dict[str, list[float]], **labels: Any) -> None:
    """Draw one line a name over a few x, on a logarithmic axis. A name without points uses up its colour."""
    for (name, y), marker in zip(lines.items(), "xosD^v", strict=False):
        ax.plot(x[: len(y)], y, marker=marker, label=name)
    ax.set(xscale="log", ylim=0, **labels)
    ax.set_xticks(x, [str(at) for at in x])
    ax.minorticks_off()


def save(out: Path | None, name: str, settings: dict[str, Any], results: object, figure: Figure) -> None:
    """Write NAME.json and NAME.png, with all that the numbers depend on."""
    if out is None:
        return
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    machine = {"machine": platform.machine(), "threads": torch.get_num_threads()}
    everything = {"settings": settings, "versions": versions, "machine": machine, "results": results}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(everything, indent=1) + "\n")
    figure.savefig(out / f"{name}.png", dpi=120)
    print(f"\nwritten: {out / name}.json and .png")
