"""Somebody's own pictures in one memory: stored, damaged, recalled, and judged."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageDraw
from torch import Tensor

from . import data
from .data import Cue
from .data.images import pictures
from .experiments.base import distances
from .experiments.tables import Table
from .models import Model
from .progress import bar

# The kinds of damage with their usual levels: shares of pixels or of the area, and a standard deviation.
LEVELS = {"flips": 0.15, "noise": 0.15, "block": 0.25, "half": None, "none": None}


class Pictures(NamedTuple):
    """Pictures as a model takes them."""

    names: list[str]
    x: Float[Tensor, "N c h w"]
    stored: int
    """So many of them, the first, are stored."""
    ink: str
    """Whether ink is dark or light in the files; in binary images it is 1."""


class Answers(NamedTuple):
    """What came back for N pictures, and the memory that it came from."""

    state: Any
    cue: Float[Tensor, "N c h w"]
    x: Float[Tensor, "N c h w"]
    certified: list[bool | None]
    """Whether each is surely a stored picture, to the last pixel; None where a model does not say."""


def read(model: Model, images: Sequence[str], others: Sequence[str], threshold: float, ink: str) -> Pictures:
    """Read pictures to store, and others, in the size and kind of a model's images.

    In binary ones a pixel is ink from the share `threshold` on. ink: dark, light, or auto: what there is less of.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"binary: expected a share of ink above 0 and up to 1, got {threshold}")
    names, pixels = pictures(images, model.config.image)
    stored = len(names)
    if others:
        more, rest = pictures(others, model.config.image)
        names, pixels = names + more, np.concatenate([pixels, rest])
    levels = torch.tensor(pixels).to(model.like)
    if not model.config.binary:
        return Pictures(names, levels / 128 - 1, stored, "")
    ink = ("dark" if float(levels.mean()) > 127.5 else "light") if ink == "auto" else ink
    share = (255 - levels if ink == "dark" else levels) / 255
    return Pictures(names, (share >= threshold).to(share), stored, ink)


def damaged(x: Float[Tensor, "N c h w"], kind: str, level: float | None, generator: torch.Generator) -> Cue:
    """Damage pictures; a level of None is the usual one of that kind."""
    if level is not None and LEVELS[kind] is None:
        raise ValueError(f"level: expected none with damage {kind}, got {level}")
    level = LEVELS[kind] if level is None else level
    if kind == "none" or level is None:
        return data.half(x) if kind == "half" else Cue(x, None)
    if kind == "flips" and x.numel() and bool(((x != 0) & (x != 1)).any()):
        raise ValueError("damage: expected noise, block, half or none for a model of grey or colour, got flips")
    corrupt = {"flips": data.flips, "noise": data.noise, "block": data.block}[kind]
    return corrupt(x, level, generator)


def ask(model: Model, asked: Pictures, cue: Cue, method: str, steps: int, generator: torch.Generator) -> Answers:
    """Write pictures into one memory and ask it for cues. Erased pixels are known."""
    with torch.no_grad(), bar("recall", steps) as advance:
        state = model.write(asked.x[: asked.stored])
        known: dict[str, Any] = {"mask": cue.mask, "generator": generator, "callback": lambda *_: advance(1)}
        found = model.recall(state, cue.x, steps, method, **known)
    sure = [None] * len(cue.x) if found.certified is None else found.certified.tolist()
    return Answers(state, cue.x, found.last, sure)


def judge(asked: Pictures, answers: Answers) -> list[dict[str, Any]]:
    """What happened to each picture: how wrong cue and answer are, and the stored picture nearest to the answer."""
    stored = asked.x[: asked.stored]
    nearest = distances(answers.x, stored).argmin(-1).tolist()
    return [
        {
            "picture": name,
            "stored": bool((x == stored).flatten(1).all(1).any()),
            "cue": round(distances(cue[None], x[None]).item(), 4),
            "recalled": round(distances(found[None], x[None]).item(), 4),
            "nearest": asked.names[place],
            "certified": sure,
        }
        for name, x, cue, found, place, sure in zip(
            asked.names, asked.x, answers.cue, answers.x, nearest, answers.certified, strict=True
        )
    ]


def summary(found: list[dict[str, Any]]) -> str:
    """How many stored pictures came back, in a line."""
    own = [one for one in found if one["stored"]]
    right = sum(one["nearest"] == one["picture"] for one in own)
    sure = [bool(one["certified"]) for one in own if one["certified"] is not None]
    said = f"{right} of {len(own)} stored pictures end nearest to themselves"
    return said + (f", {sum(sure)} of them certified" if sure else "")


def table(found: list[dict[str, Any]], pixels: int | None) -> Table:
    """The same for people; `pixels` are those of a binary image, and None for others."""
    unit, number = ("root mean square error", float) if pixels is None else (f"wrong pixels of {pixels}", int)
    rows = [
        [
            *(one["picture"], one["stored"], number(one["cue"]), number(one["recalled"])),
            *("itself" if one["nearest"] == one["picture"] else one["nearest"], one["certified"]),
        ]
        for one in found
    ]
    return Table(["", "stored", f"cue: {unit}", f"recalled: {unit}", "nearest stored picture", "certified"], rows)


def sheet(bands: Image.Image, count: int, sure: list[bool | None], columns: int = 8) -> Image.Image:
    """Name the rows of a sheet, picture, cue and recalled in turn, and frame in green what is certified."""
    margin, names = 72, ("picture", "cue", "recalled")
    rows = 3 * -(-count // columns)
    high, wide = bands.height // rows, bands.width // columns
    whole = Image.new("RGB", (bands.width + margin, bands.height), "white")
    whole.paste(bands, (margin, 0))
    draw = ImageDraw.Draw(whole)
    for row in range(rows):
        draw.text((margin - 8, (row + 0.5) * high), names[row % 3], "black", anchor="rm", font_size=13)
    for i in range(count):
        if sure[i]:
            left, top = margin + i % columns * wide, (3 * (i // columns) + 2) * high
            draw.rectangle((left, top, left + wide - 1, top + high - 1), outline="#009E73", width=3)
    return whole
