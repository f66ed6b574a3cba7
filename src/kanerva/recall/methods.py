"""Attractor dynamics: energy, recall by three methods, and sampling, with a written memory.

    descent         look for the stored image in the memory itself; where it is not found, infer w from the cue
                    through what corrupted it, then descend the energy in w and x in turn
    least-squares   encode, solve, decode, take the mode: the paper's
    stochastic      draw w and x in turn: a Markov chain around the stored patterns

A trajectory always has the steps that were asked for. Once nothing changes any more (in descent: by 0.01 nats), the
rest repeats the last. To add a method, write its class here and name it in METHODS.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .. import checks
from ..memory import MemoryState
from . import descent, frame, newton, search
from .reader import Reader, copied
from .trajectory import Callback, Recall, Snapshot, follow

if TYPE_CHECKING:
    from ..models.dkm import DKM

# Nats: who gains less has arrived.
STILL = 1e-2
# Temperatures and variances beyond this are infinities to float32.
MOST = 1e20


@dataclass(frozen=True)
class Method(ABC):
    """A way to recall. Its fields are its options; what they must be is checked beside them."""

    NAME: ClassVar[str]

    def check(self, model: "DKM", x: Float[Tensor, "*b Q c h w"] | None) -> None:
        """Refuse options that do not fit the model and the cues x; x is None where images are drawn."""
        return

    def context(self) -> AbstractContextManager[None]:
        """The mode of PyTorch in which it works."""
        return nullcontext()

    @abstractmethod
    def from_cues(self, at: Reader, x: Float[Tensor, "*b Q c h w"]) -> Iterator[Snapshot]:
        """Recall from images."""

    def from_draw(self, at: Reader, here: Snapshot) -> Iterator[Snapshot]:
        """Go on from weights that were drawn, and the images they read."""
        return self.from_cues(at, here.x)


@dataclass(frozen=True)
class Descent(Method):
    """Infer w from the cue (`infer`); every step after that lowers E(x, w), or leaves it.

    Passes no gradients on. Proof: test_energy_never_rises.
    """

    NAME = "descent"

    noise: float | None = None
    """How cues were corrupted: the probability that a bit was flipped (binary images), or the variance of the noise
    that was added (others); None: it is estimated for each cue."""
    mask: Float[Tensor, "..."] | None = None
    """Which pixels to trust (1) or not (0), of any shape (…, height, width) that fits the cues; None: all."""
    inside: bool = True
    """Look for stored images in the memory itself (`recall.frame`), where it holds no more codes than rows. False:
    infer weights from each cue alone."""
    contents: frame.Contents | None = None
    """What `contents` has found in this one memory (R of shape K×C): recall chooses among these, and searches only
    where some are missing and none of them explains a cue."""

    def __post_init__(self) -> None:
        if self.noise is not None:
            number("noise", self.noise)
        if self.contents is not None and not isinstance(self.contents, frame.Contents):
            raise TypeError(
                f"contents: expected a Contents, as contents(state) gives, got {type(self.contents).__name__}"
            )
        if self.contents is not None and not self.inside:
            raise ValueError("contents: expected none with inside=False, which looks at the cue alone")

    def check(self, model: "DKM", x: Float[Tensor, "*b Q c h w"] | None) -> None:
        if model.R0.is_inference():
            raise RuntimeError("model: expected one made outside of inference mode, which descent has to leave")
        if x is None:
            for name in ("noise", "mask", "contents"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: expected none where images are drawn; it tells of corrupted cues")
            return
        if self.noise is not None and not 0 <= self.noise < (0.5 if model.config.binary else MOST):
            flips, variance = "a flip probability from 0 to less than 0.5", f"a variance from 0 to {MOST:g}"
            raise ValueError(f"noise: expected {flips if model.config.binary else variance}, got {self.noise}")
        if self.mask is not None:
            checks.mask(self.mask, x)
        if self.contents is not None:
            sizes = dict(zip("chw", model.config.image, strict=True))
            checks.tensor(
                "contents.x", self.contents.x, tuple("nchw"), sizes, like=model.R0, source="model's images"
            )

    @contextmanager
    def context(self) -> Iterator[None]:
        """Leave inference mode, whose tensors cannot be differentiated; what is made carries no graph."""
        with torch.inference_mode(False), torch.no_grad():
            yield

    def from_cues(self, at: Reader, x: Float[Tensor, "*b Q c h w"]) -> Iterator[Snapshot]:
        if self.contents is not None and at.state.R.ndim != 2:
            wanted = "expected none for a batch of memories, only for one, R of shape (K, C)"
            raise ValueError(f"contents: {wanted}, got R of shape {tuple(at.state.R.shape)}")
        mask = None if self.mask is None else copied(self.mask).to(x).expand(x.shape)
        nobody = torch.zeros(x.shape[:-3], dtype=torch.bool, device=x.device)
        if not x.numel():
            first, found = at.settle(x.new_zeros(*x.shape[:-3], at.state.R.shape[-2])), nobody
            first = first._replace(certified=nobody if self.inside else None)
        elif self.inside:
            first, found = self.look_inside(at, x, mask)
        else:
            first, found = at.settle(infer(at, x, self.noise, mask)), nobody
        yield first
        yield from self.fall(at, first, found)

    def look_inside(
        self, at: Reader, x: Float[Tensor, "*b Q c h w"], mask: Float[Tensor, "*b Q c h w"] | None
    ) -> tuple[Snapshot, Bool[Tensor, "*b Q"]]:
        """Stored images that explain the cues, and who has one; weights are inferred for the others."""
        # cues that share one memory are searched for together
        batch = () if at.state.R.ndim == 2 else x.shape[:-4]
        flat = at.flat((1, *batch))
        y = x.reshape(len(flat.state.R), -1, *x.shape[-3:])
        m = None if mask is None else mask.reshape(y.shape)
        known = None if self.contents is None else copied(self.contents.x)
        found = frame.recognise(frame.Frames.of(at.model, flat.state), y, m, known)
        w = flat.address(found.x)
        first = Snapshot(found.x, w, flat.energy(flat.decode(w), found.x, w), found.certified)
        rest = (~found.there).any(-1).nonzero()
        if len(rest):
            some, there = flat.some(rest[:, 0]), found.there[rest[:, 0]]
            few = there.int().argsort(dim=-1, stable=True)[
                :, : int((~there).sum(-1).max())
            ]  # in each memory, the others
            inferred = infer(some, y[rest, few], self.noise, None if m is None else m[rest, few])
            first = first.put(rest, few, there.take_along_dim(few, -1), some.settle(inferred))
        return first.unflatten(x.shape[:-3]), found.there.reshape(x.shape[:-3])

    def from_draw(self, at: Reader, here: Snapshot) -> Iterator[Snapshot]:
        return self.fall(at, here, torch.zeros_like(here.energy, dtype=torch.bool))

    def fall(self, at: Reader, here: Snapshot, rest: Bool[Tensor, "*b Q"]) -> Iterator[Snapshot]:
        """Lower E(x, w) in w and in x in turn, until nobody gains; who is at rest stays.

        w by descent, x ← mode p(x | decoder(Rᵀw)), which is the least of E at w. Neither can raise E.
        """
        H, size = at.curvature().expand(*here.w.shape, -1), torch.ones_like(here.energy)
        while not bool(rest.all()):

            def cost(w: Float[Tensor, "*b Q K"], x: Tensor = here.x) -> Float[Tensor, "*b Q"]:
                return at.energy(at.decode(w), x, w)

            point = descent.step(cost, descent.start(cost, here.w, H)._replace(size=size))
            after = at.settle(point.v)
            # where a convolution sums in another order from call to call, what looks like a rise is not taken
            after = after.where((after.energy <= here.energy) & ~rest, here)
            yield after
            still = arrived(here.energy, after.energy, point.size)
            if at.model.config.binary:  # other images change a little whenever w does
                still &= (after.x == here.x).flatten(-3).all(-1)
            here, H, size, rest = after, point.H, point.size, rest | still


@dataclass(frozen=True)
class LeastSquares(Method):
    """w ← address(encoder(x)), x ← mode p(x | decoder(Rᵀw)), until no image changes [sec. 3.5]."""

    NAME = "least-squares"

    def from_cues(self, at: Reader, x: Float[Tensor, "*b Q c h w"]) -> Iterator[Snapshot]:
        while True:
            after = at.settle(at.address(x))
            yield after
            if torch.equal(after.x, x):
                return
            x = after.x


@dataclass(frozen=True)
class Stochastic(Method):
    """w ~ q(w | x), x ~ p(x | decoder(Rᵀw)): the Markov chain that the paper leaves to the future [sec. 3.5]."""

    NAME = "stochastic"

    temperature: float = 1.0
    """1 is the model's own chain, 0 is least-squares."""
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        number("temperature", self.temperature)
        if self.temperature and not 1 / MOST <= self.temperature <= MOST:
            wanted = f"0, or a number from {1 / MOST:g} to {MOST:g}"
            raise ValueError(f"temperature: expected {wanted}, got {self.temperature}")

    def from_cues(self, at: Reader, x: Float[Tensor, "*b Q c h w"]) -> Iterator[Snapshot]:
        if self.temperature == 0:
            yield from LeastSquares().from_cues(at, x)
            return
        while True:
            q = at.posterior(x)
            w = q.mean + self.temperature**0.5 * (q.draw(self.generator) - q.mean)
            likelihood = at.decode(w)
            x = likelihood.tempered(self.temperature).sample(self.generator)
            yield Snapshot(x, w, at.energy(likelihood, x, w))


