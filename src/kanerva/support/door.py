"""The door: what a public function or method does before and after its work.

    @public
    def read(state: MemoryState, w: Float[Tensor, "*#b T K"]) -> Float[Tensor, "*#b T C"]: ...

The annotation is the check. Types, shapes, dtypes and devices of all arguments must fit together; what a shape
cannot say stands beside it as a rule, `Annotated[float, positive]` (checks.py has the rules), or as a text with
which errors of type end. Only the outermost call is checked: functions that it calls trust it. A method of an
object with `sizes` (axes that it knows by name) and `like` (a tensor whose dtype and device arguments must have) is
checked against these too.

With `public(flat=True)` tensors and memories get one batch axis on the way in, and results their batch axes back.
Inside torch.compile nothing is checked; axes are still flattened, where flattening twice does no harm. dynamo
cannot read annotations, so a class whose methods are such doors has them read when it is made (`read_all`).
"""

import contextvars
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from jaxtyping import AbstractArray
from torch import Tensor

from . import checks
from .linalg import together

P = ParamSpec("P")
Out = TypeVar("Out")
HALF = (torch.bfloat16, torch.float16)
DTYPES = {"Float": (torch.float32, torch.float64), "Bool": (torch.bool,), "Int64": (torch.int64,)}
CALLABLE: Any = typing.get_origin(Callable[..., Any])
NUMBERS: dict[Any, tuple[type, ...]] = {float: (float, int, np.number), int: (int, np.integer)}
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)


class Part(NamedTuple):
    """What an annotation says of an argument, or of a field of one ("state.U")."""

    name: str
    kinds: tuple[type, ...]
    dtypes: tuple[torch.dtype, ...]
    axes: tuple[str, ...]
    rules: tuple[checks.Rule, ...]
    hint: str
    """What to say of the usual cause where something else came: a text beside the annotation, or the kind's own."""

    @property
    def wanted(self) -> str:
        """What should have come, for an error."""
        if float in self.kinds:
            return "one positive, finite number (a float or a tensor of shape ())" if self.dtypes else "a number"
        if self.dtypes:
            return f"a tensor of shape {self.shaped({})}"
        if int in self.kinds:
            return "a whole number"
        return " or ".join(named(kind) for kind in self.kinds if kind is not types.NoneType)

    def shaped(self, sizes: dict[str, Any]) -> str:
        """The axes, with their sizes as far as these are known."""
        names = [axis.strip("#").replace("*#", "*").replace("...", "…") for axis in self.axes]
        return f"({', '.join(str(sizes.get(name, name)) for name in names)}{',' * (len(names) == 1)})"


def named(kind: type) -> str:
    """A type as an error names it, with the fields of a NamedTuple."""
    if kind is CALLABLE:
        return "a function"
    return f"a {kind.__name__}({', '.join(kind._fields)})" if hasattr(kind, "_fields") else f"a {kind.__name__}"


class Plan(NamedTuple):
    """A signature, read once."""

    signature: inspect.Signature
    defaults: dict[str, Any]
    parts: tuple[Part, ...]
    paths: tuple[tuple[str, str], ...]
    moves: tuple[tuple[str, str, int, bool], ...]
    """Argument, field and axes after the batch axes of what is flattened, and whether it is as the images are."""
    calls_back: tuple[str, ...]
    result: int | None
    """Where a result has its batch axes (`place`)."""
    fit: Callable[..., "tuple[dict[str, int], torch.dtype, torch.device]"]


@typing.overload
def public(function: Callable[P, Out]) -> Callable[P, Out]: ...
@typing.overload
def public(*, flat: bool = ..., fold: bool = ...) -> Callable[[Callable[P, Out]], Callable[P, Out]]: ...
def public(function: Any = None, *, flat: bool = False, fold: bool = False) -> Any:
    """Check the arguments of an outermost call against their annotations; calls from inside are trusted.

    flat: give tensors one batch axis. fold: where x has batch axes and the memory has none, they become more of x.
    """
    if function is None:
        return functools.partial(public, flat=flat, fold=fold)
    method = next(iter(inspect.signature(function).parameters), "") == "self"
    full = checks.full_precision(function)
    plans: dict[Any, Plan] = {}

    def plan_of(kind: Any) -> Plan:
        if kind not in plans:
            plans[kind] = read(function, kind)
        return plans[kind]

    @functools.wraps(function)
    def door(*args: Any, **kwargs: Any) -> Any:
        tracing = torch.compiler.is_compiling()
        if (tracing and not flat) or (not tracing and _inside.get()):
            return function(*args, **kwargs)
        owner = args[0] if method else None
        kind: Any = type(owner) if method else None
        plan = plans[kind] if tracing else plan_of(kind)
        given = plan.defaults | dict(zip(plan.defaults, args[method:], strict=False)) | kwargs
        if not tracing:
            check(plan, given, owner, args, kwargs)
        axes = flatten_all(plan, given, fold) if flat else Axes(())
        if tracing:
            return restore(full(*args[:method], **given), plan.result, axes)
        for name in plan.calls_back:
            if given[name] is not None:
                given[name] = outside(given[name], axes if flat else None)
        token = _inside.set(True)
        try:
            made = full(*args[:method], **given)
        finally:
            _inside.reset(token)
        return restore(made, plan.result, axes) if flat else made

    door.plan_of = plan_of  # type: ignore[attr-defined]
    return door


