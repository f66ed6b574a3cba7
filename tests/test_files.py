"""Files appear whole or not at all, and broken caches are made again."""

import errno
import functools
import io
import os
import socket
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import platformdirs
import pytest

from kanerva import files


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.endswith((".tmp", ".part"))]


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KANERVA_CACHE", str(tmp_path / "here"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert files.cache_dir() == tmp_path / "here"
    monkeypatch.delenv("KANERVA_CACHE")
    usual = platformdirs.user_cache_path("kanerva", appauthor=False)
    assert files.cache_dir() == usual
    if sys.platform == "linux":
        assert usual == tmp_path / "xdg" / "kanerva"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert files.cache_dir() == tmp_path / ".cache" / "kanerva"


def test_the_cache_of_an_earlier_version_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On any system it was below XDG_CACHE_HOME where that was set."""
    monkeypatch.delenv("KANERVA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "elsewhere")
    assert files.cache_dir() == tmp_path / "elsewhere"
    (tmp_path / "xdg" / "kanerva").mkdir(parents=True)
    assert files.cache_dir() == tmp_path / "xdg" / "kanerva"


def test_atomic_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    for text in (b"old", b"new"):
        with files.atomic_write(path) as file:
            file.write(text)
            assert not path.exists() or path.read_bytes() == b"old"
        assert path.read_bytes() == text
    assert [p.name for p in path.parent.iterdir()] == ["file"]


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
    assert leftovers(tmp_path) == []


def test_atomic_write_reaches_the_disk_before_the_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    with files.atomic_write(tmp_path / "file") as file:
        file.write(b"x")
    assert calls[:2] == ["sync", "replace"]


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_atomic_write_gives_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    with files.atomic_write(tmp_path / "file"):
        pass
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_where_nothing_can_be_written_the_error_names_the_file_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only file system refuses to make a file, and to remove one."""

    def refuse(path: object, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with (
        pytest.raises(OSError, match=rf"Read-only file system: {tmp_path / 'a.png'} could not be written"),
        files.atomic_write(tmp_path / "a.png"),
    ):
        pass


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lock: filelock.FileLock) -> None:
        raise OSError(errno.EROFS, "Read-only file system", lock.lock_file)

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with (
        pytest.raises(OSError, match=rf"Read-only file system: {tmp_path} cannot be written to"),
        files.lock(tmp_path / ".lock"),
    ):
        pass


def test_atomic_write_may_be_told_not_to_make_folders(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="file could not be written"),
        files.atomic_write(tmp_path / "a" / "file", parents=False),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


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
    (tmp_path / "full").symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match=r"No space left on device: .*full could not be written"),
        files.atomic_write(tmp_path / "full") as file,
    ):
        file.write(b"text")
    for end in (reader, writer):
        os.close(end)


@pytest.mark.skipif(os.name != "posix", reason="pipes and sockets as POSIX has them")
def test_what_is_neither_file_nor_device_is_refused(tmp_path: Path) -> None:
    """At once: nobody waits for a reader of a pipe."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    before = sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir())
    for name in ("pipe", "link", "socket"):
        for write in (files.check_writable, lambda path: files.atomic_write(path).__enter__()):
            with pytest.raises(OSError, match=f"{name}: expected the name of a file, got a pipe, a socket"):
                write(tmp_path / name)
    assert sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir()) == before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc here")
def test_a_link_to_an_open_file_is_refused(tmp_path: Path) -> None:
    """As /dev/stdout is, where a shell has sent output to a file."""
    with open(tmp_path / "file", "wb") as file:
        for folder in ("/dev/fd", "/proc/self/fd"):
            with pytest.raises(OSError, match="got a link to one that is open"):
                files.check_writable(Path(folder, str(file.fileno())))


def test_a_link_to_a_file_is_replaced_and_the_file_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with files.atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert (tmp_path / "link").read_bytes() == b"new"


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    """The beginning of an .npy file."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


LIES = {
    "terabytes": (header((10**6, 10**9)), "the header says uint8 of shape .* bytes, and there are 0"),
    "more than there is": (header((4, 2)) + b"1234", "8 bytes, and there are 4"),
    "less than there is": (header((2,)) + b"1234", "2 bytes, and there are 4"),
    "negative sizes": (header((-2, -2)) + b"1234", ""),
    "objects": (header((1,), "|O") + b"12345678", "Object arrays cannot be loaded"),
    "no header": (b"\x93NUMPY\x01\x00\x10\x00((((((((", "EOF: reading array header"),
    "nothing": (b"", "EOF: reading magic string"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", LIES)
def test_an_array_is_not_read_before_its_size_is_known(tmp_path: Path, name: str, packed: bool) -> None:
    data, message = LIES[name]
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    if packed:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x.npy", data)
    with pytest.raises(
        ValueError, match=rf"a.npz: expected arrays saved by numpy, without objects, but: .*{message}"
    ):
        files.npz(path, ("x",))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float64, np.str_])
