"""What recall gives: a trajectory, step by step."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Step(NamedTuple):
    """Where all cues are after a step, with the energy of x and w together."""

    x: Float[Tensor, "*b Q c h w"]
    w: Float[Tensor, "*b Q K"]
    energy: Float[Tensor, "*b Q"]


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


Callback = Callable[[int, Step], None]
