"""GPM: the generative pseudo-inverse memory, which writes and reads by solving linear systems.

    write   W = Z M0⁺     M = W⁺Z             read   q(w | x, M) = N(e(x) M⁺, weight_var I)     p(x | z = wᵀM)

(Pham et al., Generative Pseudo-Inverse Memory, 2022; the memory inside Larimar, Das et al., 2024). Z are the codes
of an episode, M0 is a learned memory that gives them addresses, and p(w) = N(0, I). A memory is K·C numbers. It is
written on by writing its own rows again beside the new codes; with no new codes, it stays as it is.

**What the score leaves out.** M is a function of the images: a point, at an infinite KL from any prior density.
So −ln p(x | w, M) + KL(w) is no bound on ln p(X). It is what an image costs once the memory is known: the published
score, which the DKM's is like (`memory = "mean"`). With `memory = "exact"` there is a bound. The posterior is
q(M | X) = MN(M̂, memory_var I, I) around the memory M̂ that was written, the prior p(M) = MN(M0, I, I), and what is
read is a draw of M. (A prior of variance one is no restriction: codes and M0 may be of any size.)

    Σ_t ( ln p(x_t | w_t, M) − KL(w_t) ) − ½ ( K·C (memory_var − 1 − ln memory_var) + ‖M̂ − M0‖² )

**What the authors' program does** (phamtienkha/generative-pseudoinverse-memory: memory.py, main.py). It reads M at
its mean, and computes a KL(M) that neither its loss nor its score uses. It charges KL(w) for K independent numbers
of variance weight_var, but draws *one* number and adds it to all K weights of all images. Such noise has one
direction, not K, which a decoder can learn to ignore. Then weight_var goes to one, where K (weight_var − 1 −
ln weight_var) / 2 is nothing, and the weights say what they like for ½ ‖w‖² nats. (Larimar's program draws K
numbers.) `noise = "released"` trains like that, with one number for each episode. However a model was trained,
`kanerva evaluate` reports its score with K numbers drawn, as charged, and with one, as released. Left out here is
the program's noise of standard deviation ½ on all codes: nothing is charged for it, and an encoder outgrows it.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ... import memory
from ...support import checks
from ...support.checks import Random
from ...support.door import public
from ...support.linalg import Number
from ..base import CodecModel, CodecModelConfig, Cues, Episode, Pixels, Seen, Terms
from .gaussian import normal

# The paper's number of steps: seven square the error seven times.
STEPS = 7


@dataclass(frozen=True)
class GPMConfig(CodecModelConfig):
    """A codec around a memory of K rows for codes of C numbers, written and read by pseudo-inverses."""

    kind: ClassVar[str] = "gpm"

    rows: int = 32
    """K, the rows of the memory."""
    memory: Literal["exact", "mean"] = "mean"
    """exact: a true bound, with a memory that is drawn and charged. mean: M is a point, not charged (the paper)."""
    noise: Literal["charged", "released"] = "charged"
    """Noise of weights: as their KL charges it, or as the authors' program draws it, which is no bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, rows=1)
        if self.noise == "released" and self.memory == "exact":
            raise ValueError("noise: expected charged with memory exact, which is a bound, got released")


class GPMState(NamedTuple):
    """A memory: K rows for codes of C numbers."""

    M: Float[Tensor, "*#b K C"]


