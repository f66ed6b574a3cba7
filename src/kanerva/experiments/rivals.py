"""Rivals: what each model remembers for the numbers that it keeps.

A model that keeps every image wins any table of recall alone, so every row says what its memory keeps, counted in
floats of 32 bits. One that keeps images, or codes, one by one is also tried with less room: what does not fit is
not written, and is asked for all the same. All models see the same images and the same damage, drawn on the CPU.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..data import ClassImages
from ..evaluate import evaluate, new_images
from ..models import Model
from ..support import checks
from . import base, denoising
from .base import Experiment, Subject
from .denoising import Cell
from .tables import Share, Table

T = TypeVar("T")

LENGTH = 32
"""Images in a memory of the table: as in the paper's training."""
REPEATS, PATIENCE = 5, 10.0
"""How often a time is taken at most, and after how many seconds no more; the median is reported."""


class Task(NamedTuple):
    """Images to store, and damaged ones to ask for."""

    x: Float[Tensor, "E T c h w"]
    asked: Int[Tensor, "Q"]
    """Which of them are asked for."""
    cues: dict[str, Tensor]
    masks: dict[str, Tensor | None]

    def to(self, device: torch.device) -> "Task":
        masks = {name: None if mask is None else mask.to(device) for name, mask in self.masks.items()}
        cues = {name: cue.to(device) for name, cue in self.cues.items()}
        return Task(self.x.to(device), self.asked.to(device), cues, masks)


