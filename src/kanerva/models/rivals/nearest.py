"""Nearest: keep every image, and answer a cue with the image that is nearest to it.

It is what anyone would try first, and the ceiling of recall: it keeps all that was written, and grows with it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import softplus

from ...likelihood import Bernoulli, Correlated, Gaussian, Likelihood
from ...recall.trajectory import Snapshot
from ...support.pixels import LEVEL, lower
from ..base import BaseConfig, Hints, Model, Terms

# The probability that a bit differs from the stored one, about one in an image of 28×28. Pixels of grey and colour
# images have a standard deviation of one grey level, as for other models.
FLIPS = 1e-3


@dataclass(frozen=True)
class NearestConfig(BaseConfig):
    """Only what every model knows of its images."""

    kind: ClassVar[str] = "nearest"


class NearestState(NamedTuple):
    """All images that were written."""

    images: Float[Tensor, "*#b N c h w"]


class Nearest(Model):
    """Keep every image. As a distribution, a memory is the mixture of its images:

        ln p(x | memory) = ln 1/N Σ_t p(x | x_t)

    where p(x | x_t) flips bits of x_t with a small probability, or adds Gaussian noise of one grey level.
    """

    TITLE = "Nearest stored image"
    METHODS = ("nearest",)
    UNTRAINED = True
    Config, State = NearestConfig, NearestState

    config: NearestConfig
    noise: Float[Tensor, ""]

    def __init__(self, config: NearestConfig | None = None) -> None:
        super().__init__(config)
        self.register_buffer("noise", torch.tensor(FLIPS if self.config.binary else LEVEL))

    def _code(self, x: Float[Tensor, "B T c h w"]) -> Float[Tensor, "B T c h w"]:
        """Images, as bits or bytes hold them."""
        return rounded(x, self.config.binary)

    def _blank(self, batch: int) -> NearestState:
        return NearestState(self.noise.new_empty(batch, 0, *self.config.image))

    def _write(self, e: Tensor, state: NearestState) -> NearestState:
        """Append images."""
        return NearestState(torch.cat([state.images, e], 1))

    def _terms(self, state: NearestState, x: Tensor, e: Tensor, generator: torch.Generator | None) -> Terms:
        """ln p(x_t | memory) of every image."""
        return Terms(mixture(around(state.images, self.noise, self.config.binary), x))

    def _path(self, state: NearestState, x: Tensor, method: str, hints: Hints) -> Iterator[Snapshot]:
        """The stored image argmin_t Σ_i m_i (x_i − x_ti)², the same at every step."""
        stored = filled(state.images.flatten(-3))
        nearest = squares(x.flatten(-3), stored, trusted(hints.mask, x)).argmin(-1)
        yield Snapshot(take(stored, nearest).unflatten(-1, self.config.image))

    def _drawn(self, state: NearestState, n: int, method: str, hints: Hints) -> Iterator[Snapshot]:
        """Stored images at random, with replacement, the same at every step."""
        drawn = draw(filled(state.images.flatten(-3)), n, hints.generator)
        yield Snapshot(drawn.unflatten(-1, self.config.image))

    def kept(self, length: int) -> int:
        """Every image: a bit a pixel if binary, else a byte."""
        return stored_size(length, self.config)


def stored_size(length: int, config: BaseConfig) -> int:
    """Floats of 32 bits that so many images fill, at a bit a pixel if binary, else a byte."""
    return -(-length * math.prod(config.image) * (1 if config.binary else 8) // 32)


def rounded(x: Float[Tensor, "*b c h w"], binary: bool) -> Float[Tensor, "*b c h w"]:
    """Images as bits or bytes hold them: 0 or 1, or the lower edge of one of 256 grey levels on [−1, 1)."""
    if binary:
        return (x > 0.5).to(x)
    return lower(x.clamp(-1, 1 - LEVEL))


def around(images: Float[Tensor, "*b N c h w"], noise: Float[Tensor, ""], binary: bool) -> Likelihood:
    """p(x | x_t): bits of stored images flipped with probability `noise`, or Gaussian around a level's middle."""
    if binary:
        return Bernoulli((1 - 2 * images) * torch.special.logit(noise))
    return Gaussian(images + LEVEL / 2, noise)


