"""Show the numbers that speed.py wrote as tables and figures: `python benchmarks/report.py FILE`."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from rich import box
from rich.console import Console
from rich.table import Table

from kanerva.lab import drawing

Rows = list[dict[str, Any]]

TITLES = {
    "write": "Writing an episode",
    "read": "Addressing T codes of each of B memories",
    "layer": "The layer, write and read with gradients; against a plain loop and against attention",
    "recall": "Recall; against its encoder and decoder passes alone",
    "cues": "Recall of all cues of B memories by the pretrained model",
    "train": "Training steps",
    "memory": "Memory of a write",
    "scaling": "Write and gradient: the exponent a of seconds ~ x^a, over the upper half of x",
}


def table(part: str, rows: Rows) -> Table:
    """The numbers of one part, for people."""
    if part == "memory":
        return memory_table(rows)
    if part == "scaling":
        return scaling_table(rows)
    results = [result for row in rows for result in row["contenders"].values()]
    bases = list(dict.fromkeys(base for result in results for base in result["faster_than"]))
    out = blank(part, "time", "quartiles", *(f"faster than\n{base}" for base in bases))
    if part == "train":
        out.add_column("steps/s", justify="right")
    if part == "cues":
        out.add_column("a cue", justify="right")
        out.add_column("encoder,\ndecoder a cue", justify="right")
    for row in rows:
        for i, (name, result) in enumerate(row["contenders"].items()):
            cells = [duration(result["seconds"]), "–".join(map(duration, result["quartiles"]))]
            cells += [ratio(result["faster_than"].get(base)) for base in bases]
            cells += [f"{1 / result['seconds']:.3g}"] if part == "train" else []
            cells += each_cue(result) if part == "cues" else []
            out.add_row(*place(row, first=i == 0), name, *cells)
        out.add_section()
    out.caption = notes(rows)
    return out


def each_cue(result: dict[str, Any]) -> list[str]:
    passed = (f"{rows:.3g}" for rows in result["evaluations_a_cue"].values())
    return [duration(result["seconds_a_cue"]), ", ".join(passed)]


def memory_table(rows: Rows) -> Table:
    out = blank("memory", "MB", "less than\nreference")
    for row in rows:
        whole = row["bytes"].get("reference")
        for i, (name, used) in enumerate(row["bytes"].items()):
            less = f"{whole / used:.3g}×" if whole and used and name != "reference" else ""
            out.add_row(*place(row, first=i == 0), name, megabytes(used), less)
        out.add_section()
    out.caption = notes(rows)
    return out


def scaling_table(rows: Rows) -> Table:
    out = blank("scaling", "at x =", "time", "a")
    for row in rows:
        a = "" if row["exponent"] is None else f"{row['exponent']:.2f}"
        out.add_row(*place(row), row["contender"], str(row["x"][-1]), duration(row["seconds"][-1]), a)
    return out


def blank(part: str, *columns: str) -> Table:
    out = Table(title=TITLES[part], box=box.SIMPLE, caption_justify="left", title_justify="left")
    for name in ("", *"KCTB"):
        out.add_column(name, justify="right")
    for name in ("x" if part == "scaling" else "", "contender"):
        out.add_column(name)
    for name in columns:
        out.add_column(name, justify="right")
    return out


def place(row: dict[str, Any], first: bool = True) -> list[str]:
    """Device, sizes and what was done; said once for all contenders."""
    cells = [row["device"], *map(str, row["case"].values()), row["what"]]
    return cells if first else [""] * len(cells)


def notes(rows: Rows) -> str:
    """Who was left out and why, each once."""
    found = {(row["device"], name, why): None for row in rows for name, why in row["left_out"].items()}
    return "\n".join(f"{device}, without {name}: {why}" for device, name, why in found)


def megabytes(used: int) -> str:
    return f"{used / 1e6:.3g}" if used < 1e8 else f"{used / 1e6:,.0f}"


def ratio(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    low, high = found["quartiles"]
    return f"{found['ratio']:.3g}× ({low:.3g}–{high:.3g})"


# The figure

# Okabe and Ito's colours, which the colour-blind can tell apart; a shape each, for print without colour.
STYLES = {
    "reference": ("#000000", "o"),
    "gram": ("#0072B2", "s"),
    "cpu": ("#D55E00", "D"),
    "triton": ("#009E73", "^"),
    "auto": ("#CC79A7", "v"),
    "inverse": ("#E69F00", "P"),
    "layer": ("#D55E00", "D"),
    "loop": ("#000000", "o"),
    "attention": ("#0072B2", "s"),
}
OTHER = ("#56B4E9", "X")


def style(name: str) -> dict[str, Any]:
    """Colour and shape say the backend; a hollow shape and a dashed line: a graph was replayed; half: compiled."""
    backend, *variants = name.split(", ")
    color, marker = STYLES.get(backend, OTHER)
    captured = "captured" in variants
    fill = {"markerfacecolor": "white"} if captured else {}
    if variants == ["compiled"]:
        fill = {"fillstyle": "left", "markerfacecoloralt": "white"}
    return {"color": color, "marker": marker, "linestyle": "--" if captured else "-", "label": name, **fill}


def figure(results: dict[str, Any]) -> Figure:
    """Rows of panels for each device: how much faster and smaller, how time grows, and the layer if timed."""
    parts = results["parts"]
    devices = list(dict.fromkeys(row["device"] for rows in parts.values() for row in rows))
    blocks = [{part: [row for row in rows if row["device"] == d] for part, rows in parts.items()} for d in devices]
    heights = [height for mine in blocks for height in (tallest(mine), 2.8, *layer_heights(mine))]
    fig = Figure(figsize=(15, sum(heights) + 0.9 * len(heights)), layout="constrained")
    bands = iter(fig.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for device, mine in zip(devices, blocks, strict=True):
        band = next(bands)
        name = results["machine"]["gpu" if device == "cuda" else "cpu"]
        band.suptitle(name, x=0.01, ha="left", fontweight="bold")
        writes, others, used = band.subplots(1, 3, width_ratios=[1.6, 1, 1])
        ratio_panel(writes, write_lines(mine), "Write, forward + backward")
        ratio_panel(others, other_lines(mine), "Read, train")
        memory_panel(used, mine.get("memory", []))
        key(band, writes)
        for axis, ax in zip("TKCB", next(bands).subplots(1, 4), strict=True):
            scaling_panel(ax, axis, [row for row in mine.get("scaling", []) if row["what"] == axis])
        for _ in layer_heights(mine):
            layer_panels(next(bands), mine["layer"])
    return fig


# A line of a panel: what it is called, and the names, values and quartiles of the points on it.
Lines = list[tuple[str, list[tuple[str, float, list[float]]]]]


def write_lines(parts: dict[str, Rows]) -> Lines:
    rows = [row for row in parts.get("write", []) if row["what"] == "forward + backward"]
    return [(sizes(row), ratios(row)) for row in rows]


def other_lines(parts: dict[str, Rows]) -> Lines:
    """Reads and training steps; where a line would be crowded, one for each contender."""
    lines: Lines = [(f"address\n{sizes(row)}", ratios(row)) for row in parts.get("read", [])]
    for row in parts.get("train", []):
        lines += [(f"{row['what']}\n{point[0]}", [point]) for point in ratios(row)]
    return lines


def layer_heights(parts: dict[str, Rows]) -> list[float]:
    """Inches for the layer's panels, where there are any."""
    return [max(2.2, 0.7 * len(parts["layer"]))] if parts.get("layer") else []


