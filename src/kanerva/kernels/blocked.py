"""The core of the write, and its adjoint, as one Triton program per episode, for memories beyond the registers.

The mathematics is that of cpu.py, the letters are those of README.md. K×K and K×N matrices lie in global memory,
at best in the L2 cache, and are worked on in tiles of rows. Every K×K matrix is symmetric, so M x is a sum of rows.
A change of a matrix waits until the matrix is next read, and is then made, and stored, in the same pass. Vectors go
from one pass to the next through global memory, since a pass needs them both along and across its tiles. The
backward pass undoes changes, or makes G and X again, as in triton.py. All arithmetic is true float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..support import linalg
from . import gram
from .triton import GROWTH, kernel

# Numbers in one tile, a power of two: more hide latency better, but must fit into the registers of eight warps.
# With fewer than four a thread (1,024), two threads of a GPU could hold, and change, the same number.
TILE = 4096


@kernel
def whole(x, n: tl.constexpr, size: tl.constexpr):
    """Load a vector of length n, padded with zeros."""
    i = tl.arange(0, size)
    return tl.load(x + i, i < n, 0.0)


@kernel
def keep(x, value, n: tl.constexpr, size: tl.constexpr):
    """Store a vector of length n."""
    i = tl.arange(0, size)
    tl.store(x + i, value, i < n)


@kernel
def piece(x, r, K: tl.constexpr, BR: tl.constexpr):
    """Entries r … r + BR − 1 of a vector of length K, as a column."""
    i = r + tl.arange(0, BR)
    return tl.load(x + i, i < K, 0.0)[:, None]


@kernel
def keep_piece(x, r, value, K: tl.constexpr, BR: tl.constexpr):
    """Store entries r … r + BR − 1 of a vector of length K."""
    i = r + tl.arange(0, BR)
    tl.store(x + i, value, i < K)


@kernel
def spot(r, K: tl.constexpr, n: tl.constexpr, BR: tl.constexpr, size: tl.constexpr):
    """Where rows r … r + BR − 1 of a K×n matrix lie, and which of their entries exist."""
    i, j = r + tl.arange(0, BR)[:, None], tl.arange(0, size)[None, :]
    return i * n + j, (i < K) & (j < n)


@kernel
def rows(M, r, K: tl.constexpr, n: tl.constexpr, BR: tl.constexpr, size: tl.constexpr):
    """A tile of M."""
    at, exist = spot(r, K, n, BR, size)
    return tl.load(M + at, exist, 0.0)


@kernel
def add(M, r, left, x, K: tl.constexpr, n: tl.constexpr, BR: tl.constexpr, size: tl.constexpr):
    """A tile of M += left xᵀ; left is a column of the tile's height."""
    at, exist = spot(r, K, n, BR, size)
    tile = tl.load(M + at, exist, 0.0) + left * x[None, :]
    tl.store(M + at, tile, exist)
    return tile


@kernel
def add_two(M, r, x, a, y, b, K: tl.constexpr, n: tl.constexpr, BR: tl.constexpr, size: tl.constexpr):
    """A tile of M += x aᵀ + y bᵀ; x and y lie in global memory."""
    at, exist = spot(r, K, n, BR, size)
    tile = tl.load(M + at, exist, 0.0) + piece(x, r, K, BR) * a[None, :] + piece(y, r, K, BR) * b[None, :]
    tl.store(M + at, tile, exist)
    return tile


@kernel
def copy(source, M, K: tl.constexpr, n: tl.constexpr, BR: tl.constexpr, size: tl.constexpr):
    for r in range(0, K, BR):
        at, exist = spot(r, K, n, BR, size)
        tl.store(M + at, tl.load(source + at, exist, 0.0), exist)


@kernel
def trace(M, K: tl.constexpr, BK: tl.constexpr):
    i = tl.arange(0, BK)
    return tl.sum(tl.load(M + i * K + i, i < K, 0.0), axis=0)


