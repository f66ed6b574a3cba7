"""Input checks for the memory: what came, what was wanted, and the usual cause.

Ranks, sizes, dtypes and devices are always checked; no data is read for that. Values (finite codes, positive
variances, a positive definite U) are checked on the CPU only, because looking at data on a GPU makes the host wait
for it. There a bad value comes out as NaN instead. The check of U costs K³ per memory and call.
`deep_checks` turns the value checks on for any device, or off; so does the environment variable
KANERVA_DEEP_CHECKS=1 or 0 for a whole program. Inside torch.compile and torch.func transforms they are off.

Arguments that a caller may have got wrong are of type Any here: anything can come.
"""

import contextlib
import contextvars
import functools
import math
import numbers
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

P = ParamSpec("P")
Out = TypeVar("Out")


def _from_environment() -> bool | None:
    word = os.environ.get("KANERVA_DEEP_CHECKS", "").lower()
    known = {"": None, "0": False, "false": False, "1": True, "true": True}
    if word not in known:
        raise ValueError(f"KANERVA_DEEP_CHECKS: expected 0 or 1, got {word!r}")
    return known[word]


# True and False as in deep_checks; None: value checks on the CPU only.
_by_default = _from_environment()
_deep: contextvars.ContextVar[bool | None] = contextvars.ContextVar("deep_checks", default=_by_default)


@contextlib.contextmanager
def deep_checks(on: bool = True) -> Iterator[None]:
    """Check values on every device (on=True, costs a GPU synchronisation per call) or on none (on=False).

    Holds for the thread that entered it.
    """
    token = _deep.set(on)
    try:
        yield
    finally:
        _deep.reset(token)


