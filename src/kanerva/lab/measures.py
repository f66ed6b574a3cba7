"""One protocol of recall: different images are written, some are damaged and asked for, and answers are judged.

Tasks are drawn on the CPU by a seed alone, so all models see the same images and cues on every device. Every kind
of damage uses the same random numbers: what 5 % of flips turn over is among what 10 % do. A recall is told which
pixels are lost if the damage says that this is known, and the noise only where its name ends with ", told". What a
recall draws comes from a generator of its own. An answer is right if no other stored image is nearer to it than the
one that was asked for.
"""

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..data import ClassImages, damage
from ..data.damage import Cue
from ..models import Model, Recall
from ..support.pixels import distances, is_binary

PAPER = 0.15
"""The paper's damage: a share of flips, or the standard deviation of noise [sec. 4]."""
TOLD = ", told"
"""Ends the name of a recall that is told the noise."""
NEAR = 0.05
"""Reached, at the strictest: within this share of pixels, or of the range of pixels."""


class Damage(NamedTuple):
    """A kind of damage, and what is known of it."""

    name: str
    corrupt: Callable[[Tensor, torch.Generator], Cue]
    kind: str = "other"
    """flips or noise, which have levels, or other."""
    level: float | None = None
    noise: float | None = None
    """What a recall can be told: the flip probability, or the variance; None where there is none."""
    known: bool = False
    """Whether recall is told which pixels are lost."""


def noisy(binary: bool, level: float) -> Damage:
    """Flips, or Gaussian noise, at a level."""
    if binary:
        told = level if 0 < level < 0.5 else None
        return Damage(f"{100 * level:g} % flips", lambda x, g: damage.flips(x, level, g), "flips", level, told)
    return Damage(f"noise {level:g}", lambda x, g: damage.noise(x, level, g), "noise", level, level**2 or None)


def holes(binary: bool) -> list[Damage]:
    """Parts that are lost. Where it is not known which, they are pixels like all others, of the value 0."""
    blank = "blank" if binary else "grey"

    def block(x: Tensor, generator: torch.Generator) -> Cue:
        return damage.block(x, 0.25, generator)

    return [
        Damage("25 % block erased", block, known=True),
        Damage(f"25 % block {blank}, not known", block),
        Damage("half erased", lambda x, _: damage.half(x), known=True),
        Damage(f"half {blank}, not known", lambda x, _: damage.half(x)),
    ]


class Task(NamedTuple):
    """Images to store in E memories, and damaged ones to ask for."""

    x: Float[Tensor, "E T c h w"]
    asked: Int64[Tensor, "Q"]
    """Which of them are asked for, the same in every memory."""
    cues: list[Cue]
    """One for each kind of damage, of E×Q images."""

    def to(self, device: torch.device) -> "Task":
        cues = [Cue(x.to(device), None if mask is None else mask.to(device)) for x, mask in self.cues]
        return Task(self.x.to(device), self.asked.to(device), cues)


def task(
    images: ClassImages, kinds: Iterable[Damage], episodes: int, length: int, seed: int, queries: int | None = None
) -> Task:
    """Draw different images, and damage all, or so many that are evenly spaced in the order of writing."""
    generator = torch.Generator().manual_seed(seed)
    x = distinct(images.to("cpu"), episodes, length, generator)
    asked = torch.linspace(0, length - 1, min(queries or length, length)).round().long()
    start = generator.get_state()
    return Task(x, asked, [kind.corrupt(x[:, asked], generator.set_state(start)) for kind in kinds])


def distinct(images: ClassImages, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Episodes without an image twice, so that every one has a right answer of its own."""
    if length > len(images):
        raise ValueError(f"length: expected at most {len(images)}, as many images as there are, got {length}")
    noise = torch.rand(batch, len(images), generator=generator, device=images.device)
    return images.images(noise.topk(length, dim=1).indices)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A checksum of images and cues: results that were made with the same ones have the same."""
    digest = hashlib.sha256()
    for x in tensors:
        digest.update(x.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


# Recall


def recalls(model: Model, chains: bool = True) -> list[str]:
    """The names of a model's recalls, the plain read first; without `chains`, not a Markov chain."""
    names = sorted(model.METHODS, key=lambda method: method != model.READ)
    return [name for name in names if chains or name != "stochastic"]


def recall(model: Model, state: Any, cue: Cue, damage: Damage, method: str, steps: int, seed: int) -> Recall:
    """Recall E×Q cues from E memories in one of the ways."""
    name = method.removesuffix(TOLD)
    noise, mask = damage.noise if method != name else None, cue.mask if damage.known else None
    generator = torch.Generator(cue.x.device).manual_seed(seed)
    return model.recall(state, cue.x, steps, name, mask=mask, noise=noise, generator=generator)


# Judgement


class Outcome(NamedTuple):
    """What became of cues: distances to the right image, and 1 for yes, 0 for no."""

    wrong: Float[Tensor, "*s E Q"]
    right: Float[Tensor, "*s E Q"]
    near: Float[Tensor, "*s E Q"]
    """Right, and reached but for a few pixels."""
    other: Float[Tensor, "*s E Q"]
    """Another image is nearest, and reached so."""
    blank: Float[Tensor, "*s E Q"]
    """All pixels are alike: nothing is left. Not counted as near to any stored image."""


def judge(
    x: Float[Tensor, "*s E Q c h w"], stored: Float[Tensor, "E T c h w"], asked: Int64[Tensor, "Q"] | None = None
) -> Outcome:
    """Compare answers, or those of every step, with what is stored; `asked` says for which, otherwise for all."""
    apart, binary = distances(x, stored), is_binary(stored)
    wrong, right = answers(apart, asked)
    blank = x.flatten(-3).amax(-1) == x.flatten(-3).amin(-1)
    near = (apart.amin(-1) <= NEAR * (stored[0, 0].numel() if binary else 2)) & ~blank
    return Outcome(wrong, *(part.to(wrong) for part in (right, right & near, near & ~right, blank)))


def answers(
    apart: Float[Tensor, "*s Q T"], asked: Int64[Tensor, "Q"] | None = None
) -> tuple[Float[Tensor, "*s Q"], Bool[Tensor, "*s Q"]]:
    """The distance to the image that was asked for, and whether no other is nearer."""
    asked = torch.arange(apart.shape[-2], device=apart.device) if asked is None else asked
    wrong = apart.gather(-1, asked[:, None].expand(*apart.shape[:-1], 1)).squeeze(-1)
    return wrong, wrong <= apart.amin(-1)


def rises(energy: Float[Tensor, "S *b"]) -> Float[Tensor, "S *b"]:
    """1 where the energy is above that of the step before, by however little; 0 for the first step."""
    rose = torch.zeros_like(energy)
    rose[1:] = (energy[1:] > energy[:-1]).to(energy)
    return rose


def mean(values: Tensor) -> dict[str, float]:
    """Mean and standard error of one number per episode (the independent unit), over the first axis."""
    values = values.double().flatten(1).mean(1) if values.ndim > 1 else values.double()
    spread = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "stderr": spread}


def means(values: Tensor) -> dict[str, list[float]]:
    """`mean` for each entry of the first axis: (S, episodes, …) gives S means and S standard errors."""
    rows = [mean(row) for row in values]
    return {key: [row[key] for row in rows] for key in ("mean", "stderr")}