@kernel
def apply(M, x, K: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr):
    """M x."""
    total = tl.zeros((BR, BK), tl.float32)
    for r in range(0, K, BR):
        total += rows(M, r, K, K, BR, BK) * piece(x, r, K, BR)
    return tl.sum(total, axis=0)


@kernel
def add_and_apply(M, x, a, y, b, z, K: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr):
    """M += x aᵀ + y bᵀ, and M z."""
    total = tl.zeros((BR, BK), tl.float32)
    for r in range(0, K, BR):
        total += add_two(M, r, x, a, y, b, K, K, BR, BK) * piece(z, r, K, BR)
    return tl.sum(total, axis=0)


@kernel
def change_of_G(W, gain, surprise, noise_var, t, K: tl.constexpr, BK: tl.constexpr):
    """a and b of G' = G + k aᵀ + w bᵀ = G + noise_var (w kᵀ + k wᵀ) + n k kᵀ."""
    w, k = whole(W + t * K, K, BK), whole(gain + t * K, K, BK)
    return noise_var * w + tl.load(surprise + t) * k, noise_var * k


@kernel
def change_of_P(PV, core, t, K: tl.constexpr, BK: tl.constexpr):
    """a and b of P' = P − p aᵀ − q bᵀ = P − [p q] (S⁻¹ + VᵀP V)⁻¹ [p q]ᵀ."""
    p, q = whole(PV + 2 * t * K, K, BK), whole(PV + (2 * t + 1) * K, K, BK)
    one, two, three = tl.load(core + 3 * t), tl.load(core + 3 * t + 1), tl.load(core + 3 * t + 2)
    return one * p + two * q, two * p + three * q


