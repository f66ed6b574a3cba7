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
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ... import memory
from ...memory import MemoryState
from ...nn import PAPER, Memory
from ...support import checks
from ...support.checks import Random
from ...support.door import public
from ...support.linalg import Number, cholesky, log_det, ridge, solve_lower
from ..base import CodecModel, CodecModelConfig, Episode, Pixels, Seen, Terms
from .gaussian import DiagonalGaussian, normal

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


class KM(CodecModel):
    """The Kanerva Machine. The codec is that of the DKM; heads on its code infer keys and latents."""

    TITLE = "Kanerva Machine"
    METHODS = ("iterate",)
    LATENT = "y"
    AUTO = True
    Config, State = KMConfig, MemoryState

    config: KMConfig

    def __init__(self, config: KMConfig | None = None) -> None:
        super().__init__(config)
        K, C, S = self.config.rows, self.config.code, self.config.key
        # weights come from keys, whatever the memory holds: more rows than a code has numbers are of use here
        self.memory = Memory(C, K, start=PAPER, cap=False)
        # f(y) has numbers of about one; weights begin with a length of about one, and reads like rows of R0
        self.A = nn.Parameter(torch.randn(K, S) / math.sqrt(K * S))
        self.f = network(S, 2 * S, S)
        self.key_head = network(C, 2 * C, 2 * S)
        self.code_head = network(2 * C, 2 * C, 2 * C, scale=0.1)

    def keys(self, e: Float[Tensor, "*b T C"]) -> DiagonalGaussian:
        """q(y | x) from e(x)."""
        mean, log_var = self.key_head(e).chunk(2, dim=-1)
        return DiagonalGaussian(mean, SHARP + log_var)

    def weights(self, y: Float[Tensor, "*b T S"]) -> Float[Tensor, "*b T K"]:
        """w = A f(y)."""
        return self.f(y) @ self.A.mT

    def codes(self, e: Float[Tensor, "*b T C"], read: Float[Tensor, "*b T C"]) -> DiagonalGaussian:
        """q(z | x, y, X): what it would be if e(x) were z and noise, as wᵀR is, and a learned correction."""
        correction, log_ratio = self.code_head(torch.cat([e, read], dim=-1)).chunk(2, dim=-1)
        return DiagonalGaussian(0.5 * (e + read) + correction, self.memory.log_noise_var - math.log(2) + log_ratio)

    def _blank(self, batch: int) -> MemoryState:
        return self.memory.prior((batch,))

    def _store(self, e: Tensor, batch: int) -> tuple[MemoryState, Float[Tensor, "B"] | None]:
        state, kl = self.written(e)
        return state, kl if self.config.memory == "exact" else None

    def written(self, e: Float[Tensor, "B T C"]) -> tuple[MemoryState, Float[Tensor, "B"]]:
        """A blank memory, written all at once, and its KL(M)."""
        own, w = self.memory, self.weights(self.keys(e).mean)
        state, log_det = posterior(own.R0, own.prior_var, w, e, own.noise_var)
        return state, own.kl(state, log_det)

    def _write(self, e: Tensor, state: MemoryState) -> MemoryState:
        """All at once: order does not matter."""
        w, v = self.weights(self.keys(e).mean), self.memory.noise_var
        return memory.absorb(state, w.mT @ w / v, w.mT @ (e - w @ state.R) / v)

    def _terms(
        self,
        state: MemoryState,
        x: Tensor,
        e: Tensor,
        generator: torch.Generator | None,
        pixels: Pixels | None = None,
        exact: bool | None = None,
    ) -> Terms:
        """The terms of images that are read with drawn keys, with one draw of y and z: all but KL(M).

            Σ_t ( ln p(x_t | z_t) − KL(q(y_t) ‖ p(y)) − E KL(q(z_t) ‖ p(z_t | y_t, M)) ) − KL(q(M | X) ‖ p(M))

        `kl_weights` holds the divergences of y and z. Proof: test_the_bound_*.
        """
        q_y = self.keys(e)
        w = self.weights(q_y.draw(generator))
        read = w @ state.R
        q_z = self.codes(e, read)
        kl = q_y.kl() + q_z.kl(read, self.memory.log_noise_var)
        if self.config.memory == "exact" if exact is None else exact:
            kl = kl + uncertainty(state, w, self.memory.noise_var)
        return Terms(*self.log_lik(x, q_z.draw(generator), e, pixels), kl)

    @public(flat=True)
    def extra_scores(self, x: Episode, generator: Random = None) -> dict[str, Float[Tensor, "*b"]]:
        """The same score the other way: with the memory taken for its mean; or as a true bound, and its KL(M)."""
        exact, e = self.config.memory == "exact", self._code(x)
        state, kl_memory = self.written(e)
        terms = self._terms(state, x, e, generator, exact=not exact)
        if exact:
            return {"memory taken for its mean": terms.nats()}
        return {"the memory's uncertainty counted": terms.nats(), KL_MEMORY: kl_memory / x.shape[-4]}

    def _look(self, state: MemoryState, e: Tensor) -> Seen:
        """wᵀR with the weights of the mean key; q(z | x, y, X) would carry the cue's noise around the memory."""
        w = self.weights(self.keys(e).mean)
        return Seen(w @ state.R, w)

    def _begin(self, state: MemoryState, n: int, generator: torch.Generator | None) -> Seen:
        w = self.weights(normal((len(state.R), n, self.config.key), state.R, generator))
        return Seen(w @ state.R, w)

    def kept(self, length: int) -> int:
        """R and U, whatever is written."""
        return self.config.rows * (self.config.code + self.config.rows)


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
