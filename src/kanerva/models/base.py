"""What training, evaluation and experiments ask of any model, and the codec that most of them share."""

import dataclasses
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import checks, storage
from ..codec import CodecConfig, Decoder, Encoder, start_linear
from ..data import ClassImages
from ..fields import to_dict
from ..likelihood import Bernoulli, Correlated, Gaussian, Likelihood
from ..recall.trajectory import Recall as Recall
from ..support.pixels import LEVEL, dequantise
from ..terms import Terms as Terms


@dataclasses.dataclass(frozen=True)
class BaseConfig:
    """What every model knows of its images; a model's own config adds its sizes."""

    kind: ClassVar[str]
    """The model's name in `kanerva.MODELS`."""

    image: tuple[int, int, int] = (1, 28, 28)
    """Channels, height and width of an image; training takes them from the data."""
    likelihood: Literal["bernoulli", "gaussian"] = "bernoulli"
    """bernoulli for binary images, gaussian for grey and colour; training takes it from the data."""

    def __post_init__(self) -> None:
        checks.fields(self, image=1)

    @property
    def binary(self) -> bool:
        """Whether images are binary; otherwise they are grey or colour, on [−1, 1]."""
        return self.likelihood == "bernoulli"

    @classmethod
    def of_kind(cls, kind: str) -> "type[BaseConfig]":
        """The config of another kind of model."""
        from . import find

        return find(kind).Config


@dataclasses.dataclass(frozen=True)
class CodecModelConfig(BaseConfig):
    """A model whose images go through a codec."""

    code: int = 100
    """C, the size of a code."""
    scale: Literal["one", "pixel", "colour"] = "one"
    """Standard deviations of the gaussian likelihood: one for all pixels (the paper); for every pixel and channel
    its own, from the decoder; or these and the correlations between a pixel's channels (colour)."""
    min_scale: float = LEVEL
    """Least standard deviation of the gaussian likelihood; a grey level is 1/128 wide."""
    pixels: Literal["points", "levels"] = "points"
    """How grey and colour pixels are scored: by the density at a point drawn from their grey level (the paper), or
    by the probability of the level, which costs less where pixels are predicted well; set --min-scale 0.0025."""
    codec: CodecConfig = dataclasses.field(default_factory=CodecConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, code=1, min_scale=1e-6)  # any standard deviation that float32 can divide by

    @property
    def spread(self) -> tuple[int, int]:
        """How many scales, and how many correlations, the decoder puts out for each pixel beside its mean."""
        channels = self.image[0]
        if self.binary or self.scale == "one":
            return 0, 0
        return channels, channels * (channels - 1) // 2 if self.scale == "colour" else 0


class Preparation(NamedTuple):
    """How a run is to compute."""

    codec_dtype: torch.dtype | None
    """bfloat16 runs the codec in it; None leaves it as it is."""
    compiled: bool
    """Whether to compile the codec."""
    write: str
    """How an episode is written into the memory: a backend of `kanerva.kernels`, or auto."""


