"""All that recall knows of a model: memories, and how images go into them and come out.

A model with a codec, and the layer with a map to valid vectors, each make a `Retriever`; recall asks nothing else.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .. import memory
from ..likelihood import Likelihood
from ..memory import Inverse, MemoryState, Weights, moments
from ..memory.moments import Known
from .trajectory import Snapshot


class Cue(NamedTuple):
    """What an encoder makes of images: the code that is written, and the one that reads go by."""

    z: Float[Tensor, "*b C"]
    seen: Float[Tensor, "*b C"]
    known: Known = None


class Hyper(NamedTuple):
    """What every memory of a layer begins with: all that looking into a memory needs to know."""

    R0: Float[Tensor, "K C"]
    prior_var: Float[Tensor, ""]
    noise_var: Float[Tensor, ""]

    def prior(self, batch: tuple[int, ...] = ()) -> MemoryState:
        """The memory before anything is written."""
        return memory.prior(self.R0, self.prior_var, batch)

    def columns(self, count: int) -> "Hyper":
        """That of the first columns alone."""
        return self._replace(R0=self.R0[..., :count])


class StoredImages(NamedTuple):
    """What was found in a memory without a cue."""

    x: Float[Tensor, "n c h w"]
    cost: Float[Tensor, "n"]
    """½ ‖encoder(x) − uᵀF‖² / noise_var, how far an image's code is from all that could have been written, in nats:
    next to nothing where x is the stored image to the last pixel."""


class Hints(NamedTuple):
    """What is known of the damage of cues, and how to recall; a method uses what it can."""

    mask: Float[Tensor, "B Q c h w"] | None = None
    """1 for a pixel to trust, 0 where it is lost."""
    noise: float | None = None
    """The share of bits that were flipped, or the variance of the noise that was added."""
    temperature: float = 1.0
    generator: torch.Generator | None = None
    inside: bool = True
    """Whether to look for stored images in the memory itself."""
    contents: StoredImages | None = None
    """Images that are known to be in there."""


class Retriever(NamedTuple):
    """A model that reads memories, inverted once for all cues and steps."""

    state: MemoryState
    hyper: Hyper
    read_var: Float[Tensor, ""]
    inverse: Inverse
    encode: Callable[[Tensor], Cue]
    address: Callable[[Cue], Weights]
    """q(w | x) of what `encode` gives."""
    around: Callable[[Tensor], Weights]
    """q(w) around given means, with the covariance that all cues of a memory share."""
    decode: Callable[[Tensor], Likelihood]
    """Codes to distributions over images; for vectors, to the nearest valid ones."""
    binary: bool
    image: tuple[int, ...]
    again: Callable[[MemoryState], "Retriever"]
    """The same model with other memories."""

    def find(self, x: Float[Tensor, "*b Q c h w"]) -> Float[Tensor, "*b Q K"]:
        """The address of images."""
        return self.address(self.encode(x)).mean

    def read(self, w: Float[Tensor, "*b Q K"]) -> Likelihood:
        """What is decoded at an address."""
        return self.decode(w @ self.state.R)

    def energy(
        self, p: Likelihood, x: Float[Tensor, "*b Q c h w"], w: Float[Tensor, "*b Q K"]
    ) -> Float[Tensor, "*b Q"]:
        """E(x, w) = −ln p(x | d(Rᵀw)) + KL(q(w) ‖ p(w)) [sec. 3.5]."""
        return moments.kl_address(self.around(w)) - p.log_prob(x)

    def settle(self, w: Float[Tensor, "*b Q K"]) -> Snapshot:
        """The mode at w, and the energy of the two."""
        p = self.read(w)
        x = p.mode()
        return Snapshot(x, w, self.energy(p, x, w))

    def some(self, which: Int64[Tensor, "n"]) -> "Retriever":
        """Some of the memories."""
        return self.again(MemoryState(*(part[which] for part in self.state)))

    def curvature(self) -> Float[Tensor, "*b 1 K K"]:
        """A guess of the energy's inverse Hessian in w: the covariance read_var P of w given a code."""
        return (self.read_var * self.inverse.P)[..., None, :, :]


def copied(x: Tensor) -> Tensor:
    """x, as a tensor that autograd may keep: one made in inference mode is copied once that is left."""
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x