def full_precision(function: Callable[P, Out]) -> Callable[P, Out]:
    """Run `function` outside autocast: K×K algebra in bfloat16 or float16 is not the memory's mathematics."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Out:
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return run


# Stands for an argument that a function does not take; None is something that a caller may have passed.
ABSENT: Any = object()


def inputs(
    state: Any,
    *,
    w: Any = ABSENT,
    z: Any = ABSENT,
    noise_var: Any = ABSENT,
    episode: bool = True,
    uses_U: bool = True,
) -> None:
    """Check a memory and what is about to meet it; `episode` says whether w and z carry the axis T."""
    memory(state, "state", uses_U)
    K, C = state.R.shape[-2:]
    axis = ("T",) if episode else ()
    batches = {"state": broadcast(state.R.shape[:-2], state.U.shape[:-2])}
    if w is not ABSENT:
        tensor("w", w, (*axis, "K"), {"K": K}, like=state.R, source="rows of state.R")
        batches["w"] = w.shape[: -1 - len(axis)]
    if z is not ABSENT:
        tensor("z", z, (*axis, "C"), {"C": C}, like=state.R, source="columns of state.R")
        batches["z"] = z.shape[: -1 - len(axis)]
    if episode and w is not ABSENT and z is not ABSENT and w.shape[-2] != z.shape[-2]:
        raise ValueError(
            f"w and z: expected one weight for each code, got T = {w.shape[-2]} weights (w is {shape(w)}) "
            f"and T = {z.shape[-2]} codes (z is {shape(z)})"
        )
    broadcastable(batches)
    if noise_var is not ABSENT:
        variance("noise_var", noise_var, like=state.R)


def memory(state: Any, name: str, uses_U: bool = True) -> None:
    """Check that a memory is a mean and a row covariance that belong together."""
    if not (hasattr(state, "R") and hasattr(state, "U")):
        raise TypeError(
            f"{name}: expected a MemoryState(R, U), got {type(state).__name__}; memory.prior makes one, and "
            f"memory.write gives a pair (state, weights)"
        )
    R, U = state.R, state.U
    mean(f"{name}.R", R)
    tensor(f"{name}.U", U, ("K", "K"), {"K": R.shape[-2]}, R, f"rows of {name}.R")
    broadcastable({f"{name}.R": R.shape[:-2], f"{name}.U": U.shape[:-2]})
    if uses_U and deep(U):
        positive_definite(f"{name}.U", U)


def unfaded(state: Any) -> None:
    """Check that the writes of a memory can be told apart."""
    if getattr(state, "faded", False):
        raise ValueError(
            "state: expected a memory that never faded, got one that has (memory.drift, nn.Memory.fade, or an "
            "nn.Stream with keep < 1): its writes cannot be counted or told apart; "
            "it can be read, and asked for an energy"
        )


def inverse(value: Any, state: Any = None, like: Tensor | None = None) -> None:
    """Check that an inverse belongs to a memory of this size (that of `state`, or of the weights `like`)."""
    if not (hasattr(value, "P") and hasattr(value, "log_det")):
        raise TypeError(
            f"inverse: expected an Inverse(P, log_det), got {type(value).__name__}; memory.inverse makes one"
        )
    rows = like.shape[-1] if like is not None else state.R.shape[-2]
    like = state.R if like is None else like
    tensor("inverse.P", value.P, ("K", "K"), {"K": rows}, like=like, source="rows of the memory")
    broadcastable({"inverse": value.P.shape[:-2], "the memory": like.shape[:-2]})


def mean(name: str, R: Any) -> None:
    """Check that the mean of a memory has rows and columns."""
    tensor(name, R, ("K", "C"))
    if 0 in R.shape[-2:]:
        raise ValueError(f"{name}: expected at least one row and one column, got {shape(R)}")


def pair(q: Any, p: Any) -> None:
    """Check two memories that are about to be compared."""
    memory(q, "q")
    memory(p, "p")
    if q.R.shape[-2:] != p.R.shape[-2:]:
        raise ValueError(f"q and p: expected memories of one size, got R of {shape(q.R)} and {shape(p.R)}")
    same_kind("p", p.R, q.R)
    broadcastable({f"{name}.{x}": getattr(m, x).shape[:-2] for name, m in (("q", q), ("p", p)) for x in "RU"})


def tensor(
    name: str,
    x: Any,
    axes: tuple[str, ...],
    sizes: dict[str, int] | None = None,
    like: Tensor | None = None,
    source: str = "",
) -> None:
    """Check type, dtype, device, rank and the sizes of named axes; on the CPU also that all of x is finite."""
    layout(name, x, axes, sizes, like, source)
    numbers_in(name, x)


def numbers_in(name: str, x: Tensor) -> None:
    """Check that all of x is finite, where its values may be looked at."""
    if deep(x) and not all_finite(x):
        bad = int((~x.isfinite()).sum())
        raise ValueError(f"{name}: expected finite values, got {bad} NaN or infinite of {x.numel()}")


def layout(
    name: str,
    x: Any,
    axes: tuple[str, ...],
    sizes: dict[str, int] | None = None,
    like: Tensor | None = None,
    source: str = "",
) -> None:
    """`tensor`, without a look at values."""
    wanted = f"(*b, {', '.join(axes)})"
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name}: expected a tensor of shape {wanted}, got {type(x).__name__}; torch.as_tensor makes one"
        )
    dense(name, x)
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name}: expected float32 or float64, got {x.dtype}; {name}.float() converts it")
    if x.ndim < len(axes):
        raise ValueError(
            f"{name}: expected shape {wanted}, got {shape(x)}, which has too few axes; {name}[None] adds one"
        )
    for axis, size in zip(axes, x.shape[x.ndim - len(axes) :], strict=True):
        want = (sizes or {}).get(axis, size)
        if size != want:
            raise ValueError(f"{name}: expected shape {wanted} with {axis} = {want} ({source}), got {shape(x)}")
    if like is not None:
        same_kind(name, x, like)


def dense(name: str, x: Tensor) -> None:
    """Check that a tensor has all of its numbers in memory: few operations take sparse ones."""
    if x.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got one of {x.layout}; {name}.to_dense() makes one")


def variance(name: str, value: Any, like: Tensor) -> None:
    """Check that a variance is one positive number within the range of the memory's dtype."""
    wanted = f"{name}: expected one positive, finite number"
    if isinstance(value, Tensor):
        if value.ndim != 0:
            raise ValueError(f"{wanted} (a float or a tensor of shape ()), got shape {shape(value)}")
        same_kind(name, value, like)
        if deep(value):
            number(wanted, value.item(), like.dtype)
    elif isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        number(wanted, value.item() if isinstance(value, np.number) else value, like.dtype)
    else:
        raise TypeError(f"{wanted}, got {value!r} of type {type(value).__name__}; float(…) makes one of most")


