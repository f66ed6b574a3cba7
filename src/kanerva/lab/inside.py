"""Inside: which images a memory holds, found without a cue.

A memory of up to K codes gives them away up to one rotation (`recall.frame`). What is found is compared with what
was written, for more and more images.
"""

from typing import Any

import torch
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..memory import MemoryState
from ..models import DKM
from ..support.pixels import LEVEL, distances, is_binary
from ..support.say import bar
from .drawing import each, sheet
from .measures import NEAR, means, task
from .pictures import pack, unpack
from .runner import Subject
from .tables import Share, Table, point

NEEDS = "dkm"
SMOKE = {"episodes": 2, "searched": (3,)}
COLUMNS = 8
"""Images in a row of the picture."""


def run(
    who: Subject, seed: int = 0, *, episodes: int = 8, searched: tuple[int, ...] = (8, 16, 24, 32)
) -> dict[str, Any]:
    """Find the images of memories without a cue, and compare them with what was written.

    episodes: Memories; the spread is over them.
    searched: Images in each memory.
    """
    model, contents, picture = who.model, dict[str, list[Any]](), dict[str, Any]()
    assert isinstance(model, DKM)
    with bar(f"inside: {who.name}", len(searched) * episodes) as advance:
        for load in searched:
            rows = list[dict[str, float]]()
            for written in task(who.unseen, [], episodes, load, seed).x.to(model.device):
                row, shown = search(model, written)
                picture = shown if load == max(searched) and not rows else picture
                rows.append(row)
                advance(1)
            for key in rows[0]:
                contents.setdefault(key, []).append([row[key] for row in rows])
    found = {key: means(torch.tensor(values)) for key, values in contents.items()}
    return {
        "binary": who.unseen.binary,
        "pixels": written[0].numel(),
        "rows": model.config.rows,
        "code": model.config.code,
        "contents": {"loads": list(searched), **found},
        "picture": picture,
    }


def search(model: DKM, written: Float[Tensor, "T c h w"]) -> tuple[dict[str, float], dict[str, Any]]:
    """Find what a memory holds, compare it with what was written, and put both into a picture."""
    state, load = model.write(written), len(written)
    found = model.contents(state).x
    which, wrong = match(found, written)
    there = which >= 0
    row = {
        "found": float(there.sum()) / load,
        "exact": float((there & (wrong == 0)).sum()) / load,
        "false": float((~there).sum()) / load,
        "wrong": float(wrong.sum()) / max(1, int(there.sum())),
    }
    return row, show(state, written, found, which, float(wrong.sum()))


def match(
    found: Float[Tensor, "n c h w"], written: Float[Tensor, "T c h w"]
) -> tuple[Int64[Tensor, "n"], Float[Tensor, "n"]]:
    """Which written image each found one is, −1 for none, and how far away it is; each is found once."""
    which, wrong = found.new_full((len(found),), -1, dtype=torch.long), found.new_zeros(len(found))
    distance = distances(found, written)
    limit = NEAR * (written[0].numel() if is_binary(written) else 2)
    for _ in found:  # the nearest pair first; what is matched is out of the way
        i, t = divmod(int(distance.argmin()), len(written))
        if not distance[i, t] <= limit:
            break
        which[i], wrong[i] = t, distance[i, t]
        distance[i], distance[:, t] = torch.inf, torch.inf
    return which, wrong


def show(
    state: MemoryState,
    written: Float[Tensor, "T c h w"],
    found: Float[Tensor, "n c h w"],
    which: Int64[Tensor, "n"],
    wrong: float,
) -> dict[str, Any]:
    """What was written, the memory, and what was found, in the same order and blank where it was not."""
    blank = 0.0 if is_binary(written) else 1 - LEVEL  # white: a sheet of ones alone would be taken for ink
    beside = torch.full_like(written, blank)
    beside[which[which >= 0]] = found[which >= 0]

    def tiled(x: Float[Tensor, "T c h w"]) -> dict[str, Any]:
        rest = x.new_full((-len(x) % COLUMNS, *x.shape[1:]), blank)
        return pack(torch.cat([x, rest]).unflatten(0, (-1, COLUMNS)))

    return {
        "images": len(written),
        "found": int((which >= 0).sum()),
        "wrong": wrong,
        "written": tiled(written),
        "beside": tiled(beside),
        "memory": {name: pack(part / part.abs().max()) for name, part in state._asdict().items()},
    }


def table(result: dict[str, Any]) -> Table:
    """What is found, and how far it is from what was written."""
    found, unit = result["contents"], "wrong pixels" if result["binary"] else "root mean square error"
    rows: list[list[Any]] = []
    for i, load in enumerate(found["loads"]):
        shares = {"found": "found without a cue", "exact": "and to the last pixel", "false": "false ones"}
        rows += [[f"{load} images, {name}", Share(point(found[key], i))] for key, name in shares.items()]
        error = point(found["wrong"], i) if found["found"]["mean"][i] else None
        rows.append([f"{load} images, {unit} of those found", error])
    return Table(["", ""], rows)


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """What was written, the numbers that are kept, and what was found, for each model."""
    return each(models, picture=picture)


def picture(result: dict[str, Any]) -> Figure:
    """All three side by side."""
    part = result["picture"]
    rows, columns, _, height, width = part["written"]["shape"]
    figure = Figure(figsize=(10.5, 0.8 + 4.2 * rows * height / (columns * width)), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(4, 2, 4))
    sheet(left, part["written"])
    matrices(middle, part["memory"])
    sheet(right, part["beside"])
    sizes = [f"{name} {'×'.join(map(str, part['memory'][name]['shape']))}" for name in "RU"]
    left.set_title(f"{part['images']} images, written one after another")
    middle.set_title(f"what is kept:\n{' and '.join(sizes)}")
    pixels = "wrong pixel" if part["wrong"] == 1 else "wrong pixels"
    wrong = f"{part['wrong']:g} {pixels}" if result["binary"] else f"error {part['wrong']:.2g}"
    some = f", {wrong}" if part["found"] else ""
    right.set_title(f"found in it without a cue: {part['found']} of {part['images']}{some}")
    return figure


def matrices(axes: Axes, memory: dict[str, Any]) -> None:
    """The memory's two matrices, one above the other; each has its own scale."""
    R, U = (2 * unpack(memory[name]) - 1 for name in "RU")
    for bottom, matrix in ((len(U) + 3, R), (0, U)):
        extent = (-matrix.shape[1] / 2, matrix.shape[1] / 2, bottom, bottom + len(matrix))
        axes.imshow(matrix, cmap="RdBu", vmin=-1, vmax=1, extent=extent, interpolation="nearest")
    wide = max(R.shape[1], U.shape[1]) / 2
    axes.set(xlim=(-wide - 1, wide + 1), ylim=(-1, len(R) + len(U) + 4), aspect="equal")
    axes.set_axis_off()
