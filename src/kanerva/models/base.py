"""What every command asks of a model of images, and the door through which it asks.

A public method checks its arguments, gives images and memories one batch axis, calls a hook, and restores the axes.
A hook therefore sees (B, T, channels, height, width) and a State of tensors (B, …), both right. A rival is a
config, a State, a few hooks and `kept`; CONTRIBUTING prints one whole.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..codec import CodecConfig, Decoder, Encoder, start_linear
from ..data import ClassImages, episodes
from ..likelihood import Bernoulli, Correlated, Gaussian, Likelihood
from ..recall.retriever import Hints as Hints
from ..recall.retriever import StoredImages
from ..recall.trajectory import Recall as Recall
from ..recall.trajectory import Snapshot, follow
from ..support import checks, tensors
from ..support.checks import Count, CountOrNone, Random, Sizes
from ..support.configs import to_dict
from ..support.door import public, read_all
from ..support.pixels import LEVEL, dequantise
from ..support.say import nearest


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

    def check(self) -> None:
        """Refuse settings that do not apply to such images."""

    @classmethod
    def of_kind(cls, kind: str) -> "type[BaseConfig]":
        """The config of another kind of model."""
        return find(kind).Config


Pixels = Literal["points", "levels"]


@dataclasses.dataclass(frozen=True)
class CodecModelConfig(BaseConfig):
    """A model whose images go through a codec."""

    code: int = 100
    """C, the size of a code."""
    scale: Literal["one", "pixel", "colour"] = "one"
    """Standard deviations of the gaussian likelihood: one for all pixels (the paper); for every pixel and channel
    its own, from the decoder; or these and the correlations between a pixel's channels (colour)."""
    pixels: Pixels = "points"
    """How grey and colour pixels are scored: by the density at a point drawn from their grey level (the paper), or
    by the probability of the level, which costs less where pixels are predicted well."""
    codec: CodecConfig = dataclasses.field(default_factory=CodecConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, code=1)

    def check(self) -> None:
        """Refuse what binary images have no use for; a model is checked when it is made, a run before."""
        came = {"scale": self.scale, "pixels": self.pixels, "linear": self.codec.linear}
        usual = {"scale": "one", "pixels": "points", "linear": False}
        for name, value in came.items() if self.binary else ():
            if value != usual[name]:
                raise ValueError(f"{name}: expected {usual[name]} for binary images, got {value}")

    @property
    def min_scale(self) -> float:
        """Least standard deviation of the gaussian likelihood; a grey level is 1/128 wide.

        Scored by levels, it is just above √(LEVEL² / 12 + SURE²), below which levels take no notice of it.
        """
        return 0.0025 if self.pixels == "levels" else LEVEL

    @property
    def spread(self) -> tuple[int, int]:
        """How many scales, and how many correlations, the decoder puts out for each pixel beside its mean."""
        channels = self.image[0]
        if self.binary or self.scale == "one":
            return 0, 0
        return channels, channels * (channels - 1) // 2 if self.scale == "colour" else 0