def number(wanted: str, value: Any, dtype: torch.dtype) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{wanted}, got {value}; a learned variance is the exp of its logarithm")
    limits = torch.finfo(dtype)
    if not limits.tiny <= value <= limits.max:
        raise ValueError(f"{wanted}, got {value}, which {dtype} cannot hold")


def scale(value: Any) -> float:
    """Check that the size of entries is one positive number, whose square float32 can hold."""
    wanted = "scale: expected one positive number, the usual size of a vector's entries"
    try:
        size = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{wanted}, got {value!r}") from None
    if not 1e-15 < size < 1e15:
        raise ValueError(f"{wanted}, got {size}")
    return size


def share(name: str, value: Any, like: Tensor) -> None:
    """Check that a number is above 0 and at most 1."""
    wanted = f"{name}: expected a share above 0 and up to 1"
    if isinstance(value, Tensor):
        if value.ndim != 0:
            raise ValueError(f"{wanted} (a float or a tensor of shape ()), got shape {shape(value)}")
        same_kind(name, value, like)
        if not deep(value):
            return
    elif not isinstance(value, (int, float, np.number)) or isinstance(value, bool):
        raise TypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    if not 0 < float(value) <= 1:
        raise ValueError(f"{wanted}, got {float(value)}")


def noise(name: str, value: Any, like: Tensor, cues: tuple[int, ...]) -> None:
    """Check that a variance of cues is 0 or more: one number, or a tensor of one for each, of shape `cues`."""
    wanted = f"{name}: expected a variance of 0 or more, one number or one for each cue"
    if isinstance(value, Tensor):
        dense(name, value)
        same_kind(name, value, like)
        try:
            fits = tuple(torch.broadcast_shapes(value.shape, cues)) == cues
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(f"{wanted}, in a shape that fits {cues}, got {shape(value)}")
    elif not isinstance(value, (int, float, np.number)) or isinstance(value, bool):
        raise TypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    value = torch.as_tensor(value)
    if deep(value) and not bool(((value >= 0) & (value < math.inf)).all()):
        raise ValueError(f"{wanted}, got {float(value.min())}")


def function(name: str, value: Any, meaning: str) -> None:
    """Check that something can be called."""
    if not callable(value):
        raise TypeError(f"{name}: expected a function, {meaning}, got {value!r}")


def count(name: str, value: Any) -> None:
    """Check that a number of times is a whole number of at least one."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")


def seed(value: Any) -> None:
    """Check that a seed is one that every generator takes."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not 0 <= int(value) < 2**32:
        raise ValueError(f"seed: expected a whole number from 0 to {2**32 - 1}, got {value!r}")


def generator(value: Any, device: torch.device) -> None:
    """Check that a source of random numbers, if one is given, is PyTorch's own, on a device."""
    if value is None:
        return
    if not isinstance(value, torch.Generator):
        raise TypeError(
            f"generator: expected a torch.Generator or None, got {type(value).__name__}; "
            f"torch.Generator().manual_seed(0) makes one"
        )
    if value.device.type != device.type:
        raise ValueError(f"generator: expected one on {device}, got one on {value.device}")


