"""Sampling: draw images from written memories, improve them step by step, and ask what they are [fig. omniglot]."""

from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ..models import Recall
from ..support.pixels import LEVEL, distances
from ..support.say import bar
from .drawing import each, energies, sheet
from .measures import distinct, mean, means, recalls, rises
from .pictures import pack
from .runner import Subject
from .tables import Table

SMOKE = {"episodes": 2, "length": 6, "samples": 5, "steps": 3, "seen": 50, "pictures": 3}


def run(
    who: Subject,
    seed: int = 0,
    *,
    episodes: int = 4,
    length: int = 32,
    samples: int = 64,
    steps: int = 15,
    seen: int = 5000,
    pictures: int = 8,
) -> dict[str, Any]:
    """Draw images from written memories, and ask how good, how new and how different they are [sec. 4].

    Distances to the nearest stored and the nearest training image say whether samples are copies, beside those of
    fresh images, which are as new as can be. How many stored images are the nearest of some sample says whether
    samples come from all of a memory.

    episodes: Memories; the spread is over them.
    length: Images in each memory.
    samples: Images to draw from each memory, and fresh ones to compare them with.
    steps: Steps of recall; the first is the draw.
    seen: Training images that a sample might be a copy of.
    pictures: Samples in the picture.
    """
    model, generator = who.model, torch.Generator().manual_seed(seed)
    x = distinct(who.unseen.to("cpu"), episodes, length + samples, generator).to(model.device)
    known = distinct(who.seen.to("cpu"), 1, min(seen, len(who.seen)), generator)[0].to(model.device)
    stored, fresh = x[:, :length], x[:, length:]
    state, paths = model.write(stored), {}
    with bar(f"sampling: {who.name}", len(model.METHODS)) as advance:
        for method in recalls(model):
            same = torch.Generator(model.device).manual_seed(seed)  # all methods begin with the same draw
            paths[method] = model.sample(state, samples, steps, same, method=method)
            advance(1)
    sets = {"first draw": paths[model.METHODS[0]].x[0], **{method: path.last for method, path in paths.items()}}
    return {
        "binary": who.unseen.binary,
        "pixels": x[0, 0].numel(),
        "length": length,
        "by chance": expected_reached(length, samples),
        "steps": {method: stepwise(path, stored) for method, path in paths.items()},
        "sets": {name: judge(images, stored, known) for name, images in {**sets, "fresh images": fresh}.items()},
        "pictures": sheets(stored[0], paths, pictures),
    }


def stepwise(path: Recall, stored: Float[Tensor, "E T c h w"]) -> dict[str, Any]:
    """The distance to the nearest stored image at every step; also the energy, and whether it rose, if any."""
    found = {"to stored": means(distances(path.x, stored).amin(-1))}
    if path.energy is None:
        return found
    return {"energy": means(path.energy), "rose": means(rises(path.energy)), **found}


def judge(
    x: Float[Tensor, "E n c h w"], stored: Float[Tensor, "E T c h w"], seen: Float[Tensor, "N c h w"]
) -> dict[str, Any]:
    """How near images are to stored ones and to those of training, how many differ, and where they come from."""
    apart = distances(x, stored)
    return {
        "to stored": mean(apart.amin(-1)),
        "to training": mean(distances(x, seen).amin(-1)),
        "distinct": mean(torch.tensor([different(images) for images in x])),
        "reached": mean(torch.tensor([len(nearest.unique()) for nearest in apart.argmin(-1)])),
    }


def expected_reached(length: int, samples: int) -> float:
    """How many of the stored images so many draws would reach if all were equally likely: T (1 − (1 − 1/T)ⁿ)."""
    return length * (1 - (1 - 1 / length) ** samples)


def different(x: Float[Tensor, "n c h w"]) -> int:
    """How many images have none before them that is the same, to half a grey level."""
    apart = distances(x, x)
    return int((apart.masked_fill(torch.ones_like(apart).triu().bool(), 1e9) > LEVEL / 2).all(-1).sum())


def sheets(stored: Float[Tensor, "T c h w"], paths: dict[str, Recall], n: int) -> dict[str, Any]:
    """What the first memory holds, and for each method samples (rows) at some steps (columns)."""
    last = min(len(path.x) for path in paths.values())
    steps = sorted({1, 2, 4, last} & set(range(last + 1)))
    samples = {name: torch.stack([path.x[s - 1, 0, :n] for s in steps], 1) for name, path in paths.items()}
    return {
        "stored": pack(stored.unflatten(0, (2, -1)) if len(stored) % 2 == 0 else stored[None]),
        "steps": steps,
        "samples": {name: pack(images) for name, images in samples.items()},
    }


def table(result: dict[str, Any]) -> Table:
    """What samples are near to, how many differ, and how much of the memory they come from."""
    names = ("to stored", "to training", "distinct", "reached")
    rows = [[label, *(found[name] for name in names)] for label, found in result["sets"].items()]
    rows.append(["all stored images equally likely", None, None, None, result["by chance"]])
    unit = "pixels" if result["binary"] else "root mean square"
    head = [f"{unit} from the nearest stored", "and training image", "different ones", "stored images reached"]
    return Table(["", *head], rows)


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """Pictures, and energies step by step, for each model."""
    return each(models, pictures=pictures, energy=energies)


def pictures(result: dict[str, Any]) -> Figure:
    """What was written, above; samples below, a row each, improved from column to column."""
    shown = result["pictures"]
    count, columns = len(shown["samples"]), len(shown["steps"])
    rows, stored = next(iter(shown["samples"].values()))["shape"][0], shown["stored"]["shape"][:2]
    wide = count * (columns + 1)
    top = stored[0] * wide / stored[1]
    figure = Figure(figsize=(0.42 * wide, 0.42 * (rows + top) + 0.9), layout="constrained")
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(top + 1, rows + 1.4))[:, 0]
    box, below = parts[0].subplots(), parts[1].subplots(1, count, squeeze=False)[0]
    sheet(box, shown["stored"])
    box.set_title("written into the memory")
    for axes, (method, packed) in zip(below, shown["samples"].items(), strict=True):
        sheet(axes, packed)
        axes.set_title(f"{method}\nsteps {', '.join(map(str, shown['steps']))}")
    return figure