class Terms(NamedTuple):
    """The terms of a bound on ln p(x₁ … x_T), in nats; None: the model has no such term."""

    log_lik: Float[Tensor, "*b T"]
    """ln p(x_t | w_t, M), or what stands for it, with one draw of w."""
    log_lik_auto: Float[Tensor, "*b T"] | None = None
    """ln p(x_t | decoder(encoder(x_t))), for L_AE [eq. ll:ae]."""
    kl_weights: Float[Tensor, "*b T"] | None = None
    """KL of what is inferred for each image: of w_t, or of another model's latent."""
    kl_memory: Float[Tensor, "*b"] | None = None
    """KL(q(M) ‖ p(M))."""

    def bound(self) -> Float[Tensor, "*b"]:
        """The bound on ln p(x_1, …, x_T) of each episode, in nats; for the DKM, the paper's estimate [eq. elbo].

            L_T = Σ_t ( ln p(x_t | w_t, M) − KL(w_t) ) − KL(M)

        with one draw of w, and R_T for M. B_T has the same form with the terms of `DKM.online` [eq. B_def]. A term
        that a model does not have is left out.
        """
        total = -self.each().sum(-1)
        return total if self.kl_memory is None else total - self.kl_memory

    def loss(self, autoencoder: float = 1.0) -> Float[Tensor, ""]:
        """What training descends: −(L_T / T + a L_AE), nats per image, mean over episodes [eq. obj, eq. ll:ae].

        a, `autoencoder`, is 1 in the paper; with 0, L_AE may be infinite.
        """
        per_image = self.bound() / self.log_lik.shape[-1]
        if autoencoder and self.log_lik_auto is not None:
            per_image = per_image + autoencoder * self.log_lik_auto.mean(-1)
        return -per_image.mean()

    def each(self) -> Float[Tensor, "*b T"]:
        """What each image costs given the memory: −ln p(x_t | w_t, M) + KL(w_t)."""
        return -self.log_lik if self.kl_weights is None else self.kl_weights - self.log_lik

    def nats(self) -> Float[Tensor, "*b"]:
        """The reported score: nats per image given the memory, KL(M) left out, lower is better [sec. 4]."""
        return self.each().mean(-1)

    def parts(self) -> dict[str, Float[Tensor, "*b"]]:
        """The means of NAMES over each episode, of those that the model has."""
        found = {
            "nats": self.nats(),
            "reconstruction": -self.log_lik.mean(-1),
            "kl_weights": None if self.kl_weights is None else self.kl_weights.mean(-1),
            "kl_memory": None if self.kl_memory is None else self.kl_memory / self.log_lik.shape[-1],
            "autoencoder": None if self.log_lik_auto is None else -self.log_lik_auto.mean(-1),
        }
        return {name: value for name, value in found.items() if value is not None}


NAMES = ("nats", "reconstruction", "kl_weights", "kl_memory", "autoencoder")
"""What is reported of an episode, in nats per image (`Terms.parts`)."""


class Seen(NamedTuple):
    """What one look at a memory gives: the code that is decoded, and the weights where there are any."""

    z: Float[Tensor, "B Q C"]
    w: Float[Tensor, "B Q K"] = None  # type: ignore[assignment]  # as in Snapshot


class Preparation(NamedTuple):
    """How a run is to compute."""

    codec_dtype: torch.dtype | None
    """bfloat16 runs the codec in it; None leaves it as it is."""
    compiled: bool
    """Whether to compile the codec."""
    write: str
    """How an episode is written into the memory: a backend of `kanerva.kernels`, or auto."""
    drawn: bool = False
    """Whether a loss reads from memories that are drawn from q(M), not from their means."""


def pixels(name: str, x: Tensor, call: checks.Call) -> None:
    """Images are in the range that the model has for them."""
    config = call.owner.config
    checks.finite(name, x, call)
    low, high = (0.0, 1.0) if config.binary else (-1.5, 1.5)
    if call.deep and x.numel() and not (x.detach().amin() >= low and x.detach().amax() <= high):
        wanted = "[0, 1]" if config.binary else "about [−1, 1]"
        came = f"{float(x.amin()):.3g} to {float(x.amax()):.3g}"
        raise ValueError(f"{name}: expected pixels on {wanted} for a {config.likelihood} likelihood, got {came}")


Images = Annotated[Float[Tensor, "*b c h w"], pixels]
Episode = Annotated[Float[Tensor, "*#b T c h w"], pixels]
Cues = Annotated[Float[Tensor, "*#b Q c h w"], pixels]
PixelMask = Annotated[Float[Tensor, "... h w"] | Bool[Tensor, "... h w"], checks.trusts] | None
"""Which pixels to trust (1) or not (0), of any leading axes that fit the cues."""


