"""The page in words: what template.html shows. Jinja escapes all of it."""

import base64
import contextlib
import hashlib
import json
import platform
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import torch
from PIL import Image

from .. import __version__, experiments
from ..experiments import EXPERIMENTS, plots
from ..experiments.base import Experiment
from ..experiments.tables import Table, is_number, plus_minus, show
from ..files import contents
from ..models import MODELS, Model
from ..train import FEW
from . import figures
from .figures import Picture, Strip
from .gather import Material, Results, at, number, part

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
    pictures = gallery(material)
    style, script = ((HERE / name).read_text("utf-8") for name in ("style.css", "script.js"))
    return environment.get_template("template.html").render(
        style=style,
        script=script,
        policy=f"default-src 'none'; base-uri 'none'; img-src data:; style-src {digest(style)}; "
        f"script-src {digest(script)}",
        name=material.name,
        place=material.place,
        folder=material.folder,
        title=title(material),
        sentence=sentence(material),
        score=score(material),
        gallery=pictures,
        notes=material.missing,
        training=training(material),
        model=about_model(material),
        sections=[section(results, material, pictures) for results in material.results],
        experiments=list(EXPERIMENTS),
        config=indented(material.config) if material.config else "",
        download=download({name: getattr(material, name) for name in ("config", "metrics", "scores")}),
        made=made(material),
    )


def digest(text: str) -> str:
    """What a policy says of a style or a script that is allowed: its SHA-256."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def download(tree: Any) -> str:
    """JSON as an address that holds all of it."""
    text = json.dumps(tree, ensure_ascii=False, default=str)
    return f"data:application/json;base64,{base64.b64encode(text.encode('utf-8', 'replace')).decode()}"


def indented(tree: Any) -> str:
    return json.dumps(tree, indent=1, ensure_ascii=False, default=str)


# The model


def title(material: Material) -> str:
    """The full name of a model of this kind."""
    kind = kind_of(material)
    return MODELS[kind].TITLE if kind in MODELS else kind


def latent(material: Material) -> str:
    """The letter of what a model of this kind infers for each image."""
    return MODELS.get(kind_of(material), Model).LATENT


def kind_of(material: Material) -> str:
    """The kind of the model: that of the config, or, without one, of results; a DKM if silent."""
    model = part(material.config, "model")
    named = [found.get("kind") for results in material.results for found in results.models] if not model else []
    return next((kind for kind in (model.get("kind"), *named) if isinstance(kind, str)), "dkm")


def sentence(material: Material) -> str:
    """What the model is."""
    model, about = part(material.config, "model"), material.checkpoint
    step, planned = about.get("step"), at(material.config, "train", "steps")
    dataset = at(material.config, "data", "dataset")
    parts = []
    if is_number(model.get("rows")) and is_number(model.get("code")):
        parts.append(f"a memory of {show(model['rows'])} rows for codes of {show(model['code'])} numbers")
    if about.get("parameters"):
        parts.append(f"{show(about['parameters'])} parameters")
    if is_number(step):
        parts.append(
            f"{show(step)}{f' of {show(planned)}' if is_number(planned) and planned != step else ''} steps"
        )
    on = f", trained on {plain_name(dataset)}" if dataset else ""
    return f"{title(material)}{on}{': ' if parts else ''}{', '.join(parts)}.{risen(material)}"


def risen(material: Material) -> str:
    """That the validation score was better before the end, and which checkpoint this page is about."""
    found = [(line.get("step"), at(line, "validation", "nats")) for line in material.metrics]
    tests = [(step, nats) for step, nats in found if is_number(step) and is_number(nats)]
    if not tests or min(tests, key=lambda test: test[1])[1] >= tests[-1][1]:
        return ""
    (step, least), (end, last) = min(tests, key=lambda test: test[1]), tests[-1]
    here = " This page is about that checkpoint." if material.checkpoint.get("step") == step else ""
    return (
        f" The validation score was best at step {show(step)}, {least:,.2f} nats per image, and {last:,.2f} at "
        f"step {show(end)}.{here}"
    )


def plain_name(dataset: Any) -> str:
    """A data set's name; of a path its last part."""
    return Path(str(dataset)).name or str(dataset)


LEARNED = {
    "noise_var": "Learned: how little a code is trusted when it is written.",
    "read_var": "Learned: how little a code is trusted when it is read.",
    "prior_var": "Learned: how unsure an empty memory is of its rows.",
    "weight_var": "Learned: how far weights are drawn around their mean.",
    "scale": "Learned: the standard deviation of a pixel, above its least.",
}


