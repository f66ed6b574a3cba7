"""What template.html shows. Jinja escapes all of it."""

import base64
import contextlib
import hashlib
import json
import platform
import re
import time
from pathlib import Path
from typing import Any

import jinja2
import torch

from ... import __version__
from ...lab import EXPERIMENTS, drawing, find
from ...lab.tables import Table, is_number, plus_minus, show
from ...models import MODELS, Model
from ...training.loop import FEW
from . import figures
from .gather import Material, Results, part

HERE = Path(__file__).parent


def page(material: Material) -> str:
    """The whole page. Its policy forbids a browser to fetch anything, and to run anything but its own script."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((HERE / name).read_text("utf-8") for name in ("style.css", "script.js"))
    return environment.get_template("template.html").render(
        style=style,
        script=script,
        policy=f"default-src 'none'; base-uri 'none'; img-src data:; style-src {digest(style)}; "
        f"script-src {digest(script)}",
        material=material,
        title=title(material),
        facts=facts(material),
        score=score(material),
        risen=risen(material),
        gallery=gallery(material),
        curve=curve(material),
        sections=[section(results, material) for results in material.results],
        experiments=list(EXPERIMENTS),
        config=indented(material.config) if material.config else "",
        download=download({name: getattr(material, name) for name in ("config", "metrics", "scores")}),
        made=f"Made on {time.strftime('%Y-%m-%d')} by kanerva report of kanerva {__version__}, torch "
        f"{torch.__version__}, Python {platform.python_version()}.",
    )


def digest(text: str) -> str:
    """What a policy says of a style or a script that is allowed: its SHA-256."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def download(tree: Any) -> str:
    """JSON as an address that holds all of it."""
    text = json.dumps(tree, ensure_ascii=False, default=str)
    return figures.embed(text.encode("utf-8", "replace"), "application/json")


def indented(tree: Any) -> str:
    return json.dumps(tree, indent=1, ensure_ascii=False, default=str)


# The model and its scores


def kind_of(material: Material) -> str:
    """The kind of the model: that of the config, or, without one, of results; dkm if silent."""
    model = part(material.config, "model")
    named = [found.get("kind") for results in material.results for found in results.models] if not model else []
    return next((kind for kind in (model.get("kind"), *named) if isinstance(kind, str)), "dkm")


def title(material: Material) -> str:
    """The full name of a model of this kind."""
    kind = kind_of(material)
    return MODELS[kind].TITLE if kind in MODELS else kind


def facts(material: Material) -> Table:
    """What was trained, as far as it is known."""
    about, model = material.checkpoint, part(material.config, "model")
    dataset, image = part(material.config, "data").get("dataset"), model.get("image")
    rows = {
        "trained on": dataset and plain_name(dataset),
        "checkpoint": about.get("file"),
        "steps": about.get("step"),
        "steps planned": part(material.config, "train").get("steps"),
        "seed": part(material.config, "train").get("seed"),
        "parameters": about.get("parameters"),
        "rows, K": model.get("rows"),
        "code, C": model.get("code"),
        "image": " × ".join(map(str, image)) if isinstance(image, list) else None,
        **{
            f"{re.sub('_var$', '_variance', name).replace('_', ' ')}, learned": value
            for name, value in part(about, "learned").items()
        },
    }
    return Table(["", ""], [[name, value] for name, value in rows.items() if value is not None]).text()


def plain_name(dataset: Any) -> str:
    """A data set's name; of a path its last part."""
    return Path(str(dataset)).name or str(dataset)


SCORES = {
    "nats": "score, of stored images; excludes KL(M)",
    "reconstruction": "of it, reconstruction: −ln p(x | w, M)",
    "kl_weights": "of it, KL({latent})",
    "kl_memory": "KL(M) / T, the cost of the memory",
    "bound": "−L_T / T, the score and KL(M) / T: what training descends",
    "new": "new images of written classes",
    "blank": "empty memory",
    "autoencoder": "encoder and decoder without the memory",
    "mean_image": "predicting the mean training image",
    "bits_per_dimension": "the score in bits per pixel and channel",
}


def score(material: Material) -> dict[str, Any] | None:
    """The score that the page begins with, term by term, and other evaluations."""
    if not material.scores:
        return None
    first = material.scores[0]
    latent = MODELS.get(kind_of(material), Model).LATENT
    terms = {label.format(latent=latent): first.get(name) for name, label in SCORES.items()}
    terms |= part(first, "extra") | {f"in bits, {way}": value for way, value in part(first, "bits").items()}
    values = [(score_line(one), plus_minus(one["nats"], one["nats_stderr"])) for one in material.scores]
    (line, value), *others = values
    rows = [
        [name, f"{x:,.2f}".replace("-", "−") if is_number(x) else x] for name, x in terms.items() if x is not None
    ]
    return {
        "value": value,
        "line": line,
        "terms": Table(["nats per image", ""], rows).text(),
        "others": Table(["", "nats per image"], [list(other) for other in others]),
    }


