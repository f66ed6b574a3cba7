"""Fast ways to write an episode, all with the signature and the results of `memory.write`; derivations: README.md.

    triton      one program per episode and its adjoint, on a GPU
    cpu         one fused loop and its adjoint, compiled by Numba
    gram        plain PyTorch in Gram space, on any device
    reference   memory.write itself: any device, dtype, iterations and block; differentiable any number of times

This file is the one place where a backend is chosen: `choose` says which one and why, and `kanerva info` and the
log of a training run repeat it.
"""

import importlib.util
import math
import os
import shutil
from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .. import checks, linalg, memory
from ..checks import full_precision
from ..memory import Faded, Inverse, MemoryState, Variance
from . import gram

# In the order in which auto tries them.
BACKENDS = ("triton", "cpu", "gram", "reference")

NUMBA, TRITON = (importlib.util.find_spec(name) is not None for name in ("numba", "triton"))
# Triton and torch.compile build their launchers with the system's C compiler.
C_COMPILER = any(map(shutil.which, filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))))


# Where a write takes a variance of the memory down to less than 1/FAR, float32 has lost three of its seven digits.
# Trained models come to 60, an untrained layer on vectors of its `scale` to 250.
FAR = 1e3


class WriteResult(NamedTuple):
    """What a write leaves: memory and weights, and what KL(M) and reads need, so that they factor nothing."""

    state: MemoryState
    w: Float[Tensor, "*b T K"]
    log_det: Float[Tensor, "*b"]
    """ln det U − ln det of the U before."""
    inverse: Inverse


class Job(NamedTuple):
    """What decides which backends can be used."""

    device: str
    dtype: torch.dtype
    rows: int
    code: int
    """Entries of a code that address it: all, or its key."""
    iterations: int = 1
    block: int = 1
    plain: bool = True
    """Neither an empty batch nor inside a torch.func transform."""


@full_precision
def write(
    state: MemoryState,
    z: Float[Tensor, "*#b T C"],
    noise_var: Variance,
    iterations: int = 1,
    block: int = 1,
    backend: str = "auto",
    mask: Bool[Tensor, "*#b T"] | None = None,
    keys: int | None = None,
) -> tuple[MemoryState, Float[Tensor, "*b T K"]]:
    """Write an episode as `memory.write` does [alg. 1], by the fastest backend that can, or by the one named.

    The gradient of U is its symmetric part. All but the reference can be differentiated once. No backend knows of
    masks: a code of zeros, which `memory.masked` puts there, changes nothing. Do not ask for more rows than a code
    (or its key) has numbers: see `memory.write`. Where a float32 write takes a variance of the memory down to a
    thousandth, and values may be looked at (see `kanerva.checks`), the episode is written in float64: README.md.
    """
    _, state, w, _ = _write(state, memory.masked(z, mask), noise_var, iterations, block, backend, keys)
    return state, w


@full_precision
def write_and_invert(
    state: MemoryState,
    z: Float[Tensor, "*#b T C"],
    noise_var: Variance,
    iterations: int = 1,
    block: int = 1,
    backend: str = "auto",
    mask: Bool[Tensor, "*#b T"] | None = None,
    keys: int | None = None,
) -> WriteResult:
    """Write an episode, and give with it ln det U and (R Rᵀ + noise_var I)⁻¹, both differentiable [alg. 1, app. D].

        ln det U_T − ln det U_0 = Σ_t (ln noise_var − ln s_t)

    With the backends cpu and triton nothing is factored outside the kernels. With keys, R is its first columns
    in the inverse, which is for cues that are keys. Proof: test_written_*.
    """
    name, after, w, s = _write(state, memory.masked(z, mask), noise_var, iterations, block, backend, keys)
    if s is None:
        log_det = _log_det(state.U, w, noise_var)
    else:
        each = _scalar(noise_var, s).log() - s.log()
        log_det = (each if mask is None else torch.where(mask, each, 0)).sum(-1)
    return WriteResult(after, w, log_det, _inverse(after.R[..., :keys], noise_var, name))