class Model(nn.Module):
    """A memory for images: write a set of them, recall them from cues, draw more like them.

    A subclass says what it is (TITLE, METHODS, Config) and has `forward`, `write`, `recall`, `sample` and `kept`.
    The other methods have defaults. One line in `kanerva.MODELS` makes it known to every command.
    """

    TITLE: ClassVar[str]
    """Its full name, for people."""
    METHODS: ClassVar[tuple[str, ...]]
    """The names of its recalls, the best first; `recall` takes the first where none is named."""
    READ: ClassVar[str | None] = None
    """The recall whose first step is one plain read of the memory; None: the first of METHODS."""
    LATENT: ClassVar[str] = "w"
    """The letter of what it infers for each image: w for weights, z for a code."""
    UNTRAINED: ClassVar[bool] = False
    """Whether it can be used as it is created: it has nothing to train."""
    Config: ClassVar[type[BaseConfig]]

    config: BaseConfig

    def __init__(self, config: BaseConfig | None = None) -> None:
        super().__init__()
        self.config = config if config is not None else self.Config()
        if not isinstance(self.config, self.Config):
            raise TypeError(f"config: expected a {self.Config.__name__}, got {type(config).__name__}")

    @property
    def like(self) -> Tensor:
        """A tensor of the model's own: images and codes must have its dtype and device."""
        return next(chain(self.parameters(), self.buffers()))

    @property
    def device(self) -> torch.device:
        return self.like.device

    @staticmethod
    def first(x: Float[Tensor, "..."], count: int | None, axis: int = -2) -> Float[Tensor, "..."]:
        """The first so many codes (or images) of an episode, which are written; all, if None."""
        if count is None:
            return x
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= x.shape[axis]:
            raise ValueError(
                f"written: expected a whole number from 0 to {x.shape[axis]}, the images, got {count!r}"
            )
        return x.narrow(axis, 0, count)

    @staticmethod
    def with_batch(x: Float[Tensor, "*x Q c h w"], memories: tuple[int, ...]) -> Float[Tensor, "*b Q c h w"]:
        """Images that are to be read from memories of these batch axes, with the batch axes of both."""
        checks.broadcastable({"state": torch.Size(memories), "x": x.shape[:-4]})
        return x.expand(*torch.broadcast_shapes(memories, x.shape[:-4]), *x.shape[-4:])

    # What a model must have

    def forward(
        self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None, written: int | None = None
    ) -> Terms:
        """Write an episode, read every image of it, and return the terms of the bound.

        `written`: write only so many images, the first ones; the others are read from a memory that has not seen
        them.
        """
        raise NotImplementedError

    def write(self, x: Float[Tensor, "*b T c h w"], state: Any = None) -> Any:
        """Write images into a memory, a blank one unless `state` says which; returns a NamedTuple of tensors."""
        raise NotImplementedError

    def recall(
        self, state: Any, x: Float[Tensor, "*b Q c h w"], steps: int = 15, method: str | None = None, **options: Any
    ) -> Recall:
        """Clean up cues in `steps` steps; with no method named, by the first of METHODS."""
        raise NotImplementedError

    def sample(
        self,
        state: Any,
        n: int,
        steps: int = 15,
        generator: torch.Generator | None = None,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        """Draw n images like those written, and improve them by the steps of recall."""
        raise NotImplementedError

    def kept(self, length: int) -> int:
        """How many floats (32 bits each) a memory of `length` images keeps."""
        raise NotImplementedError

    # What a model may have

    def online(
        self, x: Float[Tensor, "*b T c h w"], intermediate: int = 0, generator: torch.Generator | None = None
    ) -> list[Terms]:
        """The terms of the one-pass bound B_T, and of earlier B_t."""
        raise ValueError(f"bound: expected L for {self.config.kind}, which has no one-pass bound B")

    def given(
        self, state: Any, x: Float[Tensor, "*b Q c h w"], generator: torch.Generator | None = None
    ) -> Terms | None:
        """The terms of reading images from a memory, written or new; None where a model has no such bound.

        For images that the memory has not seen, −ln p(x | …) + KL bounds what they cost given the memory.
        """
        return None

    def begin_with(self, images: ClassImages) -> None:
        """Take from the training images what the model is to start with."""

    @torch.no_grad()
    def begin_as(self, other: "Model") -> None:
        """Start with the weights of another model, of this or another kind, as far as they have the same names."""
        own, given = dict(self.named_parameters()), dict(other.named_parameters())
        shared = [name for name in own if name in given]
        if not shared:
            raise ValueError(
                f"start: expected a model that shares weights with a {self.config.kind}, got {other.config.kind}"
            )
        for name in shared:
            if own[name].shape != given[name].shape:
                came, wanted = tuple(given[name].shape), tuple(own[name].shape)
                usual = "usual cause: other filters, code, rows, images or read_noise"
                raise ValueError(f"start: expected {name} of shape {wanted}, got {came}; {usual}")
        for name in shared:
            own[name].copy_(given[name])

    def blank(self, batch: tuple[int, ...] = ()) -> Any:
        """A memory in which nothing was written; None where there is no such thing."""
        return None

    def extra_scores(
        self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None
    ) -> dict[str, Float[Tensor, "*b"]]:
        """Other scores of episodes beside the bound, by name, in nats per image; `evaluate` reports their means."""
        return {}

    def options(self, method: str) -> tuple[str, ...]:
        """The names of what a recall can be told: noise, mask, temperature, generator, callback, …"""
        return ()

    def energy_at(self, state: Any, x: Float[Tensor, "*b Q c h w"]) -> Float[Tensor, "*b Q"] | None:
        """The energy of images as they are; None where a model has no energy."""
        return None

    @classmethod
    def on(cls, model: "Model") -> "Model":
        """A model of this class on the codes of another model's codec."""
        raise ValueError(f"{cls.Config.kind}: expected no codec, which it does not use")

    def adapt(self, images: ClassImages) -> None:
        """Take what a model without training needs to know from training images, the same every time."""

    def prepare(self, how: Preparation) -> None:
        """Make ready for training."""

    @classmethod
    def says(cls, config: Any, device: str, write: str) -> str:
        """How a model with this config would compute on a device, for the log of a run; empty: nothing to say."""
        return ""

    # What every model has

    def method(self, name: str | None) -> str:
        """The recall of a name, or the best one; an unknown name is an error."""
        name = self.METHODS[0] if name is None else name
        if name not in self.METHODS:
            raise ValueError(f"method: expected one of {', '.join(self.METHODS)}, got {name!r}")
        return name

    def check_images(self, x: Any, *axes: str) -> None:
        """Check images, with any named axes before them."""
        wanted = ", ".join(("*b", *axes, *map(str, self.config.image)))
        if not isinstance(x, Tensor):
            raise TypeError(f"x: expected a tensor of shape ({wanted}), got {type(x).__name__}")
        if x.ndim < 3 + len(axes) or tuple(x.shape[-3:]) != tuple(self.config.image):
            raise ValueError(f"x: expected images of shape ({wanted}), got {tuple(x.shape)}")
        if x.dtype != self.like.dtype or x.device != self.like.device:
            raise TypeError(
                f"x: expected {self.like.dtype} on {self.like.device} like the model, got {x.dtype} on {x.device}"
            )
        if checks.deep(x):
            low, high = (0.0, 1.0) if self.config.binary else (-1.5, 1.5)
            if x.numel() and not (x.detach().amin() >= low and x.detach().amax() <= high):
                wanted = "[0, 1]" if self.config.binary else "about [−1, 1]"
                raise ValueError(
                    f"x: expected pixels on {wanted} for a {self.config.likelihood} likelihood, got "
                    f"{float(x.amin()):.3g} to {float(x.amax()):.3g}"
                )

    def check_recall(self, x: Any, steps: Any, method: str | None, options: dict[str, Any]) -> None:
        """Check what `recall` was called with, beside its memory."""
        self.check_images(x, "Q")
        checks.count("steps", steps)
        checks.options(options, self.method(method), {name: self.options(name) for name in self.METHODS})
        if options.get("mask") is not None:
            checks.mask(options["mask"], x)

    def check_sample(self, n: Any, steps: Any, generator: Any, method: str | None, options: dict[str, Any]) -> None:
        """Check what `sample` was called with, beside its memory, where it has no options."""
        checks.count("n", n)
        checks.count("steps", steps)
        checks.generator(generator, self.device)
        self.method(method)
        for option in options:
            raise TypeError(f"{option}: expected no option, which sample of {self.config.kind} does not have")

    def check_state(self, state: Any, kind: type, **shapes: tuple[int | str, ...]) -> None:
        """Check that a memory is of the kind that `write` makes, in the model's dtype, on its device, and finite.

        `shapes` has the last axes of its parts, by name: a size, or a letter where any will do.
        """
        if not isinstance(state, kind):
            raise TypeError(f"state: expected the {kind.__name__} that write makes, got {type(state).__name__}")
        for name, x in state._asdict().items():  # type: ignore[attr-defined]
            if not isinstance(x, Tensor):
                raise TypeError(f"state.{name}: expected a tensor, got {type(x).__name__}")
            checks.same_kind(f"state.{name}", x, self.like)
        for name, axes in shapes.items():
            came = tuple(getattr(state, name).shape)
            last = came[len(came) - len(axes) :] if len(came) >= len(axes) else None
            if last is None or any(a != b for a, b in zip(axes, last, strict=True) if isinstance(a, int)):
                raise ValueError(
                    f"state.{name}: expected shape (*b, {', '.join(map(str, axes))}), got {came}; usual cause: a "
                    f"memory that another model has written"
                )
        for name, x in state._asdict().items():  # type: ignore[attr-defined]
            checks.numbers_in(f"state.{name}", x)

    def dequantise(
        self, x: Float[Tensor, "*b c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "*b c h w"]:
        """Images to be scored: grey levels are spread over their width, so that a density has something to fit."""
        return x if self.config.binary else dequantise(x, generator)

    def save(self, path: str | Path) -> None:
        """Write the model to one safetensors file, config included; `kanerva.load` reads it."""
        weights = self.state_dict()
        storage.dtype(weights, str(path))  # what could not be loaded is not saved
        storage.save(path, {f"model.{k}": v for k, v in weights.items()}, {"model": to_dict(self.config)})


# Images whose principal components a codec's matrices start with.
STARTS = 8_192


# What the decoder says of scales and correlations stays within ±BOUND: scales, within e^±4 of their common one.
# Between one grey level and the whole range lies e^5.5.
BOUND = 4.0


def bounded(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """About x where it is small, and never beyond ±BOUND, so that no step is far enough for an overflow."""
    return BOUND * (x / BOUND).tanh()


# A code that was read, and the weights that it was read with, where there are any.
Read = tuple[Tensor, Tensor | None]


class CodecModel(Model):
    """A model whose images go through an encoder and a decoder."""

    AUTO: ClassVar[bool] = False
    """Whether L_AE, the error of the codec alone, is in its loss."""
    Config = CodecModelConfig

    config: CodecModelConfig

    def __init__(self, config: CodecModelConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        if c.binary and c.codec.linear:
            raise ValueError("linear: expected false for binary images, whose logits are no linear map of a code")
        self.encoder = Encoder(c.image, self.encoded, c.codec)
        self.decoder = Decoder(c.image, c.code, c.codec, sum(c.spread), precise=not c.binary)
        if not c.binary:
            # one for all starts at 1; with one for every pixel, near the deviation of images on [−1, 1]
            self.log_scale = nn.Parameter(torch.tensor(-1.0 if any(c.spread) else 0.0))
            if any(c.spread) and self.AUTO:
                self.log_scale_auto = nn.Parameter(torch.tensor(-1.0))
        self.codec_dtype: torch.dtype | None = None
        """bfloat16 runs the codec in it; all else stays in float32."""

    @property
    def encoded(self) -> int:
        """How many numbers the encoder puts out: the code, unless a model wants more of it."""
        return self.config.code

    def encode(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b C"]:
        """Images to codes, z = e(x)."""
        self.check_images(x)
        return self.through(self.encoder, x, 3, (self.config.code,))

    def decode(self, z: Float[Tensor, "*b C"]) -> Likelihood:
        """Codes to distributions over images, p(x | z) = d(z)."""
        checks.tensor("z", z, ("C",), {"C": self.config.code}, like=self.like, source="the model's code size")
        channels, height, width = self.config.image
        return self.likelihood(
            self.through(self.decoder, z, 1, (channels + sum(self.config.spread), height, width))
        )

    def log_lik(
        self, x: Float[Tensor, "*b T c h w"], read: Float[Tensor, "*b T C"], z: Float[Tensor, "*b T C"]
    ) -> tuple[Float[Tensor, "*b T"], Float[Tensor, "*b T"]]:
        """ln p(x) from what was read, and from the codes themselves (L_AE); one pass of the decoder.

        Where every pixel has a scale of its own, L_AE has one scale for all. A decoder that may say how unsure it
        is of a pixel learns its mean badly: errors count the less, the larger its scale is. It is then by points,
        also where log p(x) is by levels.
        """
        both = self.decode(torch.stack([read, z]))
        if not any(self.config.spread):
            log_lik, auto = self.log_p(both, x.expand(2, *x.shape)).unbind(0)
            return log_lik, auto
        first = type(both)(*(part[0] for part in both))
        scale = self.config.min_scale + self.log_scale_auto.exp()
        return self.log_p(first, x), Gaussian(both.mean[1], scale).log_prob(x)

    def log_p(self, p: Likelihood, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b"]:
        """ln p(x) as images are scored: at their points, or by their grey levels."""
        if isinstance(p, Bernoulli) or self.config.pixels == "points":
            return p.log_prob(x)
        return p.log_level(x)

    def iterate(self, first: Read, again: Callable[[Float[Tensor, "*b Q C"]], Read], steps: int) -> Recall:
        """x ← mode p(x | z) of what is read first, then of what is read `again` for the code of x, and so on."""
        images: list[Tensor] = []
        weights: list[Tensor] = []
        with checks.deep_checks(False):  # what a model decodes may leave the range of pixels
            for step in range(steps):
                z, w = again(self.encode(images[-1])) if step else first
                images.append(self.decode(z).mode())
                if w is not None:
                    weights.append(w.expand(*z.shape[:-1], w.shape[-1]))
        return Recall(torch.stack(images), torch.stack(weights) if weights else None)

    def begin_with(self, images: ClassImages) -> None:
        """Start the codec's matrices, where it has them, as the principal components of the training images."""
        if self.config.codec.linear:
            some = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:STARTS]
            start_linear(self.encoder, self.decoder, images.images(some.to(images.device)))

    def likelihood(self, out: Float[Tensor, "*b outputs h w"]) -> Likelihood:
        """The distribution over images whose logits, or means and what follows them, the decoder has put out.

        scale = min_scale + exp(log_scale + s), where log_scale is learned, and s (0 at first, or for all pixels) is
        the decoder's. So is l, below the diagonal of L: L_ij = l_ij scale_i / scale_j. A step in l is then worth
        the same however sure a channel is, and training is quicker.
        """
        c = self.config
        if c.binary:
            return Bernoulli(out)
        mean, s, lower = out.split((c.image[0], *c.spread), -3)
        if not any(c.spread):
            return Gaussian(mean, c.min_scale + self.log_scale.exp())
        scale = c.min_scale + (self.log_scale + bounded(s)).exp()
        if not lower.shape[-3]:
            return Gaussian(mean, scale)
        s = scale.unbind(-3)
        ratio = torch.stack([s[i] / s[j] for i in range(len(s)) for j in range(i)], -3)
        return Correlated(mean, scale, bounded(lower) * ratio)

    def through(
        self, part: Callable[[Tensor], Tensor], x: Float[Tensor, "..."], axes: int, shape: tuple[int, ...]
    ) -> Float[Tensor, "..."]:
        """What a part of the codec makes of the last `axes` axes of x, in the precision of the codec."""
        batch = x.shape[: x.ndim - axes]
        dtype = self.codec_dtype
        with torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            out = part(x.flatten(0, -axes - 1) if batch else x[None])
        return out.to(self.like.dtype).reshape(*batch, *shape)

    def prepare(self, how: Preparation) -> None:
        """Set the codec's precision, and compile it."""
        self.codec_dtype = how.codec_dtype
        if how.compiled:
            self.encoder.compile()
            self.decoder.compile()
