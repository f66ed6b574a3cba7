"""VAE: a variational autoencoder with the same codec and no memory: the yardstick for how hard images are.

    p(x) = ∫ p(x | z) N(z; 0, I) dz,   q(z | x) = N(mean(x), diag(var(x)))

(Kingma and Welling, 2014; Rezende, Mohamed and Wierstra, 2014). Each image has a code of its own; what was written
changes nothing. The importance-weighted bound is that of Burda, Grosse and Salakhutdinov (2016).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...support.checks import Count, Random
from ...support.door import public
from ..base import CodecModel, CodecModelConfig, Episode, Images, Pixels, Seen, Terms
from .gaussian import DiagonalGaussian, normal

# Draws of the importance-weighted bound that is reported: the largest k of Burda et al.'s tables.
DRAWS = 50


@dataclass(frozen=True)
class VAEConfig(CodecModelConfig):
    """A codec around one Gaussian code of C numbers."""

    kind: ClassVar[str] = "vae"


class Nothing(NamedTuple):
    """What the model keeps of images: nothing, for each memory of a batch."""

    nothing: Float[Tensor, "*#b 0"]


class VAE(CodecModel):
    """A variational autoencoder. Its encoder puts out 2C numbers: a code's mean, and the logs of its variances."""

    TITLE = "Variational autoencoder"
    METHODS = ("autoencode",)
    LATENT = "z"
    Config, State = VAEConfig, Nothing

    config: VAEConfig

    def _encoded(self) -> int:
        return 2 * self.config.code

    def _code(self, x: Float[Tensor, "*b c h w"]) -> DiagonalGaussian:
        """q(z | x)."""
        return DiagonalGaussian(*self.encoding(x).chunk(2, dim=-1))

    @public
    def encode(self, x: Images) -> Float[Tensor, "*b C"]:
        """Images to codes: the mean of q(z | x)."""
        return self._code(x).mean

    def _blank(self, batch: int) -> Nothing:
        return Nothing(self.like.new_empty(batch, 0))

    def _write(self, e: DiagonalGaussian, state: Nothing) -> Nothing:
        """Keep nothing."""
        return state

    def _terms(
        self,
        state: Nothing,
        x: Tensor,
        e: DiagonalGaussian,
        generator: torch.Generator | None,
        pixels: Pixels | None = None,
    ) -> Terms:
        """E_q ln p(x | z) − KL(q(z | x) ‖ p(z)), with one draw z = mean + √var ε."""
        return Terms(self.log_p(self.decoding(e.draw(generator)), x, pixels), kl_weights=e.kl())

    @public(flat=True)
    def importance(self, x: Episode, k: Count = DRAWS, generator: Random = None) -> Float[Tensor, "*b T"]:
        """The importance-weighted bound on ln p(x), which rises to it with k: ln 1/k Σ p(x, z) / q(z | x), z ~ q.

        One draw for all images at a time, so memory does not grow with k. Proof: test_importance_*.
        """
        q = self._code(x)
        total = x.new_full(x.shape[:-3], -math.inf)
        for _ in range(k):
            noise = normal(q.mean.shape, q.mean, generator)
            z = q.mean + (0.5 * q.log_var).exp() * noise
            # ln p(z) − ln q(z | x), where ‖(z − mean)/√var‖² = ‖ε‖²
            log_ratio = 0.5 * (noise.square() + q.log_var - z.square()).sum(-1)
            total = torch.logaddexp(total, self.log_p(self.decoding(z), x) + log_ratio)
        return total - math.log(k)

    def extra_scores(self, x: Episode, generator: Random = None) -> dict[str, Float[Tensor, "*b"]]:
        """The negative of the importance-weighted bound, nats per image."""
        return {f"importance-weighted, k = {DRAWS}": -self.importance(x, DRAWS, generator).mean(-1)}

    def _look(self, state: Nothing, e: DiagonalGaussian) -> Seen:
        """Without a memory, what is read for a code is the code."""
        return Seen(e.mean)

    def _begin(self, state: Nothing, n: int, generator: torch.Generator | None) -> Seen:
        return Seen(normal((len(state.nothing), n, self.config.code), state.nothing, generator))

    def kept(self, length: int) -> int:
        """Nothing."""
        return 0
