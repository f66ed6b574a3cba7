"""From terms to numbers: bounds, loss and scores. The only place where terms are weighed."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .models.dkm import Terms


def bound(terms: Terms) -> Float[Tensor, "*b"]:
    """The paper's estimate of the bound on ln p(x_1, …, x_T) of each episode, in nats [eq. elbo].

        L_T = Σ_t ( ln p(x_t | w_t, M) − KL(w_t) ) − KL(M)

    with one draw of w, and R_T for M. B_T has the same form with the terms of `DKM.online` [eq. B_def].
    """
    return (terms.log_lik - terms.kl_weights).sum(-1) - terms.kl_memory


def loss(terms: Terms) -> Float[Tensor, ""]:
    """What training descends: −(L_T / T + L_AE), nats per image, mean over episodes [eq. obj, eq. ll:ae]."""
    per_image = bound(terms) / terms.log_lik.shape[-1]
    return -(per_image + terms.log_lik_auto.mean(-1)).mean()


def nats(terms: Terms) -> Float[Tensor, "*b"]:
    """The reported score: nats per image given the memory, KL(M) left out, lower is better [sec. 4]."""
    return (terms.kl_weights - terms.log_lik).mean(-1)


# What is reported of an episode, in nats per image; `parts` gives them in this order.
NAMES = ("nats", "reconstruction", "kl_weights", "kl_memory", "autoencoder")


def parts(terms: Terms) -> Float[Tensor, "5 *b"]:
    """The means of NAMES over each episode."""
    T = terms.log_lik.shape[-1]
    means = (-terms.log_lik.mean(-1), terms.kl_weights.mean(-1), terms.kl_memory / T, -terms.log_lik_auto.mean(-1))
    return torch.stack([nats(terms), *means])


def bits_per_dimension(nats_per_image: float, dimensions: int) -> float:
    """Bits per dimension of 256-level images scaled to [−1, 1), where a level is 1/128 wide [sec. 4]."""
    return 7 + nats_per_image / (dimensions * math.log(2))
