"""The commands of `kanerva`: they parse, call and print, and decide nothing."""

import collections
import dataclasses
import json
import math
import platform
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from .. import __version__, lab
from ..data import ClassImages
from ..data.own import is_image, is_sheet, write_sheet
from ..lab.runner import find
from ..lab.runner import flags as experiment_flags
from ..memory import MemoryState, frame
from ..models import DKM, MODELS, Model, load
from ..models.base import CodecModelConfig
from ..models.checkpoint import BEST, LAST, load_state, locate, save_state, taken
from ..models.checkpoint import read as read_checkpoint
from ..nn import Writing
from ..support import checks, plain, spelling
from ..support.files import atomic_write, cache_dir, check_writable
from ..support.linalg import together
from ..support.pixels import INK, to_bytes
from ..support.say import bar, printable, say, show
from ..training.config import DataConfig, RunConfig, with_model
from ..training.evaluate import Score, evaluate, mean_image_nats
from ..training.loop import FEW, train
from ..training.metrics import METRICS, latest
from ..training.presets import PRESETS
from ..training.processes import choose, first
from ..training.run import saved_config


@dataclass(frozen=True)
class Train:
    """Train a model."""

    config: tyro.conf.OmitArgPrefixes[RunConfig]
    out: Path
    """The run's folder: checkpoints, metrics, config."""
    resume: bool = False
    """Go on with the run in that folder; kanerva train --resume RUN needs no preset and no other flag."""

    def run(self) -> None:
        score = train(self.config, self.out, self.resume)
        if score is not None:
            nats = f"{score.nats:.2f} ± {score.nats_stderr:.2f} nats per {score.split} image{score.in_bits}"
            show(f"{nats}; {self.out}/{LAST}{better(self.out, score)}")
        elif first():
            show(ending(self.out))


@dataclass(frozen=True)
class Evaluate:
    """Score a trained model on test classes: nats per image, lower is better."""

    checkpoint: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A checkpoint, the folder of a run (its best one), a pretrained model (mazes, omniglot, omniglot-new), or a
    model without training: nearest, hopfield, or hopfield:CHECKPOINT for Hopfield retrieval on the codes of a
    model."""
    dataset: str | None = None
    """Other images than those it was trained on: glyphs, omniglot, mazes or a path."""
    data_dir: str | None = None
    """Where the files of omniglot are."""
    length: int = 32
    """Images in an episode (T)."""
    classes: int | None = None
    """Classes in an episode; otherwise any."""
    images: int = 10_000
    """Images to score, at least: batches of 16 episodes are scored, two or more."""
    iterations: int | None = None
    """DKM: address-and-update rounds for each image written; otherwise as it was trained."""
    block: int | None = None
    """DKM: images addressed against the same memory and written at once; otherwise as it was trained. With as many
    as an episode has (new images: 40 are written), their order does not matter."""
    write_noise: float | None = None
    """DKM with a separate read noise: multiply the noise variance of writes (noise_var) by this. More images want
    more."""
    seed: int = 0
    """Decides the episodes and the draws of w."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, …"""
    json: bool = False
    """Print one JSON object and nothing else."""

    def __post_init__(self) -> None:
        given = [name for name in ("classes", "iterations", "block") if getattr(self, name) is not None]
        checks.fields(self, length=1, images=1, **dict.fromkeys(given, 1))
        checks.seed(self.seed)
        if self.write_noise is not None and not 1e-6 <= self.write_noise <= 1e6:
            raise ValueError(f"write_noise: expected a factor from 1e-6 to 1e6, got {self.write_noise:g}")

    def run(self) -> None:
        (who,) = find([self.checkpoint], choose(self.device), self.dataset, self.data_dir)
        told = {name: value for name in TOLD if (value := getattr(self, name)) is not None}
        how = written_by(who.model, told)
        score = evaluate(who.model, who.unseen, self.length, self.images, self.classes, self.seed, how=how)
        about = {
            **who.about,
            **told,
            "mean_image": mean_image_nats(who.seen, who.unseen),
            "version": __version__,
            "torch": torch.__version__,
        }
        if self.json:
            print(plain.dumps({**dataclasses.asdict(score), **about}, indent=1))
        else:
            show(table(score, about))


