"""Inside: a memory and what was found in it; recognition, counts, forgetting, contents and recall."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..runner import unpack
from . import COLOURS, curve, each, legend, look, sheet, unit

WAYS = {"inside": "looks into the memory", "alone": "from the cue alone"}


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """All figures, for each model."""
    parts = {"picture": picture, "recognition": recognition, "counts": counts, "contents": contents}
    return each(results, {**parts, "recall": recall})


def picture(result: dict[str, Any]) -> Figure:
    """What was written, the numbers that are kept, and what was found, side by side."""
    part = result["picture"]
    rows, columns, _, height, width = part["written"]["shape"]
    figure = Figure(figsize=(10.5, 0.8 + 4.2 * rows * height / (columns * width)), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(4, 2, 4))
    sheet(left, part["written"])
    numbers(middle, part["memory"])
    sheet(right, part["beside"])
    left.set_title(f"{part['images']} images, written one after another")
    middle.set_title(f"what is kept:\nR {sizes(part['memory']['R'])} and U {sizes(part['memory']['U'])}")
    pixels = "wrong pixel" if part["wrong"] == 1 else "wrong pixels"
    wrong = f"{part['wrong']:g} {pixels}" if result["binary"] else f"error {part['wrong']:.2g}"
    some = f", {wrong}" if part["found"] else ""
    right.set_title(f"found in it without a cue: {part['found']} of {part['images']}{some}")
    return figure


def sizes(packed: dict[str, Any]) -> str:
    return "×".join(map(str, packed["shape"]))


def numbers(axes: Axes, memory: dict[str, Any]) -> None:
    """The memory's two matrices, one above the other; each has its own scale."""
    R, U = (2 * unpack(memory[name]) - 1 for name in "RU")
    for bottom, matrix in ((len(U) + 3, R), (0, U)):
        extent = (-matrix.shape[1] / 2, matrix.shape[1] / 2, bottom, bottom + len(matrix))
        axes.imshow(matrix, cmap="RdBu", vmin=-1, vmax=1, extent=extent, interpolation="nearest")
    wide = max(R.shape[1], U.shape[1]) / 2
    axes.set(xlim=(-wide - 1, wide + 1), ylim=(-1, len(R) + len(U) + 4), aspect="equal")
    axes.set_axis_off()


