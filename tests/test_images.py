"""Folders and arrays of the user's own: read as they are, split without overlap, and refused with a reason."""

import io
import os
import struct
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from kanerva import files
from kanerva.data import ClassImages, changes, load
from kanerva.data.own import from_bytes, ink_of, is_sheet, write_sheet


def grey(value: int, side: int = 6) -> Image.Image:
    """An image whose pixels tell which it is."""
    return Image.fromarray(np.full((side, side), value, np.uint8))


def folder_of(root: Path, classes: dict[str, int], suffix: str = ".png") -> Path:
    value = 0
    for name, count in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            grey(value).save(root / name / f"{i:03d}{suffix}")
            value += 1
    return root


def values(images: ClassImages) -> list[int]:
    return images.pixels[:, 0, 0, 0].tolist()


def splits(name: Any, **options: Any) -> tuple[ClassImages, ClassImages]:
    return load(name, "train", **options), load(name, "test", **options)


def test_images_sub_folders_are_classes(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "set", {f"{c:02d}": 3 for c in range(20)})
    train, test = splits(root)
    assert (train.num_classes, test.num_classes) == (15, 5)
    assert not set(train.labels) & set(test.labels)
    assert sorted(values(train) + values(test)) == list(range(60))
    for images in (train, test):
        assert images.shape == (1, 6, 6)
        assert (images.name, images.binary) == ("set", False)
        for label, start, count in zip(images.labels, images.start, images.count, strict=True):
            assert values(images)[start : start + count] == [3 * int(label) + i for i in range(3)]
    again = load(str(root))
    assert torch.equal(again.pixels, train.pixels)
    assert again.labels == train.labels


def test_images_of_a_folder_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path / "set", {"": 4})
    monkeypatch.chdir(tmp_path)
    assert len(load("set")) == 3


def test_images_of_few_classes_are_held_out_of_each(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "set", {"a": 8, "b": 4, "c": 1})
    train, test = splits(root, holdout=0.5)
    assert train.num_classes == test.num_classes == 2  # the only image of c is on one side
    assert sorted(values(train) + values(test)) == list(range(13))


def test_images_of_a_flat_folder_are_classes_of_their_own(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "set", {"": 8})
    train, test = splits(root)
    assert train.num_classes + test.num_classes == 8
    assert set(train.count.tolist()) | set(test.count.tolist()) == {1}
    assert sorted(values(train) + values(test)) == list(range(8))
    assert all(label.endswith(".png") for label in train.labels)


def test_images_in_deeper_folders_and_hidden_ones(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "set", {"x/1": 2, "x/2": 2, "y/1": 2})
    folder_of(root / ".thumbnails", {"": 3})
    (root / "notes.txt").write_text("not an image")
    (root / "x" / "1" / ".hidden.png").write_bytes(b"")
    assert load(root, holdout=0.0).labels == ("x/1", "x/2", "y/1")


@pytest.mark.parametrize("holdout", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("n", [2, 5, 40])
def test_images_holdout_is_a_share(tmp_path: Path, holdout: float, n: int) -> None:
    np.save(tmp_path / "a.npy", np.arange(n, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8))
    train = load(tmp_path / "a.npy", holdout=holdout)
    held = n - len(train)
    # a hash decides for each image: their number is binomial, here within three standard deviations, or one
    spread = 1 + 3 * (n * holdout * (1 - holdout)) ** 0.5
    assert abs(held - holdout * n) <= spread
    assert (0 < held < n) == (holdout > 0)
    if held:
        test = load(tmp_path / "a.npy", "test", holdout=holdout)
        assert sorted(values(train) + values(test)) == list(range(n))


def only(tmp_path: Path, image: Image.Image, name: str = "a.png", **options: Any) -> ClassImages:
    """A folder of one image, all of it for training."""
    (tmp_path / "one").mkdir(exist_ok=True)
    image.save(tmp_path / "one" / name)
    return load(tmp_path / "one", holdout=0.0, **options)


COLOUR = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8)


def test_images_in_colour(tmp_path: Path) -> None:
    images = only(tmp_path, Image.fromarray(COLOUR))
    assert images.shape == (3, 2, 2)
    assert np.array_equal(images.pixels[0].numpy(), COLOUR.transpose(2, 0, 1))
    assert only(tmp_path, Image.fromarray(COLOUR), channels=1).pixels.flatten().tolist() == [76, 150, 29, 255]
    grey(7).resize((2, 2)).save(tmp_path / "one" / "b.png")  # grey among colours becomes colour
    assert load(tmp_path / "one", holdout=0.0).pixels[1].unique().tolist() == [7]
    assert load(tmp_path / "one", holdout=0.0).shape == (3, 2, 2)
    assert only(tmp_path / "one", grey(9), channels=3).shape == (3, 6, 6)


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        (Image.fromarray(np.array([[True, False]])), [255, 0]),
        (Image.fromarray(np.array([[0, 25800, 65535]], np.uint16)), [0, 100, 255]),
        (Image.fromarray(np.array([[[9, 255], [9, 0]]], np.uint8)), [9, 255]),  # grey, clear on white
    ],
)
def test_images_of_other_kinds(tmp_path: Path, image: Image.Image, wanted: list[int]) -> None:
    images = only(tmp_path, image)
    assert images.shape[0] == 1
    assert images.pixels.flatten().tolist() == wanted


