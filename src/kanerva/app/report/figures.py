"""Pictures inside the page: the training curve, figures of experiments, and images in a row."""

import base64
import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from ...lab import drawing, pictures
from ...lab.tables import is_number

SHARE = 50
"""A smoothed point of a curve is the mean over one part in so many of the run."""


def embed(data: bytes, kind: str) -> str:
    """A file as an address that holds all of it."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def vector(figure: Figure) -> str:
    return embed(drawing.picture(figure, "svg"), "image/svg+xml")


def curve(metrics: list[dict[str, Any]]) -> str:
    """Loss, and score on training and on validation classes, from the lines of metrics.jsonl."""
    tests = [
        {**line["validation"], "step": line.get("step")}
        for line in metrics
        if isinstance(line.get("validation"), dict)
    ]
    unseen = columns(tests, ("step", "nats", "nats_stderr"))
    with drawing.style():
        figure = Figure(figsize=(7.2, 2.9), layout="constrained")
        for axes, name, title in zip(figure.subplots(1, 2), ("loss", "nats"), ("Loss", "Score"), strict=True):
            x, y = columns(metrics, ("step", name))
            smooth(axes, x, y)
            axes.set(title=f"{title}, nats per image", xlabel="steps")
            if len(y) and y.min() > 0:
                axes.set_yscale("log")
        axes.plot(*unseen[:2], color=drawing.COLOURS[1], marker="o", markersize=2.5, label="validation classes")
        low, high = unseen[1] - unseen[2], unseen[1] + unseen[2]
        axes.fill_between(unseen[0], low, high, color=drawing.COLOURS[1], alpha=0.25, linewidth=0)
        axes.legend()
        return vector(figure)


def columns(lines: list[dict[str, Any]], names: tuple[str, ...]) -> Any:
    """The columns of the lines that have all these numbers; a value that was not finite is in none of them."""
    rows = [[line[name] for name in names] for line in lines if all(is_number(line.get(name)) for name in names)]
    return np.array(rows, float).reshape(-1, len(names)).T


def smooth(axes: Axes, x: Any, y: Any) -> None:
    """Values as they came, faint, and the mean of each whole window."""
    width = max(1, len(x) // SHARE)
    axes.plot(x, y, color=drawing.COLOURS[0], alpha=0.3 if width > 1 else 1, linewidth=0.7)
    if len(x):
        middle = x[width // 2 :][: len(x) - width + 1]
        mean = np.convolve(y, np.ones(width) / width, "valid")
        axes.plot(middle, mean, color=drawing.COLOURS[0], label="training", marker="." if len(x) == 1 else "")


def strips(shown: dict[str, Any], most: int = 8) -> dict[str, Any]:
    """Pictures that denoising keeps, by way and step; its rows are named METHOD, or METHOD, step N."""
    pixels, binary = pictures.unpack(shown["images"])[:, :most], shown["images"]["binary"]
    ways: dict[str, dict[int, str]] = {}
    for name, row in zip(shown["rows"], pixels, strict=True):
        way, _, step = name.partition(", step ")
        levels = np.round(255 * pictures.sheet(row[None], binary)).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(levels.squeeze()).save(buffer, "png", optimize=True)
        ways.setdefault(way, {})[int(step or 0)] = embed(buffer.getvalue(), "image/png")
    # 76 pixels of the page for each image; ink, black on white, may be turned round
    return {"ways": ways, "width": 76 * pixels.shape[1], "kind": "ink" if binary else ""}
