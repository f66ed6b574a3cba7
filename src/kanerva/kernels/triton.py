"""The write, and its adjoint, as one Triton program per episode that keeps the whole memory in registers.

The letters are those of README.md beside this file. A chunk of codes is one launch each way. R, U, A = R Rᵀ +
noise_var I and its inverse P stay on chip; a step leaves O(K + C) numbers, and the backward pass walks the states
back by undoing each rank-one or rank-two change. If A has grown much, that loses too much of what R and A were, and
a second launch makes them again, for each step from the first. All arithmetic is true float32.
"""

import inspect
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from .. import memory
from ..memory import MemoryState
from ..support import linalg
from . import gram
from .gram import Scalar

# What fits into the registers of one program; blocked.py keeps larger memories in the GPU's own memory.
ROWS, COLUMNS = 64, 256
# If A grows by more than this in a chunk, undoing loses too much of R and A: they are made again from the first.
GROWTH = tl.constexpr(16.0)


def kernel(function: Any) -> Any:
    """Compile on first use."""
    # the tests wrap every function in a check of shapes, which is not for Triton
    return triton.jit(inspect.unwrap(function))


# Every matrix is held as [B, n, B]: B rows, and n blocks of B columns, n = 1 for K×K. So all of them lie over the
# threads in the same way, with the rows shared out over warps; a vector along rows has shape [B], one along columns
# [n, B], and to move one from rows to columns is what warps have to meet for. Codes and records are loaded and
# stored as matrices of equal rows, for which they need not.


@kernel
def times(M, x):
    """M x for a K×K matrix, from rows to rows."""
    return tl.sum(tl.sum(M * x[None, None, :], axis=2), axis=1)


@kernel
def across(M, X):
    """M x, along rows, from the matrix X of which every row is x."""
    return tl.sum(tl.sum(M * X, axis=2), axis=1)


@kernel
def held(X, eye):
    """x, along rows, from the matrix X of which every row is x."""
    return tl.sum(tl.sum(tl.where(eye, X, 0.0), axis=2), axis=1)


@kernel
def trace(diagonal, exist):
    return tl.sum(tl.load(diagonal, exist, 0.0), axis=0)


@kernel
def outer(x, y):
    """x yᵀ for x along rows and y along columns."""
    return x[:, None, None] * y[None, :, :]


@kernel
def add3(a, b, c, d, e, f):
    return a + d, b + e, c + f


@kernel
def rows_of(x, B: tl.constexpr):
    """The matrix of which every row is x."""
    return tl.broadcast_to(x[None, :, :], (B, x.shape[0], B))


@kernel
def fetch(pointers, mask, B: tl.constexpr):
    return tl.load(rows_of(pointers, B), rows_of(mask, B), 0.0)


@kernel
def put(pointers, x, mask, first, B: tl.constexpr):
    """Store a vector along columns; the warp that has the first row does it."""
    tl.store(rows_of(pointers, B), rows_of(x, B), rows_of(mask, B) & first)


@kernel
def places(count: tl.constexpr, B: tl.constexpr):
    """Numbers of columns, [n, B]."""
    return tl.arange(0, count)[:, None] * B + tl.arange(0, B)[None, :]


@kernel
def spots(e, K: tl.constexpr, C: tl.constexpr, B: tl.constexpr, blocks: tl.constexpr):
    """Row and column numbers of K×K and K×C matrices; where their entries lie, and which exist."""
    i, i_, j = tl.arange(0, B), places(1, B), places(blocks, B)
    KK, KC = e * K * K + (i * K)[:, None, None] + i_[None, :, :], e * K * C + (i * C)[:, None, None] + j[None, :, :]
    in_KK, in_KC = (i < K)[:, None, None] & (i_ < K)[None, :, :], (i < K)[:, None, None] & (j < C)[None, :, :]
    return i, i_, j, KK, KC, in_KK, in_KC


