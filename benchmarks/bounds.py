"""What scores leave out: three questions about bounds, each with a file in results/evaluation/ (docs/research.md).

    python benchmarks/bounds.py fitted      # 13 minutes on two CPU cores
    python benchmarks/bounds.py rescaled    # ten minutes on one
    python benchmarks/bounds.py classes     # two minutes

fitted: how much of the cost of new images is the encoder's. The memories are all those in which
`evaluate.new_images` scores new images; of the ten new images of a class, the first is taken. The encoder,
the decoder and the memory stay as they are. A model infers q = N(m, S Sᵀ) for an image (of the weights w for
a DKM, of the code z for a VAE). What is fitted by Adam is N(m + S a, S T (S T)ᵀ), T lower triangular, from a
= 0 and T = I on: any Gaussian. It lowers the same bound, −E_q ln p(x | u) + KL(q ‖ N(0, I)), which holds for
any q, so it bounds −ln p(x | memory) too. Scores have fresh draws.

rescaled: what KL(M) does not charge. Reads are from the mean R of the memory, so nothing keeps a model from
calling M uncertain. *Held*: prior_var and noise_var are c times as large, and addresses stay what they were;
R is then the same, and U is c times as large. *Strict*: with M drawn, c matters. It is part of the prior
p(M), so any c gives a bound on ln p(X); the best one on training images is taken, and scored on test images.
The images are those that `kanerva evaluate` draws.

classes: what a memory knows of new images. Ten images of each of four test classes are written, and ten
others of each are read: from that memory, from an empty one, and from that of the episode before, which is of
other classes (6 of 102 share one). All models see the same images, and each draws the same noise for all its
memories. Standard errors, those of differences too, are over episodes.
"""

import json
import math
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

import kanerva
from kanerva import DKM, memory
from kanerva.data import ClassImages
from kanerva.lab import runner
from kanerva.memory import MemoryState, moments
from kanerva.models import Model
from kanerva.models.rivals.vae import VAE
from kanerva.training.evaluate import MOST_NEW, WRITTEN, halves, summary

ROOT = Path(__file__).parents[1]
PLACES = {
    "omniglot": "omniglot",
    "omniglot-record": "results/models/omniglot-record.safetensors",
    "omniglot-paper": "results/models/omniglot-paper.safetensors",
    "omniglot-small": "results/models/omniglot-small.safetensors",
    "omniglot-new": "omniglot-new",
    "mazes": "mazes",
    "mazes-wide": "results/models/mazes-wide.safetensors",
}
"""The models of `rescaled`; those of mazes are scored where labmaze is at hand."""
MODELS = {"omniglot-new": "omniglot-new", "omniglot-vae": "results/models/omniglot-vae.safetensors"}
"""The models of `fitted` and `classes`."""
CLASSES, EPISODES = 4, MOST_NEW // (4 * WRITTEN)


def loaded(place: str) -> Model:
    """A pretrained model, or one of results/models."""
    return kanerva.load(str(ROOT / place) if "/" in place else place).eval()


def new_halves() -> tuple[Tensor, Tensor]:
    """Images that are written, and new ones of the same classes."""
    return halves(kanerva.data.load("omniglot", "test"), EPISODES, CLASSES, 2 * WRITTEN, seed=0)


# Fitted

AT_ONCE = 17
"""Memories that are worked on at a time: 68 images, a sixth of all."""
STEPS = 400
"""Of Adam. What twice as many would gain is measured on the first memories."""
PAIRS = 2
"""Draws and their mirror images, ε and −ε, in each step: what is linear in ε cancels."""
RATES = {"shift": 0.03, "log_scale": 0.03, "lower": 0.01}
"""Learning rates at the first step; they fall to 0 by half a cosine. The many entries of T want a smaller one."""
DIAGONAL = {name: rate for name, rate in RATES.items() if name != "lower"}
"""For a fit with T diagonal: a VAE keeps its family of q; the covariance of a DKM is scaled along its factor."""
DRAWS = 64
"""Fresh ones, for each image and score."""