METHODS: dict[str, type[Method]] = {kind.NAME: kind for kind in (Descent, LeastSquares, Stochastic)}
"""Every method by its name, the best first."""


def options_of(name: str) -> tuple[str, ...]:
    """The names of a method's options."""
    return tuple(field.name for field in dataclasses.fields(METHODS[name]))


def build(name: str, given: dict[str, Any]) -> Method:
    """The method of a name with its options; one that it does not have is an error."""
    checks.options(given, name, {other: options_of(other) for other in METHODS})
    return METHODS[name](**given)


def energy(
    model: "DKM", state: MemoryState, x: Float[Tensor, "*b Q c h w"], w: Float[Tensor, "*b Q K"]
) -> Float[Tensor, "*b Q"]:
    """E(x, w) = −ln p(x | decoder(Rᵀw)) + KL(q(w) ‖ p(w)), with w the mean of q [sec. 3.5]."""
    with checks.deep_checks(False):  # what a model reads may leave the range of pixels
        model.check_images(x, "Q")
    sizes = {"Q": x.shape[-4], "K": model.config.rows}
    checks.tensor("w", w, ("Q", "K"), sizes, like=model.R0, source="images in x, and the model's rows")
    at = Reader.of(model, state)
    return at.energy(at.decode(w), x, w)


