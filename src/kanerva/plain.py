"""JSON that any program can read: it has no NaN and no infinity."""

import json
import math
from typing import Any


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
