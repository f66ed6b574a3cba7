"""Scores on images that the model has not seen."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from . import checks, objective
from .data import ClassImages, episodes
from .likelihood import Gaussian
from .models.base import Model
from .progress import bar


@dataclass(frozen=True)
class Score:
    """Means over images, in nats per image; errors are standard errors, with episodes as the independent unit."""

    nats: float
    """The reported score, reconstruction + kl_weights, with sampled w; lower is better."""
    nats_stderr: float
    reconstruction: float
    """−ln p(x | w, M)."""
    kl_weights: float | None
    """KL of what is inferred for each image: of w, or of another model's latent; None where it has none."""
    kl_memory: float | None
    """KL(M) / T; not part of nats, as in the paper. None where a model has no such term."""
    autoencoder: float | None
    """−ln p(x | decoder(encoder(x))), without the memory; None where a model is not trained for it."""
    bits_per_dimension: float | None
    """The same as nats, for grey and colour images."""
    images: int
    episodes: int
    length: int
    classes: int | None
    seed: int
    extra: dict[str, dict[str, float]] = field(default_factory=dict)
    """What else a model reports (`Model.extra_scores`): the mean and stderr of each, by name, in nats per image."""

    @property
    def in_bits(self) -> str:
        """The score in bits, to follow the one in nats; empty for binary images."""
        return "" if self.bits_per_dimension is None else f", {self.bits_per_dimension:.3f} bits per dimension"


@torch.no_grad()
def evaluate(
    model: Model,
    images: ClassImages,
    length: int = 32,
    count: int = 10_000,
    classes: int | None = None,
    seed: int = 0,
    batch: int = 16,
    extra: bool = True,
) -> Score:
    """Score a model on at least `count` images, in episodes drawn with a seed; never augmented [sec. 4].

    `extra` says whether to take the model's extra scores too, which may cost many times as much.
    """
    checks.count("length", length)
    checks.count("count", count)
    checks.seed(seed)
    if not isinstance(images, ClassImages):
        raise TypeError(
            f"images: expected ClassImages, from which episodes are drawn, got {type(images).__name__}; "
            f"kanerva.data.load and ClassImages.from_labels make them"
        )
    if images.shape != tuple(model.config.image) or images.binary != model.config.binary:
        raise ValueError(
            f"images: expected those of a {model.config.likelihood} model of {model.config.image}, got {images!r}"
        )
    device = model.device
    images = images.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    other = torch.Generator(device).manual_seed(seed + 1)  # so that extra scores leave the first ones as they are
    rounds = max(2, math.ceil(count / (length * batch)))
    rows, extras = [], []
    with bar("evaluating", rounds * batch * length) as advance, not_training(model):
        for _ in range(rounds):
            x = model.dequantise(episodes(images, batch, length, classes, generator), generator)
            rows.append(objective.parts(model(x, generator)))
            extras.append(model.extra_scores(x, other) if extra else {})
            advance(batch * length)
    table, more = together(rows), together(extras)
    means = {name: float(values.mean()) for name, values in table.items()}
    count = len(table["nats"])
    bits = objective.bits_per_dimension(means["nats"], math.prod(images.shape))
    return Score(
        **{name: means.get(name) for name in objective.NAMES},  # type: ignore[arg-type]
        nats_stderr=stderr(table["nats"]),
        bits_per_dimension=None if images.binary else bits,
        images=count * length,
        episodes=count,
        length=length,
        classes=classes,
        seed=seed,
        extra={name: {"mean": float(values.mean()), "stderr": stderr(values)} for name, values in more.items()},
    )


@contextlib.contextmanager
def not_training(model: Model) -> Iterator[None]:
    """What a model does while it is trained alone, such as corrupting cues, is left out."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def together(rows: list[dict[str, Tensor]]) -> dict[str, Float[Tensor, "episodes"]]:
    """The numbers of all rounds, one for each episode, by name."""
    return {name: torch.cat([row[name] for row in rows]).double() for name in rows[0]}


def stderr(values: Float[Tensor, "episodes"]) -> float:
    """The standard error of a mean over episodes."""
    return float(values.std() / math.sqrt(len(values)))


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
