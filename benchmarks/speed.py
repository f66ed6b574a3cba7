"""Measure how fast the memory is, each fast write against the reference: `make bench`, or with --help.

Parts, all on the CPU and, where there is one, on a GPU too:
  write     an episode into the memory, forward, and with the gradients of z, R, U and noise_var
  read      addressing with the inverse that a write leaves, against factoring anew
  layer     kanerva.nn.Memory, T vectors written and T cues read, with gradients, against a plain loop (a solve
            a step) and attention over the vectors; each as it stands and compiled, without and with a mask
  recall    attractor dynamics, against their encoder and decoder passes alone
  cues      recall of corrupted cues by the pretrained model's methods, and the nearest of all stored images
  train     whole training steps of the presets, on the built-in glyphs
  memory    what a write keeps for its gradient (CPU), or its high-water mark with the gradient (GPU)
  scaling   write and gradient along T, K, C and B, with the exponent a of seconds ~ x^a

Contenders of a row take turns and ratios are taken within a round, so that what else the machine does hits all of
them; times are medians with quartiles. "captured" is a replayed CUDA graph. Value checks are off, as in training.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import contenders
import kanerva
import report
from contenders import Case, captured
from kanerva import PRESETS, DataConfig, deep_checks
from kanerva.support.files import atomic_write
from kanerva.training.config import Word
from timing import Work, compare, cuda_events, exponent, take_turns, wall

Row = dict[str, Any]
Makers = dict[str, Callable[[], Work]]

USUAL = Case(32, 100, 32, 16)
"""The presets' sizes."""


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how many seconds a row."""

    write: tuple[Case, ...] = (
        USUAL,
        Case(32, 100, 200, 16),
        Case(64, 200, 32, 16),
        Case(64, 1024, 256, 4),
        Case(256, 1024, 256, 1),
    )
    write_gpu: tuple[Case, ...] = (Case(64, 256, 32, 16), Case(32, 100, 32, 1024), Case(32, 100, 1000, 64))
    """There also these."""
    memory: tuple[Case, ...] = (Case(32, 100, 1000, 64),)
    """Besides those of write."""
    read: tuple[Case, ...] = tuple(Case(K, C, 1024, B) for K, C in ((32, 100), (64, 1024)) for B in (1, 16))
    layer: tuple[Case, ...] = (USUAL, Case(32, 100, 200, 16), Case(64, 200, 32, 16))
    layer_gpu: tuple[Case, ...] = (Case(32, 100, 32, 1024),)
    """There also these."""
    compiler: bool = True
    recall: tuple[int, int] = (1024, 15)
    """Queries and steps."""
    cues: tuple[int, int, int] = (4, 32, 15)
    """Memories, cues of each, as many as there are images in it, and steps."""
    dataset: str = "glyphs"
    """What cues are of."""
    data_dir: str | None = None
    presets: tuple[str, ...] = ("demo",)
    presets_gpu: tuple[str, ...] = ("demo", "omniglot-paper", "omniglot")
    episodes: tuple[int, int] | None = None
    """Batch and length in training, in place of the preset's."""
    centre: Case = USUAL
    """Where the sweeps cross."""
    sweeps: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("T", (8, 16, 32, 64, 128, 256, 512)),
        ("K", (8, 16, 32, 64, 128, 256)),
        ("C", (32, 64, 128, 256, 512, 1024, 2048)),
        ("B", (1, 2, 4, 8, 16, 32, 64, 128)),
    )
    capture_reference: int = 32
    """Longest episode for which the reference is captured: its graph grows with T."""
    seconds: float = 5.0
    seconds_scaling: float = 0.5
    rounds: int = 5
    """At least."""


QUICK = Plan(
    write=(Case(4, 6, 5, 2), Case(6, 4, 5, 2)),
    write_gpu=(),
    memory=(),
    read=(Case(4, 6, 8, 1), Case(4, 6, 8, 2)),
    layer=(Case(4, 6, 5, 2),),
    layer_gpu=(),
    compiler=False,
    recall=(4, 2),
    cues=(1, 2, 2),
    presets_gpu=("demo",),
    episodes=(2, 4),
    centre=Case(4, 6, 4, 2),
    sweeps=tuple((axis, (2, 4, 8)) for axis in "TKCB"),
    seconds=0.02,
    seconds_scaling=0.01,
    rounds=3,
)