@checks.full_precision
def recall(
    model: "DKM",
    state: MemoryState,
    x: Float[Tensor, "*b Q c h w"],
    steps: int,
    method: str,
    *,
    callback: Callback | None = None,
    **options: Any,
) -> Recall:
    """Clean up cues, in `steps` steps [sec. 3.5]; each step's energy is that of the pair x, w it ends with.

    Options are the fields of the method's class. callback: called after every step that is made, with its number
    and where all cues are.
    """
    how = build(method, options)
    model.check_images(x, "Q")
    checks.count("steps", steps)
    how.check(model, x)
    with how.context():
        at = Reader.of(model, state)
        return follow(how.from_cues(at, at.cues(x)), steps, callback)


@checks.full_precision
def sample(
    model: "DKM",
    state: MemoryState,
    n: int,
    steps: int,
    generator: torch.Generator | None,
    method: str,
    *,
    callback: Callback | None = None,
    **options: Any,
) -> Recall:
    """Draw n patterns from each memory: the first step decodes w ~ p(w), the others are recall [sec. 3.5].

    Descent goes on from the w that was drawn; the other methods from the image. A method that draws takes the same
    generator.
    """
    if "generator" in options_of(method):
        options["generator"] = generator
    how = build(method, options)
    checks.count("n", n)
    checks.count("steps", steps)
    checks.generator(generator, model.device)
    how.check(model, None)

    def path(at: Reader) -> Iterator[Snapshot]:
        R = at.state.R
        shape = (*R.shape[:-2], n, R.shape[-2])
        first = at.settle(torch.randn(shape, generator=generator, dtype=R.dtype, device=R.device))
        yield first
        yield from how.from_draw(at, first)

    with how.context():
        return follow(path(Reader.of(model, state)), steps, callback)


@checks.full_precision
def more(
    model: "DKM", state: MemoryState, x: Float[Tensor, "*b Q c h w"], n: int, generator: torch.Generator | None
) -> Recall:
    """Draw n patterns like some examples, which were written: one step, with weights as theirs are spread."""
    checks.count("n", n)
    checks.generator(generator, model.device)
    model.check_images(x, "Q")
    if x.shape[-4] < 2:
        raise ValueError(f"x: expected at least 2 images, whose spread new ones have, got {x.shape[-4]}")
    at = Reader.of(model, state)
    return follow(iter([at.settle(like(at.address(at.cues(x)), n, generator))]), 1, None)


def like(v: Float[Tensor, "*b Q m"], n: int, generator: torch.Generator | None = None) -> Float[Tensor, "*b n m"]:
    """Draw n vectors from the normal distribution that has the mean and the covariance of Q others.

    v̄ + Σ_i ε_i (v_i − v̄) / √(Q − 1),   ε_i ~ N(0, 1)
    """
    mean = v.mean(-2, keepdim=True)
    noise = torch.randn(*v.shape[:-2], n, v.shape[-2], generator=generator, dtype=v.dtype, device=v.device)
    return mean + noise @ (v - mean) / (v.shape[-2] - 1) ** 0.5


def infer(
    at: Reader, y: Float[Tensor, "*b Q c h w"], noise: float | None, mask: Float[Tensor, "*b Q c h w"] | None
) -> Float[Tensor, "*b Q K"]:
    """The weights that explain cues: by a search for bits, by Gauss–Newton for pixels of real values."""
    return (search if at.model.config.binary else newton).infer(at, y, noise, mask)


def arrived(
    before: Float[Tensor, "*b"], after: Float[Tensor, "*b"], size: Float[Tensor, "*b"]
) -> Bool[Tensor, "*b"]:
    """Say who gains no more: a step was taken (its size is 1 again) for next to nothing, or hardly one is left."""
    return ~(before - after >= STILL) & ((size == 1) | (size < 1e-2))


def number(name: str, value: Any) -> None:
    """Check that an option is one number, the same for all cues."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, the same for all cues, got {type(value).__name__}")