@kernel
def forward(
    Y,
    noise_var_,
    G,
    X,
    U,
    P,
    W,
    gain,
    s_,
    D,
    surprise,
    PV,
    core,
    scratch,
    N: tl.constexpr,
    K: tl.constexpr,
    BR: tl.constexpr,
    BK: tl.constexpr,
    BN: tl.constexpr,
    BX: tl.constexpr,
):
    """Write a chunk. G, X, U and P change in place; X ends as the b of every step. The records come in as zeros."""
    e = tl.program_id(0).to(tl.int64)
    G, U, P, X = G + e * K * K, U + e * K * K, P + e * K * K, X + e * K * N
    Y, D, W, gain, PV = Y + e * N * N, D + e * N * N, W + e * N * K, gain + e * N * K, PV + 2 * e * N * K
    s_, surprise, core = s_ + e * N, surprise + e * N, core + 3 * e * N
    b_, w_, rest_ = scratch + 3 * e * K, scratch + (3 * e + 1) * K, scratch + (3 * e + 2) * K
    i, j = tl.arange(0, BK), tl.arange(0, BN)
    noise_var = tl.load(noise_var_)
    b = tl.load(X + i * N, i < K, 0.0)
    keep(b_, b, K, BK)
    tl.debug_barrier()
    w = apply(P, b_, K, BR, BK)
    for t in range(N):
        # the step before, whose changes are made here; before the first, its own record, still of zeros
        o = tl.maximum(t - 1, 0)
        # (G + noise_var I) w = b, from w = P b with one step of refinement
        keep(w_, w, K, BK)
        tl.debug_barrier()
        x, y = change_of_G(W, gain, surprise, noise_var, o, K, BK)
        rest = b - add_and_apply(G, gain + o * K, x, W + o * K, y, w_, K, BR, BK) - noise_var * w
        keep(rest_, rest, K, BK)
        tl.debug_barrier()
        x, y = change_of_P(PV, core, o, K, BK)
        w += add_and_apply(P, PV + 2 * o * K, -x, PV + (2 * o + 1) * K, -y, rest_, K, BR, BK)
        keep(W + t * K, w, K, BK)
        tl.debug_barrier()
        # c = U w, q = noise_var P w, d = Y_t − Xᵀw
        root, k, d = tl.sqrt(tl.load(s_ + o)), whole(gain + o * K, K, BK), whole(D + o * N, N, BN)
        Uw, Pw = tl.zeros((BR, BK), tl.float32), tl.zeros((BR, BK), tl.float32)
        Xw = tl.zeros((BX, BN), tl.float32)
        for r in range(0, K, BR):
            k_r, w_r = piece(gain + o * K, r, K, BR), piece(W + t * K, r, K, BR)
            Uw += add(U, r, root * k_r, -root * k, K, K, BR, BK) * w_r  # symmetric to the last bit
            Pw += rows(P, r, K, K, BR, BK) * w_r
        for r in range(0, K, BX):
            Xw += add(X, r, piece(gain + o * K, r, K, BX), d, K, N, BX, BN) * piece(W + t * K, r, K, BX)
        c, q = tl.sum(Uw, axis=0), noise_var * tl.sum(Pw, axis=0)
        tl.debug_barrier()
        s = tl.sum(w * c, axis=0) + noise_var
        k = c / s
        # n = ‖Δ‖² = Δᵀz − noise_var ‖w‖²; a perfect read may round to less than nothing
        n = tl.load(Y + t * N + t) - tl.sum(w * b, axis=0) - noise_var * tl.sum(w * w, axis=0)
        n = tl.where(n < 0, 0.0, n)
        # d = Δᵀz of the codes to come
        d = tl.where(j > t, whole(Y + t * N, N, BN) - tl.sum(Xw, axis=0), 0.0)
        # the b of the next code
        b = tl.load(X + i * N + t + 1, (i < K) & (t + 1 < N), 0.0) + k * tl.sum(
            tl.where(j == t + 1, d, 0.0), axis=0
        )
        keep(b_, b, K, BK)
        keep(gain + t * K, k, K, BK)
        keep(D + t * N, d, N, BN)
        tl.store(s_ + t, s)
        tl.store(surprise + t, n)
        tl.debug_barrier()
        # p = P k, and P b, which needs but P's change to be the w of the next code
        Pk, Pb = tl.zeros((BR, BK), tl.float32), tl.zeros((BR, BK), tl.float32)
        for r in range(0, K, BR):
            tile = rows(P, r, K, K, BR, BK)
            Pk += tile * piece(gain + t * K, r, K, BR)
            Pb += tile * piece(b_, r, K, BR)
        p, w = tl.sum(Pk, axis=0), tl.sum(Pb, axis=0)
        # P ← P − [p q] (S⁻¹ + VᵀP V)⁻¹ [p q]ᵀ,   V = [k, noise_var w]
        w_t = whole(W + t * K, K, BK)
        kPk, off, wPw = tl.sum(k * p, axis=0), 1 + tl.sum(k * q, axis=0), noise_var * tl.sum(w_t * q, axis=0) - n
        det = kPk * wPw - off * off
        one, two, three = wPw / det, -off / det, kPk / det
        pb, qb = tl.sum(p * b, axis=0), tl.sum(q * b, axis=0)
        w -= (one * pb + two * qb) * p + (two * pb + three * qb) * q
        keep(PV + 2 * t * K, p, K, BK)
        keep(PV + (2 * t + 1) * K, q, K, BK)
        tl.store(core + 3 * t, one)
        tl.store(core + 3 * t + 1, two)
        tl.store(core + 3 * t + 2, three)
    tl.debug_barrier()
    # the changes of the last step; those of X are nothing
    o = N - 1
    root, k = tl.sqrt(tl.load(s_ + o)), whole(gain + o * K, K, BK)
    x, y = change_of_G(W, gain, surprise, noise_var, o, K, BK)
    a, c = change_of_P(PV, core, o, K, BK)
    for r in range(0, K, BR):
        add(U, r, root * piece(gain + o * K, r, K, BR), -root * k, K, K, BR, BK)
        add_two(G, r, gain + o * K, x, W + o * K, y, K, K, BR, BK)
        add_two(P, r, PV + 2 * o * K, -a, PV + (2 * o + 1) * K, -c, K, K, BR, BK)


