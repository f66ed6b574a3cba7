"""What a memory knows of new images: the same ones in memories of their classes, of none and of others.

    python benchmarks/classes.py    # results/evaluation/classes.json; two minutes on two CPU cores

The memories and the new images are those of `evaluate.new_images`: ten images of each of four test classes are
written, and ten others of each are read. The same are read from a blank memory, and from that of the episode
before, which is of other classes (6 of 102 share one). All models see the same images, and each draws the same
noise for all its memories. Standard errors, those of differences too, are over episodes.
"""

import json
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import kanerva
from fitted import CLASSES, MODELS, ROOT, loaded
from kanerva.evaluate import MOST_NEW, WRITTEN, halves, summary
from kanerva.lab import runner
from kanerva.models import Model

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


def main() -> None:
    """Score the models, and write the file."""
    episodes = MOST_NEW // (CLASSES * WRITTEN)
    written, read = halves(kanerva.data.load("omniglot", "test"), episodes, CLASSES, 2 * WRITTEN, seed=0)
    scores = {name: scored(loaded(place), written, read) for name, place in MODELS.items()}
    found = {
        "command": "python benchmarks/classes.py",
        "models": MODELS,
        "images": read.shape[0] * read.shape[1],
        "episodes": episodes,
        "seed": 0,
        **compared(scores),
    }
    print(json.dumps(found, indent=1))
    runner.save(ROOT / "results" / "evaluation" / "classes.json", found)


if __name__ == "__main__":
    main()
