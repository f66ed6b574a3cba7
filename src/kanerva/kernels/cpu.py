"""The core of the write, and its adjoint, as one fused loop over the codes of a chunk, compiled by Numba for CPUs.

The mathematics is that of gram.plain, the adjoint that of README.md; the letters are theirs. Episodes are shared
out over torch.get_num_threads() threads. The K×K matrices are symmetric, so M x is a sum of rows of M, and inner
loops run along memory. A write keeps O(K + N) numbers a code, and no states but the last of a chunk: the backward
pass makes the others again.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..memory import MemoryState
from ..support import linalg, loops
from . import gram
from .gram import Scalar

# Sums may be reordered and multiply-adds contracted, or no vector unit would be used; NaN and infinity are kept.
compiled = functools.partial(loops.compiled, fast=("reassoc", "contract", "nsz", "arcp"))


@compiled
def combine(M: Any, x: Any, y: Any) -> None:
    """y = Mᵀx; eight rows at a time, so that y is fetched and stored an eighth as often."""
    K, N = M.shape
    y[:] = 0
    whole = K - K % 8
    for i in range(0, whole, 8):
        a, b, c, d, e, f, g, h = x[i], x[i + 1], x[i + 2], x[i + 3], x[i + 4], x[i + 5], x[i + 6], x[i + 7]
        for j in range(N):
            y[j] += (a * M[i, j] + b * M[i + 1, j] + c * M[i + 2, j] + d * M[i + 3, j]) + (
                e * M[i + 4, j] + f * M[i + 5, j] + g * M[i + 6, j] + h * M[i + 7, j]
            )
    for i in range(whole, K):
        a = x[i]
        for j in range(N):
            y[j] += a * M[i, j]


@compiled
def apply(M: Any, x: Any, y: Any) -> None:
    """y = M x; four rows at a time."""
    K, N = M.shape
    whole = K - K % 4
    for i in range(0, whole, 4):
        a = M.dtype.type(0)
        b, c, d = a, a, a
        for j in range(N):
            a += M[i, j] * x[j]
            b += M[i + 1, j] * x[j]
            c += M[i + 2, j] * x[j]
            d += M[i + 3, j] * x[j]
        y[i], y[i + 1], y[i + 2], y[i + 3] = a, b, c, d
    for i in range(whole, K):
        a = M.dtype.type(0)
        for j in range(N):
            a += M[i, j] * x[j]
        y[i] = a


@compiled
def dot(x: Any, y: Any) -> Any:
    total = x.dtype.type(0)
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@compiled
def outer(M: Any, sign: Any, x: Any, y: Any) -> None:
    """M += sign x yᵀ."""
    for i in range(M.shape[0]):
        a = sign * x[i]
        for j in range(M.shape[1]):
            M[i, j] += a * y[j]


@compiled
def add(M: Any, a: Any, b: Any, c: Any, x: Any, y: Any) -> None:
    """M += a x xᵀ + b (x yᵀ + y xᵀ) + c y yᵀ."""
    for i in range(M.shape[0]):
        left, right = a * x[i] + b * y[i], b * x[i] + c * y[i]
        for j in range(M.shape[1]):
            M[i, j] += left * x[j] + right * y[j]


@compiled
def invert(A: Any, row: Any, column: Any) -> Any:
    """Invert a positive definite A in place by Gauss–Jordan sweeps; returns ln det A. Any other A becomes NaN."""
    K = A.shape[0]
    log_det = A.dtype.type(0)
    for i in range(K):
        pivot = A[i, i]
        if not pivot > 0:
            pivot = A.dtype.type(np.nan)
        log_det += np.log(pivot)
        for j in range(K):
            row[j] = A[i, j] / pivot
            column[j] = A[j, i]
        outer(A, A.dtype.type(-1), column, row)
        for j in range(K):
            A[i, j] = row[j]
            A[j, i] = -column[j] / pivot
        A[i, i] = 1 / pivot
    return log_det


@compiled
def solve(P: Any, G: Any, noise_var: Any, b: Any, w: Any, rest: Any, more: Any) -> None:
    """w = (G + noise_var I)⁻¹ b from a P that is nearly the inverse, with one step of refinement."""
    combine(P, b, w)
    combine(G, w, rest)
    for i in range(b.shape[0]):
        rest[i] = b[i] - rest[i] - noise_var * w[i]
    combine(P, rest, more)
    for i in range(b.shape[0]):
        w[i] += more[i]


@compiled
def change(U: Any, P: Any, sign: Any, s: Any, k: Any, PV: Any, core: Any, u: Any) -> None:
    """What one write does to U and P (sign −1), or its undoing (sign 1); u is scratch."""
    root = np.sqrt(s)
    for i in range(k.shape[0]):
        u[i] = k[i] * root
    outer(U, sign, u, u)  # symmetric to the last bit
    add(P, sign * core[0], sign * core[1], sign * core[2], PV[0], PV[1])


@compiled
def forward(
    start: int,
    stop: int,
    noise_var: Any,
    M: Any,
    coefficients: Any,
    W: Any,
    s: Any,
    U: Any,
    P: Any,
    gain: Any,
    D: Any,
    surprise: Any,
    PV: Any,
    core: Any,
    psi: Any,
) -> None:
    """Write a chunk into memories start … stop − 1. U changes in place."""
    _, N, K = W.shape
    kind = M.dtype
    one = kind.type(1)
    b, c, rest, more = np.empty(K, kind), np.empty(K, kind), np.empty(K, kind), np.empty(K, kind)
    Wt, f, phi = np.empty((K, N), kind), np.empty(N, kind), np.empty((K, K), kind)
    Ge, Xe = np.empty((K, K), kind), np.empty((K, N), kind)
    for e in range(start, stop):
        Ue, Pe = U[e], P[e]
        split(M[e], Ge, Xe)
        Pe[:] = Ge
        for i in range(K):
            Pe[i, i] += noise_var
        invert(Pe, rest, more)
        for t in range(N):
            w, k, d, p, q = W[e, t], gain[e, t], D[e, t], PV[e, t, 0], PV[e, t, 1]
            for i in range(K):
                b[i] = Xe[i, t]
            solve(Pe, Ge, noise_var, b, w, rest, more)
            combine(Ue, w, c)
            s[e, t] = dot(w, c) + noise_var
            for i in range(K):
                k[i] = c[i] / s[e, t]
                Wt[i, t] = w[i]
            # n = ‖Δ‖² = Δᵀz − noise_var ‖w‖²; a perfect read may round to less than nothing
            n = max(M[e, K + t, K + t] - dot(w, b) - noise_var * dot(w, w), one - one)
            surprise[e, t] = n
            # d = Δᵀz of the codes to come
            combine(Xe, w, d)
            for j in range(N):
                d[j] = M[e, K + t, K + j] - d[j]
            d[: t + 1] = 0
            # P ← P − [p q] (S⁻¹ + VᵀP V)⁻¹ [p q]ᵀ,   V = [k, noise_var w]
            combine(Pe, k, p)
            combine(Pe, w, q)
            for i in range(K):
                q[i] *= noise_var
            kPk, off, wPw = dot(k, p), one + dot(k, q), noise_var * dot(w, q) - n
            det = kPk * wPw - off * off
            core[e, t, 0], core[e, t, 1], core[e, t, 2] = wPw / det, -off / det, kPk / det
            change(Ue, Pe, -one, s[e, t], k, PV[e, t], core[e, t], rest)
            add(Ge, n, noise_var, one - one, k, w)
            outer(Xe, one, k, d)
        # Ψ (I + L) = Kᵀ, from the last column to the first: ψ_t = k_t − Σ_{τ>t} (w_τ·k_t) ψ_τ
        psi_e, both = psi[e], coefficients[e]
        psi_e[:] = 0
        for t in range(N - 1, -1, -1):
            combine(Wt, gain[e, t], f)
            f[: t + 1] = 0
            combine(psi_e, f, rest)
            for i in range(K):
                psi_e[t, i] = gain[e, t, i] - rest[i]
                both[i, K + t] = psi_e[t, i]
        # Φ = I − Ψ W
        phi[:] = 0
        for t in range(N):
            outer(phi, -one, psi_e[t], W[e, t])
        for i in range(K):
            phi[i, i] += one
            for j in range(K):
                both[i, j] = phi[i, j]


@compiled
def split(M: Any, G: Any, X: Any) -> None:
    """G and X, the upper blocks of M."""
    K, N = X.shape
    for i in range(K):
        for j in range(K):
            G[i, j] = M[i, j]
        for j in range(N):
            X[i, j] = M[i, K + j]


@compiled
def replay(M: Any, noise_var: Any, W: Any, gain: Any, D: Any, surprise: Any, X: Any, Gs: Any, Xs: Any) -> None:
    """G and Xᵀ before every step; X is scratch."""
    N, K = W.shape
    split(M, Gs[0], X)
    for j in range(N):
        for i in range(K):
            Xs[0, j, i] = X[i, j]
    zero, one = noise_var - noise_var, M.dtype.type(1)
    for t in range(N - 1):
        Gs[t + 1] = Gs[t]
        add(Gs[t + 1], surprise[t], noise_var, zero, gain[t], W[t])
        Xs[t + 1] = Xs[t]
        outer(Xs[t + 1], one, D[t], gain[t])


@compiled
def backward(
    start: int,
    stop: int,
    noise_var: Any,
    M: Any,
    W: Any,
    s: Any,
    U: Any,
    P: Any,
    gain: Any,
    D: Any,
    surprise: Any,
    PV: Any,
    core: Any,
    psi: Any,
    g_coefficients: Any,
    g_W: Any,
    g_s: Any,
    g_U: Any,
    g_M: Any,
    g_noise_var: Any,
) -> None:
    """The adjoint of `forward`. g_U comes in symmetric and goes out as the gradient of U; other sums start at 0.

    U and P walk back: undoing a write adds to them. G and X are made again from the start: undoing would subtract,
    and after a code that is far larger than the memory nothing would be left of what they were before it.
    """
    _, N, K = W.shape
    kind = M.dtype
    one = kind.type(1)
    zero, half = one - one, one / 2
    g_k, g_w, g_c, v = np.empty(K, kind), np.empty(K, kind), np.empty(K, kind), np.empty(K, kind)
    gUk, gGk, gGw, Xg = np.empty(K, kind), np.empty(K, kind), np.empty(K, kind), np.empty(K, kind)
    g_d, f, h = np.empty(N, kind), np.empty(N, kind), np.empty(N, kind)
    Ue, Pe, gG, g_phi = (
        np.empty((K, K), kind),
        np.empty((K, K), kind),
        np.empty((K, K), kind),
        np.empty((K, K), kind),
    )
    Gs, Xs = np.empty((N, K, K), kind), np.empty((N, N, K), kind)
    gX, Wt, psi_t = np.empty((K, N), kind), np.empty((K, N), kind), np.empty((K, N), kind)
    gW, gK, g_psi = np.empty((N, K), kind), np.empty((N, K), kind), np.empty((N, K), kind)
    for e in range(start, stop):
        gU = g_U[e]
        replay(M[e], noise_var, W[e], gain[e], D[e], surprise[e], gX, Gs, Xs)
        Ue[:] = U[e]
        Pe[:] = P[e]
        gW[:] = g_W[e]
        gG[:] = 0
        gX[:] = 0
        # Φ = I − Ψ W
        split(g_coefficients[e], g_phi, psi_t)
        for t in range(N):
            apply(g_phi, W[e, t], g_k)
            combine(g_phi, psi[e, t], g_w)
            for i in range(K):
                g_psi[t, i] = psi_t[i, t] - g_k[i]
                gW[t, i] -= g_w[i]
        # ψ_t = k_t − Σ_{τ>t} (w_τ·k_t) ψ_τ
        for t in range(N):
            for i in range(K):
                Wt[i, t], psi_t[i, t] = W[e, t, i], psi[e, t, i]
        for t in range(N):
            combine(psi_t, g_psi[t], h)
            combine(Wt, gain[e, t], f)
            h[: t + 1] = 0
            f[: t + 1] = 0
            combine(W[e], h, g_w)
            for i in range(K):
                g_k[i] = g_psi[t, i]
                gK[t, i] = g_k[i] - g_w[i]
            outer(g_psi, -one, f, g_k)
            outer(gW, -one, h, gain[e, t])
        for t in range(N - 1, -1, -1):
            w, k, d, st, n, Ge = W[e, t], gain[e, t], D[e, t], s[e, t], surprise[e, t], Gs[t]
            # X' = X + k dᵀ, U' = U − s k kᵀ, G' = G + noise_var (w kᵀ + k wᵀ) + n k kᵀ
            apply(gX, d, g_k)
            combine(gX, k, g_d)
            combine(gU, k, gUk)
            combine(gG, k, gGk)
            combine(gG, w, gGw)
            g_n = dot(k, gGk)
            for i in range(K):
                g_k[i] += gK[t, i] - st * gUk[i] + 2 * (noise_var * gGw[i] + n * gGk[i])
            # k = c/s, s = wᵀc + noise_var
            g_st = g_s[e, t] - dot(g_k, k) / st
            for i in range(K):
                g_c[i] = g_k[i] / st - gUk[i] + g_st * w[i]
            # n = Y_tt − wᵀb − noise_var ‖w‖²
            g_d[t] = g_n
            g_noise_var[e] += g_st + 2 * dot(gGk, w) - g_n * dot(w, w)
            for j in range(N):
                g_M[e, K + t, K + j] = g_d[j]
            change(Ue, Pe, one, st, k, PV[e, t], core[e, t], Xg)
            # d = Y_t − Xᵀw
            combine(Xs[t], g_d, Xg)
            outer(gX, -one, w, g_d)
            # c = U w
            combine(Ue, g_c, g_w)
            for i in range(K):
                g_w[i] += gW[t, i] + st * g_st * k[i] - Xg[i] + 2 * noise_var * (gGk[i] - g_n * w[i])
            # w = (G + noise_var I)⁻¹ b
            solve(Pe, Ge, noise_var, g_w, v, g_k, Xg)
            g_noise_var[e] -= dot(v, w)
            for i in range(K):
                gX[i, t] += v[i]
            add(gU, zero, half, zero, g_c, w)
            add(gG, zero, -half, zero, v, w)
        for i in range(K):
            for j in range(K):
                g_M[e, i, j] = gG[i, j]
            for j in range(N):
                g_M[e, i, K + j] = gX[i, j]


@compiled
def invert_all(start: int, stop: int, A: Any, log_det: Any) -> None:
    row, column = np.empty(A.shape[1], A.dtype), np.empty(A.shape[1], A.dtype)
    for e in range(start, stop):
        log_det[e] = -invert(A[e], row, column)


def share(function: Callable[..., None], batch: int, *arguments: Any) -> None:
    """Run function(start, stop, …) over all of a batch, in as many threads as PyTorch uses.

    Each takes a few memories at a time: PyTorch's own threads spin on after their last work, and one of ours that
    has to share its core with such a one is not waited for.
    """
    threads = max(1, min(torch.get_num_threads(), batch))
    few = -(-batch // (4 * threads)) if threads > 1 else batch
    starts = iter(range(0, batch, few))

    def work() -> None:
        for start in starts:
            function(start, min(start + few, batch), *arguments)

    tasks = [pool(os.getpid(), threads).submit(work) for _ in range(1, threads)]
    try:
        work()
    finally:
        for task in tasks:
            task.result()


@functools.lru_cache(maxsize=2)
def pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process; a forked child needs its own."""
    return ThreadPoolExecutor(threads, "kanerva")


