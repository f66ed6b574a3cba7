"""The Dynamic Kanerva Machine (Wu, Wayne, Gregor and Lillicrap, 2018): a codec around a memory.

    encode    z = e(x)
    write     for each code: find its address in what is there, then condition on both     [alg. 1, sec. 3.2]
    read      q(w | x, M), a draw of w, z = Rᵀw, p(x | z) = d(z)                            [sec. 3.1]
    bound     L_T = Σ_t ( ln p(x_t | w_t, M) − KL(w_t) ) − KL(M)                            [eq. elbo]
    recall    encode, address, decode, and again with what was decoded                      [sec. 3.5]

Only the order is decided here. The mathematics is kanerva.memory; its parameters are those of the layer `memory`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from .. import kernels, memory
from ..data import ClassImages
from ..memory import Inverse, MemoryState, Weights, moments
from ..nn import PAPER, Memory, Writing
from ..recall import frame, methods
from ..recall.retriever import Cue, Hints, Retriever, StoredImages
from ..recall.trajectory import Recall, Snapshot
from ..support import checks
from ..support.checks import Count, CountOrNone, Random, Variance
from ..support.door import public
from . import trust
from .base import CodecModel, CodecModelConfig, Cues, Episode, Images, Pixels, Preparation, Terms, first

STRICT = "M drawn and charged"
"""The extra score that is a strict bound."""

Invert = Callable[[MemoryState, Variance], Inverse]


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


class DKM(CodecModel):
    """The Dynamic Kanerva Machine [sec. 3]: write images into a memory, recall them from cues, draw new ones."""

    TITLE = "Dynamic Kanerva Machine"
    METHODS = tuple(methods.METHODS)
    READ = "least-squares"
    AUTO = True
    BOUNDS = ("L", "strict", "B")
    Config, State = DKMConfig, MemoryState

    config: DKMConfig

    def __init__(self, config: DKMConfig | None = None) -> None:
        super().__init__(config)
        self.memory = Memory(self.config.code, self.config.rows, start=PAPER)
        self.log_weight_var = nn.Parameter(torch.tensor(math.log(0.3)))  # app. B
        if self.config.read_noise != "shared":
            self.log_read_var = nn.Parameter(torch.tensor(0.0))  # as noise_var begins
        if self.config.read_noise == "image":
            trust.begin(self)
        self.drawn = False
        """Whether a loss reads from memories that are drawn from q(M) [bound strict]."""

    @property
    def R0(self) -> Float[Tensor, "K C"]:
        """The mean of the memory before anything is written."""
        return self.memory.R0

    @property
    def prior_var(self) -> Float[Tensor, ""]:
        """σ²_U, the variance of the memory before anything is written."""
        return self.memory.prior_var

    @property
    def noise_var(self) -> Float[Tensor, ""]:
        """σ²_ξ, the variance of codes around what the memory reads."""
        return self.memory.noise_var

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
    def sizes(self) -> dict[str, int]:
        return super().sizes | {"K": self.memory.rows}

    # encode

    def _encoded(self) -> int:
        return self.config.code * (2 if self.config.read_noise == "image" else 1)

    def _code(self, x: Float[Tensor, "*b c h w"]) -> Cue:
        out = self.encoding(x)
        return trust.cue(out) if self.config.read_noise == "image" else Cue(out, out)

    @public
    def cue(self, x: Images) -> Cue:
        """Images to codes, and what a read goes by; with read_noise image also how far it trusts each number."""
        return self._code(x)

    @public
    def encode(self, x: Images) -> Float[Tensor, "*b C"]:
        """Images to codes, z = e(x)."""
        return self._code(x).z

    # write

    def _blank(self, batch: int) -> MemoryState:
        return self.memory.prior((batch,))

    @public(flat=True)
    def write(self, x: Episode, state: MemoryState | None = None, how: Writing | None = None) -> MemoryState:
        """Write images into a memory, a blank one unless `state` says which [alg. 1].

        how: in other rounds or blocks, or with another noise, than the config says.
        """
        return self._write(self._code(x), self._blank(len(x)) if state is None else state, how)

    @property
    def writing(self) -> Writing:
        """How images are written unless it is said."""
        return Writing(self.config.iterations, self.config.block)

    def _write(self, e: Cue, state: MemoryState, how: Writing | None = None) -> MemoryState:
        return self.memory.write(e.z, state, **(how or self.writing)._asdict())

    def _store(self, e: Cue, batch: int, how: Writing | None = None) -> tuple[MemoryState, Float[Tensor, "B"]]:
        state, _, log_det = self.memory.store(e.z, **(how or self.writing)._asdict())
        return state, self.memory.kl(state, log_det)

    # read

    def _weights(self, state: MemoryState, e: Cue, invert: Invert | None = None) -> Weights:
        """q(w | x, M) [app. D]."""
        return self._spread(moments.infer(e.seen, state, self.read_var, e.known, invert or self._invert))

    def _spread(self, q: Weights) -> Weights:
        """One learned variance (the paper), or the covariance of the exact posterior times a learned scale."""
        if self.config.weights == "isotropic":
            return moments.isotropic(q.mean, self.weight_var)
        return moments.scaled(q, self.weight_var)

    def _invert(self, state: MemoryState, noise_var: Variance) -> Inverse:
        """What the reads of one memory share, by the backend that has written it."""
        plain = self.config.iterations > 1 or self.config.block > 1  # written, then, by the reference
        return kernels.inverse(state, noise_var, "reference" if plain else self.memory.backend)

    def _terms(
        self,
        state: MemoryState,
        x: Tensor,
        e: Cue,
        generator: torch.Generator | None,
        pixels: Pixels | None = None,
    ) -> Terms:
        return self._scored(state, x, e.z, self._weights(state, e), generator, pixels)

    def _scored(
        self,
        state: MemoryState,
        x: Tensor,
        z: Tensor,
        q: Weights,
        generator: torch.Generator | None,
        pixels: Pixels | None = None,
    ) -> Terms:
        """The terms of images that are read with q(w), from M ~ q(M) or its mean: all but KL(M)."""
        M = memory.sample(state, generator) if self.drawn and self.training else state.R
        return Terms(*self.log_lik(x, moments.draw(q, generator) @ M, z, pixels), moments.kl_address(q))

    # bound

    @public(flat=True)
    def forward(
        self,
        x: Episode,
        generator: Random = None,
        written: int | None = None,
        pixels: Pixels | None = None,
        how: Writing | None = None,
    ) -> Terms:
        """The terms of L_T: write an episode, and read every image of it [eq. elbo].

        written: write only so many images, the first ones. pixels: as in `CodecModel.forward`. how: as in `write`.
        """
        e = self._code(x)
        state, kl_memory = self._store(first(e, written, x.shape[1]), len(x), how)
        return self._terms(state, x, e, generator, pixels)._replace(kl_memory=kl_memory)

    @public(flat=True)
    def online(self, x: Episode, intermediate: CountOrNone = 0, generator: Random = None) -> list[Terms]:
        """The terms of B_T, and of `intermediate` earlier B_t, in one pass over the episode [app. C, app. F].

            B_t = Σ_{i ≤ t} ( ln p(x_i | w_i, M_t) − KL(w_i) ) − KL(M_t ‖ M_{t−1}) − KL(M_{t−1} ‖ M_0)  [eq. B_def]

        Images are read with the weights that were found while writing, not found again. B_T comes first.
        """
        if self.config.read_noise != "shared":
            raise ValueError(
                f"bound: expected L with read_noise {self.config.read_noise}; B reads as it has written"
            )
        z, T = self._code(x).z, x.shape[1]
        prior = state = self._blank(len(x))
        how = self.writing._asdict()
        w, done, bounds = z.new_zeros(len(x), 0, self.memory.rows), 0, []
        for t in sorted({T * (i + 1) // (intermediate + 1) for i in range(intermediate + 1)} - {0}):
            before, w1, _ = self.memory.store(z[:, done : t - 1], state, **how)
            state, w2, _ = self.memory.store(z[:, t - 1 : t], before, **how)
            w, done = torch.cat([w, w1, w2], 1), t
            inverse = self._invert(state, self.noise_var)
            q = self._spread(moments.spread(w, state, self.noise_var, inverse))
            kl = memory.kl_memory(state, before) + memory.kl_memory(before, prior)
            bounds.append(self._scored(state, x[:, :t], z[:, :t], q, generator)._replace(kl_memory=kl))
        return bounds[::-1]

    @public(flat=True)
    def extra_scores(
        self, x: Episode, generator: Random = None, how: Writing | None = None
    ) -> dict[str, Float[Tensor, "*b"]]:
        """−(Σ ln p(x | w, M) − KL(w) − KL(M)) / T with M drawn from q(M), not its mean: a bound on ln p(X)."""
        e = self._code(x)
        state, kl_memory = self._store(e, len(x), how)
        q = self._weights(state, e)
        M = memory.sample(state, generator)
        read = moments.draw(q, generator) @ M
        terms = Terms(self.log_p(self.decoding(read), x), None, moments.kl_address(q))
        return {STRICT: terms.nats() + kl_memory / x.shape[-4]}

    # recall

    def retriever(self, state: MemoryState) -> Retriever:
        """What recall knows of this model and of memories, inverted once."""
        inverse = self._invert(state, self.read_var)
        # with read_noise image each image has an inverse of its own
        invert = self._invert if self.config.read_noise == "image" else lambda *_: inverse
        return Retriever(
            state,
            self.memory.hyper(),
            self.read_var,
            inverse,
            encode=self._code,
            address=lambda e: self._weights(state, e, invert),
            around=lambda w: self._spread(moments.spread(w, state, self.read_var, inverse)),
            decode=self.decoding,
            binary=self.config.binary,
            image=self.config.image,
            again=self.retriever,
        )

    def _path(self, state: MemoryState, x: Tensor, method: str, hints: Hints) -> Iterator[Snapshot]:
        return methods.recall(self.retriever, state, x, method, hints)

    def _drawn(self, state: MemoryState, n: int, method: str, hints: Hints) -> Iterator[Snapshot]:
        return methods.sample(self.retriever, state, n, method, hints)

    # what one asks of a memory: encode, ask the layer or recall, decode

    @public(flat=True)
    def energy(
        self,
        state: MemoryState,
        x: Float[Tensor, "*#b Q c h w"],
        w: Float[Tensor, "*#b Q K"] | None = None,
    ) -> Float[Tensor, "*b Q"]:
        """The energy of images and weights together, or of images with their own addresses [sec. 3.5].

        Images may be what recall has found, whose pixels may be out of the range of data.
        """
        at = self.retriever(state)
        w = at.find(x) if w is None else w
        return at.energy(at.read(w), x, w)

    @public(flat=True)
    def energy_at(self, state: MemoryState, x: Cues) -> Float[Tensor, "*b Q"]:
        """The energy of images with their own addresses."""
        return self.energy(state, x)

    @public(flat=True)
    def more(self, state: MemoryState, x: Cues, n: Count, generator: Random = None) -> Recall:
        """Draw n new images like some that were written, such as ten of a class: weights spread as theirs are.

        `sample` draws weights from the prior, of any class; this from the mean and the covariance of the examples'.
        """
        if x.shape[1] < 2:
            raise ValueError(f"x: expected at least 2 images, whose spread new ones have, got {x.shape[1]}")
        return methods.more(self.retriever(state), x, n, generator)

    @public(flat=True)
    def contains(self, state: MemoryState, x: Cues) -> Int64[Tensor, "*b Q"]:
        """How often each image was written, 0 for never; −1 where a memory holds too much to know.

        Exact: an image with one other pixel was never written. A memory knows while it holds fewer different images
        than it has rows; with as many, if one of x is among them. The shipped model, 64 memories each of 16, 31 and
        32 images: no answer was wrong or −1, of 5,056 stored, 1,536 others and 1,536 with one pixel changed. With
        33 images all answers were −1, but for 11 stored ones.

        Codes of grey and colour images change little by little with their pixels: one that differs from a stored
        image by a grey level or two may count as that.
        """
        return frame.how_often(self.memory.hyper(), state, self._code(x).z)

    @public
    def contents(
        self, state: Annotated[MemoryState, checks.unfaded], callback: Callable[[int, int], None] | None = None
    ) -> StoredImages:
        """All images of one memory (R of shape K×C), found without a cue, each with its cost: nearly 0 if exact.

        callback: called now and then with the number found so far and the number of different images in there.
        """
        return frame.contents(self.retriever, state, callback)

    @public(flat=True)
    def forget(self, state: MemoryState, x: Cues) -> MemoryState:
        """The memory without these images; one that was never written is an error."""
        return frame.forget(self.memory.hyper(), state, self._code(x).z)

    # the rest

    def kept(self, length: int) -> int:
        """R and U, whatever is written."""
        return self.memory.rows * (self.config.code + self.memory.rows)

    def begin_with(self, images: ClassImages) -> None:
        super().begin_with(images)
        if self.config.read_noise == "image":  # a linear codec has begun with other biases
            trust.alike(self)

    def prepare(self, how: Preparation) -> None:
        """Set the codec's precision, compile it, and say how to write, and from what a loss reads."""
        super().prepare(how)
        self.memory.backend, self.drawn = how.write, how.drawn

    @classmethod
    def says(cls, config: Any, device: str, write: str) -> str:
        """How the memory is written on a device, and why so; and that it has no more rows, if it could not."""
        how = kernels.pick(device, torch.float32, config.rows, config.code, write, config.iterations, config.block)
        said = "write: {} ({})".format(*how)
        if config.rows < config.code:
            return said
        return f"{said}; {config.rows} rows, as many as a code has numbers: more would hold nothing"
