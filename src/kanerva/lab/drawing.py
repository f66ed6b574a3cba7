"""Figures from files of results, and from nothing else: any file of results can be drawn again."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .. import __version__
from ..support import strict_json
from ..support.files import atomic_write, read_file
from ..support.say import nearest
from . import EXPERIMENTS, find, pictures
from .runner import file_name

# Okabe and Ito's colours, which colour-blind people can tell apart
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#000000", "#8C564B", "#7F7F7F", "#8A9A00"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "h", ">")
KNOWN = {"least-squares": 0, "descent": 1, "descent, told": 2, "stochastic": 3}
"""The colours of some ways to recall, the same in all figures."""

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


def figures(experiment: ModuleType, models: list[dict[str, Any]]) -> dict[str, Figure]:
    """The figures of an experiment's results, by the ends of their names."""
    with style():
        made: dict[str, Figure] = experiment.figures(models)
        return made


def draw(made: dict[str, Figure], path: Path) -> list[Path]:
    """Draw figures beside a file of results, as PNG and SVG; returns the PNG."""
    written = []
    for end, figure in made.items():
        place = path.with_name(f"{path.stem}-{end}.png" if end else f"{path.stem}.png")
        for kind in ("svg", "png"):
            with atomic_write(place.with_suffix(f".{kind}")) as file:
                file.write(picture(figure, kind))
        written.append(place)
    return written


def redraw(path: Path, folder: Path | None = None) -> list[Path]:
    """Draw the figures of an experiment's file of results again, beside it or in a folder."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected the JSON that kanerva experiment writes")
    try:
        results = strict_json.loads(read_file(path))
    except ValueError as error:
        raise ValueError(
            f"{path}: expected results as JSON, which kanerva experiment writes, got {error}"
        ) from None
    name = str(results.get("experiment")) if isinstance(results, dict) else ""
    if name not in EXPERIMENTS:
        raise ValueError(
            f"{path}: expected results of {', '.join(EXPERIMENTS)}, got others{nearest(name, EXPERIMENTS)}; "
            f"scripts in benchmarks/ and examples/ draw their own"
        )
    try:
        made = figures(find(name), results["models"])
        return draw(made, path if folder is None else folder / path.name)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path}: its figures cannot be drawn ({type(error).__name__}: {error}); the usual cause is a file of "
            f"another version than this one, {__version__}"
        ) from error


def picture(figure: Figure, kind: str = "png") -> bytes:
    """A figure as a file."""
    buffer, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else None
    with style():
        figure.savefig(buffer, format=kind, bbox_inches="tight", metadata=metadata)
    return buffer.getvalue()


def each(models: list[dict[str, Any]], **parts: Callable[[dict[str, Any]], Figure | None]) -> dict[str, Figure]:
    """Every figure of every model that has what it shows; of several models, their names end the figures' names."""
    made, used = dict[str, Figure](), set[str]()
    for number, model in enumerate(models, start=1):
        own = file_name(model["name"])
        own = own if own not in used else f"{own}-{number}"  # two names can be one as a part of a file's
        used.add(own)
        for end, part in parts.items():
            if (figure := part(model["result"])) is not None:
                made[f"{end}-{own}" if len(models) > 1 else end] = figure
    return made


def looks(names: Any) -> dict[str, tuple[str, str]]:
    """Colours and markers: known names have their own, each other one the next that is free."""
    names = list(dict.fromkeys(names))
    free = (number for number in count() if number not in {KNOWN[name] for name in names if name in KNOWN})
    return {name: look(KNOWN[name] if name in KNOWN else next(free)) for name in names}


def look(number: int) -> tuple[str, str]:
    """A colour and a marker."""
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def curve(axes: Axes, x: Any, values: dict[str, Any], label: str, look: tuple[str, str], **options: Any) -> None:
    """A line with a band of one standard error on either side."""
    y, spread = (np.asarray(values[key], float) for key in ("mean", "stderr"))  # null, in a file, is not a number
    axes.plot(x, y, label=label, color=look[0], marker=look[1], **options)
    axes.fill_between(x, y - spread, y + spread, color=look[0], alpha=0.2, linewidth=0)


def sheet(axes: Axes, packed: dict[str, Any], shown: list[int] | None = None) -> None:
    """Packed images (rows, columns, channels, height, width), or some of the rows, as one picture."""
    pixels = pictures.unpack(packed)
    whole = pictures.sheet(pixels if shown is None else pixels[shown], packed["binary"])
    axes.imshow(whole.squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()


def energies(result: dict[str, Any]) -> Figure | None:
    """The energy at every step of each way to recall [fig. omniglot]; None where a model has no energy."""
    steps = {method: values for method, values in result["steps"].items() if "energy" in values}
    if not steps:
        return None
    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes, colours = figure.subplots(), looks(result["steps"])
    for method, values in steps.items():
        rose = 100 * float(np.mean(values["rose"]["mean"][1:] or [0]))
        label = f"{method} ({rose:.2g} % of steps raise the energy)"
        curve(axes, 1 + np.arange(len(values["energy"]["mean"])), values["energy"], label, colours[method])
    if "energy" in result.get("stored", {}):
        axes.axhline(result["stored"]["energy"]["mean"], color="0.5", ls="-.", label="stored images themselves")
    axes.set(xlabel="step of recall", ylabel="energy, nats")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, 1)
    return figure


def legend(figure: Figure, columns: int = 3) -> None:
    """One legend for all axes, below them."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)
