"""A file gives exactly what was saved, or an error that names it; sizes are compared before a model is built."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import kanerva
from kanerva.models.checkpoint import Checkpoint, read
from kanerva.support import files
from kanerva.support import tensors as storage

SMALL: dict[str, Any] = {"image": (1, 8, 8), "rows": 4, "code": 6, "codec": {"filters": (4, 4)}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    kanerva.create("dkm", **SMALL).save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def changed(path: Path, R0: Tensor | None = None, **fields: Any) -> Path:
    """The same file with another R0, or other fields of the model's config, and a checksum that is right."""
    _, tensors, about = read(path)
    if R0 is not None:
        tensors["model.memory.R0"] = R0
    storage.save(path, tensors, {**about, "model": {**about["model"], **fields}})
    return path


def same(a: Checkpoint, b: Checkpoint) -> bool:
    names, x, y = set(a.tensors) == set(b.tensors), a.tensors, b.tensors
    return names and all(x[n].dtype == y[n].dtype and torch.equal(x[n], y[n]) for n in x) and a.about == b.about


def test_no_changed_bit_loads_as_something_else(path: Path) -> None:
    """One bit of every other byte of the header, and of some of the numbers; a whole file can be saved again."""
    storage.save(*read(path))
    whole, before, choose = path.read_bytes(), read(path), random.Random(0)
    end = 8 + int.from_bytes(whole[:8], "little")
    for place in [*range(0, end, 2), *range(end, len(whole), 101)]:
        data = bytearray(whole)
        data[place] ^= 1 << choose.randrange(8)
        path.write_bytes(data)
        try:
            came, said = read(path), str(path)
        except ValueError as error:
            came, said = before, str(error)
        assert same(came, before), place
        assert str(path) in said, place


def test_a_file_of_another_format_is_refused(path: Path) -> None:
    _, tensors, about = read(path)
    note = json.dumps(about | {"format": 2, "version": "0.0.9"})
    path.write_bytes(safetensors.torch.save(tensors, {"kanerva": note, "sha256": storage.sha256(tensors, note)}))
    with pytest.raises(ValueError, match=r"model.safetensors: expected .* format 3, got .* 2, of kanerva 0.0.9$"):
        kanerva.load(path)


@pytest.mark.parametrize("note", ["{", "[1]", '{"a": ' + "[" * 10_000, '{"a": ' + "1" * 5000 + "}"])
def test_a_description_that_cannot_be_read(tmp_path: Path, note: str) -> None:
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "a.safetensors", {"kanerva": note})
    with pytest.raises(ValueError, match=r"a.safetensors: its description is damaged"):
        read(tmp_path / "a.safetensors")


def test_a_place_where_nothing_is(path: Path, tmp_path: Path) -> None:
    for place, said in (
        (tmp_path / "no.safetensors", r"no.safetensors: no such file$"),
        (tmp_path, r"last.safetensors: no such file; .* is not the folder of a run"),
        ("omniglo", r"omniglo: no such checkpoint or run; pretrained: .*; did you mean 'omniglot'"),
    ):
        with pytest.raises(FileNotFoundError, match=said):
            kanerva.load(place)


def test_a_file_that_may_not_be_read_is_not_called_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: .*model.safetensors"):
        kanerva.load(path)


# sizes are compared before anything is made, or read


def test_a_file_that_is_too_large_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    padded = data[8 : 8 + length] + b" " * 2**23  # as safetensors allows
    for header in ((len(padded).to_bytes(8, "little") + padded), b"\xff" * 8):
        path.write_bytes(header + data[8 + length :])
        with pytest.raises(ValueError, match=r"model.safetensors: .*expected a header of at most [\d,]+ bytes"):
            kanerva.load(path)
    path.write_bytes(data)
    monkeypatch.setattr(files, "FREE", 1_000)
    monkeypatch.setattr(files, "memory", lambda: 4_000)
    with pytest.raises(ValueError, match=r"model.safetensors: .*expected at most a quarter of the 0 GiB of memory"):
        kanerva.load(path)


