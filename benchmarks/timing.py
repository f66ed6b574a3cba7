"""Timing on a machine that has other things to do: contenders take turns, and ratios are taken within a round."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Work = Callable[[], object]
Measure = Callable[[Work, int], float]
"""Seconds that so many calls in a row take."""


def wall(work: Work, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - began


def cuda_events(work: Work, calls: int) -> float:
    """Seconds between two marks in the GPU's own queue: what it computes, and what it waits for the host."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def take_turns(
    contenders: dict[str, Work],
    measure: Measure,
    budget: float,
    least: int = 5,
    most: int = 200,
    shortest: float = 1e-3,
) -> dict[str, list[float]]:
    """Seconds a call of each contender in each round: a, b, c, a, b, c, …

    Rounds go on until `budget` seconds are spent, but for at least `least` and at most `most`. A contender that
    takes less than `shortest` is called several times in its turn. Warm-ups come first and count for nothing.
    """
    calls = {name: warm_up(work, measure, shortest) for name, work in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    spent, rounds = 0.0, 0
    while rounds < least or (spent < budget and rounds < most):
        for name, work in contenders.items():
            seconds = measure(work, calls[name])
            times[name].append(seconds / calls[name])
            spent += seconds
        rounds += 1
    return times


def warm_up(work: Work, measure: Measure, shortest: float) -> int:
    """Call twice, the first time for compilers and caches; then say how many calls last for `shortest` seconds."""
    measure(work, 1)
    return max(1, round(shortest / max(measure(work, 1), 1e-7)))


def compare(times: dict[str, list[float]], baselines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Medians and quartiles of the times, and of how many times faster each is than the baselines of its round."""
    found: dict[str, dict[str, Any]] = {}
    for name, seconds in times.items():
        others = [base for base in baselines if base in times and base != name]
        faster = {base: spread("ratio", np.divide(times[base], seconds)) for base in others}
        found[name] = {**spread("seconds", seconds), "rounds": len(seconds), "faster_than": faster}
    return found


def spread(name: str, values: Sequence[float] | np.ndarray[Any, np.dtype[Any]]) -> dict[str, Any]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {name: middle, "quartiles": [low, high]}


def exponent(x: Sequence[float], seconds: Sequence[float]) -> float | None:
    """The a of seconds ~ x^a by least squares over the upper half of the sweep, where constant costs are small."""
    upper = slice(len(x) // 2, None)
    if len(x[upper]) < 2:
        return None
    return float(np.polyfit(np.log(x[upper]), np.log(seconds[upper]), 1)[0])
