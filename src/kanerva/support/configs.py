"""Configs, which are frozen dataclasses, to plain dictionaries for JSON and back."""

import dataclasses
import math
import types
import typing
from typing import Any, TypeVar

Config = TypeVar("Config")


def to_dict(config: Any) -> dict[str, Any]:
    """Turn a config into plain dictionaries for JSON; one that is a kind among others names it."""
    kind = {"kind": config.kind} if hasattr(config, "kind") else {}
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return kind | {name: to_dict(v) if dataclasses.is_dataclass(v) else v for name, v in values.items()}


def from_dict(kind: type[Config], data: Any, where: str = "config") -> Config:
    """Rebuild a config from what `to_dict` gave; an unknown field is an error, a missing one takes its default.

    Where there are several kinds (`kind.of_kind`), the data say which. The default of a new field must be what was
    done before there was one.
    """
    if not isinstance(data, dict) or not data:
        raise ValueError(f"{where}: expected the fields of {kind.__name__}, got {brief(data)}")
    if hasattr(kind, "of_kind"):
        try:
            kind = kind.of_kind(str(data.get("kind")))  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(f"{where}.kind: {error}") from None
        data = {name: value for name, value in data.items() if name != "kind"}
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(data) - {f.name for f in dataclasses.fields(kind)})  # type: ignore[arg-type]
    if unknown:
        raise ValueError(
            f"{where}: expected fields of {kind.__name__} ({', '.join(hints)}), got unknown {brief(unknown)}; "
            f"usual causes: a typing error, or a file that another version of kanerva wrote"
        )
    values = {name: _value(hints[name], data[name], f"{where}.{name}") for name in data}
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return value if isinstance(value, kind) else from_dict(kind, value, where)  # type: ignore[arg-type]
    if not _fits(kind, value):
        name = kind if typing.get_args(kind) else getattr(kind, "__name__", kind)
        raise ValueError(f"{where}: expected {name}, got {brief(value)}")
    return tuple(value) if isinstance(value, list) else value


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value is of a kind; that a word is among those of a Literal, the config checks."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        # a share that may be left out may also be True (DataConfig.binary); no other number may
        return any(_fits(option, value) for option in options) or (float in options and isinstance(value, bool))
    if origin is tuple:
        kinds = options[:1] * len(value) if isinstance(value, (list, tuple)) and Ellipsis in options else options
        return isinstance(value, (list, tuple)) and len(value) == len(kinds) and all(map(_fits, kinds, value))
    if origin is typing.Literal:
        return isinstance(value, str)
    if kind in (int, float):
        # JSON also has true, 1e400 and whole numbers of any length
        most = 2**63 if isinstance(value, int) else math.inf
        return isinstance(value, int | kind) and not isinstance(value, bool) and abs(value) < most
    return isinstance(value, kind)


def brief(value: Any) -> str:
    """A value for an error, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