@dataclass(frozen=True)
class Info:
    """Say which versions, devices and presets there are, or what a checkpoint holds."""

    checkpoint: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[RUN]")] = None
    """A checkpoint, the folder of a run, or a pretrained model (mazes, omniglot, omniglot-new)."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> None:
        about = system() if self.checkpoint is None else contents(place(self.checkpoint))
        print(plain.dumps(about, indent=1) if self.json else lines(about))


@dataclass(frozen=True)
class Data:
    """Load a data set and describe it; omniglot is fetched if it is not at hand."""

    config: tyro.conf.OmitArgPrefixes[DataConfig] = dataclasses.field(default_factory=DataConfig)
    preview: Path | None = None
    """Also write a sheet of test images to this PNG file."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> None:
        if self.preview is not None and self.preview.exists() and not is_sheet(self.preview):
            root = Path(self.config.dataset).expanduser().resolve()
            if root.exists() and root in (self.preview.resolve(), *self.preview.resolve().parents):
                raise ValueError(f"preview: expected a new file, got {self.preview}, one of those that are read")
        splits = seen, _, unseen = self.config.load("cpu", "train", "validation", "test")
        about: dict[str, Any] = {
            images.split: {
                "classes": images.num_classes,
                "images": len(images),
                "shape": list(images.shape),
                "kind": "binary" if images.binary else "grey" if images.shape[0] == 1 else "colour",
                "mean": round(float(images.pixels.float().mean()), 4),
            }
            for images in splits
        }
        about["nats of predicting the mean image"] = round(mean_image_nats(seen, unseen), 2)
        if self.preview is not None:
            sheet(unseen, self.preview)
            about["preview"] = str(self.preview)
        print(plain.dumps(about, indent=1) if self.json else lines(about))


@dataclass(frozen=True)
class Experiment:
    """Make one of the paper's experiments: numbers, and figures of them."""

    work: Any
    """Its flags, which `lab.runner` has read."""

    def run(self) -> None:
        path, drawn = self.work.main()
        results = json.loads(path.read_text("utf-8"))
        for model in results["models"]:
            table = self.work.EXPERIMENT.table(model["result"])
            show(f"{printable(model['name'])}\n{table.lines()}\n")
        show("\n".join(printable(str(file)) for file in (path, *drawn)))
        print(f"{results['seconds']} s")


@dataclass(frozen=True)
class Plot:
    """Draw the figures of an experiment again, from its file of results alone."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The JSON that kanerva experiment has written."""
    out: Path | None = None
    """A folder for the figures; otherwise they go beside FILE."""

    def run(self) -> None:
        from ..lab import drawing

        show("\n".join(printable(str(file)) for file in drawing.redraw(self.file, self.out)))


@dataclass(frozen=True)
class Report:
    """Put a run's curve, scores and figures on one HTML page, which opens without a network."""

    place: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder, a checkpoint, or a pretrained model (mazes, omniglot, omniglot-new)."""
    out: Path | None = None
    """The page; otherwise report.html in the run's folder."""
    experiments: Path | None = None
    """Where results of experiments are, EXPERIMENT.json or EXPERIMENT/MODEL.json; otherwise experiments/ in the
    run's folder."""

    def run(self) -> None:
        from . import report

        show(str(report.write(self.place, self.out, self.experiments)))


