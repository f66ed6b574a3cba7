"""Denoising: write images, corrupt them, recall them, in every way and from every kind of damage [fig. omniglot].

Noise is never seen in training. All methods see the same cues, and cues of one episode share their random numbers:
what 5 % of flips turn over is among what 10 % do. Beside the memory stands a yardstick that has more than it: the
nearest of the stored images themselves, which a memory does not keep.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .. import checks
from ..data import damage
from ..data.damage import Cue
from ..models import Model, Recall
from ..support.pixels import LEVEL
from . import base
from .base import Experiment, Subject
from .tables import Share, Table

HEADLINE = 0.15
"""The paper's corruption: a share of flips, or the standard deviation of noise [sec. 4]."""
STEP = ", step "
"""Ends the name of a row of pictures, before its step."""
TOLD = ", told"
"""Ends the name of a recall that is told the noise."""


class Cell(NamedTuple):
    """One kind of damage, and what is known of it."""

    name: str
    kind: str
    """flips or noise, which have levels and make a curve, or other."""
    level: float | None
    corrupt: Callable[[Tensor, torch.Generator], Cue]
    noise: float | None = None
    """What a recall is told in "…, told": the flip probability, or the variance; None where there is none."""
    known: bool = False
    """Recalls that take a mask are given it, with or without being told the noise."""
    headline: bool = False


class Episode(NamedTuple):
    """Images, the memory that they were written in, and the seed of what happens to them."""

    x: Float[Tensor, "T c h w"]
    state: Any
    seed: int

    def cue(self, cell: Cell) -> Cue:
        """Corrupted images, from the same random numbers for every kind of damage."""
        return cell.corrupt(self.x, torch.Generator(self.x.device).manual_seed(self.seed))


class Measures(NamedTuple):
    """What is measured of a trajectory of S steps from Q cues."""

    wrong: Float[Tensor, "S Q"]
    """Wrong pixels, or the root mean square error, against the clean image."""
    right: Float[Tensor, "S Q"]
    """1 where the clean image is the nearest of all that are stored."""
    blank: Float[Tensor, "S Q"]
    """1 where all pixels are alike: nothing is left of the image."""
    energy: Float[Tensor, "S Q"] | None
    """None where the model has none."""
    rose: Float[Tensor, "S Q"] | None
    """1 where the energy is above that of the step before; the first step has none before it."""
    psnr: Float[Tensor, "S Q"] | None
    """Peak signal-to-noise ratio in dB, of images on [−1, 1]; None for binary ones."""


