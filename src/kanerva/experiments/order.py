"""Order: how much it matters in which order images are written, before training and after it [sec. 3.3]."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .. import memory
from ..memory import MemoryState, moments
from ..models import DKM, Model
from ..recall.retriever import Cue
from ..support import checks
from .base import Experiment, Subject, distinct, mean, only
from .tables import Share, Table


@dataclass(frozen=True, kw_only=True)
class Order(Experiment):
    """The spread that the order of writing causes, and what refinement and blocks do about it [sec. 3.3].

    Each weight is found in the memory as it was when its image came, so that the order matters, though an episode
    has none [sec. 2.1]; training is said to mend it. Here the same images are written in several orders, by the
    trained model and by one with the same config that was never trained. Two ways to write do not depend on order
    at all: all images in one block, and, given weights, `memory.condition`. The model was trained with the
    iterations and the block of its config: others are tried on it as it is.
    """

    length: int = 32
    """Images in an episode."""
    episodes: int = 16
    """Episodes, each without an image twice."""
    orders: int = 8
    """Orders in which each episode is written."""
    iterations: tuple[int, ...] = (1, 2, 3, 5)
    """Rounds of refinement for each image, the optional step of Algorithm 1."""
    blocks: tuple[int, ...] = (1, 4, 8, 32)
    """Images addressed against the same memory and written at once."""

    NAME: ClassVar[str] = "order"
    TITLE: ClassVar[str] = "Order of writing"
    ABOUT: ClassVar[str] = (
        "An episode is a set, but images are written one by one, and each is placed by what the memory held when "
        "it came. The same images are written in several orders, by this model and by one that was never trained, "
        "and what comes of it is compared; a spread of zero would mean that the order does not matter."
    )
    FIGURES: ClassVar[dict[str, str]] = {
        "": "How much scores, read-outs and the memory itself differ between orders, before training and after it; "
        "and by how much the weights that were used for writing are out of date when all is written.",
        "refinement": "The score, the score with what the memory takes, and the spread over orders, when each "
        "image is placed more than once, or several at a time.",
    }
    NEEDS: ClassVar[str | None] = "dkm"
    SMOKE: ClassVar[dict[str, Any]] = {
        "length": 8,
        "episodes": 3,
        "orders": 3,
        "iterations": (1, 2),
        "blocks": (1, 8),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, length=1, episodes=2, orders=2, iterations=1, blocks=1)  # a spread takes two

    def rounds(self, model: Model) -> int:
        return 2 * 2 + len(self.iterations) * len(self.blocks)

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        trained = only(subject.model, DKM)
        case = draw(subject, self.episodes, self.length, self.orders, generator)

        def measured(model: DKM, iterations: int, block: int, again: bool = False) -> dict[str, Any]:
            numbers = compare(model, case, write(model, case, iterations, block, again), self.seed)
            tick()
            return {"iterations": iterations, "block": block, **numbers}

        result: dict[str, Any] = {"length": self.length, "orders": self.orders}
        for name, model in (("untrained", untrained(trained, self.seed)), ("trained", trained)):
            how = model.config.iterations, model.config.block
            result[name] = {"write": measured(model, *how), "conditioned": measured(model, *how, again=True)}
        pairs = [(i, b) for b in self.blocks for i in self.iterations]
        result["grid"] = [measured(trained, *pair) for pair in pairs]
        for entry in (result["trained"]["conditioned"], *result["grid"]):
            entry["change"] = change(entry, result["trained"]["write"])
        return result

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """The score, and what the order of writing changes, before training and after it."""
        wanted = (
            ("score, nats per image", lambda found: found["nats"]),
            ("its standard deviation over orders", lambda found: found["score"]["spread"]),
            ("spread of read-outs, of that between images", lambda found: Share(found["readout"]["share"])),
            ("spread of the memory, of that between episodes", lambda found: Share(found["memory"]["share"])),
            ("nats by which weights are out of date", lambda found: found["stale"]),
        )
        both = [result[name]["write"] for name in ("untrained", "trained")]
        return Table(["", "untrained", "trained"], [[label, *map(pick, both)] for label, pick in wanted])


class Case(NamedTuple):
    """Episodes, and orders to write them in: the t-th image written is number order[..., t]."""

    x: Float[Tensor, "B T c h w"]
    order: Int64[Tensor, "O B T"]


class Memories(NamedTuple):
    """One memory for each order and episode, and the weights it was written with, in the order of the episode."""

    state: MemoryState
    w: Float[Tensor, "O B T K"]


def draw(subject: Subject, count: int, length: int, orders: int, generator: torch.Generator) -> Case:
    """Episodes without an image twice, and random orders of each."""
    x = distinct(subject.unseen, count, length, generator)
    order = torch.rand(orders, count, length, generator=generator, device=x.device).argsort(-1)
    return Case(subject.model.dequantise(x, generator), order)


def untrained(model: DKM, seed: int) -> DKM:
    """A model with the same config, as it is before training; other random numbers are left as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return DKM(model.config).to(model.R0).eval()


