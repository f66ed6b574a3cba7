"""The command `kanerva inspect`: what a saved memory holds, on a sheet, and what it says of a wrong file."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from kanerva import DKM, MemoryState
from kanerva.cli import main
from mirror import bits
from trials import COLOUR, SMALL, Toy

pytestmark = pytest.mark.usefixtures("short_search")


def saved(state: MemoryState, path: Path) -> str:
    safetensors.torch.save_file({name: x.contiguous() for name, x in state._asdict().items()}, path)
    return str(path)


def test_inspect_shows_what_a_file_holds(look: DKM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = bits(5)
    path = saved(look.write(torch.cat([x, x[:1], x[:1]])), tmp_path / "state.safetensors")
    main(["inspect", path, "--device", "cpu", "--json"])
    about = json.loads(capsys.readouterr().out)
    assert (about["rows"], about["code size"], about["different images"], about["full"]) == (8, 60, 5, "no")
    assert about["found"] == 5
    assert sorted(one["written"] for one in about["images"].values()) == [1, 1, 1, 1, 3]
    assert all(one["cost"] < 1e-3 for one in about["images"].values())
    assert about["sheet"] == str(tmp_path / "state.png")
    with Image.open(about["sheet"]) as sheet:
        assert sheet.size == (8 * (3 * 6 + 2), 3 * 5 + 2)
        shown = np.asarray(sheet)[1:-1:3].reshape(5, 8, 20)[:, :, 1:-1:3].swapaxes(0, 1)
    found = {(1 - image / 255).astype(int).tobytes() for image in shown[:5]}
    assert found == {image.int().numpy().astype(int).tobytes() for image in x[:, 0]}
    assert bool((shown[5:] == 255).all())

    main(["inspect", path, "--device", "cpu", "--out", str(tmp_path / "other.png")])
    text = capsys.readouterr().out
    assert "written 3 times, cost" in text
    assert text.count("written once, cost") == 4
    assert (tmp_path / "other.png").is_file()


def test_inspect_takes_one_of_many(look: DKM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before parts are broadcast: these 3,000 means and 3,000 covariances, 7 MB, would take 17 GB together."""
    x = bits(2, 4)
    R, U = look.write(x)
    row, column, choice = 2999, 1234, torch.zeros(3000, dtype=torch.long)
    R, U = (part[choice.index_fill(0, torch.tensor(i), 1)] for part, i in ((R, row), (U, column)))
    path, number = saved(MemoryState(R[:, None], U[None]), tmp_path / "many.safetensors"), 3000 * row + column
    main(["inspect", path, "--device", "cpu", "--number", str(number), "--json"])
    about = json.loads(capsys.readouterr().out)
    assert (about["memory"], about["found"]) == (f"number {number} of 9000000", 4)
    assert about["sheet"] == str(tmp_path / f"many-{number}.png")
    with Image.open(about["sheet"]) as sheet:
        first = np.asarray(sheet)[1:-1:3, 1:19:3]
    same = (x[:, :, 0] == torch.from_numpy(1 - first / 255)).flatten(2).all(-1)
    assert same.sum(-1).tolist() == [0, 1]


def test_inspect_of_memories_with_nothing_to_show(
    look: DKM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = saved(look.blank(), tmp_path / "empty.safetensors")
    over = saved(look.write(bits(20)), tmp_path / "over.safetensors")
    for path, distinct, full in (
        (empty, 0, "no"),
        (over, 8, "yes: it may hold more images than it can tell apart"),
    ):
        main(["inspect", path, "--device", "cpu", "--json"])
        about = json.loads(capsys.readouterr().out)
        assert (about["different images"], about["found"], about["images"]) == (distinct, 0, {})
        assert about["full"].startswith(full)
        assert "sheet" not in about
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "no such file"),
        ("text", "not a readable safetensors file"),
        ("model", "expected the R and U of a memory, got a checkpoint of a model"),
        ("R alone", "expected the R and U of a memory, got R"),
        (
            "size",
            "state.R: expected shape (*b, 8, 60) with C = 60 as in the Memory, got (8, 50); usual cause",
        ),
        ("nan", "state.R: expected finite values, got 1 NaN"),
        ("number", "number: expected 0 to 0, as"),
        ("kind", "kanerva: checkpoint: expected a DKM, got here, of kind toy"),
    ],
)
def test_inspect_says_what_is_wrong(
    name: str, message: str, look: DKM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, R, U = tmp_path / "state.safetensors", *look.blank().detach()
    if name == "text":
        path.write_text("no tensors")
    elif name == "model":
        DKM(SMALL).save(path)
    elif name == "R alone":
        safetensors.torch.save_file({"R": R}, path)
    elif name != "missing":
        R = R[:, :50] if name == "size" else R.clone()
        R[0, 0] = math.nan if name == "nan" else 0
        saved(MemoryState(R, U), path)
    if name == "kind":
        monkeypatch.setattr("kanerva.app.commands.load", lambda _: Toy())
    with pytest.raises(SystemExit) as end:
        main(["inspect", str(path), "--checkpoint", "here", "--number", "3"])
    assert message in str(end.value.code)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("state.safetensors/sheet.png", "state.safetensors is a file"),
        ("./state.safetensors", "--out: expected another file than those that are read"),
    ],
)
def test_a_sheet_that_cannot_be_written_is_refused_first(
    out: str, message: str, look: DKM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(look.blank(), tmp_path / "state.safetensors")
    before = Path(path).read_bytes()
    monkeypatch.setattr("kanerva.app.commands.inside", lambda *_: pytest.fail("the work was begun"))
    with pytest.raises(SystemExit) as end:
        main(["inspect", path, "--device", "cpu", "--out", f"{tmp_path}/{out}"])
    assert message in str(end.value.code)
    assert Path(path).read_bytes() == before


def test_inspect_says_why_it_finds_nothing_in_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    m = DKM(
        dataclasses.replace(COLOUR, codec=dataclasses.replace(COLOUR.codec, linear=True), code=12, rows=8)
    ).eval()
    m.memory.backend = "reference"  # which need not be compiled
    monkeypatch.setattr("kanerva.app.commands.load", lambda _: m)
    path = saved(m.write(torch.rand(5, 3, 8, 8)), tmp_path / "state.safetensors")
    main(["inspect", path, "--device", "cpu", "--json"])
    about = json.loads(capsys.readouterr().out)
    assert (about["different images"], about["found"], about["full"]) == (5, 0, "no")
    assert about["note"].startswith("none can be found without a cue: with this codec of grey or colour images")
    main(["inspect", path, "--device", "cpu"])
    assert "images            none\n" in capsys.readouterr().out
