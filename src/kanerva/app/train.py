"""`kanerva train`: what is trained, how the flags are read, and what is said at the end."""

import contextlib
import dataclasses
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from ..models import MODELS
from ..models.base import BaseConfig, CodecModelConfig
from ..models.checkpoint import BEST, LAST, read
from ..support.say import nearest, show
from ..training import loop
from ..training.config import RunConfig, with_model
from ..training.evaluate import Score
from ..training.metrics import METRICS, latest
from ..training.presets import PRESETS
from ..training.processes import first
from ..training.run import saved_config
from .flags import parsed

FROM_DATA = ("image", "likelihood")
"""What a model's config has of the images; training takes both from the data, so neither is a flag."""
GROUPS = {"model": "model", "model.codec": "codec", "data": "data", "train": "training"}
"""The groups of flags, by the part of a run that each is."""


def train(arguments: list[str]) -> None:
    """Train a model, and say how it ended."""
    asked = parse(arguments)
    score = loop.train(asked.config, asked.out, asked.resume)
    if score is not None:
        nats = f"{score.nats:.2f} ± {score.nats_stderr:.2f} nats per {score.split} image{score.in_bits}"
        show(f"{nats}; {asked.out}/{LAST}{better(asked.out, score)}")
    elif first():
        show(ending(asked.out))


@dataclass(frozen=True)
class Train:
    """Train a model."""

    config: tyro.conf.OmitArgPrefixes[RunConfig]
    out: Path
    """The run's folder: checkpoints, metrics, config."""
    resume: bool = False
    """Go on with the run in that folder; kanerva train --resume RUN needs no preset and no other flag."""


def parse(arguments: list[str]) -> Train:
    """PRESET and flags; or --resume RUN and flags, where those that are not given are as the run has them."""
    first, rest = (arguments or ["--help"])[0], arguments[1:]
    if first in ("-h", "--help"):
        print(presets())
        raise SystemExit(0)
    if first == "--resume":
        if not rest:
            raise ValueError("--resume: expected a run's folder, as in kanerva train --resume RUN, got none")
        prog, about = f"kanerva train --resume {rest[0]}", "Go on with a run."
        start, rest = Train(saved_config(Path(rest[0])), Path(rest[0]), resume=True), rest[1:]
    elif first in PRESETS:
        prog, (about, config) = f"kanerva train {first}", PRESETS[first]
        rest, model = pop(rest, "--model")
        start = Train(config, Path("runs") / first)
        if model is not None:
            if model not in trained():
                close = nearest(model, trained())
                raise ValueError(f"--model: expected one of {', '.join(trained())}, got {model!r}{close}")
            start = Train(with_model(config, model), Path("runs") / f"{first}-{model}")
    else:
        close = nearest(first, PRESETS)
        raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, or --resume RUN, got {first}{close}")
    if {"-h", "--help"} & {*rest}:
        print(screen(prog, about, start))
        raise SystemExit(0)
    if "--help-all" in rest:
        print(every(prog, about, start))
        raise SystemExit(0)
    asked = parsed(Train, prog, rest, "--help-all", default=flagged(start), description=about)
    return of_its_data(with_config(asked, type(start.config.model)), start)


def flagged(start: Train) -> Train:
    """The same run, with a config that leaves no flag for what the data decide."""
    kind, fixed = type(start.config.model), list[tuple[str, Any, Any]]()
    for name in FROM_DATA:
        hint: Any = get_type_hints(kind)[name]
        hidden: Any = Annotated[hint, tyro.conf.Suppress, tyro.conf.Fixed]
        fixed.append((name, hidden, dataclasses.field(default=getattr(start.config.model, name))))
    about = {"__doc__": kind.__doc__}
    return with_config(
        start, dataclasses.make_dataclass("Flags", fixed, bases=(kind,), namespace=about, frozen=True)
    )


def with_config(run: Train, kind: type[BaseConfig]) -> Train:
    """The same run, its model's config being of another class with the same fields."""
    model = run.config.model
    same = kind(**{f.name: getattr(model, f.name) for f in dataclasses.fields(model)})
    return dataclasses.replace(run, config=dataclasses.replace(run.config, model=same))


def every(prog: str, about: str, start: Train) -> str:
    """The help of all flags, as tyro has it, with the names of the groups that `screen` gives."""
    said = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
        tyro.cli(Train, prog=prog, args=["--help"], default=flagged(start), description=about)
    text = re.sub(r" +$", "", said.getvalue(), flags=re.MULTILINE).replace("(default: )", "(default: automatic)")
    return re.sub(r"^ config\.([\w.]+) options$", lambda found: f" {GROUPS[found[1]]}", text, flags=re.MULTILINE)


def of_its_data(asked: Train, start: Train) -> Train:
    """Leave out how many mazes a preset has, where other images were asked for."""
    data, before = asked.config.data, start.config.data
    if data.dataset == before.dataset or data.mazes != before.mazes:
        return asked
    config = dataclasses.replace(asked.config, data=dataclasses.replace(data, mazes=None))
    return dataclasses.replace(asked, config=config)


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
    groups: list[tuple[str, Any]] = [("model", config.model), ("data", config.data), ("training", config.train)]
    if isinstance(config.model, CodecModelConfig):
        groups.insert(1, ("codec", config.model.codec))
    hidden = ("codec", *FROM_DATA)
    others = [
        f"  {name:9} {sum(f.name not in hidden for f in dataclasses.fields(part)):2} flags: {summary(part)}"
        for name, part in groups
    ]
    return f"""usage: {prog} [flags]

{about}

  --out FOLDER    the run's folder: checkpoints, metrics, config (default: {start.out})
  --steps N       steps of the whole run (default: {config.train.steps})
  --dataset NAME  glyphs, omniglot, mazes, or the path of your own images (default: {config.data.dataset})
  --device NAME   auto (a GPU if there is one), cpu, cuda, … (default: {config.train.device})
  --resume        go on with the run in that folder
  --model KIND    train another kind of model: {", ".join(trained())}

{prog} --help-all lists all flags:
{chr(10).join(others)}"""


def trained() -> list[str]:
    """The kinds of model that are trained."""
    return [name for name, kind in MODELS.items() if not kind.UNTRAINED]


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
        raise ValueError(f"{flag}: expected the name of a model ({', '.join(trained())}), got none")
    return words[:at] + words[at + 2 :], words[at + 1]


def better(folder: Path, score: Score) -> str:
    """The best score of a run, where it is not that of its end; empty where it is, or where nothing says so."""
    try:
        found = read(folder / BEST)
    except (OSError, ValueError):
        return ""
    best, step = found.about.get("best"), found.step
    if not isinstance(best, float) or best >= score.nats:
        return ""
    return f"\nbest: {best:.2f} at step {step:,}; {found.path}, which other commands take of this run"


def ending(folder: Path) -> str:
    """How a run that was not evaluated ended: its step, its last training score and its checkpoint."""
    path = folder / LAST
    step, row = read(path).step, latest(folder / METRICS)
    if row is None:
        return f"step {step:,}; {path}"
    when = "" if row["step"] == step else f" at step {row['step']:,}"
    return f"step {step:,}: {row['nats']:.2f} nats per training image{when}; {path}"
