"""Denoising: recall stored images from damaged ones, in every way and from every kind of damage [fig. omniglot]."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ..data import damage
from ..data.damage import Cue
from ..models import Model, Recall
from ..support.pixels import LEVEL, distances, is_binary
from ..support.say import bar
from .drawing import each, energies, sheet
from .measures import PAPER, TOLD, Damage, answers, holes, judge, mean, means, noisy, recall, recalls, rises, task
from .pictures import pack, unpack
from .runner import Subject
from .tables import Share, Table

SMOKE = {"episodes": 2, "length": 4, "steps": 3, "flips": (0.0, 0.15), "noises": (0.15,), "pictures": 4}
STEP = ", step "
"""Ends the name of a row of pictures, before its step."""


def run(
    who: Subject,
    seed: int = 0,
    *,
    episodes: int = 4,
    length: int = 32,
    steps: int = 15,
    flips: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4),
    noises: tuple[float, ...] = (0.0, 0.15, 0.3),
    pictures: int = 12,
) -> dict[str, Any]:
    """Write images, corrupt them and recall them, in every way and from every kind of damage [sec. 4].

    Noise is never seen in training. Beside the memory stands a yardstick that has more than it: the nearest of the
    stored images themselves, by the pixels that are known to be good.

    episodes: Memories; the spread is over them.
    length: Images in each memory, all of them recalled.
    steps: Steps of recall.
    flips: Binary images: shares of bits to flip.
    noises: Other images: standard deviations of noise to add.
    pictures: Images in the picture.
    """
    model, binary = who.model, who.unseen.binary
    kinds = damages(binary, flips if binary else noises)
    paper = min((kind for kind in kinds if kind.level is not None), key=lambda kind: abs((kind.level or 0) - PAPER))
    given = task(who.unseen, kinds, episodes, length, seed).to(model.device)
    state, x, cells, shown = model.write(given.x), given.x, [], dict[str, Recall]()
    jobs = {kind.name: methods(model, kind, kind is paper) for kind in kinds}
    with bar(f"denoising: {who.name}", sum(map(len, jobs.values()))) as advance:
        for kind, cue in zip(kinds, given.cues, strict=True):
            ends = {}
            for method in jobs[kind.name]:
                path = recall(model, state, cue, kind, method, steps, seed)
                found = measures(path, x)
                ends[method] = final(found)
                if path.certified is not None:
                    ends[method]["certified"] = mean(path.certified)
                if kind is paper:
                    shown[method], headline = path, cue
                advance(1)
            about = {key: getattr(kind, key) for key in ("name", "kind", "level", "noise", "known")}
            cells.append({**about, **yardsticks(cue, x, kind.known), "methods": ends})
    rest = model.energy_at(state, x)
    return {
        "binary": binary,
        "pixels": x[0, 0].numel(),
        "kept": model.kept(length),
        "headline": paper.name,
        "stored": {} if rest is None else {"energy": mean(rest)},
        "cells": cells,
        "steps": {
            method: {key: means(values) for key, values in measures(path, x).items()}
            for method, path in shown.items()
        },
        "pictures": rows(x[0, :pictures], headline.x[0, :pictures], shown, recalls(model, chains=False)),
    }


def damages(binary: bool, levels: Iterable[float]) -> list[Damage]:
    """Every kind of damage; salt and pepper in a share s of pixels is a share s/2 of flips."""

    def salted(x: Tensor, generator: torch.Generator) -> Cue:
        return damage.salt_and_pepper(x, 0.3, generator)

    def flipped_half(x: Tensor, generator: torch.Generator) -> Cue:
        return damage.half(damage.flips(x, 0.1, generator).x)

    others = [
        Damage("30 % salt and pepper", salted, noise=0.15),
        Damage("half erased, rest 10 % flips", flipped_half, noise=0.1, known=True),
    ]
    return [noisy(binary, level) for level in levels] + (others if binary else []) + holes(binary)


def methods(model: Model, kind: Damage, chains: bool) -> list[str]:
    """The ways to recall that are tried on a kind of damage."""
    names = []
    for name in recalls(model, chains):
        names.append(name)
        if kind.noise is not None and name == "descent":
            names.append(name + TOLD)
    return names


def measures(path: Recall, x: Float[Tensor, "E T c h w"]) -> dict[str, Float[Tensor, "S E T"]]:
    """What is measured at every step, of what the model has; rose: whether the energy is above the step before."""
    outcome = judge(path.x, x)
    found = {"wrong": outcome.wrong, "right": outcome.right, "blank": outcome.blank}
    if path.energy is not None:
        found |= {"energy": path.energy, "rose": rises(path.energy)}
    return found if is_binary(x) else {**found, "psnr": psnr(outcome.wrong)}


def psnr(error: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """20 log10(2 / error), the peak signal-to-noise ratio in dB of images that lie on [−1, 1].

    The error is a root mean square. Where it is 0 the ratio has no bound: half a grey level is taken instead.
    """
    return 20 * (2 / error.clamp(min=LEVEL / 2)).log10()


def final(found: dict[str, Float[Tensor, "S E T"]]) -> dict[str, Any]:
    """The last step's measures, and the share of all steps after the first that raised the energy."""
    last = {key: mean(values[-1]) for key, values in found.items() if key != "rose"}
    return last | ({"rose": mean(found["rose"][-len(found["rose"]) + 1 :].mean(0))} if "rose" in found else {})


