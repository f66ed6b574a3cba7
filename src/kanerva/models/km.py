"""KM: the Kanerva Machine, whose addresses come from learned keys, not from what the memory holds.

    p(M) = MN(R0, prior_var I, I)     p(y) = N(0, I)     w = A f(y)     p(z | y, M) = N(wᵀM, noise_var I)

(Wu, Wayne, Graves and Lillicrap, The Kanerva Machine, 2018), and p(x | z) from the decoder. A key y of S numbers
becomes weights by a small network f and a learned matrix A. Weights do not depend on the memory, so the order of
writing does not matter, and an episode is written at once: q(M | X) is the exact posterior of M given the codes
e(x_t), written with the weights of the keys' means. (The paper writes with drawn keys and codes. Means write the
same memory every time, and q(M | X) is then one Gaussian, whose divergence is known.) For each image are inferred

    q(y | x) = N(mean(x), diag(var(x)))     q(z | x, y, X) = N(½ (e(x) + wᵀR) + correction, diag(var))

q(z) sees the memory's mean R, not a draw of M. So the expectation of its divergence over q(M | X) is exact:

    E KL(q(z) ‖ N(wᵀM, noise_var I)) = KL(q(z) ‖ N(wᵀR, noise_var I)) + C wᵀU w / (2 noise_var)

With the last term, and with KL(M) charged, `forward` gives a true bound on ln p(X). The paper maximises ln p(X | M)
instead, with the M that was written: it takes R for M and charges nothing for what was written, neither in training
nor in its score (`memory = "mean"`). `kanerva evaluate` reports what either leaves out. It matters: charged for
KL(M), the model finds that keys alone, or latents alone, are a cheaper way to say what an image is like, and writes
next to nothing.

As with the DKM, training also descends L_AE, which no score counts; keys begin with small variances, and q(z) half
way between e(x) and wᵀR. Before these three, keys and latents fell back to their priors (seen with the memory at
its mean: KL below 0.01 after 500 steps, and nothing learned from then on).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import checks, memory, objective
from ..checks import full_precision
from ..linalg import Number, cholesky, log_det, ridge, solve_lower
from ..memory import MemoryState
from ..nn import Parameters
from .base import CodecModel, CodecModelConfig, Read, Recall, Terms
from .gaussian import Gaussian, normal

# ln var of keys at first: where keys say little, training soon forgets them.
SHARP = -2.0
KL_MEMORY = "KL(M) / T, not charged"


@dataclass(frozen=True)
class KMConfig(CodecModelConfig):
    """A codec around a memory of K rows for codes of C numbers, addressed by keys of S numbers."""

    kind: ClassVar[str] = "km"

    rows: int = 64
    """K, the rows of the memory; the paper has 64."""
    key: int = 50
    """S, the size of a key."""
    memory: Literal["exact", "mean"] = "mean"
    """exact: a true bound: KL(M) is charged, and that M is uncertain. mean: a point, not charged (the paper)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, rows=1, key=1)


