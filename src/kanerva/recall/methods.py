"""Attractor dynamics: energy, recall by three methods, and sampling, with a written memory.

    least-squares   encode, solve, decode, take the mode: the paper's
    descent         infer w from the cue through what corrupted it, then descend the energy in w and x in turn
    stochastic      draw w and x in turn: a Markov chain around the stored patterns

A trajectory always has the steps that were asked for. Once nothing changes any more (in descent: by 0.01 nats), the
rest repeats the last.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import conv2d, pad

from .. import checks, memory
from ..likelihood import Bernoulli, Likelihood
from ..memory import Inverse, MemoryState
from . import descent
from .trajectory import Callback, Recall, Step

if TYPE_CHECKING:
    from ..models.dkm import DKM

# Steps of the search for a cue's weights: from every start by the cue alone, then with what was written; then from
# the best start. Half as many again gain nothing (30 % flipped, 64 memories: 97.1 % right, these 96.9).
STEPS = 25, 25, 50
# How far weights are shaken in it, as a share of the covariance of w given a code.
SHAKE = 0.5
# Nats: who gains less has arrived.
STILL = 1e-2
# Images drawn from a memory to see what its addresses weigh.
DRAWS = 64
# Temperatures and variances beyond this are infinities to float32.
MOST = 1e20


class Options(NamedTuple):
    """What some methods want to know."""

    noise: float | None = None
    mask: Tensor | None = None
    temperature: float = 1.0
    generator: torch.Generator | None = None


class Memory(NamedTuple):
    """A model and a memory that it has written, inverted once for all cues and steps."""

    model: "DKM"
    state: MemoryState
    inverse: Inverse

    @classmethod
    def of(cls, model: "DKM", state: MemoryState) -> "Memory":
        return cls(model, state, model.inverse(state))

    def decode(self, w: Float[Tensor, "*b Q K"]) -> Likelihood:
        return self.model.decode(memory.read(self.state, w))

    def address(self, x: Float[Tensor, "*b Q c h w"]) -> Float[Tensor, "*b Q K"]:
        return memory.address(self.model.encode(x), self.state, self.model.noise_var, self.inverse)

    def energy(
        self, likelihood: Likelihood, x: Float[Tensor, "*b Q c h w"], w: Float[Tensor, "*b Q K"]
    ) -> Float[Tensor, "*b Q"]:
        return self.model.kl_weights(w, self.inverse) - likelihood.log_prob(x)

    def settle(self, w: Float[Tensor, "*b Q K"]) -> Step:
        """The mode at w, and the energy of the two."""
        likelihood = self.decode(w)
        x = likelihood.mode()
        return Step(x, w, self.energy(likelihood, x, w))


def energy(
    model: "DKM", state: MemoryState, x: Float[Tensor, "*b Q c h w"], w: Float[Tensor, "*b Q K"]
) -> Float[Tensor, "*b Q"]:
    """E(x, w) = −ln p(x | decoder(Rᵀw)) + KL(q(w) ‖ p(w)), with w the mean of q [sec. 3.5]."""
    with checks.deep_checks(False):  # what a model reads may leave the range of pixels
        model.check_images(x, "Q")
    sizes = {"Q": x.shape[-4], "K": model.config.rows}
    checks.tensor("w", w, ("Q", "K"), sizes, like=model.R0, source="images in x, and the model's rows")
    at = Memory.of(model, state)
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

    def path(at: Memory) -> Iterator[Step]:
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


def follow(path: Iterator[Step], steps: int, callback: Callback | None) -> Recall:
    """Make the steps of a path; where it ends early, its last step is the rest.

    Cues and memory were looked at; what comes of them is not, step by step (a model may read pixels out of range).
    """
    made: list[Step] = []
    for number in range(steps):
        with checks.deep_checks(False):
            after = next(path, None)
        if after is None:
            break
        made.append(after)
        if callback is not None:
            callback(number, after)
    made += made[-1:] * (steps - len(made))
    return Recall(*map(torch.stack, zip(*made, strict=True)))


def least_squares(at: Memory, x: Float[Tensor, "*b Q c h w"], _: Options) -> Iterator[Step]:
    """w ← address(encoder(x)), x ← mode p(x | decoder(Rᵀw)), until no image changes [sec. 3.5]."""
    while True:
        after = at.settle(at.address(x))
        yield after
        if torch.equal(after.x, x):
            return
        x = after.x


def stochastic(at: Memory, x: Float[Tensor, "*b Q c h w"], options: Options) -> Iterator[Step]:
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
        yield Step(x, w, at.energy(likelihood, x, w))


def downhill(at: Memory, x: Float[Tensor, "*b Q c h w"], options: Options) -> Iterator[Step]:
    """Infer w from the cue; every step after that lowers E(x, w), or leaves it."""
    first = at.settle(infer(at, x, options))
    yield first
    yield from fall(at, first)


def fall(at: Memory, here: Step) -> Iterator[Step]:
    """Lower E(x, w) in w and in x in turn, until nobody gains.

    w by descent, x ← mode p(x | decoder(Rᵀw)), which is the least of E at w. Neither can raise E.
    Proof: test_energy_never_rises.
    """
    H, size = curvature(at).expand(*here.w.shape, -1), torch.ones_like(here.energy)
    rest = torch.zeros_like(here.energy, dtype=torch.bool)
    while not bool(rest.all()):

        def cost(w: Float[Tensor, "*b Q K"], x: Tensor = here.x) -> Float[Tensor, "*b Q"]:
            return at.energy(at.decode(w), x, w)

        point = descent.step(cost, descent.start(cost, here.w, H)._replace(size=size))
        after = at.settle(point.v)
        # where a convolution sums in another order from call to call, what looks like a rise is not taken
        moves = (after.energy <= here.energy) & ~rest
        after = Step(*(torch.where(shaped(moves, a), a, b) for a, b in zip(after, here, strict=True)))
        yield after
        still = arrived(here.energy, after.energy, point.size)
        if at.model.config.likelihood == "bernoulli":  # other images change a little whenever w does
            still &= (after.x == here.x).flatten(-3).all(-1)
        here, H, size, rest = after, point.H, point.size, rest | still


def infer(at: Memory, y: Float[Tensor, "*b Q c h w"], options: Options) -> Float[Tensor, "*b Q K"]:
    """The weights that explain a cue y best, as an image seen through a channel that corrupts.

        E(w; y) = −ln Σ_x p(y | x) p(x | decoder(Rᵀw)) + ½ (‖w‖² − m)² / v + `strangeness`

    with m and v the mean and variance of ‖w‖² for images drawn from the memory. (The prior's ½ ‖w‖² instead would
    shrink what a poor cue leaves open towards what all patterns share: a blank half is then completed by a blank.)
    What is strange to the memory counts only once the cue has said where to look, or every cue would be drawn to
    the pattern that is next to its start.

    What is lowered is the mean of E at w + ε, ε ~ N(0, ½ noise_var P). Weights are sampled in training too, so that
    around those of a stored image all reads are alike, while a point that explains a cue's noise stands alone. (The
    mean of ‖w + ε‖² is more than ‖w‖², so w itself is held to somewhat less than m; a cue's noise enlarges it.)
    This is a search; that no step raises the energy is the promise of what comes after it.

    Bits flipped with probability f: P(y = 1) = (1 − f) p + f (1 − p). Noise added: variances add. Pixels outside
    the mask say nothing. If f, or the variance, is not known, it is one more number to search for. Of several
    starts the one goes on that has come to the least energy.
    Cost, for each cue: 200 evaluations of the decoder with their gradients, 125 of them through the encoder too.
    """
    K, (m, var) = at.state.R.shape[-2], weight(at)
    basis = memory.span(at.state, at.model.R0, at.model.prior_var)

    def cost(v: Float[Tensor, "*b n"], likelihood: Likelihood) -> Float[Tensor, "*b"]:
        seen = likelihood.through(level(likelihood, v, K, options))
        shape = (*v.shape[:-1], *y.shape[-3:])
        mask = None if options.mask is None else options.mask.expand(shape)
        usual = (v[..., :K].square().sum(-1) - m).square() / (2 * var)
        return usual - seen.log_prob(y.expand(shape), mask)

    def by_cue(v: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        return cost(v, at.decode(v[..., :K]))

    def by_both(v: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        likelihood = at.decode(v[..., :K])
        return cost(v, likelihood) + strangeness(at, basis, likelihood)

    v = torch.stack([with_noise(at, w, y, options) for w in guesses(at, y, options.mask)])
    # a memory that is not a number shall not stop the others; below 0 are rounding errors
    values, vectors = torch.linalg.eigh(curvature(at).nan_to_num(0))
    root = (vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT
    shakes = SHAKE**0.5 * same_draws(sum(STEPS), K, seed=1).to(v)
    if options.noise is None:
        # in the logarithm of the noise the curvature is about the number of pixels that deviate
        root = pad(root, (0, 1, 0, 1)) + torch.diag(pad(v.new_full((1,), 0.14), (K, 0)))
        shakes = pad(shakes, (0, 1))
    first, second, third = shakes.split(STEPS)
    v, _ = descent.search(by_cue, v, root, first)
    v, energy = descent.search(by_both, v, root, second)
    best = choice(v, energy.nan_to_num(nan=math.inf).argmin(0))
    return descent.search(by_both, best, root, third, last=0.1)[0][..., :K]


def strangeness(at: Memory, basis: Float[Tensor, "*m n C"], likelihood: Likelihood) -> Float[Tensor, "*b Q"]:
    """How unlike all that was written an image is: what of its code lies outside of their span, in nats.

        ½ ‖z − Πz‖² / noise_var · rank/n,   z = encoder(mean image)

    Codes of up to K stored images lie in the span (`memory.span`, n rows); a blend of them is decoded as an image
    whose code does not. With few patterns the walls between them are steep, and cues would not get over them: hence
    rank/n (8 patterns, 30 % flipped: 97 % right, without it 93 %). With more than K the term is about as large for
    images that were stored as for blends, and changes little.
    """
    z = at.model.encode(likelihood.mean)
    outside = (z - z @ basis.mT @ basis).square().sum(-1)
    written = basis.square().sum((-2, -1)) / basis.shape[-2]
    return written[..., None] * outside / (2 * at.model.noise_var)


def same_draws(n: int, K: int, seed: int) -> Float[Tensor, "n K"]:
    """Standard normal numbers, the same ones every time."""
    return torch.randn(n, K, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32, device="cpu")


def weight(at: Memory) -> tuple[Float[Tensor, "*b 1"], Float[Tensor, "*b 1"]]:
    """Mean and variance of ‖w‖² for the addresses of images drawn from a memory, the same ones every time.

    A memory keeps no addresses, but what it reads has some that weigh the same (trained on Omniglot: 15.7 ± 3.5,
    where those of stored images weigh 14.0 ± 3.9).
    """
    batch, (K, _) = at.state.R.shape[:-2], at.state.R.shape[-2:]
    w = same_draws(DRAWS, K, seed=0).to(at.state.R).expand(*batch, DRAWS, K)
    size = at.address(at.decode(w).mode()).square().sum(-1, keepdim=True)
    return size.mean(-2), size.var(-2).clamp(min=1e-3)


def arrived(
    before: Float[Tensor, "*b"], after: Float[Tensor, "*b"], size: Float[Tensor, "*b"]
) -> Bool[Tensor, "*b"]:
    """Say who gains no more: a step was taken (its size is 1 again) for next to nothing, or hardly one is left."""
    return ~(before - after >= STILL) & ((size == 1) | (size < 1e-2))


def choice(parts: Float[Tensor, "n *b"], which: Tensor) -> Float[Tensor, "*b"]:
    """The part of number `which` for each cue."""
    index = shaped(which, parts[0]).expand_as(parts[0])
    return parts.gather(0, index[None])[0]


def level(likelihood: Likelihood, v: Float[Tensor, "*b Q n"], K: int, options: Options) -> Float[Tensor, "*b Q"]:
    """The noise that was given, or what the last entry of v stands for: f = ½ sigmoid(v), or a variance exp(v)."""
    if options.noise is not None:
        return torch.full_like(v[..., 0], options.noise)
    return 0.5 * v[..., K].sigmoid() if isinstance(likelihood, Bernoulli) else v[..., K].exp()


def with_noise(
    at: Memory, w: Float[Tensor, "*b Q K"], y: Float[Tensor, "*b Q c h w"], options: Options
) -> Float[Tensor, "*b Q n"]:
    """w, and where the noise is to be estimated, a first guess of it: what w leaves unexplained."""
    if options.noise is not None:
        return w
    likelihood = at.decode(w)
    if isinstance(likelihood, Bernoulli):
        wrong = average((y - likelihood.mean).abs(), options.mask)
        guess = torch.special.logit(2 * wrong.clamp(0.02, 0.4))
    else:
        guess = average((y - likelihood.mean).square(), options.mask).clamp(min=1e-4).log()
    return torch.cat([w, guess[..., None]], dim=-1)


def guesses(at: Memory, y: Float[Tensor, "*b Q c h w"], mask: Tensor | None) -> list[Float[Tensor, "*b Q K"]]:
    """Where to begin: the address of the cue, and those of smoother ones, which know less of the noise.

    Least squares shrink addresses, so they are taken larger.
    """
    smooth = blur(y, mask)
    cues = [smooth]
    if at.model.config.likelihood == "bernoulli":
        sharp = (smooth > 0.5).to(y)
        flips = average((y - sharp).abs(), mask).clamp(max=0.45)[..., None, None, None]
        cues = [sharp, ((smooth - flips) / (1 - 2 * flips)).clamp(0, 1)]  # what p was before some flipped
    cues.append(torch.where(trusted(y, mask).bool(), y, cues[0]))
    return [1.5 * at.address(cue) for cue in cues]


def trusted(x: Float[Tensor, "*b c h w"], mask: Tensor | None) -> Float[Tensor, "*b c h w"]:
    """A mask for every pixel of x: all of them where there is none."""
    return torch.ones_like(x) if mask is None else mask.expand_as(x)


def average(x: Float[Tensor, "*b c h w"], mask: Tensor | None) -> Float[Tensor, "*b"]:
    """The mean over an image's trusted pixels."""
    good = trusted(x, mask)
    return (x * good).sum((-3, -2, -1)) / good.sum((-3, -2, -1)).clamp(min=1)


