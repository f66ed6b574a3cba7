"""A run on one HTML page: what it is, its scores, its curve and its experiments. It opens without a network.

`gather` reads files and `page` writes HTML; nothing is computed. All that comes from a file is escaped, and what is
missing or cannot be read is said on the page.
"""

import base64
import contextlib
import html
import io
import json
import platform
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from . import __version__, experiments, storage
from .experiments import EXPERIMENTS, plots
from .experiments.base import Experiment
from .experiments.tables import Table, is_number, plus_minus, show
from .files import atomic_write
from .models import MODELS, Model
from .progress import bar
from .spelling import nearest

WIDEST = 2200
"""Pixels of a figure, eleven inches as experiments draw; the page shows fewer, and fine screens all."""


class Results(NamedTuple):
    """A file of results."""

    path: Path
    data: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["experiment"])

    @property
    def known(self) -> type[Experiment] | None:
        """The experiment that made it; None where there is none of that name here."""
        return experiments.find(self.name) if self.name in EXPERIMENTS else None

    @property
    def title(self) -> str:
        return self.known.TITLE if self.known else self.name.replace("-", " ").capitalize()


class Material(NamedTuple):
    """What a page is made of."""

    name: str
    place: str
    folder: Path
    checkpoint: dict[str, Any]
    """What the checkpoint says of itself, with the scales that it learned; empty if there is none."""
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    scores: list[dict[str, Any]]
    """Evaluations of this checkpoint, the one to begin with first."""
    results: list[Results]
    missing: list[str]
    """What was looked for and not found, or could not be read."""


def write(place: str | Path, out: Path | None = None, results: Path | None = None) -> Path:
    """Write the report of a run's folder, a checkpoint or a model that comes along; returns the page's path."""
    material = gather(str(place), results)
    if out is None:
        end = f"-{material.name}" if Path(place).is_file() else ""
        out = material.folder / f"report{end}.html"
    elif out.is_dir():
        out = out / "report.html"
    with bar("report", None):
        text = page(material)
    with atomic_write(out) as file:
        file.write(text.encode("utf-8", "replace"))
    return out


# Reading


def gather(place: str, where: Path | None = None) -> Material:
    """Read all that there is about a run; `where` are its results, if not in the usual folder."""
    path, comes_along = Path(place), place in storage.shipped()
    if not comes_along and not path.exists():
        raise FileNotFoundError(
            f"{place}: no such run; expected a run's folder, a checkpoint, or a model that comes along: "
            f"{', '.join(storage.shipped())}{nearest(place, storage.shipped())}"
        )
    whole = path.is_dir() and not comes_along
    # where experiments put their results when not told otherwise
    folder = Path("runs") / place if comes_along else path if whole else path.parent
    if where is not None and not where.is_dir():
        raise FileNotFoundError(f"{where}: no such folder; expected one with results of experiments")
    where = folder / "experiments" if where is None else where
    usual = ("config.json", "metrics.jsonl", storage.LAST)
    if whole and not where.is_dir() and not any((path / name).exists() for name in usual):
        raise FileNotFoundError(
            f"{path}: expected a run's folder with {', '.join(usual)}, got one with none of them"
        )

    missing: list[str] = []
    checkpoint = describe(storage.find(place), missing if whole else None)
    config, metrics = checkpoint.get("run"), []
    if whole:
        config = read(path / "config.json", missing) or config
        metrics = lines(path / "metrics.jsonl", missing)
    if not isinstance(config, dict):
        config = {"model": checkpoint.get("model")} if checkpoint else {}
    results, scores = collect(where, folder, checkpoint, missing)
    dataset = at(config, "data", "dataset")
    for line in metrics[::-1]:
        if is_score(line.get("test")):
            scores.append({**line["test"], "step": line.get("step"), "dataset": dataset})
            break
    # on its own kind of images, and then on as many as possible
    scores.sort(key=lambda s: (s.get("dataset") != dataset, s.get("classes") is not None, -number(s.get("images"))))
    name = path.resolve().name if whole else path.stem
    return Material(name, place, folder, checkpoint, config, metrics, scores, results, missing)