def read_all(owner: type) -> None:
    """Make the plans of all methods of a class that are doors, so that torch.compile finds them ready."""
    for method in (one for parent in owner.__mro__ for one in vars(parent).values()):
        if hasattr(method, "plan_of"):
            method.plan_of(owner)


def read(function: Any, owner: Any) -> Plan:
    """The plan of a function; of a method, for one class. An argument `state` of any type is the class's State."""
    signature, hints = inspect.signature(function), typing.get_type_hints(function, include_extras=True)
    defaults = {name: p.default for name, p in signature.parameters.items() if name != "self"}
    if hints.get("state") is Any and hasattr(owner, "State"):
        optional = defaults["state"] is None
        hints["state"] = owner.State | None if optional else owner.State
    parts = [part for name in defaults if name in hints for part in parse(name, hints[name])]
    # a memory says which sizes, dtype and device the rest must have; numbers come last
    parts.sort(key=lambda part: 0 if "." in part.name or hasattr(part.kinds[0], "_fields") else 2 - bool(part.axes))
    paths = tuple(part.name.partition(".")[::2] for part in parts)
    moves = tuple(
        (name, field, len(part.axes) - 1, part.axes[0] == "...")
        for part, (name, field) in zip(parts, paths, strict=True)
        if part.axes and part.axes[0] in ("*b", "*#b", "...")
    )
    result = place(hints.get("return"))
    for kind in {getattr(owner, "State", None)} - {None}:
        places(kind)
    calls_back = tuple(name for name in defaults if CALLABLE in unfold(hints.get(name))[0])
    fit = functools.lru_cache(maxsize=256)(functools.partial(layout, parts))  # what looks alike is judged once
    return Plan(signature, defaults, tuple(parts), paths, moves, calls_back, result, fit)


def parse(name: str, hint: Any) -> Iterator[Part]:
    """The parts of an annotation: one, and those of its fields if it is a NamedTuple."""
    kinds, beside = unfold(hint)
    rules = tuple(rule for rule in beside if not isinstance(rule, str))
    said = "".join(f"; {text}" for text in beside if isinstance(text, str))
    arrays: list[Any] = [kind for kind in kinds if issubclass(kind, AbstractArray)]
    dtypes = sum((DTYPES[array.dtype.__name__] for array in arrays), ())
    axes = tuple(arrays[0].dim_str.split()) if arrays else ()
    struct = next((kind for kind in kinds if hasattr(kind, "_fields")), None)
    if checks.any_float in rules:
        dtypes += HALF
    if arrays and not rules and dtypes == DTYPES["Float"]:
        rules = (checks.finite,)
    yield Part(name, kinds, dtypes, axes, rules, getattr(struct, "hint", said))
    if struct is not None:
        for field, inner in typing.get_type_hints(struct, include_extras=True).items():
            yield from parse(f"{name}.{field}", inner | None if types.NoneType in kinds else inner)


def unfold(hint: Any) -> tuple[tuple[type, ...], tuple[checks.Rule | str, ...]]:
    """The types that an annotation allows, and the rules and texts beside them."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return unfold(args[0])[0], unfold(args[0])[1] + args[1:]
    if origin is typing.Literal:
        return tuple({type(value) for value in args}), (checks.one_of(*args),)
    if origin in (typing.Union, types.UnionType):
        kinds, rules = zip(*map(unfold, args), strict=True)
        return sum(kinds, ()), sum(rules, ())
    if hint is Any or isinstance(hint, TypeVar):
        return (object,), ()
    return NUMBERS.get(hint, (origin or hint,)), ()


def check(plan: Plan, given: dict[str, Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse arguments that do not fit; no value is read before all shapes fit together."""
    if len(args) - (owner is not None) > len(plan.defaults) or kwargs.keys() - plan.defaults.keys():
        plan.signature.bind(*args, **kwargs)  # Python says what is too much
    values = [getattr(given[name], field, None) if field else given[name] for name, field in plan.paths]
    looks = [(x.shape, x.dtype, x.device, x.layout) if isinstance(x, Tensor) else type(x) for x in values]
    known: tuple[Any, ...] = ()
    if hasattr(owner, "sizes"):
        known = (type(owner).__name__, owner.like.dtype, owner.like.device, *owner.sizes.items())
    try:
        sizes, dtype, device = plan.fit(known, *looks)
    except (TypeError, ValueError) as error:
        plan.signature.bind(*args, **kwargs)  # where an argument is missing, Python says so
        raise error from None
    call = checks.Call(owner, given, sizes, dtype, device, checks.deep(device))
    for part, x in zip(plan.parts, values, strict=True):
        if x is not None:
            for rule in part.rules:
                rule(part.name, x, call)