def blur(x: Float[Tensor, "*b c h w"], mask: Tensor | None) -> Float[Tensor, "*b c h w"]:
    """Average over a Gaussian of one pixel's width, over trusted pixels only."""
    good = trusted(x, mask)
    i = torch.arange(-3, 4, dtype=x.dtype, device=x.device)
    window = torch.exp(-0.5 * (i[:, None].square() + i.square()))[None, None]
    size = x.shape[-2:]
    above, below = (conv2d(a.reshape(-1, 1, *size), window, padding=3) for a in (x * good, good))
    return (above / below.clamp(min=1e-6)).reshape(x.shape)


def curvature(at: Memory) -> Float[Tensor, "*b 1 K K"]:
    """A guess of the inverse Hessian in w: the covariance noise_var P of w given a code."""
    H: Tensor = (at.model.noise_var * at.inverse.P)[..., None, :, :]
    return H


PATHS = {"least-squares": least_squares, "descent": downhill, "stochastic": stochastic}
METHODS = tuple(PATHS)


class Mixing(NamedTuple):
    """How well chains mix, from one number per step, such as the energy."""

    autocorrelation: Float[Tensor, "lags"]
    """The mean correlation of steps that are 0, 1, … apart."""
    time: float
    """The integrated autocorrelation time: so many steps are worth one independent draw."""
    effective: float
    """Independent draws that all chains together are worth."""
    r_hat: float
    """Spread of all chains over that within one, 1 when they have forgotten where they began (split R̂)."""