def about_model(material: Material) -> Table | None:
    """What the checkpoint says of itself; None where there is none."""
    about, model = material.checkpoint, part(material.config, "model")
    if not about:
        return None
    learned, image = part(about, "learned"), model.get("image")
    rows = [
        ("checkpoint", about.get("file"), f"Its checksum is {about.get('crc32')}."),
        ("steps", about.get("step"), "Training steps behind it."),
        ("parameters", about.get("parameters"), "Numbers learned in training."),
        ("rows, K", model.get("rows"), "Rows of the memory, each as long as a code."),
        ("code, C", model.get("code"), "Numbers in the code of an image."),
        (
            "image",
            " × ".join(map(str, image)) if isinstance(image, list) else None,
            f"Channels, height and width; the likelihood is {model.get('likelihood')}.",
        ),
        *((spoken(name), learned[name], LEARNED.get(name, "Learned.")) for name in sorted(learned)),
        (
            "best",
            about.get("best"),
            "The least validation score of the run, nats per image, with as many images as the last.",
        ),
    ]
    return Table(["", "", "what it is"], [list(row) for row in rows if row[1] is not None]).text()


def spoken(name: str) -> str:
    """noise_var: noise variance."""
    return re.sub("_var$", "_variance", name).replace("_", " ")


# Its scores


class Score(NamedTuple):
    """The score that the page begins with, term by term, and other evaluations."""

    value: str
    line: str
    terms: Table
    others: Table | None


SCORES = {
    "nats": (
        "score",
        "What it takes to say a stored image, given the memory: the sum of the two below. Lower is better. What "
        "the memory knows of the image is not counted, so this measures storage.",
    ),
    "reconstruction": ("reconstruction", "−ln p(x | w, M): the error of what is read from memory and decoded."),
    "kl_weights": (
        "KL({latent})",
        "What it takes to say where in memory the image is; without a memory, what it takes to say its code.",
    ),
    "kl_memory": (
        "KL(M) / T",
        "What it takes to say what the memory holds; not part of the score, as in the paper.",
    ),
    "bound": ("−L_T / T", "The score with KL(M) / T: what training descends. A score can be bought with KL(M)."),
    "new": (
        "new images of written classes",
        "What images cost that were not written, given a memory of others of their classes: a true bound.",
    ),
    "blank": ("blank memory", "What images cost if nothing was written: a true bound."),
    "autoencoder": ("autoencoder alone", "The error without the memory, coded and decoded: the best it could be."),
    "mean_image": ("mean image", "The score of the dullest model, which predicts the mean of the training images."),
    "bits_per_dimension": ("in bits", "The score in bits for each pixel and channel."),
}
BITS = {
    "points": "Bits per pixel and channel of points drawn from the pixels' grey levels, as in the paper.",
    "levels": "Bits per pixel and channel of the grey levels themselves.",
}


def score(material: Material) -> Score | None:
    if not material.scores:
        return None
    first, *others = material.scores
    rows = []
    for name, (label, text) in SCORES.items():
        if name == "bits_per_dimension" and part(first, "bits"):
            continue  # which say in which way
        if isinstance(value := first.get(name), dict):
            rows.append([label, plus_minus(at(value, "mean"), at(value, "stderr")), text])
        elif is_number(value):
            both = plus_minus(value, first["nats_stderr"]) if name == "nats" else f"{value:,.2f}".replace("-", "−")
            rows.append([label.format(latent=latent(material)), both, text])
    for name, value in part(first, "extra").items():
        rows.append([name, plus_minus(at(value, "mean"), at(value, "stderr")), "Another score of this model."])
    for way, value in part(first, "bits").items():
        mean, error = at(value, "mean"), at(value, "stderr")
        if way in BITS and is_number(mean) and is_number(error):
            own = " The way of all scores above." if way == first.get("pixels") else ""
            rows.append([f"in bits, {way}", f"{mean:.3f} ± {error:.3f}", BITS[way] + own])
    listed = [[score_line(s), plus_minus(s["nats"], s["nats_stderr"])] for s in others]
    return Score(
        plus_minus(first["nats"], first["nats_stderr"]),
        score_line(first),
        Table(["", "nats per image", "what it is"], rows),
        Table(["", "nats per image"], listed) if listed else None,
    )


def score_line(score: dict[str, Any]) -> str:
    """What a score was measured on."""
    dataset, images, different = (score.get(name) for name in ("dataset", "images", "different"))
    split = score.get("split", "test")
    drawn = f"{show(images)} {split} images"
    if is_number(images) and is_number(different) and different < images:
        drawn = f"{show(images)} draws from {'only ' if different < FEW else ''}{show(different)} {split} images"
    parts = [
        f"{drawn}{f' of {plain_name(dataset)}' if dataset else ''} "
        f"in {show(score.get('episodes'))} episodes of {show(score.get('length'))}",
        f"from {show(score['classes'])} classes each" if score.get("classes") else "",
        f"seed {score.get('seed')}",
        f"written in blocks of {show(score['block'])}" if is_number(score.get("block")) else "",
        f"in {show(score['iterations'])} rounds" if is_number(score.get("iterations")) else "",
        f"after {show(score['step'])} steps" if is_number(score.get("step")) else "",
    ]
    return ", ".join(part for part in parts if part)