@dataclass(frozen=True, kw_only=True)
class Denoising(Experiment):
    """Write images, corrupt them and recall them, in every way and from every kind of damage [sec. 4]."""

    episodes: int = 4
    """Memories; the spread is over them."""
    length: int = 32
    """Images in each memory, all of them recalled."""
    steps: int = 15
    """Steps of recall."""
    flips: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
    """Binary images: shares of bits to flip."""
    noises: tuple[float, ...] = (0.0, 0.15, 0.3)
    """Other images: standard deviations of noise to add."""
    pictures: int = 12
    """Images in the picture."""

    NAME: ClassVar[str] = "denoising"
    TITLE: ClassVar[str] = "Denoising"
    ABOUT: ClassVar[str] = (
        "Stored images are damaged in ways that training never showed, and the memory is asked for them. Each step "
        "of recall finds where in memory the image may be, reads what is there, and goes on from that. Of the "
        "Dynamic Kanerva Machine's recalls, least-squares is the paper's rule; descent goes down an energy that "
        "knows of the damage, and can be told what it is like; stochastic is a Markov chain. The yardstick, the "
        "nearest stored image, needs all images to be kept, which a memory does not do."
    )
    FIGURES: ClassVar[dict[str, str]] = {
        "pictures": "Originals, damaged cues, and what recall makes of them.",
        "steps": "Errors, energy (where the model has one) and the share of right answers at every step, from the "
        "damage of the paper.",
        "grid": "The last step, first for more and less noise, then for other kinds of damage.",
    }
    SMOKE: ClassVar[dict[str, Any]] = {
        "episodes": 2,
        "length": 4,
        "steps": 3,
        "flips": (0.0, 0.15),
        "noises": (0.15,),
        "pictures": 4,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, episodes=1, length=1, steps=1, flips=0, noises=0, pictures=1)
        if max(self.flips) > 1:
            raise ValueError(f"flips: expected shares of at most 1, got {self.flips}")

    def rounds(self, model: Model) -> int:
        cells = grid(model.config.binary, self.flips, self.noises)
        return self.episodes * self.steps * sum(len(methods(model, cell)) for cell in cells)

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        model, cells = subject.model, grid(subject.unseen.binary, self.flips, self.noises)
        episodes = draw(subject, self.episodes, self.length, generator)
        jobs = [(cell, method) for cell in cells for method in methods(model, cell)]
        made: dict[tuple[str, str], list[Measures]] = {(cell.name, method): [] for cell, method in jobs}
        shown: dict[str, Recall] = {}
        for episode, (cell, method) in itertools.product(episodes, jobs):
            path = recall(model, episode, cell, method, self.steps, generator, tick)
            made[cell.name, method].append(measure(path, episode.x))
            if cell.headline and episode is episodes[0]:
                shown[method] = path
        headline = next(cell for cell in cells if cell.headline)
        first = episodes[0]
        plain = {method: shown[method] for method in base.recalls(model, chains=False)}
        return {
            "binary": subject.unseen.binary,
            "pixels": first.x[0].numel(),
            "kept": model.kept(self.length),
            "chance": 1 / self.length,
            "headline": headline.name,
            "stored": at_rest(model, episodes),
            "cells": [
                {
                    **{key: getattr(cell, key) for key in ("name", "kind", "level", "noise", "known")},
                    **yardsticks(cell, episodes),
                    "methods": {method: final(made[cell.name, method]) for method in methods(model, cell)},
                }
                for cell in cells
            ],
            "steps": {method: stepwise(made[headline.name, method]) for method in methods(model, headline)},
            "paths": base.energies(shown),
            "pictures": pictures(first.x, first.cue(headline).x, plain, self.pictures),
        }

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """How recall ends, from the damage of the paper."""
        cell = next(cell for cell in result["cells"] if cell["name"] == result["headline"])
        unit = f"wrong pixels of {result['pixels']}" if result["binary"] else "root mean square error"
        other, kept = cell["nearest"], result.get("kept")  # which earlier results do not say
        rows = [
            ["the cue", cell["cue"]["wrong"], cell["cue"].get("psnr"), None, None, None],
            *(
                [name, m["wrong"], m.get("psnr"), Share(m["right"]), Share(m.get("rose")), kept]
                for name, m in cell["methods"].items()
            ),
            ["nearest stored image to the cue", other["wrong"], None, Share(other["right"]), None, None],
        ]
        head = ["PSNR, dB", "nearest to the right image", "steps that raise the energy", "floats kept"]
        if "psnr" not in cell["cue"]:  # binary images
            head, rows = head[1:], [[*row[:2], *row[3:]] for row in rows]
        return Table([f"from {cell['name']}", unit, *head], rows)

    @staticmethod
    def strips(result: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[int, int]]] | None:
        """Stored images, cues, and what each way to recall makes of them, as far as steps are in the picture."""
        rows: dict[str, dict[int, int]] = {}
        for number, name in enumerate(result["pictures"]["rows"]):
            strip, _, step = name.partition(STEP)
            rows.setdefault({"original": "stored", "cue": f"cue, {result['headline']}"}.get(strip, strip), {})[
                int(step or 0)
            ] = number
        return result["pictures"]["images"], rows


def draw(subject: Subject, count: int, length: int, generator: torch.Generator) -> list[Episode]:
    """Write memories of images that were not seen in training."""
    x = base.distinct(subject.unseen, count, length, generator)
    seeds = torch.randint(1 << 62, (count,), generator=generator, device=x.device).tolist()
    return [Episode(a, subject.model.write(a), seed) for a, seed in zip(x, seeds, strict=True)]


