"""Omniglot is prepared by the protocol and found in all its places; what is wrong with the files is said.

The real thing is looked for in KANERVA_DATA and beside the repository; a small one with the same layout does for
the rest: 5 characters by 2 drawers.
"""

import io
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kanerva.data import ClassImages, load, omniglot

PLACES = [
    Path(os.environ.get("KANERVA_DATA", "/nowhere")),
    Path(__file__).parents[2] / "shared" / "data" / "omniglot",
]
REAL = next(
    (p for place in PLACES for p in (place, place / "omniglot") if (p / "images_background.zip").exists()), None
)
real = pytest.mark.skipif(
    REAL is None, reason="omniglot's zips are neither in KANERVA_DATA nor beside the repository"
)


SECOND = "images_evaluation.zip"
SPLITS = {"train": slice(1080), "validation": slice(1080, 1200), "test": slice(1200, None)}


@pytest.fixture(scope="module")
def every() -> dict[str, ClassImages]:
    return {split: load("omniglot", split, data_dir=str(REAL)) for split in SPLITS}


def slowly(ink: np.ndarray) -> np.ndarray:
    """New pixels of 15/4 old ones a side, to which those belong whose centres lie in them; ink of 0.4 sets one."""
    place = (np.arange(105) * 4 + 1) // 15
    wanted = np.zeros((28, 28), np.uint8)
    for i in range(28):
        for j in range(28):
            wanted[i, j] = ink[place == i][:, place == j].mean() >= 0.4
    return wanted


@real
def test_omniglot_has_the_protocols_splits(every: dict[str, ClassImages]) -> None:
    order = np.random.default_rng(0).permutation(1623)
    for split, images in every.items():
        assert images.labels == tuple(f"{i + 1:04d}" for i in order[SPLITS[split]])
        assert (images.split, images.shape, images.binary) == (split, (1, 28, 28), True)
        assert (images.count == 20).all()
    both = load("omniglot", "train+validation", data_dir=str(REAL))
    assert torch.equal(both.pixels, torch.cat([every["train"].pixels, every["validation"].pixels]))


