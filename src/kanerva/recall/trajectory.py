"""What recall gives: a trajectory, step by step."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..support import checks


class Snapshot(NamedTuple):
    """Where all cues are after a step, with the energy of x and w together."""

    x: Float[Tensor, "*b Q c h w"]
    w: Float[Tensor, "*b Q K"] = None  # type: ignore[assignment]  # some models have none, and their paths say so
    energy: Float[Tensor, "*b Q"] = None  # type: ignore[assignment]
    certified: Bool[Tensor, "*b Q"] | None = None
    """Where x is surely the stored image of the cue, to the last pixel; None where nobody has looked."""

    def where(self, which: Bool[Tensor, "*b Q"], other: "Snapshot") -> "Snapshot":
        """This for the cues that `which` says, and the other for the rest."""

        def choose(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(which.reshape(*which.shape, *(1,) * (a.ndim - which.ndim)), a, b)

        here, there = self.certified, other.certified
        if here is not None or there is not None:
            nobody = torch.zeros_like(which)
            here = choose(nobody if here is None else here, nobody if there is None else there)
        x, w, energy = map(choose, self[:3], other[:3])
        return Snapshot(x, w, energy, here)

    def put(
        self,
        rows: Int64[Tensor, "n 1"],
        columns: Int64[Tensor, "n m"],
        keep: Bool[Tensor, "n m"],
        other: "Snapshot",
    ) -> "Snapshot":
        """This, with the other for cues of these rows and columns that are not to be kept."""
        mine = Snapshot(*(None if part is None else part[rows, columns] for part in self))  # type: ignore[arg-type]
        mixed = mine.where(keep, other)
        return Snapshot(
            *(
                a if a is None or b is None else a.index_put((rows, columns), b)
                for a, b in zip(self, mixed, strict=True)
            )  # type: ignore[arg-type]
        )


class Recall(NamedTuple):
    """A trajectory of S steps from Q cues for each of B memories."""

    x: Float[Tensor, "S *b Q c h w"]
    w: Float[Tensor, "S *b Q K"] | None = None
    """The weights at each step, where a model has any."""
    energy: Float[Tensor, "S *b Q"] | None = None
    """The energy at each step, where a model has one."""
    certified: Bool[Tensor, "*b Q"] | None = None
    """Where the last image is surely a stored one, to the last pixel: the right one, if the cue shows a stored
    image. None where nobody has looked."""

    @property
    def last(self) -> Float[Tensor, "*b Q c h w"]:
        """The images that recall ends with."""
        return self.x[-1]


Callback = Callable[[int, Snapshot], None]


def follow(path: Iterator[Snapshot], steps: int, callback: Callback | None) -> Recall:
    """Make the steps of a path; where it ends early, its last step is the rest.

    Cues and memory were looked at; what comes of them is not, step by step (a model may read pixels out of range).
    """
    made: list[Snapshot] = []
    for number in range(steps):
        with checks.deep_checks(False):
            after = next(path, None)
        if after is None:
            break
        made.append(after)
        if callback is not None:
            callback(number, after)
    made += made[-1:] * (steps - len(made))
    both = [step.w for step in made], [step.energy for step in made]
    w, energy = (None if parts[0] is None else torch.stack(parts) for parts in both)
    return Recall(torch.stack([step.x for step in made]), w, energy, made[-1].certified)