AS_TENSOR = "; torch.as_tensor makes one"
Look = Any
"""(shape, dtype, device, layout) of a tensor, the type of anything else."""


def layout(
    parts: list[Part], known: tuple[Any, ...], *came: Look
) -> tuple[dict[str, int], torch.dtype, torch.device]:
    """Judge types, and shapes, dtypes and devices of tensors. Batch axes of one name broadcast."""
    sizes: dict[str, tuple[int, str]] = {}
    like: tuple[str, torch.dtype, torch.device] | None = None
    if known:
        who, dtype, device, *own = known
        like, sizes = (f"the {who}", dtype, device), {name: (size, f"the {who}") for name, size in own}
    own_sizes = {name: size for name, (size, _) in sizes.items()}
    batches: dict[str, dict[str, tuple[int, ...]]] = {}
    for part, x in zip(parts, came, strict=True):
        name, wanted = part.name, f"{part.name}: expected {part.wanted}"
        if isinstance(x, type):
            if x is types.NoneType and "." in name and types.NoneType in part.kinds:
                continue
            if not issubclass(x, part.kinds) or (x is bool and bool not in part.kinds and object not in part.kinds):
                raise TypeError(f"{wanted}, got {x.__name__}{part.hint or AS_TENSOR * bool(part.axes)}")
            continue
        if not part.dtypes:
            if object in part.kinds or Tensor in part.kinds:
                continue
            raise TypeError(f"{wanted}, got a tensor{part.hint}")
        shape, dtype, device, laid_out = x
        if laid_out is not torch.strided:
            raise TypeError(f"{name}: expected a dense tensor, got one of {laid_out}; {name}.to_dense() makes one")
        named = [axis for axis in part.axes if axis[0] not in "*."]
        real = dtype.is_floating_point and not (dtype in HALF and checks.any_float in part.rules)
        if like is not None and real and dtype in part.dtypes and dtype != like[1]:
            raise TypeError(f"{name}: expected {like[1]} like {like[0]}, got {dtype}; .to({like[1]}) converts it")
        if dtype not in part.dtypes:
            said = " or ".join(str(d) for d in dict.fromkeys(part.dtypes))
            to = like[1] if like is not None and like[1] in part.dtypes else part.dtypes[0]
            raise TypeError(f"{name}: expected {said}, got {dtype}; {name}.to({to}) converts it{part.hint}")
        if like is not None and device != like[2]:
            raise ValueError(
                f"{name}: expected device {like[2]} like {like[0]}, got {device}; .to(device) moves it"
            )
        if like is None and real:
            like = (name, dtype, device)
        split = len(shape) - len(named)
        if split < 0 or (split and len(named) == len(part.axes)):
            few = f", which has too few axes; {name}[None] adds one" if split < 0 else ""
            shaped = f"shape {part.shaped(own_sizes)}" if part.axes else part.wanted
            raise ValueError(f"{name}: expected {shaped}, got shape {tuple(shape)}{few}")
        for axis, size in zip(named, shape[split:], strict=True):
            if axis.isdigit():
                want, who = int(axis), "always"
            elif axis[0] == "#" and size == 1:
                continue
            else:
                want, who = sizes.setdefault(axis.strip("#"), (size, name))
            if size != want:
                said = (
                    f"{name}: expected shape {part.shaped(own_sizes)} with {axis.strip('#')} = {want} as in {who}"
                )
                usual = "; usual cause: a memory that another model has written" * ("." in name and bool(known))
                raise ValueError(f"{said}, got {tuple(shape)}{usual}")
        if part.axes and part.axes[0][0] == "*":
            batches.setdefault(part.axes[0].strip("*#"), {})[name] = tuple(shape[:split])
    for found in batches.values():
        if any(len({*column} - {1}) > 1 for column in zip_longest(*(s[::-1] for s in found.values()), fillvalue=1)):
            once = {(name.partition(".")[0], shape): f"{shape} of {name}" for name, shape in found.items()}
            raise ValueError(f"batch axes: expected shapes that broadcast, got {', '.join(once.values())}")
    plain = {name: size for name, (size, _) in sizes.items()}
    return plain, (like[1] if like else torch.get_default_dtype()), (like[2] if like else torch.device("cpu"))