# Variants of a training step: words of TrainConfig.compute.
STEPS: dict[str, tuple[Word, ...]] = {
    "reference": ("reference", "uncaptured", "uncompiled", "float32"),
    "auto": ("uncaptured", "uncompiled", "float32"),
}
STEPS_GPU: dict[str, tuple[Word, ...]] = {
    **STEPS,
    "reference, captured": ("reference", "uncompiled", "float32"),
    "auto, captured": ("uncompiled", "float32"),
    "auto, captured, bf16": ("uncompiled", "bfloat16"),
    "auto, captured, compiled": ("compiled", "float32"),
    "auto, captured, compiled, bf16": ("compiled", "bfloat16"),
}


def bench_write(plan: Plan, device: torch.device) -> list[Row]:
    return [
        contest(plan, device, case, what, *writers(plan, device, case, gradient))
        for case in write_cases(plan, device)
        for what, gradient in (("forward", False), ("forward + backward", True))
    ]


def bench_read(plan: Plan, device: torch.device) -> list[Row]:
    rows: list[Row] = []
    for case in plan.read:
        ways = {"reference": False, "inverse": True}
        makers: Makers = {name: partial(contenders.read, case, device, way) for name, way in ways.items()}
        rows.append(contest(plan, device, case, "address", makers))
    return rows


def bench_layer(plan: Plan, device: torch.device) -> list[Row]:
    cases = plan.layer + (plan.layer_gpu if device.type == "cuda" else ())
    return [
        contest(plan, device, case, what, *layers(plan, device, case, masked), baselines=("loop", "attention"))
        for case in cases
        for what, masked in (("no mask", False), ("mask", True))
    ]


def layers(plan: Plan, device: torch.device, case: Case, masked: bool) -> tuple[Makers, dict[str, str]]:
    """The layer and its rivals as they stand, compiled, and on a GPU captured; and why some are not there."""
    torch.compiler.reset()  # else a function compiled for many sizes is no longer compiled at all
    makers: Makers = {}
    left_out: dict[str, str] = {}
    for name in contenders.LAYERS:
        makers[name] = partial(contenders.layer, case, device, name, masked, False)
        if device.type == "cuda" and name == "loop":
            # not tried: a capture that fails can leave the allocator as if one were under way, for all that follow
            left_out["loop, captured"] = "torch.linalg.solve waits for the GPU, which a CUDA graph cannot hold"
        elif device.type == "cuda":
            makers[f"{name}, captured"] = lambda make=makers[name]: captured(make())  # type: ignore[misc]
        if not plan.compiler:
            left_out[f"{name}, compiled"] = "not with --quick"
        else:
            makers[f"{name}, compiled"] = partial(contenders.layer, case, device, name, masked, True)
    return makers, left_out


def bench_recall(plan: Plan, device: torch.device) -> list[Row]:
    queries, steps = plan.recall
    model = contenders.dkm_config(PRESETS["demo"][1])
    ways = {"recall": False, "codec alone": True}
    makers: Makers = {name: partial(contenders.recall, queries, steps, device, way) for name, way in ways.items()}
    case = Case(model.rows, model.code, queries, 1)
    return [contest(plan, device, case, f"{steps} steps", makers, baselines=("recall",))]


def bench_cues(plan: Plan, device: torch.device) -> list[Row]:
    memories, cues, steps = plan.cues
    images, model = DataConfig(plan.dataset, plan.data_dir), contenders.pretrained(device)
    given = contenders.Cues.of(images, memories, cues, device)
    nearest = kanerva.create("nearest", image=model.config.image).to(device)
    ways: dict[str, Work] = {
        "descent": given.recall(model, steps, "descent"),
        "descent, inside=False": given.recall(model, steps, "descent", inside=False),
        "least-squares": given.recall(model, steps, "least-squares"),
        "nearest": given.recall(nearest, steps),
    }
    makers: Makers = {name: partial(lambda way: way, way) for name, way in ways.items()}
    case = Case(model.config.rows, model.config.code, cues, memories)
    row = contest(plan, device, case, plan.dataset, makers, baselines=())
    for name, result in row["contenders"].items():
        passed = contenders.evaluations(model, ways[name])
        result["seconds_a_cue"] = result["seconds"] / (memories * cues)
        result["evaluations_a_cue"] = {part: rows / (memories * cues) for part, rows in passed.items()}
    return [row]


