"""Fast ways to write an episode, all with the signature and the results of `memory.write`; derivations: README.md.

    gram      how does a write look in inner products alone?           plain PyTorch, any device
    cpu       how is that one fused loop, and its adjoint?             Numba
    triton    how is an episode one program on a GPU?                  Triton
    blocked   how, where K and C are too large for one program?        Triton

`reference` is memory.write itself: any device, dtype, iterations and block; differentiable any number of times.
This file is the one place where a backend is chosen: `pick` says which one and why, and `kanerva info` and the log
of a training run repeat it.
"""

import importlib
import importlib.util
import math
import os
import shutil
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .. import memory
from ..memory import Faded, Inverse, MemoryState
from ..memory.moments import Whole, masked
from ..support import checks, linalg
from ..support.checks import Count, Variance
from ..support.door import public

__all__ = ["Stored", "inverse", "pick", "store", "write"]

Backend = Literal["triton", "cpu", "gram", "reference"]
# In the order in which auto tries them.
BACKENDS: tuple[str, ...] = get_args(Backend)
Name = Annotated[str, checks.one_of("auto", *BACKENDS)]

NUMBA, TRITON = (importlib.util.find_spec(name) is not None for name in ("numba", "triton"))
# Triton and torch.compile build their launchers with the system's C compiler.
C_COMPILER = any(map(shutil.which, filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))))

Codes = Annotated[Float[Tensor, "*#b T C"], checks.finite_where("mask")]
Keys = Annotated[Count, checks.at_most("C")] | None

# Where a write takes a variance of the memory down to less than 1/FAR, float32 has lost three of its seven digits.
# Trained models come to 60, an untrained layer on vectors of its `scale` to 250.
FAR = 1e3


class Stored(NamedTuple):
    """What a write leaves: the memory, the weights, and what KL(M) needs, so that it factors nothing."""

    state: MemoryState
    w: Float[Tensor, "*b T K"]
    log_det: Float[Tensor, "*b"]
    """ln det U − ln det of the U before."""


@public
def write(
    state: Whole,
    z: Codes,
    noise_var: Variance,
    iterations: Count = 1,
    block: Count = 1,
    backend: Name = "auto",
    mask: Bool[Tensor, "*#b T"] | None = None,
    keys: Keys = None,
) -> tuple[MemoryState, Float[Tensor, "*b T K"]]:
    """Write an episode as `memory.write` does [alg. 1], by the fastest backend that can, or by the one named.

    The gradient of U is its symmetric part. All but the reference can be differentiated once. No backend knows of
    masks: a code of zeros, which a mask puts there, changes nothing. Do not ask for more rows than a code (or its
    key) has numbers: see `memory.write`. Where a float32 write takes a variance of the memory down to a thousandth,
    and values may be looked at (support/checks.py), the episode is written in float64: README.md.
    """
    return _write(state, masked(z, mask), noise_var, iterations, block, backend, keys)[:2]


@public
def store(
    state: Whole,
    z: Codes,
    noise_var: Variance,
    iterations: Count = 1,
    block: Count = 1,
    backend: Name = "auto",
    mask: Bool[Tensor, "*#b T"] | None = None,
    keys: Keys = None,
) -> Stored:
    """`write`, with ln det U_T − ln det U_0 = Σ_t (ln noise_var − ln s_t), which gives KL(M) [alg. 1, app. A].

    With the backends cpu and triton nothing is factored outside the kernels. Proof: test_stored_*.
    """
    after, w, s = _write(state, masked(z, mask), noise_var, iterations, block, backend, keys)
    if s is None:
        return Stored(after, w, _log_det(state.U, w, noise_var))
    each = _scalar(noise_var, s).log() - s.log()
    return Stored(after, w, (each if mask is None else torch.where(mask, each, 0)).sum(-1))


@public
def inverse(state: MemoryState, noise_var: Variance, backend: Name = "auto", keys: Keys = None) -> Inverse:
    """`memory.inverse`, by the sweeps of a backend that has them; with keys, for cues that are keys."""
    R = state.R[..., :keys]
    name = _choose(R, R, noise_var, backend=backend)
    if name not in ("cpu", "triton"):
        return Inverse(*linalg.ridge_inverse(R @ R.mT, noise_var))
    P, log_det = _module(name).inverse(_flat(R), _scalar(noise_var, R))
    if checks.deep(P):
        checks.no_overflow("(R Rᵀ + noise_var I)⁻¹", P)
    return Inverse(P.reshape(*R.shape[:-2], *P.shape[1:]), log_det.reshape(R.shape[:-2]))