# Figures


class Block(NamedTuple):
    """A figure: its panels, of several models beside each other, and what they show."""

    caption: str
    alternative: str
    models: dict[str, list[Picture]]
    heading: str = ""
    """What stands above all panels."""


def training(material: Material) -> Block | str:
    """The curve of the run, or why there is none."""
    if not material.metrics:
        return "No curve here: a run's folder has it, in metrics.jsonl."
    try:
        curve = figures.panels(plots.figures("training", {"metrics": material.metrics})[""])
    except Exception as error:  # damaged lines may hold anything
        return f"The curve could not be drawn: {error}."
    train = part(material.config, "train")
    steps = int(max(number(line.get("step")) for line in material.metrics))
    skipped = sum("skipped" in line for line in material.metrics)
    unlike = [
        "training images are changed at random and others are not" if train.get("augment") else "",
        "what is tested are averaged weights" if train.get("average") else "",
    ]
    because = " and ".join(filter(None, unlike))
    terms = {"nats": "score", "kl_memory": "KL(M) / T", "autoencoder": "the autoencoder's error"}
    loss = [text for name, text in terms.items() if any(name in line for line in material.metrics)]
    parts = [
        f"First, the loss{': ' if loss else ''}{' + '.join(loss)}. Second, the score, on training episodes (a "
        "running mean, with single reports behind it) and on validation classes (with one standard error on either "
        "side).",
        f"The two differ in more than their classes: {because}." if because else "",
        f"Steps left out because they were not finite: {show(skipped)} or more." if skipped else "",
        f"{show(steps)} steps, seed {train.get('seed')}, from metrics.jsonl.",
    ]
    return Block(" ".join(filter(None, parts)), "Loss and score against training steps", {"": curve})


def blocks(results: Results, but: str | None, warnings: list[str]) -> list[Block]:
    """The figures of results, but for those of one name: drawn, or the files beside them where they cannot be."""
    if results.known:
        with contextlib.suppress(Exception):  # results of another version may hold anything
            every = plots.figures(results.name, results.data).items()
            drawing = {end: figure for end, figure in every if captioned(results, end)[0] != but}
            titles = {end: figure.get_suptitle() for end, figure in drawing.items()}
            return gathered(results, {end: figures.panels(figure) for end, figure in drawing.items()}, titles)
    files: dict[str, list[Picture]] = {}
    for path in experiments.figures(results.path):
        try:
            files[path.stem[len(results.path.stem) + 1 :]] = [figures.from_file(contents(path))]
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            warnings.append(f"A figure could not be read: {error}.")
    order = list(results.known.FIGURES) if results.known else []
    names = sorted(files, key=lambda end: order.index(end) if end in order else len(order))
    return gathered(results, {end: files[end] for end in names}, {})


def gathered(results: Results, drawn: dict[str, list[Picture]], titles: dict[str, str]) -> list[Block]:
    """Figures by what they show: those of several models, whose names end the figures' names, side by side."""
    found: dict[str, Block] = {}
    for end, pictures in drawn.items():
        name, model, caption = captioned(results, end)
        block = found.setdefault(name, Block(caption, f"{results.title}. {caption}", {}, titles.get(end, "")))
        block.models[model] = pictures
    return list(found.values())


def captioned(results: Results, end: str) -> tuple[str, str, str]:
    """A figure's name, the model it is of where there are several, and what it shows."""
    for name, text in results.known.FIGURES.items() if results.known else ():
        if end == name:
            return name, "", text
        if name and end.startswith(f"{name}-"):
            return name, end[len(name) + 1 :], text
    words = end.replace("-", " ").replace("_", " ").capitalize()
    return end, "", f"{words or results.title}."


class Gallery(NamedTuple):
    """Pictures to begin with: what was stored, the cues, and what was recalled, model by model."""

    title: str
    anchor: str
    models: dict[str, list[Strip]]
    steps: list[int]


def gallery(material: Material) -> Gallery | None:
    """The first recall picture that there is."""
    for results in material.results:
        found: dict[str, list[Strip]] = {}
        if results.known is None:
            continue
        for model in results.models:
            with contextlib.suppress(Exception):  # results of another version may hold anything
                if (shown := results.known.strips(model["result"])) is not None:
                    found[show(model.get("name"))] = list(figures.strips(*shown))
        if found:
            steps = {frame.step for strips in found.values() for strip in strips for frame in strip.frames}
            return Gallery(results.title, anchor(results), found, sorted(steps - {0}))
    return None


