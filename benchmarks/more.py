"""More: new images of a class that the model has never seen, from a few examples of it.

The examples are written into a blank memory, and images are drawn from it in three ways. Are they of the class? The
nearest of held-out images of many classes says it. Are they new? Their distance to the nearest example says it,
beside that of fresh images of the class. Is it the memory's work? Draws from the examples' codes need none, and are
judged as well.

`python benchmarks/more.py --checkpoint omniglot-new omniglot --episodes 256 --out results/more/omniglot.json`
"""

import sys
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from kanerva import DKM
from kanerva.data import ClassImages
from kanerva.lab import runner
from kanerva.lab.drawing import each, sheet
from kanerva.lab.measures import mean
from kanerva.lab.pictures import pack
from kanerva.lab.runner import Subject
from kanerva.lab.tables import Share, Table
from kanerva.recall import methods
from kanerva.support.pixels import distances
from kanerva.support.say import bar

NEEDS = "dkm"
SMOKE = {"episodes": 2, "examples": 2, "samples": 2, "among": 2, "steps": 2, "pictures": 1}


def run(
    who: Subject,
    seed: int = 0,
    *,
    episodes: int = 64,
    examples: int = 10,
    samples: int = 10,
    among: int = 20,
    steps: int = 15,
    pictures: int = 6,
) -> dict[str, Any]:
    """Write a few images of a class, draw more, and ask whether these are of the class and new.

    episodes: Classes to draw more of, each with a memory of its own; the spread is over them.
    examples: Images of the class that are written; as many others of it are held out.
    samples: Images to draw from each memory, in each way.
    among: Classes that an image is told from, its own among them.
    steps: Steps of recall after a draw from the prior, as in the paper.
    pictures: Classes in the picture.
    """
    model = who.model
    assert isinstance(model, DKM)
    # of their own generator, on the CPU: the same for every model, whatever noise it draws
    images, cases = who.unseen.to("cpu"), torch.Generator().manual_seed(seed)
    generator, rows, shown = torch.Generator(model.device).manual_seed(seed), [], []
    with bar(f"more: {who.name}", episodes) as advance:
        for _ in range(episodes):
            case = Case(*(x.to(model.device) for x in draw(images, examples, among, cases)))
            state = model.write(case.written)
            path = model.sample(state, samples, steps, generator)
            drawn = {
                "like the examples": model.more(state, case.written, samples, generator).last,
                "from the prior": path.x[0],
                f"from the prior, {steps} steps of recall": path.last,
            }
            codes = methods.like(model.encode(case.written), samples, generator)
            judged = {**drawn, "like their codes, without a memory": model.decode(codes).mode()}
            rows.append({name: judge(x, case) for name, x in judged.items()} | {"fresh images": fresh(case)})
            shown.append({"written": case.written, **drawn})
            advance(1)
    return {
        "binary": who.unseen.binary,
        "pixels": shown[0]["written"][0].numel(),
        "by chance": 1 / among,
        "sets": {name: together([row[name] for row in rows]) for name in rows[0]},
        "pictures": {name: pack(torch.stack([row[name] for row in shown[:pictures]])) for name in shown[0]},
    }


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
    near = distances(x, case.held_out.flatten(0, 1)).argmin(-1)
    apart = distances(x, case.written).amin(-1)
    right = near < case.held_out.shape[1]
    return {"right": float(right.double().mean()), "apart": float(apart.mean())}


def fresh(case: Case) -> dict[str, float]:
    """The same of real images of the class: all are drawn alike, so the written ones are told as any others are.

    The held-out images cannot be: to tell them, one image of the class is missing.
    """
    return {"right": judge(case.written, case)["right"], "apart": judge(case.held_out[0], case)["apart"]}


def together(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Means over classes, with their standard errors."""
    return {key: mean(torch.tensor([row[key] for row in rows])) for key in rows[0]}


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """Pictures for each model."""
    return each(models, pictures=pictures)


def pictures(result: dict[str, Any]) -> Figure:
    """A class a row; written images, and beside them those that were drawn in each way."""
    shown = result["pictures"]
    rows, columns = next(iter(shown.values()))["shape"][:2]
    figure = Figure(figsize=(0.24 * (columns + 1) * len(shown), 0.24 * rows + 0.6), layout="constrained")
    for axes, (name, packed) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        sheet(axes, packed)
        found = result["sets"].get(name)
        axes.set_title(f"{name}\n{100 * found['right']['mean']:.0f} % of the class" if found else f"{name}\n")
    return figure


if __name__ == "__main__":
    runner.script(sys.modules[__name__], "python benchmarks/more.py")
