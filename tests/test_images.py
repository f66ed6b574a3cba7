"""Folders and arrays of the user's own: read as they are, split without overlap, and refused with a reason."""

import io
import os
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from kanerva.data import ClassImages, load
from kanerva.data.episodes import changes
from kanerva.data.own import frames, is_sheet, pictures, upload, write_sheet
from kanerva.support import files

SPLITS = ("train", "validation", "test")
COLOUR = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8)


def grey(value: int, side: int = 6) -> Image.Image:
    """An image whose pixels tell which it is."""
    return Image.fromarray(np.full((side, side), value, np.uint8))


def folder_of(root: Path, classes: dict[str, int]) -> Path:
    value = 0
    for name, count in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            grey(value).save(root / name / f"{i:03d}.png")
            value += 1
    return root


def loose(root: Path, count: int, start: int = 0) -> list[Path]:
    """Different pictures without classes."""
    root.mkdir(exist_ok=True)
    random = np.random.default_rng(start)
    paths = [root / f"{start + i:03d}.png" for i in range(count)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (6, 6), np.uint8)).save(path)
    return paths


def values(images: ClassImages) -> list[int]:
    return images.pixels[:, 0, 0, 0].tolist()


def splits(name: Any, **options: Any) -> list[ClassImages]:
    return [load(name, split, **options) for split in SPLITS]


def labels(name: Any, **options: Any) -> dict[str, int]:
    """The labels of all splits, with the number of their images."""
    found: dict[str, int] = {}
    for images in splits(name, **options):
        for label, count in zip(images.labels, images.count.tolist(), strict=True):
            found[label] = found.get(label, 0) + count
    return found


def read(path: Path) -> np.ndarray:
    """One picture in 8 bits, (height, width) or (height, width, 3)."""
    return np.asarray(next(frames(path, path)))


# CLASSES AND SPLITS


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "set", {f"{c:02d}": 3 for c in range(40)})
    train, validation, test = splits(root)
    assert sum(images.num_classes for images in (train, validation, test)) == 40
    assert 16 <= train.num_classes <= 30 and 2 <= validation.num_classes <= 12 and 4 <= test.num_classes <= 16  # noqa: PT018
    assert sorted(values(train) + values(validation) + values(test)) == list(range(120))
    for images, split in zip((train, validation, test), SPLITS, strict=True):
        assert (images.shape, images.name, images.binary, images.split) == ((1, 6, 6), "set", False, split)
        for label, start, count in zip(images.labels, images.start, images.count, strict=True):
            assert values(images)[start : start + count] == [3 * int(label) + i for i in range(3)]
    both = load(str(root), "train+validation")
    assert sorted(values(both)) == sorted(values(train) + values(validation))


def test_images_of_few_classes_are_held_out_of_each(tmp_path: Path) -> None:
    found = splits(folder_of(tmp_path / "set", {"a": 40, "b": 40}))
    assert [images.labels for images in found] == [("a", "b")] * 3
    assert sorted(value for images in found for value in values(images)) == list(range(80))


def test_deeper_folders_are_classes_and_hidden_ones_are_not(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "set", {"x/1": 2, "x/2": 2, "y/1": 2})
    folder_of(root / ".thumbnails", {"": 3})
    (root / "notes.txt").write_text("not an image")
    (root / "x" / "1" / ".hidden.png").write_bytes(b"")
    assert labels(root) == {"x/1": 2, "x/2": 2, "y/1": 2}


