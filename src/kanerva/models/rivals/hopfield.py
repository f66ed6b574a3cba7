"""Hopfield: modern Hopfield retrieval from stored patterns, which are images, or the codes of a trained codec.

    ξ ← Σ_t p_t x_t,   p = softmax_t(−β ‖ξ − x_t‖²)

It starts at the cue and is iterated (Ramsauer et al., Hopfield Networks is All You Need, 2021), here with the L2
similarity (Millidge et al., Universal Hopfield Networks, 2022), which does not prefer large patterns, and finds
more on Omniglot than the dot product or the cosine. The model keeps every pattern, as `nearest` does, and for
large β it *is* `nearest`.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...codec import CodecConfig
from ...data import ClassImages, damage, episodes
from ...recall.trajectory import Snapshot
from ...support import checks
from ...support.door import public
from ...support.pixels import LEVEL
from ..base import BaseConfig, Codec, CodecModel, CodecModelConfig, Cues, Hints, Model, Pixels, Terms
from .nearest import FLIPS, around, draw, filled, mixture, rounded, squares, stored_size, trusted

# β is chosen among these, four a decade: from a blend of all patterns to the most similar one alone. They fall: of
# several that do equally well the largest is taken, which still separates where cues are worse.
BETAS = torch.logspace(3, -3, 25).tolist()
# The recall that β is chosen by: the paper's damage of its denoising figure, and episodes of its length.
CORRUPTION, EPISODES, LENGTH, STEPS = 0.15, 8, 32, 15


@dataclass(frozen=True)
class HopfieldConfig(CodecModelConfig):
    """How sharply similarities are separated, and what the patterns are; a codec is for codes that are stored."""

    kind: ClassVar[str] = "hopfield"

    code: int = 0
    """Size of the codes that are stored; 0 stores the images themselves."""
    beta: float | None = None
    """β of the softmax; None: chosen on training images by `adapt`, and 1 before that."""

    def __post_init__(self) -> None:
        BaseConfig.__post_init__(self)
        checks.fields(self, code=0)
        if self.beta is not None:
            checks.fields(self, beta=1e-6)  # as small as a standard deviation may be
        for name, usual in (("codec", CodecConfig()), ("scale", "one"), ("pixels", "points")):
            if not self.code and (came := getattr(self, name)) != usual:
                raise ValueError(f"{name}: expected {usual} with code 0, which stores images, got {came}")


class Patterns(NamedTuple):
    """All patterns that were written: D pixels each, or a code of D numbers."""

    v: Float[Tensor, "*#b N D"]


class Hopfield(Model):
    """Modern Hopfield retrieval; on codes, a cue is encoded once, and each step's state is decoded to be seen.

    The state stays continuous, and energies are its own. Images of a step are its mode: binary ones are rounded.
    """

    TITLE = "Modern Hopfield network"
    METHODS = ("hopfield",)
    UNTRAINED = True
    Config, State = HopfieldConfig, Patterns

    config: HopfieldConfig
    noise: Float[Tensor, ""]
    beta: Float[Tensor, ""]

    def __init__(self, config: HopfieldConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        self.register_buffer("noise", torch.tensor(FLIPS if c.binary else LEVEL))
        self.register_buffer("beta", torch.tensor(1.0 if c.beta is None else float(c.beta)))
        # it comes trained, from another model
        self.codec = Codec(c).requires_grad_(False) if c.code else None

    @classmethod
    def on(cls, model: Model, **fields: Any) -> "Hopfield":
        """Retrieval on the codes of a trained model, with a copy of its codec; `fields` are those of the config."""
        if not isinstance(model, CodecModel):
            raise ValueError(f"hopfield: expected a model that has a codec, got a {model.config.kind}")
        taken = {field.name: getattr(model.config, field.name) for field in dataclasses.fields(CodecModelConfig)}
        made = cls(HopfieldConfig(**taken, **fields)).to(model.like)
        assert made.codec is not None
        theirs = model.state_dict()
        # an encoder that puts out more than the code (as that of a VAE does) puts the code first
        ours = {
            name: theirs[name][: len(x)] if x.ndim else theirs[name] for name, x in made.codec.state_dict().items()
        }
        made.codec.load_state_dict(ours)
        return made

    @torch.no_grad()
    def adapt(self, images: ClassImages) -> None:
        """Choose β: the one of BETAS with the least recall error, mean (x found − x)², from corrupted cues.

        Cues have 15 % of their bits flipped, or noise of standard deviation 0.15; the same ones every time.
        """
        if self.config.beta is not None:
            return
        generator = torch.Generator(images.device).manual_seed(0)
        x = episodes(images, EPISODES, LENGTH, generator=generator).to(self.like)
        corrupt = damage.flips if self.config.binary else damage.noise
        cue, stored = self.pattern(corrupt(x, CORRUPTION, generator).x), self._code(x)
        errors = []
        for beta in BETAS:
            self.beta.fill_(beta)
            *_, last = itertools.islice(self.steps(cue, stored, torch.ones_like(cue)), STEPS)
            errors.append(float((last.x - x).square().mean()))
        self.beta.fill_(BETAS[errors.index(min(errors))])

    def _code(self, x: Float[Tensor, "B T c h w"]) -> Float[Tensor, "B T D"]:
        """What is stored of images: themselves, as bits or bytes hold them, or their codes."""
        return self.pattern(x if self.codec is not None else rounded(x, self.config.binary))

    def _blank(self, batch: int) -> Patterns:
        return Patterns(self.noise.new_empty(batch, 0, self.size))

    def _write(self, e: Tensor, state: Patterns) -> Patterns:
        """Append patterns."""
        return Patterns(torch.cat([state.v, e], 1))

    def _terms(
        self,
        state: Patterns,
        x: Tensor,
        e: Tensor,
        generator: torch.Generator | None,
        pixels: Pixels | None = None,
    ) -> Terms:
        """ln p(x | memory) = ln 1/N Σ_t p(x | x_t), as for `nearest`; p(x | code_t) is the decoder's."""
        if self.codec is not None:
            return Terms(mixture(self.codec.decoding(state.v), x, (pixels or self.config.pixels) == "levels"))
        stored = state.v.unflatten(-1, self.config.image)
        return Terms(mixture(around(stored, self.noise, self.config.binary), x))

    def _path(self, state: Patterns, x: Tensor, method: str, hints: Hints) -> Iterator[Snapshot]:
        """Iterate the update from cues; Recall.w are the weights p of the patterns.

        A mask, for images: which pixels similarities count, at every step; a code has no pixels.
        """
        cue = self.pattern(x)
        mask = torch.ones_like(cue) if self.codec is not None else trusted(hints.mask, x)
        return self.steps(cue, filled(state.v), mask)

    def _drawn(self, state: Patterns, n: int, method: str, hints: Hints) -> Iterator[Snapshot]:
        """Stored patterns at random, with replacement, then the steps of recall from there."""
        start = draw(filled(state.v), n, hints.generator)
        return self.steps(start, state.v, torch.ones_like(start))

    def steps(
        self, v: Float[Tensor, "B Q D"], patterns: Float[Tensor, "B N D"], mask: Tensor
    ) -> Iterator[Snapshot]:
        """ξ ← Σ_t p_t x_t, again and again. Proof that no step raises the energy: test_the_energy_never_rises."""
        apart, before = squares(v, patterns, mask), None
        while True:
            p = (-self.beta * apart).softmax(-1)
            new = p @ patterns
            after = squares(new, patterns, mask)
            energy = self.energy(after)
            if before is not None:
                # What looks like a rise is a rounding error: nothing is left to gain. The first step is always
                # taken: it also fills in the pixels that the mask does not trust, which the energy does not see.
                rest = energy > before
                new, after = (torch.where(rest[..., None], a, b) for a, b in ((v, new), (apart, after)))
                energy = torch.where(rest, before, energy)
            yield Snapshot(self.picture(new), p, energy)
            v, apart, before = new, after, energy

    def energy(self, apart: Float[Tensor, "*b Q N"]) -> Float[Tensor, "*b Q"]:
        """E(ξ) = −β⁻¹ ln Σ_t exp(−β ‖ξ − x_t‖²), from the squares: each update is a step of EM, which lowers it."""
        return -(-self.beta * apart).logsumexp(-1) / self.beta

    @public(flat=True)
    def energy_at(self, state: Any, x: Cues) -> Float[Tensor, "*b Q"]:
        """The energy of images, or of their codes, as they are."""
        v = self.pattern(x)
        return self.energy(squares(v, filled(state.v), torch.ones_like(v)))

    def kept(self, length: int) -> int:
        """Every image, at a bit a pixel if binary, else a byte; or every code."""
        return length * self.config.code if self.config.code else stored_size(length, self.config)

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {"D": self.size}

    @property
    def size(self) -> int:
        """D, the numbers in a pattern."""
        return self.config.code or math.prod(self.config.image)

    def pattern(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b D"]:
        """What stands for an image: its pixels, or its code."""
        return x.flatten(-3) if self.codec is None else self.codec.encoding(x)

    def picture(self, v: Float[Tensor, "*b D"]) -> Float[Tensor, "*b c h w"]:
        """The most probable image at a state: its pixels, rounded if they are bits, or what is decoded from it."""
        if self.codec is not None:
            return self.codec.decoding(v).mode()
        x = v.unflatten(-1, self.config.image)
        return (x > 0.5).to(x) if self.config.binary else x
