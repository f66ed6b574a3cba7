"""Capacity: how retrieval suffers as episodes grow longer, and how much redundancy helps [fig. capacity]."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..data import ClassImages, episodes
from ..likelihood import bits_per_dimension
from ..models import Model
from ..support import checks
from .base import Experiment, Subject, distances, fingerprint, means
from .tables import Share, Table, point

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
    TITLE: ClassVar[str] = "Capacity"
    ABOUT: ClassVar[str] = (
        "Episodes of growing length are written into one memory, and every image is then read back. A memory of a "
        "fixed size holds more and more images in the same space, so that each is remembered worse; images of few "
        "classes are alike, and share better. The paper claims that the curves stay flat far beyond the length "
        "that the model was trained with."
    )
    FIGURES: ClassVar[dict[str, str]] = {
        "": "The score against the number of images in memory, how far a read-out is from its image, and how often "
        "no other stored image is nearer. The dotted line, for a memory of rows, is where there are as many images "
        "as rows.",
    }
    SMOKE: ClassVar[dict[str, Any]] = {"lengths": (10, 40), "classes": (2, 8), "episodes": 4}

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, lengths=1, classes=1, episodes=1)

    def rounds(self, model: Model) -> int:
        return len(self.classes) * len(self.lengths)

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        tasks, curves = self.tasks(subject.unseen), []
        for task in tasks:
            x, found = task.to(subject.model.device), []
            for length in self.lengths:
                found.append(measure(subject.model, x[:, :length], generator))
                tick()
            curves.append({name: means(torch.stack([row[name] for row in found])) for name in found[0]})
        return {
            "rows": getattr(subject.model.config, "rows", None),
            "kept": [subject.model.kept(length) for length in self.lengths],
            "unit": "wrong pixels" if subject.unseen.binary else "RMS difference",
            "lengths": list(self.lengths),
            "classes": list(self.classes),
            "curves": curves,
            "sha256": fingerprint(tasks),
        }

    def tasks(self, images: ClassImages) -> list[Float[Tensor, "B T c h w"]]:
        """The longest episodes of each number of classes, the same for every model and on every device.

        They have a generator of their own: models draw noise, some more of it than others.
        """
        generator, images = torch.Generator().manual_seed(self.seed), images.to("cpu")
        return [episodes(images, self.episodes, max(self.lengths), n, generator) for n in self.classes]

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """The score, the distance, the share that is right and the memory's size, for the least and most images."""
        lengths, rows = result["lengths"], []
        kept = result.get("kept", [None] * len(lengths))  # which earlier results do not say
        for classes, curves in zip(result["classes"], result["curves"], strict=True):
            for i in sorted({0, len(lengths) - 1}):
                error, apart, right = (point(curves[name], i) for name in (score(result), "distance", "right"))
                rows.append([f"{lengths[i]} images of {classes} classes", error, apart, Share(right), kept[i]])
        named = SCORES[score(result)]
        return Table(["", named, result["unit"], "nearest to the right image", "floats kept"], rows)


SCORES = {"nats": "nats per image", "bits": "bits per dimension"}
"""The paper's error of binary images, and of others."""


def score(result: dict[str, Any]) -> str:
    """Which of the two a result has."""
    return "bits" if "bits" in result["curves"][0] else "nats"


def measure(
    model: Model, x: Float[Tensor, "B T c h w"], generator: torch.Generator
) -> dict[str, Float[Tensor, "B"]]:
    """The terms of each episode that the model has, and its read-outs, a few episodes at a time."""
    parts = []
    for some in x.split(max(1, AT_ONCE // x.shape[1])):
        terms = model(model.dequantise(some, generator), generator)
        parts.append({**terms.parts(), **readout(model, some)})
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if not model.config.binary:  # whose nats, of a density, may be negative
        found["bits"] = bits_per_dimension(found["nats"], x[0, 0].numel())
    return found


def readout(model: Model, x: Float[Tensor, "B T c h w"]) -> dict[str, Float[Tensor, "B"]]:
    """Write episodes, read every image once, and compare what comes with what was written [sec. 3.4].

    distance: between an image and its read-out; right: no other image of the episode is nearer to the read-out;
    different: how many different images the episode has.
    """
    read = model.recall(model.write(x), x, 1, model.READ).last
    apart = distances(read, x)
    own = apart.diagonal(dim1=-2, dim2=-1)
    right = own <= apart.amin(-1)
    different = [len({image.tobytes() for image in episode}) for episode in x.cpu().numpy()]
    return {
        "distance": own.mean(-1),
        "right": right.to(own).mean(-1),
        "different": own.new_tensor(different),
    }
