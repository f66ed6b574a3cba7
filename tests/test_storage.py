"""A file gives exactly what was saved, or an error that names it; sizes are compared before a model is built."""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import kanerva
from kanerva import models, storage
from kanerva.support import files

SMALL: dict[str, Any] = {"image": (1, 8, 8), "rows": 4, "code": 6, "codec": {"filters": (4, 4)}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    kanerva.create("dkm", **SMALL).save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def changed(path: Path, tensors: dict[str, Any] | None = None, **fields: Any) -> Path:
    """The same file with other tensors, or other fields of the model's config, and a checksum that is right."""
    old, about = storage.load(path)
    storage.save(path, {**old, **(tensors or {})}, {**about, "model": {**about["model"], **fields}})
    return path


def earlier(path: Path, header: tuple[bytes, bytes] = (b"", b"")) -> Path:
    """The same file as format 1 had it, with one text of its header replaced by another as long."""
    tensors, about = storage.load(path)
    data = safetensors.torch.save(tensors, {"kanerva": json.dumps({**about, "format": 1})})
    assert header[0] in data
    path.write_bytes(data.replace(*header, 1))
    return path


def same(a: tuple[dict[str, Tensor], Any], b: tuple[dict[str, Tensor], Any]) -> bool:
    (x, about_x), (y, about_y) = a, b
    names = set(x) == set(y)
    return names and all(x[n].dtype == y[n].dtype and torch.equal(x[n], y[n]) for n in x) and about_x == about_y


def test_what_is_loaded_can_be_saved_again(path: Path) -> None:
    before = storage.load(path)
    storage.save(path, *before)
    assert same(storage.load(path), before)
    assert before[1]["format"] == storage.FORMAT


def test_no_changed_bit_loads_as_something_else(path: Path) -> None:
    """One bit of every other byte of the header, and of some of the numbers."""
    whole, before, choose = path.read_bytes(), storage.load(path), random.Random(0)
    end = 8 + int.from_bytes(whole[:8], "little")
    for place in [*range(0, end, 2), *range(end, len(whole), 101)]:
        data = bytearray(whole)
        data[place] ^= 1 << choose.randrange(8)
        path.write_bytes(data)
        try:
            came = storage.load(path)
        except ValueError as error:
            came, said = before, str(error)
        else:
            said = str(path)
        assert same(came, before), place
        assert str(path) in said, place


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rb"\"iterations\": 1", rb"\"iterations\": 3"),
        (rb"\"min_scale\": 0.0078125", rb"\"min_scale\": 0.0078126"),
        (b'"model.R0":{"dtype":"F32"', b'"model.R0":{"dtype":"I32"'),
        (b'"shape":[4,6]', b'"shape":[6,4]'),
        (b'"sha256"', b'"sha255"'),
        (rb"\"format\": 2", rb"\"format\": 1"),
    ],
)
def test_a_changed_description_is_noticed(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"model.safetensors: damaged: its numbers or its description"):
        kanerva.load(path)


def test_a_file_of_an_earlier_version_loads_and_says_that_it_is_not_fully_checked(path: Path) -> None:
    R0 = kanerva.load(path).R0
    with pytest.warns(UserWarning, match=r"model.safetensors: not fully checked: it was written by kanerva"):
        model = kanerva.load(earlier(path))
    assert torch.equal(model.R0, R0)


@pytest.mark.filterwarnings("ignore:.*not fully checked")
def test_damage_to_a_file_of_an_earlier_version_is_noticed_where_it_can_be(path: Path) -> None:
    whole = path.read_bytes()
    with pytest.raises(ValueError, match=r"model.safetensors: R0: expected torch.float32, got torch.int32"):
        kanerva.load(earlier(path, (b'"model.R0":{"dtype":"F32"', b'"model.R0":{"dtype":"I32"')))
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"R0: expected shape \(4, 6\), got \(6, 4\)"):
        kanerva.load(earlier(path, (b'"shape":[4,6]', b'"shape":[6,4]')))
    path.write_bytes(whole)
    data = bytearray(earlier(path).read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"model.safetensors: damaged: its numbers are not"):
        kanerva.load(path)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"expected format 2, got 3 written by kanerva"):
        kanerva.load(earlier(path, (rb"\"format\": 1", rb"\"format\": 3")))


# sizes are compared before anything is made, or read


