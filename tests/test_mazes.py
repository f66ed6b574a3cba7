"""The data set of mazes: with labmaze where it is installed, and with a small stand-in for it everywhere."""

import importlib.util
import math
import sys
import types
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from kanerva import cli
from kanerva.data import ClassImages, load, mazes, raycast

real = pytest.mark.skipif(
    importlib.util.find_spec("labmaze") is None, reason="no labmaze here; pip install 'kanerva[mazes]' brings it"
)

ENTITIES = "*******\n*   ***\n*     *\n*   * *\n***   *\n*******\n"
ROOMS = ".......\n.AAA...\n.AAA...\n.AAA...\n.......\n.......\n"


@pytest.fixture
def few(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three mazes to train on, two to validate and to test with, five frames each; the cache."""
    monkeypatch.setattr(mazes, "MAZES", {"train": 3, "validation": 2, "test": 2})
    monkeypatch.setattr(mazes, "FIRST", {"test": 3, "validation": 6})
    monkeypatch.setattr(mazes, "FRAMES", 5)
    return own_cache


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module like labmaze: mazes of seven cells, of which every second is the same as the one before."""

    def paths(*names: str) -> list[str]:
        for name in names:
            random = np.random.default_rng(list(name.encode()))
            colours = random.integers(0, 256, (4, 4, 3), np.uint8).repeat(64, 0).repeat(64, 1)
            Image.fromarray(colours).save(tmp_path / f"{name}.png")
        return [str(tmp_path / f"{name}.png") for name in names]

    def maze(height: int, width: int, random_seed: int, **settings: Any) -> Any:
        cells = np.array([list(row) for row in ENTITIES.splitlines()])
        numbers = np.random.default_rng((random_seed + 1) // 2).random(cells.shape)
        cells[1:-1, 1:-1][numbers[1:-1, 1:-1] > 0.95] = " "
        text = "".join("".join(row) + "\n" for row in cells)
        return types.SimpleNamespace(entity_layer=text, variations_layer=ROOMS)

    Box = namedtuple("Box", "left right up down front back")
    assets: Any = types.ModuleType("labmaze.assets")
    assets.MAZE_STYLES, assets.SKY_STYLES = ("one", "two"), ("sky",)
    assets.get_wall_texture_paths = lambda style: {"a": paths(f"{style}_wall")[0]}
    assets.get_floor_texture_paths = lambda style: dict(zip("ab", paths(f"{style}_a", f"{style}_b"), strict=True))
    assets.get_sky_texture_paths = lambda style: Box(*paths("l", "r", "u", "d", "f", "b"))
    module: Any = types.ModuleType("labmaze")
    module.RandomMaze = maze
    monkeypatch.setitem(sys.modules, "labmaze", module)
    monkeypatch.setitem(sys.modules, "labmaze.assets", assets)
    monkeypatch.setattr(mazes, "_version", lambda: "1")
    return module


def every(**options: Any) -> list[ClassImages]:
    return [load("mazes", split, **options) for split in ("train", "validation", "test")]


@pytest.mark.usefixtures("few", "stand_in")
@pytest.mark.parametrize("size", [32, 64])
def test_a_class_is_a_maze(size: int) -> None:
    found = every(size=size)
    labels = [("0000", "0001", "0002"), ("0006", "0007"), ("0003", "0004")]
    for images, split, names in zip(found, ("train", "validation", "test"), labels, strict=True):
        assert (images.shape, images.binary, images.name, images.split) == ((3, size, size), False, "mazes", split)
        assert images.labels == names
        assert images.count.tolist() == [5] * len(names)
    assert len({frame.numpy().tobytes() for images in found for frame in images.pixels}) == 35
    both = load("mazes", "train+validation", size=size)
    assert both.labels == labels[0] + labels[1]
    assert torch.equal(both.pixels, torch.cat([found[0].pixels, found[1].pixels]))


@pytest.mark.usefixtures("few", "stand_in")
def test_mazes_are_drawn_once(monkeypatch: pytest.MonkeyPatch, few: Path) -> None:
    first = every()
    assert sorted(path.name for path in few.iterdir()) == [
        f"mazes-v1-32-{split}.npz" for split in ("test", "train", "validation")
    ]

    def draw(split: str, size: int, mazes: int | None) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(mazes, "draw", draw)
    for before, after in zip(first, every(), strict=True):
        assert torch.equal(before.pixels, after.pixels)
    monkeypatch.setattr(mazes, "_version", lambda: None)  # without labmaze, what was drawn is there
    assert torch.equal(load("mazes").pixels, first[0].pixels)
    monkeypatch.setattr(mazes, "_version", lambda: "2")
    with pytest.raises(AssertionError, match="drawn again"):
        load("mazes")


@pytest.mark.usefixtures("stand_in")
def test_more_mazes_to_train_on_are_the_usual_ones_and_others(few: Path) -> None:
    train, *others = every()
    more, *same = every(mazes=6)
    assert torch.equal(more.pixels[: len(train)], train.pixels)
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(others, same, strict=True))
    assert more.labels == ("0000", "0001", "0002", "0005", "0008", "0009")
    assert load("mazes", mazes=2).labels == ("0000", "0001")
    assert "mazes-v1-32-train-6.npz" in {path.name for path in few.iterdir()}
    with pytest.raises(ValueError, match="mazes: expected"):
        load("mazes", mazes=0)


def test_those_to_train_on_are_what_they_were() -> None:
    """Runs of before had 1,000 of them, or 4,000; 250 after the first 1,000 are for tests."""
    assert mazes.numbers("train", 4_000) == [*range(1_000), *range(1_250, 4_250)]
    assert mazes.numbers("test") == list(range(1_000, 1_250))
    assert not {*mazes.numbers("validation")} & {*mazes.numbers("test"), *mazes.numbers("train", 12_000)}


def test_poses_are_everywhere_but_near_walls() -> None:
    grid = mazes.grid(ENTITIES, ROOMS)
    found = mazes.poses(grid, 500, np.random.default_rng(0))
    assert found.shape == (500, 3)
    assert raycast.clear(grid, found, mazes.LEAST, mazes.AHEAD).all()
    assert len(np.unique(np.floor(found[:, :2]), axis=0)) >= 10  # of 15 open cells; dead ends have little view
    assert np.histogram(found[:, 2], 4, (0, 2 * math.pi))[0].min() > 25


@pytest.mark.parametrize("size", [28, "32"])
@pytest.mark.usefixtures("no_shape_checks")
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=rf"size: expected 32 or 64 pixels a side, got {size!r}"):
        load("mazes", size=size)


def test_without_labmaze_the_error_says_what_to_install(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "labmaze", None)
    monkeypatch.setitem(sys.modules, "labmaze.assets", None)
    wanted = (
        r"mazes: expected the package labmaze, .* pip install 'kanerva\[mazes\]' brings it, on Python up to 3.12$"
    )
    with pytest.raises(ModuleNotFoundError, match=wanted):
        load("mazes")
    with pytest.raises(SystemExit, match=wanted):  # one line, without "this was not foreseen"
        cli.main(["data", "--dataset", "mazes"])
    assert not own_cache.exists()


@real
def test_the_real_mazes(few: Path) -> None:
    train, validation, test = every()
    assert (len(train), len(validation), len(test)) == (15, 10, 10)
    spread = train.pixels.float().std(0)
    assert spread.min() > 5  # no pixel is the same in all
    assert (train.pixels.float().std((1, 2, 3)) > 10).all()  # none is of one colour
    grids = [mazes.grid(*layout) for layout in mazes.layouts(200)]
    assert len({grid.tobytes() for grid in grids}) == 200
    assert all(grid.shape == (mazes.CELLS, mazes.CELLS) for grid in grids)
    assert np.mean([grid.max() for grid in grids]) > 3  # rooms