def bench_train(plan: Plan, device: torch.device) -> list[Row]:
    gpu = device.type == "cuda"
    return [
        bench_preset(plan, device, name, STEPS_GPU if gpu else STEPS)
        for name in (plan.presets_gpu if gpu else plan.presets)
    ]


def bench_preset(plan: Plan, device: torch.device, name: str, variants: dict[str, tuple[Word, ...]]) -> Row:
    config = PRESETS[name][1]
    batch, length = plan.episodes or (config.train.batch, config.train.lengths[0])
    makers: Makers = {}
    for variant, words in variants.items():
        train = dataclasses.replace(config.train, batch=batch, lengths=(length,), compute=words)
        run = dataclasses.replace(config, data=DataConfig("glyphs"), train=train)
        makers[variant] = partial(contenders.training_step, run, device)
    model = contenders.dkm_config(config)
    case = Case(model.rows, model.code, length, batch)
    # in training a GPU never waits for the next step to be launched, so its steps are timed in a row
    return contest(plan, device, case, name, makers, shortest=0.3 if device.type == "cuda" else 1e-3)


def bench_memory(plan: Plan, device: torch.device) -> list[Row]:
    gpu = device.type == "cuda"
    count = contenders.peak_bytes if gpu else contenders.kept_bytes
    rows: list[Row] = []
    for case in dict.fromkeys(write_cases(plan, device) + plan.memory):
        backends, left_out = contenders.usable(case, device)
        used: dict[str, int] = {}
        for backend in backends:
            with attempt(backend, left_out):
                used[backend] = count(case, device, backend)
            clean(device)
        what = "high-water mark" if gpu else "kept for backward"
        rows.append(about(device, case, what) | {"bytes": used, "left_out": left_out})
    return rows


def bench_scaling(plan: Plan, device: torch.device) -> list[Row]:
    rows: list[Row] = []
    for axis, values in plan.sweeps:
        points: dict[str, list[tuple[int, Row]]] = {}
        for x in values:
            case = plan.centre._replace(**{axis: x})
            makers, left_out = writers(plan, device, case, gradient=True)
            row = contest(plan, device, case, axis, makers, left_out, seconds=plan.seconds_scaling)
            for name, result in row["contenders"].items():
                points.setdefault(name, []).append((x, result))
        rows += [sweep(plan, device, axis, name, found) for name, found in points.items()]
    return rows


def sweep(plan: Plan, device: torch.device, axis: str, name: str, points: list[tuple[int, Row]]) -> Row:
    x, seconds = [x for x, _ in points], [result["seconds"] for _, result in points]
    quartiles = [result["quartiles"] for _, result in points]
    row = about(device, plan.centre, axis) | {"contender": name, "x": x, "seconds": seconds, "quartiles": quartiles}
    return row | {"exponent": exponent(x, seconds)}


PARTS: dict[str, Callable[[Plan, torch.device], list[Row]]] = {
    "write": bench_write,
    "read": bench_read,
    "layer": bench_layer,
    "recall": bench_recall,
    "cues": bench_cues,
    "train": bench_train,
    "memory": bench_memory,
    "scaling": bench_scaling,
}


def write_cases(plan: Plan, device: torch.device) -> tuple[Case, ...]:
    return plan.write + (plan.write_gpu if device.type == "cuda" else ())


def writers(plan: Plan, device: torch.device, case: Case, gradient: bool) -> tuple[Makers, dict[str, str]]:
    """The ways to write, on a GPU each also captured; and why the others cannot be used."""
    backends, left_out = contenders.usable(case, device)
    makers: Makers = {b: partial(contenders.write, case, device, b, gradient) for b in backends}
    if device.type == "cuda":
        for backend, make in list(makers.items()):
            short = plan.capture_reference >= case.T
            if short or backend != "reference":
                makers[f"{backend}, captured"] = lambda make=make: captured(make())  # type: ignore[misc]
    return makers, left_out