@kernel
def backward(
    noise_var_,
    G,
    X,
    U,
    P,
    W,
    gain,
    s_,
    D,
    surprise,
    PV,
    core,
    G_first,
    X_first,
    g_W,
    g_gain,
    g_s,
    g_U,
    g_G,
    g_X,
    g_Y,
    g_noise_var,
    scratch,
    N: tl.constexpr,
    K: tl.constexpr,
    BR: tl.constexpr,
    BK: tl.constexpr,
    BN: tl.constexpr,
    BX: tl.constexpr,
):
    """The adjoint of `forward`. G, X, U and P walk back in place; g_U comes in symmetric, other sums start at 0."""
    e = tl.program_id(0).to(tl.int64)
    G, U, P, X = G + e * K * K, U + e * K * K, P + e * K * K, X + e * K * N
    g_G, g_U, g_X, g_Y = g_G + e * K * K, g_U + e * K * K, g_X + e * K * N, g_Y + e * N * N
    D, W, gain, PV = D + e * N * N, W + e * N * K, gain + e * N * K, PV + 2 * e * N * K
    s_, surprise, core = s_ + e * N, surprise + e * N, core + 3 * e * N
    g_W, g_gain, g_s = g_W + e * N * K, g_gain + e * N * K, g_s + e * N
    scratch += 6 * e * K
    g_c_, v_, g_w_, first_, rest_, across_ = (
        scratch,
        scratch + K,
        scratch + 2 * K,
        scratch + 3 * K,
        scratch + 4 * K,
        scratch + 5 * K,
    )
    j = tl.arange(0, BN)
    noise_var, total = tl.load(noise_var_), 0.0
    G_first, X_first = G_first + e * K * K, X_first + e * K * N
    grown = trace(G, K, BK) + K * noise_var > GROWTH * (trace(G_first, K, BK) + K * noise_var)
    undo = tl.where(grown, 0.0, -1.0)
    for back in range(N):
        t = N - 1 - back
        # the step after, whose changes of g_U, g_G and g_X are made here; after the last there were none: all 0
        o = tl.minimum(t + 1, N - 1)
        # X' = X + k dᵀ, U' = U − s k kᵀ, G' = G + noise_var (w kᵀ + k wᵀ) + n k kᵀ
        w, g_c, v, g_d = whole(W + o * K, K, BK), whole(g_c_, K, BK), whole(v_, K, BK), whole(g_Y + o * N, N, BN)
        d, here = whole(D + t * N, N, BN), tl.where(j == o, 1.0, 0.0)
        gUk, gGk, gGw = (
            tl.zeros((BR, BK), tl.float32),
            tl.zeros((BR, BK), tl.float32),
            tl.zeros((BR, BK), tl.float32),
        )
        gXk = tl.zeros((BX, BN), tl.float32)
        for r in range(0, K, BR):
            k_r, w_r = piece(gain + t * K, r, K, BR), piece(W + t * K, r, K, BR)
            gUk += add_two(g_U, r, g_c_, 0.5 * w, W + o * K, 0.5 * g_c, K, K, BR, BK) * k_r
            tile = add_two(g_G, r, v_, -0.5 * w, W + o * K, -0.5 * v, K, K, BR, BK)
            gGk += tile * k_r
            gGw += tile * w_r
        for r in range(0, K, BX):
            tile = add_two(g_X, r, W + o * K, -g_d, v_, here, K, N, BX, BN)
            gXk += tile * piece(gain + t * K, r, K, BX)
            keep_piece(across_, r, tl.sum(tile * d[None, :], axis=1), K, BX)
        gUk_, gGk_, gGw_ = tl.sum(gUk, axis=0), tl.sum(gGk, axis=0), tl.sum(gGw, axis=0)
        tl.debug_barrier()
        w, k, s, n = whole(W + t * K, K, BK), whole(gain + t * K, K, BK), tl.load(s_ + t), tl.load(surprise + t)
        g_n = tl.sum(k * gGk_, axis=0)
        g_k = whole(across_, K, BK) + whole(g_gain + t * K, K, BK) - s * gUk_ + 2 * (noise_var * gGw_ + n * gGk_)
        # k = c/s, s = wᵀc + noise_var
        g = tl.load(g_s + t) - tl.sum(g_k * k, axis=0) / s
        g_c = g_k / s - gUk_ + g * w
        # n = Y_tt − wᵀb − noise_var ‖w‖²
        g_d = tl.where(j == t, g_n, tl.sum(gXk, axis=0))
        total += g + 2 * tl.sum(gGk_ * w, axis=0) - g_n * tl.sum(w * w, axis=0)
        g_w = whole(g_W + t * K, K, BK) + s * g * k + 2 * noise_var * (gGk_ - g_n * w)
        keep(g_c_, g_c, K, BK)
        keep(g_Y + t * N, g_d, N, BN)
        tl.debug_barrier()
        # the states before this step: undone in the passes that read them, or made again
        if grown:
            copy(G_first, G, K, K, BR, BK)
            copy(X_first, X, K, N, BX, BN)
            past = 0
            while past < t:
                tl.debug_barrier()
                x, y = change_of_G(W, gain, surprise, noise_var, past, K, BK)
                for r in range(0, K, BR):
                    add_two(G, r, gain + past * K, x, W + past * K, y, K, K, BR, BK)
                for r in range(0, K, BX):
                    add(X, r, piece(gain + past * K, r, K, BX), whole(D + past * N, N, BN), K, N, BX, BN)
                past += 1
            tl.debug_barrier()
        # c = U w, d = Y_t − Xᵀw
        root, Ug = tl.sqrt(s), tl.zeros((BR, BK), tl.float32)
        for r in range(0, K, BR):
            k_r = root * piece(gain + t * K, r, K, BR)
            Ug += add(U, r, k_r, root * k, K, K, BR, BK) * piece(g_c_, r, K, BR)
        for r in range(0, K, BX):
            tile = add(X, r, undo * piece(gain + t * K, r, K, BX), d, K, N, BX, BN)
            keep_piece(across_, r, tl.sum(tile * g_d[None, :], axis=1), K, BX)
        g_w += tl.sum(Ug, axis=0)
        tl.debug_barrier()
        g_w -= whole(across_, K, BK)
        # w = (G + noise_var I)⁻¹ b
        keep(g_w_, g_w, K, BK)
        tl.debug_barrier()
        x, y = change_of_P(PV, core, t, K, BK)
        v = add_and_apply(P, PV + 2 * t * K, x, PV + (2 * t + 1) * K, y, g_w_, K, BR, BK)
        keep(first_, v, K, BK)
        tl.debug_barrier()
        x, y = change_of_G(W, gain, surprise, noise_var, t, K, BK)
        rest = (
            g_w - add_and_apply(G, gain + t * K, undo * x, W + t * K, undo * y, first_, K, BR, BK) - noise_var * v
        )
        keep(rest_, rest, K, BK)
        tl.debug_barrier()
        v += apply(P, rest_, K, BR, BK)
        keep(v_, v, K, BK)
        total -= tl.sum(v * whole(W + t * K, K, BK), axis=0)
        tl.debug_barrier()
    # the changes of the first step
    w, g_c, v, g_d = whole(W, K, BK), whole(g_c_, K, BK), whole(v_, K, BK), whole(g_Y, N, BN)
    here = tl.where(j == 0, 1.0, 0.0)
    for r in range(0, K, BR):
        add_two(g_U, r, g_c_, 0.5 * w, W, 0.5 * g_c, K, K, BR, BK)
        add_two(g_G, r, v_, -0.5 * w, W, -0.5 * v, K, K, BR, BK)
    for r in range(0, K, BX):
        add_two(g_X, r, W, -g_d, v_, here, K, N, BX, BN)
    tl.store(g_noise_var + e, total)


