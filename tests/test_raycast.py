"""The ray-caster against geometry done by hand: distances, heights, textures, turns, and no jagged edges."""

import math
from typing import Any

import numpy as np
import pytest

from kanerva.data import raycast
from kanerva.data.raycast import WALL, Scene, render

PLAN = """
##########
#   #    #
#   #  # #
#      # #
### #### #
#        #
#  ##  ###
#   #    #
#      # #
##########
"""
RED, GREEN, BLUE, GREY = (255, 0, 0), (0, 255, 0), (0, 0, 255), (90, 90, 90)


def plan(text: str = PLAN) -> np.ndarray:
    """Walls (#) and rooms (blank: 0; digits)."""
    rows = [row for row in text.split("\n") if row]
    return np.array([[WALL if c == "#" else int(c.strip() or 0) for c in row] for row in rows], np.int64)


def hall(rows: int = 11, columns: int = 11) -> np.ndarray:
    """One large room."""
    room = np.zeros((rows, columns), np.int64)
    room[[0, -1]] = room[:, [0, -1]] = WALL
    return room


def plain(colour: tuple[int, int, int], side: int = 64) -> np.ndarray:
    return np.broadcast_to(np.array(colour, np.uint8), (side, side, 3))


def scene(room: np.ndarray, *textures: np.ndarray, **changed: Any) -> Scene:
    """A maze with the first texture on walls, the second on floors and the others, in turn, on the four skies."""
    textures = textures or (plain(RED), plain(GREEN), plain(BLUE))
    rooms = int(room.max()) + 1
    made = Scene(
        room=room,
        walls=np.zeros(rooms, np.int64),
        floors=np.ones(rooms, np.int64),
        sky=2 + np.arange(4) % (len(textures) - 2),
        atlas=np.stack([raycast.pyramid(np.asarray(texture)) for texture in textures]),
        shade=np.ones(2),
    )
    return made._replace(**changed)


def one(made: Scene, x: float, y: float, angle: float, size: int = 64) -> np.ndarray:
    """One picture, (size, size, 3)."""
    return render(made, np.array([[x, y, angle]]), size)[0].transpose(1, 2, 0).astype(int)