@pytest.mark.parametrize("n", [4, 5, 40])
def test_from_four_pictures_on_each_split_has_some(tmp_path: Path, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        paths = loose(tmp_path / f"set{seed}", n, start=seed)
        found = splits(f"set{seed}")
        assert sorted(label for images in found for label in images.labels) == [path.name for path in paths]
        assert min(map(len, found)) >= 1


def test_fewer_than_four_are_refused(tmp_path: Path) -> None:
    paths = loose(tmp_path / "set", 3)
    paths[0].with_name("copy.png").write_bytes(paths[0].read_bytes())
    with pytest.raises(ValueError, match=r"set: expected at least four different images, .* got 3"):
        load(tmp_path / "set", "train")


def held(root: Path, **options: Any) -> list[set[bytes]]:
    return [{image.numpy().tobytes() for image in images.pixels} for images in splits(root, **options)]


def test_pictures_that_come_or_go_leave_the_others_where_they_are(tmp_path: Path) -> None:
    def kept(before: list[set[bytes]]) -> list[set[bytes]]:
        now = {np.asarray(Image.open(path)).tobytes() for path in root.iterdir()}
        return [split & now for split in before]

    root, paths = tmp_path / "set", loose(tmp_path / "set", 40)
    before = held(root)
    more = loose(root, 15, start=100)
    assert all(old <= new for old, new in zip(before, held(root), strict=True))
    for path in more + paths[::2]:
        path.unlink()
    assert held(root) == kept(before)
    for path in paths[1::2]:
        path.rename(path.with_name(f"z{path.name[::-1][4:]}.png"))  # nor do names matter
    assert held(root) == kept(before)


def test_classes_that_come_or_go_leave_the_others_where_they_are(tmp_path: Path) -> None:
    folder_of(tmp_path / "set", {f"{c:02d}": 2 for c in range(30)})
    before = [set(images.labels) for images in splits(tmp_path / "set")]
    folder_of(tmp_path / "set", {f"x{c:02d}": 2 for c in range(10)})
    after = [{label for label in images.labels if label[0] != "x"} for images in splits(tmp_path / "set")]
    assert after == before


def test_the_split_does_not_follow_the_size_or_the_kind(tmp_path: Path) -> None:
    paths = loose(tmp_path / "set", 20)
    names = load(tmp_path / "set", "test").labels
    for options in ({"size": 3}, {"binary": 0.5, "invert": True}, {"channels": 3}):
        assert load(tmp_path / "set", "test", **options).labels == names
    Image.fromarray(COLOUR).resize((6, 6)).save(tmp_path / "set" / "zz.png")  # all become colour
    assert set(load(tmp_path / "set", "test").labels) - {"zz.png"} == set(names)
    (tmp_path / "set" / "zz.png").unlink()
    np.save(tmp_path / "a.npy", np.stack([np.asarray(Image.open(path)) for path in paths]))
    assert held(tmp_path / "a.npy") == held(tmp_path / "set")


def test_copies_of_a_picture_are_on_one_side(tmp_path: Path) -> None:
    for path in loose(tmp_path / "set", 30):
        with Image.open(path) as image:
            image.save(path.with_suffix(".bmp"))
            image.convert("RGB").save(path.with_name(f"copy {path.name}"), compress_level=0)
    found = held(tmp_path / "set")
    assert [3 * len(kinds) for kinds in found] == [len(images) for images in splits(tmp_path / "set")]
    assert len(set.union(*found)) == sum(map(len, found)) == 30


# ONE PICTURE


def test_colour_among_grey_makes_all_colour(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "set", {"": 8})
    Image.fromarray(COLOUR).resize((6, 6)).save(root / "z.png")
    found = splits(root)
    assert {images.shape for images in found} == {(3, 6, 6)}
    assert sorted(image[:, 0, 0].tolist() for images in found for image in images.pixels) == sorted(
        [[255, 0, 0], *([i] * 3 for i in range(8))]
    )
    assert {images.shape for images in splits(root, channels=1)} == {(1, 6, 6)}


def test_pictures_are_brought_to_a_size(tmp_path: Path) -> None:
    def brought(levels: np.ndarray, height: int, width: int) -> np.ndarray:
        Image.fromarray(levels).save(tmp_path / "a.png")
        return pictures([tmp_path / "a.png"], (1, height, width)).pixels[0, 0]

    blocks = np.kron(np.array([[0, 100], [200, 50]]), np.ones((4, 4))).astype(np.uint8)
    assert brought(blocks, 2, 2).tolist() == [[0, 100], [200, 50]]
    checks = np.tile(np.array([[0, 200], [200, 0]], np.uint8), (4, 4))
    assert (brought(checks, 2, 2) == 100).all()  # areas are averaged
    assert brought(blocks, 16, 20).shape == (16, 20)
    wide = np.zeros((4, 12), np.uint8)
    wide[:, 4:8] = 255
    assert (brought(wide, 4, 4) == 255).all()  # cut to the middle


@pytest.mark.parametrize(
    ("binary", "invert", "wanted"),
    [
        (None, False, [0, 100, 200, 255]),
        (False, True, [255, 155, 55, 0]),
        (True, False, [0, 0, 1, 1]),
        (0.3, False, [0, 1, 1, 1]),
        (1.0, False, [0, 0, 0, 1]),
        (0.5, True, [1, 1, 0, 0]),
    ],
)
def test_binary_and_inverted(tmp_path: Path, binary: float | bool | None, invert: bool, wanted: list[int]) -> None:
    rows = np.array([[0, 100, 200, 255, i] for i in range(4)], np.uint8)[:, None]
    np.save(tmp_path / "a.npy", rows)
    (tmp_path / "set").mkdir()
    for i, row in enumerate(rows):
        Image.fromarray(row).save(tmp_path / "set" / f"{i}.png")
    for name in ("a.npy", "set"):
        for images in splits(tmp_path / name, binary=binary, invert=invert):
            assert images.pixels[0].flatten().tolist()[:4] == wanted
            assert images.binary == (binary not in (None, False))


# ARRAYS

ARRAYS: dict[str, tuple[np.ndarray, tuple[int, int, int], list[int], bool]] = {
    "bytes with a channel": (np.array([[[3], [7]]], np.uint8), (1, 1, 2), [3, 7], False),
    "colour, channels last": (np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8), (3, 1, 2), [1, 4, 2, 5, 3, 6], False),
    "floating point": (np.array([[0, 0.5, 1]], np.float32), (1, 1, 3), [0, 128, 255], False),
    "bool": (np.array([[True, False]]), (1, 1, 2), [1, 0], True),
    "bits as bytes": (np.array([[1, 0]], np.uint8), (1, 1, 2), [1, 0], True),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays(tmp_path: Path, name: str, suffix: str) -> None:
    """The one that is looked at is among others, which end in rows of their own."""
    image, shape, wanted, binary = ARRAYS[name]
    array = np.stack([np.concatenate([image, *[image[:1]] * 3]) for _ in range(4)])
    for i in range(3):
        array[i, len(image) + i] = 1 - image[0]
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(path, array)
    else:
        np.savez(path, images=array)
    for images in splits(path):
        assert images.shape == (shape[0], shape[1] + 3, shape[2])
        assert images.pixels[0, :, : shape[1]].flatten().tolist() == wanted
        assert images.binary == binary


@pytest.mark.parametrize("given", [[3, 1, 1, 3, 2] * 8, list("cbaac") * 8])
def test_arrays_with_labels(tmp_path: Path, given: list[Any]) -> None:
    n = len(given)
    pixels = np.arange(n, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.array(given))
    found = splits(tmp_path / "a.npz")
    assert sorted(value for images in found for value in values(images)) == list(range(n))
    for images in found:
        assert [str(given[v]) for v in values(images)] == np.repeat(images.labels, images.count).tolist()


# WHAT IS WRONG


def torn(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 6), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:60])


