"""Attractor dynamics: recall by three methods, and sampling, with a written memory. One method is one function.

    descent         look for the stored image in the memory itself; where it is not found, infer w from the cue
                    through what corrupted it, then descend the energy in w and x in turn
    least-squares   encode, solve, decode, take the mode: the paper's
    stochastic      draw w and x in turn: a Markov chain around the stored patterns

A method yields a Snapshot per step until nothing changes (in descent: by 0.01 nats); `follow` takes as many as were
asked for. What may be known of the damage stands in the hints (`Hints`); a method uses those that it can.
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..memory import MemoryState, moments
from . import descent as bfgs
from . import frame, newton, search
from .retriever import Hints, Retriever, copied
from .trajectory import Recall, Snapshot, follow

# Nats: who gains less has arrived.
STILL = 1e-2
# Temperatures and variances beyond this are infinities to float32.
MOST = 1e20

Path = Iterator[Snapshot]


def descent(at: Retriever, x: Float[Tensor, "B Q c h w"], hints: Hints) -> Path:
    """Infer w from the cue (`infer`); every step after that lowers E(x, w), or leaves it.

    Passes no gradients on. Proof: test_energy_never_rises.
    """
    check_hints(at, hints)
    nobody = torch.zeros(x.shape[:-3], dtype=torch.bool, device=x.device)
    if not x.numel():
        here, rest = at.settle(x.new_zeros(*x.shape[:-3], at.state.R.shape[-2])), nobody
        here = here._replace(certified=nobody if hints.inside else None)
    elif hints.inside:
        here, rest = look_inside(at, x, hints)
    else:
        here, rest = at.settle(infer(at, x, hints.noise, hints.mask)), nobody
    yield here
    yield from fall(at, here, rest)


def least_squares(at: Retriever, x: Float[Tensor, "B Q c h w"], hints: Hints | None = None) -> Path:
    """w ← address(encoder(x)), x ← mode p(x | decoder(Rᵀw)), until no image changes [sec. 3.5]."""
    while True:
        after = at.settle(at.find(x))
        yield after
        if torch.equal(after.x, x):
            return
        x = after.x


def stochastic(at: Retriever, x: Float[Tensor, "B Q c h w"], hints: Hints) -> Path:
    """w ~ q(w | x), x ~ p(x | decoder(Rᵀw)): the Markov chain that the paper leaves to the future [sec. 3.5].

    temperature 1 is the model's own chain, 0 is least-squares.
    """
    temperature = hints.temperature
    if temperature and not 1 / MOST <= temperature <= MOST:
        wanted = f"0, or a number from {1 / MOST:g} to {MOST:g}"
        raise ValueError(f"temperature: expected {wanted}, got {temperature}")
    if temperature == 0:
        yield from least_squares(at, x)
        return
    while True:
        q = at.address(at.encode(x))
        w = q.mean + temperature**0.5 * (moments.draw(q, hints.generator) - q.mean)
        p = at.read(w)
        x = p.tempered(temperature).sample(hints.generator)
        yield Snapshot(x, w, at.energy(p, x, w))


METHODS: dict[str, Callable[..., Path]] = {
    "descent": descent,
    "least-squares": least_squares,
    "stochastic": stochastic,
}
"""Every method by its name, the best first."""


def recall(
    retriever: Callable[[MemoryState], Retriever], state: MemoryState, x: Tensor, method: str, hints: Hints
) -> Path:
    """The steps of a method from cues."""
    if method != "descent":
        return METHODS[method](retriever(state), x, hints)
    return differentiable(
        lambda: descent(retriever(MemoryState(*map(copied, state))), copied(x), hints_copied(hints))
    )


def sample(
    retriever: Callable[[MemoryState], Retriever], state: MemoryState, n: int, method: str, hints: Hints
) -> Path:
    """Draw n patterns from each memory: the first step decodes w ~ p(w), the others are recall [sec. 3.5].

    Descent goes on from the w that was drawn; the other methods from the image.
    """

    def path() -> Path:
        at = retriever(MemoryState(*map(copied, state)))
        R = at.state.R
        size = (*R.shape[:-2], n, R.shape[-2])
        here = at.settle(torch.randn(size, generator=hints.generator, dtype=R.dtype, device=R.device))
        yield here
        if method == "descent":
            yield from fall(at, here, torch.zeros_like(here.energy, dtype=torch.bool))
        else:
            yield from METHODS[method](at, here.x, hints)

    return differentiable(path) if method == "descent" else path()


def more(at: Retriever, x: Float[Tensor, "B Q c h w"], n: int, generator: torch.Generator | None) -> Recall:
    """Draw n patterns like some examples, which were written: one step, with weights as theirs are spread."""
    return follow(iter([at.settle(like(at.find(x), n, generator))]), 1, None)


def like(v: Float[Tensor, "*b Q m"], n: int, generator: torch.Generator | None = None) -> Float[Tensor, "*b n m"]:
    """Draw n vectors from the normal distribution that has the mean and the covariance of Q others.

    v̄ + Σ_i ε_i (v_i − v̄) / √(Q − 1),   ε_i ~ N(0, 1)
    """
    mean = v.mean(-2, keepdim=True)
    noise = torch.randn(*v.shape[:-2], n, v.shape[-2], generator=generator, dtype=v.dtype, device=v.device)
    return mean + noise @ (v - mean) / (v.shape[-2] - 1) ** 0.5


def differentiable(path: Callable[[], Path]) -> Path:
    """Take each step outside of inference mode, whose tensors cannot be differentiated, and without a graph."""
    steps: Path | None = None
    while True:
        with torch.inference_mode(False), torch.no_grad():
            steps = path() if steps is None else steps
            step = next(steps, None)
        if step is None:
            return
        yield step


def hints_copied(hints: Hints) -> Hints:
    return hints if hints.mask is None else hints._replace(mask=copied(hints.mask))


def check_hints(at: Retriever, hints: Hints) -> None:
    """Refuse hints that fit neither the model nor the cues."""
    if at.hyper.R0.is_inference():
        raise RuntimeError("model: expected one made outside of inference mode, which descent has to leave")
    if hints.noise is not None and not 0 <= hints.noise < (0.5 if at.binary else MOST):
        flips, variance = "a flip probability from 0 to less than 0.5", f"a variance from 0 to {MOST:g}"
        raise ValueError(f"noise: expected {flips if at.binary else variance}, got {hints.noise}")
    if hints.contents is not None and not hints.inside:
        raise ValueError("contents: expected none with inside=False, which looks at the cue alone")
    if hints.contents is not None and len(at.state.R) != 1:
        raise ValueError(f"contents: expected none for a batch of memories, only for one, got {len(at.state.R)}")


def look_inside(at: Retriever, y: Float[Tensor, "B Q c h w"], hints: Hints) -> tuple[Snapshot, Bool[Tensor, "B Q"]]:
    """Stored images that explain the cues, and who has one; weights are inferred for the others."""
    m, known = hints.mask, None if hints.contents is None else copied(hints.contents.x)
    found = frame.recognise(at, y, m, known)
    w = at.find(found.x)
    here = Snapshot(found.x, w, at.energy(at.read(w), found.x, w), found.certified)
    rest = (~found.there).any(-1).nonzero()
    if len(rest):
        some, there = at.some(rest[:, 0]), found.there[rest[:, 0]]
        # in each memory, the others
        few = there.int().argsort(dim=-1, stable=True)[:, : int((~there).sum(-1).max())]
        inferred = infer(some, y[rest, few], hints.noise, None if m is None else m[rest, few])
        here = here.put(rest, few, there.take_along_dim(few, -1), some.settle(inferred))
    return here, found.there


def fall(at: Retriever, here: Snapshot, rest: Bool[Tensor, "B Q"]) -> Path:
    """Lower E(x, w) in w and in x in turn, until nobody gains; who is at rest stays.

    w by descent, x ← mode p(x | decoder(Rᵀw)), which is the least of E at w. Neither can raise E.
    """
    H, size = at.curvature().expand(*here.w.shape, -1), torch.ones_like(here.energy)
    while not bool(rest.all()):

        def cost(w: Float[Tensor, "B Q K"], x: Tensor = here.x) -> Float[Tensor, "B Q"]:
            return at.energy(at.read(w), x, w)

        point = bfgs.step(cost, bfgs.start(cost, here.w, H)._replace(size=size))
        after = at.settle(point.v)
        # where a convolution sums in another order from call to call, what looks like a rise is not taken
        after = after.where((after.energy <= here.energy) & ~rest, here)
        yield after
        still = arrived(here.energy, after.energy, point.size)
        if at.binary:  # other images change a little whenever w does
            still &= (after.x == here.x).flatten(-3).all(-1)
        here, H, size, rest = after, point.H, point.size, rest | still


def infer(
    at: Retriever, y: Float[Tensor, "B Q c h w"], noise: float | None, mask: Float[Tensor, "B Q c h w"] | None
) -> Float[Tensor, "B Q K"]:
    """The weights that explain cues: by a search for bits, by Gauss–Newton for pixels of real values."""
    return (search if at.binary else newton).infer(at, y, noise, mask)


def arrived(
    before: Float[Tensor, "*b"], after: Float[Tensor, "*b"], size: Float[Tensor, "*b"]
) -> Bool[Tensor, "*b"]:
    """Say who gains no more: a step was taken (its size is 1 again) for next to nothing, or hardly one is left."""
    return ~(before - after >= STILL) & ((size == 1) | (size < 1e-2))
