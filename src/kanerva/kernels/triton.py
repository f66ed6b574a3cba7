"""The write, and its adjoint, as one Triton program per episode that keeps the whole memory in registers.

The letters are those of README.md beside this file. A chunk of codes is one launch each way. R, U, A = R Rᵀ +
noise_var I and its inverse P stay on chip; a step writes out O(K + C) numbers, and the backward pass walks the
states back by undoing each rank-one or rank-two change. All arithmetic is true float32.
"""

import inspect
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from ..memory import Inverse, MemoryState
from .gram import CHUNK, Scalar

# What fits into the registers of one program; beyond it triton_blocked.py keeps matrices in memory.
ROWS, COLUMNS = 64, 256


def kernel(function: Any) -> Any:
    # the tests wrap every function in a check of shapes, which is not for Triton
    return triton.jit(inspect.unwrap(function))


@kernel
def times(M, x):
    """M x for a symmetric M."""
    return tl.sum(M * x[None, :], axis=1)


@kernel
def inverse_of(A, K, BK: tl.constexpr):
    """A⁻¹ and ln det A by symmetric sweeps, for a positive definite A that is the identity beyond K."""
    i = tl.arange(0, BK)
    log_det = 0.0
    for j in range(K):
        row = tl.sum(tl.where(i[:, None] == j, A, 0.0), axis=0)
        pivot = tl.sum(tl.where(i == j, row, 0.0), axis=0)
        pivot = tl.where(pivot > 0, pivot, float("nan"))
        log_det += tl.log(pivot)
        scaled = row / pivot
        A = tl.where(
            i[:, None] == j,
            tl.where(i[None, :] == j, -1 / pivot, scaled[None, :]),
            tl.where(i[None, :] == j, scaled[:, None], A - row[:, None] * scaled[None, :]),
        )
    return -A, log_det


@kernel
def ridge_of(R, noise_var, K, BK: tl.constexpr):
    """A = R Rᵀ + noise_var I, and 1 on the diagonal beyond K."""
    i = tl.arange(0, BK)
    A = tl.dot(R, tl.trans(R), input_precision="ieee")
    return A + tl.where(i[:, None] == i[None, :], tl.where(i < K, noise_var, 1.0)[:, None], 0.0)


@kernel
def forward(
    R_in,
    U_in,
    z,
    noise_var_,
    R_out,
    U_out,
    A_out,
    P_out,
    W,
    gain,
    s_,
    D,
    surprise,
    PV,
    core,
    N,
    K: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    BC: tl.constexpr,
):
    e = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BK), tl.arange(0, BC)
    rows, columns = i < K, j < C
    KK, KC = i[:, None] * K + i[None, :], i[:, None] * C + j[None, :]
    in_KK, in_KC = rows[:, None] & rows[None, :], rows[:, None] & columns[None, :]
    noise_var = tl.load(noise_var_)
    R = tl.load(R_in + e * K * C + KC, in_KC, 0.0)
    U = tl.load(U_in + e * K * K + KK, in_KK, 0.0)
    A = ridge_of(R, noise_var, K, BK)
    P, _ = inverse_of(A, K, BK)
    at_K, at_C, at = e * N * K + i, e * N * C + j, e * N
    code = tl.load(z + at_C, columns & (N > 0), 0.0)
    for t in range(N):
        # the next code is fetched while this one is written
        following = tl.load(z + at_C + C, columns & (t + 1 < N), 0.0)
        # A w = b, by the carried inverse and one step of refinement
        b = tl.sum(R * code[None, :], axis=1)
        w = times(P, b)
        w += times(P, b - times(A, w))
        c = times(U, w)
        s = tl.sum(w * c, axis=0) + noise_var
        k = c / s
        delta = code - tl.sum(R * w[:, None], axis=0)
        n = tl.sum(delta * delta, axis=0)
        # P ← P − [p q] (S⁻¹ + VᵀP V)⁻¹ [p q]ᵀ,   V = [k, noise_var w]
        p = times(P, k)
        q = noise_var * times(P, w)
        kPk, off, wPw = tl.sum(k * p, axis=0), 1 + tl.sum(k * q, axis=0), noise_var * tl.sum(w * q, axis=0) - n
        det = kPk * wPw - off * off
        one, two, three = wPw / det, -off / det, kPk / det
        R += k[:, None] * delta[None, :]
        u = k * tl.sqrt(s)
        U -= u[:, None] * u[None, :]
        P -= (one * p + two * q)[:, None] * p[None, :] + (two * p + three * q)[:, None] * q[None, :]
        A += (noise_var * w + n * k)[:, None] * k[None, :] + (noise_var * k)[:, None] * w[None, :]
        tl.store(W + at_K, w, rows)
        tl.store(gain + at_K, k, rows)
        tl.store(PV + 2 * at_K - i, p, rows)
        tl.store(PV + 2 * at_K - i + K, q, rows)
        tl.store(D + at_C, delta, columns)
        tl.store(s_ + at, s)
        tl.store(surprise + at, n)
        tl.store(core + 3 * at, one)
        tl.store(core + 3 * at + 1, two)
        tl.store(core + 3 * at + 2, three)
        at_K += K
        at_C += C
        at += 1
        code = following
    tl.store(R_out + e * K * C + KC, R, in_KC)
    tl.store(U_out + e * K * K + KK, U, in_KK)
    tl.store(A_out + e * K * K + KK, A, in_KK)
    tl.store(P_out + e * K * K + KK, P, in_KK)