class Normal(NamedTuple):
    """A Gaussian N(mean, factor factorᵀ) for each image, `factor` lower triangular."""

    mean: Float[Tensor, "E Q N"]
    factor: Float[Tensor, "E Q N N"]

    def at(self, noise: Float[Tensor, "S E Q N"]) -> Float[Tensor, "S E Q N"]:
        """The draws that standard normal noise makes: mean + factor ε."""
        return self.mean + torch.einsum("eqij,seqj->seqi", self.factor, noise)

    def kl(self) -> Float[Tensor, "E Q"]:
        """KL(q ‖ N(0, I)) = ½ (‖factor‖² + ‖mean‖² − N) − Σ ln diag factor."""
        square = self.factor.square().sum((-2, -1)) + self.mean.square().sum(-1)
        return 0.5 * (square - self.mean.shape[-1]) - self.log_det()

    def log_det(self) -> Float[Tensor, "E Q"]:
        """ln det factor."""
        return self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class Problem(NamedTuple):
    """Images to be described by a model, given memories of others."""

    model: DKM | VAE
    state: Any
    x: Float[Tensor, "E Q c h w"]

    def inferred(self) -> Normal:
        """The q that the model infers for each image: of w (`DKM.given`), or of z (`VAE.given`)."""
        model = self.model
        if isinstance(model, VAE):
            mean, log_var = model.encoding(self.x).chunk(2, -1)
            return Normal(mean, (0.5 * log_var).exp().diag_embed())
        q = model.retriever(self.state).address(model.cue(self.x))
        return Normal(q.mean, torch.linalg.cholesky(q.cov).expand(*q.mean.shape, q.mean.shape[-1]))

    def log_lik(self, u: Float[Tensor, "S E Q N"]) -> Float[Tensor, "S E Q"]:
        """ln p(x | u) of draws: u is z, or the weights that read z = Rᵀu."""
        z = u if isinstance(self.model, VAE) else memory.read(self.state, u)
        return self.model.log_p(self.model.decode(z), self.x.expand(len(u), *self.x.shape))


def fit(
    problem: Problem, start: Normal, steps: int, generator: torch.Generator, rates: dict[str, float] = RATES
) -> Normal:
    """Lower the bound of every image by Adam, from `start` on; what has no rate stays as it is."""
    shift, log_scale = torch.zeros_like(start.mean), torch.zeros_like(start.mean)
    found = {"shift": shift, "log_scale": log_scale, "lower": torch.zeros_like(start.factor)}

    def q() -> Normal:
        T = found["lower"].tril(-1) + found["log_scale"].exp().diag_embed()
        return Normal(start.at(found["shift"][None])[0], start.factor @ T)

    groups = [{"params": [found[name].requires_grad_()], "lr": rate} for name, rate in rates.items()]
    adam = torch.optim.Adam(groups, betas=(0.9, 0.99))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        half = torch.randn((PAIRS, *start.mean.shape), generator=generator, dtype=start.mean.dtype)
        now = q()
        cost = now.kl() - problem.log_lik(now.at(torch.cat([half, -half]))).mean(0)
        adam.zero_grad()
        cost.sum().backward()  # images have nothing in common, so that each has its own gradient
        adam.step()
        cosine.step()
    return Normal(*(part.detach() for part in q()))


@torch.no_grad()
def score(problem: Problem, q: Normal, generator: torch.Generator) -> dict[str, Float[Tensor, "E"]]:
    """Nats per image in each memory: the bound, and the importance-weighted one of the same draws.

    The latter is −ln 1/k Σ p(x, u) / q(u), u ~ q (`VAE.importance`): a bound too, and nearer to −ln p(x | memory).
    """
    log_lik, log_ratio = [], []
    for _ in range(DRAWS):
        noise = torch.randn((1, *q.mean.shape), generator=generator, dtype=q.mean.dtype)
        u = q.at(noise)
        log_lik.append(problem.log_lik(u)[0])
        log_ratio.append(0.5 * (noise.square() - u.square()).sum(-1)[0] + q.log_det())  # ln N(u; 0, I) / q(u)
    lik, ratio = torch.stack(log_lik), torch.stack(log_ratio)
    bound = q.kl() - lik.mean(0)
    return {"": bound.mean(-1), ", importance-weighted": (math.log(DRAWS) - (lik + ratio).logsumexp(0)).mean(-1)}