def grid(binary: bool, flips: Sequence[float], noises: Sequence[float]) -> list[Cell]:
    """Every kind of damage of the protocol, for binary images or for others."""
    levels = flips if binary else noises
    paper = min(levels, key=lambda level: abs(level - HEADLINE))
    return [noisy(binary, level, level == paper) for level in levels] + (others() if binary else []) + holes(binary)


def noisy(binary: bool, level: float, headline: bool) -> Cell:
    """Flips, or Gaussian noise, at a level."""
    if binary:
        name, told = f"{100 * level:g} % flips", level if 0 < level < 0.5 else None
        return Cell(name, "flips", level, lambda x, g: damage.flips(x, level, g), told, headline=headline)
    name, told = f"noise {level:g}", level**2 or None
    return Cell(name, "noise", level, lambda x, g: damage.noise(x, level, g), told, headline=headline)


def others() -> list[Cell]:
    """Noise that only binary images can have: salt and pepper in a share s of pixels is a share s/2 of flips."""
    return [
        Cell("30 % salt and pepper", "other", None, lambda x, g: damage.salt_and_pepper(x, 0.3, g), 0.15),
        Cell("half erased, rest 10 % flips", "other", None, flipped_half, 0.1, known=True),
    ]


def flipped_half(x: Tensor, generator: torch.Generator) -> Cue:
    return damage.half(damage.flips(x, 0.1, generator).x)


def holes(binary: bool) -> list[Cell]:
    """Parts that are lost. Where it is not known which, they are pixels like all others, of the value 0."""
    blank = "blank" if binary else "grey"
    return [
        Cell("25 % block erased", "other", None, lambda x, g: damage.block(x, 0.25, g), known=True),
        Cell(f"25 % block {blank}, not known", "other", None, lambda x, g: damage.block(x, 0.25, g)),
        Cell("half erased", "other", None, lambda x, _: damage.half(x), known=True),
        Cell(f"half {blank}, not known", "other", None, lambda x, _: damage.half(x)),
    ]


def methods(model: Model, cell: Cell) -> list[str]:
    """The ways to recall that are tried on a kind of damage; Markov chains only on the paper's."""
    names = []
    for name in base.recalls(model, chains=cell.headline):
        tell = cell.noise is not None and "noise" in model.options(name)
        names += [name, name + TOLD] if tell else [name]
    return names


def recall(
    model: Model,
    episode: Episode,
    cell: Cell,
    method: str,
    steps: int,
    generator: torch.Generator,
    tick: Callable[[], None] = lambda: None,
) -> Recall:
    """Recall in one of the ways, telling it what it can use and may know; calls `tick` once for every step."""
    cue, name = episode.cue(cell), method.removesuffix(TOLD)
    noise, mask = cell.noise if method.endswith(TOLD) else None, cue.mask if cell.known else None
    made = 0

    def callback(*_: Any) -> None:
        nonlocal made
        made += 1
        tick()

    options = base.told(model, name, noise=noise, mask=mask, generator=generator, callback=callback)
    path = model.recall(episode.state, cue.x, steps, name, **options)
    for _ in range(steps - made):  # at rest early, or not one to report its steps
        tick()
    return path


def measure(path: Recall, clean: Float[Tensor, "Q c h w"]) -> Measures:
    """Judge a trajectory whose cues are those of all stored images, in their order."""
    apart = base.distances(path.x, clean)
    right = hits(apart, torch.arange(len(clean), device=clean.device))
    flat = path.x.flatten(2)
    blank = flat.amax(-1) == flat.amin(-1)
    wrong, energy = apart.diagonal(dim1=-2, dim2=-1), path.energy
    rose = None if energy is None else rises(energy)
    noise = None if base.is_binary(clean) else psnr(wrong)
    return Measures(wrong, right.to(wrong), blank.to(wrong), energy, rose, noise)


