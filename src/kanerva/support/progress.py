"""Progress on the error stream: a bar on a terminal, elsewhere a line every few seconds."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TextIO, cast

from rich import progress as rich
from rich.console import Console

from .say import ERRORS, printable, say

FIRST, EVERY = 2.0, 5.0
"""Seconds before the first line, and at least between two."""


class Progress:
    """The progress of one piece of work: a bar on a terminal; else lines, also while it has nothing to report."""

    def __init__(self, description: str, total: int | None, done: int = 0, unit: str = "") -> None:
        self.description, self.total, self.done, self.unit = printable(description), total, done, unit
        self.detail = ""
        """What to say beside the amount."""
        self.began = time.monotonic()
        self.due = self.began + FIRST
        self.bar: rich.Progress | None = None
        self.over = threading.Event()

    def __enter__(self) -> "Progress":
        console = Console(file=cast(TextIO, ERRORS))
        if console.is_terminal:
            amount = rich.DownloadColumn() if self.unit == "bytes" else rich.MofNCompleteColumn()
            text, left = rich.TextColumn("{task.description}", markup=False), rich.TimeRemainingColumn(compact=True)
            columns = (rich.BarColumn(20), amount, text, rich.TimeElapsedColumn(), left)
            self.bar = rich.Progress(*columns, console=console)
            self.task = self.bar.add_task(self.description, total=self.total, completed=self.done)
            self.bar.start()
        else:
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
        else:
            self.over.set()
            self.thread.join()

    def update(self, done: int, detail: str = "") -> None:
        self.done, self.detail = done, detail or self.detail
        if self.bar is not None:
            said = f"{self.description}  {self.detail}".rstrip()
            self.bar.update(self.task, completed=done, description=said)

    def say(self, text: str) -> None:
        """Print a line."""
        if self.bar is not None:
            self.bar.console.print(printable(text, lines=True), markup=False, emoji=False, highlight=False)
        else:
            self.due = time.monotonic() + EVERY
            say(text)

    def line(self) -> str:
        """What there is to say now."""
        scale, name = (1e6, " MB") if self.unit == "bytes" else (1, "")
        amount = "" if self.total is None else f"{self.done / scale:,.0f} of {self.total / scale:,.0f}{name}"
        parts = (amount, f"{time.monotonic() - self.began:.0f} s", self.detail)
        return f"{self.description}: {', '.join(filter(None, parts))}"

    def _run(self) -> None:
        while not self.over.wait(max(0.0, self.due - time.monotonic())):
            if time.monotonic() >= self.due:
                self.say(self.line())


_shown: list[Progress] = []


@contextlib.contextmanager
def show(description: str, total: int | None, done: int = 0, unit: str = "") -> Iterator[Progress]:
    """Show the progress of the work in the block, unless it is part of other work whose progress is shown."""
    work = Progress(description, total, done, unit)
    if _shown:
        yield work
        return
    _shown.append(work)
    try:
        with work:
            yield work
    finally:
        _shown.clear()


@contextlib.contextmanager
def bar(description: str, total: int | None, done: int = 0, unit: str = "") -> Iterator[Callable[[int], None]]:
    """`show`, for work that is counted: call what it gives with the amount just done. unit="bytes" shows MB."""
    with show(description, total, done, unit) as work:
        yield lambda amount: work.update(work.done + amount)
