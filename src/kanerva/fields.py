"""Configs, which are frozen dataclasses, to plain dictionaries for JSON and back."""

import dataclasses
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
    """Rebuild a config from what `to_dict` gave, also in an earlier version; an unknown field is an error.

    Where there are several kinds (`kind.of_kind`), the data say which.
    A missing one takes its default, so the default of a new field must be what was done before there was one.
    """
    if not isinstance(data, dict) or not data:
        raise ValueError(f"{where}: expected the fields of {kind.__name__}, got {data!r}")
    if hasattr(kind, "of_kind"):
        kind = kind.of_kind(data.get("kind", "dkm"))  # type: ignore[attr-defined]
        # before there were kinds, every model was a DKM
        data = {name: value for name, value in data.items() if name != "kind"}
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(data) - {f.name for f in dataclasses.fields(kind)})  # type: ignore[arg-type]
    if unknown:
        raise ValueError(
            f"{where}: expected the fields of {kind.__name__}, got unknown {unknown}; "
            f"usual cause: saved by another version of kanerva"
        )
    values = {name: _value(hints[name], data[name], f"{where}.{name}") for name in data}
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if isinstance(value, kind):  # type: ignore[arg-type]
            return value
        return from_dict(kind, value, where)  # type: ignore[arg-type]
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        whole = isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value)
        if not whole or (Ellipsis not in options and len(value) != len(options)):
            raise ValueError(f"{where}: expected {kind}, got {value!r}")
        return tuple(value)
    if origin in (None, types.UnionType):
        allowed = kind | int if float in (kind, *options) else kind
        if not isinstance(value, allowed):
            raise ValueError(f"{where}: expected {kind}, got {value!r}")
    return value