def test_images_with_transparency_and_palette(tmp_path: Path) -> None:
    clear = Image.fromarray(np.array([[[1, 2, 3, 255], [1, 2, 3, 0]]], np.uint8))
    assert only(tmp_path, clear).pixels[0, :, 0].tolist() == [[1, 255], [2, 255], [3, 255]]
    palette = Image.fromarray(COLOUR).quantize(4)
    assert np.array_equal(only(tmp_path, palette).pixels[0].numpy(), COLOUR.transpose(2, 0, 1))


def test_images_are_turned_as_the_camera_says(tmp_path: Path) -> None:
    image = Image.fromarray(COLOUR)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    (tmp_path / "one").mkdir()
    image.save(tmp_path / "one" / "a.png", exif=exif)
    turned = load(tmp_path / "one", holdout=0.0).pixels[0].numpy()
    assert np.array_equal(turned, COLOUR[::-1, ::-1].transpose(2, 0, 1))


def test_images_resized(tmp_path: Path) -> None:
    blocks = np.kron(np.array([[0, 100], [200, 50]]), np.ones((4, 4))).astype(np.uint8)
    assert only(tmp_path, Image.fromarray(blocks), size=2).pixels.flatten().tolist() == [0, 100, 200, 50]
    checks = np.tile(np.array([[0, 200], [200, 0]], np.uint8), (4, 4))
    assert only(tmp_path, Image.fromarray(checks), size=2).pixels.unique().tolist() == [100]  # areas are averaged
    assert only(tmp_path, Image.fromarray(blocks), size=(16, 20)).shape == (1, 16, 20)
    wide = np.zeros((4, 12), np.uint8)
    wide[:, 4:8] = 255
    assert only(tmp_path, Image.fromarray(wide), size=4).pixels.unique().tolist() == [255]  # cut to the middle


@pytest.mark.parametrize(
    ("binary", "invert", "wanted"),
    [
        (None, False, [0, 100, 200, 255]),
        (False, False, [0, 100, 200, 255]),
        (None, True, [255, 155, 55, 0]),
        (True, False, [0, 0, 1, 1]),
        (0.3, False, [0, 1, 1, 1]),
        (1.0, False, [0, 0, 0, 1]),
        (0.5, True, [1, 1, 0, 0]),
    ],
)
def test_images_binary_and_inverted(
    tmp_path: Path, binary: float | bool | None, invert: bool, wanted: list[int]
) -> None:
    row = np.array([[0, 100, 200, 255]], np.uint8)
    np.save(tmp_path / "a.npy", row[None])
    folder = only(tmp_path, Image.fromarray(row), binary=binary, invert=invert)
    array = load(tmp_path / "a.npy", holdout=0.0, binary=binary, invert=invert)
    for images in (folder, array):
        assert images.pixels.flatten().tolist() == wanted
        assert images.binary == (binary not in (None, False))


def test_images_binary_makes_colour_grey(tmp_path: Path) -> None:
    images = only(tmp_path, Image.fromarray(COLOUR), binary=0.5)
    assert images.pixels.flatten().tolist() == [0, 1, 0, 1]
    assert images.shape == (1, 2, 2)


ARRAYS: dict[str, tuple[np.ndarray, tuple[int, int, int], list[int], bool]] = {
    "bytes": (np.array([[[0, 7], [9, 255]]], np.uint8), (1, 2, 2), [0, 7, 9, 255], False),
    "bytes with a channel": (np.array([[[[3], [7]]]], np.uint8), (1, 1, 2), [3, 7], False),
    "colour, channels last": (np.array([[[[1, 2, 3], [4, 5, 6]]]], np.uint8), (3, 1, 2), [1, 4, 2, 5, 3, 6], False),
    "floating point": (np.array([[[0, 0.5, 1]]], np.float32), (1, 1, 3), [0, 128, 255], False),
    "double": (np.array([[[0, 0.2, 1]]]), (1, 1, 3), [0, 51, 255], False),
    "half": (np.array([[[0, 0.5, 1]]], np.float16), (1, 1, 3), [0, 128, 255], False),
    "bool": (np.array([[[True, False]]]), (1, 1, 2), [1, 0], True),
    "bits as bytes": (np.array([[[1, 0]]], np.uint8), (1, 1, 2), [1, 0], True),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_images_from_arrays(tmp_path: Path, name: str, suffix: str) -> None:
    array, shape, wanted, binary = ARRAYS[name]
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(path, array)
    else:
        np.savez(path, images=array)
    images = load(path, holdout=0.0)
    assert images.shape == shape
    assert images.pixels.flatten().tolist() == wanted
    assert images.binary == binary


def test_images_from_arrays_resized_and_in_other_channels(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.kron([[0, 200]], np.ones((8, 4)))[None].astype(np.uint8))
    assert load(tmp_path / "a.npy", holdout=0.0, size=2).pixels.tolist() == [[[[0, 200], [0, 200]]]]
    assert load(tmp_path / "a.npy", holdout=0.0, channels=3).shape == (3, 8, 8)
    np.save(tmp_path / "c.npy", COLOUR[None])
    assert load(tmp_path / "c.npy", holdout=0.0, channels=1).pixels.flatten().tolist() == [76, 150, 29, 255]
    assert load("images", holdout=0.0, path=tmp_path / "c.npy").shape == (3, 2, 2)


@pytest.mark.parametrize("labels", [[3, 1, 1, 3, 2] * 8, list("cbaac") * 8])
def test_images_from_arrays_with_labels(tmp_path: Path, labels: list[Any]) -> None:
    n = len(labels)
    pixels = np.arange(n, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.array(labels))
    train, test = splits(tmp_path / "a.npz")
    assert sorted(values(train) + values(test)) == list(range(n))
    for images in (train, test):
        assert images.labels == tuple(sorted({str(label) for label in labels}))
        found = np.repeat(images.labels, images.count)
        assert [str(labels[v]) for v in values(images)] == found.tolist()


def torn(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 6), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:60])