def fits(name: str) -> dict[str, Tensor]:
    """Scores of a model before and after the fit, for each memory; of the first ones after other fits too."""
    torch.set_num_threads(1)
    model = loaded(MODELS[name])
    assert isinstance(model, DKM | VAE)
    model.requires_grad_(False)
    written, read = new_halves()
    read = read[:, ::WRITTEN]  # they are sorted by class
    generator, rows = torch.Generator().manual_seed(0), list[dict[str, Tensor]]()
    for a, x in zip(written.split(AT_ONCE), read.split(AT_ONCE), strict=True):
        problem = Problem(model, model.write(a), x)
        q = problem.inferred()
        found = {"amortised": score(problem, q, generator)}
        found["fitted"] = score(problem, fit(problem, q, STEPS, generator), generator)
        if not rows:
            found["twice"] = score(problem, fit(problem, q, 2 * STEPS, generator), generator)
            other = torch.Generator().manual_seed(1)
            found["scales"] = score(problem, fit(problem, q, STEPS, other, DIAGONAL), other)
        rows.append({f"{when}{kind}": values for when, both in found.items() for kind, values in both.items()})
        print(name, {key: round(float(values.mean()), 2) for key, values in rows[-1].items()}, flush=True)
    return {key: torch.cat([row[key] for row in rows if key in row]).double() for key in rows[0]}


