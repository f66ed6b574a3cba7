"""One look for every progress bar: on the error stream, and only where somebody can see it."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def bar(description: str, total: int | None, done: int = 0, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs; call what it gives with the amount just done. unit="bytes" shows MB."""
    console = Console(stderr=True)
    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=total, completed=done)
        yield lambda step: progress.advance(task, step)
