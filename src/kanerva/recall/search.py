"""Inference from a cue of bits: the weights of the stored image that explains it best, through what flipped them.

`infer` is the search. The other functions say what it lowers (`strangeness`, `weight`, `level`) and where it starts
(`guesses`). That no step raises the energy is not its promise, but that of the descent which comes after it.

What is lowered is not the energy of recall, for three reasons. Its prior, ½ ‖w‖², would shrink what a poor cue
leaves open towards what all patterns share: a blank half would be completed by a blank. So ‖w‖² is held near that
of images drawn from the memory. The mean around w is lowered, not the value at w: weights are sampled in training
too, so that around those of a stored image all reads are alike, while a point that explains a cue's noise stands
alone. (The mean of ‖w + ε‖² is more than ‖w‖², so w itself is held to somewhat less; a cue's noise enlarges it.)
And what is strange to the memory costs something, but only once the cue has said where to look: else every cue
would be drawn to the pattern that is next to its start.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad

from .. import memory
from ..likelihood import Likelihood
from . import descent
from .retriever import Retriever
from .watch import tell

# Steps of the search for a cue's weights: from every start by the cue alone, then with what was written; then from
# the best start. Half as many again gain nothing (30 % flipped, 64 memories: 97.1 % right, these 96.9).
STEPS = 25, 25, 50
# How far weights are shaken in it, as a share of the covariance of w given a code.
SHAKE = 0.5
# Images drawn from a memory to see what its addresses weigh.
DRAWS = 64


def infer(
    at: Retriever,
    y: Float[Tensor, "*b Q c h w"],
    noise: float | None = None,
    mask: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b Q K"]:
    """The weights that explain a cue y best, as an image seen through a channel that corrupts.

        E(w; y) = −ln Σ_x p(y | x) p(x | decoder(Rᵀw)) + ½ (‖w‖² − m)² / v + `strangeness`

    with m and v of `weight`. What is lowered is the mean of E at w + ε, ε ~ N(0, ½ read_var P).

    Bits flipped with probability f: P(y = 1) = (1 − f) p + f (1 − p). Pixels outside the mask say nothing. If f is
    not known, it is one more number to search for. Of several starts the one goes on that has come to the least
    energy.
    Cost, for each cue: 200 evaluations of the decoder with their gradients, 125 of them through the encoder too.
    Proof: test_a_known_channel_*.
    """
    K, (m, var) = at.state.R.shape[-2], weight(at)
    basis = memory.span(at.state, at.hyper.R0, at.hyper.prior_var)

    def cost(v: Float[Tensor, "*b n"], likelihood: Likelihood) -> Float[Tensor, "*b"]:
        tell("looking", likelihood.mean)
        seen = likelihood.through(level(v, K, noise))
        shape = (*v.shape[:-1], *y.shape[-3:])
        usual = (v[..., :K].square().sum(-1) - m).square() / (2 * var)
        return usual - seen.log_prob(y.expand(shape), None if mask is None else mask.expand(shape))

    def by_cue(v: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        return cost(v, at.read(v[..., :K]))

    def by_both(v: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        likelihood = at.read(v[..., :K])
        return cost(v, likelihood) + strangeness(at, basis, likelihood)

    v = torch.stack([with_noise(at, w, y, noise, mask) for w in guesses(at, y, mask)])
    # a memory that is not a number shall not stop the others; below 0 are rounding errors
    values, vectors = torch.linalg.eigh(at.curvature().nan_to_num(0))
    root = (vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT
    shakes = SHAKE**0.5 * same_draws(sum(STEPS), K, seed=1).to(v)
    if noise is None:
        # in the logarithm of the noise the curvature is about the number of pixels that deviate
        root = pad(root, (0, 1, 0, 1)) + torch.diag(pad(v.new_full((1,), 0.14), (K, 0)))
        shakes = pad(shakes, (0, 1))
    first, second, third = shakes.split(STEPS)
    v, _ = descent.search(by_cue, v, root, first)
    v, energy = descent.search(by_both, v, root, second)
    best = v.take_along_dim(energy.nan_to_num(nan=math.inf).argmin(0, keepdim=True)[..., None], 0)[0]
    return descent.search(by_both, best, root, third, last=0.1)[0][..., :K]


def strangeness(at: Retriever, basis: Float[Tensor, "*m n C"], likelihood: Likelihood) -> Float[Tensor, "*b Q"]:
    """How unlike all that was written an image is: what of its code lies outside of their span, in nats.

        ½ ‖z − Πz‖² / noise_var · rank/n,   z = encoder(mean image)

    Codes of up to K stored images lie in the span (`memory.span`, n rows); a blend of them is decoded as an image
    whose code does not. With few patterns the walls between them are steep, and cues would not get over them: hence
    rank/n (8 patterns, 30 % flipped: 97 % right, without it 93 %). With more than K the term is about as large for
    images that were stored as for blends, and changes little.
    """
    z = at.encode(likelihood.mean).z
    outside = (z - z @ basis.mT @ basis).square().sum(-1)
    written = basis.square().sum((-2, -1)) / basis.shape[-2]
    return written[..., None] * outside / (2 * at.hyper.noise_var)


def same_draws(n: int, K: int, seed: int) -> Float[Tensor, "n K"]:
    """Standard normal numbers, the same ones every time."""
    return torch.randn(n, K, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32, device="cpu")


def weight(at: Retriever) -> tuple[Float[Tensor, "*b 1"], Float[Tensor, "*b 1"]]:
    """Mean and variance of ‖w‖² for the addresses of images drawn from a memory, the same ones every time.

    A memory keeps no addresses, but what it reads has some that weigh the same (trained on Omniglot: 15.7 ± 3.5,
    where those of stored images weigh 14.0 ± 3.9).
    """
    batch, (K, _) = at.state.R.shape[:-2], at.state.R.shape[-2:]
    w = same_draws(DRAWS, K, seed=0).to(at.state.R).expand(*batch, DRAWS, K)
    size = at.find(at.read(w).mode()).square().sum(-1, keepdim=True)
    return size.mean(-2), size.var(-2).clamp(min=1e-3)


def level(v: Float[Tensor, "*b Q n"], K: int, noise: float | None) -> Float[Tensor, "*b Q"]:
    """The noise that was given, or what the last entry of v stands for: f = ½ sigmoid(v)."""
    return 0.5 * v[..., K].sigmoid() if noise is None else torch.full_like(v[..., 0], noise)


def with_noise(
    at: Retriever,
    w: Float[Tensor, "*b Q K"],
    y: Float[Tensor, "*b Q c h w"],
    noise: float | None,
    mask: Tensor | None,
) -> Float[Tensor, "*b Q n"]:
    """w, and where the noise is to be estimated, a first guess of it: what w leaves unexplained."""
    if noise is not None:
        return w
    wrong = average((y - at.read(w).mean).abs(), mask)
    guess = torch.special.logit(2 * wrong.clamp(0.02, 0.4))
    return torch.cat([w, guess[..., None]], dim=-1)


def guesses(at: Retriever, y: Float[Tensor, "*b Q c h w"], mask: Tensor | None) -> list[Float[Tensor, "*b Q K"]]:
    """Where to begin: the address of the cue, and those of smoother ones, which know less of the noise.

    Least squares shrink addresses, so they are taken larger.
    """
    return [1.5 * at.find(cue) for cue in likely(y, mask, at.binary)]


def likely(
    y: Float[Tensor, "*b Q c h w"], mask: Float[Tensor, "..."] | None, binary: bool
) -> list[Float[Tensor, "*b Q c h w"]]:
    """What a cue may have been: smoother ones, the most plausible first, and the cue itself."""
    smooth = blur(y, mask)
    cues = [smooth]
    if binary:
        sharp = (smooth > 0.5).to(y)
        flips = average((y - sharp).abs(), mask).clamp(max=0.45)[..., None, None, None]
        cues = [sharp, ((smooth - flips) / (1 - 2 * flips)).clamp(0, 1)]  # what p was before some flipped
    return [*cues, torch.where(trusted(y, mask).bool(), y, cues[0])]


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