# what to write, options, and what the message must say
BAD: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "an empty folder": (lambda p: p.mkdir(), {}, r"data: expected image files .* got none"),
    "nothing that can be read": (
        lambda p: (p.mkdir(), [(p / f"{i}.png").write_text("x") for i in range(3)]),
        {},
        r"data/0.png: expected an image .*; the other 2 cannot be read either",
    ),
    "half a file": (
        lambda p: torn(folder_of(p, {"a": 0}) / "a" / "z.png"),
        {},
        r"data/a/z.png: expected an image, but it cannot be read",
    ),
    "two sizes": (
        lambda p: (folder_of(p, {"a": 2}), grey(1, 7).save(p / "a" / "z.png")),
        {},
        r"data/a/z.png: expected 6×6 .* like a/000.png, got 7×7 .* give size=",
    ),
    "images and sub-folders": (
        lambda p: folder_of(p, {"": 1, "a": 1}),
        {},
        r"data: expected images either in it or in its sub-folders .* 000.png and a/000.png",
    ),
    "a text file": (lambda p: p.write_text("x"), {}, r"data: expected a folder"),
    "binary colour": (lambda p: None, {"channels": 3, "binary": 0.5}, r"binary: .* got channels=3"),
    "a threshold of 128": (lambda p: None, {"binary": 128.0}, r"binary: .* got 128"),
    "no size": (lambda p: None, {"size": 0}, r"size: .* got 0"),
    "huge size": (lambda p: None, {"size": 10**30}, r"size: .* at most 100,000,000 pixels"),
}

BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "channels first": ({"images": np.zeros((1, 3, 4, 4), np.uint8)}, r"\(1, 3, 4, 4\); put the channels last"),
    "no images": ({"images": np.zeros((0, 4, 4), np.uint8)}, r"got shape \(0, 4, 4, 1\)"),
    "whole numbers": ({"images": np.zeros((1, 4, 4), np.int64)}, r"got int64"),
    "NaN": ({"images": np.full((1, 4, 4), np.nan)}, r"got values from nan"),
    "objects": ({"images": np.array([None])}, r"objects"),
    "another key": ({"x": np.zeros(3), "y": np.zeros(3)}, r"no key `images`, only x, y"),
    "a label too many": (
        {"images": np.zeros((2, 2, 2), np.uint8), "labels": np.zeros(3)},
        r"expected one label for each of 2 images, got shape \(3,\)",
    ),
}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("name", [*BAD, *BAD_ARRAYS])
def test_bad_images_are_named(tmp_path: Path, name: str) -> None:
    path, options = tmp_path / "data", {}
    if name in BAD:
        write, options, message = BAD[name]
        write(path)
    else:
        arrays, message = BAD_ARRAYS[name]
        path = tmp_path / "a.npz"
        np.savez(path, **arrays)
        message = rf"a\.npz: .*{message}"
    with pytest.raises(ValueError, match=message):
        load(path, **options)


def test_pictures_that_cannot_be_read_are_left_out_and_listed(tmp_path: Path) -> None:
    paths = loose(tmp_path / "set", 8)
    torn(paths[2])
    paths[5].write_text("no picture")
    (tmp_path / "set" / "gone.png").symlink_to("nowhere.png")
    (tmp_path / "set" / "loop.png").symlink_to("loop.png")
    Image.fromarray(np.full((6, 6), 0.5, np.float32)).save(tmp_path / "set" / "z.tiff")
    path = moving(tmp_path / "set", kind="png")
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"fdAT") + 10])  # though its first frames are whole
    message = (
        r"set: 6 of 12 files left out: 002.png: .*; 005.png.*; gone.png.*; loop.png.*; m.png.*; z.tiff: .*float"
    )
    with pytest.warns(UserWarning, match=message):
        found = labels(tmp_path / "set")
    assert set(found) == {path.name for path in paths if path not in (paths[2], paths[5])}


def test_sheets_of_our_own_are_left_out(tmp_path: Path) -> None:
    paths = loose(tmp_path / "set", 4)
    sheet = tmp_path / "set" / "recall.png"
    with sheet.open("wb") as file:
        write_sheet(Image.fromarray(COLOUR).resize((60, 30)), file)
    with Image.open(sheet) as again:
        cut, note = again.crop((0, 0, 6, 6)), PngInfo()
        note.add_text("Software", again.info["Software"])
        cut.save(tmp_path / "set" / "cut.png", pnginfo=note)  # a part of it is a picture again
    with pytest.warns(UserWarning, match=r"1 of 6 files left out: recall.png: a sheet of pictures that kanerva"):
        assert set(labels(tmp_path / "set")) == {path.name for path in paths} | {"cut.png"}
    assert [is_sheet(path) for path in (sheet, paths[0], tmp_path / "nowhere.png")] == [True, False, False]


# LINKS, NAMES, PERMISSIONS, SIZES


