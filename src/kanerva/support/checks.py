"""Rules for arguments, and the checks of values: what came, what was wanted, and the usual cause.

A rule stands beside an annotation, `Annotated[float, positive]`; the door (door.py) calls it with the argument's
name, its value and the whole call. Types, shapes, dtypes and devices are judged before, without a look at any
value. Values (finite codes, positive variances, a positive definite U) are read on the CPU only, since on a GPU the
host would wait for them; there a bad value comes out as NaN instead. `deep_checks` turns the reading of values on
for any device, or off; so does the environment variable KANERVA_DEEP_CHECKS=1 or 0 for a whole program. Inside
torch.compile and torch.func transforms it is off.
"""

import contextlib
import contextvars
import functools
import math
import numbers
import os
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

P = ParamSpec("P")
Out = TypeVar("Out")


class Call(NamedTuple):
    """What a rule may ask: whose method it is, all arguments, the sizes of axes, and whether to read values."""

    owner: Any
    given: dict[str, Any]
    sizes: dict[str, int]
    dtype: torch.dtype
    device: torch.device
    deep: bool


Rule = Callable[[str, Any, Call], None]


def _from_environment() -> bool | None:
    word = os.environ.get("KANERVA_DEEP_CHECKS", "").lower()
    known = {"": None, "0": False, "false": False, "1": True, "true": True}
    if word not in known:
        raise ValueError(f"KANERVA_DEEP_CHECKS: expected 0 or 1, got {word!r}")
    return known[word]


# True and False as in deep_checks; None: value checks on the CPU only.
DEFAULT = _from_environment()
_deep: contextvars.ContextVar[bool | None] = contextvars.ContextVar("deep_checks", default=DEFAULT)


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


def deep(at: Tensor | torch.device) -> bool:
    """Whether the values of a tensor, or those on a device, may be read now."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    on = _deep.get()
    return (at.device if isinstance(at, Tensor) else at).type == "cpu" if on is None else on


def full_precision(function: Callable[P, Out]) -> Callable[P, Out]:
    """Run `function` outside autocast: K×K algebra in bfloat16 or float16 is not the memory's mathematics."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Out:
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return run


# Rules


def any_float(name: str, x: Any, call: Call) -> None:
    """A mark for the door: bfloat16 and float16 will do as well, whatever the others have."""


def finite(name: str, x: Tensor, call: Call) -> None:
    """No entry is NaN or infinite."""
    if call.deep and not all_finite(x):
        bad = int((~x.isfinite()).sum())
        raise ValueError(f"{name}: expected finite values, got {bad} NaN or infinite of {x.numel()}")


def finite_where(other: str) -> Rule:
    """Finite but for what the argument `known` (of entries) or `mask` (of codes) leaves out."""

    def rule(name: str, x: Tensor, call: Call) -> None:
        kept = call.given.get(other)
        if kept is not None and other == "known":
            fits(other, kept, x.shape)
        if kept is not None and call.deep:
            x = torch.where(kept > 0 if other == "known" else kept[..., None], x, 0)
        finite(name, x, call)

    return rule


def filled(name: str, R: Tensor, call: Call) -> None:
    """The mean of a memory has rows and columns, and is finite."""
    if 0 in R.shape[-2:]:
        raise ValueError(f"{name}: expected at least one row and one column, got {tuple(R.shape)}")
    finite(name, R, call)


def definite(name: str, state: Any, call: Call) -> None:
    """The covariance of a memory is positive definite; costs K³."""
    if call.deep:
        positive_definite(f"{name}.U", state.U)


def unfaded(name: str, state: Any, call: Call | None = None) -> None:
    """The writes of a memory can be told apart."""
    if getattr(state, "faded", False):
        raise ValueError(
            f"{name}: expected a memory that never faded, got one that has (memory.drift, nn.Memory.fade, or an "
            "nn.Stream with keep < 1): its writes cannot be counted or told apart; "
            "it can be read, and asked for an energy"
        )


def positive(name: str, value: Any, call: Call) -> None:
    """One positive number that the dtype can hold."""
    if isinstance(value, Tensor):
        if not call.deep:
            return
        value = value.item()
    value = float(value)
    limits = torch.finfo(call.dtype)
    if not limits.tiny <= value <= limits.max:
        said = f", which {call.dtype} cannot hold" if 0 < value < math.inf else "; a learned variance is an exp"
        raise ValueError(f"{name}: expected one positive, finite number, got {value}{said}")


def up_to_one(name: str, value: Any, call: Call | None = None) -> None:
    """A share above 0 and up to 1."""
    if isinstance(value, Tensor) and call is not None and not call.deep:
        return
    if not 0 < float(value) <= 1:
        raise ValueError(f"{name}: expected a share above 0 and up to 1, got {float(value)}")


