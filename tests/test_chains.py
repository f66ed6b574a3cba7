"""How well chains mix, where it is known."""

import math

import pytest
import torch

from cases import normal
from kanerva.recall.chains import mixing


def test_mixing_of_a_chain_with_a_known_memory() -> None:
    """x' = a x + noise has an autocorrelation of aˡ and a time of (1 + a)/(1 − a)."""
    a, S, n = 0.8, 4000, 30
    x, rows = normal(n, seed=1) / math.sqrt(1 - a * a), []
    for s in range(S):
        x = a * x + normal(n, seed=1000 + s)
        rows.append(x)
    found = mixing(torch.stack(rows))
    torch.testing.assert_close(found.autocorrelation[:4], a ** torch.arange(4).double(), rtol=0.05, atol=0.02)
    assert abs(found.time / 9 - 1) < 0.15
    assert abs(found.effective / (0.9 * S * n / 9) - 1) < 0.15
    assert 0.99 < found.r_hat < 1.02
    apart = torch.stack(rows)[:200] + 20 * torch.arange(n)
    assert mixing(apart).r_hat > 2
    frozen = torch.arange(n).double().expand(200, n)
    assert mixing(frozen).r_hat == math.inf
    assert mixing(torch.stack(rows)[:, 0]).r_hat < 1.1
    for bad in (frozen[:3], frozen[:, :0], frozen * math.nan):
        with pytest.raises(ValueError, match="values: expected"):
            mixing(bad)
