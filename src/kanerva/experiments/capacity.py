"""Capacity: how retrieval suffers as episodes grow longer, and how much redundancy helps [fig. capacity]."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from .. import objective
from ..data import episodes
from ..models import DKM
from .base import Experiment, Subject, distances, means

# Images in one pass of the codec, which then stays well below a gigabyte.
AT_ONCE = 512


@dataclass(frozen=True, kw_only=True)
class Capacity(Experiment):
    """Retrieval error against the length of an episode, of 2, 4 or 8 unseen classes [fig. capacity].

    The paper's error is the negative of the conditional bound, nats per image with sampled w [sec. 4]. Beside it:
    how far one read-out, without sampling, is from the image that was the cue, and how often no other image of the
    episode is nearer to it. Short episodes are the beginnings of long ones: a curve keeps to the same classes,
    which differ more than lengths do.

    Images are drawn with replacement, so that long episodes of few classes hold the same ones again and again: two
    classes of Omniglot have 40 images in all. `different` says how many there are.
    """

    lengths: tuple[int, ...] = (10, 20, 40, 60, 80, 100, 120, 160, 200)
    """Episode lengths T."""
    classes: tuple[int, ...] = (2, 4, 8)
    """Classes in an episode: the fewer, the more alike its images are."""
    episodes: int = 16
    """Episodes of each length and number of classes."""

    NAME: ClassVar[str] = "capacity"
    SMOKE: ClassVar[dict[str, Any]] = {"lengths": (10, 40), "classes": (2, 8), "episodes": 4}

    @property
    def rounds(self) -> int:
        return len(self.classes) * len(self.lengths)

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        curves = []
        for classes in self.classes:
            x = episodes(subject.unseen, self.episodes, max(self.lengths), classes, generator)
            tables = []
            for length in self.lengths:
                tables.append(measure(subject.model, x[:, :length], generator))
                tick()
            curves.append({name: means(row) for name, row in zip(NAMES, torch.stack(tables, 1), strict=True)})
        return {
            "rows": subject.model.config.rows,
            "unit": "wrong pixels" if subject.unseen.binary else "RMS difference",
            "lengths": list(self.lengths),
            "classes": list(self.classes),
            "curves": curves,
        }


# What is measured of an episode; `measure` gives them in this order.
NAMES = (*objective.NAMES, "distance", "right", "different")


def measure(model: DKM, x: Float[Tensor, "B T c h w"], generator: torch.Generator) -> Float[Tensor, "8 B"]:
    """NAMES of each episode, a few episodes at a time."""
    parts = []
    for some in x.split(max(1, AT_ONCE // x.shape[1])):
        terms = model(model.dequantise(some, generator), generator)
        found = objective.parts(terms)
        parts.append(torch.cat([torch.stack([found[name] for name in objective.NAMES]), readout(model, some)]))
    return torch.cat(parts, dim=1)


def readout(model: DKM, x: Float[Tensor, "B T c h w"]) -> Float[Tensor, "3 B"]:
    """Write episodes, read every image once, and compare what comes with what was written [sec. 3.4]."""
    read = model.recall(model.write(x), x, 1, model.READ).x[0]
    apart = distances(read, x)
    own = apart.diagonal(dim1=-2, dim2=-1)
    right = own <= apart.amin(-1)
    different = [len({image.tobytes() for image in episode}) for episode in x.cpu().numpy()]
    return torch.stack([own.mean(-1), right.to(own).mean(-1), own.new_tensor(different)])
