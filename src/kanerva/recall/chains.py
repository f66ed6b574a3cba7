"""How well Markov chains mix: autocorrelation, effective draws, and whether they have forgotten their start."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Mixing(NamedTuple):
    """How well chains mix, from one number per step, such as the energy."""

    autocorrelation: Float[Tensor, "lags"]
    """The mean correlation of steps that are 0, 1, … apart."""
    time: float
    """The integrated autocorrelation time: so many steps are worth one independent draw."""
    effective: float
    """Independent draws that all chains together are worth."""
    r_hat: float
    """Spread of all chains over that within one, 1 when they have forgotten where they began (split R̂)."""


def mixing(values: Float[Tensor, "S *chains"]) -> Mixing:
    """Judge chains by the values they went through; the first tenth is left out.

    time = 1 + 2 Σ ρ_l up to the first pair of lags whose sum is not positive (Geyer's initial sequence).
    """
    if len(values) < 4 or not values[0].numel():
        raise ValueError(f"values: expected at least 4 steps of a chain, got shape {tuple(values.shape)}")
    if not bool(values.isfinite().all()):
        raise ValueError("values: expected finite ones, got NaN or infinities")
    chains = values[len(values) // 10 :].double()
    chains = chains.reshape(len(chains), -1)
    S, n = chains.shape
    centred = chains - chains.mean()
    variance = centred.square().mean().clamp(min=torch.finfo(centred.dtype).tiny)
    lags = [(centred[: S - lag] * centred[lag:]).mean() / variance for lag in range(S // 2)]
    correlation = torch.stack(lags)
    pairs = correlation[: 2 * (len(correlation) // 2)].reshape(-1, 2).sum(-1)
    positive = int((pairs > 0).long().cumprod(0).sum())
    time = max(1.0, float(2 * pairs[:positive].sum() - 1))
    parts = chains[: 2 * (S // 2)].reshape(2, S // 2, n)  # halves of chains count as chains
    within, between = parts.var(1).mean(), parts.mean(1).var()
    r_hat = float(((within * (S // 2 - 1) / (S // 2) + between) / within).sqrt())  # infinite for frozen chains
    r_hat = 1.0 if not (within > 0 or between > 0) else r_hat
    return Mixing(correlation, time, S * n / time, r_hat)
