"""Files damaged at random: what is read is what was saved, or an error of one line names the file.

hypothesis draws the damage, the same on every run; `make fuzz` looks for new cases of it, many more of them.
"""

import contextlib
import io
import json
import re
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import kanerva
from kanerva.app import report
from kanerva.data import omniglot
from kanerva.models.checkpoint import BEST, LAST
from kanerva.support import files, tensors
from small import tiny

pytestmark = [pytest.mark.usefixtures("no_shape_checks"), pytest.mark.filterwarnings("ignore::UserWarning")]

MEGABYTES = 300  # that one case may take; an undamaged one takes less than 10
# What JSON can hold where a number or a word was.
NUMBERS = ("0", "3", "-1", "0.5", "1e30", "1e400", "-1e400", "100000000", "9" * 5000)
ODD = (*NUMBERS, "true", "null", "NaN", "[]", "{}", "[1,[2]]", '"x"', '""', '"\\ud800"', "[" * 2000)


# Ways to damage bytes


class Damage(NamedTuple):
    """What happens where in which file; numbers that are too large begin again."""

    way: str
    file: int
    at: int
    length: int
    some: bytes
    odd: str

    def of(self, data: bytes) -> bytes:
        """Damage anything: bytes, stretches that are lost, doubled or moved, and the end; in JSON, a value."""
        found = list(re.finditer(rb'-?\d[\d.eE+-]*|true|false|null|\\?"[^"\\]*\\?"', data))
        if self.way == "value" and found:
            value = found[self.at % len(found)]
            return data[: value.start()] + self.odd.encode() + data[value.end() :]
        at = self.at % (len(data) + 1)
        stretch, rest = data[at : at + self.length], data[at + self.length :]
        ways = {
            "overwrite": self.some + data[at + len(self.some) :],
            "insert": self.some + data[at:],
            "lose": rest,
            "double": stretch + stretch + rest,
            "blank": bytes(len(stretch)) + rest,
        }
        return data[:at] + ways.get(self.way, b"")

    def within(self, folder: Path) -> None:
        """Damage one of the files below a folder; of a checkpoint, sometimes its header, with its length right."""
        paths = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
        path = paths[self.file % len(paths)]
        data = path.read_bytes()
        if path.suffix == ".safetensors" and self.file % 2:
            size = 8 + int.from_bytes(data[:8], "little")
            header = self.of(data[8:size])
            path.write_bytes(len(header).to_bytes(8, "little") + header + data[size:])
        else:
            path.write_bytes(self.of(data))

    def described(self, folder: Path) -> None:
        """Another description of a checkpoint, with a checksum that is right: somebody wrote it so."""
        saved, about = tensors.load(folder / LAST)
        with contextlib.suppress(ValueError, RecursionError):
            about = json.loads(self.of(json.dumps(about).encode()))
            tensors.save(folder / LAST, saved, about)  # NaN and what is no dictionary cannot be written


WAYS = ("overwrite", "insert", "lose", "double", "blank", "end", "value")
DAMAGE = st.builds(
    Damage,
    way=st.sampled_from(WAYS),
    file=st.integers(0, 99),
    at=st.integers(0, 2**16),
    length=st.sampled_from((1, 8, 1000)),
    some=st.binary(min_size=1, max_size=100),
    odd=st.sampled_from(ODD),
)


# What is read


def put_run(folder: Path) -> None:
    """A run that has ended: checkpoint, config and metrics. Its images lie beside it, and stay whole."""
    kanerva.train(tiny(folder.parent), folder)
    (folder / BEST).unlink()


def put_checkpoint(folder: Path) -> None:
    kanerva.create("dkm", image=(1, 8, 8), rows=4, code=6, codec={"filters": (4, 4)}).save(folder / LAST)


def read_checkpoint(folder: Path) -> list[torch.Tensor]:
    return list(kanerva.load(folder / LAST).state_dict().values())


def read_run(folder: Path) -> list[torch.Tensor]:
    """Resume a run that is at its end, and report on it."""
    kanerva.train(tiny(folder.parent), folder, resume=True)
    report.write(folder)
    return []


def put_pictures(folder: Path) -> None:
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


def read_images(folder: Path) -> list[torch.Tensor]:
    both = [kanerva.data.load(next(folder.glob("a.np*"), folder), split) for split in ("train", "test")]
    return [x for images in both for x in (images.pixels, images.start, images.count)]


def cache(folder: Path) -> list[torch.Tensor]:
    """A damaged file of the cache is made again, so what comes is always the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KANERVA_CACHE", str(folder))
        arrays = files.cached("x.npz", lambda: {"x": np.arange(500)}, lambda arrays: "x" in arrays)
    return [torch.tensor(arrays["x"])]


def put_zips(folder: Path) -> None:
    """A small omniglot: five characters by two drawers."""
    for part, numbers in {"images_background": (1, 2, 3), "images_evaluation": (4, 5)}.items():
        with zipfile.ZipFile(folder / f"{part}.zip", "w", zipfile.ZIP_DEFLATED) as file:
            for c, d in ((c, d) for c in numbers for d in (1, 2)):
                out, paper = io.BytesIO(), np.full((105, 105), True)
                paper[10 : 30 + 10 * c, 20 : 40 + 5 * d] = False
                Image.fromarray(paper).save(out, "PNG")
                file.writestr(f"{part}/{c:04d}_{d:02d}.png", out.getvalue())


def read_zips(folder: Path) -> list[torch.Tensor]:
    parts = {"images_background": 3, "images_evaluation": 2}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("PARTS", parts), ("CLASSES", 5), ("DRAWERS", 2)):
            patch.setattr(omniglot, name, value)
        return [torch.from_numpy(omniglot.prepare([folder / f"{part}.zip" for part in parts]))]


class Target(NamedTuple):
    """Files that are read: how they are made, read and damaged."""

    make: Callable[[Path], object]
    read: Callable[[Path], list[torch.Tensor]]
    harm: Callable[[Damage, Path], None] = Damage.within
    sealed: bool = False
    """Whether they have a checksum: then what comes is what was saved."""
    cases: float = 0.5
    """The share of the usual number of cases that is tried."""


TARGETS = {
    "checkpoint": Target(put_checkpoint, read_checkpoint, sealed=True),
    "description": Target(put_checkpoint, read_checkpoint, Damage.described),
    "run": Target(put_run, read_run, cases=0.2),
    "described run": Target(put_run, read_run, Damage.described, cases=0.2),
    "folder of pictures": Target(put_pictures, read_images),
    "npz": Target(put_arrays, read_images, sealed=True),
    "npy": Target(put_array, read_images),
    "cache": Target(cache, cache, sealed=True),
    "omniglot": Target(put_zips, read_zips, sealed=True),
}


@pytest.mark.parametrize("name", TARGETS)
def test_damage_is_noticed(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    target, whole = TARGETS[name], tmp_path_factory.mktemp("place") / "whole"
    whole.mkdir()
    target.make(whole)
    saved = target.read(whole)

    @settings(max_examples=round(target.cases * settings.default.max_examples))  # type: ignore[union-attr]
    @given(damage=DAMAGE)
    def check(damage: Damage) -> None:
        folder = whole.with_name("damaged")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        target.harm(damage, folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            came = target.read(folder)
        except (ValueError, TypeError, OSError, RuntimeError) as error:  # what the command turns into one line
            text = str(error)
            assert any(named in text for named in (str(folder), *(p.name for p in folder.rglob("*")))), text
            assert "\n" not in text
        else:
            assert not target.sealed or all(map(torch.equal, came, saved))
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024 < MEGABYTES

    check()
