"""What KL(M) does not charge: other variances, the same reads, a smaller −L_T/T; and a strict bound that does.

    python benchmarks/rescaled.py    # results/evaluation/rescaled.json; ten minutes on one CPU core

Reads are from the mean R of the memory, so nothing keeps a model from calling M uncertain. *Held*: prior_var and
noise_var are c times as large, and addresses stay what they were. R is then the same, and U is c times as large.
*Strict*: with M drawn, c matters. It is part of the prior p(M), so any c gives a bound on ln p(X); the best one on
training images is taken, and scored on test images. So models that call M more or less uncertain can be compared.
The images are those that `kanerva evaluate` draws.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import kanerva
from kanerva import DKM, memory
from kanerva.data import ClassImages, episodes
from kanerva.evaluate import summary
from kanerva.lab import runner
from kanerva.memory import MemoryState, moments

ROOT = Path(__file__).parents[1]
STORED = ROOT / "results" / "models"
MODELS = {
    "omniglot": "omniglot",
    "omniglot-record": str(STORED / "omniglot-record.safetensors"),
    "omniglot-paper": str(STORED / "omniglot-paper.safetensors"),
    "omniglot-small": str(STORED / "omniglot-small.safetensors"),
    "omniglot-new": "omniglot-new",
    "mazes": "mazes",
    "mazes-wide": str(STORED / "mazes-wide.safetensors"),
}
"""Those of mazes are scored where labmaze is at hand."""
IMAGES, LENGTH, BATCH = 2_048, 32, 16
TRAINED = 512
"""Training images by which c is chosen."""
HELD = (1, 10, 1e6)
SCALES = tuple(10 ** (-i / 8) for i in range(49))
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
        x = episodes(images, BATCH, LENGTH, None, generator)
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
    means = strict(model, seen, SCALES, TRAINED).mean(1)
    c = SCALES[int(means.argmin())]
    return {
        "prior_var": float(model.prior_var.detach()),
        "noise_var": float(model.noise_var.detach()),
        "scale": c,
        "strict": summary(strict(model, unseen, [c], IMAGES)[0]),
        "training": float(means.min()),
    }


def main() -> None:
    """Score the models, and write the file; a model whose images are not at hand keeps what the file has."""
    out = ROOT / "results" / "evaluation" / "rescaled.json"
    old = json.loads(out.read_text()) if out.exists() else {}
    found: dict[str, Any] = {"command": "python benchmarks/rescaled.py", "images": IMAGES, "seed": 0}
    for name, place in MODELS.items():
        model, data = kanerva.load(place).eval(), name.split("-")[0]
        assert isinstance(model, DKM)
        try:
            seen, unseen = (kanerva.data.load(data, split) for split in ("train", "test"))
        except ImportError as error:
            print(f"{name}: {error}")
            found[name] = old.get(name)
            continue
        found[name] = {"scaled": scaled(model, seen, unseen)}
        if unseen.binary:
            found[name]["held"] = held(model, unseen)
        print(name, json.dumps(found[name], indent=1), flush=True)
    runner.save(out, found)


if __name__ == "__main__":
    main()