@dataclass(frozen=True)
class Inspect:
    """Look into a saved memory: find the images that it holds, without a cue, and put them on a sheet."""

    state: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="STATE")]
    """A safetensors file with the R and U of a memory."""
    checkpoint: str = "omniglot"
    """The model that wrote it: a checkpoint, the folder of a run, or a pretrained model (mazes, omniglot,
    omniglot-new)."""
    number: int = 0
    """Which memory, where the file has many."""
    out: Path | None = None
    """The sheet, a PNG file; otherwise beside STATE."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, …"""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> None:
        from . import recall

        model, state = load(self.checkpoint), load_state(self.state)
        if not isinstance(model, DKM):
            raise ValueError(f"checkpoint: expected a DKM, got {self.checkpoint}, of kind {model.config.kind}")
        model.memory.inverse(state)  # which refuses what is no memory of this model
        batch = together(*(part.shape[:-2] for part in state))
        count = math.prod(batch)
        if not count:
            raise ValueError(
                f"{self.state}: expected a memory, got R of shape {tuple(state.R.shape)}, which is none"
            )
        if not 0 <= self.number < count:
            raise ValueError(f"number: expected 0 to {count - 1}, as {self.state} has them, got {self.number}")
        place = np.unravel_index(self.number, batch)  # the others are not written out
        chosen = MemoryState(*(part.expand(*batch, -1, -1)[place] for part in state))
        model.memory.kl(chosen)  # which refuses a U that is no covariance
        end = f"-{self.number}.png" if count > 1 else ".png"
        path = self.state.with_name(self.state.stem + end) if self.out is None else self.out
        recall.check_outputs({"--out": path}, [self.state, locate(self.checkpoint)])
        if self.out is None and path.exists() and not is_sheet(path):
            raise ValueError(f"--out: expected the name of a new file, since {path} is there and no sheet of ours")
        check_writable(path)
        device = choose(self.device)
        about, x = inside(model.to(device), chosen.to(device))
        about = {"file": str(self.state), "memory": f"number {self.number} of {count}", **about}
        if len(x):
            tiles(in_rows(x, model.config.binary), path)
            about["sheet"] = str(path)
        if self.json:
            print(json.dumps(about, indent=1))
        else:
            found = about["images"].items()
            images = {number: f"{often(one['written'])}, cost {one['cost']} nats" for number, one in found}
            print(lines({**about, "images": images or "none"}))


@dataclass(frozen=True)
class Recall:
    """Store your own pictures in one memory, ask for them with damaged copies, and see what comes back."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A checkpoint, the folder of a run, or a pretrained model (mazes, omniglot, omniglot-new)."""
    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES", help_behavior_hint="(required)")
    ]
    """Image files, or folders of them: the pictures to store. They are brought to the size that the model knows."""
    others: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(optional)")] = ()
    """More pictures, which are asked for but never stored."""
    damage: Literal["auto", "flips", "noise", "block", "half", "none"] = "auto"
    """What happens to a picture before it is asked for: a share of its bits flips, noise is added, a block or the
    right half is erased; auto: flips for a model of binary images, and noise for others."""
    level: float | None = None
    """How much of it: the share of bits (otherwise 0.15), the standard deviation of noise (0.15), or the share of
    the area (0.25)."""
    method: str | None = None
    """The way to recall; otherwise the model's best."""
    steps: int = 15
    """Steps of recall."""
    binary: float = INK
    """Models of binary images: the share of ink from which a pixel is ink."""
    ink: Literal["auto", "dark", "light"] = "auto"
    """Models of binary images: whether ink is dark or light; auto: whatever there is less of in each picture."""
    seed: int = 0
    """Decides the damage."""
    out: Path = Path("recall.png")
    """The sheet, a PNG file: stored, cue and recalled, one below the other."""
    memory: Path | None = None
    """Save the memory as well, in a safetensors file that `kanerva inspect` reads."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, …"""
    json: bool = False
    """Print one JSON object and nothing else."""

    def __post_init__(self) -> None:
        checks.fields(self, steps=1)
        checks.seed(self.seed)

    def run(self) -> None:
        from . import recall

        if missing := left_out(self.model, self.images):
            raise ValueError(missing)
        model = load(self.model).to(choose(self.device))
        method, binary = model.method(self.method), model.config.binary
        outputs = {"--memory": self.memory, "--out": self.out}
        recall.check_outputs(outputs, [locate(self.model)])
        for path in filter(None, outputs.values()):
            check_writable(path)
        asked = recall.read(model, self.images, self.others, self.binary, self.ink)
        recall.check_outputs(outputs, asked.paths)
        rows = getattr(model.config, "rows", asked.stored)
        full = f"more pictures than the memory's {rows} rows: they mix, and nothing can be certified"
        if rows < asked.stored:
            say(full)
        kind = self.damage if self.damage != "auto" else "flips" if binary else "noise"
        level = recall.LEVELS[kind] if self.level is None else self.level
        generator = torch.Generator(model.device).manual_seed(self.seed)
        cue = recall.damaged(asked.x, kind, self.level, generator)
        answers = recall.ask(model, asked, cue, method, self.steps, generator)
        if self.memory is not None:
            save_state(self.memory, answers.state)
        bands = torch.stack([in_rows(x, binary) for x in (asked.x, answers.cue, answers.x)], 1).flatten(0, 1)
        found = recall.judge(asked, answers)
        with atomic_write(self.out) as file:
            write_sheet(recall.sheet(mosaic(bands), found), file)
        about = {
            "stored": f"{asked.stored} pictures in one memory, which keeps {model.kept(asked.stored):,} numbers",
            "damage": kind if level is None else f"{kind} {level:g}",
            "recall": f"{method}, {self.steps} steps, {taken(self.model) or self.model}",
            **({"ink": recall.inks(asked)} if binary else {}),
            "sheet": str(self.out),
            **({} if self.memory is None else {"memory": str(self.memory)}),
            **({"left out": asked.left_out} if asked.left_out else {}),
            "result": recall.summary(found),
            **({"note": full} if rows < asked.stored else {}),
        }
        if any(one["worse"] for one in found):
            about["worse"] = "the answer is farther from the picture than the cue (in the sheet: a red frame)"
        if answers.certified[0] is not None:
            about["certified"] = "the answer is a stored picture, to the last pixel (in the sheet: a green frame)"
        if self.json:
            print(plain.dumps({**about, "pictures": found}, indent=1))
        else:
            pixels = asked.x[0].numel() if binary else None
            print(f"{recall.table(found, pixels).lines()}\n\n{lines(about)}")


