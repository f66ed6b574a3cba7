"""JSON that any program can read: it has no NaN and no infinity, and is not nested deep."""

import contextlib
import json
import math
from typing import Any

DEEPEST = 100
"""What kanerva writes is nested less than a tenth as deep."""


def loads(text: str | bytes) -> Any:
    """`json.loads`, with a ValueError for what is nested so deep that going through it would exhaust the stack."""
    with contextlib.suppress(RecursionError):
        value = json.loads(text)
        level = [value]
        for _ in range(DEEPEST):
            inside = [x.values() if isinstance(x, dict) else x for x in level if isinstance(x, (dict, list))]
            level = [part for parts in inside for part in parts]
            if not level:
                return value
    raise ValueError(f"JSON nested more than {DEEPEST} deep; usual cause: a file that kanerva did not write")


def finite(value: Any) -> Any:
    """The same with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def dumps(value: Any, **options: Any) -> str:
    """`json.dumps` of what is finite."""
    return json.dumps(finite(value), allow_nan=False, **options)