def recognition(result: dict[str, Any]) -> Figure:
    """Wrong answers and memories that cannot know, and the distances that decide, against load."""
    part, rows = result["recognition"], result["rows"]
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (kind, values) in enumerate(part["kinds"].items()):
        curve(left, part["loads"], values["wrong"], kind, number)
        curve(left, part["loads"], values["unknown"], f"{kind}: cannot know", number, ls=":", markevery=1000)
        bands(right, part["loads"], values["outside"], number)
    right.axhline(part["threshold"], color="0.4", ls="--", lw=0.9)
    right.set(yscale="log")
    right.set_title("relative distance of codes from the span of what was written")
    left.set(ylim=(-0.02, 1.05))
    left.set_title("answers that are wrong (dotted: that say it cannot know)")
    left.yaxis.set_major_formatter(PercentFormatter(1))
    for axes in (left, right):
        axes.axvline(rows, color="0.5", ls=":", lw=0.9)
        axes.set_xlabel(f"images in memory (line: as many as its {rows} rows)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [a for a in left.lines if a.get_label() in part["kinds"]]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def bands(axes: Axes, x: list[int], ranges: list[list[float] | None], number: int) -> None:
    """A median in a band from the least to the greatest."""
    low, middle, high = np.array([[np.nan] * 3 if r is None else r for r in ranges], float).T
    colour, marker = look(number)
    axes.plot(x, middle, color=colour, marker=marker)
    axes.fill_between(x, np.maximum(low, 1e-9), high, color=colour, alpha=0.2, linewidth=0)


def counts(result: dict[str, Any]) -> Figure:
    """How often images were written, and what forgetting one of them does."""
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    repeats(left, result["counts"])
    forgetting(right, result)
    return figure


def repeats(axes: Axes, part: dict[str, Any]) -> None:
    """The memory's own number beside the truth, for each load."""
    places = np.linspace(-0.25, 0.25, len(part["loads"])) if len(part["loads"]) > 1 else [0.0]
    for number, (load, rows, place) in enumerate(zip(part["loads"], part["estimates"], places, strict=True)):
        colour, marker = look(number)
        there = [(m, row) for m, row in zip(part["times"], rows, strict=True) if row is not None]
        x = [m + place for m, _ in there]
        low, middle, high = np.array([row for _, row in there]).T
        right = f"{load} images: {100 * part['right']['mean'][number]:.3g} % right"
        spread = [middle - low, high - middle]
        axes.errorbar(x, middle, spread, color=colour, marker=marker, ls="none", lw=1, label=right)
    for m in part["times"]:
        axes.plot((m - 0.4, m + 0.4), (m, m), color="0.4", lw=0.8, zorder=0)
    axes.set(xlabel="times that an image was written", ylabel="as the memory says", xticks=part["times"])
    axes.set_title("how often, before it is rounded")
    axes.legend(loc="upper left")


def forgetting(axes: Axes, result: dict[str, Any]) -> None:
    """Wrong pixels of the others, and of the image that is forgotten, before and after."""
    part = result["forgetting"]
    texts = {"before": "before", "after": "after one is forgotten", "never": "from a memory that never had it"}
    for number, (name, label) in enumerate((("removed", "the one"), ("others", "others"))):
        for (when, text), line in zip(texts.items(), ("-", "--", ":"), strict=True):
            curve(axes, part["loads"], part[f"{name}_{when}"], f"{label}, {text}", number, ls=line)
    axes.set_title(f"{unit(result)}, read before and after one is forgotten")
    axes.set(xlabel="images in memory", xticks=part["loads"])
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def contents(result: dict[str, Any]) -> Figure:
    """Shares found, exact and false, and the cost of each image, against load."""
    part = result["contents"]
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    texts = {"found": "found", "exact": "found, to the last pixel", "false": "false ones"}
    for number, (key, text) in enumerate(texts.items()):
        curve(left, part["loads"], part[key], text, number, ls=("-", "--", ":")[number])
    curve(right, part["loads"], part["evaluations"], "evaluations", 0)
    left.set(ylim=(-0.02, 1.05))
    left.yaxis.set_major_formatter(PercentFormatter(1))
    left.set_title("share of the images in memory, without a cue")
    right.set_title("evaluations of encoder and decoder for each image")
    right.set_ylim(bottom=0)
    left.legend(loc="center left")
    for axes in (left, right):
        axes.set(xlabel=f"images in a memory of {result['rows']} rows", xticks=part["loads"])
    return figure


def recall(result: dict[str, Any]) -> Figure:
    """Where recall ends, with and without a look into the memory, a row for each kind of damage."""
    cells = result["recall"][::-1]
    figure = Figure(figsize=(9.5, 1.3 + 0.36 * len(cells)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    titles = {"wrong": unit(result), "right": "nearest to the right image", "certified": "certified"}
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        for number, (way, label) in enumerate(WAYS.items()):
            if (way, key) == ("alone", "certified"):
                continue  # it certifies nothing
            values = [cell[way][key] for cell in cells]
            y = np.arange(len(cells)) + (0.19, -0.19)[number]
            widths, error = ([value[name] for value in values] for name in ("mean", "stderr"))
            axes.barh(y, widths, 0.36, xerr=error, color=COLOURS[(1, 0)[number]], label=label, ecolor="0.3")
            note(axes, y, values, "{:.1f} %" if key != "wrong" else "{:.2f}" if result["binary"] else "{:.3g}")
        axes.set_title(title)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.2)
        if key != "wrong":
            axes.xaxis.set_major_formatter(PercentFormatter(1))
            axes.set_xticks([0, 0.5, 1])
    panels[0].set_yticks(range(len(cells)), [cell["name"] for cell in cells])
    panels[2].set_title(certificates([cell["inside"] for cell in cells]))
    legend(figure, columns=2)
    return figure


def certificates(cells: list[dict[str, Any]]) -> str:
    """How many of the certified answers are wrong; where there are none, nothing is right or wrong."""
    if not any(cell["certified"]["mean"] for cell in cells):
        return "certified: none"
    mistaken = 100 * float(np.mean([cell["mistaken"]["mean"] for cell in cells]))
    return f"certified; of these, {mistaken:.2g} % wrong"


def note(axes: Axes, y: Any, values: list[dict[str, float]], form: str) -> None:
    """The number at the end of each bar, shares in per cent."""
    for place, value in zip(y, values, strict=True):
        text = form.format((100 if "%" in form else 1) * value["mean"])
        at = (value["mean"] + value["stderr"], place)
        axes.annotate(text, at, (3, 0), textcoords="offset points", va="center", fontsize=7)
