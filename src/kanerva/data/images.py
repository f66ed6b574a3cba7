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

Other images are split by hashes, so that images that come or go leave the others where they are: ten classes or
more by their names, fewer by the content of each image, and images that are classes of their own by their content.
"""

import contextlib
import hashlib
import io
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngInfo

from ..support.files import FREE, check_size, line, npz
from ..support.say import bar
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
# An image (height, width, 1 or 3), its place in a split by content, the name of its class, and where it was found.
Found = tuple[Array, float, str, str]
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
    colour where there is any. holdout: the share kept for the test split, about: of classes, or, of fewer than 10
    classes, of images; not asked for where the files say themselves what is for tests. Transparent parts are white.
    Image files that cannot be read are left out, with a warning that lists them; an error if none can.
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
        pixels, classes, ready = _files(path, wanted, depth, split)
    else:
        pixels, classes, bits = _array_file(path, wanted, depth)
        if bits and binary is None and pixels.shape[1] == 1:
            threshold = 0.5
    if invert:
        pixels = 255 - pixels
    if threshold is not None:
        pixels = (pixels >= threshold * 255).astype(np.uint8)
    chosen = np.arange(len(pixels)) if ready else _split(path, classes, split, holdout)
    return ClassImages.from_labels(
        pixels[chosen],
        classes.labels[chosen],
        binary=threshold is not None,
        name=_shown(Path(path.name)),
        split=split,
    )


class Pictures(NamedTuple):
    """Pictures of one size, and where they are."""

    pixels: Array
    """uint8 (N, channels, height, width)."""
    paths: list[Path]
    left_out: dict[Path, str]
    """What could not be read, and why."""


def pictures(paths: Sequence[str | os.PathLike[str]], shape: tuple[int, int, int]) -> Pictures:
    """Read image files, and those in folders; of one that moves, its start. What cannot be read is left out.

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
    read: dict[int, Array] = {}
    faults: dict[Path, Exception] = {}
    for number, path in enumerate(found):
        try:
            read[number] = _fit(next(_pictures(path, path))[0], (height, width), channels)
        except (ValueError, OSError) as error:
            faults[path] = error
    if not read:
        raise _none_of(faults)
    left_out = {path: _why(path, error) for path, error in faults.items()}
    return Pictures(np.stack([*read.values()]).transpose(0, 3, 1, 2), [found[i] for i in read], left_out)


def names(paths: Sequence[Path]) -> list[str]:
    """What to call files so that none is taken for another: their paths below the folder that holds them all."""
    whole = [Path(os.path.abspath(path)) for path in paths]
    common = os.path.commonpath([path.parent for path in whole])
    return [_shown(path.relative_to(common)) for path in whole]


def ink_of(levels: Array, ink: str = "auto") -> tuple[Array, str]:
    """The share of ink in each pixel of one picture (uint8), and whether its ink is dark or light.

    ink: dark, light, or auto: whatever there is less of.
    """
    ink = ("dark" if float(levels.mean()) > 127.5 else "light") if ink == "auto" else ink
    return (255 - levels if ink == "dark" else levels) / np.float32(255), ink


def _none_of(faults: dict[Path, Exception]) -> Exception:
    """The error where no file could be read: the first one's, and how many there are."""
    first, *more = faults.values()
    kind = type(first) if isinstance(first, OSError) else ValueError
    return kind(f"{first}; the other {len(more)} cannot be read either") if more else first


def _why(path: Path, error: Exception) -> str:
    """What was wrong with a file, without its name."""
    return line(error).removeprefix(f"{path}: ").replace(f" {str(path)!r}", "")


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


class Classes(NamedTuple):
    """What each of N images belongs to, and what its side of the split is chosen by."""

    labels: Array
    alone: Array
    """Whether the class is the image's own file: nobody gave it one."""
    content: Array
    """A number in [0, 1) for each picture, the same for copies of it."""