class GPM(CodecModel):
    """The generative pseudo-inverse memory."""

    TITLE = "Generative pseudo-inverse memory"
    METHODS = ("pseudo-inverse",)
    AUTO = True
    Config, State = GPMConfig, GPMState

    config: GPMConfig

    def __init__(self, config: GPMConfig | None = None) -> None:
        super().__init__(config)
        self.M0 = nn.Parameter(torch.randn(self.config.rows, self.config.code))
        self.log_weight_var = nn.Parameter(torch.tensor(math.log(0.3)))  # as the DKM begins
        if self.config.memory == "exact":
            self.log_memory_var = nn.Parameter(torch.tensor(math.log(0.1)))

    def _blank(self, batch: int) -> GPMState:
        """Zeros, which is W⁺Z of no codes: a code that is 0 has the address 0, and adds nothing to others."""
        return GPMState(self.M0.new_zeros(batch, *self.M0.shape))

    def _store(self, e: Tensor, batch: int) -> tuple[GPMState, Float[Tensor, "B"] | None]:
        M = written(e, self.M0)
        return GPMState(M), kl_point(M, self.M0, self.log_memory_var.exp()) if self.drawn else None

    def _write(self, e: Tensor, state: GPMState) -> GPMState:
        """All at once, beside the rows of the memory as it is."""
        return GPMState(written(torch.cat([state.M, e], 1), self.M0))

    @property
    def drawn(self) -> bool:
        """Whether images are read from a memory that is drawn."""
        return self.config.memory == "exact"

    def _terms(
        self,
        state: GPMState,
        x: Tensor,
        e: Tensor,
        generator: torch.Generator | None,
        pixels: Pixels | None = None,
    ) -> Terms:
        return self.read_terms(state.M, x, e, self.drawn, self.config.noise, generator, pixels)

    @public(flat=True)
    def given(self, state: Any, x: Cues, generator: Random = None) -> Terms:
        """The terms of reading images from a memory, whoever wrote it, with noise as it is charged."""
        return self.read_terms(state.M, x, self._code(x), self.drawn, "charged", generator)

    def read_terms(
        self,
        M: Float[Tensor, "B K C"],
        x: Float[Tensor, "B T c h w"],
        z: Float[Tensor, "B T C"],
        drawn: bool,
        noise: str,
        generator: torch.Generator | None,
        pixels: Pixels | None = None,
    ) -> Terms:
        """The terms of images and their codes, read with drawn weights: all but KL(M).

        One draw of w, and of M if `memory` is exact. Proof: test_the_bound_*.
        """
        if drawn:
            M = M + (0.5 * self.log_memory_var).exp() * normal(M.shape, M, generator)
        mean, var = z @ inverse(M), self.log_weight_var.exp()
        shape = mean.shape if noise == "charged" else (len(mean), 1, 1)
        w = mean + var.sqrt() * normal(shape, mean, generator)
        return Terms(*self.log_lik(x, w @ M, z, pixels), memory.kl_weights(mean, var))

    @public(flat=True)
    def extra_scores(self, x: Episode, generator: Random = None) -> dict[str, Float[Tensor, "*b"]]:
        """The same score in the ways that `forward` does not take: with the memory at its mean, or as released."""
        ways = {"memory at its mean, noise as charged": "charged", "as released": "released"}
        if not self.drawn:
            ways = {name: noise for name, noise in ways.items() if noise != self.config.noise}
        e = self._code(x)
        M = self._store(e, len(x))[0].M
        return {name: self.read_terms(M, x, e, False, noise, generator).nats() for name, noise in ways.items()}

    def _look(self, state: GPMState, e: Tensor) -> Seen:
        w = e @ inverse(state.M)
        return Seen(w @ state.M, w)

    def _begin(self, state: GPMState, n: int, generator: torch.Generator | None) -> Seen:
        w = normal((len(state.M), n, self.config.rows), state.M, generator)
        return Seen(w @ state.M, w)

    def kept(self, length: int) -> int:
        """M, whatever is written."""
        return self.config.rows * self.config.code


def written(z: Float[Tensor, "*b T C"], M0: Float[Tensor, "K C"]) -> Float[Tensor, "*b K C"]:
    """M = W⁺Z with the addresses W = Z M0⁺: the memory from which they read codes best, in least squares.

    The rows of M get the addresses W⁺W, so writing them again gives M back. Proof: test_written_*.
    """
    return inverse(z @ inverse(M0)) @ z


def inverse(A: Float[Tensor, "*b N M"], steps: int = STEPS) -> Float[Tensor, "*b M N"]:
    """A⁺ by the steps of Ben-Israel and Cohen, X ← 2X − X A X from X = Aᵀ/‖A‖², ‖A‖² = Σ A².

    A singular value s comes out as (1 − (1 − s²/‖A‖²)ⁿ)/s, n = 2^steps, where A⁺ has 1/s. Seven steps leave out
    1.7 % of 32 equal ones; those with s² far below ‖A‖²/n are damped. (The authors' program begins at 5·10⁻⁴ Aᵀ,
    whatever the size of codes, and does not converge where s > 63.) Proof: test_inverse_*.
    """
    norm = A.square().sum((-2, -1), keepdim=True).clamp(min=torch.finfo(A.dtype).tiny)
    X = A.mT / norm
    for _ in range(steps):
        X = 2 * X - X @ (A @ X)
    return X


def kl_point(M: Float[Tensor, "*b K C"], M0: Float[Tensor, "K C"], memory_var: Number) -> Float[Tensor, "*b"]:
    """KL(MN(M, memory_var I, I) ‖ MN(M0, I, I)) = ½ ( K·C (memory_var − 1 − ln memory_var) + ‖M − M0‖² )."""
    v = torch.as_tensor(memory_var, dtype=M.dtype)
    return 0.5 * (M0.numel() * (v - 1 - v.log()) + (M - M0).square().sum((-2, -1)))
