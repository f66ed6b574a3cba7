"""From terms to numbers: bounds, loss and scores. The only place where terms are weighed."""

import math
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from .terms import Terms

Number = TypeVar("Number", float, Tensor)


def bound(terms: Terms) -> Float[Tensor, "*b"]:
    """A model's bound on ln p(x_1, …, x_T) of each episode, in nats; for the DKM, the paper's estimate [eq. elbo].

        L_T = Σ_t ( ln p(x_t | w_t, M) − KL(w_t) ) − KL(M)

    with one draw of w, and R_T for M. B_T has the same form with the terms of `DKM.online` [eq. B_def]. A term that
    a model does not have is left out.
    """
    total = -given(terms).sum(-1)
    return total if terms.kl_memory is None else total - terms.kl_memory


def loss(terms: Terms, autoencoder: float = 1.0) -> Float[Tensor, ""]:
    """What training descends: −(L_T / T + a L_AE), nats per image, mean over episodes [eq. obj, eq. ll:ae].

    a, `autoencoder`, is 1 in the paper; with 0, L_AE may be infinite.
    """
    per_image = bound(terms) / terms.log_lik.shape[-1]
    if autoencoder and terms.log_lik_auto is not None:
        per_image = per_image + autoencoder * terms.log_lik_auto.mean(-1)
    return -per_image.mean()


def given(terms: Terms) -> Float[Tensor, "*b T"]:
    """What each image costs given the memory: −ln p(x_t | w_t, M) + KL(w_t)."""
    return -terms.log_lik if terms.kl_weights is None else terms.kl_weights - terms.log_lik


def nats(terms: Terms) -> Float[Tensor, "*b"]:
    """The reported score: nats per image given the memory, KL(M) left out, lower is better [sec. 4]."""
    return given(terms).mean(-1)


# What is reported of an episode, in nats per image.
NAMES = ("nats", "reconstruction", "kl_weights", "kl_memory", "autoencoder")


def parts(terms: Terms) -> dict[str, Float[Tensor, "*b"]]:
    """The means of NAMES over each episode, of those that the model has."""
    T = terms.log_lik.shape[-1]
    found = {
        "nats": nats(terms),
        "reconstruction": -terms.log_lik.mean(-1),
        "kl_weights": None if terms.kl_weights is None else terms.kl_weights.mean(-1),
        "kl_memory": None if terms.kl_memory is None else terms.kl_memory / T,
        "autoencoder": None if terms.log_lik_auto is None else -terms.log_lik_auto.mean(-1),
    }
    return {name: value for name, value in found.items() if value is not None}


def bits_per_dimension(nats_per_image: Number, dimensions: int) -> Number:
    """Bits per dimension of 256-level images scaled to [−1, 1), where a level is 1/128 wide [sec. 4]."""
    return 7 + nats_per_image / (dimensions * math.log(2))