def describe(path: Path, missing: list[str] | None) -> dict[str, Any]:
    """What a checkpoint says, and the numbers in it that mean something by themselves."""
    try:
        tensors, about = storage.load(path)
    except (OSError, ValueError) as error:
        if missing is None:
            raise
        missing.append(str(error))
        return {}
    own = storage.part(tensors, "average.") or storage.part(tensors, "model.")
    # variances and scales, which are learned through their logarithms
    logs = {name: x for name, x in own.items() if name.startswith("log_") and x.ndim == 0}
    learned = {name.removeprefix("log_"): float(x.double().exp()) for name, x in logs.items()}
    size = sum(x.numel() for name, x in tensors.items() if name.startswith("model."))
    return {**about, "parameters": size, "learned": learned, "file": path.name}


def read(path: Path, missing: list[str]) -> dict[str, Any]:
    """A file with a JSON object in it; an empty one where there is none."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ValueError("it is not a file")
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        missing.append(f"{path}: no such file")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        missing.append(f"{path}: could not be read ({error})")
        return {}
    return data if isinstance(data, dict) else {}


def lines(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; one that was cut short by a crash is left out."""
    if not path.is_file():
        missing.append(f"{path}: no such file, so there is no training curve")
        return []
    found = []
    for line in path.read_text("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def collect(
    where: Path, folder: Path, checkpoint: dict[str, Any], missing: list[str]
) -> tuple[list[Results], list[dict[str, Any]]]:
    """Results of experiments in the order of the list of experiments, and evaluations of this checkpoint."""
    results, scores = [], []
    for path in sorted({*where.glob("*.json"), *folder.glob("*.json")} - {folder / "config.json"}):
        if not path.is_file():  # a pipe would be waited for
            missing.append(f"{path}: not a file, left out")
            continue
        data = read(path, missing)
        if isinstance(data.get("experiment"), str) and path.parent == where:
            results.append(Results(path, data))
        elif is_score(data) and "crc32" in data:
            if data["crc32"] == checkpoint.get("crc32"):
                scores.append(data)
            else:
                missing.append(f"{path}: the score of another checkpoint, left out")
    order = list(EXPERIMENTS)
    results.sort(key=lambda r: (order.index(r.name) if r.name in order else len(order), r.path))
    return results, scores


def is_score(data: Any) -> bool:
    return isinstance(data, dict) and all(is_number(data.get(name)) for name in ("nats", "nats_stderr"))


def number(value: Any) -> float | int:
    return value if is_number(value) else 0


def at(tree: Any, *names: str) -> Any:
    """tree[a][b], or None where there is no such thing."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def part(tree: Any, name: str) -> dict[str, Any]:
    """A dictionary in a dictionary; an empty one where there is none."""
    found = at(tree, name)
    return found if isinstance(found, dict) else {}


# Numbers for people


def models(results: Results) -> list[dict[str, Any]]:
    found = results.data.get("models")
    return [model for model in found if isinstance(model, dict)] if isinstance(found, list) else []


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


def score_line(score: dict[str, Any]) -> str:
    """What a score was measured on."""
    dataset = score.get("dataset")
    parts = [
        f"{show(score.get('images'))} test images{f' of {plain_name(dataset)}' if dataset else ''} "
        f"in {show(score.get('episodes'))} episodes of {show(score.get('length'))}",
        f"from {show(score['classes'])} classes each" if score.get("classes") else "",
        f"seed {score.get('seed')}",
        f"after {show(score['step'])} steps" if is_number(score.get("step")) else "",
    ]
    return ", ".join(part for part in parts if part)


def plain_name(dataset: Any) -> str:
    """A data set's name; of a path its last part."""
    return Path(str(dataset)).name or str(dataset)


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
    named = [found.get("kind") for results in material.results for found in models(results)] if not model else []
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
    return f"{title(material)}{on}{': ' if parts else ''}{', '.join(parts)}."


# HTML


def e(value: object) -> str:
    """Text that is safe between tags and in attributes."""
    return html.escape(str(value))


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{text}</p>\n' if kind else f"<p>{text}</p>\n"


