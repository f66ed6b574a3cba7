"""The write in Gram space: the sequential part knows codes by their inner products only and never touches C.

A chunk of N codes is written in three moves (derivation: README.md beside this file):
    before   G = R Rᵀ, X = R Zᵀ, Y = Z Zᵀ                                       matrix products
    core     (G, X, Y, U) → weights W, gains k, innovation variances s, new U    N dependent steps in K and N
    after    Ψ (I + L) = kᵀ with L = tril(W kᵀ, −1);  R ← R + Ψ (Z − W R)        matrix products
With keys, G, X and Y are of the first columns alone, which address; the last move writes all columns.
`plain`, the core here, is PyTorch for any device; blocked.py has one of the same signature for GPUs, and cpu.py one
that goes on to Ψ.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ..memory import MemoryState
from ..support import linalg

# Codes between two refreshes of G and of the inverse: more would let rounding grow, fewer are more products. They
# are few for K > C, where A is noise_var alone in K − C dimensions and rounding grows with every code.
CHUNK, SHORT_CHUNK = 64, 2

Scalar = Float[Tensor, ""]
# (G, X, Y, U, noise_var) → (W, k, s, U)
Core = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


def write(
    state: MemoryState,
    z: Float[Tensor, "B T C"],
    noise_var: Scalar,
    keys: int | None = None,
    core: Core | None = None,
) -> tuple[MemoryState, Float[Tensor, "B T K"], Float[Tensor, "B T"]]:
    """Write an episode; returns the memory, the weights and the innovation variances s."""
    (R, U), parts, K = state, [], state.R.shape[-2]
    for Z in chunks(z, R, keys):
        M = Products.apply(torch.cat([R, Z], dim=1)[..., :keys])  # type: ignore[no-untyped-call]
        W, k, s, U = (core or plain)(M[:, :K, :K], M[:, :K, K:], M[:, K:, K:], U, noise_var)
        L = torch.tril(W @ k.mT, -1)
        psi = torch.linalg.solve_triangular(L, k.mT, upper=False, unitriangular=True, left=False)
        R = torch.baddbmm(R, psi, torch.baddbmm(Z, W, R, alpha=-1))
        parts.append((W, s))
    return MemoryState(R, U), *joined(parts, z, R)


def joined(
    parts: list[tuple[Tensor, Tensor]], z: Float[Tensor, "B T C"], R: Float[Tensor, "B K C"]
) -> tuple[Float[Tensor, "B T K"], Float[Tensor, "B T"]]:
    """The weights and innovation variances of all chunks."""
    if not parts:
        return z.new_empty(len(z), 0, R.shape[-2]), z.new_empty(len(z), 0)
    if len(parts) == 1:
        return parts[0]
    W, s = (torch.cat(x, dim=1) for x in zip(*parts, strict=True))
    return W, s


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse to be differentiated again, and at once: PyTorch's own way lets autograd.grad pass in silence."""

    @functools.wraps(backward)
    def run(*args: Any) -> Any:
        if torch.is_grad_enabled():  # as it is in a backward pass with create_graph=True, and there alone
            raise RuntimeError(
                "kernels: the fast writes can be differentiated once, and create_graph=True asks for more; "
                "backend='reference' (model.backend, --compute) any number of times"
            )
        return backward(*args)

    return run