@real
def test_omniglot_images_are_those_of_a_slow_reference(every: dict[str, ClassImages]) -> None:
    assert REAL is not None
    place = {label: (split, c) for split in every for c, label in enumerate(every[split].labels)}
    for part in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(REAL / f"{part}.zip") as file:
            names = sorted(name for name in file.namelist() if name.endswith(".png"))
            for name in names[:: len(names) // 6]:
                with Image.open(io.BytesIO(file.read(name))) as image:
                    ink = 1 - np.asarray(image, np.uint8)
                character, drawer = name.rsplit("/", 1)[-1].removesuffix(".png").split("_")
                split, c = place[character]
                assert np.array_equal(every[split].pixels[20 * c + int(drawer) - 1, 0].numpy(), slowly(ink)), name
    # as measured; exact fractional areas give 0.0926, and pooling over overlapping windows 0.097
    pixels = torch.cat([images.pixels for images in every.values()]).double()
    assert float(pixels.mean()) == pytest.approx(0.091170, abs=2e-6)


# A small omniglot


def png(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def drawing(character: int, drawer: int) -> np.ndarray:
    """White paper with a black rectangle of its own."""
    paper = np.full((105, 105), True)
    paper[10 : 30 + 10 * character, 20 : 40 + 5 * drawer] = False
    return paper


def archive(characters: range, part: str, extra: dict[str, bytes] | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for c in characters:
            for d in (1, 2):
                name = f"{part}/Alphabet/character{c:02d}/{c:04d}_{d:02d}.png"
                file.writestr(name, png(drawing(c, d)))
                file.writestr(f"__MACOSX/{name}", b"not an image")
        for name, data in (extra or {}).items():
            file.writestr(name, data)
    return out.getvalue()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> dict[str, bytes]:
    """The zips of a small omniglot, as bytes, and a module that believes in it."""
    monkeypatch.setattr(omniglot, "PARTS", {"images_background": 3, "images_evaluation": 2})
    monkeypatch.setattr(omniglot, "CLASSES", 5)
    monkeypatch.setattr(omniglot, "DRAWERS", 2)
    monkeypatch.setattr(omniglot, "TRAIN", 2)
    monkeypatch.setattr(omniglot, "HELD", 3)
    monkeypatch.setattr(omniglot, "URL", "http://127.0.0.1:9")  # nobody listens there
    return {
        "images_background.zip": archive(range(1, 4), "images_background"),
        "images_evaluation.zip": archive(range(4, 6), "images_evaluation"),
    }


def put(zips: dict[str, bytes], folder: Path, unpacked: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in zips.items():
        if unpacked:
            zipfile.ZipFile(io.BytesIO(data)).extractall(folder)
        else:
            (folder / name).write_bytes(data)


def check(split: str = "train", **options: str | Path) -> None:
    """Load the small omniglot and see that it is whole and in its order."""
    images = load("omniglot", split, **options)
    order = np.random.default_rng(0).permutation(5)
    chosen = {"train": order[:2], "validation": order[2:3], "test": order[3:]}[split]
    assert images.labels == tuple(f"{c + 1:04d}" for c in chosen)
    for k, c in enumerate(chosen):
        for d in range(2):
            assert np.array_equal(images.pixels[2 * k + d, 0].numpy(), slowly(~drawing(c + 1, d + 1)))


@pytest.mark.parametrize("unpacked", [False, True])
@pytest.mark.parametrize("under", ["", "omniglot", "omniglot/python"])
@pytest.mark.parametrize("place", ["given", "named", "cache"])
def test_omniglot_is_found(
    small: dict[str, bytes],
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unpacked: bool,
    under: str,
    place: str,
) -> None:
    put(small, tmp_path / place / under, unpacked)
    monkeypatch.setenv("KANERVA_DATA", str(tmp_path / "named"))
    for split in ("train", "validation", "test"):
        check(split, **({"data_dir": tmp_path / place} if place == "given" else {}))


def test_omniglot_prepared_once(
    small: dict[str, bytes], own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(small, tmp_path / "given")
    check(data_dir=tmp_path / "given")
    calls = []
    prepare = omniglot.prepare
    monkeypatch.setattr(omniglot, "prepare", lambda sources: calls.append(1) or prepare(sources))
    check("test", data_dir=tmp_path / "given")
    check()  # the originals are not needed any more
    assert not calls
    os.utime(tmp_path / "given" / "images_background.zip", (1, 1))
    check(data_dir=tmp_path / "given")
    assert len(calls) == 1  # another file, as far as one can see
    (path,) = own_cache.glob("*.npz")
    path.write_bytes(path.read_bytes()[:100])
    check(data_dir=tmp_path / "given")
    assert len(calls) == 2


def test_omniglot_downloaded(
    small: dict[str, bytes], own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(small, tmp_path / "server")
    monkeypatch.setattr(omniglot, "URL", (tmp_path / "server").as_uri())
    check()
    shutil.rmtree(tmp_path / "server")
    check("test")
    names = sorted(path.name for path in (own_cache / "omniglot").glob("*.zip"))
    assert names == ["images_background.zip", "images_evaluation.zip"]


def test_a_damaged_download_is_not_kept(
    small: dict[str, bytes], own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = small["images_background.zip"]
    flipped = whole[:60] + bytes([whole[60] ^ 255]) + whole[61:]
    monkeypatch.setattr(omniglot, "URL", (tmp_path / "server").as_uri())
    for bad in (b"<html>", whole[:-30], flipped):
        put({"images_background.zip": bad}, tmp_path / "server")
        with pytest.raises(FileNotFoundError, match=r"The download failed: "):
            load("omniglot")
        assert not list((own_cache / "omniglot").glob("*.zip*"))


def test_omniglot_without_network_or_files(small: dict[str, bytes], own_cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"images_background.zip and images_evaluation") as caught:
        load("omniglot")
    for wanted in (str(own_cache / "omniglot"), "KANERVA_DATA", "The download failed: ", omniglot.URL):
        assert wanted in str(caught.value)


def wide(data: bytes) -> bytes:
    """A PNG that says it is 10,000 pixels wide."""
    image = bytearray(data)
    image[16:24] = 2 * (10_000).to_bytes(4, "big")
    image[29:33] = zlib.crc32(image[12:29]).to_bytes(4, "big")
    return bytes(image)


def flipped(data: bytes) -> bytes:
    at = data.index(b".png") + 9
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


# what the second zip is instead, and what is said of it
SPOILT: dict[str, tuple[Callable[[dict[str, bytes]], bytes], str]] = {
    "truncated": (lambda zips: zips[SECOND][: len(zips[SECOND]) // 2], "expected a zip, .* an unfinished copy"),
    "flipped": (lambda zips: flipped(zips[SECOND]), r".*0004_01.png cannot be read"),
    "the other zip": (lambda zips: zips["images_background.zip"], "expected each of .* once, got .*0001_01.png"),
    "an image missing": (lambda _: archive(range(4, 5), "images_evaluation"), "expected 4 images .* got 2"),
    "an image of another size": (lambda _: with_one(png(np.zeros((105, 104), bool))), "105×105, got .* of 104×105"),
    "an image of many bytes": (lambda _: with_one(b"\0" * (2**16 + 1)), "at most 65,536 bytes, got e/0005_01.png"),
    "10,000 pixels wide": (lambda _: with_one(wide(png(drawing(5, 1)))), r".*e/0005_01.png"),
}


def with_one(data: bytes) -> bytes:
    return archive(range(4, 5), "e", {"e/0005_01.png": data})


@pytest.mark.parametrize("how", SPOILT)
def test_omniglot_says_which_file_is_wrong(small: dict[str, bytes], tmp_path: Path, how: str) -> None:
    spoil, message = SPOILT[how]
    put(small | {SECOND: spoil(small)}, tmp_path / "given")
    with pytest.raises(ValueError, match=rf"given/images_evaluation\.zip: .*{message}"):
        load("omniglot", data_dir=tmp_path / "given")


@pytest.mark.parametrize("gone", ["*", SECOND, "images_background.zip"])
def test_omniglot_given_folder_without_it(small: dict[str, bytes], tmp_path: Path, gone: str) -> None:
    put(small, tmp_path / "given")
    check(data_dir=tmp_path / "given")  # a prepared copy does not hide the mistake
    for path in (tmp_path / "given").glob(gone):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"omniglot: expected images_background.zip .* in .*given, "):
        load("omniglot", data_dir=tmp_path / "given")