class Model(nn.Module, ABC):
    """A memory for images: write a set of them, recall them from cues, draw more like them.

    A subclass has a config, a State (a NamedTuple of annotated tensors that begin with the batch axes), a few of
    the hooks below, and `kept`. One line in `kanerva.MODELS` makes it known to every command.
    """

    TITLE: ClassVar[str]
    """Its full name, for people."""
    METHODS: ClassVar[tuple[str, ...]]
    """The names of its recalls, the best first; `recall` takes the first where none is named."""
    READ: ClassVar[str | None] = None
    """The recall whose first step is one plain read of the memory; None: the first of METHODS."""
    LATENT: ClassVar[str] = "w"
    """The letter of what it infers for each image: w for weights, z for a code."""
    BOUNDS: ClassVar[tuple[str, ...]] = ("L",)
    """The bounds that it can be trained by."""
    UNTRAINED: ClassVar[bool] = False
    """Whether it can be used as it is created: it has nothing to train."""
    AUTO: ClassVar[bool] = False
    """Whether L_AE, the error of the codec alone, is in its loss."""
    Config: ClassVar[type[BaseConfig]]
    State: ClassVar[type]
    """What `write` gives."""

    config: BaseConfig

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        read_all(cls)

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

    @property
    def sizes(self) -> dict[str, int]:
        """The axes that the model knows by name."""
        c = self.config
        own = {"C": getattr(c, "code", 0), "K": getattr(c, "rows", 0)}
        return dict(zip("chw", c.image, strict=True)) | {name: size for name, size in own.items() if size}

    # What is asked of a model

    @public(flat=True)
    def forward(self, x: Episode, generator: Random = None, written: int | None = None) -> Terms:
        """Write an episode, read every image of it, and give the terms of the bound.

        `written`: write only so many images, the first ones; the others are read from a memory that has not seen
        them.
        """
        e = self._code(x)
        state, kl_memory = self._store(first(e, written, x.shape[1]), len(x))
        return self._terms(state, x, e, generator)._replace(kl_memory=kl_memory)

    @public(flat=True)
    def write(self, x: Episode, state: Any = None) -> Any:
        """Write images into a memory, a blank one unless `state` says which [alg. 1]."""
        e = self._code(x)
        return self._store(e, len(x))[0] if state is None else self._write(e, state)

    @public(flat=True)
    def given(self, state: Any, x: Cues, generator: Random = None) -> Terms:
        """The terms of reading images from a memory: a bound on ln p(x | state), if others wrote it."""
        return self._terms(state, x, self._code(x), generator)

    @public(flat=True, fold=True)
    def recall(
        self,
        state: Any,
        x: Cues,
        steps: Count = 15,
        method: str | None = None,
        *,
        mask: PixelMask = None,
        noise: float | None = None,
        temperature: float = 1.0,
        generator: Random = None,
        callback: Callable[..., Any] | None = None,
        inside: bool = True,
        contents: StoredImages | None = None,
    ) -> Recall:
        """Clean up cues in `steps` steps; with no method named, by the first of METHODS.

        mask: which pixels to trust (1) or not (0). noise: the share of bits that were flipped, or the variance of
        the noise that was added. temperature: of a chain that draws, from `generator`. callback: called with the
        number of each step and where all cues are. inside, contents: whether to look for stored images in the
        memory itself, and what is known to be there. A method uses the hints that it can.
        """
        hints = Hints(mask, noise, temperature, generator, inside, contents)
        return follow(self._path(state, x, self.method(method), hints), steps, callback)

    @public(flat=True)
    def sample(
        self,
        state: Any,
        n: Count,
        steps: Count = 15,
        generator: Random = None,
        method: str | None = None,
        *,
        temperature: float = 1.0,
        callback: Callable[..., Any] | None = None,
    ) -> Recall:
        """Draw n images like those written, and improve them by the steps of recall."""
        hints = Hints(temperature=temperature, generator=generator)
        return follow(self._drawn(state, n, self.method(method or self.READ), hints), steps, callback)

    @public(flat=True)
    def blank(self, batch: Sizes = ()) -> Any:
        """A memory in which nothing was written."""
        return self._blank(*batch)

    @abstractmethod
    def kept(self, length: int) -> int:
        """How many floats (32 bits each) a memory of `length` images keeps."""

    # Hooks, which see one batch axis; e is what `_code` makes of images, once per call

    def _code(self, x: Float[Tensor, "B T c h w"]) -> Any:
        return x

    @abstractmethod
    def _blank(self, batch: int) -> Any: ...

    @abstractmethod
    def _write(self, e: Any, state: Any) -> Any: ...

    def _store(self, e: Any, batch: int) -> tuple[Any, Float[Tensor, "B"] | None]:
        """Write an episode into a blank memory; with KL(M), where the model has one."""
        return self._write(e, self._blank(batch)), None

    @abstractmethod
    def _terms(self, state: Any, x: Float[Tensor, "B T c h w"], e: Any, generator: Any) -> Terms:
        """The terms of images that are read from a memory: all but KL(M)."""

    @abstractmethod
    def _path(self, state: Any, x: Float[Tensor, "B Q c h w"], method: str, hints: Hints) -> Iterator[Snapshot]:
        """The steps of recall from cues."""

    @abstractmethod
    def _drawn(self, state: Any, n: int, method: str, hints: Hints) -> Iterator[Snapshot]:
        """The steps of sampling: images that are drawn, and recall from there."""

    # What a model may have

    def online(self, x: Episode, intermediate: CountOrNone = 0, generator: Random = None) -> list[Terms]:
        """The terms of the one-pass bound B_T, and of earlier B_t."""
        raise ValueError(f"bound: expected L for {self.config.kind}, which has no one-pass bound B")

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

    def extra_scores(self, x: Episode, generator: Random = None) -> dict[str, Float[Tensor, "*b"]]:
        """Other scores of episodes beside the bound, by name, in nats per image; `evaluate` reports their means."""
        return {}

    def energy_at(self, state: Any, x: Cues) -> Float[Tensor, "*b Q"] | None:
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

    def episodes(
        self,
        images: ClassImages,
        batch: int,
        length: int,
        classes: int | None = None,
        generator: torch.Generator | None = None,
        distinct: bool = False,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> Float[Tensor, "batch length c h w"]:
        """Draw episodes that are to be scored (`data.episodes`), change them if asked to, and dequantise them."""
        x = episodes(images, batch, length, classes, generator, distinct)
        return self.dequantise(x if change is None else change(x), generator)

    def dequantise(
        self, x: Float[Tensor, "*b c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "*b c h w"]:
        """Images to be scored: grey levels are spread over their width, so that a density has something to fit."""
        return x if self.config.binary else dequantise(x, generator)

    def save(self, path: str | Path) -> None:
        """Write the model to one safetensors file, config included; `kanerva.load` reads it."""
        weights = self.state_dict()
        tensors.dtype_of(weights, str(path))  # what could not be loaded is not saved
        tensors.save(path, {f"model.{k}": v for k, v in weights.items()}, {"model": to_dict(self.config)})


MODELS: dict[str, type[Model]] = {}
"""Every model that goes through the harness, by name; models/__init__.py fills it."""


def find(name: str) -> type[Model]:
    """The model of a name; an unknown one is an error."""
    if name not in MODELS:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}, got {name!r}{nearest(name, MODELS)}")
    return MODELS[name]


def first(e: Any, count: int | None, T: int) -> Any:
    """The codes of the first so many images, which are written; all, if None."""
    if count is None:
        return e
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= T:
        raise ValueError(f"written: expected a whole number from 0 to {T}, the images, got {count!r}")
    return tree_map_only(Tensor, lambda a: a[:, :count], e)


# Images whose principal components a codec's matrices start with.
STARTS = 8_192


# What the decoder says of scales and correlations stays within ±BOUND: scales, within e^±4 of their common one.
# Between one grey level and the whole range lies e^5.5.
BOUND = 4.0


def bounded(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """About x where it is small, and never beyond ±BOUND, so that no step is far enough for an overflow."""
    return BOUND * (x / BOUND).tanh()


class Codec(nn.Module):
    """An encoder and a decoder between images and codes. Nothing in it knows of a memory."""

    config: CodecModelConfig

    def __init__(self, config: CodecModelConfig) -> None:
        super().__init__()
        self.config = config
        self.make(config.code)

    def make(self, encoded: int, auto: bool = False) -> None:
        """Make encoder and decoder, with names of their own in a model's state_dict; auto: a loss has L_AE."""
        c = self.config
        c.check()
        self.min_scale = c.min_scale
        self.encoder = Encoder(c.image, encoded, c.codec)
        self.decoder = Decoder(c.image, c.code, c.codec, sum(c.spread), precise=not c.binary)
        if not c.binary:
            # one for all starts at 1; with one for every pixel, near the deviation of images on [−1, 1]
            self.log_scale = nn.Parameter(torch.tensor(-1.0 if any(c.spread) else 0.0))
            if any(c.spread) and auto:
                self.log_scale_auto = nn.Parameter(torch.tensor(-1.0))
        self.codec_dtype: torch.dtype | None = None
        """bfloat16 runs the codec in it; all else stays in float32."""

    def encoding(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b n"]:
        """What the encoder puts out."""
        return self._through(self.encoder, x, 3)

    def decoding(self, z: Float[Tensor, "*b C"]) -> Likelihood:
        """The distribution over images whose logits, or means and what follows them, the decoder puts out.

        scale = min_scale + exp(log_scale + s), where log_scale is learned, and s (0 at first, or for all pixels) is
        the decoder's. So is l, below the diagonal of L: L_ij = l_ij scale_i / scale_j. A step in l is then worth
        the same however sure a channel is, and training is quicker.
        """
        c, out = self.config, self._through(self.decoder, z, 1)
        if c.binary:
            return Bernoulli(out)
        mean, s, lower = out.split((c.image[0], *c.spread), -3)
        if not any(c.spread):
            return Gaussian(mean, self.min_scale + self.log_scale.exp())
        scale = self.min_scale + (self.log_scale + bounded(s)).exp()
        if not lower.shape[-3]:
            return Gaussian(mean, scale)
        s = scale.unbind(-3)
        ratio = torch.stack([s[i] / s[j] for i in range(len(s)) for j in range(i)], -3)
        return Correlated(mean, scale, bounded(lower) * ratio)

    def log_lik(
        self,
        x: Float[Tensor, "*b T c h w"],
        read: Float[Tensor, "*b T C"],
        z: Float[Tensor, "*b T C"],
        pixels: Pixels | None = None,
    ) -> tuple[Float[Tensor, "*b T"], Float[Tensor, "*b T"]]:
        """ln p(x) from what was read, and from the codes themselves (L_AE); one pass of the decoder.

        Where every pixel has a scale of its own, L_AE has one scale for all. A decoder that may say how unsure it
        is of a pixel learns its mean badly: errors count the less, the larger its scale is. It is then by points,
        also where log p(x) is by levels.
        """
        both = self.decoding(torch.stack([read, z]))
        if not any(self.config.spread):
            log_lik, auto = self.log_p(both, x.expand(2, *x.shape), pixels).unbind(0)
            return log_lik, auto
        first = type(both)(*(part[0] for part in both))
        scale = self.min_scale + self.log_scale_auto.exp()
        return self.log_p(first, x, pixels), Gaussian(both.mean[1], scale).log_prob(x)

    def log_p(
        self, p: Likelihood, x: Float[Tensor, "*b c h w"], pixels: Pixels | None = None
    ) -> Float[Tensor, "*b"]:
        """ln p(x) as images are scored: at their points, or by their grey levels."""
        if isinstance(p, Bernoulli) or (pixels or self.config.pixels) == "points":
            return p.log_prob(x)
        return p.log_level(x)

    def begin_with(self, images: ClassImages) -> None:
        """Start the codec's matrices, where it has them, as the principal components of the training images."""
        if self.config.codec.linear:
            some = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:STARTS]
            start_linear(self.encoder, self.decoder, images.images(some.to(images.device)))

    def prepare(self, how: Preparation) -> None:
        """Set the codec's precision, and compile it."""
        self.codec_dtype = how.codec_dtype
        if how.compiled:
            self.encoder.compile()
            self.decoder.compile()

    def _through(
        self, part: Callable[[Tensor], Tensor], x: Float[Tensor, "..."], axes: int
    ) -> Float[Tensor, "..."]:
        """What a part of the codec makes of the last `axes` axes of x, in the precision of the codec."""
        batch, dtype = x.shape[: x.ndim - axes], self.codec_dtype
        with torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            out = part(x.flatten(0, -axes - 1) if batch else x[None])
        return out.to(x.dtype).reshape(*batch, *out.shape[1:])


class CodecModel(Codec, Model):
    """A model whose images go through an encoder and a decoder; by default e is their code.

    One that recalls by looking at its memory again and again has `_look`, and `_begin` for what sampling begins
    with.
    """

    Config = CodecModelConfig

    config: CodecModelConfig

    def __init__(self, config: CodecModelConfig | None = None) -> None:
        Model.__init__(self, config)
        self.make(self._encoded(), self.AUTO)

    @public(flat=True)
    def forward(
        self, x: Episode, generator: Random = None, written: int | None = None, pixels: Pixels | None = None
    ) -> Terms:
        """The terms of the bound, as `Model.forward` gives them.

        pixels: how grey and colour pixels are scored, if not as the config says.
        """
        e = self._code(x)
        state, kl_memory = self._store(first(e, written, x.shape[1]), len(x))
        return self._terms(state, x, e, generator, pixels)._replace(kl_memory=kl_memory)

    @abstractmethod
    def _terms(
        self,
        state: Any,
        x: Float[Tensor, "B T c h w"],
        e: Any,
        generator: torch.Generator | None,
        pixels: Pixels | None = None,
    ) -> Terms: ...

    def _encoded(self) -> int:
        """How many numbers the encoder puts out: the code, unless a model wants more of it."""
        return self.config.code

    @public
    def encode(self, x: Images) -> Float[Tensor, "*b C"]:
        """Images to codes, z = e(x)."""
        return self._code(x)

    @public
    def decode(self, z: Float[Tensor, "*b C"]) -> Likelihood:
        """Codes to distributions over images, p(x | z) = d(z)."""
        return self.decoding(z)

    def _code(self, x: Float[Tensor, "*b c h w"]) -> Any:
        return self.encoding(x)

    def _look(self, state: Any, e: Any) -> Seen:
        """What is read for the codes of cues."""
        raise NotImplementedError

    def _begin(self, state: Any, n: int, generator: torch.Generator | None) -> Seen:
        """What sampling begins with."""
        raise NotImplementedError

    def _path(self, state: Any, x: Float[Tensor, "B Q c h w"], method: str, hints: Hints) -> Iterator[Snapshot]:
        """x ← mode d(what is read for e(x)), again and again."""
        return self._going_on(state, self._look(state, self._code(x)))

    def _drawn(self, state: Any, n: int, method: str, hints: Hints) -> Iterator[Snapshot]:
        return self._going_on(state, self._begin(state, n, hints.generator))

    def _going_on(self, state: Any, seen: Seen) -> Iterator[Snapshot]:
        while True:
            x = self.decoding(seen.z).mode()
            yield Snapshot(x, seen.w)
            seen = self._look(state, self._code(x))
