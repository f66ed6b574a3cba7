"""Hopfield: modern Hopfield retrieval from stored patterns, which are images, or the codes of a trained codec.

    ξ ← Σ_t p_t x_t,   p = softmax_t(β sim(ξ, x_t))

It starts at the cue and is iterated (Ramsauer et al., Hopfield Networks is All You Need, 2021). The similarity, and
how similarities are separated, are choices (Millidge et al., Universal Hopfield Networks, 2022). The model keeps
every pattern, as `nearest` does. With the L2 similarity, and max in place of softmax, it *is* `nearest`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from .. import checks
from ..codec import CodecConfig
from ..data import ClassImages, damage, episodes
from .base import CodecModel, CodecModelConfig, Model, Recall, Terms
from .nearest import NearestConfig, around, draw, filled, joined, mixture, rounded, squares, stored_size, trusted

# β is chosen among these, four a decade: from a blend of all patterns to the most similar one alone. They fall: of
# several that do equally well the largest is taken, which still separates where cues are worse.
BETAS = torch.logspace(3, -3, 25).tolist()
# The recall that β is chosen by: the paper's corruption of its denoising figure, and episodes of its length.
CORRUPTION, EPISODES, LENGTH, STEPS = 0.15, 8, 32, 15
# What its codec has in common with that of the model that it comes from.
TAKEN = tuple(field.name for field in fields(CodecModelConfig))


@dataclass(frozen=True)
class HopfieldConfig(NearestConfig):
    """What is similar, how similarities are separated, and what the patterns are."""

    kind: ClassVar[str] = "hopfield"

    similarity: Literal["l2", "dot", "cosine"] = "l2"
    """l2: −‖ξ − x‖². dot: ξ·x, which prefers large patterns (much ink). cosine: ξ·x / ‖ξ‖‖x‖."""
    separation: Literal["softmax", "max"] = "softmax"
    """softmax: a blend, the sharper the larger β. max: the most similar pattern alone."""
    beta: float | None = None
    """β of the softmax; None: chosen on training images by `adapt`, and 1 before that."""
    code: int = 0
    """Size of the codes that are stored; 0 stores the images themselves."""
    scale: Literal["one", "pixel", "colour"] = "one"
    """Of codes that are stored: what standard deviations the decoder's gaussian likelihood has."""
    pixels: Literal["points", "levels"] = "points"
    """Of codes that are stored: how grey and colour pixels are scored."""
    codec: CodecConfig = field(default_factory=CodecConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, code=0)
        if self.beta is not None:
            checks.fields(self, beta=1e-6)  # as small as a standard deviation may be
            if self.separation == "max":
                raise ValueError(f"beta: expected none with separation max, which has no β, got {self.beta}")
        if not self.code and self.codec != CodecConfig():
            raise ValueError(f"codec: expected none with code 0, which stores images themselves, got {self.codec}")
        if not self.code and self.scale != "one":
            raise ValueError(f"scale: expected one with code 0, which stores images themselves, got {self.scale}")
        if not self.code and self.pixels != "points":
            raise ValueError(
                f"pixels: expected points with code 0, which stores images themselves, got {self.pixels}"
            )


class Patterns(NamedTuple):
    """All patterns that were written: D pixels each, or a code of D numbers."""

    v: Float[Tensor, "*b N D"]


class Point(NamedTuple):
    """Where all cues are after a step: the state ξ, the weights that made it, its energy where there is one."""

    v: Float[Tensor, "*b Q D"]
    p: Float[Tensor, "*b Q N"]
    energy: Float[Tensor, "*b Q"] | None


