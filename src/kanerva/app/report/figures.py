"""Pictures inside the page: strips of images, and figures cut into panels, which a phone puts one below the other.

Panels are SVG: sharp on any screen, with text and lines in the colour of the page, light or dark.
"""

import base64
import io
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from ...lab import plots
from ...lab.runner import unpack

WIDEST = 2200
"""Pixels of a figure that comes as a file, eleven inches as experiments draw; the page shows fewer."""
SIDE = 76
"""Pixels of the page that an image in a strip is wide, where there is room."""
INK = "svg{color:#1d1f23;fill:currentColor}@media(prefers-color-scheme:dark){svg{color:#e6e7ea}}"


class Picture(NamedTuple):
    """A picture, as an address that holds all of it, and its size on the page."""

    source: str
    width: int
    height: int
    kind: str = ""
    """paper: opaque and white, a figure from a file; ink: black on white, which may be turned round."""


class Frame(NamedTuple):
    """Images in a row, at one step of recall."""

    step: int
    picture: Picture


class Strip(NamedTuple):
    """Images in a row, as they change from step to step."""

    name: str
    frames: list[Frame]


# Figures


def panels(figure: Figure) -> list[Picture]:
    """The panels of a figure, each to be read by itself, and then its legend, in one column."""
    with plots.style():
        for axes in figure.axes:
            stand_alone(axes)
        figure.draw_without_rendering()  # which lays it out
        figure.set_layout_engine(None)  # and so it stays
        for artist in (*figure.legends, *figure.texts):
            artist.set_visible(False)
        made = [drawn(figure, group) for group in groups(figure)]
        return made + [legend(figure, entries) for entries in figure.legends]


def stand_alone(axes: Axes) -> None:
    """Give a panel the labels and the title that it shares with others in its row or column."""
    place = axes.get_subplotspec()
    if place is None or axes.get_label() == "<colorbar>" or not axes.axison:
        return
    both: dict[Literal["x", "y"], Any] = {"x": axes.get_shared_x_axes(), "y": axes.get_shared_y_axes()}
    for which, shared in both.items():
        siblings = [other for other in shared.get_siblings(axes) if other is not axes]
        if siblings:
            axes.tick_params(which, labelleft=True, labelbottom=True)
            texts = [axis_of(other, which).get_label_text() for other in (axes, *siblings)]
            axis_of(axes, which).set_label_text(next(filter(None, texts), ""))
    above = [
        other
        for other in axes.figure.axes
        if (theirs := other.get_subplotspec()) is not None
        and theirs.get_gridspec() is place.get_gridspec()
        and theirs.colspan == place.colspan
    ]
    if not axes.get_title():
        axes.set_title(next(filter(None, (other.get_title() for other in above)), ""))


def axis_of(axes: Axes, which: str) -> Axis:
    return axes.xaxis if which == "x" else axes.yaxis


def groups(figure: Figure) -> list[list[Axes]]:
    """The axes of each panel: one, with a colour bar that follows it."""
    found: list[list[Axes]] = []
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>" and found:
            found[-1].append(axes)
        else:
            found.append([axes])
    return found


def drawn(figure: Figure, group: list[Axes]) -> Picture:
    """A panel alone."""
    for axes in figure.axes:
        axes.set_visible(axes in group)
    boxes = [box for axes in group if (box := axes.get_tightbbox()) is not None]
    return vector(figure, Bbox.union(boxes).transformed(figure.dpi_scale_trans.inverted()).padded(0.04))


def legend(figure: Figure, entries: Any) -> Picture:
    """A legend in one column."""
    known: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    labels = [text.get_text() for text in entries.get_texts()]
    handles = [known.get(label, handle) for label, handle in zip(labels, entries.legend_handles, strict=True)]
    alone = Figure(figsize=(3.4, 0.2 * len(labels)))
    alone.legend(handles, labels, loc="center", ncols=1)
    return vector(alone, "tight")


def vector(figure: Figure, box: Any) -> Picture:
    """A part of a figure as SVG; a point is 4/3 of a pixel on the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches=box, transparent=True, metadata={"Date": None})
    text = slim(buffer.getvalue().decode())
    width, height = (round(float(size) * 4 / 3) for size in re.findall(r'(?:width|height)="([\d.]+)pt"', text)[:2])
    return Picture(f"data:image/svg+xml,{quote(text, safe=SAFE)}", width, height)


SAFE = " !$&'()*+,-./:;=?@_~"
"""What need not be escaped in an address."""


def slim(text: str) -> str:
    """SVG without what no browser needs, to a hundredth of a point, with black as the colour of the page's text."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)
    text = re.sub(r"\s+", " ", text).replace("> <", "><").replace("stroke: #000000", "stroke: currentColor")
    return re.sub(r"(<svg[^>]*>)", rf"\1<style>{INK}</style>", text, count=1)


def from_file(data: bytes) -> Picture:
    """A figure that is known only as a PNG file."""
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        image.load()
        width, height = image.size
        if width > WIDEST:
            width, height = WIDEST, max(1, round(height * WIDEST / width))
            buffer = io.BytesIO()
            image.convert("RGBA").resize((width, height), Image.Resampling.LANCZOS).save(
                buffer, "png", optimize=True
            )
            data = buffer.getvalue()
    return Picture(png(data), width // 2, height // 2, "paper")


def png(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


# Images


def strips(packed: dict[str, Any], rows: dict[str, dict[int, int]], most: int = 8) -> Iterator[Strip]:
    """Rows of packed images: `rows` names each strip and says which row shows it at which step."""
    pixels = unpack(packed)[:, :most]
    for name, steps in rows.items():
        yield Strip(name, [Frame(step, strip(pixels[row], packed["binary"])) for step, row in steps.items()])


def strip(pixels: Any, binary: bool) -> Picture:
    """Images (n, channels, height, width) from 0 to 1 in a row, a line apart; ink is black on white."""
    count, channels, height, width = pixels.shape
    levels = np.round(255 * (1 - pixels if binary else pixels)).astype(np.uint8)
    framed = np.full((count, channels, height + 2, width + 2), 215, np.uint8)
    framed[..., 1:-1, 1:-1] = levels
    row = framed.transpose(2, 0, 3, 1).reshape(height + 2, count * (width + 2), channels)
    buffer = io.BytesIO()
    Image.fromarray(row.squeeze(-1) if channels == 1 else row).save(buffer, "png", optimize=True)
    high, wide = row.shape[:2]
    return Picture(png(buffer.getvalue()), count * SIDE, round(high * count * SIDE / wide), "ink" if binary else "")
