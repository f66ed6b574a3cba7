"""Small models that were never trained, and images, for the tests of recall."""

import dataclasses

import pytest
import torch
from torch import Tensor

from cases import normal
from kanerva import DKM, CodecConfig, DKMConfig

BITS = DKMConfig(image=(1, 8, 9), rows=5, code=7, codec=CodecConfig((4, 6)))
FULL = dataclasses.replace(BITS, weights="full")
COLOUR = dataclasses.replace(BITS, image=(3, 8, 8), likelihood="gaussian")
CORRELATED = dataclasses.replace(COLOUR, scale="colour")
CONFIGS = pytest.mark.parametrize(
    "config", [BITS, FULL, COLOUR, CORRELATED], ids=["bits", "full", "colour", "correlated"]
)


def model(config: DKMConfig = BITS, seed: int = 0, dtype: torch.dtype = torch.float32) -> DKM:
    """A model that was never trained, but whose images depend much on their codes."""
    torch.manual_seed(seed)
    m = DKM(config).to(dtype)
    with torch.no_grad():
        for p in m.decoder.parameters():
            p.mul_(1.5)
        if any(config.spread):  # which are zero at first
            m.decoder.up[-1].weight[:, config.image[0] :].normal_(std=0.1)
        m.memory.log_noise_var.fill_(-1.0)
    return m.requires_grad_(False)


def images(config: DKMConfig, *batch: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    x = normal(*batch, *config.image, seed=seed)
    return ((x > 0.5) if config.likelihood == "bernoulli" else x.clamp(-1, 1)).to(dtype)
