"""Small models, images and runs for the tests of experiments."""

import dataclasses
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kanerva import DKM, CodecConfig, DKMConfig, Model, Terms
from kanerva.data import ClassImages
from kanerva.lab.runner import Subject
from kanerva.models.base import BaseConfig, Hints
from kanerva.recall.trajectory import Snapshot

SMALL = DKMConfig(image=(1, 8, 8), rows=4, code=6, codec=CodecConfig((4, 4)))
COLOUR = dataclasses.replace(SMALL, image=(3, 8, 8), likelihood="gaussian")


def model(config: DKMConfig = SMALL) -> DKM:
    torch.manual_seed(0)
    m = DKM(config).eval()
    m.memory.backend = "reference"  # which need not be compiled
    return m


class Shelf(NamedTuple):
    """Images, as they came."""

    x: Float[Tensor, "*#b T c h w"]


@dataclasses.dataclass(frozen=True)
class ToyConfig(BaseConfig):
    kind: ClassVar[str] = "toy"


class Toy(Model):
    """What a model may be without: energy, weights, a codec, KL(M). It keeps images, and gives cues back."""

    TITLE = "Toy with a shelf"
    METHODS = ("copy",)
    UNTRAINED = True
    Config, State = ToyConfig, Shelf

    def __init__(self, config: BaseConfig | None = None) -> None:
        super().__init__(config)
        self.register_buffer("log_grey_var", torch.tensor(0.0))

    def _blank(self, batch: int) -> Shelf:
        return Shelf(self.like.new_zeros(batch, 0, *self.config.image))

    def _write(self, e: Tensor, state: Shelf) -> Shelf:
        return Shelf(torch.cat([state.x, e], 1))

    def _terms(self, state: Shelf, x: Tensor, e: Tensor, generator: Any) -> Terms:
        return Terms(-x.flatten(-3).sum(-1))

    def _path(self, state: Shelf, x: Tensor, method: str, hints: Hints) -> Iterator[Snapshot]:
        yield Snapshot(x if hints.mask is None else x * hints.mask)

    def _drawn(self, state: Shelf, n: int, method: str, hints: Hints) -> Iterator[Snapshot]:
        yield Snapshot(state.x[:, torch.randint(state.x.shape[1], (n,), generator=hints.generator)])

    def kept(self, length: int) -> int:
        return length * int(np.prod(self.config.image))


def toy() -> Subject:
    return Subject("toy", Toy(ToyConfig(SMALL.image)), images(), images(), {})


def images(config: DKMConfig = SMALL) -> ClassImages:
    """Six classes of four images, of pixels at random."""
    binary = config.likelihood == "bernoulli"
    pixels = np.random.default_rng(0).integers(0, 2 if binary else 256, (24, *config.image), np.uint8)
    return ClassImages.from_labels(pixels, np.repeat(np.arange(6), 4), binary=binary)


def subject(config: DKMConfig = SMALL, trained: Model | None = None) -> Subject:
    both = images(config)
    return Subject("small", trained or model(config), both, both, {})


def run(experiment: ModuleType, who: Subject, **sizes: Any) -> dict[str, Any]:
    """What a run of smoke's sizes, or others, gives, as it comes back from its file."""
    with torch.no_grad():
        found = experiment.run(who, 0, **{**experiment.SMOKE, **sizes})
    return json.loads(json.dumps(found, allow_nan=False))


def drawn(experiment: ModuleType, **results: dict[str, Any]) -> dict[str, Any]:
    """The figures of the results of models by their names, and that they can be written."""
    figures = experiment.figures([{"name": name, "result": result} for name, result in results.items()])
    for figure in figures.values():
        figure.savefig("/dev/null", format="png", dpi=30)
    return figures


def bits(*rows: str) -> Tensor:
    """Images of one row of pixels each."""
    return torch.tensor([[int(c) for c in row] for row in rows]).float()[:, None, None]