def views(*tensors: Tensor) -> list[Any]:
    return [x.numpy() for x in tensors]


@torch.library.custom_op("kanerva::core_cpu", mutates_args=(), device_types="cpu")
def core_op(
    M: Tensor, U: Tensor, noise_var: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Coefficients [Φ Ψ], W, s and U, and what the adjoint needs: P, gain, D, surprise, PV, core, psi."""
    out = outputs(M, U)
    out[3].copy_(U)
    share(forward, len(M), noise_var.numpy()[()], *views(M.contiguous(), *out))
    return out


def outputs(M: Tensor, U: Tensor) -> Any:
    K, N = U.shape[-1], M.shape[-1] - U.shape[-1]
    states = ((K, K), (K, K))
    records = ((N, K), (N, N), (N,), (N, 2, K), (N, 3), (N, K))
    return tuple(M.new_empty(len(M), *shape) for shape in ((K, K + N), (N, K), (N,), *states, *records))


@core_op.register_fake
def _(M: Tensor, U: Tensor, noise_var: Tensor) -> Any:
    return outputs(M, U)


@torch.library.custom_op("kanerva::core_cpu_backward", mutates_args=(), device_types="cpu")
def backward_op(
    saved: list[Tensor], g_coefficients: Tensor, g_W: Tensor, g_s: Tensor, g_U: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of M, U and noise_var."""
    (noise_var, M, _, *records), (B, _, size) = saved, g_coefficients.shape
    g_U, g_M, g_noise_var = 0.5 * (g_U + g_U.mT), g_U.new_zeros(B, size, size), g_U.new_zeros(B)
    grads = (x.contiguous() for x in (g_coefficients, g_W, g_s))
    share(backward, B, noise_var.numpy()[()], *views(M.contiguous(), *records, *grads, g_U, g_M, g_noise_var))
    return g_M, g_U, g_noise_var.sum()


@backward_op.register_fake
def _(saved: list[Tensor], g_coefficients: Tensor, g_W: Tensor, g_s: Tensor, g_U: Tensor) -> Any:
    B, _, size = g_coefficients.shape
    return g_U.new_empty(B, size, size), torch.empty_like(g_U), torch.empty_like(saved[0])


def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # most outputs are for the adjoint alone
    ctx.save_for_backward(inputs[-1], inputs[0], *output)


@gram.once
def adjoint(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, ...]:
    saved = list(ctx.saved_tensors)  # once: torch.utils.checkpoint allows no second look
    return backward_op(saved, *gram.given(grads[:4], saved[2:6]))


core_op.register_autograd(adjoint, setup_context=setup_context)


@torch.library.custom_op("kanerva::invert_cpu", mutates_args=(), device_types="cpu")
def invert_op(A: Tensor) -> tuple[Tensor, Tensor]:
    """A⁻¹ and its ln det."""
    P, log_det = A.contiguous().clone(), A.new_empty(len(A))
    share(invert_all, len(A), *views(P, log_det))
    return P, log_det


@invert_op.register_fake
def _(A: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(A, memory_format=torch.contiguous_format), A.new_empty(len(A))


def save_inverse(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[0])


@gram.once
def adjoint_of_inverse(ctx: Any, g_P: Tensor, g_log_det: Tensor) -> Tensor:
    (P,) = ctx.saved_tensors
    return gram.adjoint_of_inverse(P, g_P, g_log_det)


invert_op.register_autograd(adjoint_of_inverse, setup_context=save_inverse)


def write(
    state: MemoryState, z: Float[Tensor, "B T C"], noise_var: Scalar, keys: int | None = None
) -> tuple[MemoryState, Float[Tensor, "B T K"], Float[Tensor, "B T"]]:
    """Write an episode; returns the memory, the weights and the innovation variances s."""
    (R, U), parts = state, []
    for Z in gram.chunks(z, R, keys):
        V = torch.cat([R, Z], dim=1)
        M = gram.Products.apply(V[..., :keys])  # type: ignore[no-untyped-call]
        coefficients, W, s, U, *_ = core_op(M, U, noise_var)
        R = coefficients @ V
        parts.append((W, s))
    return MemoryState(R, U), *gram.joined(parts, z, R)


def inverse(R: Float[Tensor, "B K C"], noise_var: Scalar) -> tuple[Float[Tensor, "B K K"], Float[Tensor, "B"]]:
    """(R Rᵀ + noise_var I)⁻¹ and its ln det."""
    return invert_op(linalg.ridge(R @ R.mT, noise_var))
