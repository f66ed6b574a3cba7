"""Distributions over images, given what the decoder put out: log_prob, mode, sample. They know nothing of codes.

An image is (channels, height, width): binary in {0, 1}, grey or colour on [−1, 1).
"""

import math
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid
from torch.special import erfcx, log_ndtr

from .support.pixels import LEVEL, middle

Number = TypeVar("Number", float, Tensor)

# A standard deviation of a grey level's middle, below which none is taken: its level then has all but 6e−5.
SURE = LEVEL / 8


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
    """Real pixels around a mean, independent, with one standard deviation for all of them, or one for each."""

    mean: Float[Tensor, "*b c h w"]
    scale: Float[Tensor, "*#b #c #h #w"]

    def log_prob(
        self, x: Float[Tensor, "*b c h w"], mask: Float[Tensor, "*#b #c h w"] | None = None
    ) -> Float[Tensor, "*b"]:
        """ln p(x) = −½ Σ ( ((x − mean) / scale)² + ln 2π scale² ); over the pixels of a mask if there is one."""
        square = ((x - self.mean) / self.scale).square()
        return -0.5 * _total(square + math.log(2 * math.pi) + 2 * self.scale.log(), mask)

    def log_level(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b"]:
        """ln p of the grey levels that pixels lie in: Σ ln P(level of x) / LEVEL. Proof: test_levels_*."""
        return _log_levels(middle(x) - self.mean, self.scale).sum((-3, -2, -1))

    def white(
        self, apart: Float[Tensor, "*b c h w"], mask: Float[Tensor, "*#b #c h w"] | None = None
    ) -> Float[Tensor, "*b c h w"]:
        """Differences from the mean in standard deviations, so that their covariance is I; 0 outside a mask."""
        return _only(apart / self.scale, mask)

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


class Correlated(NamedTuple):
    """Colour pixels around a mean. The channels of a pixel are correlated, pixels are not.

    The covariance of a pixel is Σ = L diag(scale²) Lᵀ with L unit lower triangular, so that its density is that of
    red, of green given red, and of blue given both. `lower` has what is below the diagonal of L, row by row:
    (2, 1), (3, 1), (3, 2), … Any number of channels. Proof: test_correlated_*.
    """

    mean: Float[Tensor, "*b c h w"]
    scale: Float[Tensor, "*b c h w"]
    lower: Float[Tensor, "*b pairs h w"]

    def log_prob(
        self, x: Float[Tensor, "*b c h w"], mask: Float[Tensor, "*#b #c h w"] | None = None
    ) -> Float[Tensor, "*b"]:
        """ln p(x) = −½ Σ ( (e / scale)² + ln 2π scale² ), L e = x − mean; of a mask's pixels alone if it is given.

        Where a mask has some of a pixel's channels alone, the others are integrated out.
        """
        apart, here = self._seen(x - self.mean, mask)
        return Gaussian(torch.zeros_like(apart), here.scale).log_prob(here._explained(apart), mask)

    def log_level(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b"]:
        """ln p of the grey levels that pixels lie in: of red, of green given red's, of blue given both."""
        return _log_levels(self._explained(middle(x) - self.mean), self.scale).sum((-3, -2, -1))

    def white(
        self, apart: Float[Tensor, "*b c h w"], mask: Float[Tensor, "*#b #c h w"] | None = None
    ) -> Float[Tensor, "*b c h w"]:
        """Differences d from the mean as e / scale, L e = d, so that their covariance is I; 0 outside a mask."""
        apart, here = self._seen(apart, mask)
        return _only(here._explained(apart) / here.scale, mask)

    def through(self, noise_var: Float[Tensor, "*#b"]) -> "Correlated":
        """The same pixels after noise was added to each channel: the covariance of a pixel is Σ + noise_var I."""
        noise = noise_var[..., None, None]
        after = [var + noise for var in self.scale.square().unbind(-3)]
        return self._with(after, [noise / a for a in after])

    def tempered(self, temperature: float) -> "Correlated":
        """p^(1 / temperature), normalised."""
        return self._replace(scale=self.scale * temperature**0.5)

    def mode(self) -> Float[Tensor, "*b c h w"]:
        """Take the mean [sec. 3.5]."""
        return self.mean

    def sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "*b c h w"]:
        """Draw images: mean + L (scale ε)."""
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        e, L = (self.scale * noise).unbind(-3), self._rows()
        moved = [e[i] + sum(L[i][j] * e[j] for j in range(i)) for i in range(len(e))]
        return self.mean + torch.stack(moved, -3)

    def _rows(self) -> list[list[Float[Tensor, "*b h w"]]]:
        """The rows of L, each up to its diagonal."""
        entries = iter(self.lower.unbind(-3))
        return [[next(entries) for _ in range(i)] for i in range(self.mean.shape[-3])]

    def _explained(self, apart: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        """e with L e = x − mean: of each channel, what those before it leave unexplained."""
        e: list[Tensor] = []
        for row, r in zip(self._rows(), apart.unbind(-3), strict=True):
            e.append(r - sum(a * b for a, b in zip(row, e, strict=True)))
        return torch.stack(e, -3)

    def _seen(
        self, apart: Float[Tensor, "*b c h w"], mask: Tensor | None
    ) -> tuple[Float[Tensor, "*b c h w"], "Correlated"]:
        """Differences from the mean in the pixels of a mask, and the distribution of these."""
        if mask is None:
            return apart, self
        lost = ~mask.bool().expand(apart.shape)
        return apart.masked_fill(lost, 0), self._without(lost)

    def _without(self, lost: Bool[Tensor, "*b c h w"]) -> "Correlated":
        """The distribution of the other channels; those that are lost stay, but say nothing of the others."""
        return self._with(list(self.scale.square().unbind(-3)), [a.to(self.mean) for a in lost.unbind(-3)])

    def _with(self, after: list[Float[Tensor, "*b h w"]], gain: list[Float[Tensor, "*b h w"]]) -> "Correlated":
        """L' and scale' of L D Lᵀ + diag(noise), with D' = D + noise of each channel by itself, gain = noise / D'.

        Channel by channel from the last, L D Lᵀ + noise e_i e_iᵀ: what channel i explains of those after it shrinks
        by the gain, and the rest, D_i gain (L_ri)_r (L_ri)_rᵀ, is noise for them. That is an update of rank one
        (Gill, Golub, Murray and Saunders, 1974), a sum of positive terms, so float32 keeps its digits. Gain 1 is
        noise without end.
        """
        L, var = self._rows(), list(self.scale.square().unbind(-3))
        channels = len(var)
        for i in reversed(range(channels)):
            a, p = var[i] * gain[i], {r: L[r][i] for r in range(i + 1, channels)}
            var[i] = after[i]
            for r in p:
                L[r][i] = L[r][i] * (1 - gain[i])
            for j in range(i + 1, channels):
                new = var[j] + a * p[j].square()
                slope, a, var[j] = a * p[j] / new, a * var[j] / new, new
                for r in range(j + 1, channels):
                    p[r] = p[r] - p[j] * L[r][j]
                    L[r][j] = L[r][j] + slope * p[r]
        scale = torch.stack(var, -3).sqrt()
        entries = [entry.expand(scale[..., 0, :, :].shape) for row in L for entry in row]
        return Correlated(self.mean, scale, torch.stack(entries, -3) if entries else self.lower)


Likelihood = Bernoulli | Gaussian | Correlated


def _only(x: Float[Tensor, "*b c h w"], mask: Tensor | None) -> Float[Tensor, "*b c h w"]:
    return x if mask is None else torch.where(mask.bool(), x, 0)


def _total(x: Float[Tensor, "*b c h w"], mask: Tensor | None) -> Float[Tensor, "*b"]:
    return _only(x, mask).sum((-3, -2, -1))


def _log_levels(apart: Float[Tensor, "*b c h w"], scale: Float[Tensor, "..."]) -> Float[Tensor, "*b c h w"]:
    """ln (Φ(b) − Φ(a)) / LEVEL, where a and b are the edges of a level whose middle is `apart` from the mean.

    scale² is the variance of pixels that are spread over their level. That adds LEVEL² / 12, which is taken off (of
    each channel given those before it; L stays as it is). So the Gaussian here is narrower than that of log_prob.
    As Φ(b) − Φ(a) = Φ(−a) − Φ(−b), both are taken in the lower tail, where none is 1. Levels below 0 and above 255
    have their share too, so that of the others is a little less than 1.
    """
    own = (scale.square() - LEVEL**2 / 12).clamp_min(SURE**2).sqrt()
    near, far = ((side * LEVEL / 2 - apart.abs()) / own for side in (1, -1))
    log_near = _log_cdf(near)
    return log_near + (-torch.expm1(_log_cdf(far) - log_near)).log() - math.log(LEVEL)


def _log_cdf(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """ln Φ(x). In the lower tail, the gradient of log_ndtr is a difference of large numbers; this one's is not."""
    low = x.clamp_max(-1.0)
    tail = (erfcx(-math.sqrt(0.5) * low) / 2).log() - low.square() / 2
    return torch.where(x < -1, tail, log_ndtr(x.clamp_min(-1.0)))


def bits_per_dimension(nats_per_image: Number, dimensions: int) -> Number:
    """Bits per dimension of 256-level images scaled to [−1, 1), where a level is 1/128 wide [sec. 4]."""
    return 7 + nats_per_image / (dimensions * math.log(2))
