"""DKM: the Dynamic Kanerva Machine. It strings the parts together; no loop over time and no linear algebra here."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import softplus

from .. import checks, kernels, memory, objective
from ..data import ClassImages
from ..memory import Inverse, MemoryState
from ..nn import Parameters
from ..recall import frame, methods
from ..recall.frame import Contents
from ..recall.reader import Reader
from .base import CodecModel, CodecModelConfig, Preparation, Recall, Terms

SHARP = 10.0
"""How sharply trust bends where var comes to 1, beyond which an image would say less than nothing of its code."""
LOG_PRECISION = 0.01, 10.0
"""Bounds of −ln var, and so of trust: 0.01 to e^10. Less, and a number that an image says nothing of could have any
size; more, and float32 would lose what the other numbers say. Trained on Omniglot, 6 % of numbers have the least
trust, where var has no gradient; the most is 6,250."""
GENTLE = 3.0
"""ln noise_var at first with read_noise image; trained on Omniglot, it is still 3.0."""
STRICT = "M drawn and charged"
"""The extra score that is a strict bound."""


@dataclass(frozen=True)
class DKMConfig(CodecModelConfig):
    """A codec around a memory of K rows for codes of C numbers."""

    kind: ClassVar[str] = "dkm"

    rows: int = 32
    """K, the rows of the memory. No more than C are kept, whatever was asked for: other rows would hold nothing."""
    weights: Literal["isotropic", "full"] = "isotropic"
    """Covariance of q(w): one learned variance (the paper), or the exact posterior's times a learned scale."""
    read_noise: Literal["shared", "own", "image"] = "shared"
    """Noise that a read takes codes to have: that of writing (the paper), a learned one of its own, or one that the
    encoder finds for every number of an image's code."""
    iterations: int = 1
    """Address-and-update rounds for each pattern written (the optional step of Algorithm 1)."""
    block: int = 1
    """Patterns addressed against the same memory and written at once; 1 is the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, rows=1, iterations=1, block=1)
        object.__setattr__(self, "rows", min(self.rows, self.code))


class Cue(NamedTuple):
    """What the encoder makes of images."""

    z: Float[Tensor, "*b C"]
    """Their codes, which are written."""
    seen: Float[Tensor, "*b C"]
    """The codes that reads go by: z, or with read_noise image what the image alone says of z."""
    trust: Float[Tensor, "*b C"] | None = None
    """The precision of each number of them, in units of 1 / read_var, as far as a read trusts it. None: 1."""


class Posterior(NamedTuple):
    """q(w) for images that are read from a memory: its mean, KL(q(w) ‖ p(w)), and how to draw from it."""

    mean: Float[Tensor, "*b T K"]
    kl: Float[Tensor, "*b T"]
    draw: Callable[[torch.Generator | None], Float[Tensor, "*b T K"]]


class DKM(CodecModel, Parameters):
    """The Dynamic Kanerva Machine [sec. 3]: write images into a memory, recall them from cues, draw new ones."""

    TITLE = "Dynamic Kanerva Machine"
    METHODS = tuple(methods.METHODS)
    READ = methods.LeastSquares.NAME
    AUTO = True
    BOUNDS = ("L", "strict", "B")
    Config = DKMConfig

    config: DKMConfig

    def __init__(self, config: DKMConfig | None = None) -> None:
        super().__init__(config)
        self.own(self.config.rows, self.config.code)
        self.log_weight_var = nn.Parameter(torch.tensor(math.log(0.3)))  # app. B
        if self.config.read_noise != "shared":
            self.log_read_var = nn.Parameter(torch.tensor(0.0))  # as noise_var begins
        if self.config.read_noise == "image":
            self._begin_as_vae()
        self.backend: str = "auto"
        """How an episode is written; auto takes the fastest that fits."""
        self.drawn = False
        """Whether a loss reads from memories that are drawn from q(M) [bound strict]."""

    @property
    def weight_var(self) -> Float[Tensor, ""]:
        """σ²_w, the variance of q(w) (isotropic), or the scale of its covariance (full)."""
        return self.log_weight_var.exp()

    @property
    def read_var(self) -> Float[Tensor, ""]:
        """The noise that a read takes codes to have when it addresses the memory; the paper's is noise_var.

        Writing wants a large noise, which leaves M uncertain and KL(M) small. A read, from the mean of M alone,
        wants a small one. q(w) may be any distribution. But the less sure M is, the less L_T is a bound: a bound
        would read from M as it is drawn (`extra_scores`).
        """
        return self.noise_var if self.config.read_noise == "shared" else self.log_read_var.exp()

    @property
    def encoded(self) -> int:
        return self.config.code * (2 if self.config.read_noise == "image" else 1)

    def cue(self, x: Float[Tensor, "*b c h w"]) -> Cue:
        """Images to codes and, with read_noise image, how far a read trusts each number of them.

        The encoder then puts out N(mean, var), as that of a VAE: what is known of a code by its image and a prior
        N(0, I). The mean is written. Without the prior it is what the image alone says, which any memory can be
        read with:

            N(mean, var) / N(0, 1) ∝ N(seen, 1 / trust)    trust = 1 / var − 1    seen = mean (1 + 1 / trust)
        """
        self.check_images(x)
        out = self.through(self.encoder, x, 3, (self.encoded,))
        if self.config.read_noise != "image":
            return Cue(out, out)
        mean, log_var = out.chunk(2, dim=-1)
        trust = softplus(-log_var, SHARP).clamp(*LOG_PRECISION).expm1()  # 1 / var − 1, but above 0
        return Cue(mean, mean * (1 + 1 / trust), trust)

    def encode(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b C"]:
        """Images to codes, z = e(x)."""
        return self.cue(x).z

    def posterior(self, state: MemoryState, cue: Cue, inverse: Inverse) -> Posterior:
        """q(w) of images that are read from a memory, whose inverse is at hand.

        With a trust, it is that of each image's own code in a memory of its own (`weighed`), with the noise of all.
        """
        if cue.trust is None:
            return self._around(memory.address(cue.seen, state, self.read_var, inverse), state, inverse)
        own, seen = self.weighed(state, cue)
        q = self.posterior(own, Cue(seen, seen), self.inverse(own))
        return Posterior(q.mean[..., 0, :], q.kl[..., 0], lambda generator: q.draw(generator)[..., 0, :])

    def weighed(self, state: MemoryState, cue: Cue) -> tuple[MemoryState, Float[Tensor, "*b T 1 C"]]:
        """The memory R √a and the code √a seen of each image, where its trust in the numbers of a code is a.

        Noise then has the covariance read_var diag(a)⁻¹. Divided by its root, it is the same for all numbers:

            seen = Rᵀw + ξ        √a seen = (R √a)ᵀ w + ξ',   ξ' ~ N(0, read_var I)
        """
        assert cue.trust is not None
        root = cue.trust.sqrt()[..., None, :]
        own = MemoryState(state.R[..., None, :, :] * root, state.U[..., None, :, :])
        return own, cue.seen[..., None, :] * root

    def write(self, x: Float[Tensor, "*b T c h w"], state: MemoryState | None = None) -> MemoryState:
        """Write images into a memory, a blank one unless `state` says which [alg. 1]."""
        self.check_images(x, "T")
        if state is None:
            state = self.prior(tuple(x.shape[:-4]))
        else:
            self.check_memory(state)
        return self._write(state, self.encode(x))[0]

    def forward(
        self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None, written: int | None = None
    ) -> Terms:
        """Write an episode, read it back with sampled weights, and return the terms of L_T and L_AE [alg. 1]."""
        self.check_images(x, "T")
        cue = self.cue(x)
        state, inverse, kl_memory = self._store(self.first(cue.z, written))
        return self._terms(x, cue, state, inverse, generator, self._draws)._replace(kl_memory=kl_memory)

    def blank(self, batch: tuple[int, ...] = ()) -> MemoryState:
        """The memory before anything is written."""
        return self.prior(batch)

    def extra_scores(
        self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None
    ) -> dict[str, Float[Tensor, "*b"]]:
        """−(Σ ln p(x | w, M) − KL(w) − KL(M)) / T with M drawn from q(M), not its mean: a bound on ln p(X)."""
        cue = self.cue(x)
        state, inverse, kl_memory = self._store(cue.z)
        q = self.posterior(state, cue, inverse)
        read = self._read(state, q, generator, drawn=True)
        terms = Terms(self.log_p(self.decode(read), x), None, q.kl)
        return {STRICT: objective.nats(terms) + kl_memory / x.shape[-4]}

    def given(
        self, state: MemoryState, x: Float[Tensor, "*b Q c h w"], generator: torch.Generator | None = None
    ) -> Terms:
        """The terms of reading images from a memory. If others wrote it, they are a true bound: R is then given."""
        self.check_images(x, "Q")
        self.check_memory(state)
        x = self.with_batch(x, state.R.shape[:-2])
        return self._terms(x, self.cue(x), state, self.inverse(state), generator)

    def online(
        self, x: Float[Tensor, "*b T c h w"], intermediate: int = 0, generator: torch.Generator | None = None
    ) -> list[Terms]:
        """The terms of B_T, and of `intermediate` earlier B_t, in one pass over the episode [app. C, app. F].

        Weights are those found while writing, and KL(M) is KL(M_t ‖ M_{t−1}) + KL(M_{t−1} ‖ prior) [eq. B_def].
        """
        if self.config.read_noise != "shared":
            raise ValueError(
                f"bound: expected L with read_noise {self.config.read_noise}: B reads with the weights of writing"
            )
        self.check_images(x, "T")
        z, T = self.encode(x), x.shape[-4]
        prior = state = self.prior(tuple(x.shape[:-4]))
        w, done, bounds = z.new_zeros(*z.shape[:-2], 0, self.config.rows), 0, []
        for t in sorted({T * (i + 1) // (intermediate + 1) for i in range(intermediate + 1)} - {0}):
            before, w1 = self._write(state, z[..., done : t - 1, :])
            state, w2 = self._write(before, z[..., t - 1 : t, :])
            w, done = torch.cat([w, w1, w2], dim=-2), t
            q = self._around(w, state, self.inverse(state))
            read = self._read(state, q, generator, self._draws)
            kl = memory.kl_memory(state, before) + memory.kl_memory(before, prior)
            bounds.append(Terms(*self.log_lik(x[..., :t, :, :, :], read, z[..., :t, :]), q.kl, kl))
        return bounds[::-1]

    def recall(
        self,
        state: MemoryState,
        x: Float[Tensor, "*b Q c h w"],
        steps: int = 15,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        """Clean up cues by attractor dynamics: a trajectory of `steps` images, weights and energies [sec. 3.5].

        method: descent (knows, or finds out, how cues were corrupted, and never raises the energy; the default),
        least-squares (the paper's) or stochastic. Options: the fields of its class in `recall.methods`, and
        callback, called after every step with its number and where all cues are.
        """
        return methods.recall(self, state, x, steps, self.method(method), **options)

    def sample(
        self,
        state: MemoryState,
        n: int,
        steps: int = 15,
        generator: torch.Generator | None = None,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        """Draw n images like those written: w ~ p(w), then attractor dynamics [sec. 3.5].

        method: least-squares unless another is named. Options: those of `recall` that are not about cues.
        """
        return methods.sample(self, state, n, steps, generator, self.method(method or self.READ), **options)

    def more(
        self, state: MemoryState, x: Float[Tensor, "*b Q c h w"], n: int, generator: torch.Generator | None = None
    ) -> Recall:
        """Draw n new images like some that were written, such as ten of a class: weights spread as theirs are.

        `sample` draws weights from the prior, of any class; this from the mean and the covariance of the examples'.
        """
        return methods.more(self, state, x, n, generator)

    def energy(
        self, state: MemoryState, x: Float[Tensor, "*b Q c h w"], w: Float[Tensor, "*b Q K"]
    ) -> Float[Tensor, "*b Q"]:
        """The energy of images and weights together [sec. 3.5]."""
        return methods.energy(self, state, x, w)

    def contains(self, state: MemoryState, x: Float[Tensor, "*cues Q c h w"]) -> Int64[Tensor, "*b Q"]:
        """How often each image was written, 0 for never; −1 where a memory holds too much to know.

        Exact: an image with one other pixel was never written. A memory knows while it holds fewer different images
        than it has rows; with as many, if one of x is among them. The shipped model, 64 memories each of 16, 31 and
        32 images: no answer was wrong or −1, of 5,056 stored, 1,536 others and 1,536 with one pixel changed. With
        33 images all answers were −1, but for 11 stored ones.

        Codes of grey and colour images change little by little with their pixels: one that differs from a stored
        image by a grey level or two may count as that.
        """
        return frame.contains(self, state, x)

    def contents(self, state: MemoryState, callback: Callable[[int, int], None] | None = None) -> Contents:
        """All images of one memory (R of shape K×C), found without a cue, each with its cost: nearly 0 if exact.

        callback: called now and then with the number found so far and the number of different images in there.
        """
        return frame.contents(self, state, callback)

    def forget(self, state: MemoryState, x: Float[Tensor, "*b Q c h w"]) -> MemoryState:
        """The memory without these images; one that was never written is an error."""
        return frame.forget(self, state, x)

    def inverse(self, state: MemoryState) -> Inverse:
        """(R Rᵀ + read_var I)⁻¹ of a memory: what all reads of it share."""
        plain = self.config.iterations > 1 or self.config.block > 1  # written, then, by the reference
        return kernels.inverse(state, self.read_var, "reference" if plain else self.backend)

    def kl_weights(self, w: Float[Tensor, "*b T K"], inverse: Inverse) -> Float[Tensor, "*b T"]:
        """KL(q(w) ‖ p(w)) for q with mean w and the model's covariance in the memory that `inverse` is of."""
        if self.config.weights == "isotropic":
            return memory.kl_weights(w, self.weight_var)
        return memory.kl_weights_full(w, inverse, self.read_var, self.weight_var)

    def draw_weights(
        self,
        w: Float[Tensor, "*b T K"],
        state: MemoryState,
        inverse: Inverse,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*b T K"]:
        """A reparameterised draw from q(w) with mean w."""
        checks.generator(generator, w.device)
        if self.config.weights == "full":
            return memory.draw_weights_full(w, state, inverse, self.read_var, self.weight_var, generator)
        noise = torch.randn(w.shape, generator=generator, dtype=w.dtype, device=w.device)
        return w + self.weight_var.sqrt() * noise

    def energy_at(self, state: MemoryState, x: Float[Tensor, "*b Q c h w"]) -> Float[Tensor, "*b Q"]:
        """The energy of images with their own addresses."""
        self.check_images(x, "Q")
        at = Reader.of(self, state)
        x = at.cues(x)
        w = at.address(x)
        return at.energy(at.decode(w), x, w)

    def kept(self, length: int) -> int:
        """R and U, whatever is written."""
        return self.config.rows * (self.config.code + self.config.rows)

    def options(self, method: str) -> tuple[str, ...]:
        """What each recall can be told."""
        return (*methods.options_of(method), "callback")

    def prepare(self, how: Preparation) -> None:
        """Set the codec's precision, compile it, and say how to write, and from what a loss reads."""
        super().prepare(how)
        self.backend, self.drawn = how.write, how.drawn

    @classmethod
    def says(cls, config: DKMConfig, device: str, write: str) -> str:
        """How the memory is written on a device, and why so; and that it has no more rows, if it could not."""
        job = kernels.Job(device, torch.float32, config.rows, config.code, config.iterations, config.block)
        said = "write: {} ({})".format(*kernels.choose(job, write))
        if config.rows < config.code:
            return said
        return f"{said}; {config.rows} rows, as many as a code has numbers: more would hold nothing"

    @torch.no_grad()
    def _begin_as_vae(self) -> None:
        """Let each row of a blank memory hold a number of the code.

        With weights full, q(w) in a blank memory is then N(mean, var) of these numbers, and reads are w: a VAE.
        """
        self.R0.copy_(torch.eye(self.config.code)[: self.config.rows])
        self.log_noise_var.fill_(GENTLE)
        if self.config.weights == "full":
            self.log_weight_var.zero_()
        self._trust_alike()

    @torch.no_grad()
    def _trust_alike(self) -> None:
        """Let the encoder say var = ½ of every number, which is a trust of 1."""
        C = self.config.code
        nn.init.zeros_(self.encoder.out.weight[C:])
        nn.init.constant_(self.encoder.out.bias[C:], math.log(0.5))

    def begin_with(self, images: ClassImages) -> None:
        super().begin_with(images)
        if self.config.read_noise == "image":  # a linear codec has begun with other biases
            self._trust_alike()

    def _write(self, state: MemoryState, z: Float[Tensor, "*b T C"]) -> tuple[MemoryState, Float[Tensor, "*b T K"]]:
        return kernels.write(state, z, self.noise_var, *self._how())

    def _store(self, z: Float[Tensor, "*b T C"]) -> tuple[MemoryState, Inverse, Float[Tensor, "*b"]]:
        """Write an episode into a blank memory; what its reads share, and KL(M)."""
        state, _, log_det, inverse = kernels.write_and_invert(
            self.prior(tuple(z.shape[:-2])), z, self.noise_var, *self._how()
        )
        if self.config.read_noise != "shared":  # the inverse is that of writes
            inverse = self.inverse(state)
        return state, inverse, memory.kl_prior(state, self.R0, self.prior_var, log_det)

    @property
    def _draws(self) -> bool:
        """Whether images are read from memories that are drawn."""
        return self.drawn and self.training

    def _how(self) -> tuple[int, int, str]:
        return self.config.iterations, self.config.block, self.backend

    def _around(self, w: Float[Tensor, "*b T K"], state: MemoryState, inverse: Inverse) -> Posterior:
        """q(w) with mean w and the covariance that all images of a memory share."""
        return Posterior(w, self.kl_weights(w, inverse), partial(self.draw_weights, w, state, inverse))

    def _terms(
        self,
        x: Float[Tensor, "*b T c h w"],
        cue: Cue,
        state: MemoryState,
        inverse: Inverse,
        generator: torch.Generator | None,
        drawn: bool = False,
    ) -> Terms:
        """The terms of reading images where their codes are found best: all but KL(M).

        drawn: they are read from M ~ q(M), with the weights that its mean R gives them.
        """
        q = self.posterior(state, cue, inverse)
        return Terms(*self.log_lik(x, self._read(state, q, generator, drawn), cue.z), q.kl)

    def _read(
        self, state: MemoryState, q: Posterior, generator: torch.Generator | None, drawn: bool
    ) -> Float[Tensor, "*b T C"]:
        """Codes Mᵀw with w drawn from q(w), and M from q(M) or its mean R."""
        M = memory.sample(state, generator) if drawn else state.R
        return memory.read(MemoryState(M, state.U), q.draw(generator))
