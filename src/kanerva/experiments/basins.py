"""Basins of attraction: from how far away recall still finds a stored image, and a look at the energy around three.

The energy that is drawn is E(w) = min over x of E(x, w), the energy at the mode, on the plane through the addresses
of three stored images [fig. capacity]. It is a slice: w has K dimensions and paths leave the plane, so how far they
do is said with them. For a Gaussian likelihood of one scale the mode has the same density everywhere, and what is
left of E(w) is ½ ‖w‖² and a constant: its circles are no error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .. import checks
from ..data import flips, noise
from ..memory import MemoryState
from ..models import DKM, Model
from ..recall.reader import Reader
from . import base
from .base import Experiment, Subject
from .denoising import hits
from .tables import Share, Table, point, show

NEAR = 0.05
"""Recovered, at the strictest: within this share of pixels, or of the range of pixels."""
MARGIN = 0.35
"""How far the slice goes beyond the three addresses, as a share of their greatest extent."""
CHUNK = 512
"""Weights decoded at once."""


class Plane(NamedTuple):
    """A plane in the space of weights: w = origin + a₁ axes₁ + a₂ axes₂."""

    origin: Float[Tensor, "K"]
    axes: Float[Tensor, "2 K"]
    """Two directions at right angles, of length 1."""

    def place(self, w: Float[Tensor, "*b K"]) -> Float[Tensor, "*b 2"]:
        """The nearest point of the plane."""
        return (w - self.origin) @ self.axes.mT

    def at(self, a: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b K"]:
        """The weights at a point of the plane."""
        return self.origin + a @ self.axes

    def outside(self, w: Float[Tensor, "*b K"]) -> Float[Tensor, "*b"]:
        """How far weights are from the plane."""
        return (w - self.at(self.place(w))).norm(dim=-1)


class Outcome(NamedTuple):
    """What became of cues: 1 for yes, 0 for no."""

    right: Float[Tensor, "*b Q"]
    """The right stored image is the nearest of all, if only because it has as little on it as a blank."""
    near: Float[Tensor, "*b Q"]
    """And it is reached, but for a few pixels."""
    other: Float[Tensor, "*b Q"]
    """Another one is nearest, and reached so."""
    blank: Float[Tensor, "*b Q"]
    """All pixels are alike: nothing is left. Not counted as near to any stored image."""


@dataclass(frozen=True, kw_only=True)
class Basins(Experiment):
    """Measure basins of attraction against noise and load, and draw the energy around three stored images."""

    episodes: int = 4
    """Memories for each point of a curve; the spread is over them."""
    length: int = 32
    """Images in each memory, where noise varies."""
    levels: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
    """Shares of bits to flip, or standard deviations of noise for images that are not binary."""
    loads: tuple[int, ...] = (8, 16, 32, 48, 64, 96)
    """Images in each memory, where their number varies."""
    level: float = 0.15
    """The noise, where their number varies, and of the paths in the slice."""
    queries: int = 32
    """Images to recall from each memory, chosen at random where it has more."""
    steps: int = 15
    """Steps of recall."""
    grid: int = 61
    """Points of the slice in each direction."""

    NAME: ClassVar[str] = "basins"
    TITLE: ClassVar[str] = "Basins of attraction"
    ABOUT: ClassVar[str] = (
        "If a stored image is an attractor, recall that starts near it ends at it, and all the places from which "
        "it does are its basin. Recall starts from more and more noise, and with more and more images in memory, "
        "and one counts where it ends: nearest to the right image, at it but for a few pixels, at another, or "
        "nowhere, where the image goes blank."
    )
    FIGURES: ClassVar[dict[str, str]] = {
        "recovery": "Where recall ends, first against noise, then against the number of images in memory.",
        "energy": "The energy on the plane through the addresses of three stored images, and paths of recall as "
        "they are seen from above. It is a slice: paths leave the plane, by the distances in the titles.",
    }
    SMOKE: ClassVar[dict[str, Any]] = {
        "episodes": 2,
        "length": 5,
        "levels": (0.0, 0.2),
        "loads": (6,),
        "queries": 2,
        "steps": 3,
        "grid": 9,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        # a slice takes three images
        checks.fields(self, episodes=1, length=3, levels=0, loads=1, level=0, queries=1, steps=1, grid=2)

    def rounds(self, model: Model) -> int:
        return self.episodes * (len(self.levels) + len(self.loads)) + isinstance(model, DKM)

    def left_out(self, model: Model) -> str | None:
        return None if isinstance(model, DKM) else "the energy slice needs a DKM, and is left out"

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        model = subject.model
        noise = [self.recover(subject, self.length, level, tick) for level in self.levels]
        loads = [self.recover(subject, length, self.level, tick) for length in self.loads]
        x = base.distinct(subject.unseen, 1, self.length, generator)[0]
        result = {
            "binary": subject.unseen.binary,
            "pixels": x[0].numel(),
            "near": NEAR,
            "level": self.level,
            "noise": {"x": list(self.levels), **curves(noise)},
            "loads": {"x": list(self.loads), **curves(loads)},
            "radius": {m: radius(self.levels, [float(made[m].right.mean()) for made in noise]) for m in noise[0]},
        }
        if isinstance(model, DKM):
            result["slice"] = self.slice(model, x, generator)
            tick()
        return result

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """Where recall ends, from little, some and much noise, and with few, some and many images."""
        rows: list[list[Any]] = []
        for label, found in (("noise", result["noise"]), ("images", result["loads"])):
            for method in (name for name in found if name != "x"):
                for i in sorted({0, len(found["x"]) // 2, len(found["x"]) - 1}):
                    shares = [Share(point(found[method][name], i)) for name in Outcome._fields]
                    rows.append([f"{method}, {label} {found['x'][i]:g}", *shares])
        for method, level in result["radius"].items():
            half = "none tried" if level is None else level
            rows.append([f"{method}, noise with which half go wrong", half, None, None, None])
        within = f"within {show(100 * result['near'])} % of"
        return Table(["", "nearest to the right image", f"{within} it", f"{within} another", "blank"], rows)

    def recover(self, subject: Subject, length: int, level: float, tick: Callable[[], None]) -> dict[str, Outcome]:
        """Recall from memories of one length, at one level of noise, and say what came out: (episodes, Q).

        All levels have the same random numbers: the same memories, and more noise is the same and some more.
        """
        model, methods = subject.model, base.recalls(subject.model, chains=False)
        generator = torch.Generator(subject.unseen.device).manual_seed(self.seed)
        made: dict[str, list[Outcome]] = {method: [] for method in methods}
        for x in base.distinct(subject.unseen, self.episodes, length, generator):
            state = model.write(x)
            asked = torch.rand(length, generator=generator, device=x.device).argsort()[: self.queries]
            cue = damage(x[asked], level, subject.unseen.binary, generator)
            for method in methods:
                # its own random numbers, so that cues are the same whatever a recall draws
                options = base.told(model, method, generator=torch.Generator(x.device).manual_seed(self.seed))
                end = model.recall(state, cue, self.steps, method, **options).last
                made[method].append(outcome(end, x, asked))
            tick()
        return {method: Outcome(*map(torch.stack, zip(*found, strict=True))) for method, found in made.items()}

    def slice(self, model: DKM, x: Float[Tensor, "T c h w"], generator: torch.Generator) -> dict[str, Any]:
        """The energy on the plane through the addresses of three stored images, and paths of recall near it."""
        state = model.write(x)
        w = Reader.of(model, state).address(x[:3])
        plane = through(w)
        corners = plane.place(w)
        low, high = corners.amin(0), corners.amax(0)
        size = (0.5 + MARGIN) * (high - low).amax().clamp(min=0.01)
        steps = torch.linspace(-1, 1, self.grid, dtype=w.dtype, device=w.device)[:, None]
        across, up = ((low + high) / 2 + steps * size).unbind(-1)
        points = torch.stack(torch.meshgrid(across, up, indexing="xy"), dim=-1)
        cue = damage(x[:3], self.level, model.config.binary, generator)
        energy = landscape(model, state, plane.at(points))
        lowest = points.flatten(0, 1)[energy.argmin()][None]
        return {
            "across": across.tolist(),
            "up": up.tolist(),
            "energy": [[round(e, 3) for e in row] for row in energy.tolist()],
            "stored": landmarks(model, state, plane, corners),
            "lowest": landmarks(model, state, plane, lowest),
            "images": base.pack(x[None, :3]),
            "sides": torch.pdist(w).tolist(),
            "paths": {m: self.paths(model, state, cue, plane, m) for m in base.recalls(model, chains=False)},
        }

    def paths(
        self, model: DKM, state: MemoryState, cue: Float[Tensor, "Q c h w"], plane: Plane, method: str
    ) -> list[dict[str, Any]]:
        """Steps of recall, from each cue's own address on, as seen on the plane, and how far from it they are."""
        w = model.recall(state, cue, self.steps, method).w
        assert w is not None  # a DKM has weights
        w = torch.cat([Reader.of(model, state).address(cue)[None], w])
        return [
            {
                "places": plane.place(path).tolist(),
                "outside": plane.outside(path).tolist(),
                "energy": landscape(model, state, path).tolist(),
            }
            for path in w.unbind(1)
        ]


