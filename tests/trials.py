"""Small models, images and runs for the tests of experiments."""

import dataclasses
import json
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kanerva import DKM, CodecConfig, DKMConfig, Model, Recall, Terms
from kanerva.data import ClassImages
from kanerva.lab.runner import Experiment, Subject
from kanerva.models import BaseConfig

SMALL = DKMConfig(image=(1, 8, 8), rows=4, code=6, codec=CodecConfig((4, 4)))
COLOUR = dataclasses.replace(SMALL, image=(3, 8, 8), likelihood="gaussian")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(config: DKMConfig = SMALL) -> DKM:
    torch.manual_seed(0)
    m = DKM(config).eval()
    m.backend = "reference"  # which need not be compiled
    return m


class Shelf(NamedTuple):
    """Images, as they came."""

    x: Tensor


@dataclasses.dataclass(frozen=True)
class ToyConfig(BaseConfig):
    kind: ClassVar[str] = "toy"


class Toy(Model):
    """What a model may be without: energy, weights, a codec, KL(M). It keeps images, and gives cues back."""

    TITLE = "Toy with a shelf"
    METHODS = ("copy",)
    UNTRAINED = True
    Config = ToyConfig

    def __init__(self, config: BaseConfig | None = None) -> None:
        super().__init__(config)
        self.register_buffer("log_grey_var", torch.tensor(0.0))

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Terms:
        return Terms(-x.flatten(-3).sum(-1))

    def write(self, x: Tensor, state: Shelf | None = None) -> Shelf:
        return Shelf(x if state is None else torch.cat([state.x, x], -4))

    def recall(
        self, state: Shelf, x: Tensor, steps: int = 15, method: str | None = None, mask: Tensor | None = None
    ) -> Recall:
        self.method(method)
        return Recall((x if mask is None else x * mask).expand(steps, *x.shape))

    def sample(
        self,
        state: Shelf,
        n: int,
        steps: int = 15,
        generator: torch.Generator | None = None,
        method: str | None = None,
    ) -> Recall:
        return self.recall(state, state.x[torch.randint(len(state.x), (n,), generator=generator)], steps, method)

    def options(self, method: str) -> tuple[str, ...]:
        return ("mask",)

    def kept(self, length: int) -> int:
        return length * int(np.prod(self.config.image))


def toy() -> Subject:
    return Subject("toy", Toy(ToyConfig(SMALL.image)), images(), images(), {})


def images(config: DKMConfig = SMALL) -> ClassImages:
    """Six classes of four images, of pixels at random."""
    binary = config.likelihood == "bernoulli"
    pixels = np.random.default_rng(0).integers(0, 2 if binary else 256, (24, *config.image), np.uint8)
    return ClassImages.from_labels(pixels, np.repeat(np.arange(6), 4), binary=binary)


def subject(config: DKMConfig = SMALL, trained: DKM | None = None) -> Subject:
    both = images(config)
    return Subject("small", trained or model(config), both, both, {})


def run(work: Experiment, who: Subject) -> dict[str, Any]:
    """What a run gives, as it comes back from its file."""
    ticks: list[int] = []
    with torch.no_grad():
        found = work.run(who, generator(), lambda: ticks.append(1))
    assert len(ticks) == work.rounds(who.model)
    return json.loads(json.dumps(found, allow_nan=False))


def bits(*rows: str) -> Tensor:
    """Images of one row of pixels each."""
    return torch.tensor([[int(c) for c in row] for row in rows]).float()[:, None, None]