def open_poses(room: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    rows, columns = np.nonzero(room != WALL)
    cell = random.integers(len(rows), size=count)
    x, y = columns[cell] + random.random(count), rows[cell] + random.random(count)
    return np.stack([x, y, random.uniform(0, 2 * math.pi, count)], 1)


def nearest_wall(room: np.ndarray, x: float, y: float, dx: float, dy: float) -> tuple[float, int]:
    """Meet the ray with every wall cell, a square: it is inside while it is between both pairs of sides."""
    best = (math.inf, 0)
    for i, j in zip(*np.nonzero(room == WALL), strict=True):
        across = sorted(((j - x) / dx, (j + 1 - x) / dx))
        down = sorted(((i - y) / dy, (i + 1 - y) / dy))
        enter, leave = max(across[0], down[0]), min(across[1], down[1])
        if 0 < enter < leave:
            best = min(best, (enter, 0 if across[0] > down[0] else 1))
    return best


def test_rays_end_where_they_meet_the_first_wall() -> None:
    room = plan()
    for x, y, angle in open_poses(room, 300):
        dx, dy = math.cos(angle), math.sin(angle)
        t, axis, i, j = raycast.hit(room, x, y, dx, dy)
        wanted, facing = nearest_wall(room, x, y, dx, dy)
        assert t == pytest.approx(wanted, rel=1e-12)  # sums of at most 20 steps
        assert axis == facing
        beyond = (i, j + int(math.copysign(1, dx))) if axis == 0 else (i + int(math.copysign(1, dy)), j)
        assert room[i, j] != WALL
        assert room[beyond] == WALL


@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("distance", [1.0, 4.0])
def test_a_wall_seen_head_on_has_its_height_from_left_to_right(quarter: int, distance: float) -> None:
    """size · HEIGHT / (2 TAN distance) rows, half of them below the eye, in every column: no fish-eye."""
    angle = quarter * math.pi / 2
    x, y = 5.5 + math.cos(angle) * (4.5 - distance), 5.5 + math.sin(angle) * (4.5 - distance)
    picture = one(scene(hall()), x, y, angle)
    # the side walls stand in the corners of the view; the wall ahead is seen in the middle
    middle = picture[:, 31:33] if distance == 4 else picture[:, 20:44]
    half = round(16 / distance)
    assert (middle[: 32 - half] == BLUE).all()
    assert (middle[32 - half : 32 + half] == RED).all()
    assert (middle[32 + half :] == GREEN).all()


@pytest.mark.parametrize("quarter", range(4))
def test_a_texture_is_where_it_must_be_and_not_mirrored(quarter: int) -> None:
    """At distance 2 a cell is 16 pixels wide; its left quarter is red, its upper quarter blue."""
    texture = np.array(plain(GREY))
    texture[:, :16], texture[:16] = RED, BLUE
    angle = quarter * math.pi / 2
    made = scene(hall(), texture, plain(GREEN), plain(GREEN))
    # opposite the middle of a cell, which thus lies in columns 24 to 39 and rows 24 to 39
    picture = one(made, 5.5 + 2.5 * math.cos(angle), 5.5 + 2.5 * math.sin(angle), angle)
    assert (picture[24:28, 24:40] == BLUE).all(-1).mean() > 0.7  # but for the row where two texels meet
    assert (picture[29:40, 24:27] == RED).all()
    assert (picture[29:40, 29:40] == GREY).all()
    assert (picture[29:40, 40:43] == RED).all()


def test_the_floor_is_that_of_the_cell_and_in_perspective() -> None:
    """A floor at depth τ is EYE / τ below the horizon: from 2 cells on there is another room."""
    room = hall()
    room[1:-1, 5:-1] = 1
    made = scene(room, plain(RED), plain(GREEN), plain(BLUE), plain(GREY), floors=np.array([1, 3]))
    picture = one(made._replace(sky=np.full(4, 2)), 3.0, 5.5, 0.0)
    border = 32 + 8  # 32 · EYE / (TAN · 2)
    assert (picture[border:, 31:33] == GREEN).all()
    assert (picture[36:border, 31:33] == GREY).all()


def test_walls_look_like_the_room_they_are_seen_from_and_are_shaded_by_side() -> None:
    room = plan("#####\n#0#1#\n#0 1#\n#####")
    made = scene(room, plain((200, 100, 0)), plain(GREEN), plain(BLUE), plain((40, 80, 120)))
    made = made._replace(walls=np.array([0, 3]), shade=np.array([1.0, 0.5]), sky=np.full(4, 2))
    west, east = one(made, 1.5, 1.5, math.pi), one(made, 3.5, 1.5, 0.0)
    assert west[32, 32].tolist() == [200, 100, 0]
    assert east[32, 32].tolist() == [40, 80, 120]
    assert one(made, 1.5, 1.5, -math.pi / 2)[32, 32].tolist() == [100, 50, 0]


def test_the_sky_has_four_sides() -> None:
    colours = [RED, GREEN, BLUE, GREY]
    made = scene(hall(41, 41), plain((0, 0, 0)), plain((1, 1, 1)), *map(plain, colours))
    for quarter in range(4):
        picture = one(made, 20.5, 20.5, quarter * math.pi / 2)
        assert (picture[4, 1:-1] == colours[quarter]).all()
        half = one(made, 20.5, 20.5, (quarter + 0.5) * math.pi / 2)  # at the edge of the next, on the right
        assert (half[4, :32] == colours[quarter]).all()
        assert (half[4, 32:] == colours[(quarter + 1) % 4]).all()


def noisy(seed: int, side: int = 64) -> np.ndarray:
    blocks = np.random.default_rng(seed).integers(0, 256, (side // 8, side // 8, 3), np.uint8)
    return blocks.repeat(8, 0).repeat(8, 1)


def busy(room: np.ndarray) -> Scene:
    return scene(room, *(noisy(seed) for seed in range(6)))


@pytest.mark.parametrize("size", [32, 64])
def test_edges_and_textures_are_not_jagged(size: int) -> None:
    """A picture four times as large, averaged, is almost the same; one of one ray a pixel is not."""
    made = busy(plan())
    poses = open_poses(made.room, 60)
    poses = poses[raycast.clear(made.room, poses, 0.25, 0.8)]
    assert len(poses) > 10
    large = render(made, poses, 4 * size).astype(float).reshape(len(poses), 3, size, 4, size, 4)
    reference = large.mean((3, 5))
    off = np.abs(render(made, poses, size) - reference)
    single = np.abs(large[:, :, :, 1, :, 1] - reference)
    assert off.mean() < 2.5
    assert off.mean() < single.mean() / 3
    assert np.quantile(off, 0.99) < np.quantile(single, 0.99) / 2


def test_clear_is_far_from_every_wall_and_has_a_view() -> None:
    room = plan()
    poses = open_poses(room, 400)
    walls = list(zip(*np.nonzero(room == WALL), strict=True))
    for (x, y, angle), found in zip(poses, raycast.clear(room, poses, 0.25, 0.8), strict=True):
        away = min(math.hypot(max(j - x, 0, x - j - 1), max(i - y, 0, y - i - 1)) for i, j in walls)
        seen = min(
            nearest_wall(room, x, y, math.cos(angle) - s * math.sin(angle), math.sin(angle) + s * math.cos(angle))[
                0
            ]
            for s in (-0.5, -0.25, 0, 0.25, 0.5)
        )
        assert found == (away >= 0.25 and seen >= 0.8)