def table(rows: list[list[str]], head: list[str], kind: str = "") -> str:
    """A table of escaped cells; the first of a row is its name."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = ""
    for name, *cells in rows:
        body += f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n"
    inner = f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{inner}</table></div>\n'


def details(title: str, tree: Any) -> str:
    """JSON that can be opened up."""
    text = json.dumps(tree, indent=1, ensure_ascii=False, default=str)
    return f"<details><summary>{e(title)}</summary><pre>{e(text)}</pre></details>\n"


def section(name: str, title: str, *parts: str) -> str:
    return f'<section id="{anchor(name)}">\n<h2>{e(title)}</h2>\n{"".join(parts)}</section>\n'


def anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "section"


def picture(data: bytes, caption: str, alternative: str) -> str:
    """A figure in a white card, with its picture inside the page; the caption is HTML."""
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        image.load()
        width, height = image.size
        if width > WIDEST:
            width, height = WIDEST, max(1, round(height * WIDEST / width))
            buffer = io.BytesIO()
            image.convert("RGBA").resize((width, height), Image.Resampling.LANCZOS).save(
                buffer, "png", optimize=True
            )
            data = buffer.getvalue()
    # on a phone a wide figure is slid sideways rather than made too small to read
    kind = ' class="wide"' if width > 1.7 * height else ""
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure><div class="card"><img{kind} src="{source}" alt="{e(alternative)}" width="{width // 2}" '
        f'height="{height // 2}"></div>\n<figcaption>{caption}</figcaption></figure>\n'
    )


SCORES = {
    "nats": (
        "score",
        "What it takes to say an image, given the memory: the sum of the two below. Lower is better.",
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
    "autoencoder": ("autoencoder alone", "The error without the memory, coded and decoded: the best it could be."),
    "mean_image": ("mean image", "The score of the dullest model, which predicts the mean of the training images."),
    "bits_per_dimension": ("in bits", "The score in bits for each pixel and channel."),
}


def scores(material: Material) -> str:
    """The score that the page begins with, term by term, and other evaluations."""
    if not material.scores:
        command = f"kanerva evaluate {material.place} --json > {material.folder}/evaluation.json"
        return section("scores", "Scores", paragraph(f"None yet; <code>{e(command)}</code> makes one."))
    first, *others = material.scores
    rows = []
    for name, (label, text) in SCORES.items():
        if is_number(value := first.get(name)):
            both = plus_minus(value, first["nats_stderr"]) if name == "nats" else f"{value:,.2f}".replace("-", "−")
            rows.append([e(label.format(latent=latent(material))), e(both), e(text)])
    for name, value in part(first, "extra").items():
        rows.append(
            [e(name), e(plus_minus(at(value, "mean"), at(value, "stderr"))), "Another score of this model."]
        )
    parts = [
        paragraph(f"Nats per image: means over {e(score_line(first))}. Test classes are never trained with."),
        table(rows, ["", "nats per image", "what it is"], "scores"),
    ]
    if others:
        listed = [[e(score_line(s)), e(plus_minus(s["nats"], s["nats_stderr"]))] for s in others]
        parts += ["<h3>Other evaluations</h3>\n", table(listed, ["", "nats per image"])]
    return section("scores", "Scores", *parts)


LEARNED = {
    "noise_var": "Learned: how little a code is trusted when it is written.",
    "prior_var": "Learned: how unsure an empty memory is of its rows.",
    "weight_var": "Learned: how far weights are drawn around their mean.",
    "scale": "Learned: the standard deviation of a pixel, above its least.",
}


def about_model(material: Material) -> str:
    """What the checkpoint says of itself."""
    about, model = material.checkpoint, part(material.config, "model")
    if not about:
        return section("model", "The model", paragraph("No checkpoint could be read."))
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
            "The least test score of the run, nats per image, with as many images as the last.",
        ),
    ]
    kept = [[e(name), e(show(value)), e(text)] for name, value, text in rows if value is not None]
    return section("model", "The model", table(kept, ["", "", "what it is"], "scores"))


def spoken(name: str) -> str:
    """noise_var: noise variance."""
    return re.sub("_var$", "_variance", name).replace("_", " ")


def training(material: Material) -> str:
    """The curve of the run."""
    if not material.metrics:
        return section("training", "Training", paragraph("No curve here: a run's folder has it, in metrics.jsonl."))
    try:
        data = plots.picture(plots.figures("training", {"metrics": material.metrics})[""])
    except Exception as error:  # damaged lines may hold anything
        return section("training", "Training", paragraph(f"The curve could not be drawn: {e(error)}.", "warning"))
    train = part(material.config, "train")
    steps = int(max(number(line.get("step")) for line in material.metrics))
    skipped = sum("skipped" in line for line in material.metrics)
    unlike = [
        "training images are changed at random and test images are not" if train.get("augment") else "",
        "what is tested are averaged weights" if train.get("average") else "",
    ]
    because = " and ".join(filter(None, unlike))
    terms = {"nats": "score", "kl_memory": "KL(M) / T", "autoencoder": "the autoencoder's error"}
    loss = [text for name, text in terms.items() if any(name in line for line in material.metrics)]
    parts = [
        f"Left, the loss{': ' if loss else ''}{' + '.join(loss)}. Right, the score, on training episodes (a "
        "running mean, with single reports behind it) and on test classes (with one standard error on either "
        "side).",
        f"The two differ in more than their classes: {because}." if because else "",
        f"Steps left out because they were not finite: {show(skipped)} or more." if skipped else "",
        f"{show(steps)} steps, seed {train.get('seed')}, from metrics.jsonl.",
    ]
    caption = e(" ".join(filter(None, parts)))
    return section("training", "Training", picture(data, caption, "Loss and score against training steps"))


def experiment(results: Results, material: Material) -> str:
    """One experiment: what it asks, its numbers, its figures."""
    data, known, config = results.data, results.known, part(results.data, "config")
    parts = [paragraph(e(known.ABOUT))] if known else []
    if data.get("smoke"):
        parts.append(paragraph("A smoke run, too small for its numbers to mean anything.", "warning"))
    made_with = models(results)
    if material.checkpoint and material.checkpoint.get("crc32") not in [model.get("crc32") for model in made_with]:
        steps = ", ".join(f"{show(model.get('name'))} at step {show(model.get('step'))}" for model in made_with)
        parts.append(paragraph(f"Made with another checkpoint than this: {e(steps or 'not known')}.", "warning"))
    for model in made_with:
        head, rows = key_numbers(known, model.get("result"))
        if len(made_with) > 1:
            parts.append(f"<h3>{e(show(model.get('name')))}</h3>\n")
        if rows:
            parts.append(table([list(map(e, row)) for row in rows], list(map(e, head))))
    images = dict.fromkeys(plain_name(model["dataset"]) for model in made_with if model.get("dataset"))
    provenance = [
        f"<code>{e(data['command'])}</code>" if data.get("command") else "",
        f"images of {e(', '.join(images))}" if images else "",
        f"seed {e(show(config['seed']))}" if "seed" in config else "",
        f"{e(show(config['episodes']))} episodes" if "episodes" in config else "",
        e(data.get("date", "")),
    ]
    source = ", ".join(filter(None, provenance))
    shown = 0
    for end, image in pictures(results):
        text = caption(results, end)
        try:
            parts.append(picture(image, f"{e(text)} {source}.", f"{results.title}. {text}"))
            shown += 1
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            parts.append(paragraph(f"A figure could not be read: {e(error)}.", "warning"))
    if not shown:
        parts.append(paragraph(f"No figures beside {e(results.path.name)}; {source}."))
    where = f"{results.path.name}; {data.get('device')}, {show(data.get('seconds'))} s"
    parts.append(details(f"Flags and versions ({where})", {**config, "versions": data.get("versions")}))
    return section(f"experiment-{results.name}", results.title, *parts)


def caption(results: Results, end: str) -> str:
    """What a figure shows; the ends of names may themselves end with the name of a model."""
    for name, text in results.known.FIGURES.items() if results.known else ():
        if end == name:
            return text
        if name and end.startswith(f"{name}-"):
            return f"{end[len(name) + 1 :]}: {text}"
    words = end.replace("-", " ").replace("_", " ").capitalize()
    return f"{words or results.title}."


def pictures(results: Results) -> list[tuple[str, bytes]]:
    """The figures of results, by the ends of their names: files beside them, or drawn again where there is none.

    Other files of such names were drawn from results that are no more, unless nobody knows what is to be drawn.
    """
    stem, beside = results.path.stem, experiments.figures(results.path)
    files = {path.stem[len(stem) + 1 :]: path.read_bytes() for path in beside}
    if results.known:
        with contextlib.suppress(Exception):  # results of another version may hold anything
            drawing = plots.figures(results.name, results.data)
            return [(end, files.get(end) or plots.picture(figure)) for end, figure in drawing.items()]
        order = list(results.known.FIGURES)
        return sorted(files.items(), key=lambda file: order.index(file[0]) if file[0] in order else len(order))
    return list(files.items())


STYLE = """
:root { color-scheme: light dark; --ink: #1d1f23; --soft: #5c6470; --paper: #fdfdfc; --line: #dfe2e6;
  --tint: #f3f4f6; --accent: #0072b2; --warn: #8a4b00; --warn-tint: #fff4e0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e7ea; --soft: #a1a8b3; --paper: #16181c; --line: #343941;
    --tint: #20242a; --accent: #56b4e9; --warn: #f0c074; --warn-tint: #33270f; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 52rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1, h2, h3, p, figcaption, summary { overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 3rem 0 .75rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; }
p { margin: .75rem 0; }
a { color: var(--accent); }
nav { margin: 1.5rem 0; }
nav a { display: inline-block; margin-right: 1rem; }
.score { margin: 1.25rem 0 0; font-size: 2.2rem; line-height: 1.2; font-weight: 650; }
.score small { font-size: 1.1rem; font-weight: 400; color: var(--soft); }
.soft, figcaption, footer { color: var(--soft); font-size: .9rem; }
.warning { color: var(--warn); background: var(--warn-tint); border-radius: .4rem; padding: .5rem .75rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .95rem; }
.score, table { font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .4rem 1.25rem .4rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 500; }
thead th { color: var(--soft); font-size: .85rem; }
.scores th, .scores td:nth-child(2) { white-space: nowrap; }
.scores td:nth-child(3) { color: var(--soft); min-width: 14rem; }
figure { margin: 1.5rem 0; }
.card { background: #fff; border: 1px solid var(--line); border-radius: .5rem; padding: .75rem; overflow-x: auto; }
img { display: block; margin: 0 auto; max-width: 100%; height: auto; }
figcaption { margin-top: .6rem; }
code, pre { font: .85em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--tint); border-radius: .4rem; padding: .75rem 1rem; overflow-x: auto; }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
@media (max-width: 40rem) {
  body { padding-top: 1.25rem; }
  .score { font-size: 1.75rem; }
  img.wide { max-width: none; width: 40rem; }
}
"""


def header(material: Material) -> str:
    """The model's name, what it is, its score, and a way to each section."""
    score = paragraph("No score yet.", "soft")
    if material.scores:
        first = material.scores[0]
        value = plus_minus(first["nats"], first["nats_stderr"])
        score = paragraph(f"{e(value)} <small>nats per test image, lower is better</small>", "score")
        score += paragraph(f"{e(score_line(first))}; ± is one standard error, over episodes.", "soft")
    menu = [("scores", "Scores"), ("training", "Training"), ("model", "The model")]
    menu += [(f"experiment-{results.name}", results.title) for results in material.results]
    links = "\n".join(f'<a href="#{anchor(name)}">{e(title)}</a>' for name, title in [*menu, ("config", "Config")])
    notes = "".join(paragraph(e(text), "warning") for text in material.missing)
    top = f"<h1>{e(material.name)}</h1>\n{paragraph(e(sentence(material)))}{score}"
    return f"<header>\n{top}<nav>{links}</nav>\n{notes}</header>\n"


def footer(material: Material) -> str:
    """When and with what the page was made."""
    with_what = f"kanerva {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    saved = material.checkpoint.get("version")
    by = f"; the checkpoint was written by kanerva {e(saved)}" if saved else ""
    made = f"Made on {time.strftime('%Y-%m-%d')} by <code>kanerva report</code> of {e(with_what)}{by}."
    return f"<footer>{made}</footer>\n"


def page(material: Material) -> str:
    """The whole page. Its policy forbids a browser to fetch or to run anything."""
    made = [experiment(results, material) for results in material.results]
    if not made:
        command = f"kanerva experiment NAME --checkpoint {material.place}"
        text = f"None yet; <code>{e(command)}</code> makes one. Names: {e(', '.join(EXPERIMENTS))}."
        made = [section("experiments", "Experiments", paragraph(text))]
    settings = details("All settings", material.config) if material.config else paragraph("Not known.")
    sections = [scores(material), training(material), about_model(material), *made]
    main = "".join([*sections, section("config", "Config", settings)])
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{e(material.name)}: {e(title(material))}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
{header(material)}<main>
{main}</main>
{footer(material)}</body>
</html>
"""