def compared_fits(scores: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    """Means and standard errors over memories, and those of differences within a memory."""
    found: dict[str, Any] = {}
    for name, own in scores.items():
        found[name] = {key: summary(values) for key, values in own.items()}
        found[name]["amortised - fitted"] = summary(own["amortised"] - own["fitted"])
        first = {key: own[key][: len(own["twice"])] for key in ("amortised", "fitted", "twice", "scales")}
        for a, b in (("fitted", "twice"), ("amortised", "scales"), ("scales", "fitted")):
            found[name][f"{a} - {b}"] = summary(first[a] - first[b])
    dkm, vae = scores.values()
    return found | {"vae - dkm": {key: summary(vae[key] - dkm[key]) for key in dkm}}


def fitted(_: dict[str, Any]) -> dict[str, Any]:
    """Fit for both models, one process each."""
    with ProcessPoolExecutor(len(MODELS), multiprocessing.get_context("spawn")) as pool:
        scores = dict(zip(MODELS, pool.map(fits, MODELS), strict=True))
    return {
        "models": MODELS,
        "images": CLASSES * EPISODES,
        "memories": EPISODES,
        "seed": 0,
        "settings": {"steps": STEPS, "draws_per_step": 2 * PAIRS, "rates": RATES, "draws": DRAWS},
        **compared_fits(scores),
        "note": "Both models have the same images; the VAE does not see those that were written. Standard errors "
        f"are over memories. twice, scales: with twice the steps, and with T diagonal, in the first {AT_ONCE}.",
    }


# Rescaled

IMAGES, LENGTH, BATCH = 2_048, 32, 16
TRAINED = 512
"""Training images by which c is chosen."""
HELD = (1, 10, 1e6)
FACTORS = tuple(10 ** (-i / 8) for i in range(49))
"""From 1 to a millionth."""


def kl_memory(model: DKM, state: MemoryState, c: float) -> Float[Tensor, "episodes"]:
    """KL(M)/T with U and prior_var c times as large, in float64."""
    R, U = state.to(torch.float64)
    blank = memory.prior(model.R0.double(), c * model.prior_var.double(), (BATCH,))
    return memory.kl_memory(MemoryState(R, c * U), blank) / LENGTH


@torch.no_grad()
def held(model: DKM, images: ClassImages) -> dict[str, float]:
    """KL(M)/T for each c, with the memories as they are."""
    generator, found = torch.Generator().manual_seed(0), {c: [] for c in HELD}  # type: ignore[var-annotated]
    for _ in range(IMAGES // (BATCH * LENGTH)):
        x = model.episodes(images, BATCH, LENGTH, None, generator)
        state = model.write(x)
        for c in HELD:
            found[c].append(kl_memory(model, state, c))
        model(x, generator)  # so that the next images are those of `evaluate`
    return {f"{c:g}": float(torch.cat(values).mean()) for c, values in found.items()}


@torch.no_grad()
def strict(
    model: DKM, images: ClassImages, scales: Sequence[float], count: int
) -> Float[Tensor, "scales episodes"]:
    """−(Σ ln p(x | w, M) − KL(w) − KL(M)) / T with M ~ MN(R, c U), prior MN(R0, c prior_var I), for each scale c.

    Addresses are those of the model as it is, which a q(w) may have. Means over the images of an episode.
    """
    generator, rows = torch.Generator().manual_seed(0), []
    for _ in range(math.ceil(count / (BATCH * LENGTH))):
        x = model.episodes(images, BATCH, LENGTH, None, generator)
        state = model.write(x)
        q = model.retriever(state).address(model.cue(x))
        w, row = moments.draw(q, generator), []
        for c in scales:
            M = memory.sample(MemoryState(state.R, c * state.U), generator)
            lik = model.log_p(model.decode(memory.read(MemoryState(M, state.U), w)), x)
            row.append((moments.kl_address(q) - lik).double().mean(-1) + kl_memory(model, state, c))
        rows.append(torch.stack(row))
    return torch.cat(rows, dim=1)


def scaled(model: DKM, seen: ClassImages, unseen: ClassImages) -> dict[str, Any]:
    """The strict bound at the scale that is best on training images."""
    means = strict(model, seen, FACTORS, TRAINED).mean(1)
    c = FACTORS[int(means.argmin())]
    return {
        "prior_var": float(model.prior_var.detach()),
        "noise_var": float(model.noise_var.detach()),
        "scale": c,
        "strict": summary(strict(model, unseen, [c], IMAGES)[0]),
        "training": float(means.min()),
    }


def rescaled(old: dict[str, Any]) -> dict[str, Any]:
    """Score the models; one whose images are not at hand keeps what the file has."""
    found: dict[str, Any] = {"images": IMAGES, "seed": 0}
    for name, place in PLACES.items():
        model = loaded(place)
        assert isinstance(model, DKM)
        try:
            seen, unseen = (kanerva.data.load(name.split("-")[0], split) for split in ("train", "test"))
        except ImportError as error:
            print(f"{name}: {error}")
            found[name] = old.get(name)
            continue
        found[name] = {"scaled": scaled(model, seen, unseen)}
        if unseen.binary:
            found[name]["held"] = held(model, unseen)
        print(name, json.dumps(found[name], indent=1), flush=True)
    return found


# Classes

OWN, BLANK, OTHER = "of their classes", "blank", "of other classes"


@torch.no_grad()
def scored(
    model: Model, written: Float[Tensor, "E A c h w"], read: Float[Tensor, "E B c h w"]
) -> dict[str, Tensor]:
    """Nats per new image in each memory, for each episode."""
    state = model.write(written)
    memories = {
        OWN: state,
        BLANK: model.blank((len(written),)),
        OTHER: type(state)(*(part.roll(1, 0) for part in state)),
    }
    found = {}
    for name, one in memories.items():
        terms = model.given(one, read, torch.Generator().manual_seed(0))
        assert terms is not None
        found[name] = terms.nats().double()
    return found


def compared(scores: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    """Means and standard errors, of scores and of their differences on the same images."""
    found: dict[str, Any] = {}
    for name, own in scores.items():
        found[name] = {key: summary(values) for key, values in own.items()}
        for other in (BLANK, OTHER):
            found[name][f"{other}, more than {OWN}"] = summary(own[other] - own[OWN])
    first, *others = scores
    return found | {
        f"{other} - {first}": {OWN: summary(scores[other][OWN] - scores[first][OWN])} for other in others
    }


def classes(_: dict[str, Any]) -> dict[str, Any]:
    """Score new images in memories of their classes, of none and of others."""
    written, read = new_halves()
    scores = {name: scored(loaded(place), written, read) for name, place in MODELS.items()}
    images = read.shape[0] * read.shape[1]
    return {"models": MODELS, "images": images, "episodes": len(read), "seed": 0, **compared(scores)}


def main(question: str) -> None:
    """Answer one of the questions, and write its file."""
    out = ROOT / "results" / "evaluation" / f"{question}.json"
    answers = {"fitted": fitted, "classes": classes, "rescaled": rescaled}
    found = {"command": f"python benchmarks/bounds.py {question}", **answers[question](json.loads(out.read_text()))}
    print(json.dumps(found, indent=1))
    runner.save(out, found)


if __name__ == "__main__":
    main(sys.argv[1])