def layer_panels(band: SubFigure, rows: Rows) -> None:
    """The layer's rivals: all against the plain loop, and in seconds."""
    times, seconds = band.subplots(1, 2)
    lines: Lines = [(f"{sizes(row)}\n{row['what']}", ratios(row, "loop")) for row in rows]
    ratio_panel(
        times, lines, "The layer, write and read, forward + backward", "loop", "times faster than the plain loop"
    )
    taken: Lines = [
        (label, [(n, r["seconds"], r["quartiles"]) for n, r in row["contenders"].items()])
        for (label, _), row in zip(lines, rows, strict=True)
    ]
    points(seconds, taken)
    categories(seconds, [label for label, _ in taken], "The same in seconds", "")
    plain(seconds.xaxis, duration)
    key(band, seconds)


def ratios(row: dict[str, Any], base: str = "reference") -> list[tuple[str, float, list[float]]]:
    """How much faster than the base."""
    found = {name: result["faster_than"].get(base) for name, result in row["contenders"].items()}
    return [(name, r["ratio"], r["quartiles"]) for name, r in found.items() if r]


def sizes(row: dict[str, Any]) -> str:
    K, C, T, B = row["case"].values()
    return f"K {K}, C {C}, T {T}, B {B}"


def tallest(parts: dict[str, Rows]) -> float:
    """Inches for the upper panels."""
    return max(2.2, 0.4 * max(len(write_lines(parts)), len(other_lines(parts)), len(parts.get("memory", []))))


