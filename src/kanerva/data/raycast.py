"""A ray-caster: pictures of a maze of square cells, with textured walls and floors under a sky.

Lengths are in cells; x counts columns to the right, y rows downwards, and an angle of θ looks along

    f = (cos θ, sin θ),   with   r = (−sin θ, cos θ)   to the right of it.

A picture is the plane at distance 1 before the eye, from −TAN to TAN in both directions: the ray through (s, v)
leaves the eye in direction d = f + s r and rises by v. Since f·d = 1, the point that it reaches after t has depth t
(measured along f), so straight walls stay straight. Each pixel is the mean of ACROSS × DOWN rays, and each takes
its colour from a copy of the texture whose texels are about as large as what the ray stands for (mip-maps).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from ..support.files import Array
from ..support.loops import compiled

# What stands in `Scene.room` where there is a wall.
WALL = -1
# The tangent of half the field of view: 90°, as DeepMind Lab has it.
TAN = 1.0
# Of walls, and of the eye above the floor.
HEIGHT, EYE = 1.0, 0.5
# Rays in a pixel: in columns, and in each of them. The edges of walls are columns, and take the most; columns are
# shifted against each other, so that lines which are almost level meet ACROSS · DOWN heights.
ACROSS, DOWN = 8, 2


class Scene(NamedTuple):
    """A maze: the room of every cell (or WALL; all around there is wall), and what rooms look like.

    A wall looks like the room that it is seen from. walls, floors: the texture of each room; sky: those of the four
    sides of a box around the world, east, south, west and north. shade: the brightness of walls that face along x
    and along y, so that the edge between two walls of one texture is seen.
    """

    room: Int64[Array, "rows columns"]
    walls: Int64[Array, "rooms"]
    floors: Int64[Array, "rooms"]
    sky: Int64[Array, "4"]
    atlas: UInt8[Array, "textures texels 3"]
    shade: Float64[Array, "2"]


def pyramid(texture: UInt8[Array, "side side 3"]) -> UInt8[Array, "texels 3"]:
    """A texture and its halves down to one texel, one behind the other; the side is a power of two.

    level l: (side / 2^l)² texels, each the mean of 2×2 of level l − 1.
    """
    level, levels = texture.astype(np.float64), []
    while True:
        levels.append(np.floor(level + 0.5).astype(np.uint8).reshape(-1, 3))
        if len(level) == 1:
            return np.concatenate(levels)
        level = (level[::2, ::2] + level[1::2, ::2] + level[::2, 1::2] + level[1::2, 1::2]) / 4


@compiled
def hit(room: Any, x: float, y: float, dx: float, dy: float) -> tuple[float, int, int, int]:
    """Follow (x, y) + t (dx, dy) from an open cell to the first wall: t, the axis it faces, the cell before it.

    From cell to cell: the next border across x is at t_x, then one every 1/|dx|; likewise y; the nearer is next.
    """
    i, j = math.floor(y), math.floor(x)
    step_x, step_y = (1 if dx > 0 else -1), (1 if dy > 0 else -1)
    each_x = 1 / abs(dx) if dx != 0 else math.inf
    each_y = 1 / abs(dy) if dy != 0 else math.inf
    t_x = ((j + 1 - x) if dx > 0 else (x - j)) * each_x if dx != 0 else math.inf
    t_y = ((i + 1 - y) if dy > 0 else (y - i)) * each_y if dy != 0 else math.inf
    while True:
        if t_x < t_y:
            if room[i, j + step_x] == WALL:
                return t_x, 0, i, j
            j += step_x
            t_x += each_x
        else:
            if room[i + step_y, j] == WALL:
                return t_y, 1, i, j
            i += step_y
            t_y += each_y


@compiled
def level_of(width: float, side: int) -> tuple[int, int]:
    """The mip-map whose texels are the largest not above `width`, a share of the texture: its start and side.

    Its side is n = side / 2^l, l = ⌊log2(width · side)⌋, between 1 and the texture's own.
    """
    start, n = 0, side
    while n > 1 and width * n >= 2:
        start += n * n
        n >>= 1
    return start, n


@compiled
def add(pixel: Any, texture: Any, start: int, n: int, u: float, v: float, shade: float, wrap: bool) -> None:
    """Add to a pixel the colour at (u, v) on [0, 1)², from the left and from the top, between the four next texels.

    wrap: whether the texture goes on at its edges with its other edge, or with the last texel.
    """
    a, b = u * n - 0.5, v * n - 0.5
    j, i = math.floor(a), math.floor(b)
    a, b = a - j, b - i
    last = n - 1
    if wrap:  # n is a power of two
        left, right, upper, lower = j & last, (j + 1) & last, i & last, (i + 1) & last
    else:
        left, right, upper, lower = max(j, 0), min(j + 1, last), max(i, 0), min(i + 1, last)
    nw, ne = start + upper * n + left, start + upper * n + right
    sw, se = start + lower * n + left, start + lower * n + right
    p, q, r, s = (1 - b) * (1 - a) * shade, (1 - b) * a * shade, b * (1 - a) * shade, b * a * shade
    for c in range(3):
        pixel[c] += p * texture[nw, c] + q * texture[ne, c] + r * texture[sw, c] + s * texture[se, c]


@compiled
def render(scene: Scene, poses: Float64[Array, "n 3"], size: int) -> UInt8[Array, "n 3 size size"]:
    """Draw what is seen from each pose (x, y, θ), which lies in an open cell. Proof: tests/test_raycast.py."""
    room, walls, floors, sky, atlas, shade = scene
    side = int(math.sqrt(3 * atlas.shape[1] + 1)) // 2  # of a texture: it has (4 side² − 1) / 3 texels
    out = np.empty((len(poses), 3, size, size), np.uint8)
    edge = 2 * TAN / size  # of a pixel, on the plane at distance 1
    ds = edge / math.sqrt(ACROSS * DOWN)  # of the square that a ray stands for
    sums = np.empty((size, size, 3))
    for k in range(len(poses)):
        x, y = poses[k, 0], poses[k, 1]
        fx, fy = math.cos(poses[k, 2]), math.sin(poses[k, 2])
        sums[:] = 0
        for column in range(size * ACROSS):
            s = (column + 0.5) / ACROSS * edge - TAN
            # By an odd number of ACROSS-ths of a step, all different: neighbours far apart.
            shift = ((column * 3) % ACROSS + 0.5) / ACROSS
            dx, dy = fx - s * fy, fy + s * fx
            t, axis, i, j = hit(room, x, y, dx, dy)
            # Where on the wall, from the left as it is seen. Along it a ray is t / |d·n| wide, n its normal.
            if axis == 0:
                u = y + t * dy - i if dx > 0 else i + 1 - y - t * dy
                width = t * ds / min(abs(dx), 1.0)
            else:
                u = j + 1 - x - t * dx if dy > 0 else x + t * dx - j
                width = t * ds / min(abs(dy), 1.0)
            wall_start, wall_side = level_of(width, side)
            # The box of the sky is so far away that only directions count: m is the one that meets its side first.
            m = max(abs(dx), abs(dy))
            if abs(dx) >= abs(dy):
                face, sky_u = (0, (1 + dy / m) / 2) if dx > 0 else (2, (1 - dy / m) / 2)
            else:
                face, sky_u = (1, (1 - dx / m) / 2) if dy > 0 else (3, (1 + dx / m) / 2)
            sky_start, sky_side = level_of(ds / (2 * m), side)
            wall, air = atlas[walls[room[i, j]]], atlas[sky[face]]
            for row in range(size * DOWN):
                v = TAN - (row + shift) / DOWN * edge
                pixel = sums[row // DOWN, column // ACROSS]
                if v * t > HEIGHT - EYE:
                    # Above 45° the upper edge of the sky's side goes on.
                    add(pixel, air, sky_start, sky_side, sky_u, max((1 - v / m) / 2, 0.0), 1.0, False)
                elif v * t >= -EYE:
                    add(pixel, wall, wall_start, wall_side, u, 1 - (EYE + v * t) / HEIGHT, shade[axis], False)
                else:
                    # The floor, at depth τ = EYE / −v: a ray is τ ds wide, and τ² |d| ds / EYE long.
                    depth = EYE / -v
                    px, py = x + depth * dx, y + depth * dy
                    below, right = math.floor(py), math.floor(px)
                    at = room[below, right]
                    if at == WALL:  # by a rounding error, at the foot of a wall
                        at = room[i, j]
                    width = depth * ds * math.sqrt(depth / EYE)  # the mean of the two, as √(width · length)
                    start, n = level_of(width, side)
                    add(pixel, atlas[floors[at]], start, n, px - right, py - below, 1.0, True)
        out[k] = (sums * (1 / (ACROSS * DOWN)) + 0.5).astype(np.uint8).transpose(2, 0, 1)
    return out


@compiled
def clear(
    room: Int64[Array, "rows columns"], poses: Float64[Array, "n 3"], least: float, ahead: float
) -> Bool[Array, "n"]:
    """Whether each pose in an open cell is `least` from any wall, and `ahead` in the middle half of its view."""
    out = np.empty(len(poses), np.bool_)
    for k in range(len(poses)):
        x, y = poses[k, 0], poses[k, 1]
        fx, fy = math.cos(poses[k, 2]), math.sin(poses[k, 2])
        i, j = math.floor(y), math.floor(x)
        out[k] = True
        for a in range(i - 1, i + 2):  # the cells around
            for b in range(j - 1, j + 2):
                if room[a, b] == WALL:
                    away_x, away_y = max(b - x, 0.0, x - b - 1), max(a - y, 0.0, y - a - 1)
                    out[k] = out[k] and math.sqrt(away_x * away_x + away_y * away_y) >= least
        for n in range(-2, 3):  # five rays over the middle half of the picture
            s = n * TAN / 4
            out[k] = out[k] and hit(room, x, y, fx - s * fy, fy + s * fx)[0] >= ahead
    return out