@kernel
def invert(R, noise_var, A_out, P_out, log_det_out, K: tl.constexpr, C: tl.constexpr, B: tl.constexpr):
    """A = R Rᵀ + noise_var I, P = A⁻¹ and ln det P. An A that is not positive definite gives NaN.

    Symmetric sweeps of A scaled to a diagonal of ones. Sweeping row a with pivot d would be A − a aᵀ/d, then a/d in
    its row and column and −1/d where they cross; with a_t = d − 1 the first does it all, but for 2 on the diagonal.
    """
    e = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, B), tl.arange(0, 32)
    rows, eye = i < K, i[:, None] == i[None, :]
    KK, in_KK = e * K * K + i[:, None] * K + i[None, :], rows[:, None] & rows[None, :]
    part_at, in_part = R + e * K * C + i[:, None] * C + j[None, :], rows[:, None] & (j < C)[None, :]
    A = tl.zeros((B, B), tl.float32)
    part = tl.load(part_at, in_part, 0.0)
    for start in range(32, C + 32, 32):
        following = tl.load(part_at + start, rows[:, None] & (start + j < C)[None, :], 0.0)
        A += tl.dot(part, tl.trans(part), input_precision="ieee")
        part = following
    A += tl.where(eye, tl.where(rows, tl.load(noise_var), 1.0)[:, None], 0.0)
    tl.store(A_out + KK, A, in_KK)
    diagonal = tl.sum(tl.where(eye, A, 0.0), axis=0)
    scale = 1 / tl.sqrt(diagonal)
    A *= scale[:, None] * scale[None, :]
    log_det = tl.sum(tl.log(diagonal), axis=0)
    # the diagonal is carried apart as well, so that a pivot need not wait for its row
    diagonal *= scale * scale
    for t in range(K):
        a = tl.sum(tl.where(i[:, None] == t, A, 0.0), axis=0)
        d = tl.sum(tl.where(i == t, diagonal, 0.0), axis=0)
        d = tl.where(d > 0, d, float("nan"))
        log_det += tl.log(d)
        a = tl.where(i == t, d - 1, a)
        diagonal -= a * (a / d)
        A -= a[:, None] * (a / d)[None, :]
    P = (tl.where(eye, 2.0, 0.0) - A) * (scale[:, None] * scale[None, :])
    tl.store(P_out + KK, P, in_KK)
    tl.store(log_det_out + e, -log_det)


@kernel
def forward(
    R_in,
    U_in,
    A_in,
    P_in,
    z,
    noise_var_,
    R_out,
    U_out,
    A_out,
    P_out,
    W,
    s_,
    gain,
    D,
    surprise,
    PV,
    core,
    N: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    B: tl.constexpr,
    blocks: tl.constexpr,
):
    e = tl.program_id(0).to(tl.int64)
    i, i_, j, KK, KC, in_KK, in_KC = spots(e, K, C, B, blocks)
    rows, columns = i_ < K, j < C
    first = (i == 0)[:, None, None]
    noise_var = tl.load(noise_var_)
    R = tl.load(R_in + KC, in_KC, 0.0)
    U = tl.load(U_in + KK, in_KK, 0.0)
    A, P = tl.load(A_in + KK, in_KK, 0.0), tl.load(P_in + KK, in_KK, 0.0)
    code = fetch(z + e * N * C + j, columns, B)
    for t in range(N):
        at = e * N + t
        # the next code is fetched while this one is written
        following = fetch(z + (at + 1) * C + j, columns & (t + 1 < N), B)
        # A w = b, by the carried inverse and one step of refinement
        b = across(R, code)
        w = times(P, b)
        w += times(P, b - times(A, w))
        c, q = times(U, w), noise_var * times(P, w)
        s = tl.sum(w * c, axis=0) + noise_var
        k = c / s
        delta = tl.sum(tl.where(first, code, 0.0) - R * w[:, None, None], axis=0)
        n = tl.sum(tl.sum(delta * delta, axis=1), axis=0)
        # P ← P − [p q] (S⁻¹ + VᵀP V)⁻¹ [p q]ᵀ,   V = [k, noise_var w]
        p = times(P, k)
        kPk, off, wPw = tl.reduce((k * p, k * q, noise_var * w * q), 0, add3)
        off += 1
        wPw -= n
        det = kPk * wPw - off * off
        one, two, three = wPw / det, -off / det, kPk / det
        u = k * tl.sqrt(s)
        w_, k_, p_, q_ = w[None, :], k[None, :], p[None, :], q[None, :]
        R += outer(k, delta)
        U -= outer(u, u[None, :])
        P -= outer(one * p + two * q, p_) + outer(two * p + three * q, q_)
        A += outer(k, noise_var * w_ + n * k_) + outer(noise_var * w, k_)
        put(W + at * K + i_, w_, rows, first, B)
        put(gain + at * K + i_, k_, rows, first, B)
        put(PV + at * 2 * K + i_, p_, rows, first, B)
        put(PV + at * 2 * K + K + i_, q_, rows, first, B)
        put(D + at * C + j, delta, columns, first, B)
        tl.store(s_ + at, s)
        tl.store(surprise + at, n)
        tl.store(core + 3 * at, one)
        tl.store(core + 3 * at + 1, two)
        tl.store(core + 3 * at + 2, three)
        code = following
    tl.store(R_out + KC, R, in_KC)
    tl.store(U_out + KK, U, in_KK)
    tl.store(A_out + KK, A, in_KK)
    tl.store(P_out + KK, P, in_KK)