@kernel
def backward(
    R_in,
    U_in,
    A_in,
    P_in,
    noise_var_,
    W,
    gain,
    s_,
    D,
    surprise,
    PV,
    core,
    g_R_in,
    g_U_in,
    g_W,
    g_s,
    g_R_out,
    g_U_out,
    g_z,
    g_noise_var,
    N,
    K: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    BC: tl.constexpr,
):
    e = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BK), tl.arange(0, BC)
    rows, columns = i < K, j < C
    KK, KC = e * K * K + i[:, None] * K + i[None, :], e * K * C + i[:, None] * C + j[None, :]
    in_KK, in_KC = rows[:, None] & rows[None, :], rows[:, None] & columns[None, :]
    noise_var = tl.load(noise_var_)
    R, U = tl.load(R_in + KC, in_KC, 0.0), tl.load(U_in + KK, in_KK, 0.0)
    A, P = tl.load(A_in + KK, in_KK, 0.0), tl.load(P_in + KK, in_KK, 0.0)
    g_R = tl.load(g_R_in + KC, in_KC, 0.0)
    g_U = tl.load(g_U_in + KK, in_KK, 0.0)
    g_U = 0.5 * (g_U + tl.trans(g_U))
    total = 0.0
    for step in range(N):
        at = e * N + N - 1 - step
        at_K, at_C = at * K + i, at * C + j
        w, k = tl.load(W + at_K, rows, 0.0), tl.load(gain + at_K, rows, 0.0)
        p, q = tl.load(PV + at * 2 * K + i, rows, 0.0), tl.load(PV + at * 2 * K + K + i, rows, 0.0)
        delta, s, n = tl.load(D + at_C, columns, 0.0), tl.load(s_ + at), tl.load(surprise + at)
        one, two, three = tl.load(core + 3 * at), tl.load(core + 3 * at + 1), tl.load(core + 3 * at + 2)
        from_w, from_s = tl.load(g_W + at_K, rows, 0.0), tl.load(g_s + at)
        # R' = R + k Δᵀ, U' = U − s k kᵀ
        g_k = tl.sum(g_R * delta[None, :], axis=1)
        g_delta = tl.sum(g_R * k[:, None], axis=0)
        gUk = times(g_U, k)
        # k = c/s, s = wᵀc + noise_var
        g_k -= s * gUk
        from_s -= tl.sum(g_k * k, axis=0) / s
        g_c = g_k / s - gUk + from_s * w
        # the states before this step
        R -= k[:, None] * delta[None, :]
        u = k * tl.sqrt(s)
        U += u[:, None] * u[None, :]
        P += (one * p + two * q)[:, None] * p[None, :] + (two * p + three * q)[:, None] * q[None, :]
        A -= (noise_var * w + n * k)[:, None] * k[None, :] + (noise_var * k)[:, None] * w[None, :]
        # c = U w, Δ = z − Rᵀw
        g_w = from_w + from_s * s * k + times(U, g_c) - tl.sum(R * g_delta[None, :], axis=1)
        # A w = R z
        v = times(P, g_w)
        v += times(P, g_w - times(A, v))
        g_code = g_delta + tl.sum(R * v[:, None], axis=0)
        g_R += v[:, None] * delta[None, :] - w[:, None] * g_code[None, :]
        g_U += 0.5 * (g_c[:, None] * w[None, :] + w[:, None] * g_c[None, :])
        total += from_s - tl.sum(v * w, axis=0)
        tl.store(g_z + at_C, g_code, columns)
    tl.store(g_R_out + KC, g_R, in_KC)
    tl.store(g_U_out + KK, g_U, in_KK)
    tl.store(g_noise_var + e, total)


