"""The user's own images: image files, arrays, videos or TFRecords, in a folder or one file.

Image files: those in sub-folders belong to the class of the folder that holds them, at any depth; in a flat folder
each image is a class of its own, so that an episode of n classes holds n different images. A GIF, PNG or WebP that
moves is a class of its own, of all its frames.
Array: images N×height×width or N×height×width×channels, as uint8, bool or floating point on [0, 1]; in an .npz
under the key `images`, with optional `labels` (N); without labels each image is a class of its own.
Videos: .npz files with such an array under the key `video`, as TECO's data sets are; a file is a class.
TFRecords, as TensorFlow Datasets writes them (dmlab): files with .tfrecord in their names, of tf.train.Example
messages with an encoded `image` and, for its class, a `label`; without it each image is a class of its own.
Videos in folders train/ and test/, and TFRecords named …-train.tfrecord… and …-test.tfrecord…, are split as these
say; others beside them are left out.
"""

import contextlib
import functools
import io
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from ..files import FREE, check_size, line, npz
from ..progress import bar
from .episodes import ClassImages

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm")
# Kinds of files that are read, whatever their names say: Pillow knows others, and starts a program for some.
KINDS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
# Kinds of files whose pictures are the frames of one; in a TIFF or a JPEG they are something else.
MOVING = ("GIF", "PNG", "WEBP")
# Kinds of files that browsers show.
WEB = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
# With fewer classes than this, holding out whole classes leaves too few of them on either side.
FEW = 10
# Pixels of one image that are resized to; Pillow takes about as many for a trap.
MOST = 10**8
# Passes over a progressive JPEG: encoders make about 10. A pass over 16 million pixels takes 40 bytes and 10 ms,
# and nothing interrupts it, so that a file of 160 kB would take 40 s.
SCANS = 32
# What begins a part of a JPEG. In its data, 255 is followed by 0 or by a marker that restarts the decoder.
MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
# Colour profiles in a PNG, of which one is allowed: Pillow unpacks them all, each to as much as 1 MB.
PROFILES = 10

Array = np.ndarray[Any, np.dtype[Any]]
# An image (height, width, 1 or 3), the name of its class, and where it was found.
Found = tuple[Array, str, str]
SOURCES = "a folder or file of images, an .npy or .npz file, or TFRecords"


def load(
    split: str = "train",
    path: str | os.PathLike[str] | None = None,
    size: int | tuple[int, int] | None = None,
    binary: float | bool | None = None,
    invert: bool = False,
    channels: int | None = None,
    holdout: float = 0.25,
) -> ClassImages:
    """Read images, in the same order on every run, and give those of one split.

    size: side, or (height, width), to resize to, cut to the middle if the proportions differ; without it all must
    be of one size. invert: black becomes white. binary: values of at least this share of white become 1, the others
    0 (True: 0.5); None keeps grey or colour, except for arrays that hold only 0 and 1. channels: 1 or 3; None keeps
    colour where there is any. holdout: the share kept for the test split: of classes, or, of fewer than 10 classes,
    of the images of each; not asked for where the files say themselves what is for tests. Transparent parts are
    white.
    """
    if path is None:
        raise ValueError(f"path: expected {SOURCES}, got none")
    if channels not in (None, 1, 3):
        raise ValueError(f"channels: expected 1 (grey), 3 (colour) or None, got {channels!r}")
    if not 0 <= holdout < 1:
        raise ValueError(f"holdout: expected a share from 0 to less than 1, got {holdout!r}")
    path, threshold, wanted = Path(path).expanduser(), _threshold(binary, channels), _size(size)
    depth, ready = 1 if threshold is not None else channels, False
    if not path.is_dir() and not path.is_file():
        raise FileNotFoundError(f"{path}: expected {SOURCES}, got no such file")
    if path.is_dir() or is_frames(path):
        pixels, labels, ready = _files(path, wanted, depth, split)
    else:
        pixels, labels, bits = _array_file(path, wanted, depth)
        if bits and binary is None and pixels.shape[1] == 1:
            threshold = 0.5
    if invert:
        pixels = 255 - pixels
    if threshold is not None:
        pixels = (pixels >= threshold * 255).astype(np.uint8)
    chosen = np.arange(len(labels)) if ready else _split(path, labels, split, holdout)
    return ClassImages.from_labels(
        pixels[chosen], labels[chosen], binary=threshold is not None, name=_shown(Path(path.name)), split=split
    )


