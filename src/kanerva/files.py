"""Files that survive a crash: the cache folder, atomic writes, cached arrays and resumable downloads."""

import contextlib
import http.client
import os
import re
import secrets
import sys
import time
import urllib.error
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .progress import bar

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


def cache_dir() -> Path:
    """Say where derived and downloaded files are kept: KANERVA_CACHE, or kanerva/ in the user's cache folder."""
    if chosen := os.environ.get("KANERVA_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "kanerva"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kanerva"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "kanerva" / "Cache"
    return Path.home() / ".cache" / "kanerva"


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], parents: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing bytes; it appears at `path` whole when the block ends, or not at all if it raises.

    The bytes go to a file of another name in the same folder, reach the disk, and then take the old one's place.
    `parents`: make the folder if it is not there. `sweep` removes what a killed process leaves.
    """
    path = Path(path)
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
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
    """Read every array of an .npz file, never by pickle; None where there is no file or it is broken."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    # A torn file can fail in any of these ways; AttributeError: it is a single array, not an .npz.
    except (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error):
        return None


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
    for attempt in range(attempts):
        if attempt:
            time.sleep(pause * 2 ** (attempt - 1))
        try:
            _fetch(url, part, timeout)
            break
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 and error.code not in (408, 416, 429):
                raise DownloadError(f"{url}: the server answered {error.code} {error.reason}") from error
            if error.code == 416:  # what we have does not belong to what is there now
                part.unlink(missing_ok=True)
            last: Exception = error
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


@contextlib.contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[None]:
    """Let one process at a time through, where the system can; the others wait, or get a BlockingIOError."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # some network folders know no locks
        yield
