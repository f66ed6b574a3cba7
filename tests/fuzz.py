"""Damage files at random and see that it is noticed: `make fuzz` (two minutes; MINUTES=30 for more).

A case damages a copy of a file that the package reads, and reads it. What comes must be exactly what was saved, or
an error on one line, of a kind that the command line shows, that names the file; in little time and memory.
The rest of the time goes to new cases of the property tests. `--seed S --only NAME --case N` repeats one case.
"""

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import os
import platform
import random
import re
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import records
import torch
from PIL import Image

import kanerva
from kanerva.app import report
from kanerva.data import omniglot
from kanerva.models import checkpoint
from kanerva.support import files
from kanerva.support import tensors as storage
from kanerva.training.loop import new_run
from kanerva.training.processes import World
from kanerva.training.run import Run
from small import tiny

ROOT = Path(__file__).parents[1]
CLEAN = (ValueError, TypeError, OSError, RuntimeError)  # what the command line turns into one line
SECONDS, MEGABYTES = 10, 300  # that one case may take; an undamaged one takes less than one, and less than 10

# What JSON can hold where a number or a word was.
NUMBERS = ("0", "1", "3", "-1", "440", "0.5", "1e30", "1e400", "-1e400", "1" + "0" * 30, "100000000", "9" * 5000)
ODD = (*NUMBERS, "true", "null", "NaN", "[]", "{}", "[1,[2]]", '"x"', '""', '"\\ud800"', "[" * 2000)


class Slow(BaseException):
    """A case that takes too long; no Exception, so that nothing on the way catches it."""


class Target(NamedTuple):
    """A file that is read, or several of one folder."""

    make: Callable[[Path], None]
    """Put the whole files into a folder."""
    read: Callable[[Path], Any]
    """Read what is in that folder."""
    damage: Callable[[Path, random.Random], None]
    """Change something in that folder."""
    same: Callable[[Any, Any], bool] = lambda came, saved: True
    """Compare what came with what was saved, for files that have a checksum."""
    share: int = 1
    """Of the time."""


# Ways to damage bytes


def bytes_of(data: bytes, draw: random.Random) -> bytes:
    """Damage anything: bits, bytes, stretches that are lost, doubled or moved, and the end."""
    i, j = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    stretch = data[i : min(j, i + draw.choice((1, 8, 1000)))]
    rest = data[i + len(stretch) :]
    some = bytes(draw.randrange(256) for _ in range(draw.choice((1, 4, 100))))
    flipped = bytes([data[i] ^ 1 << draw.randrange(8)]) if i < len(data) else b""
    ways = (
        data[:i] + flipped + data[i + 1 :],
        data[:i] + some + data[i + len(some) :],
        data[:i] + some + data[i:],
        data[:i] + rest,
        data[:i] + stretch + stretch + rest,
        data[:i] + bytes(len(stretch)) + rest,
        data[:i],
    )
    return draw.choice((*ways, ways[0], ways[0]))


def text_of(data: bytes, draw: random.Random) -> bytes:
    """Damage JSON: another value in the place of one."""
    found = list(re.finditer(rb'-?\d[\d.eE+-]*|true|false|null|\\?"[^"\\]*\\?"', data))
    if not found:
        return bytes_of(data, draw)
    at = draw.choice(found)
    return data[: at.start()] + draw.choice(ODD).encode() + data[at.end() :]


def header_of(data: bytes, draw: random.Random) -> bytes:
    """Damage the header of a safetensors file, and keep its length right."""
    size = 8 + int.from_bytes(data[:8], "little")
    header = draw.choice((bytes_of, text_of))(data[8:size], draw)
    return len(header).to_bytes(8, "little") + header + data[size:]


