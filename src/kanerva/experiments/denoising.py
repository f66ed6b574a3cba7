"""Denoising: write images, corrupt them, recall them, in every way and from every kind of damage [fig. omniglot].

Noise is never seen in training. All methods see the same cues, and cues of one episode share their random numbers:
what 5 % of flips turn over is among what 10 % do. Beside the memory stands a yardstick that has more than it: the
nearest of the stored images themselves, which a memory does not keep.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .. import checks
from ..data import corruption
from ..data.corruption import Cue
from ..memory import MemoryState
from ..models import DKM
from ..recall.reader import Reader
from ..recall.trajectory import Recall
from . import base
from .base import Experiment, Subject

T = TypeVar("T")

HEADLINE = 0.15
"""The paper's corruption: a share of flips, or the standard deviation of noise [sec. 4]."""


class Cell(NamedTuple):
    """One kind of damage, and what is known of it."""

    name: str
    kind: str
    """flips or noise, which have levels and make a curve, or other."""
    level: float | None
    corrupt: Callable[[Tensor, torch.Generator], Cue]
    noise: float | None = None
    """What descent is told in "descent, told": the flip probability, or the variance; None where there is none."""
    known: bool = False
    """Descent is given the mask, with or without being told the noise."""
    headline: bool = False


class Episode(NamedTuple):
    """Images, the memory that they were written in, and the seed of what happens to them."""

    x: Float[Tensor, "T c h w"]
    state: MemoryState
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
    energy: Float[Tensor, "S Q"]
    rose: Float[Tensor, "S Q"]
    """1 where the energy is above that of the step before; the first step has none before it."""


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
    SMOKE: ClassVar[dict[str, Any]] = {
        "episodes": 2,
        "length": 4,
        "steps": 3,
        "flips": (0.0, 0.15),
        "noises": (0.15,),
        "pictures": 4,
    }

    def __post_init__(self) -> None:
        checks.fields(self, episodes=1, length=1, steps=1, flips=0, noises=0, pictures=1)
        if max(self.flips) > 1:
            raise ValueError(f"flips: expected shares of at most 1, got {self.flips}")

    @property
    def rounds(self) -> int:
        return 100

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        cells = grid(subject.unseen.binary, self.flips, self.noises)
        episodes = draw(subject, self.episodes, self.length, generator)
        jobs = [(cell, method) for cell in cells for method in methods(cell)]
        made: dict[tuple[str, str], list[Measures]] = {(cell.name, method): [] for cell, method in jobs}
        shown: dict[str, Recall] = {}
        for episode, (cell, method) in percent([(e, job) for e in episodes for job in jobs], tick):
            path = recall(subject.model, episode, cell, method, self.steps, generator)
            made[cell.name, method].append(measure(path, episode.x))
            if cell.headline and episode is episodes[0]:
                shown[method] = path
        headline = next(cell for cell in cells if cell.headline)
        first = episodes[0]
        return {
            "binary": subject.unseen.binary,
            "pixels": first.x[0].numel(),
            "chance": 1 / self.length,
            "headline": headline.name,
            "stored": {"energy": base.mean(torch.stack([at_rest(subject.model, e) for e in episodes]))},
            "cells": [
                {
                    **{key: getattr(cell, key) for key in ("name", "kind", "level", "noise", "known")},
                    **yardsticks(cell, episodes),
                    "methods": {method: final(made[cell.name, method]) for method in methods(cell)},
                }
                for cell in cells
            ],
            "steps": {method: stepwise(made[headline.name, method]) for method in methods(headline)},
            "paths": {method: path.energy[:, :20].T.tolist() for method, path in shown.items()},
            "pictures": pictures(first.x, first.cue(headline).x, shown, self.pictures),
        }


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
        return Cell(name, "flips", level, lambda x, g: corruption.flips(x, level, g), told, headline=headline)
    name, told = f"noise {level:g}", level**2 or None
    return Cell(name, "noise", level, lambda x, g: corruption.noise(x, level, g), told, headline=headline)


def others() -> list[Cell]:
    """Noise that only binary images can have: salt and pepper in a share s of pixels is a share s/2 of flips."""
    return [
        Cell("30 % salt and pepper", "other", None, lambda x, g: corruption.salt_and_pepper(x, 0.3, g), 0.15),
        Cell("half erased, rest 10 % flips", "other", None, flipped_half, 0.1, known=True),
    ]


def flipped_half(x: Tensor, generator: torch.Generator) -> Cue:
    return corruption.half(corruption.flips(x, 0.1, generator).x)


def holes(binary: bool) -> list[Cell]:
    """Parts that are lost. Where it is not known which, they are pixels like all others, of the value 0."""
    blank = "blank" if binary else "grey"
    return [
        Cell("25 % block erased", "other", None, lambda x, g: corruption.block(x, 0.25, g), known=True),
        Cell(f"25 % block {blank}, not known", "other", None, lambda x, g: corruption.block(x, 0.25, g)),
        Cell("half erased", "other", None, lambda x, _: corruption.half(x), known=True),
        Cell(f"half {blank}, not known", "other", None, lambda x, _: corruption.half(x)),
    ]


