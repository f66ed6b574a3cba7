"""Scores on images that the model has not seen."""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy

from . import checks, objective
from .data import ClassImages, episodes
from .likelihood import Gaussian, dequantise
from .models.dkm import DKM


@dataclass(frozen=True)
class Score:
    """Means over images, in nats per image; errors are standard errors, with episodes as the independent unit."""

    nats: float
    """The reported score, reconstruction + kl_weights, with sampled w; lower is better."""
    nats_stderr: float
    reconstruction: float
    """−ln p(x | w, M)."""
    kl_weights: float
    kl_memory: float
    """KL(M) / T; not part of nats, as in the paper."""
    autoencoder: float
    """−ln p(x | decoder(encoder(x))), without the memory."""
    bits_per_dimension: float | None
    """The same as nats, for grey and colour images."""
    images: int
    episodes: int
    length: int
    classes: int | None
    seed: int


@torch.no_grad()
def evaluate(
    model: DKM,
    images: ClassImages,
    length: int = 32,
    count: int = 10_000,
    classes: int | None = None,
    seed: int = 0,
    batch: int = 16,
) -> Score:
    """Score a model on at least `count` images, in episodes drawn with a seed; never augmented [sec. 4]."""
    checks.count("length", length)
    checks.count("count", count)
    if images.shape != tuple(model.config.image) or images.binary != (model.config.likelihood == "bernoulli"):
        raise ValueError(
            f"images: expected those of a {model.config.likelihood} model of {model.config.image}, got {images!r}"
        )
    device = model.R0.device
    images = images.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    rounds = max(2, math.ceil(count / (length * batch)))
    rows = []
    for _ in range(rounds):
        x = episodes(images, batch, length, classes, generator)
        x = x if images.binary else dequantise(x, generator)
        rows.append(objective.parts(model(x, generator)).double())
    table = torch.cat(rows, dim=1)
    means = dict(zip(objective.NAMES, table.mean(1).tolist(), strict=True))
    bits = objective.bits_per_dimension(means["nats"], math.prod(images.shape))
    return Score(
        **means,
        nats_stderr=float(table[0].std() / math.sqrt(table.shape[1])),
        bits_per_dimension=None if images.binary else bits,
        images=table.shape[1] * length,
        episodes=table.shape[1],
        length=length,
        classes=classes,
        seed=seed,
    )


def mean_image_nats(train: ClassImages, test: ClassImages) -> float:
    """Score the dullest model: every test image is predicted to be the mean of the training images."""
    mean = train.images(torch.arange(len(train))).mean(0)
    x = test.images(torch.arange(len(test)))
    if test.binary:
        # a pixel that was never on in training gets half an image's worth of doubt
        p = mean.clamp(0.5 / len(train), 1 - 0.5 / len(train)).expand_as(x)
        return float(binary_cross_entropy(p, x, reduction="sum") / len(test))
    scale = (train.images(torch.arange(len(train))) - mean).square().mean().sqrt()
    return float(-Gaussian(mean.expand_as(x), scale).log_prob(x).mean())
