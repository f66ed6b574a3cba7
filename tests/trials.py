"""Small models, images and runs for the tests of experiments."""

import dataclasses
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kanerva import DKM, CodecConfig, DKMConfig
from kanerva.data import ClassImages
from kanerva.experiments.base import Experiment, Subject

SMALL = DKMConfig(image=(1, 8, 8), rows=4, code=6, codec=CodecConfig((4, 4)))
COLOUR = dataclasses.replace(SMALL, image=(3, 8, 8), likelihood="gaussian")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(config: DKMConfig = SMALL) -> DKM:
    torch.manual_seed(0)
    m = DKM(config).eval()
    m.backend = "reference"  # which need not be compiled
    return m


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
    assert len(ticks) == work.rounds
    return json.loads(json.dumps(found, allow_nan=False))


def bits(*rows: str) -> Tensor:
    """Images of one row of pixels each."""
    return torch.tensor([[int(c) for c in row] for row in rows]).float()[:, None, None]