def change(*ways: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, random.Random], None]:
    """Damage one of the files below a folder in one of these ways."""

    def damage(folder: Path, draw: random.Random) -> None:
        path = draw.choice(sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")))
        path.write_bytes(draw.choice(ways)(path.read_bytes(), draw))

    return damage


# Checkpoints


def new(folder: Path) -> Run:
    """A run on tiny images, before its first step."""
    return new_run(config_in(folder), World(0, 1, torch.device("cpu")))


@functools.cache
def config_in(folder: Path) -> kanerva.RunConfig:
    """The config of a run whose images lie in a folder."""
    config = tiny(folder, average=0.9)
    return dataclasses.replace(config, model=fit(config.model, config.data.load()[0]))


def put_run(folder: Path) -> None:
    """A run that has ended: checkpoint, config and metrics. Its images lie beside it, and stay whole."""
    kanerva.train(config_in(folder.parent), folder)
    (folder / "best.safetensors").unlink()


def put_checkpoint(folder: Path) -> None:
    put_run(folder)
    for name in ("config.json", "metrics.jsonl", ".lock"):
        (folder / name).unlink()


def read_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """All that is in the file, once a model was built of it."""
    found = checkpoint.read(folder / checkpoint.LAST)
    found.model()
    return found.tensors, found.about


def read_state(folder: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """A run that goes on from a checkpoint, saved again."""
    run = new(folder.parent)
    run.restore(folder / checkpoint.LAST)
    run.save(folder.parent / "again.safetensors")
    tensors, about = storage.load(folder.parent / "again.safetensors")
    return tensors, {key: about[key] for key in ("step", "best")}


def same_tensors(a: tuple[dict[str, torch.Tensor], Any], b: tuple[dict[str, torch.Tensor], Any]) -> bool:
    (x, about_x), (y, about_y) = a, b
    equal = set(x) == set(y) and all(x[n].dtype == y[n].dtype and torch.equal(x[n], y[n]) for n in x)
    return equal and about_x == about_y


def describe_otherwise(folder: Path, draw: random.Random) -> None:
    """Another description with a checksum that is right: somebody wrote it so."""
    tensors, about = storage.load(folder / checkpoint.LAST)
    with contextlib.suppress(ValueError, RecursionError):
        about = json.loads(text_of(json.dumps(about).encode(), draw))
    if isinstance(about, dict):
        with contextlib.suppress(ValueError):  # NaN cannot be written
            storage.save(folder / checkpoint.LAST, tensors, about)


def read_run(folder: Path) -> None:
    """Resume a run that is at its end, and report on it."""
    kanerva.train(config_in(folder.parent), folder, resume=True)
    report.write(folder)


# Images


def put_images(folder: Path) -> None:
    for number, kind in enumerate(("png", "jpg", "gif", "bmp", "tiff", "webp", "pgm")):
        pixels = np.random.default_rng(number).integers(0, 256, (9, 7), np.uint8)
        (folder / kind).mkdir()
        for i in range(2):
            Image.fromarray(pixels + i).save(folder / kind / f"{i}.{kind}")
        if kind in ("png", "gif", "webp"):
            frames = [Image.fromarray(pixels + i) for i in range(3)]
            frames[0].save(folder / kind / f"moving.{kind}", save_all=True, append_images=frames[1:])


def put_arrays(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 5, 6), np.uint8)
    np.savez_compressed(folder / "a.npz", images=pixels, labels=np.arange(12) // 2)


def put_array(folder: Path) -> None:
    np.save(folder / "a.npy", np.random.default_rng(0).integers(0, 256, (12, 5, 6), np.uint8))


def put_videos(folder: Path) -> None:
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (4, 5, 6, 3), np.uint8)
        np.savez_compressed(folder / f"{number}.npz", video=pixels, actions=np.arange(4))


def put_records(folder: Path) -> None:
    for split in ("train", "test"):
        examples = []
        for number in range(3):
            out = io.BytesIO()
            Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)).save(out, "JPEG")
            examples.append(records.example(image=out.getvalue(), label=number))
        records.write(folder / f"x-{split}.tfrecord-00000-of-00001", *examples)


def read_images(folder: Path) -> tuple[torch.Tensor, ...]:
    array = next(folder.glob("a.np*"), folder)
    both = [kanerva.data.load(array, split) for split in ("train", "test")]
    return tuple(x for images in both for x in (images.pixels, images.start, images.count))


def put_cache(folder: Path) -> None:
    with cache(folder):
        files.cached("x.npz", lambda: {"x": np.arange(500)}, lambda arrays: "x" in arrays)


def read_cache(folder: Path) -> tuple[torch.Tensor, ...]:
    """A damaged file of the cache is made again, so what comes is always the same."""
    with cache(folder):
        return (
            torch.tensor(files.cached("x.npz", lambda: {"x": np.arange(500)}, lambda arrays: "x" in arrays)["x"]),
        )


@contextlib.contextmanager
def cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("KANERVA_CACHE")
    os.environ["KANERVA_CACHE"] = str(folder)
    try:
        yield
    finally:
        del os.environ["KANERVA_CACHE"]
        if before is not None:
            os.environ["KANERVA_CACHE"] = before


def put_zips(folder: Path) -> None:
    """A small omniglot: five characters by two drawers."""
    for part, numbers in {"images_background": (1, 2, 3), "images_evaluation": (4, 5)}.items():
        with zipfile.ZipFile(folder / f"{part}.zip", "w", zipfile.ZIP_DEFLATED) as file:
            for c, d in ((c, d) for c in numbers for d in (1, 2)):
                out, paper = io.BytesIO(), np.full((105, 105), True)
                paper[10 : 30 + 10 * c, 20 : 40 + 5 * d] = False
                Image.fromarray(paper).save(out, "PNG")
                file.writestr(f"{part}/{c:04d}_{d:02d}.png", out.getvalue())


def read_zips(folder: Path) -> tuple[torch.Tensor, ...]:
    parts = {"images_background": 3, "images_evaluation": 2}
    omniglot.PARTS, omniglot.CLASSES, omniglot.DRAWERS = parts, 5, 2
    return (torch.from_numpy(omniglot.prepare([folder / f"{part}.zip" for part in parts])),)


