"""The command `kanerva recall`: one's own pictures are stored, damaged and recalled, and put on a sheet."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from kanerva import DKM, Recall
from kanerva.cli import main
from kanerva.models import checkpoint
from mirror import bits
from trials import COLOUR, Toy, ToyConfig, model

pytestmark = pytest.mark.usefixtures("short_search")


def draw(folder: Path, x: torch.Tensor, ink: int = 0) -> list[str]:
    """Files of binary images, four times as large; dark ink on light paper, or the other way round."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{i}.png" for i in range(len(x))]
    for path, image in zip(paths, x.numpy()[:, 0], strict=True):
        levels = np.where(image > 0, ink, 255 - ink).astype(np.uint8)
        Image.fromarray(levels.repeat(4, 0).repeat(4, 1)).save(path)
    return [str(path) for path in paths]


def recalled(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    main(["recall", "here", *map(str, arguments), "--device", "cpu", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("ink", [0, 255])
def test_stored_pictures_come_back(ink: int, look: DKM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = bits(5)
    others = draw(tmp_path / "others", bits(6, seed=3)[5:], ink)
    draw(tmp_path / "own", x, ink)
    about = recalled(
        capsys,
        *(tmp_path / "own", "--others", *others, "--level", 0.1),
        *("--out", tmp_path / "a" / "s.png", "--memory", tmp_path / "m.safetensors"),
    )
    assert checkpoint.load_state(about["memory"]).R.shape == (look.config.rows, look.config.code)
    names = [*(f"own/{i}.png" for i in range(5)), "others/0.png"]
    assert [one["picture"] for one in about["pictures"]] == names
    assert [one["stored"] for one in about["pictures"]] == 5 * [True] + [False]
    for one in about["pictures"][:5]:
        assert (one["recalled"], one["nearest"], one["certified"]) == (0, one["picture"], True)
    assert sum(one["cue"] for one in about["pictures"]) > 5
    assert about["pictures"][5]["recalled"] > 0
    assert (about["damage"], about["ink"]) == ("flips 0.1", "dark" if ink == 0 else "light")
    with Image.open(about["sheet"]) as image:
        sheet = np.asarray(image)
    assert sheet.shape == (3 * (3 * 5 + 2), 72 + 8 * (3 * 6 + 2), 3)
    shown = 1 - sheet[:, 72:].reshape(3, 17, 8, 20, 3).transpose(0, 2, 1, 3, 4)[:, :, 2:-1:3, 2:-1:3, 0] / 255
    assert np.array_equal(shown[0, :5], x[:, 0])
    assert np.array_equal(shown[2, :5, 1:-1, 1:-1], x[:, 0, 1:-1, 1:-1])  # the frame hides the edge
    assert not np.array_equal(shown[1, :5], x[:, 0])
    assert [tuple(sheet[34, 72 + 20 * i]) == (0, 158, 115) for i in range(5)] == 5 * [True]


def test_colour_and_a_model_that_certifies_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (40, 30), (255, 0, 0)).save(tmp_path / "red.jpg", quality=100)
    Image.new("L", (8, 8), 255).save(tmp_path / "white.png")
    paths = [tmp_path / "red.jpg", tmp_path / "white.png"]
    monkeypatch.setattr("kanerva.app.commands.load", lambda _: model(COLOUR))
    about = recalled(capsys, *paths, "--out", tmp_path / "s.png", "--method", "least-squares", "--steps", 2)
    assert about["damage"] == "noise 0.15"
    assert about["recall"].startswith("least-squares, 2 steps")
    assert all(0.1 < one["cue"] < 0.2 for one in about["pictures"])
    assert "ink" not in about
    with Image.open(about["sheet"]) as image:
        shown = np.asarray(image)[10, [82, 82 + 26]]
    assert shown[0].tolist() == pytest.approx([255, 0, 0], abs=3)
    assert shown[1].min() > 250
    main(["recall", "here", *map(str, paths), "--out", str(tmp_path / "s.png"), "--damage", "block"])
    assert "root mean" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="damage: expected noise, block, half or none"):
        main(["recall", "here", *map(str, paths), "--damage", "flips", "--out", str(tmp_path / "s.png")])

    monkeypatch.setattr("kanerva.app.commands.load", lambda _: Toy())
    about = recalled(
        capsys, tmp_path / "white.png", "--out", tmp_path / "s.png", "--damage", "half", "--ink", "dark"
    )
    assert about["pictures"][0]["certified"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("here nowhere.png", "nowhere.png: expected an image file, or a folder of them, got no such file"),
        ("here empty", "empty: expected an image file, or a folder of them, got a folder with none"),
        ("here broken.png", "broken.png: expected an image"),
        ("here 0.png --damage half --level 0.5", "level: expected none with damage half, got 0.5"),
        ("here 0.png --level 1.5", "level: expected a share from 0 to 1 for damage flips, got 1.5"),
        ("here 0.png --damage noise --level -1", "level: expected a standard deviation of 0 or more"),
        ("here 0.png --method magic", "method: expected one of descent, least-squares, stochastic, got 'magic'"),
        ("here 0.png --binary 0", "binary: expected a share of ink above 0 and up to 1, got 0.0"),
        ("here 0.png --out x --memory ./x", "--out: expected another file than --memory"),
        ("here 0.png --out 0.png", "--out: expected another file than those that are read"),
        ("here 0.png --memory here", "--memory: expected another file than those that are read"),
        ("own", "MODEL: expected a model before the pictures, got own; type kanerva recall omniglot own"),
        ("omniglot", "IMAGES: expected pictures after the model omniglot, got none"),
        ("colour own", "type kanerva train colour --dataset own --size 32, then kanerva recall runs/colour own"),
        ("nowhere own", "nowhere: no such checkpoint or run; pretrained: mazes, omniglot"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: str, message: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments.startswith("here"):
        request.getfixturevalue("look")
    draw(tmp_path, bits(1))
    draw(tmp_path / "own", bits(1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_text("no picture")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as end:
        main(["recall", *arguments.split()])
    assert message in str(end.value.code)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_ink_may_differ_from_picture_to_picture(
    look: DKM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = bits(5)
    draw(tmp_path / "own", x[:2])
    draw(tmp_path / "own" / "light", x[2:], ink=255)
    about = recalled(capsys, tmp_path / "own", "--damage", "none", "--out", tmp_path / "s.png")
    assert about["ink"] == "dark in 2, light in 3"
    assert [one["ink"] for one in about["pictures"]] == ["dark"] * 2 + ["light"] * 3
    assert [one["recalled"] for one in about["pictures"]] == [0] * 5
    assert about["result"].startswith("5 of 5 stored pictures end nearest to themselves")


class Answers(Toy):
    """Answers every cue with the next picture that is stored, or with its own, a little darker."""

    Config = dataclasses.make_dataclass(
        "AnswersConfig",
        [("image", tuple[int, int, int], (3, 8, 8)), ("likelihood", str, "gaussian")],
        bases=(ToyConfig,),
        frozen=True,
    )

    def __init__(self, ahead: int, darker: float) -> None:
        super().__init__()
        self.ahead, self.darker = ahead, darker

    def recall(self, state: Any, x: torch.Tensor, steps: int = 15, *_: Any, **hints: Any) -> Recall:
        return Recall((state.x.roll(self.ahead, 0) - self.darker).expand(steps, *x.shape))


@pytest.fixture
def shades(tmp_path: Path) -> list[str]:
    """Pictures of one shade each, of which two have the same name in two folders."""
    paths = [tmp_path / name for name in ("a/1.png", "b/1.png", "a/2.png")]
    for path, shade in zip(paths, (20, 120, 230), strict=True):
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (shade, shade, shade)).save(path)
    return [str(path) for path in paths]


def test_names_that_are_alike_hide_no_swap(
    shades: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kanerva.app.commands.load", lambda _: Answers(1, 0))
    about = recalled(capsys, *shades, "--damage", "half", "--out", tmp_path / "s.png")
    pairs = [(one["picture"], one["nearest"]) for one in about["pictures"]]
    assert pairs == [("a/1.png", "a/2.png"), ("b/1.png", "a/1.png"), ("a/2.png", "b/1.png")]
    assert about["result"].startswith("0 of 3 stored pictures end nearest to themselves")


def test_what_recall_has_made_worse_is_marked(
    shades: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers that are farther from the picture than a cue of little noise, though it is the nearest of all."""
    monkeypatch.setattr("kanerva.app.commands.load", lambda _: Answers(0, 0.1))
    about = recalled(capsys, *shades, "--level", "0.01", "--out", tmp_path / "s.png")
    assert [one["nearest"] for one in about["pictures"]] == [one["picture"] for one in about["pictures"]]
    assert [one["worse"] for one in about["pictures"]] == [True] * 3
    assert about["result"].endswith("; 3 are worse than the cue")
    with Image.open(about["sheet"]) as sheet:
        assert {sheet.getpixel((72 + 26 * i, 2 * 26)) for i in range(3)} == {(213, 94, 0)}
    main(["recall", "here", *shades, "--level", "0.01", "--out", str(tmp_path / "s.png")])
    assert capsys.readouterr().out.count("worse: 0.") == 3
    # without damage no answer can be better than the cue, and none is called worse
    about = recalled(capsys, *shades, "--damage", "none", "--out", tmp_path / "s.png")
    assert about["result"] == "3 of 3 stored pictures end nearest to themselves"


def test_what_cannot_be_read_is_left_out_and_listed(
    look: DKM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(tmp_path / "own", bits(4))
    (tmp_path / "own" / "1.png").write_text("no picture")
    about = recalled(capsys, tmp_path / "own", "--out", tmp_path / "s.png")
    assert [one["picture"] for one in about["pictures"]] == ["0.png", "2.png", "3.png"]
    assert list(about["left out"]) == ["1.png"]
    assert about["left out"]["1.png"].startswith("expected an image (PNG, JPEG, ")
    main(["recall", "here", str(tmp_path / "own"), "--out", str(tmp_path / "s.png"), "--device", "cpu"])
    assert "left out\n  1.png          expected an image (PNG" in capsys.readouterr().out


def test_a_second_recall_leaves_out_the_sheet_of_the_first(
    look: DKM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw(tmp_path, bits(3))
    first = recalled(capsys, ".")
    second = recalled(capsys, ".")
    assert second.pop("left out") == {"recall.png": "a sheet of pictures that kanerva wrote"}
    assert second == first
    assert recalled(capsys, "0.png", "recall.png")["stored"].startswith("1 pictures in one memory")
