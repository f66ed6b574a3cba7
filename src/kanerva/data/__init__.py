"""Images by class, and episodes drawn from them.

    episodes   what are images by class, how are they split, and how are episodes drawn from them?
    damage     what may happen to an image before it is recalled?
    augment    how are images changed at random, for training?
    glyphs     characters of many scripts, which need no download
    omniglot   handwritten characters: where are they found, and how are they prepared?
    mazes      which mazes are in which split, and what is seen in them?
    raycast    how is a view of a maze drawn?
    own        how are the user's own pictures read, and split?

`load` finds a data set by name, or reads the user's own pictures from a path.
"""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..support.say import nearest
from . import glyphs, mazes, omniglot, own
from .augment import augment, mirror
from .damage import Cue, block, flips, half, noise, salt_and_pepper
from .episodes import ClassImages, episodes

__all__ = [
    "ClassImages",
    "Cue",
    "augment",
    "block",
    "episodes",
    "flips",
    "half",
    "load",
    "mirror",
    "noise",
    "salt_and_pepper",
]

SETS: dict[str, Callable[..., ClassImages]] = {
    "glyphs": glyphs.load,
    "omniglot": omniglot.load,
    "mazes": mazes.load,
    "images": own.load,
}
SPLITS = ("train", "validation", "test", "train+validation")


def load(name: str | os.PathLike[str], split: str = "train", **given: Any) -> ClassImages:
    """Load one split of a data set; train, validation and test share no class, or at least no image.

    name: "glyphs"; "omniglot" (option data_dir); "mazes" (options size: 32 or 64; mazes: how many to train on); or
    a folder or file of your own (options of `kanerva.data.own.load`: size, binary, invert, channels),
    also as "images" with path=….
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}{nearest(split, SPLITS)}")
    key, known = find(name), options(name)
    if key != os.fspath(name):
        given = {"path": name, **given}
    for option in given:
        if option not in known:
            raise TypeError(
                f"{option}: expected an option of {key} ({', '.join(known) or 'it has none'})"
                f"{nearest(option, known)}"
            )
    return SETS[key](split, **given)


def find(name: str | os.PathLike[str]) -> str:
    """The data set of a name, or "images" for a path; any other name is an error."""
    key, path = os.fspath(name), Path(name).expanduser()
    if key in SETS:
        return key
    names = [name for name in SETS if name != "images"]
    like = "/" in key or os.sep in key or path.suffix in (".npy", ".npz", *own.SUFFIXES)
    if isinstance(name, str) and not like and not path.exists():
        wanted = f"one of {', '.join(names)}, or a path to {own.SOURCES}"
        raise ValueError(f"dataset: expected {wanted}, got {key!r}{nearest(key, names)}")
    return "images"


def options(name: str | os.PathLike[str]) -> tuple[str, ...]:
    """The options of a data set, which are those of its `load`."""
    return tuple(option for option in inspect.signature(SETS[find(name)]).parameters if option != "split")