def not_negative(name: str, value: Any, call: Call) -> None:
    """Variances, or precisions, of 0 or more."""
    value = torch.as_tensor(value)
    if call.deep and not bool(((value >= 0) & (value < math.inf)).all()):
        raise ValueError(f"{name}: expected finite numbers of 0 or more, got {float(value.min())}")


def count(name: str, value: Any, call: Call | None = None, least: int = 1) -> None:
    """A number of times, or of things: a whole number of at least one."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def count_or_none(name: str, value: Any, call: Call | None = None) -> None:
    """A number of things of which there may be none."""
    count(name, value, call, 0)


def at_most(axis: str) -> Rule:
    """A whole number that an axis is not too short for."""

    def rule(name: str, value: Any, call: Call) -> None:
        if value > call.sizes[axis]:
            raise ValueError(f"{name}: expected at most {axis} = {call.sizes[axis]}, got {value}")

    return rule


def sizes(name: str, value: Any, call: Call | None = None) -> None:
    """Batch axes: a tuple of sizes."""
    if not isinstance(value, (tuple, list)) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{name}: expected a tuple of sizes such as (16,), got {value!r}")


def one_of(*choices: Any) -> Rule:
    """One of a few values."""

    def rule(name: str, value: Any, call: Call) -> None:
        if value not in choices:
            raise ValueError(f"{name}: expected one of {list(choices)}, got {value!r}")

    return rule


def here(name: str, value: Any, call: Call) -> None:
    """A source of random numbers is on the device of the rest."""
    if value is not None and value.device.type != call.device.type:
        raise ValueError(f"{name}: expected one on {call.device}, got one on {value.device}")


def fits(name: str, value: Tensor, wanted: tuple[int, ...]) -> None:
    """A shape broadcasts to another, and does not make it larger."""
    came = tuple(value.shape)
    if len(came) > len(wanted) or any(a not in (1, b) for a, b in zip(came[::-1], wanted[::-1], strict=False)):
        raise ValueError(f"{name}: expected a shape that fits {tuple(wanted)}, got {came}")


def trusts(name: str, value: Any, call: Call) -> None:
    """A mask says of every pixel whether to trust it: 1, or 0 where it is lost."""
    fits(name, value, call.given["x"].shape)
    if call.deep and not bool(((value == 0) | (value == 1)).all()):
        raise ValueError(f"{name}: expected 1 for a pixel to trust and 0 for one that is lost, got other values")


Variance = Annotated[float | int | Float[Tensor, ""], positive]
Share = Annotated[float | int | Float[Tensor, ""], up_to_one]
Count = Annotated[int, count]
CountOrNone = Annotated[int, count_or_none]
Sizes = Annotated[tuple[int, ...], sizes, "one axis of 16 is (16,)"]
Random = Annotated[torch.Generator | None, here, "torch.Generator().manual_seed(0) makes one"]


# Checks of values that no signature has


def seed(value: Any) -> None:
    """Check that a seed is one that every generator takes."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not 0 <= int(value) < 2**32:
        raise ValueError(f"seed: expected a whole number from 0 to {2**32 - 1}, got {value!r}")


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


# Matrices


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
        no_overflow("U after writing", state.U)
        factored("U after writing", state.U, torch.linalg.cholesky_ex(state.U).info)


def factors(U: Tensor) -> bool:
    """Whether U = L Lᵀ: then it is positive definite, and nothing in it is NaN or −∞."""
    if U.is_cuda and not all_finite(U):  # infinities do not stop it there
        return False
    return not any(torch.linalg.cholesky_ex(U).info.reshape(-1).tolist())


def all_finite(x: Tensor) -> bool:
    """Whether all values are finite: their sum is, unless it overflows."""
    x = x.detach()
    return math.isfinite(x.sum().item()) or bool(x.isfinite().all())


def no_overflow(name: str, x: Tensor) -> None:
    """Raise where a result has overflowed."""
    if not all_finite(x):
        raise ValueError(f"{name}: expected finite values, got an overflow of {x.dtype}; usual cause: huge codes")


def factored(name: str, A: Tensor, info: Tensor) -> None:
    """Raise where a Cholesky factorisation of A stopped early (info > 0)."""
    if A.is_cuda:  # where infinities do not stop it
        no_overflow(name, A)
    if not bool(info.any()):
        return
    bad = A.detach()[info > 0].double()
    no_overflow(name, A)
    least = float(torch.linalg.eigvalsh(bad).amin())
    raise ValueError(
        f"{name}: expected a positive definite matrix, got {len(bad)} of {info.numel()} that are not (least "
        f"eigenvalue {least:.3g}); usual causes: a covariance built by hand, codes far larger than the "
        f"memory's scale, or a noise_var lost in rounding (try a larger one, or float64)"
    )
