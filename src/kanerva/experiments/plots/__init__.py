"""Figures from results, and from nothing else: a file of results can be drawn again at any time.

One file per experiment, each with `figures(results)`, which gives Matplotlib figures by the ends of their names.
"""

import importlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import __version__, plain
from ...spelling import nearest
from ...support.files import atomic_write, contents
from .. import EXPERIMENTS, module
from ..base import file_name, unpack

# Okabe and Ito's colours, which colour-blind people can tell apart
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C564B",
    "#7F7F7F",
    "#8A9A00",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "h", ">")
KNOWN = {"least-squares": 0, "descent": 1, "descent, told": 2, "stochastic": 3, "first draw": 4, "fresh images": 6}
"""The colours of some ways to recall, and of what stands beside them, the same in all figures."""

DRAWN = (*EXPERIMENTS, "speed")
"""What files of results are about."""

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


def figures(name: str, results: dict[str, Any]) -> dict[str, Figure]:
    """The figures of one file of this folder, by the ends of their names; not drawn before they are asked for."""
    with style():
        made: dict[str, Figure] = importlib.import_module(f"{__name__}.{module(name)}").figures(results)
        return made


def draw(results: dict[str, Any], path: Path) -> list[Path]:
    """Draw the figures of a file of results beside it, each as PNG and as SVG."""
    written = []
    for end, figure in figures(subject(results), results).items():
        stem = f"{path.stem}-{end}" if end else path.stem
        for kind in ("png", "svg"):
            written.append(path.with_name(f"{stem}.{kind}"))
            with atomic_write(written[-1]) as file:
                file.write(picture(figure, kind))
    return written


def redraw(path: Path, folder: Path | None = None) -> list[Path]:
    """Draw the figures of a file of results again, beside it or in a folder."""
    results = read(path)
    try:
        return draw(results, path if folder is None else folder / path.name)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path}: its figures cannot be drawn ({type(error).__name__}: {error}); the usual cause is a file of "
            f"another version than this one, {__version__}"
        ) from error


def read(path: Path) -> dict[str, Any]:
    """A file of results that can be drawn."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected the JSON that kanerva experiment writes")
    try:
        results = plain.loads(contents(path))
    except ValueError as error:
        raise ValueError(
            f"{path}: expected results as JSON, which kanerva experiment writes, got {error}"
        ) from None
    if isinstance(results, dict) and subject(results) in DRAWN:
        return results
    raise ValueError(f"{path}: expected results of {', '.join(DRAWN)}, got {described(results)}")


def subject(results: dict[str, Any]) -> str:
    """What results are about: an experiment, or speed, which benchmarks/speed.py measures."""
    return str(results.get("experiment", "speed" if "parts" in results else None))


def described(results: Any) -> str:
    """What a JSON file is that cannot be drawn, and what to do with it."""
    if not isinstance(results, dict):
        return f"a {type(results).__name__}"
    if "experiment" in results:
        return f"an experiment of the name {results['experiment']!r}{nearest(subject(results), DRAWN)}"
    if "nats" in results:
        return "a score, which has no figure"
    if {"settings", "results"} <= set(results):
        return "numbers of an example, whose figure the script in examples/ draws from its own data"
    return f"an object with {', '.join(map(repr, list(results)[:5])) or 'nothing'} in it"


def picture(figure: Figure, kind: str = "png") -> bytes:
    """A figure as a file."""
    buffer, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else None
    with style():
        figure.savefig(buffer, format=kind, bbox_inches="tight", metadata=metadata)
    return buffer.getvalue()


def numbers(names: Iterable[str]) -> dict[str, int]:
    """The numbers of colours and markers: known names have their own, each other one the next that is free."""
    names = list(dict.fromkeys(names))
    taken = {KNOWN[name] for name in names if name in KNOWN}
    free = (number for number in count() if number not in taken)
    return {name: KNOWN[name] if name in KNOWN else next(free) for name in names}


def look(number: int) -> tuple[str, str]:
    """A colour and a marker."""
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def curve(axes: Axes, x: Any, values: dict[str, Any], label: str, number: int, **options: Any) -> None:
    """A line with a band of one standard error on either side."""
    y, spread = (np.asarray(values[key], float) for key in ("mean", "stderr"))  # null, in a file, is not a number
    colour, marker = look(number)
    axes.plot(x, y, label=label, color=colour, marker=marker, **options)
    axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.2, linewidth=0)


def sheet(axes: Axes, packed: dict[str, Any], shown: list[int] | None = None) -> None:
    """Images (rows, columns, channels, height, width), or some of the rows, as one picture, ink black on white."""
    pixels = unpack(packed)
    pixels = pixels if shown is None else pixels[shown]
    rows, columns, channels, height, width = pixels.shape
    framed = np.full(
        (rows, columns, channels, height + 2, width + 2), 0.25 if packed["binary"] else 1.0, np.float32
    )
    framed[..., 1:-1, 1:-1] = pixels
    whole = framed.transpose(0, 3, 1, 4, 2).reshape(rows * (height + 2), columns * (width + 2), channels)
    picture = 1 - whole[..., 0] if packed["binary"] else whole if channels == 3 else whole[..., 0]
    axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()


def each(results: dict[str, Any], parts: dict[str, Callable[[dict[str, Any]], Figure | None]]) -> dict[str, Figure]:
    """Every figure of every model that has what it shows; of several models, their names end the figures' names."""
    models, made, used = results["models"], {}, set[str]()
    for number, model in enumerate(models, start=1):
        own = file_name(model["name"])
        own = own if own not in used else f"{own}-{number}"  # two names can be one as a part of a file's
        used.add(own)
        for end, part in parts.items():
            if (figure := part(model["result"])) is not None:
                made[f"{end}-{own}" if len(models) > 1 else end] = figure
    return made


def singles(axes: Axes, paths: dict[str, list[list[float]]], colours: dict[str, int]) -> None:
    """Energies of single cues, thin, as the paper draws them; chains and what is told would hide the others."""
    for method, lines in paths.items():
        for line in lines if method != "stochastic" and not method.endswith(", told") else ():
            axes.plot(1 + np.arange(len(line)), line, color=look(colours[method])[0], lw=0.4, alpha=0.3)


def rising(result: dict[str, Any]) -> dict[str, str]:
    """What a legend says of each method: how many of its steps raise the energy, where there is one."""
    shares = {
        m: 100 * float(np.mean(v["rose"]["mean"][1:] or [0])) for m, v in result["steps"].items() if "rose" in v
    }
    return {method: f"{method} ({share:.2g} % of steps raise the energy)" for method, share in shares.items()}


def legend(figure: Figure, names: dict[str, str] | None = None, columns: int = 3) -> None:
    """One legend for all axes, below them; `names` says more of some lines."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault((names or {}).get(label, label), handle)
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)


def unit(result: dict[str, Any]) -> str:
    return f"wrong pixels of {result['pixels']}" if result["binary"] else "root mean square error"


def columns(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Means and standard errors, each as one list."""
    return {key: [row[key] for row in rows] for key in ("mean", "stderr")}
