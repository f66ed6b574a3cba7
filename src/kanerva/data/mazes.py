"""Mazes like those of DeepMind Lab, in colour: what is seen at random places in random mazes, 32×32 or 64×64.

The mazes and their textures are DeepMind Lab's own, which the package labmaze brings (`pip install
'kanerva[mazes]'`); data/raycast.py draws them. A class is a maze, its 64 images are what is seen from random places
in it. Each room has walls and a floor of its own, of the maze's style. No maze is in two splits. Drawn once
(see `kanerva.support.files.cache_dir`) and the same on every run; on another machine too, as far as labmaze makes
the same mazes there and sines are rounded alike.
"""

import importlib
import importlib.metadata
import itertools
import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..support import checks
from ..support.files import Array, Arrays, cache_dir, cached
from ..support.say import bar
from .episodes import ClassImages

if TYPE_CHECKING:
    from .raycast import Scene

# Raise it whenever a change here or in raycast.py changes a pixel: cached images of an older recipe are not used.
RECIPE = 1
SIZES = (32, 64)
# Mazes of each split, and the first of those that are held out: the others are to train on.
MAZES = {"train": 1_000, "validation": 250, "test": 250}
FIRST = {"test": 1_000, "validation": 10_000}
# Frames of each maze.
FRAMES = 64
# Cells a side, and rooms: as many as find a place, with a corridor or a wall between them.
CELLS, ROOMS = 15, 6
# Of the walls between two regions that are connected already, the share that is opened all the same: loops.
LOOPS = 0.05
# Texels a side: the rays of a 64×64 frame that meet a wall at AHEAD are 1.6 texels apart.
TEXELS = 256
# Least distance in cells of the eye from any wall, and of what is seen in the middle half of the picture.
LEAST, AHEAD = 0.25, 0.8
# Walls that face east and west are in the light, the others a little less.
SHADE = (1.0, 0.8)


def load(split: str = "train", size: int = 32, mazes: int | None = None) -> ClassImages:
    """Give the frames of a split's mazes, 32 or 64 pixels a side; draw them on first use.

    mazes: how many to train on, 1,000 unless told; the other splits are the same for any number.
    """
    if not isinstance(size, int) or size not in SIZES:
        raise ValueError(f"size: expected {' or '.join(map(str, SIZES))} pixels a side, got {size!r}")
    if mazes is not None:
        checks.count("mazes", mazes)
    parts = split.split("+")
    frames = [_frames(part, size, mazes) for part in parts]
    chosen = [number for part in parts for number in numbers(part, mazes)]
    return ClassImages.from_labels(
        (np.concatenate(frames) if len(frames) > 1 else frames[0]).reshape(-1, 3, size, size),
        np.repeat(np.arange(len(chosen)), FRAMES),
        binary=False,
        name="mazes",
        split=split,
        names=[f"{number:04d}" for number in chosen],
    )


def _frames(split: str, size: int, mazes: int | None) -> Array:
    """The frames of a split, from the cache or drawn: uint8 (mazes, FRAMES, 3, size, size)."""
    version, count = _version(), len(numbers(split, mazes))

    def valid(arrays: Arrays) -> bool:
        whole = arrays["frames"].shape == (count, FRAMES, 3, size, size)
        # Without labmaze, what was once drawn with any version of it will do.
        return whole and (version is None or str(arrays["labmaze"]) == version)

    def make() -> Arrays:
        return {"frames": draw(split, size, mazes), "labmaze": np.array(version or "")}

    return cached(_drawn(split, size, count), make, valid)["frames"]


def at_hand(split: str = "train", size: int = 32) -> bool:
    """Whether the frames of a split are drawn already."""
    return (cache_dir() / _drawn(split, size, MAZES[split])).is_file()


def numbers(split: str, mazes: int | None = None) -> list[int]:
    """The mazes of a split. More than the usual ones to train on are those that no other split has."""
    if split != "train":
        return list(range(FIRST[split], FIRST[split] + MAZES[split]))
    others = {number for split in FIRST for number in numbers(split)}
    free = (number for number in itertools.count() if number not in others)
    return list(itertools.islice(free, mazes or MAZES["train"]))


def _drawn(split: str, size: int, mazes: int) -> str:
    count = "" if mazes == MAZES[split] else f"-{mazes}"
    return f"mazes-v{RECIPE}-{size}-{split}{count}.npz"