def key(band: SubFigure, ax: Axes) -> None:
    """The colours and shapes of all the panels, above them."""
    named = {text: handle for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    marks = [getattr(handle, "lines", [handle])[0] for handle in named.values()]
    band.legend(marks, named.keys(), loc="upper right", ncols=len(named), frameon=False)


def ratio_panel(
    ax: Axes,
    lines: Lines,
    title: str,
    base: str = "reference",
    xlabel: str = "times faster than the reference",
) -> None:
    ax.axvline(1, color=STYLES["reference"][0], linewidth=1, label=base)
    points(ax, lines)
    categories(ax, [label for label, _ in lines], title, xlabel)
    plain(ax.xaxis, lambda x: f"{x:g}×")


def points(ax: Axes, lines: Lines) -> None:
    """A point with its quartiles for every contender of every line."""
    for y, (_, found) in enumerate(lines):
        for i, (name, middle, (low, high)) in enumerate(found):
            look = style(name) | {"linestyle": "none"}
            at = y + 0.6 * ((i + 0.5) / len(found) - 0.5)
            ax.errorbar(middle, at, xerr=[[middle - low], [high - middle]], elinewidth=1.5, capsize=3, **look)


def memory_panel(ax: Axes, rows: Rows) -> None:
    for y, row in enumerate(rows):
        for i, (name, used) in enumerate(row["bytes"].items()):
            if used:  # nothing at all has no place on a logarithmic axis
                look = style(name) | {"linestyle": "none"}
                ax.plot(used / 1e6, y + 0.6 * ((i + 0.5) / len(row["bytes"]) - 0.5), **look)
    categories(ax, [sizes(row) for row in rows], "Memory of a write", f"MB, {rows[0]['what']}" if rows else "MB")
    plain(ax.xaxis, lambda x: f"{x:g}")


def categories(ax: Axes, labels: list[str], title: str, xlabel: str) -> None:
    """The first line on top, and thin rules between them."""
    ax.set_xscale("log")
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(max(len(labels), 1) - 0.5, -0.5)
    for y in range(1, len(labels)):
        ax.axhline(y - 0.5, color="0.9", linewidth=0.8)
    ax.set_title(title, loc="left")
    ax.set_xlabel(xlabel)
    ax.grid(axis="x", color="0.92")
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)


def scaling_panel(ax: Axes, axis: str, rows: Rows) -> None:
    for row in rows:
        a = row["exponent"]
        look = style(row["contender"])
        look["label"] += "" if a is None else f"  {axis}$^{{{a:.2f}}}$"
        ax.plot(row["x"], row["seconds"], markersize=5, **look)
        low, high = zip(*row["quartiles"], strict=True)
        ax.fill_between(row["x"], low, high, color=look["color"], alpha=0.15, linewidth=0)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    plain(ax.yaxis, duration)
    if rows:
        rest = ", ".join(f"{name} {n}" for name, n in rows[0]["case"].items() if name != axis)
        ax.set_title(f"Time against {axis}, forward + backward", loc="left")
        ax.set_xlabel(f"{axis}   ({rest})")
    ax.grid(color="0.92")
    if rows:
        bottom, top = ax.get_ylim()
        ax.set_ylim(bottom, top * (top / bottom) ** (0.08 * len(rows)))  # room for the legend
        ax.legend(fontsize=8, framealpha=0.9, loc="upper left")


def plain(axis: Axis, text: Callable[[float], str]) -> None:
    """Ticks at 1, 2, 5, 10, …, or at powers of ten where those would be too many; no powers in the labels."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 60 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: text(x)))
    axis.set_minor_formatter(NullFormatter())


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the figure beside a file of results."""
    with drawing.style():
        drawing.draw({"": figure(results)}, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what speed.py --out wrote; the figures go beside it")
    path = parser.parse_args().file
    results = json.loads(path.read_text())
    console = Console()
    for part, rows in results["parts"].items():
        console.print(table(part, rows))
    draw(results, path)


if __name__ == "__main__":
    main()