def pick(
    device: str,
    dtype: torch.dtype,
    rows: int,
    code: int,
    backend: str = "auto",
    iterations: int = 1,
    block: int = 1,
    plain: bool = True,
) -> tuple[str, str]:
    """The backend that writes codes into a memory, and why; one that is named must be able to.

    code: the entries that address it: all, or the key. plain: neither an empty batch nor inside torch.func.
    """
    reasons = {name: _obstacle(name, device, dtype, iterations, block, plain) for name in BACKENDS}
    if backend != "auto":
        if reasons[backend] is not None:
            raise ValueError(
                f"backend: {backend} cannot be used here, {reasons[backend]}; 'auto' takes one that can"
            )
        return backend, "named"
    if device != "cuda":
        reasons["triton"] = reasons["triton"] or "it is only interpreted here"
    if rows > code:
        exact = "for K > C the reference solves C×C, which is far more exact"
        reasons |= {name: reasons[name] or exact for name in BACKENDS[:-1]}
    name = next(name for name, reason in reasons.items() if reason is None)
    before: dict[str | None, list[str]] = {}
    for other in BACKENDS[: BACKENDS.index(name)]:
        before.setdefault(reasons[other], []).append(other)
    return name, "; ".join(f"not {', '.join(who)}: {why}" for why, who in before.items()) or "the fastest"


def _obstacle(
    backend: str, device: str, dtype: torch.dtype, iterations: int, block: int, plain: bool
) -> str | None:
    """What keeps a backend from writing; None if nothing does."""
    if backend == "reference":
        return None
    if iterations != 1 or block != 1:
        return f"it takes iterations = 1 and block = 1, not {iterations} and {block}"
    if not plain:
        return "the batch is empty or inside a torch.func transform"
    if backend == "cpu":
        if device != "cpu":
            return f"the memory is on {device}"
        return None if NUMBA else "numba is not installed"
    if backend == "triton":
        if not TRITON:
            return "triton is not installed"
        if device != "cuda" and not _interpreting():
            return f"the memory is on {device}"
        if device == "cuda" and not C_COMPILER:
            return "it needs a C compiler (cc, gcc or clang, or what $CC names), and there is none"
        return None if dtype == torch.float32 else f"it computes in float32, not {dtype}"
    return None


def _choose(R: Tensor, z: Tensor, *others: Any, backend: str, iterations: int = 1, block: int = 1) -> str:
    """`pick` for tensors, of which R and z have what addresses the memory."""
    plain = 0 not in (*z.shape[:-2], *R.shape[:-2]) and not _transformed(R, z, *others)
    return pick(R.device.type, R.dtype, R.shape[-2], R.shape[-1], backend, iterations, block, plain)[0]


def _transformed(*values: Any) -> bool:
    """Whether a tensor is inside a torch.func transform; torch.compile cannot trace the question, and need not."""
    if torch.compiler.is_compiling():
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return any(wrapped(x) for x in values if isinstance(x, Tensor))


def _write(
    state: MemoryState, z: Tensor, noise_var: Variance, iterations: int, block: int, backend: str, keys: int | None
) -> tuple[MemoryState, Tensor, Tensor | None]:
    """The memory, the weights and, but from the reference, the innovation variances s."""
    R = state.R[..., :keys]
    name = _choose(R, z, state.U, noise_var, backend=backend, iterations=iterations, block=block)
    if name == "reference":
        after, w = memory.write(state, z, noise_var, iterations, block, keys=keys)  # which looks at U itself
        s = None
    else:
        wide = linalg.broadcast(state, z)
        batch = wide[0].shape[:-2]
        codes = _flat(z.expand(*batch, *z.shape[-2:]))
        after, w, s = _module(name).write(MemoryState(*map(_flat, wide)), codes, _scalar(noise_var, z), keys)
        R, U, w, s = (x.reshape(*batch, *x.shape[1:]) for x in (*after, w, s))
        after = (Faded if isinstance(state, Faded) else MemoryState)(R, U)
    if far := _far(state, w, s, noise_var):
        exact = "gram" if name == "triton" else name
        v = noise_var.double() if isinstance(noise_var, Tensor) else noise_var
        double = state.to(torch.float64)
        # the gradient of U is rounded to float32 once it is symmetric: not its two halves, which are far larger
        double = double._replace(U=linalg.symmetric(double.U))
        after, w, s = _write(double, z.double(), v, iterations, block, exact, keys)
        after, w, s = after.to(z.dtype), w.to(z.dtype), s if s is None else s.to(z.dtype)
    if far or name != "reference":
        checks.written(after)
    return after, w, s


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


def _flat(x: Float[Tensor, "*b M N"]) -> Float[Tensor, "B M N"]:
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _scalar(value: Variance, like: Tensor) -> Float[Tensor, ""]:
    """A variance as a tensor, filled on the device, so that a graph can capture it."""
    if isinstance(value, Tensor):
        return value
    return torch.full((), float(value), dtype=like.dtype, device=like.device)


def _module(name: str) -> ModuleType:
    """Numba and Triton are imported when they are first used; torch.compile can trace no import by name."""
    if name == "gram":
        from . import gram

        return gram
    if name == "triton":
        from . import triton

        return triton
    from . import cpu

    return cpu


def _interpreting() -> bool:
    """Triton's own switch: programs run in Python, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"
