"""Files that survive a crash: the cache folder, atomic writes, cached arrays, downloads, tensors with checksums."""

import contextlib
import errno
import hashlib
import http.client
import json
import math
import os
import re
import secrets
import time
import urllib.error
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np
import platformdirs
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .progress import bar
from .streams import say
from .support.plain import loads

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


def cache_dir() -> Path:
    """Say where derived and downloaded files are kept: KANERVA_CACHE, or kanerva/ in the user's cache folder."""
    if chosen := os.environ.get("KANERVA_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        # earlier versions went by it on every system, and what they keep there is not to be fetched again
        earlier = Path(xdg).expanduser() / "kanerva"
        if earlier.is_dir():
            return earlier
    return platformdirs.user_cache_path("kanerva", appauthor=False)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], parents: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing bytes; it appears at `path` whole when the block ends, or not at all if it raises.

    The bytes go to a file of another name in the same folder, reach the disk, and then take the old one's place.
    `parents`: make the folder if it is not there. `sweep` removes what a killed process leaves. A device such as
    /dev/null is written to and stays; what else is not a file is an error.
    """
    path = Path(path)
    if is_device(path):
        try:
            with open(path, "wb") as file:
                yield file
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, f"{error.strerror}: {path} could not be written") from error
        return
    if parents:
        make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # as where the file could not be made
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            reason = f"{error.strerror}: {path} could not be written; what was there before is as it was"
            raise OSError(error.errno, reason) from error
        raise
    if os.name == "posix":  # the new name too must reach the disk
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def is_device(path: Path) -> bool:
    """Whether `path` is a device, which is written to and not replaced; an error where neither can be done.

    A link in /dev or /proc, such as /dev/stdout, may lead to a file that is open: replacing it would be no use.
    """
    if path.is_char_device():
        return True
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(f"{path}: expected the name of a file, got a pipe, a socket or a disk")
    if path.is_symlink() and re.fullmatch(r"/dev|/proc/.*", os.path.realpath(path.parent)):
        raise OSError(f"{path}: expected the name of a file, got a link to one that is open; give its own name")
    return False


def check_writable(path: Path) -> None:
    """Check, before long work, that its results can be written to `path`; makes the folder if it is not there."""
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected the name of a file, got a folder")
    if is_device(path):
        return
    make_folder(path.parent)
    probe = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        probe.touch()
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {path} cannot be written") from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # which names the part that could not be made, and not what is in its way
        way = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
        reason = f"{way} is a file" if way is not None else error.strerror
        raise OSError(error.errno, f"{folder}: expected a folder, or a place to make one, but {reason}") from error


def sweep(folder: Path, name: str) -> None:
    """Remove the unfinished files that `atomic_write` of a killed process left; those of a live one stay.

    Process ids are those of this machine, so whoever writes files of this name must hold a lock on the folder.
    """
    for path in folder.glob(f".{name}.*-*.tmp"):
        if (found := re.search(r"\.(\d+)-[0-9a-f]{8}\.tmp$", path.name)) and not alive(int(found[1])):
            path.unlink(missing_ok=True)


def alive(process: int) -> bool:
    """Whether there is a process of this number; where the system cannot say, there is."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def cached(name: str, make: Callable[[], Arrays], valid: Callable[[Arrays], bool]) -> Arrays:
    """Read arrays from the cache, or make them and keep them there.

    A file that cannot be read, or whose arrays are not `valid`, is made again. Where the cache cannot be written
    the arrays are still given, with a warning.
    """
    path = cache_dir() / name
    arrays = read_arrays(path)
    if arrays is not None and valid(arrays):
        return arrays
    arrays = make()
    try:
        with atomic_write(path) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        warnings.warn(
            f"{path}: could not be kept ({error}), so it will be made again next time; "
            f"set KANERVA_CACHE to a folder that can be written",
            stacklevel=2,
        )
    return arrays