@pytest.mark.parametrize("target", [".", "../.."])
def test_links_are_followed_but_for_one_that_leads_back(tmp_path: Path, target: str) -> None:
    folder_of(tmp_path / "set", {"a": 2})
    folder_of(tmp_path / "elsewhere", {"c": 2, "b": 2})
    (tmp_path / "set" / "b").symlink_to(tmp_path / "elsewhere" / "b")
    (tmp_path / "set" / "c").symlink_to(tmp_path / "elsewhere" / "b")  # the same twice is no loop
    assert set(labels(tmp_path / "set")) == {"a", "b", "c"}
    (tmp_path / "set" / "a" / "again").symlink_to(target)
    with pytest.raises(ValueError, match=r"again: a link back to .*, which holds it; remove the link"):
        load(tmp_path / "set")


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes on Linux")
def test_names_that_are_not_utf_8_can_be_printed(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "set", {"a": 2, os.fsdecode(b"\xff"): 2, os.fsdecode(b"\xfe"): 2})
    root = root.rename(tmp_path / os.fsdecode(b"\xfd"))
    assert set(labels(root)) == {"\\xfe", "\\xff", "a"}
    assert load(root).name == "\\xfd"


def test_what_may_not_be_read_is_not_called_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder_of(tmp_path / "set", {"a": 2, "b": 2})

    def refuse(path: Any, **_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    for where, name, place in ((Image, "open", "set/a/000.png"), (os, "scandir", "set")):
        monkeypatch.setattr(where, name, refuse)
        with pytest.raises(PermissionError, match=f"Permission denied: '.*{place}'"):
            load(root)


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_an_image_of_too_many_pixels_is_not_decoded(
    tmp_path: Path, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow warns of the first and refuses the second."""
    path = folder_of(tmp_path / "set", {"a": 1}) / "a" / "000.png"
    data = bytearray(path.read_bytes())
    data[16:24] = 2 * side.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    path.write_bytes(data)
    monkeypatch.delattr(Image.Image, "convert")
    with pytest.raises(ValueError, match=r"a/000.png: expected an image, .*Image size .* exceeds limit"):
        load(tmp_path / "set", size=6)


@pytest.mark.parametrize("many", ["files", "frames"])
def test_more_than_there_is_room_for_is_not_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: str
) -> None:
    path = folder_of(tmp_path / "set", {"a": 20}) if many == "files" else moving(tmp_path / "set", 20)
    monkeypatch.setattr(files, "FREE", 20 * 36 - 1)
    monkeypatch.setattr(files, "memory", lambda: 20 * 36)
    with pytest.raises(ValueError, match=r"set.*: images of 6×6: .*; a smaller size=… reduces"):
        load(path, size=6)


# PICTURES THAT MOVE


def moving(folder: Path, count: int = 4, kind: str = "gif") -> Path:
    shades = [Image.fromarray(np.full((6, 6, 3), 10 * i, np.uint8)) for i in range(count)]
    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"lossless": True} if kind == "webp" else {}
    shades[0].save(folder / f"m.{kind}", save_all=True, append_images=shades[1:], **options)
    return folder / f"m.{kind}"


@pytest.mark.parametrize("kind", ["gif", "png", "webp"])
def test_a_picture_that_moves_is_a_class_of_its_frames(tmp_path: Path, kind: str) -> None:
    path = moving(tmp_path, kind=kind)
    assert labels(tmp_path) == {f"m.{kind}": 4}
    assert sorted(value for images in splits(path) for value in values(images)) == [0, 10, 20, 30]
    (tmp_path / "a").mkdir()
    path.rename(tmp_path / "a" / path.name)
    for i in (1, 2):
        Image.fromarray(np.full((6, 6, 3), i, np.uint8)).save(tmp_path / "a" / f"{i}.png")
    assert labels(tmp_path) == {"a": 2, f"a/m.{kind}": 4}


# FILES MADE TO DO HARM


@pytest.mark.skipif(os.name != "posix", reason="a script as POSIX has it")
def test_a_picture_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow gives PostScript to Ghostscript, whatever the file's name is."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nshowpage\n"
    (tmp_path / "a.png").write_bytes(script)
    with pytest.raises(ValueError, match=r"a.png: expected an image .* cannot be read"):
        load(tmp_path / "a.png")
    assert not (tmp_path / "started").exists()


def jpeg(*, passes: int = 0, hidden: bool = False, note: bytes = b"") -> bytes:
    """A progressive JPEG whose last pass comes again and again, with a comment."""
    out = io.BytesIO()
    grey(77, 16).save(out, "JPEG", progressive=True)
    data = out.getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    # libjpeg goes on after such a marker where it looks for a restart; with a length, it would hide what follows
    cover = b"\xff\x02\xff\xff" if hidden else b""
    comment = b"\xff\xfe" + (len(note) + 2).to_bytes(2, "big") + note
    return data[:2] + comment + data[2:-2] + cover + last * passes + data[-2:]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_jpeg_of_too_many_passes_is_not_decoded(
    tmp_path: Path, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a few bytes and a walk over all pixels, which nothing can interrupt."""
    path = tmp_path / "a.jpg"
    # a preview in a comment has passes of its own, and so may have what follows the picture
    path.write_bytes(jpeg(passes=20, note=b"\xff\xda\0\2" * 1000) + jpeg(passes=1000))
    assert (read(path) == 77).all()
    path.write_bytes(jpeg(passes=1000, hidden=hidden))
    monkeypatch.delattr(Image.Image, "convert")
    with pytest.raises(ValueError, match=r"a.jpg: .*a JPEG of more than \d+ passes"):
        read(path)


def test_the_frames_of_a_gif_are_counted_as_large_as_they_are() -> None:
    """Those after the first may be larger."""

    def frame(side: int) -> bytes:
        place = bytes([0, 0, 0, 0, side, 0, side, 0, 0])
        # a length of two, too few bits for large ones, and the end
        return b"\x2c" + place + b"\x02\x02\x44\x01\x00"

    data = b"GIF89a" + bytes([1, 0, 1, 0, 0x80, 0, 0, 0, 0, 0, 255, 255, 255]) + frame(1) + frame(200) + b"\x3b"
    with pytest.raises(ValueError, match=r"x.gif: expected at most 1,000 pixels, got 2 × 200 × 200"):
        list(upload(data, "x.gif", (1, 4, 4), most=5, pixels=1000))


def chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG."""
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def test_the_colour_profiles_of_a_png_are_not_unpacked_one_after_another() -> None:
    out = io.BytesIO()
    grey(9).save(out, "PNG")
    data, profile = out.getvalue(), chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(2**10)))
    (levels,) = upload(data[:33] + profile + data[33:], "x.png", (3, 6, 6), most=1)
    assert levels.shape == (3, 6, 6)
    with pytest.raises(ValueError, match=r"x.png: expected an image with one colour profile, got more"):
        list(upload(data[:33] + 1000 * profile + data[33:], "x.png", (1, 6, 6), most=1))


# WHAT THE SAMPLES OF A FILE MEAN


def png_of(depth: int, kind: int, data: bytes, clear: bytes | None = None) -> bytes:
    """A PNG of two pixels by hand: kind 0 is grey, 2 colour; Pillow writes no such depths."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, depth, kind, 0, 0, 0))
    some = b"" if clear is None else chunk(b"tRNS", clear)
    return b"\x89PNG\r\n\x1a\n" + head + some + chunk(b"IDAT", zlib.compress(b"\0" + data)) + chunk(b"IEND", b"")


def tiff_of(bits: int, sign: int, data: bytes, *more: tuple[int, int], photometric: int = 1) -> bytes:
    """A grey TIFF of two pixels by hand; `more` are further entries, of one number each."""
    entries = [(256, 2), (257, 1), (258, bits), (259, 1), (262, photometric), (277, 1), (278, 1), (279, len(data))]
    entries += [(339, sign), *more]
    end = 8 + 2 + 12 * (len(entries) + 1) + 4
    listed = sorted([*entries, (273, end)])
    head = b"II*\0" + struct.pack("<IH", 8, len(listed))
    return head + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in listed) + bytes(4) + data


saved = Image.fromarray
TURNED = Image.Exif()
TURNED[0x0112] = 3  # upside down
READ: dict[str, tuple[Image.Image | bytes, list[int]]] = {
    "bits": (saved(np.array([[True, False]])), [255, 0]),
    "16 bits": (saved(np.array([[0, 25800, 65535]], np.uint16)), [0, 100, 255]),
    "grey on white where it is clear": (saved(np.array([[[9, 255], [9, 0]]], np.uint8)), [9, 255]),
    "colour on white where it is clear": (
        saved(np.array([[[1, 2, 3, 255], [1, 2, 3, 0]]], np.uint8)),
        [1, 2, 3, 255, 255, 255],
    ),
    "as the camera was held": (saved(COLOUR), COLOUR[::-1, ::-1].flatten().tolist()),
    "a palette": (saved(COLOUR).quantize(4), COLOUR.flatten().tolist()),
    "8 bits, black is clear": (png_of(8, 0, bytes([0, 200]), struct.pack(">H", 0)), [255, 200]),
    "1 bit, black is clear": (png_of(1, 0, bytes([0b01000000]), struct.pack(">H", 0)), [255, 255]),
    "4 bits, 5 is clear": (png_of(4, 0, bytes([0x53]), struct.pack(">H", 5)), [255, 51]),
    "16 bits, 300 is clear": (png_of(16, 0, struct.pack(">HH", 300, 60000), struct.pack(">H", 300)), [255, 233]),
    "32 bits": (tiff_of(32, 1, struct.pack("<2I", 2**32 - 1, 2**31)), [255, 127]),
    "32 bits with a sign": (tiff_of(32, 2, struct.pack("<2i", 2**31 - 1, 0)), [255, 0]),
    "12 bits": (tiff_of(12, 1, bytes([0xFF, 0xF8, 0x00])), [255, 127]),
    "12 bits in 16, which are said": (tiff_of(16, 1, struct.pack("<2H", 4095, 2048), (281, 4095)), [255, 127]),
    "16 bits, white is 0": (tiff_of(16, 1, struct.pack("<2H", 0, 65535), photometric=0), [255, 0]),
    "a blank of 16 bits": (tiff_of(16, 1, bytes(4)), [0, 0]),
    "PGM up to 4095": (b"P5 2 1 4095\n" + struct.pack(">2H", 4095, 2048), [255, 127]),
}


@pytest.mark.parametrize("name", READ)
def test_samples_are_read_in_their_range(tmp_path: Path, name: str) -> None:
    data, wanted = READ[name]
    if isinstance(data, bytes):
        (tmp_path / "a.png").write_bytes(data)  # Pillow goes by what is in it
    else:
        data.save(tmp_path / "a.png", exif=TURNED if "camera" in name else None)
    assert read(tmp_path / "a.png").flatten().tolist() == wanted


UNCLEAR = {
    "12 bits in 16": tiff_of(16, 1, struct.pack("<2H", 4095, 2048)),
    "12 bits in 16 in colour": png_of(16, 2, struct.pack(">6H", 4095, 0, 0, 0, 100, 0)),
    "numbers below 0": tiff_of(32, 2, struct.pack("<2i", -1, 2**31 - 1)),
    "more than white": tiff_of(16, 1, struct.pack("<2H", 4095, 5000), (281, 4095)),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_samples_of_an_unknown_range_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.png").write_bytes(UNCLEAR[name])
    with pytest.raises(ValueError, match=r"a.png: .*range is not known"):
        read(tmp_path / "a.png")


# WHAT A RUN KEEPS OF ITS IMAGES


def test_changes_are_counted() -> None:
    def marks(*images: tuple[str, int]) -> torch.Tensor:
        kinds, pixels = zip(*images, strict=True)
        return ClassImages.from_labels(
            np.array(pixels, np.uint8)[:, None, None, None], np.array(kinds), binary=False
        ).marks

    before = marks(("a", 1), ("b", 2), ("c", 3), ("d", 3))
    assert changes(before, before) == ""
    assert changes(before, marks(("e", 1), ("f", 2), ("g", 3), ("h", 3))) == ""  # names alone
    many = marks(("a", 1), ("b", 8), ("d", 3), ("e", 9), ("f", 7))
    assert changes(before, many) == "2 added, 1 removed, 1 changed"
    assert "in another order" in changes(before, marks(("a", 2), ("b", 1), ("c", 3), ("d", 3)))
    assert "in other classes" in changes(before, marks(("a", 1), ("a", 2), ("c", 3), ("d", 3)))
