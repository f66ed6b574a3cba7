"""The output and error streams: work never ends because nobody listens, or cannot read ±.

What goes out may have come from somebody else's file: none of it is obeyed by a terminal.
"""

import codecs
import contextlib
import io
import os
import re
import sys
import warnings
from typing import Any

PLAIN = dict(zip("±−–×…│─╭╮╰╯", ("+-", "-", "-", "x", "...", "|", "-", "+", "+", "+", "+"), strict=True))


def replace(error: UnicodeError) -> tuple[str, int]:
    """Plain characters for those that a stream cannot encode."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


codecs.register_error("kanerva", replace)


# What a terminal obeys and does not show, and what begins another line or turns the direction of one.
OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str, lines: bool = False) -> str:
    """Text with escapes in place of what a terminal would obey, and so on one line; with `lines`, on as many."""

    def escaped(found: re.Match[str]) -> str:
        return "\n" if lines and found[0] == "\n" else found[0].encode("unicode_escape").decode()

    return OBEYED.sub(escaped, text)


def show(text: str) -> None:
    """Print what may have come from a file; parts of it that must not begin a line go through `printable` first."""
    print(printable(text, lines=True))


def prepare() -> None:
    """Make the streams take any character; one that was closed from the start goes nowhere. A warning is a line."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(str(message))}\n"
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # also fills the free file number, so that no checkpoint gets it and what C code says on the stream
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (it stays open)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="kanerva")


def end_output() -> None:
    """Print what is still to be printed; what cannot be is let go, or Python would try again, and complain."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


LOST = (OSError, ValueError, AttributeError)
"""What a stream raises that is gone, was closed, or never was."""


class ErrorStream(io.TextIOBase):
    """`sys.stderr`, whichever it is at the time. Writing to it raises nothing, closed or not."""

    @property
    def stream(self) -> Any:
        # while a bar is shown, sys.stderr is a proxy that prints above it
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)

    def write(self, text: str) -> int:
        with contextlib.suppress(*LOST):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(*LOST):
            self.stream.flush()

    def isatty(self) -> bool:
        with contextlib.suppress(*LOST):
            return bool(self.stream.isatty())
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self.stream, "encoding", None) or "utf-8"


ERRORS = ErrorStream()


def say(text: str) -> None:
    """Print a line on the error stream, if anybody listens."""
    ERRORS.write(printable(text, lines=True) + "\n")
    ERRORS.flush()
