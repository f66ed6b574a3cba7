"""Figures from results, and from nothing else: a file of results can be drawn again at any time.

One file per experiment, each with `figures(results)`, which gives Matplotlib figures by the ends of their names.
"""

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...files import atomic_write
from ..base import unpack

# Okabe and Ito's colours, which colour-blind people can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
METHODS = {"least-squares": 0, "descent": 1, "descent, told": 2, "stochastic": 3}
"""The colour of each way to recall, the same in all figures."""

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "kanerva",  # the same figure is the same file
}


@contextmanager
def style() -> Iterator[None]:
    with matplotlib.rc_context(STYLE):
        yield


def draw(results: dict[str, Any], path: Path) -> list[Path]:
    """Draw the figures of a file of results beside it, each as PNG and as SVG."""
    module = importlib.import_module(f"{__name__}.{results['experiment'].replace('-', '_')}")
    written = []
    with style():
        for end, figure in module.figures(results).items():
            stem = f"{path.stem}-{end}" if end else path.stem
            for kind in ("png", "svg"):
                file = path.with_name(f"{stem}.{kind}")
                write(figure, file, kind)
                written.append(file)
    return written


def write(figure: Figure, path: Path, kind: str) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
    with atomic_write(path) as file:
        file.write(buffer.getvalue())


def curve(axes: Axes, x: Any, values: dict[str, Any], label: str, number: int, **options: Any) -> None:
    """A line with a band of one standard error on either side."""
    y, spread = np.asarray(values["mean"]), np.asarray(values["stderr"])
    colour = COLOURS[number % len(COLOURS)]
    axes.plot(x, y, label=label, color=colour, marker=MARKERS[number % len(MARKERS)], **options)
    axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.2, linewidth=0)


def sheet(axes: Axes, packed: dict[str, Any]) -> None:
    """Images of shape (rows, columns, channels, height, width) as one picture, ink black on white."""
    pixels = unpack(packed)
    rows, columns, channels, height, width = pixels.shape
    framed = np.full(
        (rows, columns, channels, height + 2, width + 2), 0.25 if packed["binary"] else 1.0, np.float32
    )
    framed[..., 1:-1, 1:-1] = pixels
    whole = framed.transpose(0, 3, 1, 4, 2).reshape(rows * (height + 2), columns * (width + 2), channels)
    picture = 1 - whole[..., 0] if packed["binary"] else whole if channels == 3 else whole[..., 0]
    axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