def test_a_file_that_is_too_large_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    padded = data[8 : 8 + length] + b" " * 2**23  # as safetensors allows
    for header in ((len(padded).to_bytes(8, "little") + padded), b"\xff" * 8):
        path.write_bytes(header + data[8 + length :])
        with pytest.raises(
            ValueError, match=r"model.safetensors: .*expected a header of at most [\d,]+ bytes, got"
        ):
            kanerva.load(path)
    path.write_bytes(data)
    monkeypatch.setattr(files, "FREE", 1_000)
    monkeypatch.setattr(files, "memory", lambda: 4_000)
    with pytest.raises(ValueError, match=r"model.safetensors: .*expected at most a quarter of the 0 GiB of memory"):
        kanerva.load(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 10**8}, r"R0: expected shape \(6, 6\), got \(4, 6\)"),
        ({"code": 10**8}, r"expected shape \(.*100000000.*\), got"),
        ({"rows": 10**18, "code": 10**18}, "weights do not fit the model"),
        ({"image": [1, 10**9, 10**9]}, r"expected shape .*, got"),
        ({"codec": {"filters": [4, 4], "depth": 10**5}}, r"asks for more than \d+ tensors, and there are 32"),
        ({"codec": {"filters": [4] * 10**5}}, r"asks for more than \d+ tensors, and there are 32"),
    ],
)
def test_a_config_that_asks_for_too_much_costs_nothing(
    path: Path, fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No layer is made but on the meta device, and few of them."""
    made = []
    start = nn.Conv2d.__init__

    def watched(self: nn.Conv2d, *sizes: Any, **how: Any) -> None:
        start(self, *sizes, **how)
        made.append(self.weight.device.type)

    monkeypatch.setattr(nn.Conv2d, "__init__", watched)
    changed(path, **fields)
    with pytest.raises(ValueError, match=rf"model.safetensors: .*{message}"):
        kanerva.load(path)
    assert set(made) <= {"meta"}
    assert len(made) < 2 * models.SPARE


def test_making_a_plan_draws_no_random_numbers(path: Path) -> None:
    config = kanerva.load(path).config
    before = torch.get_rng_state()
    plan = models.blueprint(models.DKM, config, 31, "here")
    assert torch.equal(torch.get_rng_state(), before)
    assert plan.R0.is_meta


@pytest.mark.parametrize("name", kanerva.MODELS)
def test_every_model_can_be_planned(name: str, tmp_path: Path) -> None:
    model = kanerva.create(name, likelihood="gaussian")
    model.save(tmp_path / "m.safetensors")
    again = kanerva.load(tmp_path / "m.safetensors").state_dict()
    assert all(torch.equal(x, again[name]) for name, x in model.state_dict().items())


# dtypes and values


def test_a_double_model_loads_as_double(path: Path) -> None:
    model = kanerva.load(path).double()
    with torch.no_grad():
        model.R0 += 1e-12
    model.save(path)
    again = kanerva.load(path)
    assert {x.dtype for x in again.state_dict().values()} == {torch.float64}
    assert torch.equal(again.R0, model.R0)


def test_other_dtypes_are_refused(path: Path) -> None:
    R0 = storage.load(path)[0]["model.R0"]
    whole = path.read_bytes()
    model = kanerva.load(path).half()
    with pytest.raises(ValueError, match=r"expected torch.float32 or torch.float64, got torch.float16"):
        model.save(path)
    assert path.read_bytes() == whole
    # float16 in a file is float32 in the model, also beside float32
    rounded = kanerva.load(changed(path, {"model.R0": R0.half()}))
    assert {x.dtype for x in rounded.state_dict().values()} == {torch.float32}
    torch.testing.assert_close(rounded.R0, R0, rtol=1e-3, atol=1e-6)
    with pytest.raises(ValueError, match=r"weights of one dtype, got torch.float(32|64) .*, torch.float(32|64)"):
        kanerva.load(changed(path, {"model.R0": R0.double()}))
    with pytest.raises(ValueError, match=r"model.safetensors: R0: expected torch.float32, got torch.int64"):
        kanerva.load(changed(path, {"model.R0": R0.long()}))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_named(path: Path, value: float) -> None:
    R0 = storage.load(path)[0]["model.R0"].clone()
    R0[1, 2] = value
    changed(path, {"model.R0": R0})
    with pytest.raises(
        ValueError, match=r"model.safetensors: R0: expected finite values, got 1 NaN or inf.* diverged"
    ):
        kanerva.load(path)
    assert storage.load(path)[0]["model.R0"].isfinite().sum() == 23  # to look at


# fields of a description


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", True),
        ("rows", 10**30),
        ("rows", 4.0),
        ("code", None),
        ("min_scale", 1e400),
        ("image", [True, 8, 8]),
    ],
)
def test_a_number_that_is_none_is_named(field: str, value: Any) -> None:
    config = {**kanerva.fields.to_dict(kanerva.DKMConfig()), field: value}
    with pytest.raises(ValueError, match=rf"here.{field}: expected .*, got"):
        kanerva.fields.from_dict(kanerva.DKMConfig, config, "here")


@pytest.mark.parametrize("kind", ["dkn", ["dkm"], 3, None])
def test_an_unknown_kind_of_model_is_named_with_its_file(path: Path, kind: Any) -> None:
    with pytest.raises(ValueError, match=r"model.safetensors: model.kind: model: expected one of dkm,"):
        kanerva.load(changed(path, kind=kind))


def test_an_error_is_not_as_long_as_what_was_wrong(path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows: expected .*, got '1111") as caught:
        kanerva.load(changed(path, rows="1" * 10_000))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("note", ["{", "[1]", '{"a": ' + "[" * 10_000, '{"a": ' + "1" * 5000 + "}"])
def test_a_description_that_cannot_be_read(tmp_path: Path, note: str) -> None:
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "a.safetensors", {"kanerva": note})
    with pytest.raises(ValueError, match=r"a.safetensors: its description is damaged"):
        storage.load(tmp_path / "a.safetensors")


# names and permissions


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes on Linux")
def test_a_name_that_is_not_utf_8(path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(path.parent) + b"/\xff.safetensors"))
    path.rename(odd)
    assert kanerva.load(odd).config.rows == 4  # type: ignore[attr-defined]


def test_a_file_that_may_not_be_read_is_not_called_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: .*model.safetensors"):
        kanerva.load(path)