def score_line(score: dict[str, Any]) -> str:
    """What a score was measured on."""
    dataset, images, different = (score.get(name) for name in ("dataset", "images", "different"))
    split = score.get("split", "test")
    drawn = f"{show(images)} {split} images"
    if is_number(images) and is_number(different) and different < images:
        drawn = f"{show(images)} draws from {'only ' if different < FEW else ''}{show(different)} {split} images"
    parts = [
        f"{drawn}{f' of {plain_name(dataset)}' if dataset else ''} "
        f"in {show(score.get('episodes'))} episodes of {show(score.get('length'))}"
    ]
    names = {
        "classes": "classes in each",
        "seed": "seed",
        "block": "in blocks of",
        "iterations": "rounds",
        "step": "step",
    }
    parts += [f"{label} {show(score[name])}" for name, label in names.items() if is_number(score.get(name))]
    return ", ".join(parts)


def risen(material: Material) -> str:
    """That the validation score was better before the end, and which checkpoint this page is about."""
    found = [(line.get("step"), part(line, "validation").get("nats")) for line in material.metrics]
    tests = [(step, nats) for step, nats in found if is_number(step) and is_number(nats)]
    if not tests or min(tests, key=lambda test: test[1])[1] >= tests[-1][1]:
        return ""
    (step, least), (end, last) = min(tests, key=lambda test: test[1]), tests[-1]
    here = " This page is about that checkpoint." if material.checkpoint.get("step") == step else ""
    return (
        f"The validation score was best at step {show(step)}, {least:,.2f} nats per image, and {last:,.2f} at step "
        f"{show(end)}.{here}"
    )


def curve(material: Material) -> str | None:
    """The curve of the run; None where there is none, or lines that cannot be drawn."""
    if not material.metrics:
        return None
    try:
        return figures.curve(material.metrics)
    except Exception as error:  # damaged lines may hold anything
        material.missing.append(f"The training curve could not be drawn: {error}")
        return None


def gallery(material: Material) -> dict[str, Any]:
    """Pictures to begin with: stored images, cues, and what was recalled, model by model."""
    for results in material.results:
        with contextlib.suppress(Exception):  # results of another version may hold anything
            return {
                show(model.get("name")): figures.strips(model["result"]["pictures"]) for model in results.models
            }
    return {}


# Experiments


def section(results: Results, material: Material) -> dict[str, Any]:
    """All that the page says of an experiment: what it asks, its numbers and figures, and where they come from."""
    data, config, experiment = results.data, part(results.data, "config"), find(results.name)
    images = dict.fromkeys(plain_name(model["dataset"]) for model in results.models if model.get("dataset"))
    said = {"images of": ", ".join(images) or None, "seed": config.get("seed"), "episodes": config.get("episodes")}
    said |= {name: data.get(name) for name in ("date", "device", "seconds")}
    warnings, tables, drawn = doubts(results, material), list[tuple[str, Table]](), list[str]()
    try:
        tables = [(show(model.get("name")), experiment.table(model["result"]).text()) for model in results.models]
        drawn = list(map(figures.vector, drawing.figures(experiment, results.models).values()))
    except Exception as error:  # results of another version may hold anything
        warnings.append(f"Not all of this can be shown ({type(error).__name__}: {error}): made by another version?")
    return {
        "anchor": f"experiment-{results.name}",
        "title": results.name.replace("-", " ").capitalize(),
        "line": EXPERIMENTS[results.name],
        "warnings": warnings,
        "tables": tables,
        "figures": drawn,
        "file": results.path.name,
        "command": show(data["command"]) if data.get("command") else "",
        "source": ", ".join(f"{name} {show(value)}" for name, value in said.items() if value is not None),
        "flags": indented({**config, "versions": data.get("versions")}),
        "download": download(data),
    }


def doubts(results: Results, material: Material) -> list[str]:
    """What is to be said before the numbers of an experiment are believed."""
    found = ["A smoke run, too small for its numbers to mean anything."] if results.data.get("smoke") else []
    if material.checkpoint and material.checkpoint.get("crc32") not in [m.get("crc32") for m in results.models]:
        steps = [f"{show(model.get('name'))} at step {show(model.get('step'))}" for model in results.models]
        found.append(f"Made with another checkpoint than this: {', '.join(steps) or 'not known'}.")
    return found
