"""Omniglot (Lake et al. 2015): 1,623 handwritten characters of 50 alphabets, by 20 drawers each, 28×28, binary.

The two zips of the original (images_background.zip, images_evaluation.zip), or the folders they unpack to, are
looked for in `data_dir`; without it in the folder named by KANERVA_DATA, then in the cache; else downloaded.
"""

import functools
import io
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..files import Arrays, DownloadError, cache_dir, cached, download, line, lock
from ..progress import bar
from ..support.pixels import INK
from .episodes import ClassImages

URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
# Each part, and the number of its characters.
PARTS = {"images_background": 964, "images_evaluation": 659}
CLASSES, DRAWERS, RAW, SIZE = 1623, 20, 105, 28
TRAIN = 1200
PREPARED = "omniglot-v2.npz"  # in the cache
DRAWING = 2**16  # bytes: 105×105 bits as a PNG take a few hundred

Array = np.ndarray[Any, np.dtype[Any]]
# "0001_01.png" is the first character by the first drawer.
_NAME = re.compile(r"(\d{4})_(\d{2})\.png")


def load(split: str = "train", data_dir: str | os.PathLike[str] | None = None) -> ClassImages:
    """Give the 1,200 training or the 423 test characters, in the order of default_rng(0).permutation(1623).

    The prepared images are kept in the cache, and made again if the files they come from change.
    """
    found = find(data_dir)
    stamp = np.array([_stamp(path) for path in found] if found else [], np.str_)

    def valid(arrays: Arrays) -> bool:
        bits, source = arrays.get("bits"), arrays.get("source")
        whole = bits is not None and bits.dtype == np.uint8 and bits.shape == (CLASSES, DRAWERS, SIZE * SIZE // 8)
        # Without the original files, whatever was once made of them will do: there is only one Omniglot.
        return whole and source is not None and (not found or np.array_equal(source, stamp))

    def make() -> Arrays:
        sources = found or _download()
        bits = np.packbits(prepare(sources).reshape(CLASSES, DRAWERS, -1), axis=-1)
        return {"bits": bits, "source": np.array([_stamp(path) for path in sources], np.str_)}

    bits = cached(PREPARED, make, valid)["bits"]
    order = np.random.default_rng(0).permutation(CLASSES)
    chosen = order[:TRAIN] if split == "train" else order[TRAIN:]
    return ClassImages.from_labels(
        np.unpackbits(bits[chosen].reshape(-1, SIZE * SIZE // 8), axis=-1).reshape(-1, 1, SIZE, SIZE),
        np.repeat(np.arange(len(chosen)), DRAWERS),
        binary=True,
        name="omniglot",
        split=split,
        names=[f"{index + 1:04d}" for index in chosen],
    )


def at_hand() -> bool:
    """Whether `load` needs no download."""
    return (cache_dir() / PREPARED).is_file() or bool(find())


def find(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Look for the two parts, as zips or unpacked; none if there is nothing but a download.

    A `data_dir` is looked into alone, and must have them.
    """
    if data_dir is not None:
        folders = [Path(data_dir).expanduser()]
    else:
        named = os.environ.get("KANERVA_DATA")
        folders = [Path(named).expanduser()] if named else []
        folders.append(cache_dir())
    for folder in folders:
        for place in (folder, folder / "omniglot", folder / "python", folder / "omniglot" / "python"):
            found = [_part(place, name) for name in PARTS]
            if all(found):
                return [path for path in found if path]
    if data_dir is not None:
        raise FileNotFoundError(_where(folders[0]))
    return []


def _part(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / f"{name}.zip", folder / name) if p.is_file() or p.is_dir()), None)


def _where(folder: Path) -> str:
    zips = " and ".join(f"{name}.zip" for name in PARTS)
    return (
        f"omniglot: expected {zips} (or the folders they unpack to) in {folder}, found "
        f"{_listing(folder)}; they come from {URL}/, to be put there, into the folder that KANERVA_DATA names, "
        f"or into {cache_dir() / 'omniglot'}"
    )


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    names = sorted(p.name for p in folder.iterdir() if not p.name.endswith((".part", ".lock")))
    return (", ".join(names[:5]) + (", …" if len(names) > 5 else "")) or "nothing"


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
            try:
                download(f"{URL}/{path.name}", path, _fault)
            except DownloadError as error:
                raise FileNotFoundError(f"{_where(folder)}. The download failed: {error}") from error
    return paths


def _fault(path: Path) -> str | None:
    """Read a zip from end to end, and say what is wrong with it."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip()
    except Exception as error:  # a damaged file can make zipfile raise anything
        return line(error)


def prepare(sources: list[Path]) -> Array:
    """Read both parts and reduce every image: bool (1623, 20, 28, 28), class = file number − 1."""
    ink = np.empty((CLASSES, DRAWERS, SIZE, SIZE), bool)
    seen = np.zeros((CLASSES, DRAWERS), bool)
    with bar("reading omniglot", CLASSES * DRAWERS) as step:
        for source, characters in zip(sources, PARTS.values(), strict=True):
            before = seen.sum()
            for name, length, read in _members(source):
                found = _NAME.fullmatch(name.rsplit("/", 1)[-1])
                if not found:
                    continue
                index, drawer = int(found[1]) - 1, int(found[2]) - 1
                if not (0 <= index < CLASSES and 0 <= drawer < DRAWERS) or seen[index, drawer]:
                    raise ValueError(
                        f"{source}: expected each of 1,623 characters by 20 drawers once, got {name} "
                        f"as well; is this the original omniglot?"
                    )
                ink[index, drawer] = reduce(_raw(source, name, length, read))
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
    try:
        file = zipfile.ZipFile(source)
    except PermissionError:
        raise
    except Exception as error:  # a damaged file can make zipfile raise anything
        raise ValueError(
            f"{source}: expected a zip, but it cannot be read ({line(error)}); "
            f"usual cause: an unfinished copy or download"
        ) from error
    with file:
        for info in file.infolist():
            if not info.filename.startswith("__MACOSX"):
                yield info.filename, info.file_size, functools.partial(file.read, info)


def _raw(source: Path, name: str, length: int, read: Callable[[], bytes]) -> Array:
    """Read one drawing as 1 where there is ink (black)."""
    if length > DRAWING:
        raise ValueError(f"{source}: expected drawings of at most {DRAWING:,} bytes, got {name} of {length:,}")
    try:
        data = io.BytesIO(read())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is looked at next
            with Image.open(data, formats=["PNG"]) as image:
                size = image.size
                ink = np.asarray(image.convert("L")) < 128 if size == (RAW, RAW) else None
    except PermissionError:
        raise
    except Exception as error:  # a damaged file can make zipfile, zlib and Pillow raise anything
        raise ValueError(
            f"{source}: {name} cannot be read ({line(error)}); usual cause: an unfinished copy or download"
        ) from error
    if ink is None:
        raise ValueError(f"{source}: expected images of {RAW}×{RAW}, got {name} of {size[0]}×{size[1]}")
    return ink


def reduce(ink: Array) -> Array:
    """Average the ink over the area of each new pixel, 3 or 4 old ones a side, and set those of INK or more.

        area = P ink Pᵀ / (P 1 Pᵀ),   P[i, j] = 1 where the centre of old pixel j lies within new pixel i

    This is Pillow's box filter; no mean of 9, 12 or 16 bits is 0.4, so there are no ties. Proof: test_omniglot_*.
    """
    return _COVER @ ink.astype(np.float32) @ _COVER.T >= INK * np.outer(_COVER.sum(1), _COVER.sum(1))


def _cover() -> Array:
    """P, in quarters of an old pixel: new pixel i is 15 i to 15 (i + 1); the centre of old pixel j is 4 j + 2."""
    i, centre = np.arange(SIZE)[:, None], 4 * np.arange(RAW)[None, :] + 2
    return ((15 * i < centre) & (centre <= 15 * (i + 1))).astype(np.float32)


_COVER = _cover()