@full_precision
def inverse(state: MemoryState, noise_var: Variance, backend: str = "auto", keys: int | None = None) -> Inverse:
    """`memory.inverse`, by the sweeps of a backend that has them; with keys, for cues that are keys."""
    checks.inputs(state, noise_var=noise_var, uses_U=False)
    checks.keys(keys, state)
    name = choose(job(state, state.R, noise_var, keys=keys), backend)[0]
    return _inverse(state.R[..., :keys], noise_var, name)


def choose(what: Job, backend: str = "auto") -> tuple[str, str]:
    """The backend for a job, and why. One that was named and cannot do it is an error."""
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend: expected one of {['auto', *BACKENDS]}, got {backend!r}")
    if backend != "auto":
        reason = obstacle(backend, what)
        if reason is not None:
            raise ValueError(f"backend: {backend} cannot be used here, {reason}; 'auto' takes one that can")
        return backend, "named"
    reasons = {name: obstacle(name, what) for name in BACKENDS}
    if what.device != "cuda":
        reasons["triton"] = reasons["triton"] or "it is only interpreted here"
    if what.rows > what.code:
        exact = "for K > C the reference solves C×C, which is far more exact"
        reasons |= {name: reasons[name] or exact for name in BACKENDS[:-1]}
    name = next(name for name, reason in reasons.items() if reason is None)
    before = [f"{other}: {reasons[other]}" for other in BACKENDS[: BACKENDS.index(name)]]
    return name, f"not {'; not '.join(before)}" if before else "the fastest"


def obstacle(backend: str, what: Job) -> str | None:
    """What keeps a backend from a job; None if nothing does."""
    if backend == "reference":
        return None
    if what.iterations != 1 or what.block != 1:
        return f"it takes iterations = 1 and block = 1, not {what.iterations} and {what.block}"
    if not what.plain:
        return "the batch is empty or inside a torch.func transform"
    if backend == "cpu":
        if what.device != "cpu":
            return f"the memory is on {what.device}"
        return None if NUMBA else "numba is not installed"
    if backend == "triton":
        if not TRITON:
            return "triton is not installed"
        if what.device != "cuda" and not _interpreting():
            return f"the memory is on {what.device}"
        if what.device == "cuda" and not C_COMPILER:
            return "it needs a C compiler (cc, gcc or clang, or what $CC names), and there is none"
        return None if what.dtype == torch.float32 else f"it computes in float32, not {what.dtype}"
    return None


def why_not(
    backend: str, state: MemoryState, z: Float[Tensor, "*#b T C"], iterations: int = 1, block: int = 1
) -> str | None:
    """What keeps a backend from writing these tensors; None if nothing does."""
    return obstacle(backend, job(state, z, iterations=iterations, block=block))


def job(
    state: MemoryState,
    z: Tensor,
    noise_var: Variance | None = None,
    iterations: int = 1,
    block: int = 1,
    keys: int | None = None,
) -> Job:
    """The job of writing z into a memory."""
    rows, code = state.R[..., :keys].shape[-2:]
    plain = 0 not in (*z.shape[:-2], *state.R.shape[:-2])
    if not torch.compiler.is_compiling():  # which cannot trace the question, and need not
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        tensors = [x for x in (*state, z, noise_var) if isinstance(x, Tensor)]
        plain &= not any(map(wrapped, tensors))
    return Job(z.device.type, z.dtype, rows, code, iterations, block, plain)