def yardsticks(cue: Cue, x: Float[Tensor, "E T c h w"], known: bool) -> dict[str, Any]:
    """How bad cues are, and how well the nearest stored image does, by the pixels that are known to be good."""
    outcome = judge(cue.x, x)
    wrong = {"wrong": mean(outcome.wrong)} | ({} if is_binary(x) else {"psnr": mean(psnr(outcome.wrong))})
    trusted = 1 if cue.mask is None or not known else cue.mask[:, :, None]
    apart = ((cue.x[:, :, None] - x[:, None]) * trusted).square().sum((-3, -2, -1))
    missed = distances(x, x).gather(-1, apart.argmin(-1, keepdim=True))
    return {"cue": wrong, "nearest": {"right": mean(answers(apart)[1].to(missed)), "wrong": mean(missed)}}


def rows(
    x: Float[Tensor, "n c h w"], cue: Float[Tensor, "n c h w"], paths: dict[str, Recall], methods: list[str]
) -> dict[str, Any]:
    """Rows of images of the first memory: originals, cues, and early steps and the last of each way to recall."""
    found = {"original": x, "cue": cue}
    for method in methods:
        path = paths[method].x
        for step in sorted({1, 2, 4, len(path)} & set(range(len(path) + 1))):
            found[f"{method}{STEP}{step}"] = path[step - 1, 0, : len(x)]
    return {"rows": list(found), "images": pack(torch.stack(list(found.values())))}


def table(result: dict[str, Any]) -> Table:
    """How recall ends, from the damage of the paper."""
    cell = next(cell for cell in result["cells"] if cell["name"] == result["headline"])
    unit = f"wrong pixels of {result['pixels']}" if result["binary"] else "root mean square error"
    other, kept = cell["nearest"], result["kept"]
    rows = [["the cue", cell["cue"]["wrong"], cell["cue"].get("psnr"), None, None, None]]
    for name, m in cell["methods"].items():
        rows.append([name, m["wrong"], m.get("psnr"), Share(m["right"]), Share(m.get("rose")), kept])
    rows.append(["nearest stored image to the cue", other["wrong"], None, Share(other["right"]), None, None])
    head = ["PSNR, dB", "nearest to the right image", "steps that raise the energy", "floats kept"]
    if result["binary"]:
        head, rows = head[1:], [[*row[:2], *row[3:]] for row in rows]
    return Table([f"from {cell['name']}", unit, *head], rows)


def figures(models: list[dict[str, Any]]) -> dict[str, Figure]:
    """Pictures, and energies step by step, for each model."""
    return each(models, pictures=pictures, energy=energies)


def pictures(result: dict[str, Any]) -> Figure:
    """Originals, cues and steps of recall, a row each; steps that change nothing are left out."""
    names, images = result["pictures"]["rows"], result["pictures"]["images"]
    pixels = unpack(images)
    kept = [i for i in range(len(names)) if i == 0 or not np.array_equal(pixels[i], pixels[i - 1])]
    figure = Figure(figsize=(1.4 + 0.4 * pixels.shape[1], 0.4 * len(kept) + 0.3), layout="constrained")
    axes = figure.subplots()
    sheet(axes, images, kept)
    height = pixels.shape[-2] + 2
    for row, i in enumerate(kept):
        axes.text(-2, (row + 0.5) * height, names[i], ha="right", va="center", fontsize=8)
    axes.set_title(f"Recall from {result['headline']}")
    return figure