class Products(torch.autograd.Function):
    """M = V Vᵀ, with one product in its adjoint instead of two: g_V = (g_M + g_Mᵀ) V."""

    @staticmethod
    def forward(ctx: FunctionCtx, V: Float[Tensor, "B N C"]) -> Float[Tensor, "B N N"]:
        ctx.save_for_backward(V)
        return V @ V.mT

    @staticmethod
    @once
    def backward(ctx: FunctionCtx, g_M: Float[Tensor, "B N N"]) -> Float[Tensor, "B N C"]:
        (V,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return (g_M + g_M.mT) @ V


def chunks(
    z: Float[Tensor, "B T C"], R: Float[Tensor, "B K C"], keys: int | None = None
) -> tuple[Float[Tensor, "B N C"], ...]:
    """Cut an episode into what is written between two refreshes."""
    size = CHUNK if R.shape[-2] <= R[..., :keys].shape[-1] else SHORT_CHUNK
    return z.split(size, dim=-2) if z.shape[-2] else ()


def given(grads: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of outputs, zero where nothing came in; a kernel wants them all."""
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, outputs, strict=True)]


def adjoint_of_inverse(
    P: Float[Tensor, "B K K"], g_P: Float[Tensor, "B K K"], g_log_det: Float[Tensor, "B"]
) -> Float[Tensor, "B K K"]:
    """g_A = −P g_P P − g_log_det P for P = A⁻¹ and ln det P."""
    return -P @ g_P @ P - g_log_det[:, None, None] * P


def plain(
    G: Float[Tensor, "B K K"],
    X: Float[Tensor, "B K N"],
    Y: Float[Tensor, "B N N"],
    U: Float[Tensor, "B K K"],
    noise_var: Scalar,
) -> tuple[Float[Tensor, "B N K"], Float[Tensor, "B N K"], Float[Tensor, "B N"], Float[Tensor, "B K K"]]:
    """Address and update N times, in inner products alone; X keeps the columns of the codes still to come."""
    P, steps = linalg.ridge_inverse(G.detach(), noise_var.detach())[0], []
    for t in range(Y.shape[-1]):
        w = Solve.apply(G, noise_var, X[..., :1], P)  # type: ignore[no-untyped-call]
        c = U @ w
        s = w.mT @ c + noise_var
        k = c / s
        d = torch.baddbmm(Y[:, t : t + 1, t:], w.mT, X, alpha=-1)  # Δᵀz of this code and of those to come
        r = noise_var * w  # = R Δ
        n = d[..., :1] - r.mT @ w  # ‖Δ‖²
        X = torch.baddbmm(X[..., 1:], k, d[..., 1:])
        U = torch.baddbmm(U, k, c.mT, alpha=-1)
        half = (r + 0.5 * n * k) @ k.mT
        G = G + half + half.mT
        P = _woodbury(P, torch.cat([k, r], -1).detach(), n.detach())
        steps.append((w[..., 0], k[..., 0], s[:, 0, 0]))
    W, gains, s = (torch.stack(x, dim=1) for x in zip(*steps, strict=True))
    return W, gains, s, linalg.symmetric(U)


class Solve(torch.autograd.Function):
    """w = (G + noise_var I)⁻¹ b by the carried inverse P and one step of refinement, both ways."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        G: Float[Tensor, "B K K"],
        noise_var: Scalar,
        b: Float[Tensor, "B K 1"],
        P: Float[Tensor, "B K K"],
    ) -> Float[Tensor, "B K 1"]:
        w = refined(P, G, noise_var, b)
        ctx.save_for_backward(G, noise_var, P, w)
        return w

    @staticmethod
    @once
    def backward(ctx: FunctionCtx, g_w: Float[Tensor, "B K 1"]) -> tuple[Tensor | None, ...]:
        G, noise_var, P, w = ctx.saved_tensors  # type: ignore[attr-defined]
        v = refined(P, G, noise_var, g_w)
        return -v @ w.mT, -(v * w).sum(), v, None


def refined(
    P: Float[Tensor, "B K K"], G: Float[Tensor, "B K K"], noise_var: Scalar, b: Float[Tensor, "B K 1"]
) -> Float[Tensor, "B K 1"]:
    """Solve (G + noise_var I) w = b from a P that is nearly the inverse."""
    w = P @ b
    return torch.baddbmm(w, P, b - G @ w - noise_var * w)


def _woodbury(
    P: Float[Tensor, "B K K"], V: Float[Tensor, "B K 2"], n: Float[Tensor, "B 1 1"]
) -> Float[Tensor, "B K K"]:
    """(A + V S Vᵀ)⁻¹ = P − P V (S⁻¹ + Vᵀ P V)⁻¹ Vᵀ P,   S⁻¹ = [[0, 1], [1, −n]]."""
    PV = P @ V
    a, b, _, d = (V.mT @ PV).flatten(1)[:, :, None, None].unbind(1)
    b, d = b + 1, d - n
    adjugate = torch.cat([d, -b, -b, a], -1).view(-1, 2, 2)
    return torch.baddbmm(P, PV @ (adjugate / (a * d - b * b)), PV.mT, alpha=-1)