def left_out(model: str, images: tuple[str, ...]) -> str | None:
    """What is missing, and what to type, where somebody left out a part of `kanerva recall MODEL IMAGES`."""
    place, pictures = Path(model), shlex.join(images) or "FOLDER"
    if locate(model).is_file() and not is_image(place):
        usual = f"type kanerva recall {shlex.quote(model)} FOLDER, with a folder of pictures"
        return None if images else f"IMAGES: expected pictures after the model {model}, got none; {usual}"
    if model in PRESETS:
        run = f"runs/{model}"
        own = f" --dataset {pictures if len(images) == 1 else 'FOLDER'} --size 32" if model == "colour" else ""
        first = "" if locate(run).is_file() else f"kanerva train {model}{own}, then "
        return (
            f"MODEL: expected a trained model, got {model}, which is a preset of kanerva train; type {first}"
            f"kanerva recall {run} {pictures}"
        )
    if not images or is_image(place) or (place.is_dir() and any(map(is_image, place.iterdir()))):
        return (
            f"MODEL: expected a model before the pictures, got {model}; type kanerva recall omniglot "
            f"{shlex.join([model, *images])}, or in place of omniglot the folder of a run"
        )
    return None


@dataclass(frozen=True)
class Play:
    """Open a page in the browser on which memories are written, recalled from and looked into."""

    models: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="[MODEL ...]", help_behavior_hint="(default: all pretrained models)"),
    ] = ()
    """Checkpoints, folders of runs or pretrained models."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 lets everyone in who can reach this machine."""
    port: int = 7411
    """The port to listen on; 0 takes any that is free."""
    browser: bool = True
    """Open the page in the browser."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port: expected 0 to 65535, got {self.port}")

    def run(self) -> None:
        from ..play.server import serve

        serve(self.models, self.host, self.port, self.browser, say)


KINDS = {
    "evaluate": Evaluate,
    "plot": Plot,
    "report": Report,
    "recall": Recall,
    "inspect": Inspect,
    "play": Play,
    "info": Info,
    "data": Data,
}


def parse(command: str, arguments: list[str]) -> Any:
    """The arguments of a command as one of the classes above; tyro answers what it cannot read."""
    if command == "train":
        return parse_train(arguments)
    if command == "experiment":
        name, *flags = arguments
        command = f"kanerva experiment {name}"
        return Experiment(tyro.cli(experiment_flags(lab.find(name), command), prog=command, args=flags))
    return tyro.cli(KINDS[command], prog=f"kanerva {command}", args=arguments)


def parse_train(arguments: list[str]) -> Train:
    """PRESET and flags; or --resume RUN and flags, where those that are not given are as the run has them."""
    first, rest = (arguments or ["none"])[0], arguments[1:]
    if first in ("-h", "--help"):
        print(presets())
        raise SystemExit(0)
    if first == "--resume" and rest:
        prog, about = f"kanerva train --resume {rest[0]}", "Go on with a run."
        start, rest = Train(saved_config(Path(rest[0])), Path(rest[0]), resume=True), rest[1:]
    elif first in PRESETS:
        prog, (about, config) = f"kanerva train {first}", PRESETS[first]
        rest, model = pop(rest, "--model")
        start = Train(config, Path("runs") / first)
        if model is not None:
            start = Train(with_model(config, model), Path("runs") / f"{first}-{model}")
    else:
        close = spelling.nearest(first, PRESETS)
        raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, or --resume RUN, got {first}{close}")
    if {"-h", "--help"} & {*rest}:
        print(screen(prog, about, start))
        raise SystemExit(0)
    rest = ["--help" if word == "--help-all" else word for word in rest]
    return of_its_data(tyro.cli(Train, prog=prog, args=rest, default=start, description=about), start)


def of_its_data(train: Train, start: Train) -> Train:
    """Leave out how many mazes a preset has, where other images were asked for."""
    data, before = train.config.data, start.config.data
    if data.dataset == before.dataset or data.mazes != before.mazes:
        return train
    config = dataclasses.replace(train.config, data=dataclasses.replace(data, mazes=None))
    return dataclasses.replace(train, config=config)


def presets() -> str:
    """What can be trained."""
    rows = "\n".join(f"  {name:15} {text}" for name, (text, _) in PRESETS.items())
    return (
        f"kanerva train PRESET       Train a model in runs/PRESET, or in --out FOLDER.\n"
        f"kanerva train --resume RUN Go on with the run in a folder; flags such as --steps change what may change."
        f"\n\n{rows}\n\nkanerva train PRESET --help shows the flags that one needs most, --help-all all of them."
    )


def screen(prog: str, about: str, start: Train) -> str:
    """The flags that one needs most, and in what groups the others are."""
    config = start.config
    groups = [("model", config.model), ("data", config.data), ("training", config.train)]
    if isinstance(config.model, CodecModelConfig):
        groups.insert(1, ("codec", config.model.codec))
    others = [
        f"  {name:9} {sum(f.name != 'codec' for f in dataclasses.fields(part)):2} flags: {summary(part)}"
        for name, part in groups
    ]
    kinds = ", ".join(name for name, kind in MODELS.items() if not kind.UNTRAINED)
    return f"""usage: {prog} [flags]