def methods(cell: Cell) -> list[str]:
    """The ways to recall that are tried on a kind of damage."""
    told = ["descent, told"] if cell.noise is not None else []
    return ["least-squares", "descent", *told, *(["stochastic"] if cell.headline else [])]


def recall(model: DKM, episode: Episode, cell: Cell, method: str, steps: int, generator: torch.Generator) -> Recall:
    """Recall in one of the ways; only descent can be told anything, and only the chain draws."""
    cue = episode.cue(cell)
    if method == "least-squares":
        return model.recall(episode.state, cue.x, steps, "least-squares")
    if method == "stochastic":
        return model.recall(episode.state, cue.x, steps, "stochastic", generator=generator)
    noise, mask = cell.noise if method == "descent, told" else None, cue.mask if cell.known else None
    return model.recall(episode.state, cue.x, steps, "descent", noise=noise, mask=mask)


def measure(path: Recall, clean: Float[Tensor, "Q c h w"]) -> Measures:
    """Judge a trajectory whose cues are those of all stored images, in their order."""
    apart = base.distances(path.x, clean)
    right = hits(apart, torch.arange(len(clean), device=clean.device))
    flat = path.x.flatten(2)
    blank = flat.amax(-1) == flat.amin(-1)
    wrong, kind = apart.diagonal(dim1=-2, dim2=-1), path.energy
    return Measures(wrong, right.to(kind), blank.to(kind), path.energy, rises(path.energy))


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
    keys = ("wrong", "right", "blank", "energy")
    last = {key: base.mean(torch.stack([getattr(m, key)[-1] for m in made])) for key in keys}
    rose = torch.stack([m.rose[1:].mean() if len(m.rose) > 1 else m.rose.mean() for m in made])
    return {**last, "rose": base.mean(rose)}


def stepwise(made: list[Measures]) -> dict[str, Any]:
    """Every measure at every step."""
    return {key: base.means(torch.stack([getattr(m, key) for m in made], 1)) for key in Measures._fields}


def at_rest(model: DKM, episode: Episode) -> Float[Tensor, "T"]:
    """The energy of the stored images themselves, with their addresses."""
    at = Reader.of(model, episode.state)
    w = at.address(episode.x)
    return at.energy(at.decode(w), episode.x, w)


def yardsticks(cell: Cell, episodes: list[Episode]) -> dict[str, Any]:
    """How bad cues are, and how well the nearest stored image does, by the pixels that are known to be good."""
    rows = []
    for episode in episodes:
        cue, answer = episode.cue(cell), torch.arange(len(episode.x), device=episode.x.device)
        found = apart(cue, episode.x, cell.known).argmin(-1)
        missed = base.distances(episode.x, episode.x)[answer, found]
        rows.append((base.distances(cue.x, episode.x).diagonal(), (found == answer).to(missed), missed))
    wrong, right, other = (base.mean(torch.stack(values)) for values in zip(*rows, strict=True))
    return {"cue": {"wrong": wrong}, "nearest": {"right": right, "wrong": other}}


def apart(cue: Cue, stored: Float[Tensor, "T c h w"], known: bool) -> Float[Tensor, "Q T"]:
    """Distances of cues to the stored images, over trusted pixels alone if they are known."""
    if not known or cue.mask is None:
        return base.distances(cue.x, stored)
    return torch.cat([base.distances((a * m)[None], stored * m) for a, m in zip(cue.x, cue.mask, strict=True)])


def pictures(
    x: Float[Tensor, "T c h w"], cue: Float[Tensor, "T c h w"], paths: dict[str, Recall], n: int
) -> dict[str, Any]:
    """Rows of images: originals, cues, and some steps of two ways to recall."""
    rows, names = [x[:n], cue[:n]], ["original", "cue"]
    for method in ("least-squares", "descent"):
        for step in chosen(len(paths[method].x)):
            rows.append(paths[method].x[step - 1, :n])
            names.append(f"{method}, step {step}")
    return {"rows": names, "images": base.pack(torch.stack(rows))}


def chosen(steps: int) -> list[int]:
    """Steps to show: the early ones, where most happens, and the last."""
    return sorted({step for step in (1, 2, 4, steps) if step <= steps})


def percent(jobs: Iterable[T], tick: Callable[[], None]) -> Iterator[T]:
    """Go through jobs, calling `tick` a hundred times on the way."""
    jobs = list(jobs)
    for i, job in enumerate(jobs):
        yield job
        for _ in range(100 * (i + 1) // len(jobs) - 100 * i // len(jobs)):
            tick()