def _write(
    state: MemoryState,
    z: Tensor,
    noise_var: Variance,
    iterations: int,
    block: int,
    backend: str,
    keys: int | None,
) -> tuple[str, MemoryState, Tensor, Tensor | None]:
    """The backend's name, the memory, the weights and, but from the reference, the innovation variances s."""
    checks.inputs(state, z=z, noise_var=noise_var)
    checks.count("iterations", iterations)
    checks.count("block", block)
    checks.keys(keys, state)
    name = choose(job(state, z, noise_var, iterations, block, keys), backend)[0]
    if name == "reference":
        after, w = memory.write(state, z, noise_var, iterations, block, keys=keys)
        s = None
    else:
        full = MemoryState(*linalg.broadcast(state, z))
        batch = full.R.shape[:-2]
        codes = z.expand(*batch, *z.shape[-2:])
        flat = MemoryState(*map(_flat, full))
        after, w, s = _module(name).write(flat, _flat(codes), _scalar(noise_var, z), keys)
        R, U, w, s = (x.reshape(*batch, *x.shape[1:]) for x in (*after, w, s))
        after = (Faded if isinstance(state, Faded) else MemoryState)(R, U)
    if _far(state, w, s, noise_var):
        exact = "gram" if name == "triton" else name
        v = noise_var.double() if isinstance(noise_var, Tensor) else noise_var
        double = state.to(torch.float64)
        # the gradient of U is rounded to float32 once it is symmetric: not its two halves, which are far larger
        double = double._replace(U=linalg.symmetric(double.U))
        _, after, w, s = _write(double, z.double(), v, iterations, block, exact, keys)
        after, w, s = after.to(z.dtype), w.to(z.dtype), s if s is None else s.to(z.dtype)
    checks.written(after)
    return name, after, w, s


def _far(state: MemoryState, w: Tensor, s: Tensor | None, noise_var: Variance) -> bool:
    """Say whether a write in float32 took a variance wᵀU w (= s − noise_var) down to less than 1/FAR of it."""
    if w.dtype != torch.float32 or not w.numel() or not checks.deep(w):
        return False
    s = (w @ state.U * w).sum(-1) if s is None else s
    return not bool(s.detach().amax() <= FAR * noise_var)  # also where it is no number any more


def _log_det(U: Float[Tensor, "*#b K K"], w: Float[Tensor, "*b T K"], noise_var: Variance) -> Float[Tensor, "*b"]:
    """ln det U_T − ln det U = −ln det(I + LᵀWᵀW L / noise_var) with U = L Lᵀ, in float64.

    Not from U_T: where it is small, rounding has left little of it in float32, and less of its gradients.
    """
    L, W = linalg.cholesky(linalg.symmetric(U.double()), "U"), w.double()
    v = noise_var.double() if isinstance(noise_var, Tensor) else noise_var
    W = W @ L
    B = linalg.cholesky(linalg.symmetric(linalg.ridge(W.mT @ W / v, 1.0)), "I + LᵀWᵀW L / noise_var")
    return -linalg.log_det(B).to(w.dtype)


def _inverse(R: Float[Tensor, "*b K C"], noise_var: Variance, name: str) -> Inverse:
    if name not in ("cpu", "triton"):
        return Inverse(*linalg.ridge_inverse(R @ R.mT, noise_var))
    batch = R.shape[:-2]
    P, log_det = _module(name).inverse(_flat(R), _scalar(noise_var, R))
    if checks.deep(P):
        checks.finite("(R Rᵀ + noise_var I)⁻¹", P)
    return Inverse(P.reshape(*batch, *P.shape[1:]), log_det.reshape(batch))


def _flat(x: Float[Tensor, "*b M N"]) -> Float[Tensor, "B M N"]:
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _scalar(value: Variance, like: Tensor) -> Float[Tensor, ""]:
    """A variance as a tensor, filled on the device, so that a graph can capture it."""
    if isinstance(value, Tensor):
        return value
    return torch.full((), float(value), dtype=like.dtype, device=like.device)


def _module(name: str) -> ModuleType:
    """Numba and Triton are imported when they are first used."""
    if name == "triton":
        from . import triton

        return triton
    if name == "cpu":
        from . import cpu

        return cpu
    return gram


def _interpreting() -> bool:
    """Triton's own switch: programs run in Python, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"