def contest(
    plan: Plan,
    device: torch.device,
    case: Case,
    what: str,
    makers: Makers,
    left_out: dict[str, str] | None = None,
    baselines: tuple[str, ...] = ("reference", "reference, captured"),
    seconds: float | None = None,
    shortest: float = 1e-3,
) -> Row:
    """One row: make the contenders and time them in turns. One that fails is left out, with the reason."""
    ready: dict[str, Work] = {}
    left_out = dict(left_out or {})
    for name, make in makers.items():
        with attempt(name, left_out):
            work = make()
            work()
            ready[name] = work
    measure = cuda_events if device.type == "cuda" else wall
    budget = plan.seconds if seconds is None else seconds
    times = take_turns(ready, measure, budget, plan.rounds, shortest=shortest) if ready else {}
    ready.clear()
    clean(device)
    return about(device, case, what) | {"contenders": compare(times, baselines), "left_out": left_out}


def about(device: torch.device, case: Case, what: str) -> Row:
    return {"device": device.type, "case": case._asdict(), "what": what}


@contextlib.contextmanager
def attempt(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """Go on without a contender that runs out of memory, cannot be captured, or finds no compiler."""
    try:
        yield
    except RuntimeError as error:
        left_out[name] = (str(error).splitlines() or [type(error).__name__])[0]


def clean(device: torch.device) -> None:
    """Give back what the last contenders held, CUDA graphs above all."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def circumstances(plan: Plan, arguments: list[str], devices: list[torch.device]) -> dict[str, Any]:
    """All that the numbers depend on; no names of hosts or files."""
    gpu = torch.cuda.get_device_name() if any(d.type == "cuda" for d in devices) else None
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", "benchmarks/speed.py", *arguments]),
        "config": dataclasses.asdict(plan) | {"data_dir": None, "value_checks": False, "dtype": "float32"},
        "versions": {
            "kanerva": kanerva.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "cuda": torch.version.cuda,
        },
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": gpu,
            "float32_matmul": torch.get_float32_matmul_precision(),
        },
    }


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def run(
    plan: Plan, parts: list[str], devices: list[torch.device], results: dict[str, Any], done: Callable[[str], None]
) -> None:
    """Fill results["parts"]; `done` hears of every part that is finished."""
    results["parts"] = {}
    with deep_checks(False):
        for part in parts:
            results["parts"][part] = [row for device in devices for row in PARTS[part](plan, device)]
            done(part)


def save(path: Path, results: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(results, indent=1) + "\n").encode())


def main(arguments: list[str] | None = None) -> None:
    names = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them; else all")
    parser.add_argument("--device", default=",".join(names), help="cpu, cuda or both; else all there are")
    parser.add_argument(
        "--threads", type=int, help="CPU threads; fewer than cores where others work too; else torch's"
    )
    parser.add_argument("--data-dir", help="where the files of omniglot are, for cues of it; else of glyphs")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file, after every part")
    parser.add_argument("--plot", action="store_true", help="draw them, as PNG and SVG beside the file of --out")
    args = parser.parse_args(arguments)
    parts, devices = args.only.split(","), [torch.device(name) for name in args.device.split(",")]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only: expected some of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if args.plot and not args.out:
        parser.error("--plot: the figures go beside the file of --out, and there is none")
    plan = QUICK if args.quick else Plan()
    given = ["--quick"] * args.quick + ["--only", args.only, "--device", args.device]
    if args.threads:
        torch.set_num_threads(args.threads)
        given += ["--threads", str(args.threads)]
    if args.data_dir:
        plan = dataclasses.replace(plan, dataset="omniglot", data_dir=args.data_dir)
        given += ["--data-dir", "DIR"]
    results, began = circumstances(plan, given, devices), time.perf_counter()
    console = Console(width=None if sys.stdout.isatty() else 116)

    def done(part: str) -> None:
        console.print(report.table(part, results["parts"][part]))
        results["seconds"] = round(time.perf_counter() - began)
        if args.out:
            save(args.out, results)

    run(plan, parts, devices, results, done)
    if args.plot:
        report.draw(results, args.out)
    console.print(f"torch {torch.__version__}, {results['seconds']} s")


if __name__ == "__main__":
    main()
