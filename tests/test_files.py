"""Files appear whole or not at all, broken caches are made again, and a small file takes no large memory."""

import errno
import io
import os
import socket
import sys
import zipfile
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest

from kanerva.support import files

posix = pytest.mark.skipif(os.name != "posix", reason="pipes, sockets and permissions as POSIX has them")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("system", "environment", "folder"),
    [
        ("linux", {"KANERVA_CACHE": "/here", "XDG_CACHE_HOME": "/xdg"}, "/here"),
        ("linux", {}, "/home/me/.cache/kanerva"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/kanerva"),
        ("linux", {"XDG_CACHE_HOME": "not/absolute"}, "/home/me/.cache/kanerva"),
        ("darwin", {}, "/home/me/Library/Caches/kanerva"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/kanerva"),
        ("win32", {"XDG_CACHE_HOME": "/xdg"}, "/home/me/AppData/Local/kanerva/Cache"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/kanerva/Cache"),
    ],
)
def test_the_cache_is_where_each_system_has_it(
    system: str, environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders of platformdirs 4.14."""
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    for name in ("KANERVA_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert files.cache_dir() == Path(folder)


def test_atomic_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    """What was there before stays whole, until the new file is, and also where a link led to it."""
    path, plain = tmp_path / "a" / "b" / "file", tmp_path / "a" / "plain"
    plain.parent.mkdir()
    plain.write_bytes(b"old")
    for text in (b"old", b"new"):
        with files.atomic_write(path) as file:
            file.write(text)
            assert not path.exists() or path.read_bytes() == b"old"
        assert path.read_bytes() == text
        assert path.stat().st_mode == plain.stat().st_mode
        path.unlink()
        path.symlink_to(plain)
    path.unlink()
    assert plain.read_bytes() == b"old"
    assert names(path.parent) == []
    with pytest.raises(FileNotFoundError), files.atomic_write(tmp_path / "c" / "file", parents=False):
        pass
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_atomic_write_keeps_the_old_file_when_writing_fails(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with files.atomic_write(path) as file:
            file.write(b"ne")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_atomic_write_reaches_the_disk_before_the_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    with files.atomic_write(tmp_path / "file") as file:
        file.write(b"x")
    assert calls[:2] == ["sync", "replace"]


def test_errors_of_a_read_only_disk_name_the_file_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "another name")

    for place in ("builtins.open", "pathlib.Path.unlink", "tempfile.TemporaryFile", "filelock.FileLock.acquire"):
        monkeypatch.setattr(place, refuse)
    with (
        pytest.raises(OSError, match=rf"Read-only.*: {tmp_path / 'a.png'}"),
        files.atomic_write(tmp_path / "a.png"),
    ):
        pass
    with pytest.raises(OSError, match=rf"Read-only.*: {tmp_path / 'a.png'}"):
        files.check_writable(tmp_path / "a.png")
    with pytest.raises(OSError, match=rf"Read-only.*: {tmp_path}"), files.lock(tmp_path / ".lock"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="devices as Linux has them")
def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    """A pseudo terminal, by a link of another name, so that a failure costs nobody their /dev/null."""
    reader, writer = os.openpty()
    os.set_blocking(reader, False)
    link = tmp_path / "link"
    link.symlink_to(os.ttyname(writer))
    files.check_writable(link)
    with files.atomic_write(link) as file:
        file.write(b"text")
    assert link.is_char_device()
    assert os.read(reader, 10) == b"text"
    for end in (reader, writer):
        os.close(end)


@posix
def test_what_is_neither_file_nor_device_is_refused(tmp_path: Path) -> None:
    """Before it is opened: nobody waits for a reader of a pipe."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    before = names(tmp_path)
    for name in ("pipe", "link", "socket"):
        for write in (files.check_writable, lambda path: files.atomic_write(path).__enter__()):
            with pytest.raises(OSError, match=f"{name}: expected the name of a file"):
                write(tmp_path / name)
    assert names(tmp_path) == before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc here")
def test_a_link_to_an_open_file_is_refused(tmp_path: Path) -> None:
    """As /dev/stdout is, where a shell has sent output to a file."""
    with open(tmp_path / "file", "wb") as file:
        for folder in ("/dev/fd", "/proc/self/fd"):
            with pytest.raises(OSError, match="got a link to one that is open"):
                files.check_writable(Path(folder, str(file.fileno())))


def test_check_writable_finds_what_is_in_the_way_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, message in {"file/a/b.json": "file is a file", ".": "got a folder"}.items():
        with pytest.raises(OSError, match=message):
            files.check_writable(tmp_path / place)
    files.check_writable(tmp_path / "new" / "b.json")
    assert names(tmp_path / "new") == []


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    """The beginning of an .npy file."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


LIES = {
    "petabytes": header((10**6, 10**9)),
    "more than there is": header((4, 2)) + b"1234",
    "less than there is": header((2,)) + b"1234",
    "negative sizes": header((-2, -2)) + b"1234",
    "objects": header((1,), "|O") + b"12345678",
    "no header": b"\x93NUMPY\x01\x00\x10\x00((((((((",
    "nothing": b"",
    "text": b"no array at all",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", LIES)
def test_a_broken_array_is_refused(tmp_path: Path, name: str, packed: bool) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(LIES[name])
    if packed:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x.npy", LIES[name])
    with pytest.raises(ValueError, match=r"a.npz: expected arrays saved by numpy, without objects, but: "):
        files.npz(path, ("x",))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float64, np.str_])
def test_arrays_come_back_as_they_were(tmp_path: Path, dtype: type, order: Any) -> None:
    x = np.array(np.arange(24).reshape(2, 3, 4).astype(dtype), order=order)
    np.savez_compressed(tmp_path / "a.npz", x=x, y=np.array(3), empty=x[:0])
    np.save(tmp_path / "b.npy", x)
    found = files.npz(tmp_path / "a.npz")
    assert {name: array.shape for name, array in found.items()} == {"x": (2, 3, 4), "y": (), "empty": (0, 3, 4)}
    for array in (found["x"], files.npz(tmp_path / "b.npy", ("x",))["x"]):
        assert array.dtype == x.dtype
        assert np.array_equal(array, x)
        assert array.flags.writeable
    assert list(files.npz(tmp_path / "a.npz", ("y", "z"))) == ["y"]


def test_what_does_not_fit_into_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank, compressed a thousand times; and more than a quarter of the memory."""
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(2**20, np.uint8))
    np.save(tmp_path / "a.npy", np.zeros(2**20, np.uint8))
    assert len(files.npz(tmp_path / "a.npz")["x"]) == 2**20
    monkeypatch.setattr(files, "FREE", 2**19)
    with pytest.raises(ValueError, match=r"a.npz: .* at most 200 times"):
        files.npz(tmp_path / "a.npz")
    assert len(files.npz(tmp_path / "a.npy", ("x",))["x"]) == 2**20
    monkeypatch.setattr(files, "memory", lambda: 2**21)
    with pytest.raises(ValueError, match=r"a.npy: .* at most a quarter"):
        files.npz(tmp_path / "a.npy", ("x",))


@pytest.mark.parametrize(
    ("place", "offset", "bit"),
    [(b"labels.npy", 0, 1), (np.arange(1000).tobytes()[4000:4010], 0, 1), (b"PK\1\2", 33, 128)],
    ids=["name", "number", "a comment's length, which swallows the next member"],
)
def test_damage_in_a_zip_is_noticed(tmp_path: Path, place: bytes, offset: int, bit: int) -> None:
    """Labels that a damaged file hides would be labels that are not there."""
    np.savez(tmp_path / "a.npz", images=np.arange(1000), labels=np.arange(3))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[(data.index if offset else data.rindex)(place) + offset] ^= bit
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"a.npz: "):
        files.npz(tmp_path / "a.npz", ("images", "labels"))


def test_the_cache_makes_what_is_missing_broken_or_not_valid(own_cache: Path) -> None:
    calls: list[int] = []
    path, x = own_cache / "x.npz", np.arange(1000)

    def load() -> int:
        arrays = files.cached("x.npz", lambda: calls.append(1) or {"x": x}, lambda arrays: "x" in arrays)  # type: ignore[func-returns-value]
        assert np.array_equal(arrays["x"], x)
        return len(calls)

    assert [load(), load()] == [1, 1]
    path.write_bytes(path.read_bytes()[:600])
    assert [load(), load()] == [2, 2]
    np.savez(path, y=x)
    assert [load(), load()] == [3, 3]
    assert names(own_cache) == ["x.npz"]


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("KANERVA_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="KANERVA_CACHE"):
        arrays = files.cached("x.npz", lambda: {"x": np.arange(1000)}, lambda arrays: True)
    assert len(arrays["x"]) == 1000


def test_lock_lets_through_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "a" / "lock"
    with files.lock(path), pytest.raises(filelock.Timeout), files.lock(path, wait=False):
        pytest.fail("two at a time")
    with files.lock(path, wait=False):
        pass


@posix
def test_a_folder_without_locks_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with files.lock(tmp_path / "lock"):
        monkeypatch.undo()  # before anything else wants a lock
