"""Scores on images that the model has not seen."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from ..data import ClassImages
from ..likelihood import Gaussian, bits_per_dimension
from ..models.base import NAMES, CodecModel, Model, Pixels
from ..nn import Writing
from ..support import checks
from ..support.say import bar

WRITTEN = 10
"""Images of a class that are written before new ones of it are scored."""
MOST_NEW, QUERIES = 4_096, 32
"""Images that are scored at most with other memories than their own, and how many are read from a blank one."""


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
    bound: float | None
    """nats + kl_memory = −L_T / T, which training descends [eq. elbo]; None where a model has no KL(M)."""
    autoencoder: float | None
    """−ln p(x | decoder(encoder(x))), without the memory; None where a model is not trained for it."""
    bits_per_dimension: float | None
    """The same as nats, for grey and colour images, with pixels scored as the model says."""
    images: int
    episodes: int
    length: int
    classes: int | None
    seed: int
    extra: dict[str, dict[str, float]] = field(default_factory=dict)
    """What else a model reports (`Model.extra_scores`): the mean and stderr of each, by name, in nats per image."""
    new: dict[str, float] | None = None
    """Images that were not written, given a memory of others of their classes: a bound on −ln p(x | memory)."""
    blank: dict[str, float] | None = None
    """Images given a memory in which nothing was written: a bound on −ln p(x | blank memory)."""

    pixels: Pixels | None = None
    """How pixels of grey and colour images are scored: as points within their grey levels, or by the levels."""
    different: int | None = None
    """Different images that they were drawn from."""
    bits: dict[Pixels, dict[str, float]] | None = None
    """Bits per dimension of grey and colour images in both ways, mean and stderr: of points drawn from their grey
    levels, as in the paper, and of the levels themselves."""

    split: str = "test"
    """The split that the images are of."""

    @property
    def in_bits(self) -> str:
        """The score in bits, to follow the one in nats; empty for binary images."""
        if self.bits_per_dimension is None:
            return ""
        said = f", {self.bits_per_dimension:.3f} bits per dimension"
        if self.pixels is None:
            return said
        said += f" {WAYS[self.pixels]}"
        others = [
            f"{found['mean']:.3f} {WAYS[way]}" for way, found in (self.bits or {}).items() if way != self.pixels
        ]
        return said + "".join(f" ({other})" for other in others)


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
    how: Writing | None = None,
) -> Score:
    """Score a model on at least `count` images, in episodes drawn with a seed; never augmented [sec. 4].

    `extra` says whether to score new images and the blank memory too, and to take the model's extra scores, which
    may cost many times as much. how: write in other rounds or blocks, or with another noise, than trained.
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
    device, different = model.device, images.different
    images = images.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    other = torch.Generator(device).manual_seed(seed + 1)  # so that extra scores leave the first ones as they are
    rounds = max(2, math.ceil(count / (length * batch)))
    told: dict[str, Any] = {} if how is None else {"how": how}
    rows, extras = [], []
    with bar("evaluating", rounds * batch * length) as advance, not_training(model):
        other_way = otherwise(model) if extra else None
        for _ in range(rounds):
            x = model.episodes(images, batch, length, classes, generator)
            same = torch.Generator(device)
            same.set_state(generator.get_state())
            rows.append(model(x, generator, **told).parts())
            extras.append(model.extra_scores(x, other, **told) if extra else {})
            if other_way is not None:
                extras[-1][other_way] = model(x, same, pixels=other_way, **told).nats()
            advance(batch * length)
        most = min(rounds * batch * length, MOST_NEW)
        new = new_images(model, images, most, seed=seed, how=how) if extra else None
        blank = blank_memory(model, images, most, seed) if extra else None
    table, more = together(rows), together(extras)
    means = {name: float(values.mean()) for name, values in table.items()}
    count = len(table["nats"])
    bits = bits_per_dimension(means["nats"], math.prod(images.shape))
    own = model.config.pixels if isinstance(model, CodecModel) and not images.binary else None
    ways = {way: more.pop(way) for way in WAYS if way in more} | ({own: table["nats"]} if own and extra else {})
    return Score(
        **{name: means.get(name) for name in NAMES},  # type: ignore[arg-type]
        nats_stderr=stderr(table["nats"]),
        bound=means["nats"] + means["kl_memory"] if "kl_memory" in means else None,
        bits_per_dimension=None if images.binary else bits,
        images=count * length,
        episodes=count,
        length=length,
        classes=classes,
        seed=seed,
        split=images.split,
        extra={name: summary(values) for name, values in more.items()},
        new=new,
        blank=blank,
        pixels=own,
        different=different,
        bits={way: summary(bits_per_dimension(ways[way], math.prod(images.shape))) for way in WAYS if way in ways}
        or None,
    )