def _files(
    root: Path, size: tuple[int, int] | None, channels: int | None, split: str
) -> tuple[Array, Classes, bool]:
    """Read the files below a folder, or one: uint8 (N, channels, height, width), classes, and if this is the split.

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

        def fit(picture: Image.Image) -> tuple[Array, float]:
            return _fit(picture, size, channels), _content(np.asarray(picture))

        return *_stack(root, read(root, chosen, fit)), ready
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


def _stack(root: Path, found: Iterator[Found]) -> tuple[Array, Classes]:
    """Gather images of one size, as many as there is room for: uint8 (N, channels, height, width), and classes."""
    images: list[Array] = []
    labels: list[str] = []
    alone: list[bool] = []
    content: list[float] = []
    first = ""
    for image, number, label, where in found:
        first = first or where
        if images and image.shape[:2] != images[0].shape[:2]:
            raise ValueError(
                f"{root / where if root.is_dir() else root}: expected {_by(images[0])} like {first}, got "
                f"{_by(image)}; give size=… to bring all to one size"
            )
        _room(root, len(images) + 1, *image.shape)
        images.append(image)
        labels.append(label)
        alone.append(label == where)
        content.append(number)
    if not images:
        raise ValueError(f"{root}: expected images, got files that hold none")
    depth = max(image.shape[2] for image in images)
    pixels = np.empty((len(images), depth, *images[0].shape[:2]), np.uint8)
    for place, image in zip(pixels, images, strict=True):
        place[:] = image.transpose(2, 0, 1)  # grey among colours becomes colour
    return pixels, Classes(np.array(labels), np.array(alone), np.array(content))


Fit = Callable[[Image.Image], tuple[Array, float]]


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
    faults: dict[Path, Exception] = {}
    with bar(f"reading {root.name}", len(paths)) as step:
        for path in paths:
            place, some = _base(root) / path, []
            try:
                for picture, frames in _pictures(place, place):
                    some.append(fit(picture))
                    _room(root, max(len(paths), frames), *some[0][0].shape)
            except TooMuch:
                raise
            except (ValueError, OSError) as error:
                faults[place] = error
            else:
                label = _shown(path if loose or len(some) > 1 else path.parent)
                yield from ((*one, label, _shown(path)) for one in some)
            step(1)
    if len(faults) == len(paths):
        raise _none_of(faults)
    if faults:
        listed = "; ".join(
            f"{_shown(path.relative_to(_base(root)))}: {_why(path, e)}" for path, e in faults.items()
        )
        warnings.warn(f"{root}: {len(faults)} of {len(paths)} files left out: {listed}", stacklevel=2)


def _read_videos(root: Path, paths: list[Path], fit: Fit) -> Iterator[Found]:
    """The frames of videos; a file is a class."""
    with bar(f"reading {root.name}", len(paths)) as step:
        for path in paths:
            place = _base(root) / path
            for frame in _bytes(place, npz(place, ("video",))["video"], bits=False):
                picture = Image.fromarray(frame[..., 0] if frame.shape[-1] == 1 else frame)
                yield *fit(picture), _shown(path), _shown(path)
            step(1)


def _read_records(root: Path, paths: list[Path], fit: Fit) -> Iterator[Found]:
    """The images of TFRecords; the class is the label."""
    from . import tfrecord

    size = sum((_base(root) / path).stat().st_size for path in paths)
    with bar(f"reading {root.name}", size) as step:
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
                yield *fit(picture), _label(label[0]) if label else where, where
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
            if path.is_file() or (
                path.is_symlink() and not path.exists()
            ):  # what is missing is said when it is read
                yield path.relative_to(root)


class TooMuch(ValueError):
    """Images that there is no room for."""


def _room(path: Path, count: int, height: int, width: int, channels: int) -> None:
    try:
        check_size(count * height * width * channels)
    except ValueError as error:
        raise TooMuch(
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
    if isinstance(file, Path) and file.is_symlink() and not file.exists():
        raise FileNotFoundError(f"{where}: a link to {os.readlink(file)}, which is not there")
    done = 0
    with _reading(where):
        image = Image.open(file, formats=KINDS)
        frames = getattr(image, "n_frames", 1) if image.format in MOVING else 1
    with image:
        if _is_sheet(image):
            raise ValueError(f"{where}: a sheet of pictures that kanerva wrote")
        for number in range(frames):
            with _reading(where):
                _check_scans(image)
                if number:
                    image.seek(number)
                if pixels is not None and (done := done + image.width * image.height) > pixels:
                    raise ValueError(f"expected at most {pixels:,} pixels in all {frames} frames")
                samples = _samples(image)
                picture = _flat(ImageOps.exif_transpose(image), samples)
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


def write_sheet(sheet: Image.Image, file: BinaryIO) -> None:
    """Write a sheet of pictures as PNG, with a mark that keeps it from being read as one more picture."""
    note = PngInfo()
    note.add_text("Software", _mark(sheet))
    sheet.save(file, "png", pnginfo=note)


def is_sheet(path: Path) -> bool:
    """Whether a file is a sheet that `write_sheet` wrote."""
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        with Image.open(path, formats=("PNG",)) as image:
            return _is_sheet(image)
    except Exception:  # of no picture, or a damaged one
        return False


def _is_sheet(image: Image.Image) -> bool:
    return image.format == "PNG" and image.info.get("Software") == _mark(image)


def _mark(image: Image.Image) -> str:
    return f"kanerva, a sheet of {image.width} by {image.height}"  # a part cut out of it is a picture again


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


class Samples(NamedTuple):
    """The samples of an image file, which Pillow's mode does not tell."""

    most: int
    """The largest value that they can have."""
    inverted: bool
    """Whether the largest value is black, where Pillow leaves it so."""
    reduced: bool
    """Whether Pillow cuts colours of 16 bits to 8."""