{about}

  --out FOLDER    the run's folder: checkpoints, metrics, config (default: {start.out})
  --steps N       steps of the whole run (default: {config.train.steps})
  --dataset NAME  glyphs, omniglot, mazes, or the path of your own images (default: {config.data.dataset})
  --device NAME   auto (a GPU if there is one), cpu, cuda, … (default: {config.train.device})
  --resume        go on with the run in that folder
  --model KIND    train another kind of model: {kinds}

{prog} --help-all lists all flags:
{chr(10).join(others)}"""


def summary(config: Any) -> str:
    """The first line of a dataclass's docstring."""
    return (type(config).__doc__ or "").splitlines()[0]


def pop(arguments: list[str], flag: str) -> tuple[list[str], str | None]:
    """Take a flag and its value out of the arguments: it decides what the other flags are."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith(f"{flag}=") else [word])]
    if flag not in words:
        return arguments, None
    at = words.index(flag)
    if at + 1 == len(words):
        raise ValueError(f"{flag}: expected the name of a model ({', '.join(MODELS)}), got none")
    return words[:at] + words[at + 2 :], words[at + 1]


def better(folder: Path, score: Score) -> str:
    """The best score of a run, where it is not that of its end; empty where it is, or where nothing says so."""
    try:
        found = read_checkpoint(folder / BEST)
    except (OSError, ValueError):
        return ""
    best, step = found.about.get("best"), found.step
    if not isinstance(best, float) or best >= score.nats:
        return ""
    return f"\nbest: {best:.2f} at step {step:,}; {found.path}, which other commands take of this run"


def ending(folder: Path) -> str:
    """How a run that was not evaluated ended: its step, its last training score and its checkpoint."""
    path = folder / LAST
    step, row = read_checkpoint(path).step, latest(folder / METRICS)
    if row is None:
        return f"step {step:,}; {path}"
    when = "" if row["step"] == step else f" at step {row['step']:,}"
    return f"step {step:,}: {row['nats']:.2f} nats per training image{when}; {path}"


TOLD = {"iterations": "iterations", "block": "block", "write_noise": "noise"}
"""In what a DKM can be told to write otherwise than it was trained: the flag, and its name in `Writing`."""


def written_by(model: Model, told: dict[str, Any]) -> Writing | None:
    """How a DKM is to write, where it is told otherwise than it was trained."""
    if not told:
        return None
    if not isinstance(model, DKM):
        given = " and ".join(f"--{name.replace('_', '-')}" for name in told)
        raise ValueError(f"{given}: expected a dkm; a {model.config.kind} has no such way to write")
    return model.writing._replace(**{TOLD[name]: value for name, value in told.items()})


def table(score: Score, about: dict[str, Any]) -> str:
    """A score for people."""
    nats = f"{score.nats:.2f} ± {score.nats_stderr:.2f} nats per image{score.in_bits}"
    if score.bound is not None:
        nats += f"; {score.bound:.2f} with KL(M)/T, −L_T/T"
    others = {"new images of written classes": score.new, "a blank memory": score.blank, **score.extra}
    terms = [f"reconstruction {score.reconstruction:.2f}"]
    if score.kl_weights is not None:
        terms[0] += f" + KL({MODELS[about['kind']].LATENT}) {score.kl_weights:.2f}"
    if score.kl_memory is not None:
        terms.append(f"not counted in the first: KL(M)/T {score.kl_memory:.2f}")
    if score.autoencoder is not None:
        terms.append(f"autoencoder alone {score.autoencoder:.2f}")
    terms.append(f"predicting the mean image {about['mean_image']:.2f}")
    extra = "".join(
        f"{value['mean']:.2f} ± {value['stderr']:.2f} nats per image, {name}\n"
        for name, value in others.items()
        if value is not None
    )
    drawn, different = f"{score.images:,} {score.split} images", score.different or 0
    if different < score.images:
        drawn = f"{score.images:,} draws from {different:,} different {score.split} images"
    warning = "" if different >= FEW else f"\n  only {different} different images: too few to say much about others"
    return (
        f"{nats}\n{extra}"
        f"  {drawn} of {about['dataset']} in {score.episodes} episodes of {score.length}, "
        f"seed {score.seed}{written(about)}; lower is better\n"
        f"  {'; '.join(terms)}{warning}"
    )


def written(about: dict[str, Any]) -> str:
    """How memories were written, where `evaluate` was told."""
    said = f", written in blocks of {about['block']}" if "block" in about else ""
    said += f", in {about['iterations']} rounds" if "iterations" in about else ""
    return said + (f", with {about['write_noise']:g} times the noise of writes" if "write_noise" in about else "")


def writes() -> dict[str, str]:
    """How the presets' memories are written on each device that is here, and why: most of them, and the others."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    found: dict[str, dict[str, str]] = {device: {} for device in devices}
    for name, (_, c) in PRESETS.items():
        for device in devices:
            if said := MODELS[c.model.kind].says(c.model, device, "auto").removeprefix("write: "):
                found[device][name] = said
    shown: dict[str, str] = {}
    for device, ways in found.items():
        usual = collections.Counter(ways.values()).most_common(1)[0][0]
        shown[f"on {device}"] = usual
        shown |= {f"{name} on {device}": way for name, way in ways.items() if way != usual}
    return shown


