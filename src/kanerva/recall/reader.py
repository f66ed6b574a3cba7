"""A model and a memory that it has written: all that recall, the search and the experiments ask of the two."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .. import linalg, memory
from ..likelihood import Likelihood
from ..memory import Inverse, MemoryState
from .trajectory import Snapshot

if TYPE_CHECKING:
    from ..models.dkm import DKM, Posterior


class Reader(NamedTuple):
    """A model that reads one written memory, inverted once for all cues and steps."""

    model: "DKM"
    state: MemoryState
    inverse: Inverse

    @classmethod
    def of(cls, model: "DKM", state: MemoryState) -> "Reader":
        """Invert a memory, once it is known to belong to the model."""
        model.check_memory(state)
        state = MemoryState(*linalg.broadcast(map(copied, state)))
        return cls(model, state, model.inverse(state))

    def cues(self, x: Float[Tensor, "*cues Q c h w"]) -> Float[Tensor, "*b Q c h w"]:
        """Cues with the batch axes of the memory, one set of cues for many memories included."""
        return self.model.with_batch(copied(x), self.state.R.shape[:-2])

    def flat(self, batch: tuple[int, ...]) -> "Reader":
        """The same with one batch axis; memories that many cues of the batch share are repeated."""
        matrices = (*self.state, self.inverse.P, self.inverse.log_det[..., None, None])
        R, U, P, log_det = (part.expand(*batch, *part.shape[-2:]).flatten(0, -3) for part in matrices)
        return Reader(self.model, MemoryState(R, U), Inverse(P, log_det[:, 0, 0]))

    def some(self, which: Int64[Tensor, "n"]) -> "Reader":
        """Some of the memories."""
        R, U = (part[which] for part in self.state)
        return Reader(self.model, MemoryState(R, U), Inverse(self.inverse.P[which], self.inverse.log_det[which]))

    def decode(self, w: Float[Tensor, "*b Q K"]) -> Likelihood:
        return self.model.decode(memory.read(self.state, w))

    def posterior(self, x: Float[Tensor, "*b Q c h w"]) -> "Posterior":
        """q(w) of images."""
        return self.model.posterior(self.state, self.model.cue(x), self.inverse)

    def address(self, x: Float[Tensor, "*b Q c h w"]) -> Float[Tensor, "*b Q K"]:
        return self.posterior(x).mean

    def energy(
        self, likelihood: Likelihood, x: Float[Tensor, "*b Q c h w"], w: Float[Tensor, "*b Q K"]
    ) -> Float[Tensor, "*b Q"]:
        return self.model.kl_weights(w, self.inverse) - likelihood.log_prob(x)

    def settle(self, w: Float[Tensor, "*b Q K"]) -> Snapshot:
        """The mode at w, and the energy of the two."""
        likelihood = self.decode(w)
        x = likelihood.mode()
        return Snapshot(x, w, self.energy(likelihood, x, w))

    def curvature(self) -> Float[Tensor, "*b 1 K K"]:
        """A guess of the energy's inverse Hessian in w: the covariance read_var P of w given a code."""
        H: Tensor = (self.model.read_var * self.inverse.P)[..., None, :, :]
        return H


def copied(x: Tensor) -> Tensor:
    """x, as a tensor that autograd may keep: one made in inference mode is copied once that is left."""
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x