@kernel
def invert(R_in, noise_var_, P_out, log_det_out, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr):
    e = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BK), tl.arange(0, BC)
    R = tl.load(R_in + e * K * C + i[:, None] * C + j[None, :], (i < K)[:, None] & (j < C)[None, :], 0.0)
    P, log_det = inverse_of(ridge_of(R, tl.load(noise_var_), K, BK), K, BK)
    tl.store(P_out + e * K * K + i[:, None] * K + i[None, :], P, (i < K)[:, None] & (i < K)[None, :])
    tl.store(log_det_out + e, -log_det)


def sizes(R: Tensor) -> dict[str, int]:
    """The sizes that a kernel is compiled for, padded to powers of two, and its warps."""
    K, C = R.shape[-2:]
    BK, BC = max(16, triton.next_power_of_2(K)), max(16, triton.next_power_of_2(C))
    return {"K": K, "C": C, "BK": BK, "BC": BC, "num_warps": 4 if BK * BC <= 4096 else 8}


@torch.library.custom_op("kanerva::write_triton", mutates_args=())
def write_op(
    R: Tensor, U: Tensor, z: Tensor, noise_var: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """R, U, W, s, and what the adjoint needs: A, P, gain, D, surprise, PV, core."""
    out = outputs(R, z)
    R_, U_, W, s, A, P, gain, D, surprise, PV, core = out
    arguments = (R, U, z, noise_var)
    forward[(len(R),)](
        *(x.contiguous() for x in arguments), R_, U_, A, P, W, gain, s, D, surprise, PV, core, z.shape[1], **sizes(R)
    )
    return out


def outputs(R: Tensor, z: Tensor) -> Any:
    (B, K, C), N = R.shape, z.shape[1]
    shapes = ((K, C), (K, K), (N, K), (N,), (K, K), (K, K), (N, K), (N, C), (N,), (N, 2, K), (N, 3))
    return tuple(R.new_empty(B, *shape) for shape in shapes)


@write_op.register_fake
def _(R: Tensor, U: Tensor, z: Tensor, noise_var: Tensor) -> Any:
    return outputs(R, z)


@torch.library.custom_op("kanerva::write_triton_backward", mutates_args=())
def backward_op(
    saved: list[Tensor], g_R: Tensor, g_U: Tensor, g_W: Tensor, g_s: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    noise_var, R, U, W, s, A, P, gain, D, surprise, PV, core = saved
    out = g_R_, g_U_, g_z, g_noise_var = gradients(saved)
    grads = (x.contiguous() for x in (g_R, g_U, g_W, g_s))
    backward[(len(R),)](
        R, U, A, P, noise_var, W, gain, s, D, surprise, PV, core, *grads, *out, W.shape[1], **sizes(R)
    )
    return g_R_, g_U_, g_z, g_noise_var


def gradients(saved: list[Tensor]) -> Any:
    _, R, U, _, _, _, _, _, D, *_ = saved
    return torch.empty_like(R), torch.empty_like(U), torch.empty_like(D), R.new_empty(len(R))


@backward_op.register_fake
def _(saved: list[Tensor], g_R: Tensor, g_U: Tensor, g_W: Tensor, g_s: Tensor) -> Any:
    return gradients(saved)


def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[-1], *output)


def adjoint(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
    g_R, g_U, g_z, g_noise_var = backward_op(list(ctx.saved_tensors), *grads[:4])
    return g_R, g_U, g_z, g_noise_var.sum()


write_op.register_autograd(adjoint, setup_context=setup_context)


def write(
    state: MemoryState, z: Float[Tensor, "B T C"], noise_var: Scalar
) -> tuple[MemoryState, Float[Tensor, "B T K"], Float[Tensor, "B T"]]:
    """Write an episode; returns the memory, the weights and the innovation variances s."""
    R, U, W, s = *state, [], []
    for Z in z.split(CHUNK, dim=-2) if z.shape[-2] else ():
        R, U, W_n, s_n, *_ = write_op(R, U, Z, noise_var)
        W.append(W_n)
        s.append(s_n)
    if not W:
        return state, z.new_empty(len(z), 0, R.shape[-2]), z.new_empty(len(z), 0)
    return MemoryState(R, U), torch.cat(W, dim=1), torch.cat(s, dim=1)
