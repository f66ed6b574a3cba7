"""Capacity: how retrieval suffers as episodes grow longer, and how much redundancy helps [fig. capacity]."""

from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ..data import episodes as drawn
from ..likelihood import bits_per_dimension
from ..models import Model
from ..support.pixels import distances
from ..support.say import bar
from .drawing import curve, legend, look
from .measures import answers, fingerprint, means
from .runner import Subject
from .tables import Share, Table, point

SMOKE = {"lengths": (10, 40), "classes": (2, 8), "episodes": 4}
AT_ONCE = 512
"""Images in one pass of the codec, which then stays well below a gigabyte."""
SCORES = {"nats": "nats per image", "bits": "bits per dimension"}
"""The paper's error of binary images, and of others."""


def run(
    who: Subject,
    seed: int = 0,
    *,
    lengths: tuple[int, ...] = (10, 20, 40, 60, 80, 100, 120, 160, 200),
    classes: tuple[int, ...] = (2, 4, 8),
    episodes: int = 16,
) -> dict[str, Any]:
    """Retrieval error against the length of an episode, of 2, 4 or 8 unseen classes [fig. capacity].

    The paper's error is the negative of the conditional bound, nats per image with sampled w [sec. 4]. Beside it:
    how far one read-out, without sampling, is from the image that was the cue, and how often no other image of the
    episode is nearer to it. Short episodes are the beginnings of long ones. Images are drawn with replacement:
    `different` counts how many there are. All models see the same ones.

    lengths: Episode lengths T.
    classes: Classes in an episode: the fewer, the more alike its images are.
    episodes: Episodes of each length and number of classes.
    """
    chance, images = torch.Generator().manual_seed(seed), who.unseen.to("cpu")
    tasks = [drawn(images, episodes, max(lengths), n, chance) for n in classes]
    generator, curves = torch.Generator(who.model.device).manual_seed(seed), []
    with bar(f"capacity: {who.name}", len(tasks) * len(lengths)) as advance:
        for task in tasks:
            x, found = task.to(who.model.device), []
            for length in lengths:
                found.append(measure(who.model, x[:, :length], generator))
                advance(1)
            curves.append({name: means(torch.stack([row[name] for row in found])) for name in found[0]})
    return {
        "rows": getattr(who.model.config, "rows", None),
        "kept": [who.model.kept(length) for length in lengths],
        "unit": "wrong pixels" if who.unseen.binary else "RMS difference",
        "lengths": list(lengths),
        "classes": list(classes),
        "curves": curves,
        "sha256": fingerprint(tasks),
    }


def measure(
    model: Model, x: Float[Tensor, "B T c h w"], generator: torch.Generator
) -> dict[str, Float[Tensor, "B"]]:
    """The terms of each episode that the model has, and its read-outs, a few episodes at a time [sec. 3.4].

    distance: between an image and its read-out; right: no other image of the episode is nearer to the read-out.
    """
    parts = []
    for some in x.split(max(1, AT_ONCE // x.shape[1])):
        terms = model(model.dequantise(some, generator), generator).parts()
        wrong, right = answers(distances(model.recall(model.write(some), some, 1, model.READ).last, some))
        different = [len({image.tobytes() for image in episode}) for episode in some.cpu().numpy()]
        read = {
            "distance": wrong.mean(-1),
            "right": right.to(wrong).mean(-1),
            "different": wrong.new_tensor(different),
        }
        parts.append({**terms, **read})
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if not model.config.binary:  # whose nats, of a density, may be negative
        found["bits"] = bits_per_dimension(found["nats"], x[0, 0].numel())
    return found


def score(result: dict[str, Any]) -> str:
    """Which of SCORES a result has."""
    return "bits" if "bits" in result["curves"][0] else "nats"


def table(result: dict[str, Any]) -> Table:
    """The score, the distance, the share that is right and the memory's size, for the least and most images."""
    lengths, names = result["lengths"], (score(result), "distance", "right")
    rows = []
    for classes, curves in zip(result["classes"], result["curves"], strict=True):
        for i in sorted({0, len(lengths) - 1}):
            error, apart, right = (point(curves[name], i) for name in names)
            rows.append(
                [f"{lengths[i]} images of {classes} classes", error, apart, Share(right), result["kept"][i]]
            )
    return Table(["", SCORES[names[0]], result["unit"], "nearest to the right image", "floats kept"], rows)


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """One model's error and distance by number of classes; of several, the error, a panel for each number."""
    results = [model["result"] for model in models]
    kind, classes = score(results[0]), [f"{n} unseen classes" for n in results[0]["classes"]]
    error = f"retrieval error ({SCORES[kind]})"
    if len(models) == 1:
        panels = {error: (kind, results[0]["curves"], classes)}
        panels[f"{results[0]['unit']} of one read-out"] = ("distance", results[0]["curves"], classes)
    else:
        names = [model["name"] for model in models]
        panels = {n: (kind, [result["curves"][i] for result in results], names) for i, n in enumerate(classes)}
    figure = Figure(figsize=(3.6 * len(panels), 3.4), layout="constrained")
    for axes, (title, (name, curves, labels)) in zip(
        figure.subplots(1, len(panels), sharey=len(models) > 1, squeeze=False)[0], panels.items(), strict=True
    ):
        for number, (values, label) in enumerate(zip(curves, labels, strict=True)):
            curve(axes, results[0]["lengths"], values[name], label, look(number))
        for rows in {result["rows"] for result in results} - {None}:
            axes.axvline(rows, color="0.5", linewidth=0.9, linestyle=":", zorder=0)  # as many images as rows
        axes.set(title=title, xlabel="images in memory")
    figure.axes[0].set_ylabel(error if len(models) > 1 else "")
    if kind == "nats":  # nats of a density may be negative, and bits begin far above 0
        figure.axes[0].set_ylim(bottom=0)
    legend(figure)
    return {"": figure}
