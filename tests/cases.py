"""Random memories, weights and codes for the tests, from a seed."""

from typing import NamedTuple

import torch
from torch import Tensor

from kanerva import MemoryState
from kanerva.likelihood import Correlated
from kanerva.models import BaseConfig

# Every size that a loop, a block or a vector unit could trip over: (batch, K, C, T).
AWKWARD = [
    ((), 1, 7, 1),
    ((), 7, 1, 5),
    ((3,), 31, 7, 3),
    ((2, 3), 5, 7, 4),
    ((), 33, 100, 2),
    ((1,), 3, 3, 70),
    ((0,), 3, 2, 4),
]


class Case(NamedTuple):
    state: MemoryState
    w: Tensor
    z: Tensor
    noise_var: Tensor


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def covariance(*batch: int, K: int, condition: float = 10.0, seed: int = 0) -> Tensor:
    """A random covariance with eigenvalues from 1/condition to 1."""
    Q, _ = torch.linalg.qr(normal(*batch, K, K, seed=seed))
    scale = torch.logspace(0, -1, K, base=condition, dtype=torch.float64)
    U = (Q * scale) @ Q.mT
    return 0.5 * (U + U.mT)


def case(
    batch: tuple[int, ...] = (),
    K: int = 4,
    C: int = 5,
    T: int = 3,
    *,
    seed: int = 0,
    noise_var: float = 0.3,
    condition: float = 10.0,
    device: str = "cpu",
) -> Case:
    """A memory in the middle of its life (full U), and T weights and codes that have nothing to do with it."""
    state = MemoryState(
        normal(*batch, K, C, seed=seed), covariance(*batch, K=K, condition=condition, seed=seed + 1)
    )
    w, z = normal(*batch, T, K, seed=seed + 2), normal(*batch, T, C, seed=seed + 3)
    s2 = torch.tensor(noise_var, dtype=torch.float64)
    return Case(state.to(device), w.to(device), z.to(device), s2.to(device))


def covariance_of(likelihood: Correlated) -> Tensor:
    """Σ of every pixel, (*b, h, w, c, c), from its definition."""
    c = likelihood.mean.shape[-3]
    i, j = torch.tril_indices(c, c, -1)
    L = torch.eye(c, dtype=torch.float64).repeat(*likelihood.mean.movedim(-3, -1).shape[:-1], 1, 1)
    L[..., i, j] = likelihood.lower.movedim(-3, -1)
    return L @ torch.diag_embed(likelihood.scale.square().movedim(-3, -1)) @ L.mT


def generator(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def images(config: BaseConfig, *batch: int, seed: int = 0) -> Tensor:
    """Images that suit a model: bits, or numbers on [−1, 1]."""
    x = normal(*batch, *config.image, seed=seed)
    return (x > 0.5).double() if config.binary else x.clamp(-1, 1)
