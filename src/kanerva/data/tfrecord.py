"""TFRecord files of tf.train.Example messages, read without TensorFlow.

A file is a row of records, each

    length (8 bytes) · masked CRC-32C of these (4) · data (length bytes) · masked CRC-32C of the data (4)

in little-endian order. The data are a protobuf message; what is needed of its wire format is below.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..support.files import check_size
from ..support.jit import compiled

Features = dict[str, list[Any]]


def records(path: Path) -> Iterator[bytes]:
    """The data of every record; one that is damaged or cut off is an error that names its place."""
    with path.open("rb") as file:
        size, number = os.fstat(file.fileno()).st_size, 0
        while (start := file.tell()) < size:
            try:
                data = _record(file, size)
            except ValueError as error:
                raise ValueError(
                    f"{path}: record {number} at byte {start:,}: {error}; usual cause: an unfinished copy or "
                    f"download, or a file that is compressed as a whole"
                ) from None
            yield data
            number += 1


def _record(file: BinaryIO, size: int) -> bytes:
    head = _take(file, 12, size)
    length, check = struct.unpack("<QI", head)
    if mask(crc32c(head[:8])) != check:
        raise ValueError("expected a length, but its checksum is another")
    data = _take(file, length, size)
    (check,) = struct.unpack("<I", _take(file, 4, size))
    if mask(crc32c(data)) != check:
        raise ValueError(f"expected {length:,} bytes of data, but their checksum is another")
    return data


def _take(file: BinaryIO, count: int, size: int) -> bytes:
    """Read so many bytes, if there are as many in the file and there is room for them."""
    left = size - file.tell()
    if count <= left:
        check_size(count)
        if len(data := file.read(count)) == count:
            return data
    raise ValueError(f"expected {count:,} bytes more, but the file ends after {left:,}")


def _table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The remainder of every byte, by the polynomial 0x1EDC6F41, whose bits are read from the other end."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_TABLE = _table()


@compiled
def _crc(data: Any, table: Any) -> int:
    state = np.uint32(0xFFFFFFFF)
    for byte in data:
        state = table[(state ^ byte) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
    return state ^ np.uint32(0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """The checksum CRC-32C (Castagnoli), as iSCSI has it."""
    return int(_crc(np.frombuffer(data, np.uint8), _TABLE))


def mask(crc: int) -> int:
    """What is written for a checksum: turned by 15 bits, and a constant added."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# Protobuf. A message is a row of fields, each a key and a value; key = field number · 8 + kind of value.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in their order: number and value, which is an int or, for other kinds, bytes."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = varint(message, at)
            yield key >> 3, value
            continue
        if kind == BYTES:
            length, at = varint(message, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"expected a message in protobuf's wire format, got a field of kind {kind}")
        if length > len(message) - at:
            raise ValueError(
                f"expected a field of {length:,} bytes, but its message ends after {len(message) - at:,}"
            )
        yield key >> 3, message[at : at + length]
        at += length


def varint(message: bytes, at: int) -> tuple[int, int]:
    """A whole number at a place, seven bits a byte, the lowest first, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("expected a number, but its message ends")
        byte = message[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value & (2**64 - 1), at
    raise ValueError("expected a number of at most ten bytes, got a longer one")


def example(message: bytes) -> Features:
    """The features of a tf.train.Example, by name: lists of bytes or of whole numbers; of other kinds empty.

    Example = {1: Features}, Features = {1: entry, …}, entry = {1: name, 2: Feature},
    Feature = {1: list of bytes} or {2: of floats} or {3: of whole numbers}, a list = {1: value, …}
    """
    found: Features = {}
    for features in _inner(message, 1):
        for entry in _inner(features, 1):
            name = b"".join(_inner(entry, 1)).decode("utf-8", "backslashreplace")
            found[name] = [value for feature in _inner(entry, 2) for value in _values(feature)]
    return found


def _inner(message: bytes, wanted: int) -> Iterator[bytes]:
    """The messages (or texts) in the fields of one number."""
    for number, value in fields(message):
        if number == wanted:
            if isinstance(value, int):
                raise ValueError(f"expected a tf.train.Example, got a number in field {number}")
            yield value


def _values(feature: bytes) -> Iterator[Any]:
    for number, values in fields(feature):
        if number not in (1, 3) or isinstance(values, int):
            continue
        for inner, value in fields(values):
            if inner != 1:
                continue
            if number == 3 and isinstance(value, bytes):  # all of them in one field
                at = 0
                while at < len(value):
                    whole, at = varint(value, at)
                    yield signed(whole)
            else:
                yield signed(value) if isinstance(value, int) else value


def signed(whole: int) -> int:
    """64 bits as a number that may be negative."""
    return whole - 2**64 if whole >= 2**63 else whole