def write(model: DKM, case: Case, iterations: int, block: int, again: bool = False) -> Memories:
    """Write every episode in every order [alg. 1].

    again: then address all images in the memory that has come out, and condition a blank one on them at once with
    these weights: what is left of the order is what was left in the weights.
    """
    z, prior, noise = model.encode(case.x), model.blank(tuple(case.order.shape[:2])), model.noise_var
    state, w = memory.write(prior, pick(z.expand(len(case.order), *z.shape), case.order), noise, iterations, block)
    w = pick(w, case.order.argsort(-1))
    if again:
        w = memory.address(z, state, noise)
        state = memory.condition(prior, w, z, noise)
    return Memories(state, w)


def pick(values: Float[Tensor, "O B T N"], index: Int64[Tensor, "O B T"]) -> Float[Tensor, "O B T N"]:
    """Bring the entries of each episode into an order."""
    return values.gather(-2, index[..., None].expand_as(values))


# Whose values for each episode are kept, as means over orders.
EACH = ("nats", "kl_memory")


def compare(model: DKM, case: Case, written: Memories, seed: int) -> dict[str, Any]:
    """Score all memories of the same images, and say how far apart they are.

    Spreads are standard deviations over orders: of an episode's score in nats per image; of the read-outs of clean
    images, relative to their size; of R, relative to how far it has come from R0. Shares say what that is of the
    spread between different episodes (score, R) or images (read-outs), 1 if order mattered as much.
    kl_memory is KL(M) / T, which the score leaves out as the paper does; error is how far read-outs are from the
    codes, relative to the spread of these: of what a memory hardly holds, the order hardly matters.
    """
    state, cue, noise = written.state, model.cue(case.x), model.noise_var
    z, w = cue.z, model.retriever(state).address(cue).mean
    score, read, R = nats(model, case.x, cue, state, seed), memory.read(state, w), state.R
    images, prior = read.mean(0).flatten(0, 1), model.blank(tuple(case.order.shape[:2]))
    kl_memory = memory.kl_memory(state, prior) / z.shape[-2]
    return {
        "nats": mean(score.mean(0)),
        "kl_memory": mean(kl_memory.mean(0)),
        "each": dict(zip(EACH, (score.mean(0).tolist(), kl_memory.mean(0).tolist()), strict=True)),
        "error": float(ratio(size((z - read).flatten(0, 2), 1), spread(z.flatten(0, 1), 1))),
        "stale": mean(staleness(written.w, memory.address(z, state, noise), state, noise).mean(0)),
        "score": {"spread": mean(spread(score)), "share": share(score, score.mean(0))},
        "readout": {"spread": mean(ratio(spread(read, 2), size(read, 2))), "share": share(read, images, 1)},
        "memory": {
            "spread": mean(ratio(spread(R, 2), size(R - model.R0, 2))),
            "share": share(R, R.mean(0), 2),
        },
    }


def change(entry: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """What another way to write changes, episode by episode, so that what the episodes differ in drops out.

    nats: of the score; bound: of the score with KL(M) / T, which is −L_T / T [eq. elbo].
    """
    now, then = (torch.tensor([numbers["each"][name] for name in EACH]).double() for numbers in (entry, base))
    return {"nats": mean(now[0] - then[0]), "bound": mean(now.sum(0) - then.sum(0))}


def nats(
    model: DKM,
    x: Float[Tensor, "B T c h w"],
    cue: Cue,
    state: MemoryState,
    seed: int,
) -> Float[Tensor, "O B"]:
    """The score of each order, in nats per image, with the same noise in w for all of them [sec. 4]."""
    rows = []
    for one in map(MemoryState, *state):
        generator = torch.Generator(x.device).manual_seed(seed)
        q = model.retriever(one).address(cue)
        log_lik = model.log_p(model.decode(memory.read(one, moments.draw(q, generator))), x)
        rows.append((moments.kl_address(q) - log_lik).mean(-1))
    return torch.stack(rows)


def staleness(
    old: Float[Tensor, "O B T K"], new: Float[Tensor, "O B T K"], state: MemoryState, noise_var: Tensor
) -> Float[Tensor, "O B T"]:
    """How far weights found while writing are from the best in the final memory, in nats [eq. dkl_w].

        KL(q(w) ‖ p(w | z, M)) − its least = ½ (w − μ)ᵀ (R Rᵀ / noise_var + I) (w − μ)

    This is what training is said to keep small [sec. 3.3].
    """
    apart = old - new
    return 0.5 * ((apart @ state.R).square().sum(-1) / noise_var + apart.square().sum(-1))


def spread(values: Float[Tensor, "O ..."], axes: int = 0) -> Tensor:
    """The standard deviation over the first axis, of vectors or matrices that fill the last `axes`."""
    return total(values.double().var(0), axes).sqrt()


def size(values: Float[Tensor, "O ..."], axes: int) -> Tensor:
    """The root mean square over the first axis of the norm of vectors or matrices that fill the last `axes`."""
    return total(values.double().square().mean(0), axes).sqrt()


def share(values: Float[Tensor, "O ..."], others: Float[Tensor, "N ..."], axes: int = 0) -> float:
    """The spread over orders, as a share of the spread between others, which the order has nothing to do with."""
    over_orders = spread(values, axes).square().mean().sqrt()
    return float(ratio(over_orders, spread(others, axes)))


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and nothing of nothing is nothing."""
    return torch.where(a == 0, a, a / b)


def total(values: Tensor, axes: int) -> Tensor:
    return values.sum(tuple(range(-axes, 0))) if axes else values
