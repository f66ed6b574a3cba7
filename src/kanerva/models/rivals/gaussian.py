"""Gaussians with a variance for every number: what encoders infer, and the noise that models draw."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class DiagonalGaussian(NamedTuple):
    """A Gaussian with its own variance for every number."""

    mean: Float[Tensor, "*b N"]
    log_var: Float[Tensor, "*b N"]

    def draw(self, generator: torch.Generator | None = None) -> Float[Tensor, "*b N"]:
        """mean + √var ε."""
        return self.mean + (0.5 * self.log_var).exp() * normal(self.mean.shape, self.mean, generator)

    def kl(
        self, mean: Float[Tensor, "*b N"] | float = 0.0, log_var: Float[Tensor, ""] | None = None
    ) -> Float[Tensor, "*b"]:
        """KL(this ‖ N(mean, var I)) = ½ Σ ((this.mean − mean)² / var + r − 1 − ln r),  r = this.var / var."""
        log_ratio, distance = self.log_var, (self.mean - mean).square()
        if log_var is not None:
            log_ratio, distance = log_ratio - log_var, distance * (-log_var).exp()
        return 0.5 * (distance + log_ratio.exp() - 1 - log_ratio).sum(-1)


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers, of the dtype and on the device of another tensor."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
