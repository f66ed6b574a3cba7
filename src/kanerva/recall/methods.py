"""Attractor dynamics: energy, recall by three methods, and sampling, with a written memory.

    least-squares   encode, solve, decode, take the mode: the paper's
    descent         infer w from the cue through what corrupted it, then descend the energy in w and x in turn
    stochastic      draw w and x in turn: a Markov chain around the stored patterns

A trajectory always has the steps that were asked for. Once nothing changes any more (in descent: by 0.01 nats), the
rest repeats the last.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .. import checks
from ..memory import MemoryState
from . import descent, search
from .reader import Reader
from .trajectory import Callback, Recall, Snapshot, follow

if TYPE_CHECKING:
    from ..models.dkm import DKM

# Nats: who gains less has arrived.
STILL = 1e-2
# Temperatures and variances beyond this are infinities to float32.
MOST = 1e20


class Options(NamedTuple):
    """What some methods want to know."""

    noise: float | None = None
    mask: Tensor | None = None
    temperature: float = 1.0
    generator: torch.Generator | None = None


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
    steps: int = 15,
    method: str = "least-squares",
    *,
    noise: float | None = None,
    mask: Float[Tensor, "..."] | None = None,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    callback: Callback | None = None,
) -> Recall:
    """Clean up cues, in `steps` steps [sec. 3.5]; each step's energy is that of the pair x, w it ends with.

    noise, mask: for descent, how cues were corrupted: the probability that a bit was flipped (binary images) or the
    variance of noise added (others), estimated for each cue if None; and which pixels to trust (1) or not (0), of
    any shape (…, height, width) that fits x. Descent passes no gradients on.
    temperature, generator: for stochastic; 1 is the model's own chain, 0 is least-squares.
    callback: called after every step that is made, with its number and where all cues are.
    """
    model.check_images(x, "Q")
    check(steps, method, noise, mask, temperature, generator, model, x)
    with plain(method == "descent"):
        at = own(model, state)
        trusted = None if mask is None else copied(mask).to(x).expand(x.shape)
        path = PATHS[method](at, copied(x), Options(noise, trusted, temperature, generator))
        return follow(path, steps, callback)


@checks.full_precision
def sample(
    model: "DKM",
    state: MemoryState,
    n: int,
    steps: int = 15,
    generator: torch.Generator | None = None,
    method: str = "least-squares",
    *,
    temperature: float = 1.0,
    callback: Callback | None = None,
) -> Recall:
    """Draw n patterns from each memory: the first step decodes w ~ p(w), the others are recall [sec. 3.5].

    Descent goes on from the w that was drawn; the other methods from the image.
    """
    checks.count("n", n)
    check(steps, method, None, None, temperature, generator if method == "stochastic" else None)

    def path(at: Reader) -> Iterator[Snapshot]:
        R = at.state.R
        shape = (*R.shape[:-2], n, R.shape[-2])
        first = at.settle(torch.randn(shape, generator=generator, dtype=R.dtype, device=R.device))
        yield first
        if method == "descent":
            yield from fall(at, first)
        else:
            yield from PATHS[method](at, first.x, Options(temperature=temperature, generator=generator))

    with plain(method == "descent"):
        return follow(path(own(model, state)), steps, callback)


def least_squares(at: Reader, x: Float[Tensor, "*b Q c h w"], _: Options) -> Iterator[Snapshot]:
    """w ← address(encoder(x)), x ← mode p(x | decoder(Rᵀw)), until no image changes [sec. 3.5]."""
    while True:
        after = at.settle(at.address(x))
        yield after
        if torch.equal(after.x, x):
            return
        x = after.x


def stochastic(at: Reader, x: Float[Tensor, "*b Q c h w"], options: Options) -> Iterator[Snapshot]:
    """w ~ q(w | x), x ~ p(x | decoder(Rᵀw)): the Markov chain that the paper leaves to the future [sec. 3.5]."""
    temperature, generator = options.temperature, options.generator
    if temperature == 0:
        yield from least_squares(at, x, options)
        return
    while True:
        mean = at.address(x)
        drawn = at.model.draw_weights(mean, at.state, at.inverse, generator)
        w = mean + temperature**0.5 * (drawn - mean)
        likelihood = at.decode(w)
        x = likelihood.tempered(temperature).sample(generator)
        yield Snapshot(x, w, at.energy(likelihood, x, w))


def downhill(at: Reader, x: Float[Tensor, "*b Q c h w"], options: Options) -> Iterator[Snapshot]:
    """Infer w from the cue; every step after that lowers E(x, w), or leaves it."""
    first = at.settle(search.infer(at, x, options.noise, options.mask))
    yield first
    yield from fall(at, first)


def fall(at: Reader, here: Snapshot) -> Iterator[Snapshot]:
    """Lower E(x, w) in w and in x in turn, until nobody gains.

    w by descent, x ← mode p(x | decoder(Rᵀw)), which is the least of E at w. Neither can raise E.
    Proof: test_energy_never_rises.
    """
    H, size = at.curvature().expand(*here.w.shape, -1), torch.ones_like(here.energy)
    rest = torch.zeros_like(here.energy, dtype=torch.bool)
    while not bool(rest.all()):

        def cost(w: Float[Tensor, "*b Q K"], x: Tensor = here.x) -> Float[Tensor, "*b Q"]:
            return at.energy(at.decode(w), x, w)

        point = descent.step(cost, descent.start(cost, here.w, H)._replace(size=size))
        after = at.settle(point.v)
        # where a convolution sums in another order from call to call, what looks like a rise is not taken
        moves = (after.energy <= here.energy) & ~rest
        after = after.where(moves, here)
        yield after
        still = arrived(here.energy, after.energy, point.size)
        if at.model.config.likelihood == "bernoulli":  # other images change a little whenever w does
            still &= (after.x == here.x).flatten(-3).all(-1)
        here, H, size, rest = after, point.H, point.size, rest | still


def arrived(
    before: Float[Tensor, "*b"], after: Float[Tensor, "*b"], size: Float[Tensor, "*b"]
) -> Bool[Tensor, "*b"]:
    """Say who gains no more: a step was taken (its size is 1 again) for next to nothing, or hardly one is left."""
    return ~(before - after >= STILL) & ((size == 1) | (size < 1e-2))


PATHS = {"least-squares": least_squares, "descent": downhill, "stochastic": stochastic}
METHODS = tuple(PATHS)


def check(
    steps: int,
    method: str,
    noise: float | None,
    mask: Tensor | None,
    temperature: float,
    generator: torch.Generator | None,
    model: "DKM | None" = None,
    x: Tensor | None = None,
) -> None:
    """Refuse what a method cannot use, rather than pass over it."""
    checks.count("steps", steps)
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    for name, value in (("noise", noise), ("temperature", temperature)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise TypeError(f"{name}: expected a number, the same for all cues, got {type(value).__name__}")
    if method != "descent" and (noise is not None or mask is not None):
        name = "noise" if noise is not None else "mask"
        raise ValueError(f"{name}: expected none with method {method!r}; only descent knows of a channel")
    if method != "stochastic" and (temperature != 1 or generator is not None):
        name = "temperature" if temperature != 1 else "generator"
        raise ValueError(f"{name}: expected none with method {method!r}; only stochastic draws at random")
    if mask is not None and not isinstance(mask, Tensor):
        raise TypeError(f"mask: expected a tensor, got {type(mask).__name__}")
    if temperature and not 1 / MOST <= temperature <= MOST:
        raise ValueError(f"temperature: expected 0, or a number from {1 / MOST:g} to {MOST:g}, got {temperature}")
    if noise is not None and model is not None:
        most = 0.5 if model.config.likelihood == "bernoulli" else MOST
        if not 0 <= noise < most:
            wanted = (
                "a flip probability from 0 to less than 0.5" if most == 0.5 else f"a variance from 0 to {MOST:g}"
            )
            raise ValueError(f"noise: expected {wanted}, got {noise}")
    if mask is not None and x is not None:
        try:
            shape = torch.broadcast_shapes(mask.shape, x.shape)
        except RuntimeError:
            shape = None
        if shape != x.shape or mask.shape[-2:] != x.shape[-2:]:
            raise ValueError(f"mask: expected a shape that fits {checks.shape(x)}, got {checks.shape(mask)}")
        if checks.deep(mask) and not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError("mask: expected 1 for a pixel to trust and 0 for one that is lost, got other values")


@contextmanager
def plain(always: bool) -> Iterator[None]:
    """Leave inference mode, whose tensors descent cannot use; what it makes carries no graph."""
    if not always:
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def own(model: "DKM", state: MemoryState) -> Reader:
    """A model and a memory that belong together, in tensors that autograd may keep."""
    checks.memory(state, "state")
    checks.same_kind("state.R", state.R, model.R0)
    if model.R0.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("model: expected one made outside of inference mode, which descent has to leave")
    return Reader.of(model, MemoryState(*map(copied, state)).broadcast())


def copied(x: Tensor) -> Tensor:
    """x, as a tensor that autograd may keep."""
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x