def mask(value: Any, x: Tensor) -> None:
    """Check that a mask says of every pixel of x whether to trust it: 1, or 0 where it is lost."""
    if not isinstance(value, Tensor):
        raise TypeError(f"mask: expected a tensor, got {type(value).__name__}")
    try:
        fits = torch.broadcast_shapes(value.shape, x.shape) == x.shape
    except RuntimeError:
        fits = False
    if not fits or value.shape[-2:] != x.shape[-2:]:
        raise ValueError(f"mask: expected a shape that fits {shape(x)}, got {shape(value)}")
    if deep(value) and not bool(((value == 0) | (value == 1)).all()):
        raise ValueError("mask: expected 1 for a pixel to trust and 0 for one that is lost, got other values")


def mask_of_codes(value: Any, z: Any) -> None:
    """Check that a mask says of every code whether it is to be written."""
    boolean("mask", value, "(*b, T)", "True for a code to write, False for padding")
    if not isinstance(z, Tensor) or z.ndim < 2:
        raise ValueError(
            f"z: expected a tensor of shape (*b, T, C), got {shape(z) if isinstance(z, Tensor) else z!r}"
        )
    if value.ndim < 1 or value.shape[-1] != z.shape[-2]:
        raise ValueError(f"mask: expected shape (*b, T) with T = {z.shape[-2]} codes, got {shape(value)}")
    broadcastable({"mask": value.shape[:-1], "z": z.shape[:-2]})


def known(value: Any, z: Any) -> None:
    """Check that `known` says of every entry of every code whether it is known."""
    boolean("known", value, "(*b, T, C)", "True for an entry that is known; ~z.isnan() makes one")
    if not isinstance(z, Tensor) or value.ndim < 1 or value.shape[-1] != z.shape[-1]:
        raise ValueError(f"known: expected a shape that fits the codes, {shape(z)}, got {shape(value)}")
    broadcastable({"known": value.shape[:-1], "z": z.shape[:-1]})


def boolean(name: str, value: Any, wanted: str, meaning: str) -> None:
    """Check that a tensor is of booleans."""
    if not isinstance(value, Tensor) or value.dtype != torch.bool:
        came = f"one of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name}: expected a boolean tensor of shape {wanted}, {meaning}; got {came}")
    dense(name, value)


def keys(value: Any, state: Any) -> None:
    """Check that so many entries of a code can address it."""
    if value is None:
        return
    count("keys", value)
    if value > state.R.shape[-1]:
        raise ValueError(f"keys: expected at most the size of a code, {state.R.shape[-1]}, got {value}")


def batch(name: str, value: Any) -> None:
    """Check that batch axes are a tuple of sizes."""
    sizes = isinstance(value, (tuple, list)) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    if not sizes or any(n < 0 for n in value):
        raise ValueError(f"{name}: expected a tuple of sizes such as (16,), got {value!r}")


def fields(config: Any, **least: float | int) -> None:
    """Check a config: choices are among their literals, and numbers (or all of a tuple) at least so large."""
    for name, kind in typing.get_type_hints(type(config)).items():
        choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else None
        if choices is not None and getattr(config, name) not in choices:
            raise ValueError(f"{name}: expected one of {list(choices)}, got {getattr(config, name)!r}")
    for name, low in least.items():
        value = getattr(config, name)
        values = value if isinstance(value, tuple) else (value,)
        if not values or not all(low <= v < math.inf for v in values):
            finite = " and finite" if math.inf in values else ""
            raise ValueError(f"{name}: expected {low:g} or more{finite}, got {value}")


def options(given: Iterable[str], method: str, known: Mapping[str, Sequence[str]]) -> None:
    """Check that a method has the options that it is given; `known` has those of every method of a model."""
    for name in given:
        if name not in known[method]:
            having = [other for other in known if name in known[other]]
            raise TypeError(
                f"{name}: expected an option of method {method!r} ({', '.join(known[method]) or 'it has none'}); "
                f"methods that have {name}: {', '.join(having) or 'none'}"
            )


