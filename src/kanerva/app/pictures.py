"""Somebody's own pictures in one memory: stored, damaged, recalled, and judged."""

import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageDraw
from torch import Tensor

from .. import data
from ..data import Cue
from ..data.own import Pictures, is_image, is_sheet, names, pictures
from ..lab.tables import Table, show
from ..models import Model
from ..models.checkpoint import locate
from ..support.pixels import distances, is_binary, of_picture
from ..support.say import bar
from ..training.presets import PRESETS

# The kinds of damage with their usual levels: shares of pixels or of the area, and a standard deviation.
LEVELS = {"flips": 0.15, "noise": 0.15, "block": 0.25, "half": None, "none": None}


class Inputs(NamedTuple):
    """Pictures as a model takes them."""

    names: list[str]
    x: Float[Tensor, "N c h w"]
    stored: int
    """So many of them, the first, are stored."""
    ink: list[str]
    """Whether ink is dark or light in each file; in binary images it is 1. Empty for other images."""
    paths: list[Path]
    """All files that were found."""
    left_out: dict[str, str]
    """What could not be read, and why."""


class Answers(NamedTuple):
    """What came back for N pictures, and the memory that it came from."""

    state: Any
    cue: Float[Tensor, "N c h w"]
    x: Float[Tensor, "N c h w"]
    certified: list[bool | None]
    """Whether each is surely a stored picture, to the last pixel; None where a model does not say."""


def left_out(model: str, images: tuple[str, ...]) -> str | None:
    """What is missing, and what to type, where somebody left out a part of `kanerva recall MODEL IMAGES`."""
    place, pictures = Path(model), shlex.join(images) or "FOLDER"
    if locate(model).is_file() and not is_image(place):
        usual = f"type kanerva recall {shlex.quote(model)} FOLDER, with a folder of pictures"
        return None if images else f"IMAGES: expected pictures after the model {model}, got none; {usual}"
    if model in PRESETS:
        run = f"runs/{model}"
        own = f" --dataset {pictures if len(images) == 1 else 'FOLDER'} --size 32" if model == "colour" else ""
        first = "" if locate(run).is_file() else f"kanerva train {model}{own}, then "
        return (
            f"MODEL: expected a trained model, got {model}, which is a preset of kanerva train; type {first}"
            f"kanerva recall {run} {pictures}"
        )
    if not images or is_image(place) or (place.is_dir() and any(map(is_image, place.iterdir()))):
        return (
            f"MODEL: expected a model before the pictures, got {model}; type kanerva recall omniglot "
            f"{shlex.join([model, *images])}, or in place of omniglot the folder of a run"
        )
    return None