def damage(
    x: Float[Tensor, "Q c h w"], level: float, binary: bool, generator: torch.Generator
) -> Float[Tensor, "Q c h w"]:
    """Flip a share of bits, or add noise of a standard deviation."""
    return (flips if binary else noise)(x, level, generator).x


def outcome(end: Float[Tensor, "Q c h w"], stored: Float[Tensor, "T c h w"], asked: Int64[Tensor, "Q"]) -> Outcome:
    """Where recall ended; to be near is to differ in 5 % of pixels at most, or of their range (from −1 to 1)."""
    apart = base.distances(end, stored)
    binary = base.is_binary(stored)
    right, blank = hits(apart, asked), end.flatten(1).amax(-1) == end.flatten(1).amin(-1)
    near = (apart.amin(-1) <= NEAR * (stored[0].numel() if binary else 2)) & ~blank
    return Outcome(*(a.to(apart) for a in (right, right & near, near & ~right, blank)))


def curves(points: list[dict[str, Outcome]]) -> dict[str, Any]:
    """For each method, the mean of every measure at every point."""
    return {
        method: {
            key: base.means(torch.stack([getattr(point[method], key).mean(-1) for point in points]))
            for key in Outcome._fields
        }
        for method in points[0]
    }


def radius(levels: Sequence[float], right: Sequence[float]) -> float | None:
    """The level at which recovery falls below one half, between the points measured; None where it does not."""
    for (a, here), (b, there) in pairwise(zip(levels, right, strict=True)):
        if here >= 0.5 > there:
            return a + (b - a) * (here - 0.5) / (here - there)
    return None


def through(w: Float[Tensor, "3 K"]) -> Plane:
    """The plane through three weights, with its first axis from the first to the second of them."""
    Q, R = torch.linalg.qr((w[1:] - w[0]).mT)
    return Plane(w[0], torch.where(R.diagonal() < 0, -Q, Q).mT)


def landmarks(model: DKM, state: MemoryState, plane: Plane, places: Float[Tensor, "n 2"]) -> dict[str, Any]:
    """Points of the plane, with the energy and the image there."""
    there = Reader.of(model, state).settle(plane.at(places))
    return {
        "places": places.tolist(),
        "energy": there.energy.tolist(),
        "decoded": base.pack(there.x[None]),
    }


def landscape(model: DKM, state: MemoryState, w: Float[Tensor, "*b K"]) -> Float[Tensor, "*b"]:
    """E(w) = min over x of E(x, w): the energy of w and the mode there."""
    at = Reader.of(model, state)
    parts = [at.settle(some).energy for some in w.reshape(-1, w.shape[-1]).split(CHUNK)]
    return torch.cat(parts).reshape(w.shape[:-1])