@dataclass(frozen=True, kw_only=True)
class Rivals(Experiment):
    """Every model on the same images: nats, recall against the floats that are kept, parameters and times."""

    checkpoint: tuple[str, ...] = ("omniglot", "hopfield:omniglot", "hopfield", "nearest")
    """Models, one after another: checkpoints, folders of runs, pretrained models (mazes, omniglot, omniglot-new),
    or models without training (nearest, hopfield, hopfield:CHECKPOINT)."""
    lengths: tuple[int, ...] = (32, 64, 96, 200)
    """Images to store in one memory."""
    budgets: tuple[int, ...] = (1_000, 2_000, 4_200, 8_000, 16_000)
    """Floats that a model may keep which keeps images, or codes, one by one; the others keep what they keep."""
    episodes: int = 4
    """Memories of each length; the spread is over them."""
    cues: int = 32
    """Images of each memory that are asked for, evenly spaced in the order of writing."""
    steps: int = 15
    """Steps of recall."""
    images: int = 10_000
    """Images that are scored, in episodes of 32."""
    classes: int = 4
    """Classes of an episode whose new images are scored: half of each class is written, the other half is read."""

    NAME: ClassVar[str] = "rivals"
    TITLE: ClassVar[str] = "Rivals"
    ABOUT: ClassVar[str] = (
        "All models store the same images, and are asked for them with the same damaged cues. A model that keeps "
        "every image as it is cannot be beaten at recall, and needs the more room the more images there are, so "
        "what counts is how much is remembered for the numbers that are kept. The scores in nats say what an image "
        "costs if the memory is known: one that was written, or a new image of the classes that were written."
    )
    FIGURES: ClassVar[dict[str, str]] = {
        "": "How often recall ends nearest to the right image, against the floats that the memory keeps. Lines: "
        "models that keep images or codes one by one, with less and more room. Points: models whose memory has one "
        "size.",
        "wrong": "How many pixels of the answer are wrong, in the same way.",
    }
    SMOKE: ClassVar[dict[str, Any]] = {
        "lengths": (4,),
        "budgets": (50,),
        "episodes": 2,
        "steps": 2,
        "images": 64,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, lengths=1, budgets=1, episodes=1, cues=1, steps=1, images=1, classes=1)

    def rounds(self, model: Model) -> int:
        return 2 + sum(len(self.rooms(model, length)) for length in self.lengths)

    def rooms(self, model: Model, length: int) -> list[int]:
        """How many of so many images a model writes: all, and what fits into each budget if that is fewer."""
        return sorted({min(length, fitting(model, budget, length)) for budget in self.budgets} - {0} | {length})

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        model, unseen = subject.model, subject.unseen
        scores = self.scores(model, unseen)
        tick()
        tasks = [self.task(unseen, length) for length in self.lengths]
        times = clock(model, tasks[0].to(model.device), self.steps)
        tick()
        recalls = []
        for length, task in zip(self.lengths, tasks, strict=True):
            for room in self.rooms(model, length):
                found = recall(model, task.to(model.device), room, self.steps, generator)
                recalls.append({"length": length, "written": room, "kept": model.kept(room), "damage": found})
                tick()
        return {
            "title": model.TITLE,
            "method": model.METHODS[0],
            "binary": unseen.binary,
            "pixels": unseen.pixels[0].numel(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "kept": model.kept(LENGTH),
            "grows": grows(model),
            "nats": scores,
            "seconds": times,
            "recall": recalls,
            "headline": cells(unseen.binary)[0].name,
            "sha256": base.fingerprint(x for task in tasks for x in (task.x, *task.cues.values())),
        }

    def scores(self, model: Model, images: ClassImages) -> dict[str, Any]:
        """Nats per image: of images that were written, KL(M)/T beside it, and of new ones of written classes."""
        score = evaluate(model, images, LENGTH, self.images, seed=self.seed, extra=False)
        stored = {"mean": score.nats, "stderr": score.nats_stderr}
        return {
            "stored": stored,
            "kl_memory": score.kl_memory,
            "new": new_images(model, images, self.images, self.classes, self.seed),
        }

    def task(self, images: ClassImages, length: int) -> Task:
        """Different images, and every kind of damage to them, the same on every device."""
        generator = torch.Generator().manual_seed(self.seed)
        x = base.distinct(images.to("cpu"), self.episodes, length, generator)
        asked = torch.linspace(0, length - 1, min(self.cues, length)).round().long()
        made = {cell.name: (cell, cell.corrupt(x[:, asked], generator)) for cell in cells(images.binary)}
        masks = {name: cue.mask if cell.known else None for name, (cell, cue) in made.items()}
        return Task(x, asked, {name: cue.x for name, (_, cue) in made.items()}, masks)

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """Recall from the paper's damage, in every room; beside the first, what images cost, and times."""
        unit = f"wrong pixels of {result['pixels']}" if result["binary"] else "root mean square error"
        head = [f"from {result['headline']}", "floats kept", unit, "nearest to the right image"]
        head += ["nats, written", "nats, new", "ms to write", "ms to recall"]
        nats, seconds = result["nats"], result["seconds"]
        about = [nats["stored"], nats["new"], 1e3 * seconds["write"], 1e3 * seconds["recall"]]
        rows = []
        for found in result["recall"]:
            cell, all_of_it = found["damage"][result["headline"]], found["written"] == found["length"]
            name = f"{found['length']} images" + ("" if all_of_it else f", room for {found['written']}")
            more = about if found is result["recall"][0] else [None] * len(about)
            rows.append([name, found["kept"], cell["wrong"], Share(cell["right"]), *more])
        return Table(head, rows)


def cells(binary: bool) -> list[Cell]:
    """The kinds of damage: the paper's, twice as much of it, and parts that are lost."""
    levels = (denoising.HEADLINE, 2 * denoising.HEADLINE)
    return [denoising.noisy(binary, level, level == denoising.HEADLINE) for level in levels] + denoising.holes(
        binary
    )


def grows(model: Model) -> bool:
    """Whether a model keeps the more, the more is written."""
    return model.kept(2) > model.kept(1)


def fitting(model: Model, budget: int, most: int) -> int:
    """How many images a model can keep in so many floats; `most` if its memory has one size."""
    return max(n for n in range(most + 1) if model.kept(n) <= budget) if grows(model) else most


def recall(
    model: Model, task: Task, room: int, steps: int, generator: torch.Generator
) -> dict[str, dict[str, dict[str, float]]]:
    """Write as many images as there is room for, ask for some, and compare: for every kind of damage."""
    state, found = model.write(task.x[:, :room]), {}
    for name, cue in task.cues.items():
        last = model.recall(state, cue, steps, mask=task.masks[name], generator=generator).last
        apart = base.distances(last, task.x)
        wrong = apart.gather(-1, task.asked.expand(len(apart), -1)[..., None]).squeeze(-1)
        right = denoising.hits(apart, task.asked)
        found[name] = {"wrong": base.mean(wrong), "right": base.mean(right.to(wrong))}
    return found


def clock(model: Model, task: Task, steps: int) -> dict[str, float]:
    """Seconds to write an image and to recall one from the paper's damage, memories and cues together."""
    cue, state = next(iter(task.cues.values())), model.write(task.x)
    jobs: dict[str, Callable[[], Any]] = {
        "write": lambda: model.write(task.x),
        "recall": lambda: model.recall(state, cue, steps),
    }
    images = {"write": task.x[..., 0, 0, 0].numel(), "recall": cue[..., 0, 0, 0].numel()}
    return {name: seconds(job, model.device) / images[name] for name, job in jobs.items()}


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