# what to write, options, type of error, and what its message must say
BAD: dict[str, tuple[Callable[[Path], Any], dict[str, Any], type[Exception], str]] = {
    "an empty folder": (lambda p: p.mkdir(), {}, ValueError, r"data: expected image files \(.png, .* got none"),
    "a folder of something else": (
        lambda p: (p.mkdir(), (p / "a.txt").write_text("x")),
        {},
        ValueError,
        r"data: expected image files",
    ),
    "a file that is no image": (
        lambda p: (p.mkdir(), (p / "z.png").write_text("x")),
        {},
        ValueError,
        r"data/z.png: expected an image, but it cannot be read \(.*z.png'\)$",
    ),
    "half a file": (
        lambda p: torn(folder_of(p, {"a": 0}) / "a" / "z.png"),
        {},
        ValueError,
        r"data/a/z.png: expected an image, but it cannot be read",
    ),
    "nothing that can be read": (
        lambda p: (p.mkdir(), [(p / f"{i}.png").write_text("x") for i in range(3)]),
        {},
        ValueError,
        r"data/0.png: expected an image, .*; the other 2 cannot be read either",
    ),
    "floating point pixels": (
        lambda p: (p.mkdir(), Image.fromarray(np.zeros((2, 2), np.float32)).save(p / "a.tiff")),
        {},
        ValueError,
        r"a.tiff: .*floating point pixels, whose range is not known",
    ),
    "two sizes": (
        lambda p: (folder_of(p, {"a": 2}), grey(1, 7).save(p / "a" / "z.png")),
        {},
        ValueError,
        r"data/a/z.png: expected 6×6 \(height × width\) like a/000.png, got 7×7 .* give size=",
    ),
    "images and sub-folders": (
        lambda p: folder_of(p, {"": 1, "a": 1}),
        {},
        ValueError,
        r"data: expected images either in it or in its sub-folders .* 000.png and a/000.png",
    ),
    "a text file": (
        lambda p: p.write_text("x"),
        {},
        ValueError,
        r"data: expected a folder .* got a file without an ending$",
    ),
    "one image to test with": (
        lambda p: folder_of(p, {"": 1}),
        {"split": "test"},
        ValueError,
        r"data: expected images for the test split, but none is held out of 1 in 1 classes with holdout=0.25",
    ),
    "no holdout to test with": (
        lambda p: folder_of(p, {"": 5}),
        {"split": "test", "holdout": 0.0},
        ValueError,
        r"none is held out of 5 .* holdout=0.0; it takes a holdout above 0",
    ),
    "everything held out": (
        lambda p: folder_of(p, {"": 5}),
        {"holdout": 1.0},
        ValueError,
        r"holdout: expected a share from 0 to less than 1, got 1.0",
    ),
    "two channels": (lambda p: None, {"channels": 2}, ValueError, r"channels: expected 1 \(grey\), 3 .* got 2"),
    "binary colour": (
        lambda p: None,
        {"channels": 3, "binary": 0.5},
        ValueError,
        r"binary: expected grey images, got channels=3",
    ),
    "a threshold of 128": (
        lambda p: None,
        {"binary": 128.0},
        ValueError,
        r"binary: .* above 0 and up to 1, got 128",
    ),
    "no size": (lambda p: None, {"size": 0}, ValueError, r"size: expected a side or \(height, width\) .* got 0"),
    "huge size": (lambda p: None, {"size": 10**30}, ValueError, r"size: expected at most 100,000,000 pixels"),
    "three sizes": (lambda p: None, {"size": (1, 2, 3)}, ValueError, r"size: .* got \(1, 2, 3\)"),
    "size as text": (lambda p: None, {"size": "28"}, ValueError, r"size: .* got '28'"),
}

BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "one image": ({"images": np.zeros((2, 2), np.uint8)}, r"got shape \(2, 2\)$"),
    "two channels": (
        {"images": np.zeros((1, 4, 4, 2), np.uint8)},
        r"with 1 or 3 channels, got shape \(1, 4, 4, 2\)",
    ),
    "channels first": ({"images": np.zeros((1, 3, 4, 4), np.uint8)}, r"\(1, 3, 4, 4\); put the channels last"),
    "no images": ({"images": np.zeros((0, 4, 4), np.uint8)}, r"got shape \(0, 4, 4, 1\)"),
    "whole numbers": ({"images": np.zeros((1, 4, 4), np.int64)}, r"expected uint8, bool, or floating .* got int64"),
    "too large": ({"images": np.full((1, 4, 4), 1.5)}, r"on \[0, 1\], got values from 1.5 to 1.5"),
    "negative": ({"images": np.full((1, 4, 4), -0.5)}, r"on \[0, 1\], got values from -0.5"),
    "NaN": ({"images": np.full((1, 4, 4), np.nan)}, r"on \[0, 1\], got values from nan"),
    "objects": ({"images": np.array([None])}, r"without objects, but: objects, which only pickle"),
    "another key": ({"x": np.zeros(3), "y": np.zeros(3)}, r"there is no key `images`, only x, y"),
    "a label too many": (
        {"images": np.zeros((2, 2, 2), np.uint8), "labels": np.zeros(3)},
        r"expected one label for each of 2 images, got shape \(3,\)",
    ),
}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_named(tmp_path: Path, name: str) -> None:
    write, options, kind, message = BAD[name]
    write(tmp_path / "data")
    with pytest.raises(kind, match=message):
        load(tmp_path / "data", **options)


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_arrays_are_named(tmp_path: Path, name: str) -> None:
    arrays, message = BAD_ARRAYS[name]
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=rf"a\.npz: .*{message}"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("keep", [0, 60, 150])
def test_torn_arrays_are_named(tmp_path: Path, suffix: str, keep: int) -> None:
    path = tmp_path / f"a{suffix}"
    save: Any = np.save if suffix == ".npy" else np.savez
    save(path, **{"arr" if suffix == ".npy" else "images": np.zeros((9, 5, 5), np.uint8)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"a\{suffix}: expected arrays saved by numpy"):
        load(path)


# links, names, permissions, sizes


def test_linked_folders_are_classes_too(tmp_path: Path) -> None:
    folder_of(tmp_path / "set", {"a": 2})
    folder_of(tmp_path / "elsewhere", {"b": 2})
    (tmp_path / "set" / "b").symlink_to(tmp_path / "elsewhere" / "b")
    (tmp_path / "set" / "c").symlink_to(tmp_path / "elsewhere" / "b")  # the same twice is no loop
    assert load(tmp_path / "set", holdout=0.0).labels == ("a", "b", "c")


@pytest.mark.parametrize("target", [".", "..", "../a", "../.."])
def test_a_link_that_leads_back_is_named(tmp_path: Path, target: str) -> None:
    folder_of(tmp_path / "set", {"a": 2})
    (tmp_path / "set" / "a" / "again").symlink_to(target)
    with pytest.raises(ValueError, match=r"again: a link back to .*, which holds it; remove the link"):
        load(tmp_path / "set")


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    folder_of(tmp_path / "set", {"a": 2})
    (tmp_path / "set" / "a" / "x.png").symlink_to("gone.png")
    with pytest.warns(UserWarning, match=r"1 of 3 files left out: a/x.png: a link to gone.png, which is not there"):
        assert len(load(tmp_path / "set", holdout=0.0)) == 2


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    folder_of(tmp_path / "set", {"a": 2})
    (tmp_path / "set" / "a" / "x.png").symlink_to("x.png")
    with pytest.warns(UserWarning, match=r"1 of 3 files left out: a/x.png: a link to x.png, which is not there"):
        assert len(load(tmp_path / "set", holdout=0.0)) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes on Linux")
def test_names_that_are_not_utf_8_can_be_printed(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "set", {"a": 2, os.fsdecode(b"\xff"): 2, os.fsdecode(b"\xfe"): 2})
    root = root.rename(tmp_path / os.fsdecode(b"\xfd"))
    images = load(root, holdout=0.0)
    assert images.labels == ("\\xfe", "\\xff", "a")
    assert images.name == "\\xfd"


def test_a_folder_that_may_not_be_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, scan = folder_of(tmp_path / "set", {"a": 2, "b": 2}), os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*set/b'"):
        load(root)


def test_a_file_that_may_not_be_read_is_not_called_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder_of(tmp_path / "set", {"a": 2})

    def refuse(path: Any, **_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*set/a/000.png'"):
        load(root)


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_an_image_of_too_many_pixels_is_not_decoded(
    tmp_path: Path, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow warns of the first and refuses the second."""
    root = folder_of(tmp_path / "set", {"a": 2})
    data = bytearray((root / "a" / "000.png").read_bytes())
    data[16:24] = 2 * side.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    (root / "a" / "000.png").write_bytes(data)
    monkeypatch.delattr(Image.Image, "convert")
    (root / "a" / "001.png").unlink()
    with pytest.raises(ValueError, match=r"a/000.png: expected at most 89,478,485 pixels, but: Image size"):
        load(root, size=6)


def test_a_folder_that_does_not_fit_into_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder_of(tmp_path / "set", {"a": 20})
    monkeypatch.setattr(files, "FREE", 20 * 36 - 1)
    monkeypatch.setattr(files, "memory", lambda: 20 * 36)
    match = r"20 images of 6×6 .*at most a quarter of .*; a smaller size=… reduces"
    with pytest.raises(ValueError, match=f"set: {match}"):
        load(root)
    # nor is an array made so large
    np.save(tmp_path / "a.npy", np.zeros((20, 2, 2), np.uint8))
    with pytest.raises(ValueError, match=f"a.npy: {match}"):
        load(tmp_path / "a.npy", size=6)


def test_an_image_of_another_size_ends_the_reading(tmp_path: Path) -> None:
    """Before the next one, which is no image, is looked at."""
    root = folder_of(tmp_path / "set", {"a": 2})
    grey(0, side=7).save(root / "a" / "001.png")
    (root / "a" / "002.png").write_bytes(b"none")
    with pytest.raises(ValueError, match=r"001.png: expected 6×6 .* got 7×7"):
        load(root)


# videos


def clip(path: Path, values: range, side: int = 4) -> Path:
    """A video whose frames are of one grey each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = np.array(values, np.uint8)[:, None, None, None] * np.ones((1, side, side, 3), np.uint8)
    np.savez_compressed(path, video=frames, actions=np.zeros(len(frames), np.int64))
    return path


def test_a_video_is_a_class(tmp_path: Path) -> None:
    for number in range(12):
        clip(tmp_path / "set" / f"{number:02d}.npz", range(5 * number, 5 * number + 5))
    train, test = splits(tmp_path / "set")
    assert train.shape == (3, 4, 4)
    assert (train.num_classes, test.num_classes) == (9, 3)
    assert not set(train.labels) & set(test.labels)
    for images in (train, test):
        assert (images.count == 5).all()
        for label, start in zip(images.labels, images.start, strict=True):
            assert values(images)[start : start + 5] == [5 * int(label[:2]) + i for i in range(5)]
    assert load(tmp_path / "set", size=2, channels=1).shape == (1, 2, 2)


def test_one_video(tmp_path: Path) -> None:
    train, test = splits(clip(tmp_path / "a.npz", range(8)))
    assert train.labels == test.labels == ("a.npz",)
    assert 0 < len(test) < len(train)
    assert sorted(values(train) + values(test)) == list(range(8))


def test_videos_in_folders_of_splits_are_split_like_that(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "test", "val")):
        clip(tmp_path / split / "0.npz", range(10 * number, 10 * number + 3))
    train, test = splits(tmp_path)
    assert (values(train), train.labels) == ([0, 1, 2], ("train/0.npz",))
    assert (values(test), test.labels) == ([10, 11, 12], ("test/0.npz",))


def moving(path: Path, count: int = 4, kind: str = "gif") -> Path:
    frames = [Image.fromarray(np.full((6, 6, 3), 20 * i, np.uint8)) for i in range(count)]
    path.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"lossless": True} if kind == "webp" else {}
    frames[0].save(path / f"m.{kind}", save_all=True, append_images=frames[1:], **options)
    return path / f"m.{kind}"


@pytest.mark.parametrize("kind", ["gif", "png", "webp"])
def test_a_picture_that_moves_is_a_class_of_its_frames(tmp_path: Path, kind: str) -> None:
    path = moving(tmp_path, kind=kind)
    for name in (path, tmp_path):
        images = load(name, holdout=0.0)
        assert images.labels == (f"m.{kind}",)
        assert values(images) == [0, 20, 40, 60]
    (tmp_path / "a").mkdir()
    path.rename(tmp_path / "a" / path.name)
    for i in range(2):
        Image.fromarray(np.full((6, 6, 3), i, np.uint8)).save(tmp_path / "a" / f"{i}.png")
    images = load(tmp_path, holdout=0.0)
    assert dict(zip(images.labels, images.count.tolist(), strict=True)) == {"a": 2, f"a/m.{kind}": 4}


def test_the_pages_of_a_tiff_are_not_frames(tmp_path: Path) -> None:
    assert len(load(moving(tmp_path, kind="tiff"), holdout=0.0)) == 1


def test_damaged_videos_are_named(tmp_path: Path) -> None:
    clip(tmp_path / "set" / "0.npz", range(3))
    path = clip(tmp_path / "set" / "1.npz", range(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(ValueError, match=r"1.npz: expected arrays saved by numpy"):
        load(tmp_path / "set")
    np.savez(path, images=np.zeros((3, 4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=r"1.npz: .* no key `video`, only images"):
        load(tmp_path / "set")
    np.savez(path, video=np.zeros((3, 4, 4, 3, 3), np.uint8))
    with pytest.raises(ValueError, match=r"1.npz: expected images N×height×width .* got shape \(3, 4, 4, 3, 3\)"):
        load(tmp_path / "set")
    clip(path, range(3), side=5)
    with pytest.raises(ValueError, match=r"1.npz: expected 4×4 .* like 0.npz, got 5×5"):
        load(tmp_path / "set")
    torn = moving(tmp_path, kind="gif")
    torn.write_bytes(torn.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"m.gif: expected an image, but it cannot be read"):
        load(torn)


@pytest.mark.parametrize("many", ["videos", "frames"])
def test_more_than_there_is_room_for_is_not_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: str
) -> None:
    monkeypatch.setattr(files, "FREE", 1_000)
    monkeypatch.setattr(files, "memory", lambda: 4_000)
    if many == "videos":
        for number in range(9):
            clip(tmp_path / "set" / f"{number}.npz", range(3))
    else:
        moving(tmp_path / "set", 12)
    with pytest.raises(ValueError, match=r"set: \d+ images of .* expected at most a quarter"):
        load(tmp_path / "set")


# Files made to do harm


@pytest.mark.skipif(os.name != "posix", reason="a script as POSIX has it")
def test_a_picture_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow gives PostScript to Ghostscript, whatever the file's name is."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    root = folder_of(tmp_path / "set", {"a": 2})
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nshowpage\n"
    (root / "a" / "000.png").write_bytes(script)
    with pytest.raises(ValueError, match=r"a/000.png: expected an image, but it cannot be read"):
        load(root / "a" / "000.png")
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
    assert values(load(path, holdout=0.0)) == [77]
    path.write_bytes(jpeg(passes=1000, hidden=hidden))
    monkeypatch.delattr(Image.Image, "convert")
    with pytest.raises(ValueError, match=r"a.jpg: .*a JPEG of more than \d+ passes"):
        load(path)


def test_the_frames_of_a_gif_are_counted_as_large_as_they_are() -> None:
    """Those after the first may be larger."""

    def frame(side: int) -> bytes:
        place = bytes([0, 0, 0, 0, side, 0, side, 0, 0])
        return (
            b"\x2c" + place + b"\x02\x02\x44\x01\x00"
        )  # a length of two, too few bits for large ones, and the end

    data = b"GIF89a" + bytes([1, 0, 1, 0, 0x80, 0, 0, 0, 0, 0, 255, 255, 255]) + frame(1) + frame(200) + b"\x3b"
    with pytest.raises(ValueError, match=r"x.gif: .*expected at most 1,000 pixels in all 2 frames"):
        list(from_bytes(data, "x.gif", (4, 4), 1, pixels=1000, frames=5))


def chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG."""
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def test_the_colour_profiles_of_a_png_are_not_unpacked_one_after_another() -> None:
    out = io.BytesIO()
    grey(9).save(out, "PNG")
    data, profile = out.getvalue(), chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(2**10)))
    for count in (1, 1000):
        both = data[:33] + count * profile + data[33:]
        if count == 1:
            assert len(list(from_bytes(both, "x.png", (6, 6), 1, pixels=1000, frames=1))) == 1
        else:
            with pytest.raises(ValueError, match=r"x.png: expected an image with one colour profile, got more"):
                list(from_bytes(both, "x.png", (6, 6), 1, pixels=1000, frames=1))


def test_odd_parts_of_a_file_are_not_warned_of_one_by_one(tmp_path: Path) -> None:
    """Nor can a file send any number of lines to the terminal."""
    path = tmp_path / "a.png"
    grey(9).save(path)
    data, tags = path.read_bytes(), b""
    for tag in range(1000, 1100):
        tags += tag.to_bytes(2, "little") + b"\7\0" + (10**6).to_bytes(4, "little") + b"\x08\0\0\0"
    exif = b"II*\0\x08\0\0\0" + (100).to_bytes(2, "little") + tags + bytes(4)
    path.write_bytes(data[:33] + chunk(b"eXIf", exif) + data[33:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert values(load(path, holdout=0.0)) == [9]


# what moves from one side of the split to the other, and what does not


def loose(root: Path, count: int, start: int = 0) -> list[Path]:
    """Pictures of their own, without classes."""
    root.mkdir(exist_ok=True)
    random = np.random.default_rng(start)
    paths = [root / f"{start + i:03d}.png" for i in range(count)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (6, 6), np.uint8)).save(path)
    return paths


def held(root: Path, **options: Any) -> set[bytes]:
    return {image.numpy().tobytes() for image in load(root, "test", **options).pixels}


def contents(paths: list[Path]) -> set[bytes]:
    return {np.asarray(Image.open(path)).tobytes() for path in paths}


def test_pictures_that_come_or_go_leave_the_others_where_they_are(tmp_path: Path) -> None:
    paths = loose(tmp_path / "set", 40)
    before = held(tmp_path / "set")
    more = loose(tmp_path / "set", 15, start=100)
    assert held(tmp_path / "set") & contents(paths) == before
    for path in more + paths[::2]:
        path.unlink()
    assert held(tmp_path / "set") == before & contents(paths[1::2])
    for path in paths[1::2]:
        path.rename(path.with_name(f"z{path.name[::-1][4:]}.png"))  # nor do names matter
    assert held(tmp_path / "set") == before & contents([*(tmp_path / "set").iterdir()])


def test_the_split_does_not_follow_the_size_or_the_kind(tmp_path: Path) -> None:
    paths = loose(tmp_path / "set", 20)
    names = load(tmp_path / "set", "test").labels
    for options in ({"size": 3}, {"binary": 0.5}, {"binary": 0.5, "invert": True}, {"channels": 3}):
        assert load(tmp_path / "set", "test", **options).labels == names
    Image.fromarray(COLOUR).resize((6, 6)).save(tmp_path / "set" / "zz.png")  # all become colour
    assert set(load(tmp_path / "set", "test").labels) - {"zz.png"} == set(names)
    np.save(tmp_path / "a.npy", np.stack([np.asarray(Image.open(path)) for path in paths]))
    assert held(tmp_path / "a.npy") == {np.asarray(Image.open(tmp_path / "set" / name)).tobytes() for name in names}


def test_copies_of_a_picture_are_on_one_side(tmp_path: Path) -> None:
    for path in loose(tmp_path / "set", 30):
        with Image.open(path) as image:
            image.save(path.with_suffix(".bmp"))
            image.convert("RGB").save(path.with_name(f"copy {path.name}"), compress_level=0)
    train, test = splits(tmp_path / "set")
    seen, unseen = ({image.numpy().tobytes() for image in images.pixels} for images in (train, test))
    assert (len(train), len(test)) == (3 * len(seen), 3 * len(unseen))
    assert not seen & unseen


def test_classes_that_come_or_go_leave_the_others_where_they_are(tmp_path: Path) -> None:
    folder_of(tmp_path / "set", {f"{c:02d}": 2 for c in range(30)})
    before = set(load(tmp_path / "set", "test").labels)
    folder_of(tmp_path / "set", {f"x{c:02d}": 2 for c in range(10)})
    assert {label for label in load(tmp_path / "set", "test").labels if label[0] != "x"} == before


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_few_pictures_are_on_both_sides(tmp_path: Path, n: int, seed: int) -> None:
    loose(tmp_path / "set", n, start=seed)
    train, test = splits(tmp_path / "set")
    assert len(train) + len(test) == n
    assert len(train) > 0 < len(test)


# pictures that cannot be read are left out


def test_pictures_that_cannot_be_read_are_left_out_and_listed(tmp_path: Path) -> None:
    paths = loose(tmp_path / "set", 8)
    torn(paths[2])
    paths[5].write_text("no picture")
    Image.fromarray(np.full((6, 6), 0.5, np.float32)).save(tmp_path / "set" / "z.tiff")
    with pytest.warns(UserWarning, match=r"set: 3 of 9 files left out: 002.png: .*; 005.png: .*; z.tiff: .*float"):
        images = load(tmp_path / "set", holdout=0.0)
    assert images.labels == tuple(path.name for path in paths if path not in (paths[2], paths[5]))


def test_a_picture_that_moves_is_left_out_whole(tmp_path: Path) -> None:
    """Also where its first frames are whole."""
    loose(tmp_path / "set", 2)
    frames = [Image.fromarray(np.random.default_rng(i).integers(0, 256, (6, 6), np.uint8)) for i in range(4)]
    path = tmp_path / "set" / "a.png"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"fdAT") + 10])
    with pytest.warns(UserWarning, match=r"1 of 3 files left out: a.png: "):
        assert load(tmp_path / "set", holdout=0.0).labels == ("000.png", "001.png")


def test_sheets_of_our_own_are_left_out(tmp_path: Path) -> None:
    loose(tmp_path / "set", 2)
    sheet = Image.fromarray(COLOUR).resize((60, 30))
    with (tmp_path / "set" / "recall.png").open("wb") as file:
        write_sheet(sheet, file)
    with Image.open(tmp_path / "set" / "recall.png") as again:
        cut, note = again.crop((0, 0, 6, 6)), PngInfo()
        note.add_text("Software", again.info["Software"])
        cut.save(tmp_path / "set" / "cut.png", pnginfo=note)  # a part of it is a picture again
    with pytest.warns(
        UserWarning, match=r"1 of 4 files left out: recall.png: a sheet of pictures that kanerva wrote"
    ):
        assert load(tmp_path / "set", holdout=0.0).labels == ("000.png", "001.png", "cut.png")
    assert is_sheet(tmp_path / "set" / "recall.png")
    assert not is_sheet(tmp_path / "set" / "000.png")
    assert not is_sheet(tmp_path / "nowhere.png")


# what the samples of a file mean


def png_of(depth: int, kind: int, data: bytes, clear: bytes | None = None) -> bytes:
    """A PNG of two pixels by hand: kind 0 is grey, 2 colour; Pillow writes no such depths."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

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


READ = {
    "8 bits, 10 is clear": (png_of(8, 0, bytes([10, 0]), struct.pack(">H", 10)), [255, 0]),
    "8 bits, black is clear": (png_of(8, 0, bytes([0, 200]), struct.pack(">H", 0)), [255, 200]),
    "1 bit, black is clear": (png_of(1, 0, bytes([0b01000000]), struct.pack(">H", 0)), [255, 255]),
    "2 bits, 1 is clear": (png_of(2, 0, bytes([0b01100000]), struct.pack(">H", 1)), [255, 170]),
    "4 bits, 5 is clear": (png_of(4, 0, bytes([0x53]), struct.pack(">H", 5)), [255, 51]),
    "16 bits, 300 is clear": (png_of(16, 0, struct.pack(">HH", 300, 60000), struct.pack(">H", 300)), [255, 233]),
    "32 bits": (tiff_of(32, 1, struct.pack("<2I", 2**32 - 1, 2**31)), [255, 127]),
    "32 bits with a sign": (tiff_of(32, 2, struct.pack("<2i", 2**31 - 1, 0)), [255, 0]),
    "16 bits with a sign": (tiff_of(16, 2, struct.pack("<2h", 2**15 - 1, 2**14)), [255, 127]),
    "12 bits": (tiff_of(12, 1, bytes([0xFF, 0xF8, 0x00])), [255, 127]),
    "12 bits in 16, which are said": (tiff_of(16, 1, struct.pack("<2H", 4095, 2048), (281, 4095)), [255, 127]),
    "16 bits, white is 0": (tiff_of(16, 1, struct.pack("<2H", 0, 65535), photometric=0), [255, 0]),
    "a blank of 16 bits": (tiff_of(16, 1, bytes(4)), [0, 0]),
    "PGM up to 4095": (b"P5 2 1 4095\n" + struct.pack(">2H", 4095, 2048), [255, 127]),
}


@pytest.mark.parametrize("name", READ)
def test_samples_are_read_in_their_range(tmp_path: Path, name: str) -> None:
    data, wanted = READ[name]
    (tmp_path / "a.png").write_bytes(data)  # Pillow goes by what is in it
    assert load(tmp_path, holdout=0.0).pixels.flatten().tolist() == wanted


UNCLEAR = {
    "12 bits in 16": tiff_of(16, 1, struct.pack("<2H", 4095, 2048)),
    "12 bits in 16 as PNG": png_of(16, 0, struct.pack(">2H", 4095, 0)),
    "12 bits in 16 in colour": png_of(16, 2, struct.pack(">6H", 4095, 0, 0, 0, 100, 0)),
    "8 bits in 32": tiff_of(32, 1, struct.pack("<2I", 255, 0)),
    "numbers below 0": tiff_of(32, 2, struct.pack("<2i", -1, 2**31 - 1)),
    "more than white": tiff_of(16, 1, struct.pack("<2H", 4095, 5000), (281, 4095)),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_samples_of_an_unknown_range_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.png").write_bytes(UNCLEAR[name])
    with pytest.raises(ValueError, match=r"a.png: .*values from .* where white is .*range is not known"):
        load(tmp_path, holdout=0.0)


def test_ink_is_decided_for_each_picture() -> None:
    dark = np.full((4, 4, 1), 255, np.uint8)
    dark[1] = 0
    for levels, said in ((dark, "dark"), (255 - dark, "light")):
        share, ink = ink_of(levels)
        assert ink == said
        assert share[..., 0].tolist() == [[0] * 4, [1] * 4, [0] * 4, [0] * 4]
    assert ink_of(dark, "light")[0].mean() == 0.75


# what a run keeps of its images


def test_changes_are_counted() -> None:
    def marks(*images: tuple[str, int]) -> torch.Tensor:
        labels, pixels = zip(*images, strict=True)
        return ClassImages.from_labels(
            np.array(pixels, np.uint8)[:, None, None, None], np.array(labels), binary=False
        ).marks

    before = marks(("a", 1), ("b", 2), ("c", 3), ("d", 3))
    assert changes(before, before) == ""
    assert changes(before, marks(("e", 1), ("f", 2), ("g", 3), ("h", 3))) == ""  # names alone
    assert changes(before, marks(("a", 1), ("b", 2), ("c", 3), ("d", 3), ("e", 9))) == "1 added"
    assert changes(before, marks(("a", 1), ("b", 2), ("c", 3))) == "1 removed"
    assert changes(before, marks(("a", 1), ("b", 8), ("c", 3), ("d", 3))) == "1 changed"
    many = marks(("a", 1), ("b", 8), ("d", 3), ("e", 9), ("f", 7))
    assert changes(before, many) == "2 added, 1 removed, 1 changed"
    assert "in another order" in changes(before, marks(("a", 2), ("b", 1), ("c", 3), ("d", 3)))
    assert "in other classes" in changes(before, marks(("a", 1), ("a", 2), ("c", 3), ("d", 3)))


def test_fourteen_bits_in_sixteen_are_refused(tmp_path: Path) -> None:
    """A range that ends at a quarter of what the file could hold is not one from black to white."""
    levels = np.linspace(0, 2**14 - 1, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(levels).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="where white is 65,535, so that their range is not known"):
        load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
def test_a_pipe_is_no_sheet_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    assert not is_sheet(tmp_path / "pipe.png")