# Experiments


class Section(NamedTuple):
    """An experiment: what it asks, its numbers, its figures, and where they come from."""

    anchor: str
    title: str
    about: str
    warnings: list[str]
    tables: dict[str, Table]
    """By the name of a model; all in one, where they have the same columns."""
    blocks: list[Block]
    file: str
    command: str
    source: str
    flags: str
    download: str


def anchor(results: Results) -> str:
    return "experiment-" + (re.sub(r"[^a-z0-9]+", "-", results.name.lower()).strip("-") or "other")


def section(results: Results, material: Material, above: Gallery | None) -> Section:
    """All that the page says of an experiment, but for pictures that are above already."""
    data, config = results.data, results.config
    warnings = doubts(results, material)
    drawn = blocks(results, "pictures" if above is not None and above.anchor == anchor(results) else None, warnings)
    return Section(
        anchor(results),
        results.title,
        results.known.ABOUT if results.known else "",
        warnings,
        tables(results),
        drawn,
        results.path.name,
        show(data.get("command")) if data.get("command") else "",
        provenance(results),
        indented({**config, "versions": data.get("versions")}),
        download(data),
    )


def doubts(results: Results, material: Material) -> list[str]:
    """What is to be said before the numbers of an experiment are believed."""
    found = []
    if results.data.get("smoke"):
        found.append("A smoke run, too small for its numbers to mean anything.")
    crc32 = material.checkpoint.get("crc32")
    if material.checkpoint and crc32 not in [model.get("crc32") for model in results.models]:
        steps = [f"{show(model.get('name'))} at step {show(model.get('step'))}" for model in results.models]
        found.append(f"Made with another checkpoint than this: {', '.join(steps) or 'not known'}.")
    return found


def provenance(results: Results) -> str:
    """Where numbers come from, beside the command."""
    data, config = results.data, results.config
    images = dict.fromkeys(plain_name(model["dataset"]) for model in results.models if model.get("dataset"))
    parts = [
        f"images of {', '.join(images)}" if images else "",
        f"seed {show(config['seed'])}" if "seed" in config else "",
        f"{show(config['episodes'])} episodes" if "episodes" in config else "",
        show(data["date"]) if "date" in data else "",
        f"{show(data.get('device'))}, {show(data.get('seconds'))} s",
    ]
    return ", ".join(filter(None, parts))


def tables(results: Results) -> dict[str, Table]:
    """The numbers to know. Of models with the same columns one table, a row's models one below the other."""
    named = [(show(model.get("name")), key_numbers(results.known, model.get("result"))) for model in results.models]
    named = [(name, table) for name, table in named if table.rows]
    if len(named) < 2 or any(table.head != named[0][1].head for _, table in named):
        return (
            dict(named)
            if len({name for name, _ in named}) == len(named)
            else {f"{name} ({i + 1})": table for i, (name, table) in enumerate(named)}
        )
    first, *heads = named[0][1].head
    labels = dict.fromkeys(row[0] for _, table in named for row in table.rows)
    rows = [
        [label, name, *row[1:]]
        for label in labels
        for name, table in named
        for row in table.rows
        if row[0] == label
    ]
    return {"": Table([first, "model", *heads], rows)}


def key_numbers(known: type[Experiment] | None, result: Any) -> Table:
    """What is known to matter in results, or else all plain numbers."""
    if known is not None:
        with contextlib.suppress(Exception):  # results of another version may hold anything
            return known.table(result).text()
    return Table(["", ""], [[label, value] for label, value in leaves(result)[:16]]).text()


def leaves(tree: Any, prefix: str = "", depth: int = 4) -> list[tuple[str, Any]]:
    """The single numbers and words of nested dictionaries, with their places; lists are left to figures."""
    found = []
    for name, value in tree.items() if isinstance(tree, dict) else ():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, dict) and not is_number(value.get("mean")):
            if depth and "data" not in value:  # which would be images
                found += leaves(value, f"{label}, ", depth - 1)
        elif not isinstance(value, list) and not (isinstance(value, str) and len(value) > 60):
            found.append((label, value))
    return found


def made(material: Material) -> str:
    """When and with what the page was made."""
    with_what = f"kanerva {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    saved = material.checkpoint.get("version")
    by = f"; the checkpoint was written by kanerva {saved}" if saved else ""
    return f"Made on {time.strftime('%Y-%m-%d')} by kanerva report of {with_what}{by}."
