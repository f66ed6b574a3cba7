"""Order: how much it matters in which order images are written, before training and after it [sec. 3.3].

`python benchmarks/order.py --out results/order/omniglot.json`; docs/research.md has what came of it.
"""

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from kanerva import DKM, memory
from kanerva.lab import runner
from kanerva.lab.drawing import COLOURS
from kanerva.lab.measures import mean
from kanerva.lab.runner import Subject
from kanerva.lab.tables import Share, Table
from kanerva.memory import MemoryState, moments
from kanerva.recall.retriever import Cue
from kanerva.support.say import bar

NEEDS = "dkm"
SMOKE = {"length": 8, "episodes": 3, "orders": 3, "iterations": (1, 2), "blocks": (1, 8)}


def run(
    who: Subject,
    seed: int = 0,
    *,
    length: int = 32,
    episodes: int = 16,
    orders: int = 8,
    iterations: tuple[int, ...] = (1, 2, 3, 5),
    blocks: tuple[int, ...] = (1, 4, 8, 32),
) -> dict[str, Any]:
    """The spread that the order of writing causes, and what refinement and blocks do about it [sec. 3.3].

    Each weight is found in the memory as it was when its image came, so that the order matters, though an episode
    has none [sec. 2.1]; training is said to mend it. Here the same images are written in several orders, by the
    trained model and by one with the same config that was never trained. Two ways to write do not depend on order
    at all: all images in one block, and, given weights, `memory.condition`. The model was trained with the
    iterations and the block of its config: others are tried on it as it is.

    length: Images in an episode.
    episodes: Episodes, each without an image twice.
    orders: Orders in which each episode is written.
    iterations: Rounds of refinement for each image, the optional step of Algorithm 1.
    blocks: Images addressed against the same memory and written at once.
    """
    trained, result = who.model, dict[str, Any](length=length, orders=orders)
    assert isinstance(trained, DKM)
    case = draw(who, episodes, length, orders, torch.Generator(trained.device).manual_seed(seed))
    with bar(f"order: {who.name}", 4 + len(iterations) * len(blocks)) as advance:

        def measured(model: DKM, iterations: int, block: int, again: bool = False) -> dict[str, Any]:
            numbers = compare(model, case, write(model, case, iterations, block, again), seed)
            advance(1)
            return {"iterations": iterations, "block": block, **numbers}

        for name, model in (("untrained", untrained(trained, seed)), ("trained", trained)):
            how = model.config.iterations, model.config.block
            result[name] = {"write": measured(model, *how), "conditioned": measured(model, *how, again=True)}
        result["grid"] = [measured(trained, i, b) for b in blocks for i in iterations]
    for entry in (result["trained"]["conditioned"], *result["grid"]):
        entry["change"] = change(entry, result["trained"]["write"])
    return result


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
    x = subject.model.episodes(subject.unseen, count, length, generator=generator, distinct=True)
    order = torch.rand(orders, count, length, generator=generator, device=x.device).argsort(-1)
    return Case(x, order)


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


# The figure

KINDS = {"score": "score", "readout": "read-outs", "memory": "memory R"}
LOOKS: dict[str, dict[str, Any]] = {
    "untrained": {"color": "0.7"},
    "trained": {"color": COLOURS[0]},
}


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """Before and after training: spreads as shares, and how stale the weights are."""
    figure = Figure(figsize=(8, 2.7 * len(models) + 0.3), layout="constrained")
    grid = figure.subplots(len(models), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), model in zip(grid, models, strict=True):
        result = model["result"]
        for offset, (name, look) in zip((-0.2, 0.2), LOOKS.items(), strict=True):
            numbers = result[name]["write"]
            heights = [100 * numbers[kind]["share"] for kind in KINDS]
            label = f"{name} ({numbers['nats']['mean']:.1f} nats per image)"
            bars(left, np.arange(len(KINDS)) + offset, heights, None, label, look)
            both = [result[name][way]["stale"] for way in ("write", "conditioned")]
            errors = [value["stderr"] for value in both]
            bars(right, np.arange(2) + offset, [value["mean"] for value in both], errors, name, look)
        left.set_xticks(range(len(KINDS)), KINDS.values())
        left.set_ylabel("spread over orders, % of\nthat of images or episodes")
        left.set_title(f"{model['name']}: {result['length']} images in {result['orders']} orders")
        right.set_xticks(range(2), ["as written", "then conditioned\nat once"])
        right.set_ylabel("nats per image")
        right.set_title("KL of the weights written with,\nabove its least in the final memory")
        left.legend()
    return {"": figure}


def bars(axes: Axes, x: Any, heights: list[float], errors: Any, name: str, look: dict[str, Any]) -> None:
    drawn = axes.bar(x, heights, 0.36, yerr=errors, label=name, error_kw={"linewidth": 0.8}, **look)
    axes.bar_label(drawn, [f"{height:.3g}" for height in heights], fontsize=7, padding=1)
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    axes.margins(y=0.12)


if __name__ == "__main__":
    runner.script(sys.modules[__name__], "python benchmarks/order.py")
