"""What a run says: its progress, and JSON lines. Neither ever ends a run."""

import contextlib
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from . import plain
from .evaluate import Score
from .support.files import atomic_write
from .support.say import progress, say

METRICS = "metrics.jsonl"
LINE = 2**20
"""Bytes that are read at once: thousands of lines."""


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
        """Drop the lines of steps that a resumed run will make again; put aside what cannot be read."""
        if not self.path.exists():
            return
        if not self.path.is_file():  # a pipe would be waited for
            raise ValueError(f"{self.path}: expected a file, for the run's reports; remove what is there")
        fates = Counter(map(self._fate, reports(self.path)))
        if fates["broken"]:
            aside = self.path.with_name("metrics.damaged")
            with open(aside, "ab") as file:
                file.writelines(line for line in reports(self.path) if self._fate(line) == "broken")
            self.say(f"{self.path}: {fates['broken']} lines cannot be read; they are put aside, in {aside}")
        if fates.keys() - {"kept"}:
            with atomic_write(self.path) as new:
                new.writelines(line for line in reports(self.path) if self._fate(line) == "kept")

    def _fate(self, line: bytes) -> str:
        """What becomes of a line where a run goes on."""
        if not line.endswith(b"\n") and len(line) < LINE:
            return "cut short"  # by a crash
        step = step_of(line)
        return "broken" if step is None else "kept" if step <= self.start else "later"

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
        if self.main:
            say(text)

    def _write(self, values: dict[str, Any]) -> None:
        if not self.main:
            return
        try:
            self.lines.write(plain.dumps(values) + "\n")
            self.lines.flush()
        except OSError as error:
            self.say(f"{self.path}: a line could not be written ({error})")


def latest(path: Path) -> dict[str, Any] | None:
    """The last line of a training score in a run's metrics; None where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LINE))
            lines = file.read(LINE).splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if step_of(line) is not None:
            row: dict[str, Any] = plain.loads(line)
            if isinstance(row.get("nats"), int | float):
                return row
    return None


def reports(path: Path) -> Iterator[bytes]:
    """The lines of a run's metrics, one after another; those of more than LINE bytes in pieces."""
    with path.open("rb") as file:
        while line := file.readline(LINE):
            yield line


def step_of(line: bytes) -> int | None:
    """The step of a line; None where it cannot be read."""
    try:
        step = plain.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if type(step) is int else None