def mixture(parts: Likelihood, x: Float[Tensor, "*b Q c h w"], levels: bool = False) -> Float[Tensor, "*b Q"]:
    """ln 1/N Σ_t p(x | part t), for each image x; parts are N distributions over images, on the axis of Q.

    levels: pixels that are not binary are scored by their grey levels. Pairs come from matrix products, Q·N numbers
    and not Q·N images. Scales of single pixels, and grey levels, take one part at a time.
    """
    a, D = x.flatten(-3), math.prod(x.shape[-3:])
    if isinstance(parts, Bernoulli):
        # −ln p(x) = Σ x softplus(−logit) + (1 − x) softplus(logit): no term is negative, so no digits are lost
        logits = parts.logits.flatten(-3)
        log_p = -(a @ softplus(-logits).mT + (1 - a) @ softplus(logits).mT)
    elif levels or isinstance(parts, Correlated) or parts.scale.ndim:
        parts = parts._replace(scale=parts.scale.expand_as(parts.mean))
        each = [type(parts)(*(a[..., t, None, :, :, :] for a in parts)) for t in range(parts.mean.shape[-4])]
        scored = [part.log_level(x) if levels else part.log_prob(x) for part in each]
        log_p = torch.stack(scored, -1) if each else x.new_zeros(*a.shape[:-1], 0)
    else:
        # products would lose what one grey level means
        apart = torch.cdist(a, parts.mean.flatten(-3), compute_mode="donot_use_mm_for_euclid_dist")
        log_p = -0.5 * ((apart / parts.scale).square() + D * (2 * math.pi * parts.scale.square()).log())
    return log_p.logsumexp(-1) - math.log(max(1, log_p.shape[-1]))  # an empty episode has nothing to score


def squares(
    x: Float[Tensor, "*#b Q D"], y: Float[Tensor, "*#b N D"], m: Float[Tensor, "*#b Q D"]
) -> Float[Tensor, "*b Q N"]:
    """Squared distances over trusted entries, Σ_i m_i (x_i − y_i)²; for bits, how many differ."""
    distances: Tensor = (m * x * x).sum(-1, keepdim=True) - 2 * (m * x) @ y.mT + m @ (y * y).mT
    return distances.clamp(min=0)  # below are rounding errors


def trusted(mask: Tensor | None, x: Float[Tensor, "*b Q c h w"]) -> Float[Tensor, "*b Q D"]:
    """A mask for every pixel of x, flat: all ones where there is none."""
    return torch.ones_like(x).flatten(-3) if mask is None else mask.flatten(-3)


def filled(patterns: Float[Tensor, "*b N D"]) -> Float[Tensor, "*b N D"]:
    """The patterns of a memory to recall from; there must be some."""
    if not patterns.shape[-2]:
        raise ValueError("state: expected a memory with at least one image, got an empty one; write fills it")
    return patterns


def draw(patterns: Float[Tensor, "*b N D"], n: int, generator: torch.Generator | None) -> Float[Tensor, "*b n D"]:
    """n patterns of each memory at random, with replacement."""
    shape = (*patterns.shape[:-2], n)
    return take(patterns, torch.randint(patterns.shape[-2], shape, generator=generator, device=patterns.device))


def take(patterns: Float[Tensor, "*#b N D"], index: Int64[Tensor, "*b Q"]) -> Float[Tensor, "*b Q D"]:
    """Patterns by number, from each memory of a batch."""
    each = patterns.expand(*index.shape[:-1], *patterns.shape[-2:])
    return torch.take_along_dim(each, index[..., None], dim=-2)
