"""Attractor dynamics: energy, recall and sampling with a written memory."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from . import checks, memory
from .memory import Inverse, MemoryState

if TYPE_CHECKING:
    from .model import DKM


class Recall(NamedTuple):
    """A trajectory of S steps from Q cues for each of B memories."""

    x: Float[Tensor, "S *b Q c h w"]
    w: Float[Tensor, "S *b Q K"]
    energy: Float[Tensor, "S *b Q"]


def energy(
    model: "DKM", state: MemoryState, x: Float[Tensor, "*b Q c h w"], w: Float[Tensor, "*b Q K"]
) -> Float[Tensor, "*b Q"]:
    """E(x, w) = −ln p(x | decoder(Rᵀw)) + KL(q(w) ‖ p(w)), with w the mean of q [sec. 3.5]."""
    likelihood = model.decode(memory.read(state, w))
    return model.kl_weights(w, model.inverse(state)) - likelihood.log_prob(x)


def recall(model: "DKM", state: MemoryState, x: Float[Tensor, "*b Q c h w"], steps: int) -> Recall:
    """Feed the mode of the prediction back as the next cue, `steps` times [sec. 3.5].

        w ← address(encoder(x))        x ← mode p(x | decoder(Rᵀw))

    Each step's energy is that of the pair it ends with. A memory is inverted once for all cues and steps.
    """
    checks.count("steps", steps)
    return _recall(model, state, model.inverse(state), x, steps)


def sample(
    model: "DKM", state: MemoryState, n: int, steps: int, generator: torch.Generator | None = None
) -> Recall:
    """Draw n patterns from each memory: the first step decodes w ~ p(w), the others are recall [sec. 3.5]."""
    checks.count("n", n)
    checks.count("steps", steps)
    shape = (*state.R.shape[:-2], n, state.R.shape[-2])
    w = torch.randn(shape, generator=generator, dtype=state.R.dtype, device=state.R.device)
    inverse = model.inverse(state)
    x, cost = _settle(model, state, inverse, w)
    first = Recall(x[None], w[None], cost[None])
    if steps == 1:
        return first
    return Recall(*map(torch.cat, zip(first, _recall(model, state, inverse, x, steps - 1), strict=True)))


def _recall(
    model: "DKM", state: MemoryState, inverse: Inverse, x: Float[Tensor, "*b Q c h w"], steps: int
) -> Recall:
    path = []
    for _ in range(steps):
        w = memory.address(model.encode(x), state, model.noise_var, inverse)
        x, cost = _settle(model, state, inverse, w)
        path.append((x, w, cost))
    return Recall(*map(torch.stack, zip(*path, strict=True)))


def _settle(
    model: "DKM", state: MemoryState, inverse: Inverse, w: Float[Tensor, "*b Q K"]
) -> tuple[Float[Tensor, "*b Q c h w"], Float[Tensor, "*b Q"]]:
    """The mode at w, and the energy of the two."""
    likelihood = model.decode(memory.read(state, w))
    x = likelihood.mode()
    return x, model.kl_weights(w, inverse) - likelihood.log_prob(x)
