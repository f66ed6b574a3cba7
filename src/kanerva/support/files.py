"""Files that survive a crash: the cache folder, atomic writes, cached arrays, downloads, and limits of sizes."""

import contextlib
import errno
import os
import re
import secrets
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]


def cache_dir() -> Path:
    """Say where derived and downloaded files are kept: KANERVA_CACHE, or kanerva/ in the user's cache folder."""
    if chosen := os.environ.get("KANERVA_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local", "kanerva", "Cache")
    usual = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return Path(chosen if os.path.isabs(chosen) else usual, "kanerva")


@contextlib.contextmanager
def naming(path: Path, failure: str) -> Iterator[None]:
    """Name the file that was asked for in the errors of the system, which name another one or none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"{error.strerror}: {path} {failure}") from error


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], parents: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing bytes; it appears at `path` whole when the block ends, or not at all if it raises.

    The bytes go to a file of another name in the same folder, reach the disk, and then replace the old file.
    `parents`: make the folder if it is missing. `sweep` removes what a killed process leaves. A device such as
    /dev/null is written to and stays; what else is not a file is an error.
    """
    path = Path(path)
    if is_device(path):
        with naming(path, "could not be written"), open(path, "wb") as file:
            yield file
        return
    if parents:
        make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with naming(path, "could not be written; what was there before is unchanged"):
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the file may never have been made
            temporary.unlink(missing_ok=True)
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
    """Check, before long work, that its results can be written to `path`; makes the folder if it is missing."""
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected the name of a file, got a folder")
    if not is_device(path):
        make_folder(path.parent)
        with naming(path, "cannot be written"), tempfile.TemporaryFile(dir=path.parent):
            pass


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # which names the part that could not be made, and not the file in its way
        way = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
        reason = f"{way} is a file" if way is not None else error.strerror
        raise OSError(error.errno, f"{folder}: expected a folder, or a place to make one, but {reason}") from error


def sweep(folder: Path, name: str) -> None:
    """Remove the unfinished files that `atomic_write` of a killed process left; those of a live one stay.

    Process ids are those of this machine, so the caller must hold a lock on the folder.
    """
    for path in folder.glob(f".{name}.*-*.tmp"):
        if (found := re.search(r"\.(\d+)-[0-9a-f]{8}\.tmp$", path.name)) and not _alive(int(found[1])):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    """Whether there is a process of this number; where the system cannot say, there is."""
    if os.name == "posix":
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:  # another user's
            return True
    return True


# What flock says on network folders without locks.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[None]:
    """Let one process at a time through, where the folder has locks; others wait, or get a filelock.Timeout."""
    make_folder(path.parent)
    held = filelock.FileLock(path, timeout=-1 if wait else 0)
    try:
        with naming(path.parent, f"cannot be written to ({path.name})"):
            held.acquire()
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield
    finally:
        held.release()


def cached(name: str, make: Callable[[], Arrays], valid: Callable[[Arrays], bool]) -> Arrays:
    """Read arrays from the cache, or make them and keep them there.

    A file that cannot be read, or whose arrays are not `valid`, is made again. Where the cache cannot be written
    the arrays are still given, with a warning.
    """
    path = cache_dir() / name
    with contextlib.suppress(OSError, ValueError, KeyError):  # an array may be missing
        if valid(arrays := npz(path)):
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


def npz(path: Path, names: Sequence[str] = ()) -> Arrays:
    """Read the arrays of an .npz file: all of them, or those of `names`, of which the first must be there.

    An .npy file has that one alone. Never by pickle; sizes are checked before anything is read.
    """
    try:
        check_size(path.stat().st_size)
        with path.open("rb") as file:
            if names and file.read(2) != b"PK":
                file.seek(0)
                return {names[0]: _array(file)}
            with zipfile.ZipFile(file) as archive:
                check_listed(file, archive)
                found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                for info in found.values():
                    check_size(info.file_size, info.compress_size)
                    archive.open(info).close()  # its name stands twice; an error where the two differ
                if names and names[0] not in found:
                    raise ValueError(f"there is no key `{names[0]}`, only {', '.join(found) or 'nothing'}")
                return {name: _array(archive.open(found[name])) for name in names or found if name in found}
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a damaged file can make zipfile, zlib and NumPy's header parser raise anything
        raise ValueError(f"{path}: expected arrays saved by numpy, without objects, but: {line(error)}") from error


def _array(file: Any) -> Array:
    """Read an array, and nothing else, in NumPy's format."""
    with file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # at the end of a zip's member its checksum is compared
            raise ValueError("there is more than one array")
        return array


def check_listed(file: BinaryIO, archive: zipfile.ZipFile) -> None:
    """Check that a zip lists all its members: a list whose lengths are damaged can skip some, such as labels."""
    file.seek(-22 - len(archive.comment), os.SEEK_END)
    announced, listed = int.from_bytes(file.read(22)[10:12], "little"), len(archive.infolist())
    if announced != listed:
        raise ValueError(f"there should be {announced} arrays, and {listed} are listed")


# LIMITS. A small file must not take all memory: what it holds is compared with these before it is read.
FREE = 2**28  # bytes that any machine has to spare: up to this much nothing is asked
RATIO = 200  # images compress 10 to 100 times; only blank ones, or a trap, more
TEXT = 2**26  # bytes of JSON and the like: ours has less than 1 MB, a run of 100,000 reports 30
SHARE = 4  # data may take a quarter of the memory, because preparing them makes copies


def read_file(path: Path) -> bytes:
    """The bytes of a file of JSON, of a run's reports, or of a figure; a larger one is an error before it is read.

    Errors do not name the file: the caller does.
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