@kernel
def backward(
    R_in,
    U_in,
    A_in,
    P_in,
    noise_var_,
    W,
    s_,
    gain,
    D,
    surprise,
    PV,
    core,
    R_first,
    A_first,
    g_R_in,
    g_U_in,
    g_W,
    g_s,
    g_R_out,
    g_U_out,
    g_z,
    g_noise_var,
    N: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    B: tl.constexpr,
    blocks: tl.constexpr,
    again: tl.constexpr,
):
    e = tl.program_id(0).to(tl.int64)
    i, i_, j, KK, KC, in_KK, in_KC = spots(e, K, C, B, blocks)
    if again:
        # the adjoint of what has hardly grown is exact already; tr A never falls
        diagonal, exist = e * K * K + i * (K + 1), i < K
        if trace(A_in + diagonal, exist) <= GROWTH * trace(A_first + diagonal, exist):
            return
    rows, columns = i_ < K, j < C
    eye, first = i[:, None, None] == i_[None, :, :], (i == 0)[:, None, None]
    noise_var = tl.load(noise_var_)
    R, g_R = tl.load(R_in + KC, in_KC, 0.0), tl.load(g_R_in + KC, in_KC, 0.0)
    U, g_U = tl.load(U_in + KK, in_KK, 0.0), tl.load(g_U_in + KK, in_KK, 0.0)
    # U is symmetric, and its gradient is taken to be
    transposed = e * K * K + i[:, None, None] + (i_ * K)[None, :, :]
    g_U = 0.5 * (g_U + tl.load(g_U_in + transposed, in_KK, 0.0))
    A, P = tl.load(A_in + KK, in_KK, 0.0), tl.load(P_in + KK, in_KK, 0.0)
    g_noise, vw = 0.0, tl.zeros((B,), tl.float32)
    at = e * N + N - 1
    k_, delta = fetch(gain + at * K + i_, rows, B), fetch(D + at * C + j, columns, B)
    for _ in range(N):
        # what a step begins with is fetched while the one after it is undone
        before = tl.maximum(at - 1, 0)
        next_k, next_delta = fetch(gain + before * K + i_, rows, B), fetch(D + before * C + j, columns, B)
        w_, g_w = fetch(W + at * K + i_, rows, B), fetch(g_W + at * K + i_, rows, B)
        p_, q_ = fetch(PV + at * 2 * K + i_, rows, B), fetch(PV + at * 2 * K + K + i_, rows, B)
        s, n, from_s = tl.load(s_ + at), tl.load(surprise + at), tl.load(g_s + at)
        one, two, three = tl.load(core + 3 * at), tl.load(core + 3 * at + 1), tl.load(core + 3 * at + 2)
        w, k, p, q = held(w_, eye), held(k_, eye), held(p_, eye), held(q_, eye)
        # R' = R + k Δᵀ, U' = U − s k kᵀ
        g_delta = tl.sum(g_R * k[:, None, None], axis=0)
        gUk = across(g_U, k_)
        g_k = across(g_R, delta) - s * gUk
        # k = c/s, s = wᵀc + noise_var
        from_s -= tl.sum(g_k * k, axis=0) / s
        g_c = g_k / s - gUk + from_s * w
        # the states before this step
        if again:
            R, A = tl.load(R_first + KC, in_KC, 0.0), tl.load(A_first + KK, in_KK, 0.0)
            past = e * N
            while past < at:
                w_past, k_past = fetch(W + past * K + i_, rows, B), fetch(gain + past * K + i_, rows, B)
                x, y = held(w_past, eye)[:, None, None], held(k_past, eye)[:, None, None]
                R += y * fetch(D + past * C + j, columns, B)
                A += y * (noise_var * w_past + tl.load(surprise + past) * k_past) + noise_var * x * k_past
                past += 1
        else:
            R -= k[:, None, None] * delta
            A -= k[:, None, None] * (noise_var * w_ + n * k_) + (noise_var * w)[:, None, None] * k_
        U += (s * k)[:, None, None] * k_
        P += (one * p + two * q)[:, None, None] * p_ + (two * p + three * q)[:, None, None] * q_
        # c = U w, Δ = z − Rᵀw
        g_w = held(g_w, eye) + from_s * s * k + times(U, g_c) - across(R, g_delta[None, :, :])
        # A w = R z
        v = times(P, g_w)
        v += times(P, g_w - times(A, v))
        g_code = g_delta + tl.sum(R * v[:, None, None], axis=0)
        g_R += v[:, None, None] * delta - outer(w, g_code)
        g_U += 0.5 * (g_c[:, None, None] * w_ + outer(w, g_c[None, :]))
        g_noise += from_s
        vw += v * w
        put(g_z + at * C + j, g_code, columns, first, B)
        k_, delta, at = next_k, next_delta, at - 1
    tl.store(g_R_out + KC, g_R, in_KC)
    tl.store(g_U_out + KK, g_U, in_KK)
    tl.store(g_noise_var + e, g_noise - tl.sum(vw, axis=0))


