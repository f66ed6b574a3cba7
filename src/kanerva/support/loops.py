"""Python loops as machine code: Numba, compiled on first use and kept."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any], fast: Iterable[str] = ()) -> Any:
    """Compile on first use, and keep the machine code beside the file.

    fast: the liberties that LLVM may take with floating point ("reassoc", "contract", …); without any, each
    operation rounds as it is written, and results are the same on every machine.
    """
    plain = inspect.unwrap(function)  # the tests wrap every function in a check of shapes, which is not for Numba
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(fast)}
    try:
        return njit(cache=True, **options)(plain)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return njit(**options)(plain)