class Axes(NamedTuple):
    """The batch axes that stand for one, and how many cues each had if these axes were folded into theirs."""

    batch: tuple[int, ...]
    folded: int | None = None


def flatten_all(plan: Plan, given: dict[str, Any], fold: bool) -> Axes:
    """Give every tensor that has batch axes one in their place; returns the axes that they had together."""
    found: list[tuple[str, str, int, Tensor]] = []
    for name, field, last, as_images in plan.moves:
        x = getattr(given[name], field, None) if field else given[name]
        if isinstance(x, Tensor):
            if as_images:  # of any leading axes that fit them
                last, x = next((n, x.to(y.dtype).expand_as(y)) for m, _, n, y in found if m == "x")
            found.append((name, field, last, x))
    batch = tuple(given.get("batch", ()))
    if found:
        batch = together(*(x.shape[: x.ndim - last] for _, _, last, x in found))
    axes = Axes(batch)
    if fold and len(batch) and all(x.ndim == last for _, field, last, x in found if field):
        axes = Axes(batch, next(x.shape[-last] for name, _, last, x in found if name == "x"))
        found = [one if one[1] else (*one[:3], one[3].flatten(0, -one[2])) for one in found]
        batch = (1,)
    for name, field, last, x in found:
        flat = flatten(x, last, batch)
        given[name] = given[name]._replace(**{field: flat}) if field else flat
    if "batch" in given:
        given["batch"] = (torch.Size(batch).numel(),)
    return axes


def flatten(x: Tensor, last: int, batch: tuple[int, ...]) -> Tensor:
    """A tensor with one batch axis in place of those that it will share; autograd may keep it."""
    if not torch.compiler.is_compiling() and x.is_inference() and not torch.is_inference_mode_enabled():
        x = x.clone()
    shape = x.shape[x.ndim - last :]
    return x.expand((*batch, *shape)).reshape(torch.Size(batch).numel(), *shape)


_places: dict[Any, tuple[int | None, ...]] = {}


def places(kind: Any) -> tuple[int | None, ...]:
    """Where each field of a NamedTuple has its batch axes; a subclass has them where its parent does."""
    known = [parent for parent in kind.__mro__ if parent in _places]
    if not known:
        _places[kind] = tuple(place(hint) for hint in typing.get_type_hints(kind, include_extras=True).values())
    return _places[known[0] if known else kind]


def place(hint: Any) -> int | None:
    """Which axis stands for the batch in a tensor, or in the tensors of a dict; None: there is none."""
    if typing.get_origin(hint) in (list, dict):
        return place(typing.get_args(hint)[-1])
    axes: list[str] = []
    for kind in filter(inspect.isclass, unfold(hint)[0]):
        if hasattr(kind, "_fields"):
            places(kind)
        elif issubclass(kind, AbstractArray) and not axes:
            axes = kind.dim_str.split()
    return next((i for i, axis in enumerate(axes) if axis[0] == "*"), None)


def restore(value: Any, at: int | None, axes: Axes) -> Any:
    """The batch axes again, in what a function gives: a tensor, or tensors in a NamedTuple, a list or a dict."""
    if isinstance(value, list):
        return [restore(one, at, axes) for one in value]
    if isinstance(value, dict):
        return {name: restore(x, at, axes) for name, x in value.items()}
    if hasattr(value, "_fields"):
        each = places(type(value))
        return type(value)(*(restore(x, i, axes) for x, i in zip(value, each, strict=True)))
    if not isinstance(value, Tensor) or at is None:
        return value
    before, after = tuple(value.shape[:at]), tuple(value.shape[at + 1 :])
    if axes.folded is not None:
        after = (axes.folded, *after[1:])
    return value.reshape((*before, *axes.batch, *after))


def outside(function: Callable[..., Any], axes: Axes | None) -> Callable[..., Any]:
    """A user's function, called from inside: what it calls is checked again, and sees its own batch axes."""

    def run(*args: Any) -> Any:
        token = _inside.set(False)
        try:
            return function(*(args if axes is None else (restore(x, None, axes) for x in args)))
        finally:
            _inside.reset(token)

    return run
