"""Sampling: draw images from written memories, improve them step by step, and ask what they are [fig. omniglot].

Are samples copies of what is stored, or of what was seen in training, or new? Distances to the nearest of both say
it, beside the same distances of fresh images, which are as new as can be. Do samples come from all of a memory, or
from a part of it? How many stored images are the nearest of some sample says it. And how long is the Markov chain?
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .. import checks
from ..models import Model, Recall
from ..recall.chains import mixing
from ..support.pixels import LEVEL
from . import base
from .base import Experiment, Subject
from .denoising import chosen, rises
from .tables import Table


class Written(NamedTuple):
    """A memory, what was written in it, and images of the same kind that were not."""

    x: Float[Tensor, "T c h w"]
    fresh: Float[Tensor, "n c h w"]
    state: Any


@dataclass(frozen=True, kw_only=True)
class Sampling(Experiment):
    """Draw images from written memories, and ask how good, how new and how different they are [sec. 4]."""

    episodes: int = 4
    """Memories; the spread is over them."""
    length: int = 32
    """Images in each memory."""
    samples: int = 64
    """Images to draw from each memory, and fresh ones to compare them with."""
    steps: int = 15
    """Steps of recall; the first is the draw."""
    seen: int = 5000
    """Training images that a sample might be a copy of."""
    temperatures: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Of Markov chains, where the model has any; 1 is its own."""
    chain: int = 400
    """Steps of a Markov chain."""
    chains: int = 8
    """Markov chains in each memory."""
    pictures: int = 8
    """Samples in the picture."""

    NAME: ClassVar[str] = "sampling"
    TITLE: ClassVar[str] = "Sampling"
    ABOUT: ClassVar[str] = (
        "Images are drawn at random from a written memory, and improved by the steps of recall. Samples should "
        "come to look like what was stored without being copies of it, or of training images, and should come from "
        "all of the memory. Fresh images of the same kind, which were not stored, say how far away new ones are."
    )
    FIGURES: ClassVar[dict[str, str]] = {
        "pictures": "What was written, and then samples at some steps of each way to recall.",
        "steps": "The energy of samples (where the model has one), and their distance to the nearest stored image, "
        "at every step.",
        "novelty": "How far samples are from the nearest stored and the nearest training image, beside fresh "
        "images; and how evenly they are spread over the stored ones.",
        "chains": "How fast Markov chains forget where they began: the autocorrelation of their energy.",
    }
    SMOKE: ClassVar[dict[str, Any]] = {
        "episodes": 2,
        "length": 6,
        "samples": 5,
        "steps": 3,
        "seen": 50,
        "temperatures": (1.0,),
        "chain": 10,
        "chains": 2,
        "pictures": 3,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(
            self, episodes=1, length=1, samples=1, steps=1, seen=1, temperatures=0, chain=5, chains=1, pictures=1
        )

    def rounds(self, model: Model) -> int:
        return self.episodes * (len(model.METHODS) + len(self.temperatures) * bool(chain(model)))

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        model, x = (
            subject.model,
            base.distinct(subject.unseen, self.episodes, self.length + self.samples, generator),
        )
        memories = [Written(a[: self.length], a[self.length :], model.write(a[: self.length])) for a in x]
        seen = base.distinct(subject.seen, 1, min(self.seen, len(subject.seen)), generator)[0]
        paths = {method: self.draw(subject, memories, method, generator, tick) for method in base.recalls(model)}
        first = {method: drawn[0] for method, drawn in paths.items()}
        ends = {method: [path.last for path in drawn] for method, drawn in paths.items()}
        starts = [path.x[0] for path in paths[model.METHODS[0]]]
        temperatures = self.temperatures if chain(model) else ()
        return {
            "binary": subject.unseen.binary,
            "pixels": x[0, 0].numel(),
            "length": self.length,
            "by chance": expected_reached(self.length, self.samples),
            "steps": {method: stepwise(drawn, memories) for method, drawn in paths.items()},
            "paths": base.energies(first),
            "sets": {
                "first draw": judge(starts, memories, seen),
                **{method: judge(images, memories, seen) for method, images in ends.items()},
                "fresh images": judge([memory.fresh for memory in memories], memories, seen),
            },
            "chains": [{"temperature": t, **self.mix(subject, memories, t, generator, tick)} for t in temperatures],
            "pictures": pictures(memories[0].x, first, self.pictures),
        }

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """What samples are near to, how many differ, and how much of the memory they come from."""
        names = ("to stored", "to training", "distinct", "reached")
        rows = [[label, *(found[name] for name in names)] for label, found in result["sets"].items()]
        rows.append(["all stored images equally likely", None, None, None, result["by chance"]])
        unit = "pixels" if result["binary"] else "root mean square"
        return Table(
            [
                "",
                f"{unit} from the nearest stored",
                "and training image",
                "different ones",
                "stored images reached",
            ],
            rows,
        )

    def draw(
        self,
        subject: Subject,
        memories: list[Written],
        method: str,
        generator: torch.Generator,
        tick: Callable[[], None],
    ) -> list[Recall]:
        """Samples from each memory, in one of the ways; all begin with the same weights."""
        made = []
        for number, written in enumerate(memories):
            same = torch.Generator(generator.device).manual_seed(self.seed + number)
            made.append(subject.model.sample(written.state, self.samples, self.steps, same, method=method))
            tick()
        return made

    def mix(
        self,
        subject: Subject,
        memories: list[Written],
        temperature: float,
        generator: torch.Generator,
        tick: Callable[[], None],
    ) -> dict[str, Any]:
        """How fast chains at a temperature forget where they began, in each memory.

        They are judged by their energy, or by the distance to the nearest stored image where there is none.
        """
        rows = []
        for written in memories:
            path = subject.model.sample(
                written.state, self.chains, self.chain, generator, chain(subject.model), temperature=temperature
            )
            near = base.distances(path.x, written.x)
            apart, late = near.amin(-1), self.chain // 10
            rows.append(
                {
                    **mixing(apart if path.energy is None else path.energy)._asdict(),
                    **({} if path.energy is None else {"energy": path.energy[late:].mean()}),
                    "to stored": apart[late:].mean(),
                    "visited": visited(near.argmin(-1)),
                }
            )
            tick()
        columns = {key: torch.stack([torch.as_tensor(row[key]).double() for row in rows]) for key in rows[0]}
        lags = columns.pop("autocorrelation").mean(0).tolist()
        return {"autocorrelation": lags, **{key: base.mean(values) for key, values in columns.items()}}


def chain(model: Model) -> str | None:
    """The recall of a model that is a Markov chain; None where there is none."""
    return next((method for method in model.METHODS if base.is_chain(model, method)), None)


def stepwise(paths: list[Recall], memories: list[Written]) -> dict[str, Any]:
    """The distance to the nearest stored image at every step; also the energy, and whether it rose, if any."""
    near = [base.distances(path.x, written.x).amin(-1) for path, written in zip(paths, memories, strict=True)]
    found = {"to stored": base.means(torch.stack(near, 1))}
    energies = [path.energy for path in paths if path.energy is not None]
    if not energies:
        return found
    energy = torch.stack(energies, 1)
    return {"energy": base.means(energy), "rose": base.means(rises(energy)), **found}


def judge(images: list[Tensor], memories: list[Written], seen: Float[Tensor, "N c h w"]) -> dict[str, Any]:
    """How near images are to stored ones and to those of training, how many differ, and where they come from."""
    apart = [base.distances(a, written.x) for a, written in zip(images, memories, strict=True)]
    shares = torch.stack([share(a.argmin(-1), a.shape[-1]) for a in apart])
    return {
        "to stored": base.mean(torch.stack([a.amin(-1) for a in apart])),
        "to training": base.mean(torch.stack([base.distances(a, seen).amin(-1) for a in images])),
        "brightness": base.mean(torch.stack([a.mean() for a in images])),
        "distinct": base.mean(torch.tensor([distinct(a) for a in images])),
        "reached": base.mean((shares > 0).double().sum(-1)),
        "entropy": base.mean(entropy(shares)),
        "shares": base.means(shares.sort(-1, descending=True).values.T),
    }


def share(nearest: Tensor, length: int) -> Float[Tensor, "T"]:
    """The share of samples that are nearest to each stored image."""
    return torch.bincount(nearest, minlength=length).double() / len(nearest)


def entropy(shares: Float[Tensor, "*b T"]) -> Float[Tensor, "*b"]:
    """Σ −p ln p, in nats: ln T where all stored images have their equal share."""
    return -torch.special.xlogy(shares, shares).sum(-1)


def expected_reached(length: int, samples: int) -> float:
    """How many of the stored images so many draws would reach if all were equally likely: T (1 − (1 − 1/T)ⁿ)."""
    return length * (1 - (1 - 1 / length) ** samples)


def distinct(x: Float[Tensor, "n c h w"]) -> int:
    """How many images have none before them that is the same, to half a grey level."""
    apart = base.distances(x, x)
    return int((apart.masked_fill(torch.ones_like(apart).triu().bool(), 1e9) > LEVEL / 2).all(-1).sum())


def visited(nearest: Tensor) -> float:
    """How many stored images a chain comes nearest to in all its steps (S, chains), on average."""
    return sum(len(chain.unique()) for chain in nearest.T) / nearest.shape[1]


def pictures(stored: Float[Tensor, "T c h w"], paths: dict[str, Recall], n: int) -> dict[str, Any]:
    """What was written, and for each method samples (rows) at some steps (columns)."""
    steps = chosen(min(len(path.x) for path in paths.values()))
    sheets = {name: torch.stack([path.x[s - 1, :n] for s in steps], 1) for name, path in paths.items()}
    return {
        "stored": base.pack(stored.unflatten(0, (2, -1)) if len(stored) % 2 == 0 else stored[None]),
        "steps": steps,
        "samples": {name: base.pack(images) for name, images in sheets.items()},
    }
