"""Rivals: what each model remembers for the numbers that it keeps.

A model that keeps every image wins any table of recall alone, so every row says what its memory keeps, counted in
floats of 32 bits. One that keeps images, or codes, one by one is also tried with less room: what does not fit is
not written, and is asked for all the same.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..models import Model
from ..support.say import bar
from ..training.evaluate import evaluate, new_images
from .drawing import legend, look
from .measures import PAPER, Task, fingerprint, holes, judge, mean, noisy, recall, task
from .runner import Subject
from .tables import Share, Table

MODELS = ("omniglot", "hopfield:omniglot", "hopfield", "nearest")
SMOKE = {"lengths": (4,), "budgets": (50,), "episodes": 2, "steps": 2, "images": 64}
LENGTH = 32
"""Images in a memory that is scored: as in the paper's training."""
REPEATS, PATIENCE = 5, 10.0
"""How often a time is taken at most, and after how many seconds no more; the median is reported."""


def run(
    who: Subject,
    seed: int = 0,
    *,
    lengths: tuple[int, ...] = (32, 64, 96, 200),
    budgets: tuple[int, ...] = (1_000, 2_000, 4_200, 8_000, 16_000),
    episodes: int = 4,
    cues: int = 32,
    steps: int = 15,
    images: int = 10_000,
    classes: int = 4,
) -> dict[str, Any]:
    """Every model on the same images: nats, recall against the floats that are kept, parameters and times.

    lengths: Images to store in one memory.
    budgets: Floats that a model may keep which keeps images, or codes, one by one; the others keep what they keep.
    episodes: Memories of each length; the spread is over them.
    cues: Images of each memory that are asked for, evenly spaced in the order of writing.
    steps: Steps of recall.
    images: Images that are scored, in episodes of 32.
    classes: Classes of an episode whose new images are scored: half of each class is written, the other half is
        read.
    """
    model, unseen = who.model, who.unseen
    kinds = [noisy(unseen.binary, PAPER), noisy(unseen.binary, 2 * PAPER), *holes(unseen.binary)]
    tasks = [task(unseen, kinds, episodes, length, seed, cues) for length in lengths]
    jobs = [(given, room) for given in tasks for room in rooms(model, given.x.shape[1], budgets)]
    with bar(f"rivals: {who.name}", 2 + len(jobs)) as advance:
        score = evaluate(model, unseen, LENGTH, images, seed=seed, extra=False)
        new = new_images(model, unseen, images, classes, seed)
        advance(1)
        times = clock(model, tasks[0].to(model.device), steps)
        advance(1)
        recalls = []
        for given, room in jobs:
            given, found = given.to(model.device), {}
            state = model.write(given.x[:, :room])
            for kind, cue in zip(kinds, given.cues, strict=True):
                end = judge(
                    recall(model, state, cue, kind, model.METHODS[0], steps, seed).last, given.x, given.asked
                )
                found[kind.name] = {"wrong": mean(end.wrong), "right": mean(end.right)}
            row = {"length": given.x.shape[1], "written": room, "kept": model.kept(room), "damage": found}
            recalls.append(row)
            advance(1)
    return {
        "title": model.TITLE,
        "method": model.METHODS[0],
        "binary": unseen.binary,
        "pixels": unseen.pixels[0].numel(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "kept": model.kept(LENGTH),
        "grows": grows(model),
        "nats": {
            "stored": {"mean": score.nats, "stderr": score.nats_stderr},
            "kl_memory": score.kl_memory,
            "new": new,
        },
        "seconds": times,
        "recall": recalls,
        "headline": kinds[0].name,
        "sha256": fingerprint(x for given in tasks for x in (given.x, *(cue.x for cue in given.cues))),
    }


def grows(model: Model) -> bool:
    """Whether a model keeps the more, the more is written."""
    return model.kept(2) > model.kept(1)


def rooms(model: Model, length: int, budgets: tuple[int, ...]) -> list[int]:
    """How many of so many images a model writes: all, and what fits into each budget if that is fewer."""
    if not grows(model):
        return [length]
    fitting = {max(n for n in range(length + 1) if model.kept(n) <= budget) for budget in budgets}
    return sorted(fitting - {0} | {length})


def clock(model: Model, given: Task, steps: int) -> dict[str, float]:
    """Seconds to write an image and to recall one from the paper's damage, memories and cues together."""
    cue, state = given.cues[0].x, model.write(given.x)
    jobs: dict[str, tuple[int, Callable[[], Any]]] = {
        "write": (given.x.shape[:2].numel(), lambda: model.write(given.x)),
        "recall": (cue.shape[:2].numel(), lambda: model.recall(state, cue, steps)),
    }
    return {name: seconds(job, model.device) / images for name, (images, job) in jobs.items()}


def seconds(job: Callable[[], Any], device: torch.device) -> float:
    """How long a job takes: the median of some times, after one that is not counted."""
    times: list[float] = []
    while len(times) < 2 or (len(times) <= REPEATS and sum(times) < PATIENCE):
        began = time.perf_counter()
        job()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def table(result: dict[str, Any]) -> Table:
    """Recall from the paper's damage, in every room; beside the first, what images cost, and times."""
    unit = f"wrong pixels of {result['pixels']}" if result["binary"] else "root mean square error"
    head = [f"from {result['headline']}", "floats kept", unit, "nearest to the right image"]
    head += ["nats, written", "nats, new", "ms to write", "ms to recall"]
    nats, taken = result["nats"], result["seconds"]
    more, rows = [nats["stored"], nats["new"], 1e3 * taken["write"], 1e3 * taken["recall"]], []
    for found in result["recall"]:
        cell, all_of_it = found["damage"][result["headline"]], found["written"] == found["length"]
        name = f"{found['length']} images" + ("" if all_of_it else f", room for {found['written']}")
        rows.append([name, found["kept"], cell["wrong"], Share(cell["right"]), *more])
        more = [None] * len(more)
    return Table(head, rows)


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """How often recall is right, from the paper's noise: a panel for the least images, and one for the most."""
    first = models[0]["result"]
    lengths = [found["length"] for found in first["recall"]]
    figure = Figure(figsize=(7.4, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, length in zip(panels, (min(lengths), max(lengths)), strict=True):
        for number, model in enumerate(models):
            line(axes, model, length, first["headline"], number)
        axes.set(title=f"{length} images in memory", xlabel="floats kept")
        axes.set_xscale("symlog", linthresh=1000)  # a model may keep nothing
        axes.set_xticks([0, 1000, 10_000], ["0", "1,000", "10,000"])
    panels[0].set_ylabel(f"% nearest to the right image,\nfrom {first['headline']}")
    most = max(found["kept"] for model in models for found in model["result"]["recall"])
    panels[0].set_xlim(-100, 2 * max(1000, most))
    panels[0].set_ylim(bottom=0)
    legend(figure, 4)
    return {"": figure}


def line(axes: Axes, model: dict[str, Any], length: int, damage: str, number: int) -> None:
    """One model: a line over its budgets, or one point."""
    colour, marker = look(number)
    found = [row for row in model["result"]["recall"] if row["length"] == length]
    right = [row["damage"][damage]["right"] for row in found]
    y, spread = (100 * np.array([value[key] for value in right], float) for key in ("mean", "stderr"))
    kept = [row["kept"] for row in found]
    # hollow: two models that keep every image lie on top of each other
    axes.errorbar(kept, y, spread, label=model["name"], color=colour, marker=marker, mfc="none", capsize=2)
