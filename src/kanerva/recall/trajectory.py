"""What recall gives: a trajectory, step by step."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .. import checks


class Snapshot(NamedTuple):
    """Where all cues are after a step, with the energy of x and w together."""

    x: Float[Tensor, "*b Q c h w"]
    w: Float[Tensor, "*b Q K"]
    energy: Float[Tensor, "*b Q"]

    def where(self, which: Bool[Tensor, "*b Q"], other: "Snapshot") -> "Snapshot":
        """This for the cues that `which` says, and the other for the rest."""

        def choose(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(which.reshape(*which.shape, *(1,) * (a.ndim - which.ndim)), a, b)

        return Snapshot(*map(choose, self, other))


class Recall(NamedTuple):
    """A trajectory of S steps from Q cues for each of B memories."""

    x: Float[Tensor, "S *b Q c h w"]
    w: Float[Tensor, "S *b Q K"] | None = None
    """The weights at each step, where a model has any."""
    energy: Float[Tensor, "S *b Q"] | None = None
    """The energy at each step, where a model has one."""

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
    return Recall(*map(torch.stack, zip(*made, strict=True)))