def sizes(R: Tensor, few: int = 4) -> dict[str, int]:
    """The sizes that a kernel is compiled for, padded to powers of two, and its warps."""
    K, C = R.shape[-2:]
    B = max(16, triton.next_power_of_2(K))
    blocks = triton.next_power_of_2(triton.cdiv(C, B))
    # four warps are fastest alone, `few` on a full GPU; a large memory needs the registers of eight
    warps = 8 if B * B * blocks > 4096 else 4 if len(R) <= 512 else few
    return {"K": K, "C": C, "B": B, "blocks": blocks, "num_warps": warps}


@torch.library.custom_op("kanerva::invert_triton", mutates_args=())
def invert_op(R: Tensor, noise_var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P, ln det P and A."""
    P, log_det, A = out = inverses(R)
    K, C, B = (sizes(R)[name] for name in ("K", "C", "B"))
    # one warp need not wait for others
    invert[(len(R),)](R.contiguous(), noise_var, A, P, log_det, K, C, B, num_warps=1 if B <= 32 else 4)
    return out


def inverses(R: Tensor) -> Any:
    B, K, _ = R.shape
    return R.new_empty(B, K, K), R.new_empty(B), R.new_empty(B, K, K)


@invert_op.register_fake
def _(R: Tensor, noise_var: Tensor) -> Any:
    return inverses(R)


def save_inverse(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], output[0])


@gram.once
def adjoint_of_inverse(ctx: Any, g_P: Tensor, g_log_det: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """From A = R Rᵀ + noise_var I on to R and noise_var."""
    R, P = ctx.saved_tensors
    g_A = gram.adjoint_of_inverse(P, g_P, g_log_det)
    return (g_A + g_A.mT) @ R, g_A.diagonal(dim1=-2, dim2=-1).sum()


invert_op.register_autograd(adjoint_of_inverse, setup_context=save_inverse)


@torch.library.custom_op("kanerva::write_triton", mutates_args=())
def write_op(
    R: Tensor, U: Tensor, A: Tensor, P: Tensor, z: Tensor, noise_var: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """R, U, W, s, and what the adjoint needs: A, P, gain, D, surprise, PV, core. A and P are constants to it."""
    out = outputs(R, z)
    R_, U_, W, s, A_, P_, *records = out
    ins = (x.contiguous() for x in (R, U, A, P, z, noise_var))
    forward[(len(R),)](*ins, R_, U_, A_, P_, W, s, *records, N=z.shape[1], **sizes(R, few=2))
    return out


def outputs(R: Tensor, z: Tensor) -> Any:
    (B, K, C), N = R.shape, z.shape[1]
    shapes = ((K, C), (K, K), (N, K), (N,), (K, K), (K, K), (N, K), (N, C), (N,), (N, 2, K), (N, 3))
    return tuple(R.new_empty(B, *shape) for shape in shapes)


@write_op.register_fake
def _(R: Tensor, U: Tensor, A: Tensor, P: Tensor, z: Tensor, noise_var: Tensor) -> Any:
    return outputs(R, z)


@torch.library.custom_op("kanerva::write_triton_backward", mutates_args=())
def backward_op(
    saved: list[Tensor], g_R: Tensor, g_U: Tensor, g_W: Tensor, g_s: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of R, U, z and noise_var (one for each episode)."""
    R_first, A_first, noise_var, R, U, W, s, A, P, *records = saved
    out = gradients(saved)
    first = (x.contiguous() for x in (R_first, A_first))
    grads = (x.contiguous() for x in (g_R, g_U, g_W, g_s))
    ins = R, U, A, P, noise_var, W, s, *records, *first, *grads
    for again in (False, True):
        backward[(len(R),)](*ins, *out, N=W.shape[1], again=again, **sizes(R))
    return out


def gradients(saved: list[Tensor]) -> Any:
    _, _, _, R, U, _, _, _, _, _, D, *_ = saved
    return torch.empty_like(R), torch.empty_like(U), torch.empty_like(D), R.new_empty(len(R))


@backward_op.register_fake
def _(saved: list[Tensor], g_R: Tensor, g_U: Tensor, g_W: Tensor, g_s: Tensor) -> Any:
    return gradients(saved)


def save_write(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # most outputs are for the adjoint alone
    R, _, A, _, _, noise_var = inputs
    ctx.save_for_backward(R, A, noise_var, *output)


@gram.once
def adjoint_of_write(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = list(ctx.saved_tensors)  # once: torch.utils.checkpoint allows no second look
    g_R, g_U, g_z, g_noise_var = backward_op(saved, *gram.given(grads[:4], saved[3:7]))
    return g_R, g_U, None, None, g_z, g_noise_var.sum()


write_op.register_autograd(adjoint_of_write, setup_context=save_write)


def write(
    state: MemoryState, z: Float[Tensor, "B T C"], noise_var: Scalar, keys: int | None = None
) -> tuple[MemoryState, Float[Tensor, "B T K"], Float[Tensor, "B T"]]:
    """Write an episode; returns the memory, the weights and the innovation variances s."""
    keys = z.shape[-1] if keys is None else keys
    if state.R.shape[-2] > ROWS or keys > COLUMNS:
        from . import blocked

        return gram.write(state, z, noise_var, keys, blocked.core)
    (R, values), U, parts = state.R.tensor_split([keys], -1), state.U, []
    for Z in gram.chunks(z, state.R, keys):
        Z, of_values = Z.tensor_split([keys], -1)
        before = U
        P, _, A = invert_op(R.detach(), noise_var.detach())
        R, U, W, s, *_ = write_op(R, U, A, P, Z, noise_var)
        if values.shape[-1]:  # they do not address, and are written once all weights are known
            values = memory.condition(MemoryState(values, before), W, of_values, noise_var).R
        parts.append((W, s))
    R = torch.cat([R, values], -1) if values.shape[-1] else R
    return MemoryState(R, U), *gram.joined(parts, z, R)


def inverse(R: Float[Tensor, "B K C"], noise_var: Scalar) -> tuple[Float[Tensor, "B K K"], Float[Tensor, "B"]]:
    """(R Rᵀ + noise_var I)⁻¹ and its ln det."""
    if R.shape[-2] > ROWS:
        return linalg.ridge_inverse(R @ R.mT, noise_var)
    P, log_det, _ = invert_op(R, noise_var)
    return P, log_det
