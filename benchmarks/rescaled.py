"""What KL(M) does not charge: other variances, the same reads or nearly so, and a smaller −L_T/T.

    python benchmarks/rescaled.py    # results/evaluation/rescaled.json

Reads are from the mean R of the memory, so nothing keeps a model from calling M uncertain. *Held*: prior_var and
noise_var are c times as large, and addresses stay what they were. R is then the same, and U is c times as large.
*Changed*: noise_var is c times as large, prior_var c² times, and the model is scored as it then is. The images are
those that `kanerva evaluate` draws.
"""

import copy
import json
import math
from pathlib import Path
from typing import Any

import torch

import kanerva
from kanerva import DKM, memory
from kanerva.data import ClassImages, episodes
from kanerva.experiments import base
from kanerva.memory import MemoryState
from kanerva.models.dkm import STRICT

ROOT = Path(__file__).parents[1]
MODELS = {"omniglot": "omniglot", "omniglot-record": str(ROOT / "results/models/omniglot-record.safetensors")}
IMAGES = 2_048
HELD, CHANGED = (1, 10, 1e6), (1, 1.25, 1.5, 2)


@torch.no_grad()
def held(model: DKM, images: ClassImages) -> dict[str, float]:
    """KL(M)/T for each c, in float64, with the memories as they are."""
    generator, found = torch.Generator().manual_seed(0), {c: [] for c in HELD}  # type: ignore[var-annotated]
    for _ in range(IMAGES // (16 * 32)):
        x = episodes(images, 16, 32, None, generator)
        R, U = model.write(x).to(torch.float64)
        for c in HELD:
            blank = memory.prior(model.R0.double(), c * model.prior_var.double(), (16,))
            found[c].append(memory.kl_memory(MemoryState(R, c * U), blank) / 32)
        model(x, generator)  # so that the next images are those of `evaluate`
    return {f"{c:g}": float(torch.cat(values).mean()) for c, values in found.items()}


@torch.no_grad()
def changed(model: DKM, images: ClassImages) -> list[dict[str, Any]]:
    """The scores of the model with other variances."""
    rows = []
    for c in CHANGED:
        other = copy.deepcopy(model)
        other.log_noise_var += math.log(c)
        other.log_prior_var += 2 * math.log(c)
        score = kanerva.evaluate(other, images, count=IMAGES)
        strict = score.extra[STRICT]["mean"]
        scores = {"nats": score.nats, "kl_memory": score.kl_memory, "bound": score.bound, "strict": strict}
        rows.append({"noise_var": c, "prior_var": c * c, **scores})
    return rows


def main() -> None:
    """Score both models, and write the file."""
    images = kanerva.data.load("omniglot", "test")
    found: dict[str, Any] = {"command": "python benchmarks/rescaled.py", "images": IMAGES, "seed": 0}
    for name, place in MODELS.items():
        model = kanerva.load(place)
        assert isinstance(model, DKM)
        found[name] = {"held": held(model, images), "changed": changed(model, images)}
        print(name, json.dumps(found[name], indent=1))
    base.save(ROOT / "results" / "evaluation" / "rescaled.json", found)


if __name__ == "__main__":
    main()
