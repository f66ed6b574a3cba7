"""Tables of numbers, for the terminal and for reports alike, and how their cells are written for people."""

import math
import sys
import textwrap
from itertools import zip_longest
from typing import Any, NamedTuple, TypeGuard

from ..support.say import printable

HEAD = 12
"""Characters that a head may have, if its cells have fewer, before it is wrapped."""


class Share(NamedTuple):
    """A share of 1, or a mean of shares with its standard error, to be shown in per cent."""

    value: Any


class Table(NamedTuple):
    """The numbers to know of one model's results."""

    head: list[str]
    rows: list[list[Any]]
    """A row's name, then its cells: values of JSON, means with their standard errors, or a Share of either."""

    def text(self) -> "Table":
        """The same table with its cells as people read them."""
        return Table(self.head, [[show(cell) for cell in row] for row in self.rows])

    def lines(self) -> str:
        """The table for a terminal: columns in line, and heads that are much wider than their cells wrapped."""
        rows = [[printable(cell) for cell in row] for row in self.text().rows]
        width = [max([HEAD, *map(len, cells)]) for cells in zip(*rows, strict=True)] or [HEAD] * len(self.head)
        heads = [textwrap.wrap(printable(head), room) for head, room in zip(self.head, width, strict=True)]
        top = [list(row) for row in zip_longest(*heads, fillvalue="")]
        width = [max(map(len, column)) for column in zip(*top, *rows, strict=True)]
        lines = ([name.ljust(width[0]), *map(str.rjust, cells, width[1:])] for name, *cells in [*top, *rows])
        return "\n".join("  ".join(line).rstrip() for line in lines)


def point(values: dict[str, Any], i: int) -> dict[str, float]:
    """One of many means with its standard error."""
    return {name: values[name][i] for name in ("mean", "stderr")}


def show(value: Any) -> str:
    """A cell of a table; a mean with its standard error where it has one."""
    if isinstance(value, Share):
        return percent(value.value)
    if isinstance(value, dict) and "mean" in value:
        return plus_minus(value["mean"], value.get("stderr"))
    if value is None or isinstance(value, bool):
        return "–" if value is None else "yes" if value else "no"
    if isinstance(value, int | float):
        return (f"{value:,}" if isinstance(value, int) else f"{value:.4g}").replace("-", "−")
    return ", ".join(map(show, value)) if isinstance(value, list) else str(value)


def plus_minus(mean: Any, error: Any) -> str:
    """54.48 ± 0.43: the error with two digits, the mean with as many places; a dash if the mean is not finite.

    An error of less than half of the sixth place is a rounding error, and left out.
    """
    if not is_number(mean) or not is_number(error) or error < 5e-7:
        return show(mean if is_number(mean) else None)
    places = min(max(1 - math.floor(math.log10(error)), 0), 6)
    return f"{mean:,.{places}f} ± {error:,.{places}f}".replace("-", "−")


def percent(value: Any) -> str:
    """A share, or a mean of shares, in per cent; a dash where there is none."""
    mean, error = (value["mean"], value["stderr"]) if isinstance(value, dict) else (value, None)
    if not is_number(mean):
        return show(None)
    return f"{plus_minus(100 * mean, 100 * error if is_number(error) else None)} %"


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number; a whole one too large for a float is none, as infinity is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # which NaN is not