def test_arrays_come_back_as_they_were(tmp_path: Path, dtype: type, order: Any) -> None:
    x = (
        np.asfortranarray(np.arange(24).reshape(2, 3, 4).astype(dtype))
        if order == "F"
        else np.arange(0).astype(dtype)
    )
    np.savez_compressed(tmp_path / "a.npz", x=x, y=np.array(3))
    np.save(tmp_path / "b.npy", x)
    for found in (files.npz(tmp_path / "a.npz")["x"], files.npz(tmp_path / "b.npy", ("x",))["x"]):
        assert found.dtype == x.dtype
        assert np.array_equal(found, x)
        assert found.flags.writeable
    assert list(files.npz(tmp_path / "a.npz", ("y", "z"))) == ["y"]


def test_what_does_not_fit_into_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank, compressed a thousand times; and more than a quarter of the memory."""
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(2**20, np.uint8))
    np.save(tmp_path / "a.npy", np.zeros(2**20, np.uint8))
    assert len(files.npz(tmp_path / "a.npz")["x"]) == 2**20
    monkeypatch.setattr(files, "FREE", 2**19)
    with pytest.raises(
        ValueError, match=r"a.npz: .* at most 200 times the [\d,]+ bytes that are stored, got 1,048,704"
    ):
        files.npz(tmp_path / "a.npz")
    assert len(files.npz(tmp_path / "a.npy", ("x",))["x"]) == 2**20
    monkeypatch.setattr(files, "memory", lambda: 2**21)
    with pytest.raises(ValueError, match=r"a.npy: .* at most a quarter of the 0 GiB of memory"):
        files.npz(tmp_path / "a.npy", ("x",))


def test_the_checksum_of_a_member_is_compared(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(1000))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"a.npz: .*Bad CRC-32"):
        files.npz(tmp_path / "a.npz")


def test_a_damaged_name_in_a_zip_is_noticed(tmp_path: Path) -> None:
    """Else labels that cannot be found would be labels that are not there."""
    np.savez(tmp_path / "a.npz", images=np.zeros(3), labels=np.arange(3))
    data = (tmp_path / "a.npz").read_bytes()
    at = data.rindex(b"labels.npy")
    (tmp_path / "a.npz").write_bytes(data[:at] + b"m" + data[at + 1 :])
    with pytest.raises(ValueError, match=r"a.npz: .*'mabels.npy' and header b'labels.npy' differ"):
        files.npz(tmp_path / "a.npz", ("images", "labels"))


def test_a_member_that_a_damaged_zip_skips_is_missed(tmp_path: Path) -> None:
    """The length of a comment, made longer, swallows the next member."""
    np.savez(tmp_path / "a.npz", images=np.zeros(3), labels=np.arange(3))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(b"PK\1\2") + 33] ^= 128
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"a.npz: .*there should be 2 arrays, and 1 are listed"):
        files.npz(tmp_path / "a.npz", ("images", "labels"))


def make(calls: list[int]) -> files.Arrays:
    calls.append(1)
    return {"x": np.arange(1000)}


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flipped":  # in the middle of the compressed numbers
        path.write_bytes(data[:200] + bytes([data[200] ^ 255]) + data[201:])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_bytes(b"no zip at all")
    elif how == "pickle":
        with path.open("wb") as file:
            np.savez(file, x=np.array([print], dtype=object))  # allow_pickle is numpy's default for saving
    elif how == "npy":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    elif how == "other keys":
        with path.open("wb") as file:
            np.savez(file, y=np.arange(3))


@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "text", "pickle", "npy", "other keys"])
def test_a_broken_cache_file_is_made_again(own_cache: Path, how: str) -> None:
    calls: list[int] = []
    load = functools.partial(files.cached, "x.npz", lambda: make(calls), lambda arrays: "x" in arrays)
    load()
    load()
    assert len(calls) == 1
    spoil(own_cache / "x.npz", how)
    assert np.array_equal(load()["x"], np.arange(1000))
    assert len(calls) == 2
    load()
    assert len(calls) == 2
    assert leftovers(own_cache) == []


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("KANERVA_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be kept .* set KANERVA_CACHE"):
        arrays = files.cached("x.npz", lambda: make([]), lambda arrays: True)
    assert len(arrays["x"]) == 1000


def test_lock_lets_through_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "a" / "lock"
    with files.lock(path), pytest.raises(filelock.Timeout), files.lock(path, wait=False):
        pytest.fail("two at a time")
    with files.lock(path, wait=False):
        pass
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"), files.lock(tmp_path / "folder"):
        pass


@pytest.mark.skipif(os.name != "posix", reason="flock")
def test_a_folder_that_knows_no_locks_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with files.lock(tmp_path / "lock"):
        monkeypatch.undo()  # before anything else wants a lock


def test_where_results_cannot_be_written_is_said_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, message in {
        "file/a/b.json": r"file/a: expected a folder, or a place to make one, but .*file is a file",
        ".": "expected the name of a file, got a folder",
    }.items():
        with pytest.raises(OSError, match=message):
            files.check_writable(tmp_path / place)
    files.check_writable(tmp_path / "new" / "b.json")
    assert list((tmp_path / "new").iterdir()) == []