def pictures(paths: Sequence[str | os.PathLike[str]], shape: tuple[int, int, int]) -> tuple[list[str], Array]:
    """Read image files, and those in folders, as uint8 (N, *shape), with their names; of one that moves, its start.

    shape: (channels, height, width) to bring each to, cut to the middle if the proportions differ.
    """
    channels, height, width = shape
    if channels not in (1, 3):
        raise ValueError(f"shape: expected 1 (grey) or 3 (colour) channels, got {channels}")
    found: list[Path] = []
    for path in map(Path, paths):
        path = path.expanduser()
        inside = sorted(path / name for name in _find(path) if is_image(name)) if path.is_dir() else [path]
        if not inside or not (path.is_dir() or path.is_file()):
            came = "a folder with none" if path.is_dir() else "no such file"
            raise FileNotFoundError(f"{path}: expected an image file, or a folder of them, got {came}")
        if not is_image(inside[0]):
            raise ValueError(f"{path}: expected an image file ({', '.join(SUFFIXES)}), got *{path.suffix}")
        found += inside
    if not found:
        raise ValueError("images: expected at least one picture, got none")
    _room(found[0], len(found), height, width, channels)
    read = [_fit(next(_pictures(path, path))[0], (height, width), channels) for path in found]
    return [_shown(Path(path.name)) for path in found], np.stack(read).transpose(0, 3, 1, 2)


def _threshold(binary: float | bool | None, channels: int | None) -> float | None:
    if binary is None or binary is False:
        return None
    if channels == 3:
        raise ValueError("binary: expected grey images, got channels=3; leave out one of the two")
    threshold = 0.5 if binary is True else float(binary)
    if not 0 < threshold <= 1:
        raise ValueError(f"binary: expected a share of white above 0 and up to 1, got {binary!r}")
    return threshold


def _size(size: Any) -> tuple[int, int] | None:
    """Give (height, width)."""
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in pair):
        raise ValueError(f"size: expected a side or (height, width) in pixels, got {size!r}")
    if pair[0] * pair[1] > MOST:
        raise ValueError(f"size: expected at most {MOST:,} pixels, got {pair[0]:,} × {pair[1]:,}")
    return pair


def is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def is_records(path: Path) -> bool:
    return ".tfrecord" in path.name


def is_video(path: Path) -> bool:
    return path.suffix == ".npz"


def is_frames(path: Path) -> bool:
    """Whether a file is read image by image; others are arrays, read whole."""
    return is_image(path) or is_records(path) or (is_video(path) and _has_video(path))