def draw(split: str, size: int, mazes: int | None = None) -> Array:
    """Draw the frames of a split: uint8 (mazes, FRAMES, 3, size, size)."""
    from .raycast import render

    textures, chosen = Textures(), numbers(split, mazes)
    frames = np.empty((len(chosen), FRAMES, 3, size, size), np.uint8)
    with bar(f"drawing mazes ({split})", len(frames)) as step:
        plans = list(layouts(chosen[-1] + 1))
        for i, number in enumerate(chosen):
            random = np.random.default_rng([RECIPE, number])
            scene = textures.dress(grid(*plans[number]), random)
            frames[i] = render(scene, poses(scene.room, FRAMES, random), size)
            step(1)
    return frames


def layouts(count: int) -> Iterator[tuple[str, str]]:
    """The first `count` different mazes, as text: walls (*), and the rooms' letters. Their seeds are 1, 2, 3, …

    A maze that came before is passed over, so that mazes of two numbers never share a floor plan.
    """
    labmaze, seen, seed = _labmaze(), set[str](), 0
    while len(seen) < count:
        seed += 1
        maze = labmaze.RandomMaze(
            CELLS, CELLS, max_rooms=ROOMS, extra_connection_probability=LOOPS, random_seed=seed
        )
        entities = str(maze.entity_layer)
        if entities not in seen:
            seen.add(entities)
            yield entities, str(maze.variations_layer)


def grid(entities: str, rooms: str) -> Array:
    """Turn text into numbers, one a cell: WALL, 0 for a corridor, 1, 2, … for the rooms A, B, …"""
    from .raycast import WALL

    texts = (text.strip("\n").split("\n") for text in (entities, rooms))
    cells, letters = (np.array([[ord(cell) for cell in row] for row in rows], np.int64) for rows in texts)
    numbers = np.where(letters == ord("."), 0, letters - ord("A") + 1)
    return np.where(cells == ord("*"), WALL, numbers)


def poses(room: Array, count: int, random: np.random.Generator) -> Array:
    """Draw places and directions (count, 3): x and y uniform over open cells, any angle; only with a view."""
    from .raycast import WALL, clear

    rows, columns = np.nonzero(room != WALL)
    found: list[Array] = []
    while sum(map(len, found)) < count:
        cell = random.integers(len(rows), size=4 * count)
        x, y = columns[cell] + random.random(len(cell)), rows[cell] + random.random(len(cell))
        tried = np.stack([x, y, random.uniform(0, 2 * math.pi, len(cell))], axis=1)
        found.append(tried[clear(room, tried, LEAST, AHEAD)])
    return np.concatenate(found)[:count]


class Textures:
    """labmaze's textures, all of them, and which of them are of one style."""

    def __init__(self) -> None:
        from .raycast import pyramid

        assets = _labmaze("labmaze.assets")
        atlas: list[Array] = []

        def places(paths: Collection[str]) -> Array:
            atlas.extend(pyramid(_texture(path)) for path in paths)
            return np.arange(len(atlas) - len(paths), len(atlas))

        kinds = assets.get_wall_texture_paths, assets.get_floor_texture_paths
        self.styles = [[places(paths(style).values()) for paths in kinds] for style in assets.MAZE_STYLES]
        boxes = [assets.get_sky_texture_paths(style) for style in assets.SKY_STYLES]
        self.skies = [places([box.front, box.right, box.back, box.left]) for box in boxes]
        self.atlas = np.stack(atlas)

    def dress(self, room: Array, random: np.random.Generator) -> "Scene":
        """Give a maze a style, a sky, and each of its rooms a wall and a floor of that style."""
        from .raycast import Scene

        walls, floors = self.styles[random.integers(len(self.styles))]
        rooms = int(room.max()) + 1
        dealt = _deal(walls, rooms, random), _deal(floors, rooms, random)
        sky = self.skies[random.integers(len(self.skies))]
        return Scene(room, *dealt, sky, self.atlas, np.array(SHADE))


def _deal(textures: Array, rooms: int, random: np.random.Generator) -> Array:
    """One texture for each room, each again only after all others."""
    rounds = -(-rooms // len(textures))
    return np.concatenate([random.permutation(textures) for _ in range(rounds)])[:rooms]


def _texture(path: str) -> Array:
    with Image.open(path, formats=["PNG"]) as image:
        # What they have for transparency says where a surface shines, and is left out.
        colours = image.convert("RGBA").convert("RGB")
    return np.asarray(colours.resize((TEXELS, TEXELS), Image.Resampling.BOX))


def _labmaze(module: str = "labmaze") -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"mazes: expected the package labmaze, which has their plans and textures, but it cannot be imported "
            f"({error}); pip install 'kanerva[mazes]' brings it, on Python up to 3.12",
            name="labmaze",
        ) from error


def _version() -> str | None:
    """The version of labmaze, or None where it is not installed."""
    try:
        return importlib.metadata.version("labmaze")
    except importlib.metadata.PackageNotFoundError:
        return None
