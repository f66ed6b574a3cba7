"""How flags are read: tyro knows them, and what it refuses is said in one line, as every other error is."""

import contextlib
import io
import itertools
import re
from typing import Any

import tyro


def parsed(kind: Any, prog: str, arguments: list[str], all_flags: str = "--help", **more: Any) -> Any:
    """What tyro makes of the arguments; where it refuses them, an error that says why and where all flags are."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, prog=prog, args=arguments, **more)
    except SystemExit as end:
        if not end.code:
            raise
    raise ValueError(f"{refusal(said.getvalue())}; {prog} {all_flags} lists all flags")


def refusal(box: str) -> str:
    """The sentence in the box that tyro draws, and the flag that it proposes."""
    _, *rows = (re.sub("[│╭╮╰╯]|[─-]{5,}", " ", row).strip() for row in box.splitlines())  # the first is a title
    why = " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda row: not row, rows)))
    why = re.sub(r"^Error parsing ((config|kanerva)[\w.]+: )?", "", why)
    meant = re.search(r"Perhaps you meant:?\s+(--[\w-]+)", "\n".join(rows))
    return why + (f"; did you mean {meant[1]}?" if meant else "")
