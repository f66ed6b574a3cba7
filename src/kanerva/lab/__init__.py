"""The paper's experiments, and what its reviewers asked for: each computes numbers, writes JSON, draws figures."""

import glob
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .runner import Experiment


class Entry(NamedTuple):
    """What the list says of an experiment; all else is in its own file, which the list does not import."""

    kind: str
    """Its class, in the file of the experiment's name."""
    line: str
    """What it asks, for somebody who has not read the paper."""


EXPERIMENTS = {
    "capacity": Entry("Capacity", "How well images are recalled as more of them are stored."),
    "denoising": Entry("Denoising", "How much of a damaged image recall mends, step by step."),
    "sampling": Entry("Sampling", "New images like those in memory, and whether recall improves them."),
    "more": Entry("More", "New images of a class from ten examples, and whether they are of that class."),
    "basins": Entry("Basins", "How far from a stored image recall may start and still arrive at it."),
    "order": Entry("Order", "Whether it matters in which order images are written."),
    "fixed-points": Entry("FixedPoints", "Whether recall stays at stored images, and is stable there."),
    "rivals": Entry("Rivals", "How much each model remembers for the numbers that it keeps."),
    "inside": Entry("Inside", "What a memory says of itself: which images it holds, found without a cue."),
}


def find(name: str) -> "type[Experiment]":
    """The class of an experiment, imported now and not before: the list of them is to be quick."""
    kind: type[Experiment] = getattr(importlib.import_module(f"{__name__}.{module(name)}"), EXPERIMENTS[name].kind)
    return kind


def module(name: str) -> str:
    """The file of an experiment here, and that of its figures in plots/."""
    return name.replace("-", "_")


def figures(path: Path) -> list[Path]:
    """The pictures (PNG) beside a file of results: NAME.png, NAME-END.png."""
    ends = sorted(path.parent.glob(f"{glob.escape(path.stem)}-*.png"))
    return [file for file in (path.with_suffix(".png"), *ends) if file.is_file()]
