"""The user's own pictures, read in one way for a folder, for recall and for an upload; and arrays of them.

Image files: those in sub-folders belong to the class of the folder that holds them, at any depth; in a flat folder
each image is a class of its own, so that an episode of n classes holds n different images. A GIF, PNG or WebP that
moves is a class of its own, of all its frames.
Array: images N×height×width or N×height×width×channels, as uint8, bool or floating point on [0, 1]; in an .npz
under the key `images`, with optional `labels` (N); without labels each image is a class of its own.

Hashes split them, so that images that come or go leave the others where they are: ten classes or more by their
names, fewer by the content of each image, and images that are classes of their own by their content.
"""

import contextlib
import hashlib
import io
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngInfo

from ..support.files import FREE, Array, check_size, line, npz
from ..support.say import bar
from .episodes import ClassImages, part

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm")
# Kinds of files that are read, whatever their names say: Pillow knows others, and starts a program for some.
KINDS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
# Kinds of files whose pictures are the frames of one; in a TIFF or a JPEG they are something else.
MOVING = ("GIF", "PNG", "WEBP")
# Kinds of files that browsers show.
WEB = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
# With fewer classes than this, holding out whole classes leaves too few of them on either side.
FEW = 10
# Shares of the classes, or of the images, that are held out.
VALIDATION, TEST = 0.15, 0.25
# Pixels of one image that are resized to; Pillow takes about as many for a trap. And of an upload, in all frames.
MOST, UPLOAD = 10**8, 4096 * 4096
# Passes over a progressive JPEG: encoders make about 10. A pass over 16 million pixels takes 40 bytes and 10 ms,
# and nothing interrupts it, so that a file of 160 kB would take 40 s.
SCANS = 32
# What begins a part of a JPEG. In its data, 255 is followed by 0 or by a marker that restarts the decoder.
MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
# Colour profiles in a PNG, of which one is allowed: Pillow unpacks them all, each to as much as 1 MB.
PROFILES = 10

Size = tuple[int, int] | None
Read = TypeVar("Read")
SOURCES = "a folder or file of images, or an .npy or .npz file"


# WHAT IS READ: by class and split, for recall, or from an upload


