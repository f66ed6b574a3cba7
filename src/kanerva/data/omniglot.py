"""Omniglot (Lake et al. 2015): 1,623 handwritten characters of 50 alphabets, by 20 drawers each, 28×28, binary.

The two zips of the original (images_background.zip, images_evaluation.zip), or the folders they unpack to, are
looked for in `data_dir`; without it in the folder named by KANERVA_DATA, then in the cache; else downloaded.
"""

import contextlib
import io
import os
import re
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from ..support.files import Array, Arrays, atomic_write, cache_dir, cached, line, lock
from ..support.pixels import INK
from ..support.say import bar, say
from .episodes import ClassImages, of_bits

URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
# Each part, and the number of its characters.
PARTS = {"images_background": 964, "images_evaluation": 659}
CLASSES, DRAWERS, RAW, SIZE = 1623, 20, 105, 28
# Of the characters in their order, those before these are to train on, and to validate with.
TRAIN, HELD = 1080, 1200
PREPARED = "omniglot-v2.npz"  # in the cache
DRAWING = 2**16  # bytes: 105×105 bits as a PNG take a few hundred
# "0001_01.png" is the first character by the first drawer.
_NAME = re.compile(r"(\d{4})_(\d{2})\.png")


def load(split: str = "train", data_dir: str | os.PathLike[str] | None = None) -> ClassImages:
    """Give 1,080 characters to train on, 120 to validate with or 423 to test with: permutation(1623) in its order.

    The permutation is that of default_rng(0). The prepared images are kept in the cache, and made again if the
    files they come from change.
    """
    found = find(data_dir)
    stamp = np.array([_stamp(path) for path in found], np.str_)

    def valid(arrays: Arrays) -> bool:
        whole = arrays["bits"].shape == (CLASSES, DRAWERS, SIZE * SIZE // 8)
        # Without the original files, whatever was once made of them will do: there is only one Omniglot.
        return whole and (not found or np.array_equal(arrays["source"], stamp))

    def make() -> Arrays:
        sources = found or _download()
        bits = np.packbits(prepare(sources).reshape(CLASSES, DRAWERS, -1), axis=-1)
        return {"bits": bits, "source": np.array([_stamp(path) for path in sources], np.str_)}

    names = [f"{number:04d}" for number in range(1, CLASSES + 1)]
    return of_bits(cached(PREPARED, make, valid)["bits"], names, split, TRAIN, HELD, "omniglot")


def at_hand() -> bool:
    """Whether `load` needs no download."""
    return (cache_dir() / PREPARED).is_file() or bool(find())


def find(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Look for the two parts, as zips or unpacked; none if there is nothing but a download.

    A `data_dir` is looked into alone, and must have them.
    """
    named = os.environ.get("KANERVA_DATA") if data_dir is None else data_dir
    folders = ([Path(named).expanduser()] if named else []) + ([cache_dir()] if data_dir is None else [])
    for folder in folders:
        for inner in ("", "omniglot", "python", "omniglot/python"):
            parts = [folder / inner / name for name in PARTS]
            parts = [archive if (archive := path.with_suffix(".zip")).exists() else path for path in parts]
            if all(path.exists() for path in parts):
                return parts
    if data_dir is not None:
        raise FileNotFoundError(_wanted(folders[0]))
    return []


def _wanted(folder: Path) -> str:
    zips = " and ".join(f"{name}.zip" for name in PARTS)
    return (
        f"omniglot: expected {zips} (or the folders they unpack to) in {folder}, found none or one; they come from "
        f"{URL}/, to be put there, into the folder that KANERVA_DATA names, or into {cache_dir() / 'omniglot'}"
    )


def _stamp(path: Path) -> str:
    """Tell one source from another, and from itself after a change, without reading it."""
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def _download() -> list[Path]:
    folder = cache_dir() / "omniglot"
    paths = [folder / f"{name}.zip" for name in PARTS]
    with lock(folder / ".lock"):  # the other processes of a machine wait and then find the files
        for path in paths:
            if path.exists():
                continue
            say(f"fetching {URL}/{path.name}")
            try:
                with urllib.request.urlopen(f"{URL}/{path.name}", timeout=30) as answer:
                    data = answer.read()
                with zipfile.ZipFile(io.BytesIO(data)) as archive:  # its checksums are compared
                    if fault := archive.testzip():
                        raise ValueError(f"{fault} is damaged")
            except Exception as error:  # also of what came: a damaged file can make zipfile raise anything
                raise FileNotFoundError(f"{_wanted(folder)}. The download failed: {line(error)}") from error
            with atomic_write(path) as file:
                file.write(data)
    return paths


def prepare(sources: list[Path]) -> Array:
    """Read both parts: bool (1623, 20, 28, 28), class = file number − 1.

    Ink is averaged over the area of each new pixel, 3 or 4 old ones a side, and pixels of INK or more are set; no
    mean of 9, 12 or 16 bits is 0.4, so there are no ties. Proof: test_omniglot_*.
    """
    ink = np.empty((CLASSES, DRAWERS, SIZE, SIZE), bool)
    seen = np.zeros((CLASSES, DRAWERS), bool)
    with bar("reading omniglot", CLASSES * DRAWERS) as step:
        for source, characters in zip(sources, PARTS.values(), strict=True):
            before = seen.sum()
            for name, length, read in _members(source):
                if not (found := _NAME.fullmatch(name.rsplit("/", 1)[-1])):
                    continue
                index, drawer = int(found[1]) - 1, int(found[2]) - 1
                if not (0 <= index < CLASSES and 0 <= drawer < DRAWERS) or seen[index, drawer]:
                    raise ValueError(
                        f"{source}: expected each of 1,623 characters by 20 drawers once, got {name} "
                        f"as well; is this the original omniglot?"
                    )
                raw = Image.fromarray(_raw(source, name, length, read).astype(np.float32))
                ink[index, drawer] = np.asarray(raw.resize((SIZE, SIZE), Image.Resampling.BOX)) >= INK
                seen[index, drawer] = True
                step(1)
            if seen.sum() - before != characters * DRAWERS:
                raise ValueError(
                    f"{source}: expected {characters * DRAWERS} images such as 0001_01.png, got "
                    f"{seen.sum() - before}; usual cause: an unfinished copy, or another data set"
                )
    return ink


def _members(source: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """List what a zip or folder holds, with the size of each and a way to read it."""
    if source.is_dir():
        for path in sorted(source.rglob("*.png")):
            yield path.relative_to(source).as_posix(), path.stat().st_size, path.read_bytes
        return
    with _reading(f"{source}: expected a zip, but it"):
        archive = zipfile.ZipFile(source)
    with archive:
        for info in archive.infolist():
            if not info.filename.startswith("__MACOSX"):
                yield info.filename, info.file_size, partial(archive.read, info)


def _raw(source: Path, name: str, length: int, read: Callable[[], bytes]) -> Array:
    """Read one drawing as 1 where there is ink (black)."""
    if length > DRAWING:
        raise ValueError(f"{source}: expected drawings of at most {DRAWING:,} bytes, got {name} of {length:,}")
    with _reading(f"{source}: {name}"):
        image = Image.open(io.BytesIO(read()), formats=["PNG"])
        if image.size == (RAW, RAW):
            return np.asarray(image.convert("L")) < 128
    raise ValueError(f"{source}: expected images of {RAW}×{RAW}, got {name} of {image.width}×{image.height}")


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except PermissionError:
        raise
    except Exception as error:  # a damaged file can make zipfile, zlib and Pillow raise anything
        raise ValueError(
            f"{what} cannot be read ({line(error)}); usual cause: an unfinished copy or download"
        ) from error
