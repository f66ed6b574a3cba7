"""TFRecords: read as they were written, split as they say, and refused with their place where they are damaged."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import records
from kanerva.data import load, tfrecord


def jpeg(value: int, side: int = 8, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(out, kind)
    return out.getvalue()


def shard(path: Path, values: range, labels: int | None = 3, **more: Any) -> Path:
    """A file of pictures of one colour each; class value % labels."""
    label = (lambda value: {"label": value % labels}) if labels else (lambda value: {})
    return records.write(path, *(records.example(image=jpeg(v), **label(v), **more) for v in values))


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, appendix B.4, and the usual check value
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_the_checksum_is_that_of_the_standard(data: bytes, crc: int) -> None:
    assert tfrecord.crc32c(data) == records.crc32c(data) == crc


def test_records_come_as_they_were_written(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    written = [random.bytes(length) for length in (0, 1, 7, 300, 70_000)]
    assert list(tfrecord.records(records.write(tmp_path / "a", *written))) == written
    assert list(tfrecord.records(records.write(tmp_path / "b"))) == []


def test_features_come_as_they_were_written() -> None:
    message = records.example(image=b"\x00\xff", label=5, below=-3, many=[1, 300, -1], real=0.5, text=b"")
    assert tfrecord.example(message) == {
        "image": [b"\x00\xff"],
        "label": [5],
        "below": [-3],
        "many": [1, 300, -1],
        "real": [],  # not read
        "text": [b""],
    }
    unknown = records.field(9, b"x") + records.varint(8 * 7 + 5) + b"1234" + records.varint(8 * 6 + 1) + b"12345678"
    assert tfrecord.example(unknown + message + records.varint(8 * 5) + records.varint(2**64 - 1))["label"] == [5]
    assert tfrecord.example(b"") == {}


def test_images_of_records_have_their_labels_for_classes(tmp_path: Path) -> None:
    path = shard(tmp_path / "set" / "dmlab.tfrecord-00000-of-00001", range(24), filename=b"x")
    for name in (path, path.parent):
        images = load(name, holdout=0.0)
        assert images.shape == (3, 8, 8)
        assert images.labels == ("0", "1", "2")
        assert images.count.tolist() == [8, 8, 8]
        assert images.pixels[:8, 0, 0, 0].tolist() == list(range(0, 24, 3))
    train, test = load(path), load(path, "test")
    # by the content of each image: about a quarter
    assert (len(train), len(test)) == (20, 4)
    assert load(path, holdout=0.0, size=4, channels=1).shape == (1, 4, 4)


def test_images_of_records_without_labels_are_classes_of_their_own(tmp_path: Path) -> None:
    images = load(shard(tmp_path / "a.tfrecord", range(4), None), holdout=0.0)
    assert images.labels == tuple(f"a.tfrecord: record {n}" for n in range(4))
    named = records.write(
        tmp_path / "b.tfrecord", *(records.example(image=jpeg(v, kind="PNG"), label=b"cat") for v in (1, 2))
    )
    assert load(named, holdout=0.0).labels == ("cat",)


def test_files_that_name_a_split_are_of_that_split(tmp_path: Path) -> None:
    for shard_number in range(2):
        shard(
            tmp_path / f"dmlab-train.tfrecord-0000{shard_number}-of-00002",
            range(4 * shard_number, 4 * shard_number + 4),
        )
    shard(tmp_path / "dmlab-test.tfrecord-00000-of-00001", range(100, 103))
    shard(tmp_path / "dmlab-validation.tfrecord-00000-of-00001", range(200, 203))
    assert sorted(load(tmp_path).pixels[:, 0, 0, 0].tolist()) == list(range(8))
    assert sorted(load(tmp_path, "test").pixels[:, 0, 0, 0].tolist()) == [100, 101, 102]
    (tmp_path / "dmlab-test.tfrecord-00000-of-00001").unlink()
    assert (
        len(load(tmp_path, holdout=0.0)) == 11
    )  # without a test split of their own, all are split as other images


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("at", [0, 7, 8, 11, 12, 60, -5, -1])
def test_a_changed_byte_is_noticed(tmp_path: Path, at: int) -> None:
    path = shard(tmp_path / "a.tfrecord", range(1))
    whole = path.read_bytes()
    path.write_bytes(whole + changed(whole, at % len(whole)))
    with pytest.raises(
        ValueError, match=rf"a.tfrecord: record 1 at byte {len(whole):,}: .* checksum is another; usual"
    ):
        load(path)


@pytest.mark.parametrize("keep", [1, 11, 12, 100, -1])
def test_a_file_cut_off_is_noticed(tmp_path: Path, keep: int) -> None:
    path = shard(tmp_path / "a.tfrecord", range(1))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"a.tfrecord: record 0 at byte 0: expected .* the file ends after"):
        load(path)


def test_a_length_that_is_not_there_takes_no_memory(tmp_path: Path) -> None:
    head = (2**62).to_bytes(8, "little")
    crc = tfrecord.mask(records.crc32c(head))
    (tmp_path / "a.tfrecord").write_bytes(head + crc.to_bytes(4, "little") + b"x")
    with pytest.raises(ValueError, match=r"record 0 at byte 0: expected 4,611,686,018,427,387,904 bytes more"):
        load(tmp_path / "a.tfrecord")


BAD: dict[str, tuple[bytes, str]] = {
    "no image": (
        records.example(picture=jpeg(1), label=1),
        r"one encoded picture .* got 0 among .* picture, label",
    ),
    "a number for an image": (records.example(image=3), r"one encoded picture as its feature `image`, got 1"),
    "two images": (
        records.field(
            1,
            records.field(
                1, records.field(1, b"image") + records.field(2, records.field(1, 2 * records.field(1, b"x")))
            ),
        ),
        r"got 2 among",
    ),
    "no features": (b"", r"got 0 among the features none"),
    "no picture": (records.example(image=b"x"), r"expected an image, but it cannot be read"),
    "half a picture": (records.example(image=jpeg(9, 64)[:-200]), r"expected an image, but it cannot be read"),
    "a field too long": (
        records.field(1, b"")[:1] + b"\x7f",
        r"a field of 127 bytes, but its message ends after 0",
    ),
    "a number without end": (b"\xff" * 20, r"a number of at most ten bytes"),
    "a number cut off": (b"\xff", r"expected a number, but its message ends"),
    "a field of no kind": (b"\x0b", r"protobuf's wire format, got a field of kind 3"),
    "a number for a message": (b"\x08\x01", r"expected a tf.train.Example, got a number in field 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_records_of_something_else_are_named(tmp_path: Path, name: str) -> None:
    message, wanted = BAD[name]
    path = records.write(tmp_path / "a.tfrecord", records.example(image=jpeg(1)), message)
    with pytest.raises(ValueError, match=rf"a.tfrecord: record 1: .*{wanted}"):
        load(path)


def test_records_of_two_sizes_and_of_none(tmp_path: Path) -> None:
    path = records.write(tmp_path / "a.tfrecord", *(records.example(image=jpeg(1, side)) for side in (8, 9)))
    with pytest.raises(ValueError, match=r"a.tfrecord: expected 8×8 .* like a.tfrecord: record 0, got 9×9"):
        load(path)
    with pytest.raises(ValueError, match=r"b.tfrecord: expected images, got files that hold none"):
        load(records.write(tmp_path / "b.tfrecord"))