def mixing(values: Float[Tensor, "S *chains"]) -> Mixing:
    """Judge chains by the values they went through; the first tenth is left out.

    time = 1 + 2 Σ ρ_l up to the first pair of lags whose sum is not positive (Geyer's initial sequence).
    """
    if len(values) < 4 or not values[0].numel():
        raise ValueError(f"values: expected at least 4 steps of a chain, got shape {checks.shape(values)}")
    if not bool(values.isfinite().all()):
        raise ValueError("values: expected finite ones, got NaN or infinities")
    chains = values[len(values) // 10 :].double()
    chains = chains.reshape(len(chains), -1)
    S, n = chains.shape
    centred = chains - chains.mean()
    variance = centred.square().mean().clamp(min=torch.finfo(centred.dtype).tiny)
    lags = [(centred[: S - lag] * centred[lag:]).mean() / variance for lag in range(S // 2)]
    correlation = torch.stack(lags)
    pairs = correlation[: 2 * (len(correlation) // 2)].reshape(-1, 2).sum(-1)
    positive = int((pairs > 0).long().cumprod(0).sum())
    time = max(1.0, float(2 * pairs[:positive].sum() - 1))
    parts = chains[: 2 * (S // 2)].reshape(2, S // 2, n)  # halves of chains count as chains
    within, between = parts.var(1).mean(), parts.mean(1).var()
    r_hat = float(((within * (S // 2 - 1) / (S // 2) + between) / within).sqrt())  # infinite for frozen chains
    r_hat = 1.0 if not (within > 0 or between > 0) else r_hat
    return Mixing(correlation, time, S * n / time, r_hat)


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


def own(model: "DKM", state: MemoryState) -> Memory:
    """A model and a memory that belong together, in tensors that autograd may keep."""
    checks.memory(state, "state")
    checks.same_kind("state.R", state.R, model.R0)
    if model.R0.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("model: expected one made outside of inference mode, which descent has to leave")
    return Memory.of(model, MemoryState(*map(copied, state)).broadcast())


def copied(x: Tensor) -> Tensor:
    """x, as a tensor that autograd may keep."""
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x


def shaped(which: Tensor, like: Tensor) -> Tensor:
    """A choice for each cue, with the axes of what is chosen."""
    return which.reshape(*which.shape, *(1,) * (like.ndim - which.ndim))
