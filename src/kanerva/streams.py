"""The output and error streams: work never ends because nobody listens, or cannot read ±."""

import codecs
import contextlib
import io
import os
import sys
from typing import Any

PLAIN = dict(zip("±−–×…│─╭╮╰╯", ("+-", "-", "-", "x", "...", "|", "-", "+", "+", "+", "+"), strict=True))


def replace(error: UnicodeError) -> tuple[str, int]:
    """Plain characters for those that a stream cannot encode."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


codecs.register_error("kanerva", replace)


def prepare() -> None:
    """Make the streams take any character; one that was closed from the start goes nowhere."""
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
    ERRORS.write(text + "\n")
    ERRORS.flush()
