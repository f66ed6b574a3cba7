"""Distributions over images, given what the decoder put out: log_prob, mode, sample. They know nothing of codes.

An image is (channels, height, width): binary in {0, 1}, grey or colour on [−1, 1).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

# 256 grey levels on [−1, 1) lie this far apart.
LEVEL = 1 / 128


class Bernoulli(NamedTuple):
    """Binary pixels, independent given their logits."""

    logits: Float[Tensor, "*b c h w"]

    def log_prob(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b"]:
        """ln p(x) = Σ x ln p + (1 − x) ln(1 − p), p = sigmoid(logits)."""
        return -binary_cross_entropy_with_logits(self.logits, x, reduction="none").sum((-3, -2, -1))

    def mode(self) -> Float[Tensor, "*b c h w"]:
        """Round the probabilities [sec. 3.5]."""
        return (self.logits > 0).to(self.logits.dtype)

    def sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "*b c h w"]:
        """Draw images."""
        return torch.bernoulli(self.logits.sigmoid(), generator=generator)


class Gaussian(NamedTuple):
    """Real pixels around a mean, with one standard deviation for all of them."""

    mean: Float[Tensor, "*b c h w"]
    scale: Float[Tensor, ""]

    def log_prob(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b"]:
        """ln p(x) = −½ Σ ( ((x − mean) / scale)² + ln 2π scale² )."""
        square = ((x - self.mean) / self.scale).square()
        return -0.5 * (square + math.log(2 * math.pi) + 2 * self.scale.log()).sum((-3, -2, -1))

    def mode(self) -> Float[Tensor, "*b c h w"]:
        """Take the mean [sec. 3.5]."""
        return self.mean

    def sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "*b c h w"]:
        """Draw images."""
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + self.scale * noise


Likelihood = Bernoulli | Gaussian


def dequantise(x: Float[Tensor, "..."], generator: torch.Generator | None = None) -> Float[Tensor, "..."]:
    """Spread each grey level over its width, x + U(0, 1/128), so that a density has something to fit [sec. 4]."""
    return x + LEVEL * torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
