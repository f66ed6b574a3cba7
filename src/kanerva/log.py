"""What a run says: a progress bar, JSON lines, and TensorBoard where it is installed."""

import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .evaluate import Score
from .files import atomic_write
from .objective import NAMES


class Log:
    """The reports of one run; silent in all processes but the main one."""

    def __init__(self, folder: Path, main: bool, steps: int, start: int) -> None:
        self.folder, self.main, self.steps, self.start = folder, main, steps, start
        self.images, self.began = 0, time.perf_counter()
        self.latest = ""

    def __enter__(self) -> "Log":
        if not self.main:
            return self
        self._cut_back()
        self.lines = open(self.folder / "metrics.jsonl", "a")
        self.board = board(self.folder, self.start)
        console = Console(stderr=True)
        columns = (
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(compact=True),
        )
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self.bar.start()
        self.task = self.bar.add_task("", total=self.steps, completed=self.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.main:
            self.bar.stop()
            self.lines.close()
            if self.board is not None:
                self.board.close()

    def _cut_back(self) -> None:
        """Drop the lines of steps that a resumed run will make again."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if step_of(line) <= self.start]
        if kept != lines:
            with atomic_write(path) as file:
                file.write("".join(line + "\n" for line in kept).encode())

    def step(self, step: int, images: int) -> None:
        self.images += images
        if self.main:
            self.bar.update(self.task, completed=step)

    def train(self, step: int, values: dict[str, float], lr: float) -> None:
        rate = self.images / (time.perf_counter() - self.began)
        self._write({"step": step, **values, "lr": lr, "images_per_s": round(rate, 1)})
        self._board("train", step, {**values, "lr": lr, "images_per_s": rate})
        if self.main:
            text = f"{values['nats']:.1f} nats  {rate:,.0f} images/s  {self.latest}"
            self.bar.update(self.task, description=text)
            if self.bar.disable:
                self._print(f"step {step:,} of {self.steps:,}: {text}")

    def test(self, step: int, score: Score) -> None:
        self._write({"step": step, "test": dataclasses.asdict(score)})
        found = {name: getattr(score, name) for name in NAMES}
        self._board("test", step, {name: value for name, value in found.items() if value is not None})
        self.latest = f"test {score.nats:.1f}"
        self.say(f"step {step:,}: test {score.nats:.2f} ± {score.nats_stderr:.2f} nats per image")

    def nonfinite(self, step: int, text: str) -> None:
        self._write({"step": step, "skipped": text})
        self.say(f"skipped, not finite: {text}")

    def say(self, text: str) -> None:
        if self.main:
            self.bar.console.print(text) if not self.bar.disable else self._print(text)

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _write(self, values: dict[str, Any]) -> None:
        if self.main:
            # JSON has no NaN
            plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
            self.lines.write(json.dumps(plain) + "\n")
            self.lines.flush()

    def _board(self, group: str, step: int, values: dict[str, float]) -> None:
        if self.main and self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(f"{group}/{name}", value, step)


def step_of(line: str) -> int:
    """The step of a line; one that was cut short by a crash counts as past the end."""
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return sys.maxsize


def board(folder: Path, start: int) -> Any:
    """A TensorBoard writer, or None where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