def system() -> dict[str, Any]:
    """Versions, devices and presets."""
    return {
        "kanerva": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "write": writes(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cache": str(cache_dir()),
        "presets": {name: text for name, (text, _) in PRESETS.items()},
    }


def place(path: Path) -> Path:
    """The checkpoint to describe: of a run's folder the last, which says how far the run has come."""
    found = locate(path)
    return found.with_name(LAST) if taken(path) else found


def contents(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, and how many numbers its model has."""
    found = read_checkpoint(path)
    return {"file": str(path), "parameters": found.parameters, **found.about}


def lines(about: dict[str, Any], indent: str = "") -> str:
    """Nested dictionaries as indented lines, each entry on one."""
    rows, wide = [], min(40, max([14, *map(len, about)]))
    for name, value in about.items():
        if isinstance(value, dict):
            rows += [f"{indent}{printable(name)}", lines(value, indent + "  ")]
        else:
            rows.append(f"{indent}{printable(name):{wide}} {printable(str(value))}")
    return "\n".join(rows)


LINEAR = (
    "none can be found without a cue: with this codec of grey or colour images, mixtures of stored images pass for "
    "images too. Only codecs of black and white images tell them apart"
)
FULL = "yes: it may hold more images than it can tell apart, or another model wrote it; then none are found"


def inside(model: DKM, state: MemoryState) -> tuple[dict[str, Any], Float[Tensor, "n c h w"]]:
    """What a memory says of itself, and the images that are found in it."""
    with torch.no_grad():
        known = frame(state, model.R0, model.prior_var, model.noise_var)
        total, done = int(known.distinct), 0
        with bar("inspect", total) as advance:

            def callback(found: int, _: int) -> None:
                nonlocal done
                advance(found - done)
                done = found

            found = model.contents(state, callback)
        times = model.contains(state, found.x).tolist() if len(found.x) else []
    full = total >= min(state.R.shape)
    about = {
        "rows": model.config.rows,
        "code size": model.config.code,
        "writes told apart": int(known.rank),
        "different images": total,
        "full": FULL if full else "no",
        "found": len(found.x),
        **({"note": why} if (why := lacking(model, total, len(found.x))) and not full else {}),
        "images": {
            str(i + 1): {"written": count if count > 0 else None, "cost": float(f"{cost:.2g}")}
            for i, (count, cost) in enumerate(zip(times, found.cost.tolist(), strict=True))
        },
    }
    return about, found.x


def lacking(model: DKM, total: int, found: int) -> str:
    """Why not all that a memory holds was found; empty if it was."""
    if found >= total:
        return ""
    if not (found or model.config.binary):
        return LINEAR
    return f"the search ended before {total - found} of {total} were found; recall from a cue may find them"


def often(written: int | None) -> str:
    """How often an image was written; None of one that is not exact."""
    if written is None:
        return "near to one that was written, but for a few pixels"
    return "written once" if written == 1 else f"written {written} times"


def sheet(images: ClassImages, path: Path) -> None:
    """Write a PNG of eight images each of twelve classes."""
    index = images.start[:12, None] + torch.arange(8) % images.count[:12, None]
    tiles(images.pixels[index] * (255 if images.binary else 1), path)


def in_rows(x: Float[Tensor, "n c h w"], binary: bool, columns: int = 8) -> UInt8[Tensor, "rows columns c H W"]:
    """Images of a model three times as large, eight in a row, with a line around each; ink is black on white."""
    levels = to_bytes(1 - x if binary else x, binary).cpu()
    levels = levels.repeat_interleave(3, -2).repeat_interleave(3, -1)
    blank = levels.new_full((-len(x) % columns, *levels.shape[1:]), 255)
    return pad(torch.cat([levels, blank]), (1, 1, 1, 1), value=192).unflatten(0, (-1, columns))


def tiles(x: UInt8[Tensor, "rows columns c h w"], path: Path) -> None:
    """Write a PNG of images in rows and columns."""
    with atomic_write(path) as file:
        write_sheet(mosaic(x), file)


def mosaic(x: UInt8[Tensor, "rows columns c h w"]) -> Image.Image:
    """Images in rows and columns as one picture."""
    rows, columns, channels, height, width = x.shape
    x = x.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)
    return Image.fromarray(x.squeeze(-1).numpy())