def same_kind(name: str, x: Tensor, like: Tensor) -> None:
    """Check that x has the dtype and device of what it meets."""
    if x.dtype != like.dtype:
        raise TypeError(
            f"{name}: expected {like.dtype} like the rest, got {x.dtype}; convert it, or the rest, with .to(dtype)"
        )
    if x.device != like.device:
        raise ValueError(
            f"{name}: expected device {like.device} like the rest, got {x.device}; .to(device) moves it"
        )


def broadcastable(batches: dict[str, torch.Size]) -> None:
    """Check that the leading batch axes fit together by broadcasting."""
    try:
        broadcast(*batches.values())
    except RuntimeError:
        came = ", ".join(f"{tuple(b)} of {name}" for name, b in batches.items())
        raise ValueError(f"batch axes: expected shapes that broadcast, got {came}") from None


def broadcast(*shapes: torch.Size) -> torch.Size:
    """torch.broadcast_shapes, which takes longer than many a small read, where shapes differ."""
    first = shapes[0]
    return first if all(other == first for other in shapes) else torch.broadcast_shapes(*shapes)


def positive_definite(name: str, U: Tensor) -> None:
    """Check that a covariance is symmetric and positive definite; reads its values."""
    U = U.detach()
    if not U.numel() or (torch.equal(U, U.mT) and factors(U)):
        return
    off = float((U - U.mT).abs().amax())
    # Rounding leaves far less than this, and a finite-difference gradient check may step off by 1e-6.
    if off > max(1e-4 * float(U.abs().amax()), 1e-5):
        raise ValueError(f"{name}: expected a symmetric matrix, got entries that differ by {off:.2g}")
    factored(name, U, torch.linalg.cholesky_ex(U).info)


def written(state: Any) -> None:
    """Check that rounding has left a memory's U positive definite."""
    if deep(state.U) and not factors(state.U.detach()):  # U − c cᵀ/s never grows, so that no entry can be +∞
        name = "U after writing"
        finite(name, state.U)
        factored(name, state.U, torch.linalg.cholesky_ex(state.U).info)


def factors(U: Tensor) -> bool:
    """Say whether U = L Lᵀ: then it is positive definite, and nothing in it is NaN or −∞."""
    if U.is_cuda and not all_finite(U):  # infinities do not stop it there
        return False
    return not any(torch.linalg.cholesky_ex(U).info.reshape(-1).tolist())


def all_finite(x: Tensor) -> bool:
    """Say whether all values are finite: their sum is, unless it overflows."""
    x = x.detach()
    return math.isfinite(x.sum().item()) or bool(x.isfinite().all())


def finite(name: str, x: Tensor) -> None:
    """Raise where a result has overflowed."""
    if not all_finite(x):
        raise ValueError(f"{name}: expected finite values, got an overflow of {x.dtype}; usual cause: huge codes")


def factored(name: str, A: Tensor, info: Tensor) -> None:
    """Raise where a Cholesky factorisation of A stopped early (info > 0)."""
    if A.is_cuda:  # where infinities do not stop it
        finite(name, A)
    if not bool(info.any()):
        return
    bad = A.detach()[info > 0].double()
    finite(name, A)
    least = float(torch.linalg.eigvalsh(bad).amin())
    raise ValueError(
        f"{name}: expected a positive definite matrix, got {len(bad)} of {info.numel()} that are not (least "
        f"eigenvalue {least:.3g}); usual causes: a covariance built by hand, codes far larger than the "
        f"memory's scale, or a noise_var lost in rounding (try a larger one, or float64)"
    )


def deep(x: Tensor) -> bool:
    """Say whether x's values may be looked at now."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    on = _deep.get()
    return x.device.type == "cpu" if on is None else on


def shape(x: Tensor) -> str:
    return str(tuple(x.shape))
