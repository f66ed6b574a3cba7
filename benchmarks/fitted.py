"""How much of the cost of new images is the encoder's: each image gets a Gaussian q of its own, fitted by Adam.

    python benchmarks/fitted.py    # results/evaluation/fitted.json; 13 minutes on two CPU cores

The memories are all those in which `evaluate.new_images` scores new images; of the ten new images of a class, the
first is taken. The encoder, the decoder and the memory stay as they are. A model infers q = N(m, S Sᵀ) for an image
(of the weights w for a DKM, of the code z for a VAE). What is fitted is N(m + S a, S T (S T)ᵀ), T lower triangular,
from a = 0 and T = I on: any Gaussian. It lowers the same bound, −E_q ln p(x | u) + KL(q ‖ N(0, I)), which holds for
any q, so it bounds −ln p(x | memory) too. Scores have fresh draws.
"""

import argparse
import json
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

import kanerva
from kanerva import DKM, memory
from kanerva.evaluate import MOST_NEW, WRITTEN, halves, summary
from kanerva.lab import runner
from kanerva.models import Model
from kanerva.models.rivals.vae import VAE

ROOT = Path(__file__).parents[1]
MODELS = {"omniglot-new": "omniglot-new", "omniglot-vae": "results/models/omniglot-vae.safetensors"}
CLASSES = 4
BATCH = 17
"""Memories that are worked on at a time: 68 images, a sixth of all."""
STEPS = 400
"""Of Adam. What twice as many would gain is measured on the first memories."""
PAIRS = 2
"""Draws and their mirror images, ε and −ε, in each step: what is linear in ε cancels."""
RATES = {"shift": 0.03, "log_scale": 0.03, "lower": 0.01}
"""Learning rates at the first step; they fall to 0 by half a cosine. The many entries of T want a smaller one."""
SCALES = {name: rate for name, rate in RATES.items() if name != "lower"}
"""For a fit with T diagonal: a VAE keeps its family of q; the covariance of a DKM is scaled along its factor."""
DRAWS = 64
"""Fresh ones, for each image and score."""


def loaded(place: str) -> Model:
    """One of MODELS."""
    return kanerva.load(str(ROOT / place) if "/" in place else place).eval()


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


def scored(name: str, steps: int, memories: int) -> dict[str, Tensor]:
    """Scores of a model before and after the fit, for each memory; of the first ones after other fits too."""
    torch.set_num_threads(1)
    model = loaded(name)
    assert isinstance(model, DKM | VAE)
    model.requires_grad_(False)
    images = kanerva.data.load("omniglot", "test")
    written, read = halves(images, MOST_NEW // (CLASSES * WRITTEN), CLASSES, 2 * WRITTEN, seed=0)
    read = read[:, ::WRITTEN]  # they are sorted by class
    generator, rows = torch.Generator().manual_seed(0), list[dict[str, Tensor]]()
    for a, x in zip(written[:memories].split(BATCH), read[:memories].split(BATCH), strict=True):
        problem = Problem(model, model.write(a), x)
        q = problem.inferred()
        found = {"amortised": score(problem, q, generator)}
        found["fitted"] = score(problem, fit(problem, q, steps, generator), generator)
        if not rows:
            found["twice"] = score(problem, fit(problem, q, 2 * steps, generator), generator)
            other = torch.Generator().manual_seed(1)
            found["scales"] = score(problem, fit(problem, q, steps, other, SCALES), other)
        rows.append({f"{when}{kind}": values for when, both in found.items() for kind, values in both.items()})
        print(name, {key: round(float(values.mean()), 2) for key, values in rows[-1].items()}, flush=True)
    return {key: torch.cat([row[key] for row in rows if key in row]).double() for key in rows[0]}


def compared(scores: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
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


def main() -> None:
    """Fit for both models, one process each, and write the file."""
    parser = argparse.ArgumentParser(description="Fit a Gaussian q to each new image.")
    parser.add_argument("--steps", type=int, default=STEPS, help="of Adam")
    parser.add_argument("--memories", type=int, default=MOST_NEW // (CLASSES * WRITTEN), help="with 4 images each")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "evaluation" / "fitted.json")
    args = parser.parse_args()
    with ProcessPoolExecutor(len(MODELS), multiprocessing.get_context("spawn")) as pool:
        jobs = {name: pool.submit(scored, place, args.steps, args.memories) for name, place in MODELS.items()}
        scores = {name: job.result() for name, job in jobs.items()}
    found = {
        "command": "python benchmarks/fitted.py",
        "models": MODELS,
        "images": CLASSES * args.memories,
        "memories": args.memories,
        "seed": 0,
        "settings": {"steps": args.steps, "draws_per_step": 2 * PAIRS, "rates": RATES, "draws": DRAWS},
        **compared(scores),
        "note": "Both models have the same images; the VAE does not see those that were written. Standard errors "
        f"are over memories. twice, scales: with twice the steps, and with T diagonal, in the first {BATCH}.",
    }
    print(json.dumps(found, indent=1))
    runner.save(args.out, found)


if __name__ == "__main__":
    main()
