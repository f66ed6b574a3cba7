"""The energy of a memory on a plane in the space of weights, for the experiment and for the playground."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..memory import MemoryState
from ..models import DKM

MARGIN = 0.35
"""How far a drawing goes beyond the three addresses, as a share of their greatest extent."""
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


def through(w: Float[Tensor, "3 K"]) -> Plane:
    """The plane through three weights, with its first axis from the first to the second of them."""
    Q, R = torch.linalg.qr((w[1:] - w[0]).mT)
    return Plane(w[0], torch.where(R.diagonal() < 0, -Q, Q).mT)


def landscape(model: DKM, state: MemoryState, w: Float[Tensor, "*b K"]) -> Float[Tensor, "*b"]:
    """E(w) = min over x of E(x, w): the energy of w and the mode there."""
    at = model.retriever(state)
    parts = [at.settle(some).energy for some in w.reshape(-1, w.shape[-1]).split(CHUNK)]
    return torch.cat(parts).reshape(w.shape[:-1])