@pytest.mark.parametrize(
    "fields", [{"rows": 10**8}, {"code": 10**8}, {"rows": 10**18, "code": 10**18}, {"image": [1, 10**9, 10**9]}]
)
def test_a_config_that_asks_for_too_much_costs_nothing(
    path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, start = set[str](), nn.Linear.__init__

    def watched(self: nn.Linear, *sizes: Any, **how: Any) -> None:
        start(self, *sizes, **how)
        made.add(self.weight.device.type)

    monkeypatch.setattr(nn.Linear, "__init__", watched)
    with pytest.raises(ValueError, match=r"model.safetensors: .*(expected shape .*, got|do not fit the model)"):
        kanerva.load(changed(path, **fields))
    assert made <= {"meta"}


@pytest.mark.parametrize("name", kanerva.MODELS)
def test_every_model_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    model = kanerva.create(name, likelihood="gaussian")
    model.save(tmp_path / "m.safetensors")
    again = kanerva.load(tmp_path / "m.safetensors")
    assert again.config == model.config
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())
    assert model.state_dict().keys() == again.state_dict().keys()


# dtypes and values


def test_a_double_model_loads_as_double(path: Path) -> None:
    model = kanerva.load(path).double()
    model.save(path)
    again = kanerva.load(path)
    assert {x.dtype for x in again.state_dict().values()} == {torch.float64}
    assert torch.equal(again.R0, model.R0)


def test_other_dtypes_are_refused(path: Path) -> None:
    R0, whole = read(path).tensors["model.memory.R0"], path.read_bytes()
    with pytest.raises(ValueError, match=r"expected torch.float32 or torch.float64, got torch.float16"):
        kanerva.load(path).half().save(path)
    assert path.read_bytes() == whole
    # float16 in a file is float32 in the model, also beside float32
    rounded = kanerva.load(changed(path, R0.half()))
    assert {x.dtype for x in rounded.state_dict().values()} == {torch.float32}
    torch.testing.assert_close(rounded.R0, R0, rtol=1e-3, atol=1e-6)
    with pytest.raises(ValueError, match=r"weights of one dtype, got torch.float(32|64) .*, torch.float(32|64)"):
        kanerva.load(changed(path, R0.double()))
    with pytest.raises(ValueError, match=r"model.safetensors: memory.R0: expected torch.float32, got torch.int64"):
        kanerva.load(changed(path, R0.long()))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_named(path: Path, value: float) -> None:
    R0 = read(path).tensors["model.memory.R0"].clone()
    R0[1, 2] = value
    with pytest.raises(ValueError, match=r"model.safetensors: memory.R0: expected finite values, got 1 NaN or inf"):
        kanerva.load(changed(path, R0))
    assert read(path).tensors["model.memory.R0"].isfinite().sum() == 23  # to look at


# fields of a description


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", True),
        ("rows", 4.0),
        ("code", None),
        ("iterations", 1e400),
        ("image", [True, 8, 8]),
        ("rows", "1" * 9_000),
    ],
)
def test_a_number_that_is_none_is_named(field: str, value: Any) -> None:
    config = {**kanerva.support.configs.to_dict(kanerva.DKMConfig()), field: value}
    with pytest.raises(ValueError, match=rf"here.{field}: expected .*, got .{{,300}}$"):
        kanerva.support.configs.from_dict(kanerva.DKMConfig, config, "here")


@pytest.mark.parametrize("kind", ["dkn", ["dkm"], 3, None])
def test_an_unknown_kind_of_model_is_named_with_its_file(path: Path, kind: Any) -> None:
    with pytest.raises(ValueError, match=r"model.safetensors: model.kind: model: expected one of dkm,"):
        kanerva.load(changed(path, kind=kind))
