"""VAE: a variational autoencoder with the same codec and no memory: the yardstick for how hard images are.

    p(x) = ∫ p(x | z) N(z; 0, I) dz,   q(z | x) = N(mean(x), diag(var(x)))

(Kingma and Welling, 2014; Rezende, Mohamed and Wierstra, 2014). Each image has a code of its own; what was written
changes nothing. The importance-weighted bound is that of Burda, Grosse and Salakhutdinov (2016).
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .. import checks
from .base import CodecModel, CodecModelConfig, Read, Recall, Terms
from .gaussian import Gaussian, normal

# Draws of the importance-weighted bound that is reported: the largest k of Burda et al.'s tables.
DRAWS = 50


@dataclass(frozen=True)
class VAEConfig(CodecModelConfig):
    """A codec around one Gaussian code of C numbers."""

    kind: ClassVar[str] = "vae"


class Nothing(NamedTuple):
    """What the model keeps of images: nothing, for each memory of a batch."""

    nothing: Float[Tensor, "*b 0"]


class VAE(CodecModel):
    """A variational autoencoder. Its encoder puts out 2C numbers: a code's mean, and the logs of its variances."""

    TITLE = "Variational autoencoder"
    METHODS = ("autoencode",)
    LATENT = "z"
    Config = VAEConfig

    config: VAEConfig

    @property
    def encoded(self) -> int:
        return 2 * self.config.code

    def posterior(self, x: Float[Tensor, "*b c h w"]) -> Gaussian:
        """q(z | x)."""
        self.check_images(x)
        return Gaussian(*self.through(self.encoder, x, 3, (self.encoded,)).chunk(2, dim=-1))

    def encode(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b C"]:
        """Images to codes: the mean of q(z | x)."""
        return self.posterior(x).mean

    def forward(
        self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None, written: int | None = None
    ) -> Terms:
        """The terms of E_q ln p(x | z) − KL(q(z | x) ‖ p(z)), with one draw z = mean + √var ε; nothing is kept."""
        self.check_images(x, "T")
        self.first(x, written, -4)  # which is checked, and changes nothing
        q = self.posterior(x)
        return Terms(self.log_p(self.decode(q.draw(generator)), x), kl_weights=q.kl())

    def given(
        self, state: Nothing, x: Float[Tensor, "*b Q c h w"], generator: torch.Generator | None = None
    ) -> Terms:
        """The same as without a memory."""
        self.check_images(x, "Q")
        self.check_state(state, Nothing, nothing=(0,))
        return self.forward(self.with_batch(x, state.nothing.shape[:-1]), generator)

    def importance(
        self, x: Float[Tensor, "*b c h w"], k: int = DRAWS, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*b"]:
        """The importance-weighted bound on ln p(x), which rises to it with k: ln 1/k Σ p(x, z) / q(z | x), z ~ q.

        One draw for all images at a time, so memory does not grow with k. Proof: test_importance_*.
        """
        checks.count("k", k)
        q = self.posterior(x)
        total = x.new_full(x.shape[:-3], -math.inf)
        for _ in range(k):
            noise = normal(q.mean.shape, q.mean, generator)
            z = q.mean + (0.5 * q.log_var).exp() * noise
            # ln p(z) − ln q(z | x), where ‖(z − mean)/√var‖² = ‖ε‖²
            log_ratio = 0.5 * (noise.square() + q.log_var - z.square()).sum(-1)
            total = torch.logaddexp(total, self.log_p(self.decode(z), x) + log_ratio)
        return total - math.log(k)

    def blank(self, batch: tuple[int, ...] = ()) -> Nothing:
        """As any other of its memories."""
        return Nothing(self.like.new_empty(*batch, 0))

    def extra_scores(
        self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None
    ) -> dict[str, Float[Tensor, "*b"]]:
        """The negative of the importance-weighted bound, nats per image."""
        return {f"importance-weighted, k = {DRAWS}": -self.importance(x, DRAWS, generator).mean(-1)}

    def write(self, x: Float[Tensor, "*b T c h w"], state: Nothing | None = None) -> Nothing:
        """Keep nothing."""
        self.check_images(x, "T")
        if state is not None:
            self.check_state(state, Nothing, nothing=(0,))
            x = self.with_batch(x, state.nothing.shape[:-1])
        return Nothing(x.new_empty(*x.shape[:-4], 0))

    def recall(
        self,
        state: Nothing,
        x: Float[Tensor, "*b Q c h w"],
        steps: int = 15,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        """x ← mode p(x | z = mean of q(z | x)), iterated."""
        self.check_recall(x, steps, method, options)
        self.check_state(state, Nothing, nothing=(0,))
        x = self.with_batch(x, state.nothing.shape[:-1])
        return self.iterate((self.encode(x), None), itself, steps)

    def sample(
        self,
        state: Nothing,
        n: int,
        steps: int = 15,
        generator: torch.Generator | None = None,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        """Draw images: the first step decodes z ~ N(0, I), the others are recall."""
        self.check_sample(n, steps, generator, method, options)
        self.check_state(state, Nothing, nothing=(0,))
        z = normal((*state.nothing.shape[:-1], n, self.config.code), state.nothing, generator)
        return self.iterate((z, None), itself, steps)

    def kept(self, length: int) -> int:
        """Nothing."""
        return 0


def itself(z: Float[Tensor, "*b Q C"]) -> Read:
    """Without a memory, what is read for a code is the code."""
    return z, None