def sizes(X: Tensor) -> dict[str, int]:
    """The sizes that a kernel is compiled for, padded to powers of two, and its warps."""
    K, N = X.shape[-2:]
    BK, BN = max(16, triton.next_power_of_2(K)), max(16, triton.next_power_of_2(N))
    # rows of odd length are fetched one number at a time, which takes more registers
    tile = TILE // 2 if K % 2 else TILE
    size = {"N": N, "K": K, "BR": max(1, tile // BK), "BK": BK, "BN": BN, "BX": max(1, tile // BN)}
    # num_stages is for loops of tl.dot, of which there are none
    return {**size, "num_warps": 8, "num_stages": 1}


@torch.library.custom_op("kanerva::core_triton", mutates_args=())
def core_op(
    G: Tensor, X: Tensor, Y: Tensor, U: Tensor, noise_var: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """W, gain, s and U, and what the adjoint needs: G, X, P, D, surprise, PV, core."""
    out = outputs(X)
    W, gain, s, U_, G_, X_, P, *records = out
    start = linalg.ridge_inverse(G, noise_var)[0]
    for new, old in ((U_, U), (G_, G), (X_, X), (P, start)):
        new.copy_(old)
    scratch = X.new_empty(len(X), 3, X.shape[1])
    forward[(len(X),)](Y.contiguous(), noise_var, G_, X_, U_, P, W, gain, s, *records, scratch, **sizes(X))
    return out


def outputs(X: Tensor) -> Any:
    B, K, N = X.shape
    shapes = ((N, K), (N, K), (N,), (K, K), (K, K), (K, N), (K, K), (N, N), (N,), (N, 2, K), (N, 3))
    return tuple(X.new_zeros(B, *shape) for shape in shapes)


@core_op.register_fake
def _(G: Tensor, X: Tensor, Y: Tensor, U: Tensor, noise_var: Tensor) -> Any:
    return outputs(X)


@torch.library.custom_op("kanerva::core_triton_backward", mutates_args=())
def backward_op(
    saved: list[Tensor], g_W: Tensor, g_gain: Tensor, g_s: Tensor, g_U: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of G, X, Y, U and noise_var (one for each episode)."""
    G_first, X_first, noise_var, W, gain, s, U, G, X, P, D, *records = saved
    states = (x.clone() for x in (G, X, U, P))
    g_U = 0.5 * (g_U + g_U.mT)
    g_G, g_X, g_Y, g_noise_var = (torch.zeros_like(x) for x in (G, X, D, s[:, 0]))
    grads = (x.contiguous() for x in (g_W, g_gain, g_s, g_U))
    known = W, gain, s, D, *records, G_first.contiguous(), X_first.contiguous()
    scratch = X.new_zeros(len(X), 6, X.shape[1])
    backward[(len(X),)](noise_var, *states, *known, *grads, g_G, g_X, g_Y, g_noise_var, scratch, **sizes(X))
    return g_G, g_X, g_Y, g_U, g_noise_var


@backward_op.register_fake
def _(saved: list[Tensor], g_W: Tensor, g_gain: Tensor, g_s: Tensor, g_U: Tensor) -> Any:
    _, _, _, _, _, s, U, G, X, _, D, *_ = saved
    return *(torch.empty_like(x) for x in (G, X, D, U)), s.new_empty(len(s))


def save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # most outputs are for the adjoint alone
    G, X, _, _, noise_var = inputs
    ctx.save_for_backward(G, X, noise_var, *output)


@gram.once
def adjoint(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, ...]:
    saved = list(ctx.saved_tensors)  # once: torch.utils.checkpoint allows no second look
    *out, g_noise_var = backward_op(saved, *gram.given(grads[:4], saved[3:7]))
    return *out, g_noise_var.sum()


core_op.register_autograd(adjoint, setup_context=save)


def core(G: Tensor, X: Tensor, Y: Tensor, U: Tensor, noise_var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gram.Core by Triton."""
    W, gain, s, U, *_ = core_op(G, X, Y, U, noise_var)
    return W, gain, s, U