def load(
    split: str = "train",
    path: str | os.PathLike[str] | None = None,
    size: int | tuple[int, int] | None = None,
    binary: float | bool | None = None,
    invert: bool = False,
    channels: int | None = None,
) -> ClassImages:
    """Read images, in the same order on every run, and give those of one split.

    size: side, or (height, width), to resize to, cut to the middle if the proportions differ; without it all must
    be of one size. invert: black becomes white. binary: values of at least this share of white become 1, the others
    0 (True: 0.5); None keeps grey or colour, except for arrays that hold only 0 and 1. channels: 1 or 3; None keeps
    colour where there is any. Transparent parts are white. Of all classes, or of the images of fewer than 10
    classes, about 60 % are for training, 15 % for validation and 25 % for tests. Image files that cannot be read
    are left out, with a warning that lists them; an error if none can.
    """
    if path is None:
        raise ValueError(f"path: expected {SOURCES}, got none")
    if channels not in (None, 1, 3):
        raise ValueError(f"channels: expected 1 (grey), 3 (colour) or None, got {channels!r}")
    path, threshold, wanted = Path(path).expanduser(), _threshold(binary, channels), _size(size)
    fit = _fitter(path, wanted, 1 if threshold is not None else channels)
    if path.is_dir() or (path.is_file() and is_image(path)):
        found = _from_files(path, fit)
    elif path.is_file():
        found, bits = _from_array(path, fit)
        if bits and binary is None and found[0].image.shape[-1] == 1:
            threshold = 0.5
    else:
        raise FileNotFoundError(f"{path}: expected {SOURCES}, got no such file")
    chosen = [found[i] for i in _split(path, found, split)]
    depth = max(one.image.shape[-1] for one in found)  # grey among colours becomes colour
    pixels = np.stack([one.image.repeat(depth // one.image.shape[-1], -1) for one in chosen]).transpose(0, 3, 1, 2)
    pixels = 255 - pixels if invert else pixels
    return ClassImages.from_labels(
        pixels if threshold is None else (pixels >= threshold * 255).astype(np.uint8),
        [one.label for one in chosen],
        binary=threshold is not None,
        name=_shown(Path(path.name)),
        split=split,
    )


class Pictures(NamedTuple):
    """Pictures of one size, and where they are."""

    pixels: UInt8[Array, "N channels height width"]
    paths: list[Path]
    left_out: dict[Path, str]
    """What could not be read, and why."""


def pictures(paths: Sequence[str | os.PathLike[str]], shape: tuple[int, int, int]) -> Pictures:
    """Read image files, and those in folders; of one that moves, its start. What cannot be read is left out.

    shape: (channels, height, width) to bring each to, cut to the middle if the proportions differ.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        path = path.expanduser()
        inside = sorted(path / name for name in _find(path)) if path.is_dir() else [path] * path.is_file()
        if not inside:
            came = "a folder with none" if path.is_dir() else "no such file"
            raise FileNotFoundError(f"{path}: expected an image file, or a folder of them, got {came}")
        if not is_image(inside[0]):
            raise ValueError(f"{path}: expected an image file ({', '.join(SUFFIXES)}), got *{path.suffix}")
        files += inside
    fit = _fitter(files[0], shape[1:], shape[0])
    found, left_out = _gather(files, lambda path: [fit(next(frames(path, path)), len(files))])
    levels = np.stack([image for _, image in found]).transpose(0, 3, 1, 2)
    return Pictures(levels, [path for path, _ in found], left_out)


def upload(
    data: bytes, where: str, shape: tuple[int, int, int], most: int, pixels: int = UPLOAD
) -> Iterator[UInt8[Array, "channels height width"]]:
    """The pictures in an image file that came as bytes, brought to a shape.

    Refused before anything is decoded: a kind of file that browsers do not show, more than `most` frames, or more
    than so many `pixels` in all of them.
    """
    if data.count(b"iCCP") > PROFILES:
        raise ValueError(f"{where}: expected an image with one colour profile, got more than {PROFILES}")
    fit = _fitter(where, shape[1:], shape[0])
    for picture in frames(io.BytesIO(data), where, WEB, most, pixels):
        yield fit(picture, 1).transpose(2, 0, 1)


def names(paths: Sequence[Path]) -> list[str]:
    """What to call files so that none is taken for another: their paths below the folder that holds them all."""
    whole = [Path(os.path.abspath(path)) for path in paths]
    common = os.path.commonpath([path.parent for path in whole])
    return [_shown(path.relative_to(common)) for path in whole]


def is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


# SHEETS: what kanerva wrote is never read as one more picture


def write_sheet(sheet: Image.Image, file: BinaryIO) -> None:
    """Write a sheet of pictures as PNG, with a mark by which `is_sheet` knows it."""
    note = PngInfo()
    note.add_text("Software", _mark(sheet))
    sheet.save(file, "png", pnginfo=note)


def is_sheet(path: Path) -> bool:
    """Whether a file is a sheet that `write_sheet` wrote."""
    with contextlib.suppress(Exception), Image.open(path, formats=("PNG",)) as image:
        return _is_sheet(image)
    return False  # no picture, or a damaged one


def _is_sheet(image: Image.Image) -> bool:
    return image.info.get("Software") == _mark(image)


def _mark(image: Image.Image) -> str:
    return f"kanerva, a sheet of {image.width} by {image.height}"  # a part cut out of it is a picture again


# FILES AND ARRAYS


class Picture(NamedTuple):
    """A picture by its class."""

    image: UInt8[Array, "height width channels"]
    content: float
    """A number in [0, 1), the same for copies of it."""
    label: Any
    alone: bool
    """Whether its class is its own file: nobody gave it one."""


Fit = Callable[[Image.Image, int], UInt8[Array, "height width channels"]]


def _from_files(root: Path, fit: Fit) -> list[Picture]:
    """The images of files; the class is the folder, or else the file, as it is for one that moves."""
    base = root if root.is_dir() else root.parent
    paths = sorted(_find(root), key=Path.as_posix) if root.is_dir() else [Path(root.name)]
    if not paths:
        raise ValueError(
            f"{root}: expected image files ({', '.join(SUFFIXES)}), got none, in sub-folders neither; frames of "
            f"videos and records are to be written as image files first"
        )
    loose = [path for path in paths if len(path.parts) == 1]
    if loose and len(loose) < len(paths):
        raise ValueError(
            f"{root}: expected images either in it or in its sub-folders (classes), got both: {loose[0]} and "
            f"{next(path for path in paths if len(path.parts) > 1)}; move one of them"
        )

    def read(place: Path) -> list[Picture]:
        path = place.relative_to(base)
        pictures = [(fit(picture, len(paths)), _content(picture)) for picture in frames(place, place)]
        alone = bool(loose) or len(pictures) > 1
        label = _shown(path if alone else path.parent)
        return [Picture(image, content, label, alone) for image, content in pictures]

    found, left_out = _gather([base / path for path in paths], read)
    if left_out:
        listed = "; ".join(f"{_shown(path.relative_to(base))}: {why}" for path, why in left_out.items())
        warnings.warn(f"{root}: {len(left_out)} of {len(paths)} files left out: {listed}", stacklevel=3)
    start, first = found[0]
    for path, one in found:
        if one.image.shape[:2] != first.image.shape[:2]:
            wanted, came = ("{}×{} (height × width)".format(*some.image.shape) for some in (first, one))
            raise ValueError(
                f"{path}: expected {wanted} like {_shown(start.relative_to(base))}, got {came}; "
                f"give size=… to bring all to one size"
            )
    return [one for _, one in found]


def _from_array(path: Path, fit: Fit) -> tuple[list[Picture], bool]:
    """The images of an .npy or .npz file; and whether it holds nothing but 0 and 1."""
    if path.suffix not in (".npy", ".npz"):
        end = f"*{path.suffix}" if path.suffix else "without an ending"
        raise ValueError(f"{path}: expected {SOURCES}, got a file {end}")
    arrays = npz(path, ("images", "labels"))
    array, labels = arrays["images"], arrays.get("labels")
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[-1] not in (1, 3) or not array.size:
        hint = "; put the channels last" if array.ndim == 4 and array.shape[1] in (1, 3) else ""
        raise ValueError(
            f"{path}: expected images N×height×width or N×height×width×channels with 1 or 3 channels, "
            f"got shape {array.shape}{hint}"
        )
    if labels is not None and labels.shape != array.shape[:1]:
        raise ValueError(f"{path}: expected one label for each of {len(array)} images, got shape {labels.shape}")
    floating = np.issubdtype(array.dtype, np.floating)
    if not floating and array.dtype not in (np.uint8, bool):
        raise ValueError(f"{path}: expected uint8, bool, or floating point on [0, 1], got {array.dtype}")
    low, high = array.min(), array.max()
    if floating and not (low >= 0 and high <= 1):  # NaN too
        raise ValueError(f"{path}: expected floating point on [0, 1], got values from {low:g} to {high:g}")
    bits = bool(not floating and high <= 1)
    scaled = np.round(array * np.uint8(255)).astype(np.uint8) if floating or bits else array
    found = []
    for i, image in enumerate(scaled):
        picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        label = i if labels is None else labels[i]
        found.append(Picture(fit(picture, len(scaled)), _content(picture), label, labels is None))
    return found, bits


def _gather(
    paths: Sequence[Path], read: Callable[[Path], list[Read]]
) -> tuple[list[tuple[Path, Read]], dict[Path, str]]:
    """What `read` makes of each file that can be read, and why others cannot; an error if none can."""
    found: list[tuple[Path, Read]] = []
    faults: dict[Path, Exception] = {}
    with bar("reading pictures", len(paths)) as step:
        for path in paths:
            try:
                found += [(path, one) for one in read(path)]
            except TooMuch:
                raise
            except (ValueError, OSError) as error:
                faults[path] = error
            step(1)
    if not found:
        first, *more = faults.values()
        raise type(first)(f"{first}; the other {len(more)} cannot be read either") if more else first
    why = {path: line(error).removeprefix(f"{path}: ") for path, error in faults.items()}
    return found, {path: said.replace(f" {str(path)!r}", "") for path, said in why.items()}


def _find(root: Path) -> Iterator[Path]:
    """The image files below a folder, by their paths in it; links are followed, hidden ones left out."""

    def unreadable(error: OSError) -> None:
        raise error  # it names the folder; os.walk would pass it over

    for place, folders, files in os.walk(root, onerror=unreadable, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in folders):
            if path.is_symlink() and any(way.resolve().is_relative_to(path.resolve()) for way in path.parents):
                raise ValueError(f"{path}: a link back to {path.resolve()}, which holds it; remove the link")
        for name in files:
            if not name.startswith(".") and is_image(Path(name)):
                yield Path(place, name).relative_to(root)


class TooMuch(ValueError):
    """Images that there is no room for."""


def _fitter(where: Any, size: Size, channels: int | None) -> Fit:
    """Bring pictures to a size, as many as there is room for."""
    done = 0

    def fit(image: Image.Image, count: int) -> Array:
        nonlocal done
        height, width = size or (image.height, image.width)
        each = height * width * (channels or len(image.getbands()))
        done += each
        try:
            check_size(max(done, count * each))
        except ValueError as error:
            raise TooMuch(f"{where}: images of {height}×{width}: {error}; a smaller size=… reduces them") from None
        if channels is not None:
            image = image.convert("L" if channels == 1 else "RGB")
        if (image.height, image.width) != (height, width):
            smaller = height <= image.height and width <= image.width
            # Averages over areas when it shrinks; smooth when it grows.
            method = Image.Resampling.BOX if smaller else Image.Resampling.BICUBIC
            image = ImageOps.fit(image, (width, height), method)
        return np.asarray(image, np.uint8).reshape(height, width, -1)

    return fit


def _threshold(binary: float | bool | None, channels: int | None) -> float | None:
    if binary is None or binary is False:
        return None
    if channels == 3:
        raise ValueError("binary: expected grey images, got channels=3; leave out one of the two")
    threshold = 0.5 if binary is True else float(binary)
    if not 0 < threshold <= 1:
        raise ValueError(f"binary: expected a share of white above 0 and up to 1, got {binary!r}")
    return threshold


def _size(size: Any) -> Size:
    """Give (height, width)."""
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(type(n) is not int or n < 1 for n in pair) or pair[0] * pair[1] > MOST:
        raise ValueError(f"size: expected a side or (height, width), at most {MOST:,} pixels in all, got {size!r}")
    return pair


def _shown(path: Path) -> str:
    """A name that can be printed, also where it is not UTF-8."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


# THE SPLIT


def _place(data: bytes) -> float:
    """Where something lies on [0, 1), by its hash."""
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "big") / 2**48


def _content(image: Image.Image) -> float:
    """The place of a picture by its content; grey that is written as colour is the same picture."""
    picture = np.asarray(image)
    if picture.ndim == 3 and (picture == picture[..., :1]).all():
        picture = picture[..., 0]
    return _place(str(picture.shape).encode() + picture.tobytes())


def _split(path: Path, found: list[Picture], split: str) -> Array:
    """Choose the images of a split by their places, so that images that come or go leave the others where they are.

    Ten classes or more have the places of their names, or, where a class is a file, of its first picture. Of fewer
    classes each image has its own. Tests take the lowest places, training the highest; each has at least one.
    """
    places = np.array([one.content for one in found])
    kinds, first, inverse = np.unique([one.label for one in found], return_index=True, return_inverse=True)
    if len(kinds) >= FEW:
        own = [found[i].content if found[i].alone else _place(str(found[i].label).encode()) for i in first]
        places = np.array(own)[inverse]
    order = np.unique(places)[::-1]
    if len(order) < 4:
        raise ValueError(
            f"{path}: expected at least four different images, of which some are held out for validation and for "
            f"tests, got {len(order)}"
        )
    train = int(np.clip((order >= TEST + VALIDATION).sum(), 1, len(order) - 2))
    held = int(np.clip((order >= TEST).sum(), train + 1, len(order) - 1))
    return np.flatnonzero(np.isin(places, order[part(split, train, held)]))


# ONE IMAGE FILE


def frames(
    file: Path | io.BytesIO,
    where: Any,
    kinds: tuple[str, ...] = KINDS,
    most: float = math.inf,
    pixels: float = math.inf,
) -> Iterator[Image.Image]:
    """Read an image file, or frame by frame one that moves, as "L" or "RGB" of 8 bits.

    most, pixels: how many frames there may be, and how many pixels in all of them.
    """
    with _reading(where, kinds):
        image = Image.open(file, formats=kinds)
        count = getattr(image, "n_frames", 1) if image.format in MOVING else 1
    with image:
        if _is_sheet(image):
            raise ValueError(f"{where}: a sheet of pictures that kanerva wrote")
        if count > most:
            raise ValueError(f"{where}: expected at most {most} pictures in one file, got {count}")
        done = 0
        for number in range(count):
            with _reading(where, kinds):
                image.seek(number)
            wide, tall = image.size  # frames of a GIF may be larger than the first
            if done + (count - number) * wide * tall > pixels:
                times = f"{count} × " if count > 1 else ""
                raise ValueError(f"{where}: expected at most {pixels:,} pixels, got {times}{wide:,} × {tall:,}")
            done += wide * tall
            with _reading(where, kinds):
                picture = _flat(image)
            yield picture


@contextlib.contextmanager
def _reading(where: Any, kinds: Sequence[str]) -> Iterator[None]:
    """Say of which file it was that Pillow could not read something."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each odd part of a file
            # Pillow's own limit on pixels: a warning, and at twice as many an error
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (PermissionError, FileNotFoundError):
        raise
    except UnidentifiedImageError:
        wanted = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        raise ValueError(f"{where}: expected an image ({wanted}), but it cannot be read as one") from None
    except Exception as error:  # a damaged file can make Pillow's readers raise anything
        raise ValueError(f"{where}: expected an image, but it cannot be read ({line(error)})") from error


def _check_scans(file: IO[bytes]) -> None:
    """Refuse a JPEG that passes over its picture again and again; before it is decoded.

    Goes from part to part as libjpeg does, so that thumbnails and notes, which are parts, are passed over.
    """
    place = file.tell()
    file.seek(0)
    data = file.read(FREE)
    file.seek(place)
    count, at = 0, 2
    while found := MARKER.search(data, at):
        at, code = found.end(), data[found.end() - 1]
        if code == 0xD9:  # the end of the picture
            break
        count += code == 0xDA
        if count > SCANS:
            raise ValueError(
                f"a JPEG of more than {SCANS} passes; usual cause: a file made to keep its reader busy"
            )
        if code != 0xD8:  # the beginning, which has no length; what is too short has its length alone
            at += max(int.from_bytes(data[at : at + 2], "big"), 2)


def _flat(image: Any) -> Image.Image:
    """Bring an image of any kind to grey ("L") or colour ("RGB") of 8 bits, on white where it is transparent."""
    if isinstance(image, JpegImageFile) and image.fp is not None:
        _check_scans(image.fp)
    # What the mode does not tell, and loading forgets: the largest value that samples can have, whether that is
    # black, where Pillow leaves it so, and whether Pillow cuts colours of 16 bits to 8.
    raw, tags = str(image.tile[0][3]) if image.tile else "", getattr(image, "tag_v2", {})
    wide = image.mode.startswith("I")
    bits = re.search(r"[IL];(\d+)[A-Z]*?(S?)\b", raw)  # such as I;16BS, signed
    most = 2 ** (int(bits[1]) - len(bits[2])) - 1 if bits else 65535 if wide else 255
    if wide and tags.get(281):  # MaxSampleValue
        most = max(1, int(np.max(tags[281])))
    reduced = image.format in ("PNG", "TIFF") and ";16" in raw and not wide

    image = ImageOps.exif_transpose(image)
    clear = image.info.get("transparency")
    if image.mode == "F":
        raise ValueError("floating point pixels, whose range is not known; save it as 8 or 16 bits, or as an array")
    if wide or image.mode in ("1", "L"):
        values = np.asarray(image.convert("L") if image.mode == "1" else image).astype(np.int64)
        levels = values
        if wide:
            values = values % 2**32 if most > 2**31 else values
            _check_range(int(values.min()), int(values.max()), most)
            levels = values * 255 // most
            levels = 255 - levels if tags.get(262) == 0 else levels
        if isinstance(clear, int):  # of what is not wide, Pillow has scaled the pixels alone
            levels = np.where(values == (clear if wide else clear * 255 // most), 255, levels)
        return Image.fromarray(levels.astype(np.uint8))
    if reduced and isinstance(clear, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in clear)
    flat = seen = image.convert("RGB")
    if image.has_transparency_data:
        whole = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        ground.alpha_composite(whole)
        flat, seen = ground.convert("L" if image.mode in ("LA", "La") else "RGB"), whole.convert("RGB")
    if reduced:
        _check_range(0, int(np.asarray(seen).max()), 255)
    return flat


def _check_range(low: int, high: int, most: int) -> None:
    """Refuse samples of more than 8 bits that cannot be meant to reach from black to white."""
    if low < 0 or high > most or 0 < high <= most // 4:
        raise ValueError(
            f"values from {low:,} to {high:,} where white is {most:,}, so that their range is not known; usual "
            f"cause: fewer bits than the file says, such as 12 in 16; save it with 8 bits, or as an array"
        )