WAYS: dict[Pixels, str] = {"points": "as points", "levels": "by grey levels"}
"""The ways in which grey and colour pixels are scored."""


def otherwise(model: Model) -> Pixels | None:
    """The other way to score the pixels of grey and colour images; None where there is no other."""
    if model.config.binary or not isinstance(model, CodecModel):
        return None
    (other,) = (way for way in WAYS if way != model.config.pixels)
    return other


def new_images(
    model: Model,
    images: ClassImages,
    count: int = 10_000,
    classes: int = 4,
    seed: int = 0,
    how: Writing | None = None,
) -> dict[str, float] | None:
    """What new images cost in memories of others of their classes; None where there are too few images.

    Ten images of each of four classes are written (or half of them, if a class has fewer than 20), and as many
    others are read. The images are drawn on the CPU: the same ones on every device.
    """
    each = min(2 * WRITTEN, int(images.count.min()))
    if each < 2 or images.num_classes < classes:
        return None
    written, read = halves(images.to("cpu"), max(2, count // (classes * each // 2)), classes, each, seed)
    generator = torch.Generator(model.device).manual_seed(seed)
    told: dict[str, Any] = {} if how is None else {"how": how}
    found = []
    for a, b in zip(written.split(16), read.split(16), strict=True):
        a, b = (model.dequantise(x.to(model.device), generator) for x in (a, b))
        found.append(model.given(model.write(a, **told), b, generator).nats())
    return summary(torch.cat(found).double())


def halves(
    images: ClassImages, count: int, classes: int, each: int, seed: int
) -> tuple[Float[Tensor, "E A c h w"], Float[Tensor, "E B c h w"]]:
    """Episodes of a few classes and `each` images of them: one half to be written, the other to be read."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(count, images.num_classes, generator=generator).topk(classes).indices
    order = torch.rand(count, classes, int(images.count.max()), generator=generator)
    order[torch.arange(order.shape[-1]) >= images.count[chosen][..., None]] = -1  # there are no such images
    index = images.start[chosen][..., None] + order.topk(each).indices
    written, read = index[..., : each // 2], index[..., each // 2 :]
    return images.images(written.flatten(1)), images.images(read.flatten(1))


def blank_memory(model: Model, images: ClassImages, count: int, seed: int = 0) -> dict[str, float] | None:
    """What images cost if nothing was written; None where an empty memory says nothing."""
    batch = 16
    state = model.blank((batch,))
    generator, images = torch.Generator(model.device).manual_seed(seed), images.to(model.device)
    found = []
    for _ in range(math.ceil(count / (batch * QUERIES))):
        x = model.episodes(images, batch, QUERIES, None, generator)
        found.append(model.given(state, x, generator).nats())
    every = torch.cat(found).double()
    return summary(every) if bool(every.isfinite().all()) else None


def summary(values: Float[Tensor, "episodes"]) -> dict[str, float]:
    """The mean over episodes and its standard error."""
    return {"mean": float(values.mean()), "stderr": stderr(values)}


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