def read(model: Model, images: Sequence[str], others: Sequence[str], threshold: float, ink: str) -> Inputs:
    """Read pictures to store, and others, in the size and kind of a model's images.

    In binary ones a pixel is ink from the share `threshold` on. ink: dark, light, or auto: what there is less of in
    each picture.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"binary: expected a share of ink above 0 and up to 1, got {threshold}")
    first = pictures(images, model.config.image)
    rest = pictures(others, model.config.image) if others else Pictures(first.pixels[:0], [], {})
    pixels, paths = np.concatenate([first.pixels, rest.pixels]), first.paths + rest.paths
    left_out = first.left_out | rest.left_out
    called = names([*paths, *left_out])
    made = [of_picture(levels, model.config.binary, threshold, ink) for levels in pixels]
    x, inks = torch.stack([image for image, _ in made]).to(model.like), [found for _, found in made if found]
    why = dict(zip(called[len(paths) :], left_out.values(), strict=True))
    return Inputs(called[: len(paths)], x, len(first.paths), inks, [*paths, *left_out], why)


def check_outputs(outputs: dict[str, Path | None], inputs: Sequence[Path]) -> None:
    """Check that files to be written, by their flags, are not each other, and none that was read."""
    for flag, path in outputs.items():
        for other, second in outputs.items():
            if path is not None and second is not None and flag < other and same(path, second):
                raise ValueError(f"{other}: expected another file than {flag}, got {second} for both")
        if path is not None and any(same(path, one) for one in inputs) and not is_sheet(path):
            raise ValueError(f"{flag}: expected another file than those that are read, got {path}, which is one")


def same(a: Path, b: Path) -> bool:
    """Whether two paths lead to one file."""
    return os.path.realpath(a) == os.path.realpath(b) or (a.exists() and b.exists() and a.samefile(b))


def damaged(x: Float[Tensor, "N c h w"], kind: str, level: float | None, generator: torch.Generator) -> Cue:
    """Damage pictures; a level of None is the usual one of that kind."""
    if level is not None and LEVELS[kind] is None:
        raise ValueError(f"level: expected none with damage {kind}, got {level}")
    most = math.inf if kind == "noise" else 1
    if level is not None and not (math.isfinite(level) and 0 <= level <= most):
        wanted = "a standard deviation of 0 or more" if kind == "noise" else "a share from 0 to 1"
        raise ValueError(f"level: expected {wanted} for damage {kind}, got {level:g}")
    level = LEVELS[kind] if level is None else level
    if level is None:
        return data.half(x) if kind == "half" else Cue(x, None)
    if kind == "flips" and not is_binary(x):
        raise ValueError("damage: expected noise, block, half or none for a model of grey or colour, got flips")
    corrupt = {"flips": data.flips, "noise": data.noise, "block": data.block}[kind]
    return corrupt(x, level, generator)


def ask(model: Model, asked: Inputs, cue: Cue, method: str, steps: int, generator: torch.Generator) -> Answers:
    """Write pictures into one memory and ask it for cues. Erased pixels are known."""
    with torch.no_grad(), bar("recall", steps) as advance:
        state = model.write(asked.x[: asked.stored])
        known: dict[str, Any] = {"mask": cue.mask, "generator": generator, "callback": lambda *_: advance(1)}
        found = model.recall(state, cue.x, steps, method, **known)
    sure = [None] * len(cue.x) if found.certified is None else found.certified.tolist()
    return Answers(state, cue.x, found.last, sure)


def judge(asked: Inputs, answers: Answers) -> list[dict[str, Any]]:
    """What happened to each picture: how wrong cue and answer are, and the stored picture nearest to the answer.

    "itself": whether that is the picture, told by its pixels: names can be alike. "worse": whether the answer is
    farther from the picture than the cue was; no cue is better than one without damage.
    """
    stored = asked.x[: asked.stored]
    nearest = distances(answers.x, stored).argmin(-1).tolist()
    found = []
    for i, (name, x, place) in enumerate(zip(asked.names, asked.x, nearest, strict=True)):
        there = bool((x == stored).flatten(1).all(1).any())
        cue, answer = (distances(y[i][None], x[None]).item() for y in (answers.cue, answers.x))
        itself = there and torch.equal(stored[place], x)
        found.append(
            {
                "picture": name,
                "stored": there,
                "cue": round(cue, 4),
                "recalled": round(answer, 4),
                "worse": 0 < cue < answer,
                "nearest": name if itself else asked.names[place],
                "itself": itself,
                "certified": answers.certified[i],
                **({"ink": asked.ink[i]} if asked.ink else {}),
            }
        )
    return found


def summary(found: list[dict[str, Any]]) -> str:
    """How many stored pictures came back, in a line. One that recall has made worse did not."""
    own = [one for one in found if one["stored"]]
    right = [one for one in own if one["itself"] and not one["worse"]]
    worse = sum(one["worse"] for one in own)
    said = f"{len(right)} of {len(own)} stored pictures end nearest to themselves"
    said += " and no farther off than the cue" if worse else ""
    if any(one["certified"] is not None for one in own):
        said += f", {sum(bool(one['certified']) for one in right)} of them certified"
    return said + (f"; {worse} {'is' if worse == 1 else 'are'} worse than the cue" if worse else "")


def inks(asked: Inputs) -> str:
    """Whether ink is dark or light, and in how many pictures where they differ."""
    count = {ink: asked.ink.count(ink) for ink in ("dark", "light") if ink in asked.ink}
    return next(iter(count)) if len(count) == 1 else ", ".join(f"{ink} in {n}" for ink, n in count.items())


def table(found: list[dict[str, Any]], pixels: int | None) -> Table:
    """The same for people; `pixels` are those of a binary image, and None for others."""
    unit, number = ("root mean square error", float) if pixels is None else (f"wrong pixels of {pixels}", int)
    rows = [
        [
            *(one["picture"], one["stored"], number(one["cue"])),
            f"worse: {show(number(one['recalled']))}" if one["worse"] else number(one["recalled"]),
            *("itself" if one["itself"] else one["nearest"], one["certified"]),
        ]
        for one in found
    ]
    return Table(["", "stored", f"cue: {unit}", f"recalled: {unit}", "nearest stored picture", "certified"], rows)


def sheet(bands: Image.Image, found: list[dict[str, Any]], columns: int = 8) -> Image.Image:
    """Name the rows of a sheet, picture, cue and recalled in turn.

    What is certified is framed in green, and what is worse than the cue in red.
    """
    margin, titles = 72, ("picture", "cue", "recalled")
    rows = 3 * -(-len(found) // columns)
    high, wide = bands.height // rows, bands.width // columns
    whole = Image.new("RGB", (bands.width + margin, bands.height), "white")
    whole.paste(bands, (margin, 0))
    draw = ImageDraw.Draw(whole)
    for row in range(rows):
        draw.text((margin - 8, (row + 0.5) * high), titles[row % 3], "black", anchor="rm", font_size=13)
    for i, one in enumerate(found):
        if one["certified"] or one["worse"]:
            left, top = margin + i % columns * wide, (3 * (i // columns) + 2) * high
            colour = "#D55E00" if one["worse"] else "#009E73"
            draw.rectangle((left, top, left + wide - 1, top + high - 1), outline=colour, width=3)
    return whole