class KM(CodecModel, Parameters):
    """The Kanerva Machine. The codec is that of the DKM; heads on its code infer keys and latents."""

    TITLE = "Kanerva Machine"
    METHODS = ("iterate",)
    LATENT = "y"
    AUTO = True
    Config = KMConfig

    config: KMConfig

    def __init__(self, config: KMConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        K, C, S = c.rows, c.code, c.key
        self.own(K, C)
        # f(y) has numbers of about one; weights begin with a length of about one, and reads like rows of R0
        self.A = nn.Parameter(torch.randn(K, S) / math.sqrt(K * S))
        self.f = network(S, 2 * S, S)
        self.key_head = network(C, 2 * C, 2 * S)
        self.code_head = network(2 * C, 2 * C, 2 * C, scale=0.1)

    def keys(self, e: Float[Tensor, "*b C"]) -> Gaussian:
        """q(y | x) from e(x)."""
        mean, log_var = self.key_head(e).chunk(2, dim=-1)
        return Gaussian(mean, SHARP + log_var)

    def weights(self, y: Float[Tensor, "*b S"]) -> Float[Tensor, "*b K"]:
        """w = A f(y)."""
        return self.f(y) @ self.A.mT

    def codes(self, e: Float[Tensor, "*b C"], read: Float[Tensor, "*b C"]) -> Gaussian:
        """q(z | x, y, X): what it would be if e(x) were z and noise, as wᵀR is, and a learned correction."""
        correction, log_ratio = self.code_head(torch.cat([e, read], dim=-1)).chunk(2, dim=-1)
        return Gaussian(0.5 * (e + read) + correction, self.log_noise_var - math.log(2) + log_ratio)

    def forward(
        self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None, written: int | None = None
    ) -> Terms:
        """Write an episode, read it with drawn keys, and return the terms of the bound, with one draw of y and z.

            Σ_t ( ln p(x_t | z_t) − KL(q(y_t) ‖ p(y)) − E KL(q(z_t) ‖ p(z_t | y_t, M)) ) − KL(q(M | X) ‖ p(M))

        `kl_weights` holds the divergences of y and z. Proof: test_the_bound_*.
        """
        exact = self.config.memory == "exact"
        terms = self.terms(x, exact, generator, written)
        return terms if exact else terms._replace(kl_memory=None)

    def terms(
        self,
        x: Float[Tensor, "*b T c h w"],
        exact: bool,
        generator: torch.Generator | None = None,
        written: int | None = None,
    ) -> Terms:
        """The terms of `forward`, with the memory's uncertainty where it is read, or without."""
        self.check_images(x, "T")
        e = self.encode(x)
        own = self.first(e, written)
        state, log_det = posterior(self.R0, self.prior_var, self.weights(self.keys(own).mean), own, self.noise_var)
        kl_memory = memory.kl_prior(state, self.R0, self.prior_var, log_det)
        return self.read_terms(state, x, e, exact, generator)._replace(kl_memory=kl_memory)

    def given(
        self, state: MemoryState, x: Float[Tensor, "*b Q c h w"], generator: torch.Generator | None = None
    ) -> Terms:
        """The terms of reading images from a memory, whoever wrote it."""
        self.check_images(x, "Q")
        self.check_memory(state)
        x = self.with_batch(x, state.R.shape[:-2])
        return self.read_terms(state, x, self.encode(x), self.config.memory == "exact", generator)

    def read_terms(
        self,
        state: MemoryState,
        x: Float[Tensor, "*b T c h w"],
        e: Float[Tensor, "*b T C"],
        exact: bool,
        generator: torch.Generator | None,
    ) -> Terms:
        """The terms of images and their codes e(x), read with drawn keys: all but KL(M)."""
        q_y = self.keys(e)
        w = self.weights(q_y.draw(generator))
        read = memory.read(state, w)
        q_z = self.codes(e, read)
        kl = q_y.kl() + q_z.kl(read, self.log_noise_var)
        if exact:
            kl = kl + uncertainty(state, w, self.noise_var)
        return Terms(*self.log_lik(x, q_z.draw(generator), e), kl)

    def blank(self, batch: tuple[int, ...] = ()) -> MemoryState:
        """The memory before anything is written."""
        return memory.prior(self.R0, self.prior_var, batch)

    def extra_scores(
        self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None
    ) -> dict[str, Float[Tensor, "*b"]]:
        """The same score the other way: with the memory taken for its mean; or as a true bound, and its KL(M)."""
        exact = self.config.memory == "exact"
        terms = self.terms(x, not exact, generator)
        if exact:
            return {"memory taken for its mean": objective.nats(terms)}
        assert terms.kl_memory is not None
        return {"the memory's uncertainty counted": objective.nats(terms), KL_MEMORY: terms.kl_memory / x.shape[-4]}

    def write(self, x: Float[Tensor, "*b T c h w"], state: MemoryState | None = None) -> MemoryState:
        """Write images into a memory, a blank one unless `state` says which, all at once: order does not matter."""
        self.check_images(x, "T")
        e = self.encode(x)
        w = self.weights(self.keys(e).mean)
        if state is None:
            return posterior(self.R0, self.prior_var, w, e, self.noise_var)[0]
        self.check_memory(state)
        checks.broadcastable({"state": state.R.shape[:-2], "x": x.shape[:-4]})
        G, H = w.mT @ w, w.mT @ (e - memory.read(state, w))
        return memory.absorb(state, G / self.noise_var, H / self.noise_var)

    def recall(
        self,
        state: MemoryState,
        x: Float[Tensor, "*b Q c h w"],
        steps: int = 15,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        """x ← mode p(x | z = wᵀR), with the weights of the mean of q(y | x), iterated.

        A cue reaches its answer through the memory alone: q(z | x, y, X) would carry the cue's noise around it.
        """
        self.check_recall(x, steps, method, options)
        self.check_memory(state)
        checks.broadcastable({"state": state.R.shape[:-2], "x": x.shape[:-4]})
        return self.iterate(self.read(state, self.encode(x)), partial(self.read, state), steps)

    def sample(
        self,
        state: MemoryState,
        n: int,
        steps: int = 15,
        generator: torch.Generator | None = None,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        """Draw images: the first step reads the memory with y ~ N(0, I), the others are recall."""
        self.check_sample(n, steps, generator, method, options)
        self.check_memory(state)
        shape = (*state.R.shape[:-2], n, self.config.key)
        w = self.weights(normal(shape, self.like, generator))
        return self.iterate((memory.read(state, w), w), partial(self.read, state), steps)

    def read(self, state: MemoryState, e: Float[Tensor, "*b Q C"]) -> Read:
        """What is read for the codes e(x): wᵀR, with the weights of the mean of q(y | x)."""
        w = self.weights(self.keys(e).mean)
        return memory.read(state, w), w

    def kept(self, length: int) -> int:
        """R and U, whatever is written."""
        return self.config.rows * (self.config.code + self.config.rows)


@full_precision
def posterior(
    R0: Float[Tensor, "K C"],
    prior_var: Number,
    w: Float[Tensor, "*b T K"],
    z: Float[Tensor, "*b T C"],
    noise_var: Number,
) -> tuple[MemoryState, Float[Tensor, "*b"]]:
    """p(M | W, Z) from the blank memory, all codes at once, and ln det U − ln det U0.

        B = I + (prior_var / noise_var) WᵀW = L Lᵀ      U = prior_var B⁻¹      R = R0 + U Wᵀ(Z − W R0) / noise_var

    The same as `memory.condition`, for weights that do not depend on the memory. No eigenvalue of B is below one,
    so U is positive definite in float32 too. Cost T·(K² + K·C) + K²·C + K³. Proof: test_posterior_*.
    """
    L = cholesky(ridge((prior_var / noise_var) * (w.mT @ w), 1.0), "I + WᵀW prior_var / noise_var")
    root = solve_lower(L, torch.eye(R0.shape[-2], dtype=w.dtype, device=w.device).expand_as(L))
    U = prior_var * (root.mT @ root)
    return MemoryState(R0 + U @ (w.mT @ (z - w @ R0)) / noise_var, U), -log_det(L)


@full_precision
def uncertainty(state: MemoryState, w: Float[Tensor, "*b T K"], noise_var: Number) -> Float[Tensor, "*b T"]:
    """C wᵀU w / (2 noise_var): what it costs, on average over M, that a read is uncertain."""
    return 0.5 * state.R.shape[-1] * (w @ state.U * w).sum(-1) / noise_var


def network(size: int, hidden: int, out: int, scale: float = 1.0) -> nn.Sequential:
    """A small network with one hidden layer, started as the codec is; `scale` shrinks what it puts out at first."""
    first, last = nn.Linear(size, hidden), nn.Linear(hidden, out)
    for layer in (first, last):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    with torch.no_grad():
        last.weight.mul_(scale)
    return nn.Sequential(first, nn.SiLU(), last)
