"""Lines and progress on the output and error streams: work never ends because nobody reads them, or cannot show ±.

What goes out may have come from somebody else's file: none of it is obeyed by a terminal. Progress is one line that
changes on a terminal, elsewhere a line every few seconds.
"""

import codecs
import contextlib
import difflib
import io
import os
import re
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

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


def nearest(word: object, words: Iterable[str]) -> str:
    """Say which of the words was probably meant, if one is close."""
    found = difflib.get_close_matches(str(word), list(words), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found and found[0] != str(word) else ""


def show(text: str) -> None:
    """Print what may have come from a file; parts of it that must not begin a line go through `printable` first."""
    print(printable(text, lines=True))


def prepare() -> None:
    """Make the streams take any character; one that was closed from the start goes nowhere. A warning is a line."""
    warnings.formatwarning = lambda message, *_, **__: f"{_above()}warning: {printable(str(message))}\n"
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


FIRST, EVERY, REDRAW = 2.0, 5.0, 0.2
"""Seconds before the first line of progress, at least between two, and between two states of it on a terminal."""
_LOCK = threading.Lock()
_shown: "list[Progress]" = []


def say(text: str) -> None:
    """Print a line on the error stream, if anybody reads it; above the progress that a terminal shows."""
    with _LOCK:
        _write(_above() + printable(text, lines=True) + "\n")


def _above() -> str:
    """What makes room for a line where progress is shown."""
    if not _shown:
        return ""
    _shown[0].due = time.monotonic() + EVERY
    return _shown[0].erased()


def _write(text: str) -> None:
    # a stream that is gone, was closed or never was raises one of these
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _terminal() -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return False


class Progress:
    """The progress of one piece of work, which is shown while it goes on, also where nothing is reported."""

    def __init__(self, description: str, total: int | None, done: int = 0) -> None:
        self.description, self.total, self.done = printable(description), total, done
        self.detail = ""
        """What to say beside the amount."""
        self.start, self.began = done, time.monotonic()
        self.due = self.began + FIRST
        self.width = 0
        """Columns of a terminal that the line takes."""
        self.over = threading.Event()

    def update(self, done: int, detail: str = "") -> None:
        self.done, self.detail = done, detail or self.detail

    def line(self) -> str:
        """What there is to say now."""
        amount = "" if self.total is None else f"{self.done:,} of {self.total:,}"
        spent, left = time.monotonic() - self.began, ""
        if self.total is not None and self.done > self.start and spent > EVERY:
            rest = spent * (self.total - self.done) / (self.done - self.start)
            left = f"{timedelta(seconds=round(rest))} left"
        return f"{self.description}: {', '.join(filter(None, (amount, f'{spent:.0f} s', left, self.detail)))}"

    def erased(self) -> str:
        """What clears the line from a terminal."""
        width, self.width = self.width, 0
        return "\r" + " " * width + "\r" if width else ""

    def run(self, terminal: bool) -> None:
        """Show it until it is over: one line that changes on a terminal, else lines."""
        while not self.over.wait(REDRAW if terminal else max(0.0, self.due - time.monotonic())):
            if terminal:
                with _LOCK:
                    text = self.line()[: shutil.get_terminal_size().columns - 1]
                    _write(self.erased() + text)
                    self.width = len(text)
            elif time.monotonic() >= self.due:
                say(self.line())


@contextlib.contextmanager
def progress(description: str, total: int | None, done: int = 0) -> Iterator[Progress]:
    """Show the progress of the work in the block, unless it is part of other work whose progress is shown."""
    work = Progress(description, total, done)
    if _shown:
        yield work
        return
    thread = threading.Thread(target=work.run, args=(_terminal(),), daemon=True)
    _shown.append(work)
    thread.start()
    try:
        yield work
    finally:
        work.over.set()
        thread.join()
        _write(work.erased())
        _shown.clear()


@contextlib.contextmanager
def bar(description: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """`progress`, for work that is counted: call what it gives with the amount just done."""
    with progress(description, total, done) as work:
        yield lambda amount: work.update(work.done + amount)
