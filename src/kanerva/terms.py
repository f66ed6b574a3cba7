"""What a model says of an episode: the terms of its bound, which objective.py weighs."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Terms(NamedTuple):
    """The terms of a model's bound, in nats; None for what it does not have. objective.py weighs them."""

    log_lik: Float[Tensor, "*b T"]
    """ln p(x | what was inferred, memory)."""
    log_lik_auto: Float[Tensor, "*b T"] | None = None
    """ln p(x | decoder(encoder(x))): the codec alone."""
    kl_weights: Float[Tensor, "*b T"] | None = None
    """The divergence of what is inferred for each image from its prior: weights, keys, or a latent."""
    kl_memory: Float[Tensor, "*b"] | None = None
    """The divergence of the written memory from the blank one."""