class Hopfield(Model):
    """Modern Hopfield retrieval; on codes, a cue is encoded once, and each step's state is decoded to be seen.

    The state stays continuous, and energies are its own. Images of a step are its mode: binary ones are rounded.
    """

    TITLE = "Modern Hopfield network"
    METHODS = ("hopfield",)
    UNTRAINED = True
    Config = HopfieldConfig

    config: HopfieldConfig
    noise: Float[Tensor, ""]
    beta: Float[Tensor, ""]

    def __init__(self, config: HopfieldConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        self.register_buffer("noise", torch.tensor(float(c.flips if c.binary else c.min_scale)))
        self.register_buffer("beta", torch.tensor(1.0 if c.beta is None else float(c.beta)))
        self.codec: CodecModel | None = None
        if c.code:
            self.codec = CodecModel(CodecModelConfig(**{name: getattr(c, name) for name in TAKEN}))
            self.codec.requires_grad_(False)  # it comes trained, from another model

    @classmethod
    def on(cls, model: Model, **fields: Any) -> "Hopfield":
        """Retrieval on the codes of a trained model, with a copy of its codec; `fields` are those of the config."""
        if not isinstance(model, CodecModel):
            raise ValueError(f"hopfield: expected a model that has a codec, got a {model.config.kind}")
        taken = {name: getattr(model.config, name) for name in TAKEN}
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
        if self.config.beta is not None or self.config.separation == "max":
            return
        generator = torch.Generator(images.device).manual_seed(0)
        x = episodes(images, EPISODES, LENGTH, generator=generator).to(self.like)
        corrupt = damage.flips if self.config.binary else damage.noise
        cue, stored = self.pattern(corrupt(x, CORRUPTION, generator).x), self.write(x).v
        errors = []
        for beta in BETAS:
            self.beta.fill_(beta)
            *_, last = self.path(cue, stored, torch.ones_like(cue), STEPS)
            errors.append(float((self.image(last.v) - x).square().mean()))
        self.beta.fill_(BETAS[errors.index(min(errors))])

    def write(self, x: Float[Tensor, "*b T c h w"], state: Patterns | None = None) -> Patterns:
        """Append images, as bits or bytes hold them, or their codes."""
        self.check_images(x, "T")
        new = self.pattern(x if self.codec is not None else rounded(x, self.config.binary))
        if state is None:
            return Patterns(new)
        self.check_state(state, Patterns, v=("N", self.size))
        return Patterns(joined(state.v, new))

    def forward(
        self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None, written: int | None = None
    ) -> Terms:
        """ln p(x | memory) = ln 1/N Σ_t p(x | x_t), as for `nearest`; p(x | code_t) is the decoder's."""
        return self.given(self.write(self.first(x, written, -4)), x)

    def given(
        self, state: Patterns, x: Float[Tensor, "*b Q c h w"], generator: torch.Generator | None = None
    ) -> Terms:
        """ln p(x | memory) of other images too."""
        self.check_images(x, "Q")
        self.check_state(state, Patterns, v=("N", self.size))
        x = self.with_batch(x, state.v.shape[:-2])
        if self.codec is not None:
            return Terms(mixture(self.codec.decode(state.v), x, self.config.pixels == "levels"))
        stored = state.v.unflatten(-1, self.config.image)
        return Terms(mixture(around(stored, self.noise, self.config.binary), x))

    def recall(
        self,
        state: Patterns,
        x: Float[Tensor, "*b Q c h w"],
        steps: int = 15,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        """Iterate the update from cues; Recall.w are the weights p of the patterns.

        Option mask, for images: which pixels similarities count (1) or not (0), at every step, of any shape
        (…, height, width) that fits x.
        """
        self.check_recall(x, steps, method, options)
        self.check_state(state, Patterns, v=("N", self.size))
        checks.broadcastable({"state": state.v.shape[:-2], "x": x.shape[:-4]})
        cue = self.pattern(x)
        mask = torch.ones_like(cue) if options.get("mask") is None else trusted(options["mask"], x)
        return self.trajectory(cue, filled(state.v), mask, steps)

    def sample(
        self,
        state: Patterns,
        n: int,
        steps: int = 15,
        generator: torch.Generator | None = None,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        """Stored patterns at random, with replacement, then the steps of recall from there."""
        self.check_sample(n, steps, generator, method, options)
        self.check_state(state, Patterns, v=("N", self.size))
        start = draw(filled(state.v), n, generator)
        return self.trajectory(start, state.v, torch.ones_like(start), steps)

    def trajectory(
        self, v: Float[Tensor, "*#b Q D"], patterns: Float[Tensor, "*#b N D"], mask: Tensor, steps: int
    ) -> Recall:
        """The steps of a path, and their images."""
        points = list(self.path(v, patterns, mask, steps))
        x, p = torch.stack([self.image(point.v) for point in points]), torch.stack([point.p for point in points])
        energies = [point.energy for point in points if point.energy is not None]
        return Recall(x, p, torch.stack(energies) if energies else None)

    def path(
        self, v: Float[Tensor, "*#b Q D"], patterns: Float[Tensor, "*#b N D"], mask: Tensor, steps: int
    ) -> Iterator[Point]:
        """ξ ← Σ_t p_t x_t, `steps` times. Proof that no step raises the energy: test_the_energy_never_rises."""
        similar, before = self.similar(v, patterns, mask), None
        for _ in range(steps):
            p = self.separate(similar)
            new = p @ patterns
            after = self.similar(new, patterns, mask)
            energy = self.energy(new, after, mask)
            if before is not None and energy is not None:
                # What looks like a rise is a rounding error: nothing is left to gain. The first step is always
                # taken: it also fills in the pixels that the mask does not trust, which the energy does not see.
                rest = energy > before
                new, after = (torch.where(rest[..., None], a, b) for a, b in ((v, new), (similar, after)))
                energy = torch.where(rest, before, energy)
            yield Point(new, p, energy)
            v, similar, before = new, after, energy

    def similar(
        self, v: Float[Tensor, "*#b Q D"], patterns: Float[Tensor, "*#b N D"], mask: Float[Tensor, "*#b Q D"]
    ) -> Float[Tensor, "*b Q N"]:
        """sim(ξ, x_t), over what the mask trusts."""
        if self.config.similarity == "l2":
            return -squares(v, patterns, mask)
        dot: Tensor = (mask * v) @ patterns.mT
        if self.config.similarity == "dot":
            return dot
        norms = ((mask * v * v).sum(-1, keepdim=True) * (mask @ patterns.square().mT)).sqrt()
        return dot / norms.clamp(min=torch.finfo(dot.dtype).tiny)  # a blank image is like nothing

    def separate(self, similar: Float[Tensor, "*b Q N"]) -> Float[Tensor, "*b Q N"]:
        """p = softmax(β sim), or 1 for the most similar pattern."""
        if self.config.separation == "max":
            return one_hot(similar.argmax(-1), similar.shape[-1]).to(similar)
        return (self.beta * similar).softmax(-1)

    def energy(
        self, v: Float[Tensor, "*#b Q D"], similar: Float[Tensor, "*b Q N"], mask: Float[Tensor, "*#b Q D"]
    ) -> Float[Tensor, "*b Q"] | None:
        """What the update lowers.

            l2    E(ξ) = −β⁻¹ ln Σ_t exp(−β ‖ξ − x_t‖²)            the update is a step of EM
            dot   E(ξ) = −β⁻¹ ln Σ_t exp(β ξ·x_t) + ½ ‖ξ‖²         … of the concave-convex procedure

        and their limits for large β with max. For cosine the update is not known to lower one: None.
        """
        if self.config.similarity == "cosine":
            return None
        soft = (
            similar.amax(-1) if self.config.separation == "max" else (self.beta * similar).logsumexp(-1) / self.beta
        )
        return -soft if self.config.similarity == "l2" else 0.5 * (mask * v * v).sum(-1) - soft

    def energy_at(self, state: Patterns, x: Float[Tensor, "*b Q c h w"]) -> Float[Tensor, "*b Q"] | None:
        """The energy of images, or of their codes, as they are."""
        self.check_images(x, "Q")
        self.check_state(state, Patterns, v=("N", self.size))
        checks.broadcastable({"state": state.v.shape[:-2], "x": x.shape[:-4]})
        v = self.pattern(x)
        every = torch.ones_like(v)
        return self.energy(v, self.similar(v, filled(state.v), every), every)

    def kept(self, length: int) -> int:
        """Every image, at a bit a pixel if binary, else a byte; or every code."""
        return length * self.config.code if self.config.code else stored_size(length, self.config)

    def options(self, method: str) -> tuple[str, ...]:
        """Which pixels of a cue to trust; a code has no pixels."""
        return () if self.config.code else ("mask",)

    @property
    def size(self) -> int:
        """D, the numbers in a pattern."""
        return self.config.code or math.prod(self.config.image)

    def pattern(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b D"]:
        """What stands for an image: its pixels, or its code."""
        return x.flatten(-3) if self.codec is None else self.codec.encode(x)

    def image(self, v: Float[Tensor, "*b D"]) -> Float[Tensor, "*b c h w"]:
        """The most probable image at a state: its pixels, rounded if they are bits, or what is decoded from it."""
        if self.codec is not None:
            return self.codec.decode(v).mode()
        x = v.unflatten(-1, self.config.image)
        return (x > 0.5).to(x) if self.config.binary else x