def same_images(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


TARGETS = {
    "checkpoint": Target(put_checkpoint, read_checkpoint, change(bytes_of, header_of), same_tensors),
    "checkpoint to resume from": Target(put_checkpoint, read_state, change(bytes_of, header_of), same_tensors),
    "description": Target(put_checkpoint, read_checkpoint, describe_otherwise),
    "description to resume from": Target(put_checkpoint, read_state, describe_otherwise),
    "run": Target(put_run, read_run, change(bytes_of, text_of), share=5),
    "folder of images": Target(put_images, read_images, change(bytes_of)),
    "videos": Target(put_videos, read_images, change(bytes_of)),
    "tfrecords": Target(put_records, read_images, change(bytes_of)),
    "npz": Target(put_arrays, read_images, change(bytes_of), same_images),
    "npy": Target(put_array, read_images, change(bytes_of, text_of)),
    "cache": Target(put_cache, read_cache, change(bytes_of), same_images),
    "omniglot": Target(put_zips, read_zips, change(bytes_of), same_images),
}


# Running


def try_case(target: Target, whole: Path, saved: Any, draw: random.Random) -> tuple[str, str | None]:
    """Make one case in a copy of a folder; returns what came of it, and what is wrong with that."""
    folder = whole.with_name("damaged")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    target.damage(folder, draw)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        came = target.read(folder)
    except Slow:
        return "slow", f"took more than {SECONDS} seconds"
    except CLEAN as error:
        text = str(error)
        names = [str(folder), *(p.name for p in folder.rglob("*"))]
        outcome, fault = type(error).__name__, None
        if not any(name in text for name in names):
            fault = f"an error that names no file: {last_lines()}"
        elif "\n" in text:
            fault = f"an error of several lines: {text[:300]}"
    except BaseException:
        return "traceback", last_lines()
    else:
        outcome = "loaded"
        fault = None if target.same(came, saved) else "loaded as something else, in silence"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    return outcome, fault or (f"took {grown} MB" if grown > MEGABYTES else None)


def last_lines() -> str:
    """The end of a traceback."""
    return "\n".join(traceback.format_exc().splitlines()[-7:])[:1000]


def fuzz(name: str, seed: int, seconds: float, case: int | None) -> tuple[dict[str, int], list[str]]:
    """Make cases of a target for so long, or the one of a number."""
    target, outcomes, faults = TARGETS[name], Counter[str](), []
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stderr(io.StringIO()):
        whole = Path(place).resolve() / "whole"
        whole.mkdir()
        target.make(whole)
        saved = target.read(whole)
        number, end = case or 0, time.monotonic() + seconds
        while time.monotonic() < end:
            outcome, fault = try_case(target, whole, saved, random.Random(f"{seed} {name} {number}"))
            outcomes[outcome] += 1
            if fault is not None:
                faults.append(f"--seed {seed} --only {name!r} --case {number}: {fault}")
            number += 1
            if case is not None or len(faults) > 5:
                break
    return dict(sorted(outcomes.items())), faults


def properties(seed: int, seconds: float) -> tuple[dict[str, Any], list[str]]:
    """Look for new counterexamples of the property tests for so long."""
    suite = Path("tests/test_properties.py")
    tests = re.findall(r"^def (test_\w+)", (ROOT / suite).read_text(), re.MULTILINE)
    random.Random(seed).shuffle(tests)  # there may be no time for all of them
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}"]
    environment = {**os.environ, "KANERVA_HYPOTHESIS": "explore", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [*command, *(f"{suite}::{test}" for test in tests)], cwd=ROOT, env=environment, stdout=out, stderr=out
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = 0
        out.seek(0)
        text = out.read()
    found = {word.lower(): len(re.findall(rf"::\S+ {word}", text)) for word in ("PASSED", "FAILED")}
    bad = code or found["failed"]
    return {**found, "of": len(tests)}, [f"properties, seed {seed}:\n{text[-3000:]}"] if bad else []


def stop(number: int, frame: Any) -> None:
    raise Slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--case", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = [given.only] if given.only else list(TARGETS)
    # a third of the time is for the properties
    seconds = 60 * given.minutes if given.only else 40 * given.minutes
    seconds /= sum(TARGETS[name].share for name in names)
    print(f"seed {given.seed}", flush=True)
    signal.signal(signal.SIGALRM, stop)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    faults: list[str] = []
    for name in names:
        results[name], wrong = fuzz(name, given.seed, seconds * TARGETS[name].share, given.case)
        print(f"{name:26} {sum(results[name].values()):6} cases: {results[name]}", *wrong, sep="\n", flush=True)
        faults += wrong
    found: dict[str, Any] | None = None
    if given.only is None:
        found, wrong = properties(given.seed, 20 * given.minutes)
        print(f"{'properties':26} {found}", *wrong, sep="\n", flush=True)
        faults += wrong
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{sum(sum(r.values()) for r in results.values()):,} cases, {len(faults)} faults, {peak} MB at most")
    if given.out is not None:
        about = {
            "seed": given.seed,
            "minutes": given.minutes,
            "versions": {"kanerva": kanerva.__version__, "torch": torch.__version__, "numpy": np.__version__},
            "python": platform.python_version(),
            "cases": results,
            "properties": found,
            "peak_mb": peak,
            "faults": faults,
        }
        with files.atomic_write(given.out) as file:
            file.write((json.dumps(about, indent=1) + "\n").encode())
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
