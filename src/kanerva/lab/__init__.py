"""Experiments, one file each: `run` gives numbers, `table` and `figures` show them and need nothing else.

runner      with which models and images is an experiment made, what are its flags, where do its results go?
measures    what is stored, damaged and asked for, and which answers are right?
tables      how are numbers written for people?
drawing     how is a figure made from a file of results?
pictures    how do images get into files of results, and onto sheets?
plane       what is the energy on a plane through three addresses?

The other files are the experiments: EXPERIMENTS has the question of each.
"""

import importlib
from types import ModuleType

EXPERIMENTS = {
    "capacity": "How well images are recalled as more of them are stored.",
    "denoising": "How much of a damaged image recall mends, step by step.",
    "sampling": "New images like those in memory, and whether recall improves them.",
    "basins": "How far from a stored image recall may start and still arrive at it.",
    "fixed-points": "Whether recall stays at stored images, and is stable there.",
    "rivals": "How much each model remembers for the numbers that it keeps.",
    "inside": "Which images a memory holds, found without a cue.",
}
"""What each asks, for somebody who has not read the paper."""


def find(name: str) -> ModuleType:
    """The file of an experiment, imported only now: the list above must be quick to show."""
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