def psnr(error: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """20 log10(2 / error), the peak signal-to-noise ratio in dB of images that lie on [−1, 1].

    The error is a root mean square. Where it is 0 the ratio has no bound: half a grey level is taken instead.
    """
    return 20 * (2 / error.clamp(min=LEVEL / 2)).log10()


def hits(apart: Float[Tensor, "*b Q T"], answer: Int64[Tensor, "Q"]) -> Bool[Tensor, "*b Q"]:
    """Whether the stored image that is nearest is the right one."""
    return apart.argmin(-1) == answer


def rises(energy: Float[Tensor, "S *b"]) -> Float[Tensor, "S *b"]:
    """1 where an energy is above that of the step before, by however little; 0 for the first step."""
    rose = torch.zeros_like(energy)
    rose[1:] = (energy[1:] > energy[:-1]).to(energy)
    return rose


def final(made: list[Measures]) -> dict[str, Any]:
    """The last step's measures, and the share of all steps after the first that raised the energy."""
    found = together(made)
    last = {key: base.mean(values[-1]) for key, values in found.items() if key != "rose"}
    if "rose" not in found:
        return last
    rose = found["rose"]
    return {**last, "rose": base.mean((rose[1:] if len(rose) > 1 else rose).mean((0, 2)))}


def stepwise(made: list[Measures]) -> dict[str, Any]:
    """Every measure at every step."""
    return {key: base.means(values) for key, values in together(made).items()}


def together(made: list[Measures]) -> dict[str, Float[Tensor, "S E Q"]]:
    """The measures of E episodes, of those that the model has."""
    columns = dict(zip(Measures._fields, zip(*made, strict=True), strict=True))
    return {key: torch.stack(values, 1) for key, values in columns.items() if values[0] is not None}


def at_rest(model: Model, episodes: list[Episode]) -> dict[str, Any]:
    """The energy of the stored images themselves, where the model has one."""
    found = [model.energy_at(episode.state, episode.x) for episode in episodes]
    energy = [values for values in found if values is not None]
    return {"energy": base.mean(torch.stack(energy))} if energy else {}


def yardsticks(cell: Cell, episodes: list[Episode]) -> dict[str, Any]:
    """How bad cues are, and how well the nearest stored image does, by the pixels that are known to be good."""
    rows = []
    for episode in episodes:
        cue, answer = episode.cue(cell), torch.arange(len(episode.x), device=episode.x.device)
        found = apart(cue, episode.x, cell.known).argmin(-1)
        missed = base.distances(episode.x, episode.x)[answer, found]
        rows.append((base.distances(cue.x, episode.x).diagonal(), (found == answer).to(missed), missed))
    wrong, right, other = (torch.stack(values) for values in zip(*rows, strict=True))
    cues = {"wrong": wrong} if base.is_binary(episodes[0].x) else {"wrong": wrong, "psnr": psnr(wrong)}
    nearest = {"right": base.mean(right), "wrong": base.mean(other)}
    return {"cue": {name: base.mean(values) for name, values in cues.items()}, "nearest": nearest}


def apart(cue: Cue, stored: Float[Tensor, "T c h w"], known: bool) -> Float[Tensor, "Q T"]:
    """Distances of cues to the stored images, over trusted pixels alone if they are known."""
    if not known or cue.mask is None:
        return base.distances(cue.x, stored)
    return torch.cat([base.distances((a * m)[None], stored * m) for a, m in zip(cue.x, cue.mask, strict=True)])


def pictures(
    x: Float[Tensor, "T c h w"], cue: Float[Tensor, "T c h w"], paths: dict[str, Recall], n: int
) -> dict[str, Any]:
    """Rows of images: originals, cues, and some steps of each way to recall."""
    rows, names = [x[:n], cue[:n]], ["original", "cue"]
    for method, path in paths.items():
        for step in chosen(len(path.x)):
            rows.append(path.x[step - 1, :n])
            names.append(f"{method}{STEP}{step}")
    return {"rows": names, "images": base.pack(torch.stack(rows))}


def chosen(steps: int) -> list[int]:
    """Steps to show: the early ones, where most happens, and the last."""
    return sorted({step for step in (1, 2, 4, steps) if step <= steps})
