"""What a run says: its progress, and JSON lines. Neither ever ends a run."""

import contextlib
import dataclasses
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from ..support import strict_json
from ..support.files import atomic_write
from ..support.say import progress, say
from .evaluate import Score

METRICS = "metrics.jsonl"


class Log:
    """The reports of one run; silent in all processes but the main one."""

    def __init__(self, folder: Path, main: bool, steps: int, start: int) -> None:
        self.path, self.main, self.steps, self.start = folder / METRICS, main, steps, start
        self.images, self.began = 0, time.perf_counter()
        self.latest = ""

    def __enter__(self) -> "Log":
        if not self.main:
            return self
        with contextlib.ExitStack() as stack:
            self.work = stack.enter_context(progress("training", self.steps, self.start))
            self._cut_back()
            self.lines = stack.enter_context(open(self.path, "a", encoding="utf-8"))
            self.stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.main:
            with contextlib.suppress(OSError):
                self.stack.close()

    def _cut_back(self) -> None:
        """Drop the lines of steps that a resumed run will make again, and what cannot be read."""
        if not self.path.exists():
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        steps = [step_of(line) for line in lines]
        kept = [line for line, step in zip(lines, steps, strict=True) if step is not None and step <= self.start]
        if kept != lines:
            with atomic_write(self.path) as file:
                file.writelines(kept)

    def step(self, step: int, images: int) -> None:
        self.images += images
        if self.main:
            self.work.update(step)

    def train(self, step: int, values: dict[str, float], lr: float) -> None:
        rate = self.images / (time.perf_counter() - self.began)
        self._write({"step": step, **values, "lr": lr, "images_per_s": round(rate, 1)})
        if self.main:
            self.work.update(step, f"{values['nats']:.1f} nats  {rate:,.0f} images/s  {self.latest}".rstrip())

    def score(self, step: int, score: Score) -> None:
        self._write({"step": step, score.split: dataclasses.asdict(score)})
        self.latest = f"{score.split} {score.nats:.1f}"
        nats = f"{score.nats:.2f} ± {score.nats_stderr:.2f} nats per image{score.in_bits}"
        self.say(f"step {step:,}: {score.split} {nats}")

    def nonfinite(self, step: int, text: str) -> None:
        self._write({"step": step, "skipped": text})
        self.say(f"skipped, not finite: {text}")

    def say(self, text: str) -> None:
        """Print a line, if there is anything to say."""
        if self.main and text:
            say(text)

    def _write(self, values: dict[str, Any]) -> None:
        if not self.main:
            return
        try:
            self.lines.write(strict_json.dumps(values) + "\n")
            self.lines.flush()
        except OSError as error:
            self.say(f"{self.path}: a line could not be written ({error})")


def latest(path: Path) -> dict[str, Any] | None:
    """The last line of a training score in a run's metrics; None where there is none."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    rows = (strict_json.loads(line) for line in reversed(lines) if step_of(line) is not None)
    return next((row for row in rows if isinstance(row.get("nats"), int | float)), None)


def step_of(line: bytes) -> int | None:
    """The step of a line; None where it cannot be read."""
    try:
        step = strict_json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if type(step) is int else None