def _samples(image: Image.Image) -> Samples:
    """The samples of an image file; before it is loaded, which forgets them."""
    tiles, tags = getattr(image, "tile", []), getattr(image, "tag_v2", {})
    raw = str(tiles[0][3]) if tiles else ""
    wide = image.mode.startswith("I")
    bits = re.search(r"[IL];(\d+)[A-Z]*?(S?)\b", raw)  # such as I;16BS, signed
    most = 2 ** (int(bits[1]) - len(bits[2])) - 1 if bits else 65535 if wide else 255
    with contextlib.suppress(TypeError, ValueError):
        said = tags.get(281, ())  # MaxSampleValue
        most = max(1, int(max(said) if isinstance(said, tuple) else said)) if said and wide else most
    return Samples(most, wide and tags.get(262) == 0, image.format in ("PNG", "TIFF") and ";16" in raw and not wide)


def _flat(image: Image.Image, samples: Samples) -> Image.Image:
    """Bring any kind of image to grey ("L") or colour ("RGB") of 8 bits, on white where it is transparent."""
    if image.mode == "F":
        raise ValueError("floating point pixels, whose range is not known; save it as 8 or 16 bits, or as an array")
    clear = image.info.get("transparency")
    if image.mode in ("1", "L") or image.mode.startswith("I"):
        values = np.asarray(image.convert("L") if image.mode == "1" else image).astype(np.int64)
        levels = values
        if image.mode.startswith("I"):
            values = values % 2**32 if samples.most > 2**31 else values
            _check_range(int(values.min()), int(values.max()), samples.most)
            levels = values * 255 // samples.most
            levels = 255 - levels if samples.inverted else levels
        elif isinstance(clear, int):
            clear = clear * 255 // samples.most  # Pillow has scaled the pixels alone
        if isinstance(clear, int):
            levels = np.where(values == clear, 255, levels)
        return Image.fromarray(levels.astype(np.uint8))
    if samples.reduced and isinstance(clear, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in clear)
    if image.mode in ("LA", "La", "RGBA", "RGBa", "PA") or clear is not None:
        whole = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        ground.alpha_composite(whole)
        flat, seen = ground.convert("L" if image.mode in ("LA", "La") else "RGB"), whole.convert("RGB")
    else:
        flat = seen = image.convert("RGB")
    if samples.reduced:
        _check_range(0, int(np.asarray(seen).max()), 255)
    return flat


def _check_range(low: int, high: int, most: int) -> None:
    """Refuse samples of more than 8 bits that cannot be meant to reach from black to white."""
    if low < 0 or high > most or 0 < high <= most // 4:
        raise ValueError(
            f"values from {low:,} to {high:,} where white is {most:,}, so that their range is not known; usual "
            f"cause: fewer bits than the file says, such as 12 in 16; save it with 8 bits, or as an array"
        )


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


def _array_file(path: Path, size: tuple[int, int] | None, channels: int | None) -> tuple[Array, Classes, bool]:
    """Read an .npy or .npz file; say also whether it holds nothing but 0 and 1."""
    array, labels = _arrays(path)
    bits = array.dtype == bool or (array.dtype == np.uint8 and array.size > 0 and int(array.max()) <= 1)
    images = _bytes(path, array, bits)
    content = np.array([_content(image) for image in images])
    if size is not None or (channels is not None and channels != images.shape[-1]):
        height, width = size or images.shape[1:3]
        _room(path, len(images), height, width, channels or images.shape[-1])
        images = np.stack(
            [_fit(Image.fromarray(i[..., 0] if i.shape[-1] == 1 else i), size, channels) for i in images]
        )
    alone = np.full(len(images), labels is None)
    if labels is None:
        labels = np.arange(len(images))
    if labels.shape != (len(images),):
        raise ValueError(f"{path}: expected one label for each of {len(images)} images, got shape {labels.shape}")
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), Classes(labels, alone, content), bits


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


def _place(data: bytes) -> float:
    """Where something lies on [0, 1), by its hash."""
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "big") / 2**48


def _content(picture: Array) -> float:
    """The place of a picture by its content; grey that is written as colour is the same picture."""
    if picture.ndim == 3 and bool((picture == picture[..., :1]).all()):
        picture = picture[..., 0]
    return _place(str(picture.shape).encode() + np.ascontiguousarray(picture).tobytes())


def _split(path: Path, classes: Classes, split: str, holdout: float) -> Array:
    """Choose the images of a split by their places, so that images that come or go leave the others where they are.

    Ten classes or more have the places of their names, or, where a class is a file, of its first picture. Of fewer
    classes each image has its own. At least one place is held out, and one is not.
    """
    labels, alone, places = classes
    kinds, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    if len(kinds) >= FEW:
        names = np.array([_place(str(kind).encode()) for kind in kinds])
        places = np.where(alone[first], places[first], names)[inverse]
    some = np.unique(places)
    bound = min(max(holdout, np.nextafter(some[0], 1)), some[-1]) if holdout and len(some) > 1 else 0
    chosen = np.flatnonzero((places < bound) == (split == "test"))
    if not len(chosen):
        raise ValueError(
            f"{path}: expected images for the test split, but none is held out of {len(labels)} in {len(kinds)} "
            f"classes with holdout={holdout}; it takes a holdout above 0 and at least two different images"
        )
    return chosen
