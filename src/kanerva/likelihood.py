"""Distributions over images, given what the decoder put out: log_prob, mode, sample. They know nothing of codes.

An image is (channels, height, width): binary in {0, 1}, grey or colour on [−1, 1).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

# 256 grey levels on [−1, 1) lie this far apart.
LEVEL = 1 / 128


class Bernoulli(NamedTuple):
    """Binary pixels, independent given their logits."""

    logits: Float[Tensor, "*b c h w"]

    @property
    def mean(self) -> Float[Tensor, "*b c h w"]:
        """The probabilities that pixels are 1."""
        return self.logits.sigmoid()

    def log_prob(
        self, x: Float[Tensor, "*b c h w"], mask: Float[Tensor, "*#b #c h w"] | None = None
    ) -> Float[Tensor, "*b"]:
        """ln p(x) = Σ x ln p + (1 − x) ln(1 − p), p = sigmoid(logits); of a mask's pixels alone if it is given."""
        return -_total(binary_cross_entropy_with_logits(self.logits, x, reduction="none"), mask)

    def through(self, flips: Float[Tensor, "*#b"]) -> "Bernoulli":
        """The same pixels after each was flipped with probability `flips`: p' = (1 − flips) p + flips (1 − p)."""
        on, off = logsigmoid(self.logits), logsigmoid(-self.logits)
        stay, turn = (a[..., None, None, None] for a in (torch.log1p(-flips), flips.log()))
        return Bernoulli(torch.logaddexp(stay + on, turn + off) - torch.logaddexp(stay + off, turn + on))

    def tempered(self, temperature: float) -> "Bernoulli":
        """p^(1 / temperature), normalised."""
        return Bernoulli(self.logits / temperature)

    def mode(self) -> Float[Tensor, "*b c h w"]:
        """Round the probabilities [sec. 3.5]."""
        return (self.logits > 0).to(self.logits.dtype)

    def sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "*b c h w"]:
        """Draw images."""
        return torch.bernoulli(self.mean, generator=generator)


class Gaussian(NamedTuple):
    """Real pixels around a mean, with one standard deviation for all of an image's pixels."""

    mean: Float[Tensor, "*b c h w"]
    scale: Float[Tensor, "*#b #c #h #w"]

    def log_prob(
        self, x: Float[Tensor, "*b c h w"], mask: Float[Tensor, "*#b #c h w"] | None = None
    ) -> Float[Tensor, "*b"]:
        """ln p(x) = −½ Σ ( ((x − mean) / scale)² + ln 2π scale² ); over the pixels of a mask if there is one."""
        square = ((x - self.mean) / self.scale).square()
        return -0.5 * _total(square + math.log(2 * math.pi) + 2 * self.scale.log(), mask)

    def through(self, noise_var: Float[Tensor, "*#b"]) -> "Gaussian":
        """The same pixels after noise was added to each: variances add."""
        return Gaussian(self.mean, (self.scale.square() + noise_var[..., None, None, None]).sqrt())

    def tempered(self, temperature: float) -> "Gaussian":
        """p^(1 / temperature), normalised."""
        return Gaussian(self.mean, self.scale * temperature**0.5)

    def mode(self) -> Float[Tensor, "*b c h w"]:
        """Take the mean [sec. 3.5]."""
        return self.mean

    def sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "*b c h w"]:
        """Draw images."""
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + self.scale * noise


Likelihood = Bernoulli | Gaussian


def _total(x: Float[Tensor, "*b c h w"], mask: Tensor | None) -> Float[Tensor, "*b"]:
    return (x if mask is None else torch.where(mask.bool(), x, 0)).sum((-3, -2, -1))


def dequantise(x: Float[Tensor, "..."], generator: torch.Generator | None = None) -> Float[Tensor, "..."]:
    """Spread each grey level over its width, x + U(0, 1/128), so that a density has something to fit [sec. 4]."""
    return x + LEVEL * torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