def _has_video(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception:  # what is wrong with it is said when it is read
        return False
    return "video.npy" in names and "images.npy" not in names


def _files(root: Path, size: tuple[int, int] | None, channels: int | None, split: str) -> tuple[Array, Array, bool]:
    """Read the files below a folder, or one: uint8 (N, channels, height, width), labels, and if this is the split.

    All are of one kind: image files, or else TFRecords, or else videos.
    """
    every = list(_find(root)) if root.is_dir() else [Path(root.name)]
    for wanted, read in ((is_image, _read_images), (is_records, _read_records), (is_video, _read_videos)):
        paths = sorted((path for path in every if wanted(path)), key=lambda path: path.as_posix())
        if not paths:
            continue
        own = {name: [path for path in paths if _own_split(path) == name] for name in ("train", "test")}
        ready = all(own.values())
        chosen = own[split] if ready else paths
        return *_stack(root, read(root, chosen, functools.partial(_fit, size=size, channels=channels))), ready
    raise ValueError(
        f"{root}: expected image files ({', '.join(SUFFIXES)}), videos (.npz) or TFRecords (.tfrecord), got none, "
        f"in sub-folders neither"
    )


def _own_split(path: Path) -> str | None:
    """The split that a file of videos or records belongs to, if its name or its folder says so."""
    if is_records(path):
        found = re.search(r"(?:^|[-_.])(train|test)\.tfrecord", path.name)
        return found[1] if found else None
    return path.parts[0] if is_video(path) and len(path.parts) > 1 else None


def _stack(root: Path, found: Iterator[Found]) -> tuple[Array, Array]:
    """Gather images of one size, as many as there is room for: uint8 (N, channels, height, width), and labels."""
    images: list[Array] = []
    labels: list[str] = []
    first = ""
    for image, label, where in found:
        first = first or where
        if images and image.shape[:2] != images[0].shape[:2]:
            raise ValueError(
                f"{root / where if root.is_dir() else root}: expected {_by(images[0])} like {first}, got "
                f"{_by(image)}; give size=… to bring all to one size"
            )
        _room(root, len(images) + 1, *image.shape)
        images.append(image)
        labels.append(label)
    if not images:
        raise ValueError(f"{root}: expected images, got files that hold none")
    depth = max(image.shape[2] for image in images)
    pixels = np.empty((len(images), depth, *images[0].shape[:2]), np.uint8)
    for place, image in zip(pixels, images, strict=True):
        place[:] = image.transpose(2, 0, 1)  # grey among colours becomes colour
    return pixels, np.array(labels)


Fit = Callable[[Image.Image], Array]


def _base(root: Path) -> Path:
    return root if root.is_dir() else root.parent


def _read_images(root: Path, paths: list[Path], fit: Fit) -> Iterator[Found]:
    """The images of image files; the class is the folder, or else the file, as it is for one that moves."""
    loose = [path for path in paths if len(path.parts) == 1]
    if loose and len(loose) < len(paths):
        raise ValueError(
            f"{root}: expected images either in it or in its sub-folders (classes), got both: {loose[0]} and "
            f"{next(path for path in paths if len(path.parts) > 1)}; move one of them"
        )
    with bar(f"reading {root.name}", len(paths)) as step:
        for path in paths:
            place = _base(root) / path
            for picture, frames in _pictures(place, place):
                image = fit(picture)
                _room(root, max(len(paths), frames), *image.shape)
                yield image, _shown(path if loose or frames > 1 else path.parent), str(path)
            step(1)


def _read_videos(root: Path, paths: list[Path], fit: Fit) -> Iterator[Found]:
    """The frames of videos; a file is a class."""
    with bar(f"reading {root.name}", len(paths)) as step:
        for path in paths:
            place = _base(root) / path
            for frame in _bytes(place, npz(place, ("video",))["video"], bits=False):
                picture = Image.fromarray(frame[..., 0] if frame.shape[-1] == 1 else frame)
                yield fit(picture), _shown(path), str(path)
            step(1)


def _read_records(root: Path, paths: list[Path], fit: Fit) -> Iterator[Found]:
    """The images of TFRecords; the class is the label."""
    from . import tfrecord

    size = sum((_base(root) / path).stat().st_size for path in paths)
    with bar(f"reading {root.name}", size, unit="bytes") as step:
        for path in paths:
            for number, record in enumerate(tfrecord.records(_base(root) / path)):
                place = f"{_base(root) / path}: record {number}"
                try:
                    features = tfrecord.example(record)
                except ValueError as error:
                    raise ValueError(f"{place}: {error}") from None
                data, label = features.get("image", []), features.get("label", [])
                if len(data) != 1 or not isinstance(data[0], bytes):
                    raise ValueError(
                        f"{place}: expected one encoded picture as its feature `image`, got {len(data)} among the "
                        f"features {', '.join(features) or 'none'}"
                    )
                picture, _ = next(_pictures(io.BytesIO(data[0]), place))
                where = f"{_shown(path)}: record {number}"
                yield fit(picture), _label(label[0]) if label else where, where
                step(len(record) + 16)


def _label(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _find(root: Path) -> Iterator[Path]:
    """The files to read below a folder, by their paths in it; links are followed, hidden ones left out."""

    def unreadable(error: OSError) -> None:
        raise error  # it names the folder; os.walk would pass it over

    ways = {root: [root.resolve()]}  # the real folders on the way to each
    for place, folders, files in os.walk(root, onerror=unreadable, followlinks=True):
        way = ways.pop(Path(place))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            path = Path(place, name)
            real = path.resolve()
            if any(folder.is_relative_to(real) for folder in way):
                raise ValueError(f"{path}: a link back to {real}, which holds it; remove the link")
            ways[path] = [*way, real]
        for name in files:
            path = Path(place, name)
            if name.startswith(".") or not (is_image(path) or is_records(path) or is_video(path)):
                continue
            if path.is_symlink() and not path.exists():
                raise FileNotFoundError(f"{path}: a link to {os.readlink(path)}, which is not there")
            if path.is_file():
                yield path.relative_to(root)


def _room(path: Path, count: int, height: int, width: int, channels: int) -> None:
    try:
        check_size(count * height * width * channels)
    except ValueError as error:
        raise ValueError(
            f"{path}: {count} images of {height}×{width} (height × width): {error}; a smaller size=… reduces them"
        ) from None


def _shown(path: Path) -> str:
    """A name that can be printed, also where it is not UTF-8."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def _by(image: Array) -> str:
    return f"{image.shape[0]}×{image.shape[1]} (height × width)"


def _pictures(file: Path | io.BytesIO, where: Any, pixels: int | None = None) -> Iterator[tuple[Image.Image, int]]:
    """Read an image file, or frame by frame one that moves, as "L" or "RGB"; with each, the number of frames.

    pixels: how many there may be in all frames together; those of a GIF may be larger than the first.
    """
    done = 0
    with _reading(where):
        image = Image.open(file, formats=KINDS)
        frames = getattr(image, "n_frames", 1) if image.format in MOVING else 1
    with image:
        for number in range(frames):
            with _reading(where):
                _check_scans(image)
                if number:
                    image.seek(number)
                if pixels is not None and (done := done + image.width * image.height) > pixels:
                    raise ValueError(f"expected at most {pixels:,} pixels in all {frames} frames")
                picture = _flat(ImageOps.exif_transpose(image))
            yield picture, frames


def _check_scans(image: Image.Image) -> None:
    """Refuse a JPEG that passes over its picture again and again; before it is decoded."""
    if isinstance(image, JpegImageFile) and image.fp is not None:
        place = image.fp.tell()
        image.fp.seek(0)
        found = scans(image.fp.read(FREE))
        image.fp.seek(place)
        if found > SCANS:
            raise ValueError(
                f"a JPEG of more than {SCANS} passes; usual cause: a file made to keep its reader busy"
            )


def scans(data: bytes) -> int:
    """How often a JPEG passes over its first picture; no further than one more than SCANS.

    Goes from part to part as libjpeg does, so that thumbnails and notes, which are parts, are passed over.
    """
    count, at = 0, 2
    while count <= SCANS and (found := MARKER.search(data, at)):
        at, code = found.end(), data[found.end() - 1]
        if code == 0xD9:  # the end of the picture
            break
        count += code == 0xDA
        if code != 0xD8:  # the beginning, which has no length; what is too short has its length alone
            at += max(int.from_bytes(data[at : at + 2], "big"), 2)
    return count


@contextlib.contextmanager
def _reading(where: Any) -> Iterator[None]:
    """Say of which file it was that Pillow could not read something."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each odd part of a file
            # Pillow's own limit on pixels: a warning, and at twice as many an error
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (PermissionError, FileNotFoundError):
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{where}: expected at most {Image.MAX_IMAGE_PIXELS:,} pixels, but: {line(error)}"
        ) from error
    except Exception as error:  # a damaged file can make Pillow's readers raise anything
        raise ValueError(f"{where}: expected an image, but it cannot be read ({line(error)})") from error


def _flat(image: Image.Image) -> Image.Image:
    """Bring any kind of image to grey ("L") or colour ("RGB") of 8 bits, on white where it is transparent."""
    if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off instead of scaling
        values = np.asarray(image).astype(np.int64)
        return Image.fromarray((np.clip(values, 0, 65535) // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating point pixels, whose range is not known; save it as 8 or 16 bits, or as an array")
    if image.mode in ("1", "L"):
        return image.convert("L")
    if image.mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        ground.alpha_composite(clear)
        return ground.convert("L" if image.mode in ("LA", "La") else "RGB")
    return image.convert("RGB")


def from_bytes(
    data: bytes, where: str, size: tuple[int, int], channels: int, pixels: int, frames: int
) -> Iterator[Array]:
    """The pictures in an image file that came as bytes, fitted to a size: uint8 (height, width, channels).

    Refused before anything is decoded: a kind of file that browsers do not show, more than so many `frames`, or
    more than so many `pixels` in all of them.
    """
    if data.count(b"iCCP") > PROFILES:
        raise ValueError(f"{where}: expected an image with one colour profile, got more than {PROFILES}")
    try:
        with _reading(where), Image.open(io.BytesIO(data), formats=WEB) as image:
            wide, tall = image.size
            count = getattr(image, "n_frames", 1) if image.format in MOVING else 1
    except ValueError as error:
        if not isinstance(error.__cause__, UnidentifiedImageError):
            raise
        wanted = f"{', '.join(WEB[:-1])} or {WEB[-1]}"
        raise ValueError(f"{where}: expected an image ({wanted}), but it cannot be read as one") from None
    if count > frames:
        raise ValueError(f"{where}: expected at most {frames} pictures in one file, got {count}")
    if wide * tall * count > pixels:
        times = f"{count} × " if count > 1 else ""
        raise ValueError(f"{where}: expected at most {pixels:,} pixels, got {times}{wide:,} × {tall:,}")
    for picture, _ in _pictures(io.BytesIO(data), where, pixels):
        yield _fit(picture, size, channels)


def _fit(image: Image.Image, size: tuple[int, int] | None, channels: int | None) -> Array:
    if channels is not None:
        image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and (image.height, image.width) != size:
        smaller = size[0] <= image.height and size[1] <= image.width
        # Averages over areas when it shrinks; smooth when it grows.
        method = Image.Resampling.BOX if smaller else Image.Resampling.BICUBIC
        image = ImageOps.fit(image, (size[1], size[0]), method)
    pixels = np.asarray(image, np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def _array_file(path: Path, size: tuple[int, int] | None, channels: int | None) -> tuple[Array, Array, bool]:
    """Read an .npy or .npz file; say also whether it holds nothing but 0 and 1."""
    array, labels = _arrays(path)
    bits = array.dtype == bool or (array.dtype == np.uint8 and array.size > 0 and int(array.max()) <= 1)
    images = _bytes(path, array, bits)
    if size is not None or (channels is not None and channels != images.shape[-1]):
        height, width = size or images.shape[1:3]
        _room(path, len(images), height, width, channels or images.shape[-1])
        images = np.stack(
            [_fit(Image.fromarray(i[..., 0] if i.shape[-1] == 1 else i), size, channels) for i in images]
        )
    if labels is None:
        labels = np.arange(len(images))
    if labels.shape != (len(images),):
        raise ValueError(f"{path}: expected one label for each of {len(images)} images, got shape {labels.shape}")
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels, bits


def _arrays(path: Path) -> tuple[Array, Array | None]:
    if path.suffix not in (".npy", ".npz"):
        end = f"*{path.suffix}" if path.suffix else "without an ending"
        raise ValueError(f"{path}: expected {SOURCES}, got a file {end}")
    found = npz(path, ("images", "labels"))
    return found["images"], found.get("labels")


def _bytes(path: Path, array: Array, bits: bool) -> Array:
    """Check an array of images, and give it as uint8 (N, height, width, 1 or 3)."""
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[-1] not in (1, 3) or not array.size:
        hint = "; put the channels last" if array.ndim == 4 and array.shape[1] in (1, 3) else ""
        raise ValueError(
            f"{path}: expected images N×height×width or N×height×width×channels with 1 or 3 channels, "
            f"got shape {array.shape}{hint}"
        )
    if bits:
        return array.astype(np.uint8) * 255
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{path}: expected uint8, bool, or floating point on [0, 1], got {array.dtype}")
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):  # NaN too
        raise ValueError(f"{path}: expected floating point on [0, 1], got values from {low:g} to {high:g}")
    return np.round(array * 255).astype(np.uint8)


def _split(path: Path, labels: Array, split: str, holdout: float) -> Array:
    """Choose the images of a split, by a fixed permutation of classes, or of the images of each class if few."""
    random = np.random.default_rng(0)
    kinds, inverse, count = np.unique(labels, return_inverse=True, return_counts=True)

    def last(n: int) -> Array:
        """Of n things in random order, hold out the last: a share, but at least one of two."""
        held = min(max(round(holdout * n), 1), n - 1) if holdout else 0
        return random.permutation(n)[n - held :]

    test = np.zeros(len(labels), bool)
    if len(kinds) >= FEW or count.max() == 1:
        test = np.isin(inverse, last(len(kinds)))
    else:
        for kind in range(len(kinds)):
            members = np.flatnonzero(inverse == kind)
            test[members[last(len(members))]] = True
    chosen = np.flatnonzero(test == (split == "test"))
    if not len(chosen):
        raise ValueError(
            f"{path}: expected images for the test split, but none is held out of {len(labels)} in {len(kinds)} "
            f"classes with holdout={holdout}; it takes a holdout above 0 and at least two images"
        )
    return chosen
