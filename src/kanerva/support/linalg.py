"""Small dense algebra that the memory and its kernels share: ridges, Cholesky factors, and what follows from them.

Any number of leading batch axes; float32 and float64. Proof: tests/test_linalg.py.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from . import checks

Number = float | int | Float[Tensor, ""]


def broadcast(matrices: Iterable[Tensor], *others: Tensor) -> list[Tensor]:
    """Give matrices the batch axes that they will have once they have met the others, all of shape (*b, N, M)."""
    matrices = list(matrices)
    batch = together(*(A.shape[:-2] for A in (*matrices, *others)))
    return [A.expand(*batch, *A.shape[-2:]).contiguous() for A in matrices]


def together(*shapes: Sequence[int]) -> tuple[int, ...]:
    """torch.broadcast_shapes, which costs 0.3 s at its first use, and more than many a small read after that."""
    first, *others = dict.fromkeys(map(tuple, shapes))
    return tuple(torch.broadcast_shapes(first, *others)) if others else first


def ridge(A: Float[Tensor, "*b N N"], a: Number) -> Float[Tensor, "*b N N"]:
    """A + a I."""
    return A + a * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)


def symmetric(A: Float[Tensor, "*b N N"]) -> Float[Tensor, "*b N N"]:
    """½ (A + Aᵀ), symmetric to the last bit."""
    return 0.5 * (A + A.mT)


def cholesky(A: Float[Tensor, "*b N N"], name: str) -> Float[Tensor, "*b N N"]:
    """Factor A = L Lᵀ. Where that fails: an error if values may be looked at, else NaN; never a clamp."""
    L, info = torch.linalg.cholesky_ex(A)
    if checks.deep(A):
        checks.factored(name, A, info)
        return L
    return L.masked_fill(info[..., None, None] > 0, torch.nan)


def solve(L: Float[Tensor, "*#b N N"], B: Float[Tensor, "*#b N M"]) -> Float[Tensor, "*#b N M"]:
    """A⁻¹B from the factor A = L Lᵀ; unlike torch.cholesky_solve, a CUDA graph can capture it."""
    return torch.linalg.solve_triangular(L.mT, solve_lower(L, B), upper=True)


def solve_lower(L: Float[Tensor, "*#b N N"], B: Float[Tensor, "*#b N M"]) -> Float[Tensor, "*#b N M"]:
    """L⁻¹B for a lower triangular L."""
    return torch.linalg.solve_triangular(L, B, upper=False)


def log_det(L: Float[Tensor, "*b N N"]) -> Float[Tensor, "*b"]:
    """ln det A from its factor A = L Lᵀ."""
    return 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def resolution(A: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """The eps that entries are rounded by: float32's also where they were converted to float64 afterwards."""
    short, long = (torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))
    return torch.where(((A.float() - A).nan_to_num(0) == 0).all(), short, long).double()


def ridge_inverse(
    G: Float[Tensor, "*b N N"], noise_var: Number
) -> tuple[Float[Tensor, "*b N N"], Float[Tensor, "*b"]]:
    """(G + noise_var I)⁻¹ for G = R Rᵀ, and its ln det."""
    L = cholesky(ridge(G, noise_var), "R Rᵀ + noise_var I")
    root = solve_lower(L, torch.eye(G.shape[-1], dtype=G.dtype, device=G.device))
    return root.mT @ root, -log_det(L)