def read_arrays(path: Path) -> Arrays | None:
    """Read every array of an .npz file; None where there is no file or it is broken."""
    try:
        return npz(path)
    except (OSError, ValueError):
        return None


def npz(path: Path, names: Sequence[str] = ()) -> Arrays:
    """Read the arrays of an .npz file: all of them, or those of `names`, of which the first must be there.

    An .npy file has that one alone. Never by pickle; sizes are compared with each other and with the limits below
    before anything is read.
    """
    try:
        with path.open("rb") as file:
            if names and file.read(2) != b"PK":
                file.seek(0)
                size = path.stat().st_size
                return {names[0]: _array(file, size, size)}
            with zipfile.ZipFile(file) as archive:
                found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                check_members(file, archive)
                if names and names[0] not in found:
                    raise ValueError(f"there is no key `{names[0]}`, only {', '.join(found) or 'nothing'}")
                arrays = {}
                for name in [name for name in names if name in found] or found:
                    with archive.open(found[name]) as member:
                        arrays[name] = _array(member, found[name].file_size, found[name].compress_size)
                return arrays
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a damaged file can make zipfile, zlib and NumPy's header parser raise anything
        raise ValueError(f"{path}: expected arrays saved by numpy, without objects, but: {line(error)}") from error


def check_members(file: BinaryIO, archive: zipfile.ZipFile) -> None:
    """Check that a zip lists all its members by their right names, also those that will not be read.

    Names stand there twice, and are compared when a member is opened. How many there are stands at the end; a list
    whose lengths are damaged can skip some.
    """
    file.seek(-22 - len(archive.comment), os.SEEK_END)
    announced = int.from_bytes(file.read(22)[10:12], "little")
    if announced != len(archive.infolist()):
        raise ValueError(f"there should be {announced} arrays, and {len(archive.infolist())} are listed")
    for info in archive.infolist():
        archive.open(info).close()


