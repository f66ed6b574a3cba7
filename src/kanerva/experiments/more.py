"""More: new images of a class that the model has never seen, from a few examples of it.

The examples are written into a blank memory, and images are drawn from it in three ways. Are they of the class? The
nearest of held-out images of many classes says it. Are they new? Their distance to the nearest example says it,
beside that of fresh images of the class. Is it the memory's work? Draws from the examples' codes need none, and are
judged as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..data import ClassImages
from ..models import DKM, Model
from ..recall import methods
from ..support import checks
from . import base
from .base import Experiment, Subject
from .tables import Share, Table


@dataclass(frozen=True, kw_only=True)
class More(Experiment):
    """Write a few images of a class, draw more, and ask whether these are of the class and new."""

    episodes: int = 64
    """Classes to draw more of, each with a memory of its own; the spread is over them."""
    examples: int = 10
    """Images of the class that are written; as many others of it are held out."""
    samples: int = 10
    """Images to draw from each memory, in each way."""
    among: int = 20
    """Classes that an image is told from, its own among them."""
    steps: int = 15
    """Steps of recall after a draw from the prior, as in the paper."""
    pictures: int = 6
    """Classes in the picture."""

    NAME: ClassVar[str] = "more"
    TITLE: ClassVar[str] = "More of a class"
    ABOUT: ClassVar[str] = (
        "A few images of a class that the model has never seen are written into a blank memory, and more are drawn "
        "from it. They should be of the class: the nearest of held-out images of many classes should be one of it. "
        "And they should be new: as far from the examples as fresh images of the class are. Draws from the codes "
        "of the examples, decoded without a memory, show what the memory adds."
    )
    FIGURES: ClassVar[dict[str, str]] = {
        "pictures": "Classes, a row each: what was written, and then what was drawn, in three ways.",
    }
    NEEDS: ClassVar[str | None] = "dkm"
    SMOKE: ClassVar[dict[str, Any]] = {
        "episodes": 2,
        "examples": 2,
        "samples": 2,
        "among": 2,
        "steps": 2,
        "pictures": 1,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, episodes=1, examples=2, samples=1, among=2, steps=1, pictures=1)

    def rounds(self, model: Model) -> int:
        return self.episodes

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        model = base.only(subject.model, DKM)
        # of their own generator, on the CPU: the same for every model, whatever noise it draws
        images, cases = subject.unseen.to("cpu"), torch.Generator().manual_seed(self.seed)
        rows, shown = [], []
        for _ in range(self.episodes):
            case = Case(*(x.to(model.device) for x in draw(images, self.examples, self.among, cases)))
            state = model.write(case.written)
            path = model.sample(state, self.samples, self.steps, generator)
            drawn = {
                "like the examples": model.more(state, case.written, self.samples, generator).last,
                "from the prior": path.x[0],
                f"from the prior, {self.steps} steps of recall": path.last,
            }
            codes = methods.like(model.encode(case.written), self.samples, generator)
            judged = {**drawn, "like their codes, without a memory": model.decode(codes).mode()}
            rows.append({name: judge(x, case) for name, x in judged.items()} | {"fresh images": fresh(case)})
            shown.append({"written": case.written, **drawn})
            tick()
        return {
            "binary": subject.unseen.binary,
            "pixels": shown[0]["written"][0].numel(),
            "by chance": 1 / self.among,
            "sets": {name: together([row[name] for row in rows]) for name in rows[0]},
            "pictures": {
                name: base.pack(torch.stack([row[name] for row in shown[: self.pictures]])) for name in shown[0]
            },
        }

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """Whether images are of the class, and how far from the nearest example."""
        unit = "pixels" if result["binary"] else "root mean square"
        rows = [[name, Share(found["right"]), found["apart"]] for name, found in result["sets"].items()]
        rows.append(["by chance", Share(result["by chance"]), None])
        return Table(["", "of the class", f"{unit} from the nearest example"], rows)


class Case(NamedTuple):
    """Images of a class to write, and held-out images of many classes, of which this one is the first."""

    written: Float[Tensor, "E c h w"]
    held_out: Float[Tensor, "among E c h w"]


def draw(images: ClassImages, examples: int, among: int, generator: torch.Generator) -> Case:
    """Some classes at random, and of each as many images to hold out as are written of the first."""
    fit = (images.count >= 2 * examples).nonzero()[:, 0]
    if len(fit) < among:
        raise ValueError(
            f"among: expected at most {len(fit)}, as many classes of {images.name}/{images.split} as have "
            f"{2 * examples} images, got {among}; fewer --examples may help"
        )
    chosen = fit[torch.randperm(len(fit), generator=generator, device=fit.device)[:among]].tolist()
    sets = []
    for c in chosen:
        order = torch.randperm(int(images.count[c]), generator=generator, device=fit.device)[: 2 * examples]
        sets.append(images.images(images.start[c] + order))
    return Case(sets[0][:examples], torch.stack([x[examples:] for x in sets]))


def judge(x: Float[Tensor, "n c h w"], case: Case) -> dict[str, float]:
    """The share of images whose nearest held-out one is of the class, and how far they are from the examples."""
    near = base.distances(x, case.held_out.flatten(0, 1)).argmin(-1)
    apart = base.distances(x, case.written).amin(-1)
    right = near < case.held_out.shape[1]
    return {"right": float(right.double().mean()), "apart": float(apart.mean())}


def fresh(case: Case) -> dict[str, float]:
    """The same of real images of the class: all are drawn alike, so the written ones are told as any others are.

    The held-out images cannot be: to tell them, one image of the class is missing.
    """
    return {"right": judge(case.written, case)["right"], "apart": judge(case.held_out[0], case)["apart"]}


def together(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Means over classes, with their standard errors."""
    return {key: base.mean(torch.tensor([row[key] for row in rows])) for key in rows[0]}