def _array(file: Any, size: int, stored: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Read an array in NumPy's format from a file of `size` bytes, `stored` of them on disk."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format {version} of .npy, which is for fields with names")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    wanted = math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError("objects, which only pickle could load")
    if any(n < 0 for n in shape) or wanted != size - file.tell():
        raise ValueError(
            f"the header says {dtype} of shape {shape}, {wanted:,} bytes, and there are {size - file.tell():,}"
        )
    check_size(wanted, stored)
    data, done = np.empty(wanted, np.uint8), 0
    while done < wanted:
        if not (block := file.read(min(wanted - done, 1 << 20))):
            raise ValueError(f"it ends after {done:,} of {wanted:,} bytes")
        data[done : done + len(block)] = np.frombuffer(block, np.uint8)
        done += len(block)
    array = data.view(dtype) if wanted else np.empty(0, dtype)
    return array.reshape(shape, order="F" if fortran else "C")


# LIMITS. A small file must not take all memory: what it holds is compared with these before it is read.
FREE = 2**28  # bytes that any machine has to spare: up to this much nothing is asked
RATIO = 200  # images compress 10 to 100 times; only blank ones, or a trap, more
TEXT = 2**26  # bytes of JSON and the like: ours has less than 1 MB, a run of 100,000 reports 30
SHARE = 4  # data may take a quarter of the memory, because preparing them makes copies


def contents(path: Path) -> bytes:
    """The bytes of a file of JSON, of a run's reports, or of a figure; a larger one is an error before it is read.

    Errors do not name the file: who asks for it does.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > TEXT:
            raise ValueError(f"it has {size:,} bytes, expected at most {TEXT:,}")
        return file.read(TEXT)


def check_size(size: int, stored: int | None = None) -> None:
    """Check that `size` bytes can be held, and are no trap: `stored` is what they take on disk, compressed."""
    if size <= FREE:
        return
    if stored is not None and size > RATIO * stored:
        raise ValueError(
            f"expected at most {RATIO} times the {stored:,} bytes that are stored, got {size:,}; usual cause: a "
            f"file made to fill memory, or blank images"
        )
    if size > memory() // SHARE:
        raise ValueError(
            f"expected at most a quarter of the {memory() / 2**30:.0f} GiB of memory, got {size / 2**30:,.0f} GiB"
        )


def memory() -> int:
    """The bytes of this machine's memory; 16 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**34


def line(error: BaseException) -> str:
    """What an error says, or else its name, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


class DownloadError(OSError):
    """A download that did not come through."""


def download(
    url: str,
    path: Path,
    check: Callable[[Path], str | None] = lambda path: None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Fetch a file to `path`, which appears only when all of it is there and `check` finds no fault with it.

    What came so far is kept in `path`.part and continued, in this call or a later one. A failed connection is tried
    again after 1, 2, 4, … times `pause` seconds; an answer such as 404 is not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    last: Exception
    for attempt in range(attempts):
        if attempt:
            wait = pause * 2 ** (attempt - 1)
            say(f"{url}: {line(last)}; attempt {attempt + 1} of {attempts} in {wait:g} s")
            time.sleep(wait)
        try:
            _fetch(url, part, timeout)
            break
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 and error.code not in (408, 416, 429):
                raise DownloadError(f"{url}: the server answered {error.code} {error.reason}") from error
            if error.code == 416:  # what we have does not belong to what is there now
                part.unlink(missing_ok=True)
            last = error
        except (OSError, http.client.HTTPException) as error:
            last = error
    else:
        raise DownloadError(f"{url}: no luck in {attempts} attempts; the last one said: {last}") from last
    if fault := check(part):
        part.unlink()
        raise DownloadError(f"{url}: what came is broken ({fault}), and was removed")
    os.replace(part, path)


def _fetch(url: str, part: Path, timeout: float) -> None:
    """Continue the file `part` from where it ends; raise if the connection ends before the file does."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        if have and answer.status != 206:  # the server sends all of it again
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with open(part, "ab" if have else "wb") as file, bar(path_name(url), total, have, unit="bytes") as step:
            while block := answer.read(1 << 16):
                file.write(block)
                step(len(block))
    size = part.stat().st_size
    if total is not None and size < total:
        raise OSError(f"the connection ended after {size} of {total} bytes")


def path_name(url: str) -> str:
    """Give the last part of an address."""
    return url.rsplit("/", 1)[-1]


# What flock says on network folders that know no locks.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[None]:
    """Let one process at a time through, where the folder knows locks; others wait, or get a filelock.Timeout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = filelock.FileLock(path, timeout=-1 if wait else 0)
    try:
        held.acquire()
    except filelock.Timeout:
        raise
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise OSError(
                error.errno, f"{error.strerror}: {path.parent} cannot be written to ({path.name})"
            ) from error
    try:
        yield
    finally:
        held.release()


# Tensors and JSON in one safetensors file. Nothing is ever unpickled.

FORMAT = 3
HEADER = 2**22  # bytes that name and describe tensors: ours have some thousand, and reading takes 20 times as many


def save(path: str | Path, tensors: dict[str, Tensor], about: dict[str, Any], parents: bool = True) -> None:
    """Write named tensors and what is to be said about them; an old file stays until the new one is whole.

    The metadata have `kanerva`, a JSON description, and `sha256`, which covers that text and the name, dtype, shape
    and bytes of every tensor. What `load` gave can be saved again. `parents`: make the folder if it is not there.
    """
    plain = at_rest(tensors)
    own = {"format": FORMAT, "version": version("kanerva"), "crc32": crc32(plain)}
    description = own | {name: value for name, value in about.items() if name not in ("format", "crc32")}
    note = json.dumps(description, allow_nan=False)
    data = safetensors.torch.save(plain, {"kanerva": note, "sha256": sha256(plain, note)})
    with atomic_write(Path(path), parents) as file:
        file.write(data)


def load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; a file that is missing, damaged or not ours is an error that says so."""
    tensors, metadata = read(path)
    if "kanerva" not in metadata:
        raise ValueError(f"{path}: a safetensors file, but not one that kanerva wrote")
    note = metadata["kanerva"]
    try:
        about = loads(note)
    except ValueError as error:
        raise ValueError(f"{path}: its description is damaged ({error})") from None
    if not isinstance(about, dict):
        raise ValueError(f"{path}: its description is damaged: expected a JSON object, got {type(about).__name__}")
    if metadata.get("sha256") != sha256(tensors, note):
        raise ValueError(f"{path}: damaged: its numbers or its description are not those that were written")
    if about.get("format") != FORMAT:
        came = f"{about.get('format')}, of kanerva {about.get('version')}"
        raise ValueError(f"{path}: expected a file of format {FORMAT}, got one of format {came}")
    return tensors, about


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of any safetensors file, and its metadata."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            check_size(size)
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if 8 + length > size or length > HEADER:
                most = min(HEADER, max(0, size - 8))
                raise ValueError(f"expected a header of at most {most:,} bytes, got {length:,}")
            data = head + file.read()
        tensors = safetensors.torch.load(data)
        # the library checks the header before it gives a tensor, but gives no metadata of bytes
        return tensors, json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except OSError as error:
        # reading, unlike opening, names no file
        raise OSError(error.errno, f"{error.strerror}: {path} could not be read") from error
    # KeyError, RuntimeError: a dtype or a shape that safetensors knows and this PyTorch does not
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: not a readable safetensors file, cut short or damaged ({error})") from None


def at_rest(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies as a file takes them: on the CPU, in order, and sharing no memory."""
    return {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}


def sha256(tensors: dict[str, Tensor], note: str) -> str:
    """A checksum of all that is in a file; safetensors has none."""
    total = hashlib.sha256()
    kinds = {name: [str(x.dtype), list(x.shape)] for name, x in sorted(tensors.items())}
    for text in (note, json.dumps(kinds)):
        # the length first, so that nothing can pass from one part to the next
        total.update(f"{len(text.encode())}:".encode() + text.encode())
    for name in kinds:
        total.update(_bytes(tensors[name]))
    return total.hexdigest()


def crc32(tensors: dict[str, Tensor]) -> int:
    """A short number for these weights, by which results name the checkpoint that they were made with."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(_bytes(tensors[name]), zlib.crc32(name.encode(), total))
    return total


def _bytes(x: Tensor) -> bytes:
    return x.reshape(-1).view(torch.uint8).numpy().tobytes()


def dtype_of(tensors: Mapping[str, Tensor], where: str) -> torch.dtype:
    """The one floating dtype of a model's tensors, float32 or float64; float32 where none is floating."""
    kinds = {x.dtype: name for name, x in tensors.items() if x.is_floating_point()}
    if len(kinds) > 1:
        came = ", ".join(f"{kind} ({name})" for kind, name in kinds.items())
        raise ValueError(f"{where}: expected weights of one dtype, got {came}")
    for kind, name in kinds.items():
        if kind not in (torch.float32, torch.float64):
            raise ValueError(f"{where}: {name}: expected torch.float32 or torch.float64, got {kind}")
    return next(iter(kinds), torch.float32)


def match(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: str) -> None:
    """Check that tensors can take the place of a module's own: names, shapes, dtypes, and no NaN."""
    if set(own) != set(tensors):
        missing, unknown = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
        raise ValueError(f"{where}: weights do not fit the model: missing {missing[:3]}, unknown {unknown[:3]}")
    for name, x in tensors.items():
        if own[name].shape != x.shape:
            raise ValueError(f"{where}: {name}: expected shape {tuple(own[name].shape)}, got {tuple(x.shape)}")
        if own[name].dtype != x.dtype:
            raise ValueError(f"{where}: {name}: expected {own[name].dtype}, got {x.dtype}")
        if bad := int((~x.isfinite()).sum()):
            raise ValueError(
                f"{where}: {name}: expected finite values, got {bad} NaN or infinite of {x.numel()}; usual cause: "
                f"a run that diverged; an earlier checkpoint of it may be whole"
            )
