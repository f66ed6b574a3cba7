"""Run an experiment: its flags, the models and images that it is made with, and its files of results.

A model is named by a place: a checkpoint, the folder of a run, a pretrained model ("mazes", "omniglot",
"omniglot-new"), or a model that needs no training ("nearest"); "hopfield:PLACE" is Hopfield retrieval on the codes
of the model at PLACE.
"""

import dataclasses
import inspect
import platform
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import tyro

from .. import __version__, models
from ..data import ClassImages
from ..data.episodes import changes
from ..models import Model
from ..models.checkpoint import Checkpoint, read, shipped, taken
from ..support import checks, strict_json
from ..support.configs import from_dict
from ..support.files import atomic_write, check_writable, read_file
from ..support.say import say, show
from ..training.config import DataConfig, RunConfig
from ..training.processes import choose

# Models


class Subject(NamedTuple):
    """A model, and images of classes that it has seen and has not."""

    name: str
    model: Model
    seen: ClassImages
    unseen: ClassImages
    about: dict[str, Any]
    """Where the model comes from, for the file of results."""


class Source(NamedTuple):
    """What is known of a model before it is made."""

    place: str
    kind: str
    data: DataConfig | None
    """The images that it was trained on, where it says."""
    checkpoint: Checkpoint | None

    def origin(self, data: DataConfig) -> dict[str, Any]:
        """Where the model and its images come from, for the file of results."""
        said = self.checkpoint.about if self.checkpoint else {}
        about = {key: said.get(key) for key in ("step", "seconds", "crc32")}
        return {"checkpoint": self.place, "kind": self.kind, **about, "dataset": data.dataset}


def find(
    places: Sequence[str],
    device: torch.device | str = "cpu",
    dataset: str | None = None,
    data_dir: str | None = None,
) -> Iterator[Subject]:
    """Load models one after another, with the images to try them on.

    Images are those of a data set that is named, or those that a model was trained on. A model that was trained on
    none takes those of the first one here that was, or glyphs.
    """
    return load(sources(places, dataset, data_dir), device)


def sources(
    places: Sequence[str], dataset: str | None = None, data_dir: str | None = None
) -> list[tuple[Source, DataConfig]]:
    """What is at the places, and the images for each; nothing is made yet."""
    if not places:
        raise ValueError("checkpoint: expected at least one model, got none")
    found_all = [source(place) for place in places]
    usual = next((found.data for found in found_all if found.data is not None), DataConfig())
    return [(found, (found.data or usual).other(dataset, data_dir)) for found in found_all]


def load(sources: Sequence[tuple[Source, DataConfig]], device: torch.device | str = "cpu") -> Iterator[Subject]:
    """Make the models, load their images, and say which checkpoint of a run it is and which images have changed."""
    called = names([found.place for found, _ in sources])
    for (found, config), own in zip(sources, called, strict=True):
        if said := taken(found.place):
            say(said)
        seen, unseen = config.load(device, config.split, "test")
        about = found.origin(config)
        if changed := since(found, config, seen, unseen):
            say(f"{found.place}: {changed}")
            about["changed"] = changed
        yield Subject(own, make(found, seen).to(device), seen, unseen, about)


def source(place: str) -> Source:
    """Read what is at a place."""
    kind, colon, codec = place.partition(":")
    if kind in models.MODELS and not Path(place).exists():
        if not models.MODELS[kind].UNTRAINED:
            raise ValueError(f"{place}: expected a checkpoint of it; kanerva train PRESET --model {kind} makes one")
        if not colon:
            return Source(place, kind, None, None)
        inner = source(codec) if codec else None
        if inner is None or models.MODELS[inner.kind].UNTRAINED:
            raise ValueError(f"{place}: expected a trained model after the colon, got {codec or 'nothing'}")
        return inner._replace(place=place, kind=kind)
    checkpoint = read(place)
    run = checkpoint.about.get("run")
    trained = None if run is None else from_dict(RunConfig, run, f"{checkpoint.path}: run").data
    return Source(place, checkpoint.config.kind, trained, checkpoint)


def make(found: Source, seen: ClassImages) -> Model:
    """The model of a source; one that needs no training, and is new, looks at images that training would see."""
    if found.checkpoint is not None:
        model = found.checkpoint.model()
        if model.config.kind == found.kind:
            return model
        model = models.MODELS[found.kind].on(model)
    else:
        model = models.create(found.kind, seen.shape, seen.likelihood)
    model.to(seen.device).adapt(seen)
    return model.eval()


def since(found: Source, config: DataConfig, seen: ClassImages, unseen: ClassImages) -> str:
    """What has become of the user's own images since a model was trained on them; empty if nothing has."""
    then, said = found.checkpoint.part("data.") if found.checkpoint else {}, list[str]()
    if found.data is not None and found.data.dataset == config.dataset:
        both = [images for images in (seen, unseen) if images.split in then]
        parts = {images.split: changes(then[images.split], images.marks) for images in both}
        if any(parts.values()):
            what = "; ".join(f"{split} images: {part}" for split, part in parts.items() if part)
            said.append(f"{config.dataset} has changed since this model was trained: {what}")
    if "train" in then:
        known = len(set(then["train"][:, 1].tolist()) & set(unseen.marks[:, 1].tolist()))
        again = f"{known} of {unseen.different} different test images of {config.dataset} were trained on"
        said += [again] if known else []
    return "; ".join(said)


def names(places: Sequence[str]) -> list[str]:
    """Short names for places, each another: with the folders above them where the names are the same."""
    ways = [way(place) for place in places]
    short = []
    for own in ways:
        shared = [sum(other[-depth:] == own[-depth:] for other in set(ways)) > 1 for depth in range(1, len(own))]
        short.append("/".join(own[-1 - sum(shared) :]))
    # the same place twice
    return [
        name if name not in short[:i] else f"{name} ({short[: i + 1].count(name)})" for i, name in enumerate(short)
    ]


def way(place: str) -> tuple[str, ...]:
    """The parts of a path, without its ending; or a name."""
    path = Path(place)
    if place in shipped() or not path.exists():
        return (place,)
    return path.resolve().parts if path.is_dir() else (*path.absolute().parts[:-1], path.stem)


# Experiments


@dataclass(frozen=True, kw_only=True)
class Work:
    """An experiment and its flags: those that all have, and in a subclass the parameters of its `run`."""

    checkpoint: tuple[str, ...] = ("omniglot",)
    """Models, one after another: checkpoints, folders of runs, pretrained models (kanerva info lists them),
    or models without training (nearest, hopfield, hopfield:CHECKPOINT)."""
    dataset: str | None = None
    """Other images than those it was trained on: glyphs, omniglot, mazes or a path."""
    data_dir: str | None = None
    """Where the files of omniglot are."""
    seed: int = 0
    """Decides episodes and noise."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, …"""
    smoke: bool = False
    """A very small one, to see that it runs: seconds, or a minute where recall is by descent."""
    out: Path | None = None
    """Where results go, NAME.json and figures beside it; otherwise to experiments/ in the first run's folder,
    or to experiments/smoke/."""
    overwrite: bool = False
    """Replace results that were made with other models or settings."""

    EXPERIMENT: ClassVar[ModuleType]
    COMMAND: ClassVar[str]
    """What to type; its last word names the experiment."""

    def __post_init__(self) -> None:
        checks.seed(self.seed)
        for name in self.own():
            value = getattr(self, name)
            one = value[0] if isinstance(value, tuple) and value else value
            if not isinstance(one, str):
                checks.fields(self, **{name: 0 if isinstance(one, float) else 1})

    def own(self) -> list[str]:
        """The names of the parameters of `run`."""
        return [field.name for field in dataclasses.fields(self) if field.name not in Work.__dataclass_fields__]

    @property
    def name(self) -> str:
        return Path(self.COMMAND.split()[-1]).stem

    def main(self) -> tuple[Path, list[Path]]:
        """Run it with every model, write the results and their figures, and return their places."""
        from . import drawing

        work = dataclasses.replace(self, **self.EXPERIMENT.SMOKE) if self.smoke else self
        began, device = time.perf_counter(), choose(work.device)
        found = sources(work.checkpoint, work.dataset, work.data_dir)
        needs = getattr(self.EXPERIMENT, "NEEDS", None)
        for what, _ in found:
            if needs not in (None, what.kind):
                wanted = models.MODELS[str(needs)].__name__
                raise ValueError(f"{work.name}: needs a {wanted}, got {what.place}, which is of kind {what.kind}")
        path, settings = work.place(), {"config": work.settings(), "smoke": work.smoke}
        if path.exists() and not path.is_file():
            raise OSError(f"{path}: expected the name of a file, which is read again, got a device or a folder")
        if not work.overwrite:
            keep(path, {**settings, "models": [what.origin(config) for what, config in found]})
        check_writable(path)
        made = []
        for who in load(found, device):
            with torch.no_grad():
                own = {name: getattr(work, name) for name in work.own()}
                result = self.EXPERIMENT.run(who, work.seed, **own)
            made.append({"name": who.name, **who.about, "result": result})
        results = {
            "experiment": work.name,
            "date": time.strftime("%Y-%m-%d"),
            "command": self.command(),
            **settings,
            "versions": {"kanerva": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "device": str(device),
            "seconds": round(time.perf_counter() - began, 1),
            "models": made,
        }
        save(path, results)
        return path, drawing.draw(drawing.figures(self.EXPERIMENT, made), path)

    def settings(self) -> dict[str, Any]:
        """The flags that its numbers depend on, for the file of results."""
        other = ("checkpoint", "out", "smoke", "overwrite")
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in other}

    def place(self) -> Path:
        """Where its results go."""
        if self.out is not None:
            return self.out if self.out.suffix == ".json" else self.out / f"{self.name}.json"
        place = Path(self.checkpoint[0])
        if str(place) in shipped() or not place.exists():
            folder = Path("runs") / file_name(str(place))
        else:
            folder = place if place.is_dir() else place.parent
        return folder / "experiments" / ("smoke" if self.smoke else "") / f"{self.name}.json"

    def command(self) -> str:
        """What to type to repeat it: the flags that differ from their defaults."""
        words = self.COMMAND.split()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default and field.name not in ("out", "overwrite"):
                words.append(f"--{field.name.replace('_', '-')}")
                if value is not True:
                    words += map(str, value if isinstance(value, tuple) else (value,))
        return shlex.join(words)


def flags(experiment: ModuleType, command: str) -> type[Work]:
    """The flags of an experiment: those of `Work`, and the parameters of its `run`, explained in the docstring."""
    _, _, *own = inspect.signature(experiment.run).parameters.values()  # the model and the seed
    said = dict(re.findall(r"^(\w+): (.+(?:\n +.+)*)", inspect.getdoc(experiment.run) or "", re.MULTILINE))
    fields: list[tuple[str, Any, Any]] = []
    for parameter in own:
        help = tyro.conf.arg(help=" ".join(said[parameter.name].split()))
        fields.append((parameter.name, Annotated[parameter.annotation, help], parameter.default))
    models = getattr(experiment, "MODELS", Work.checkpoint)
    about = {
        "EXPERIMENT": experiment,
        "COMMAND": command,
        "__doc__": (experiment.run.__doc__ or "").split("\n\n")[0],
    }
    return dataclasses.make_dataclass(
        experiment.__name__,
        [("checkpoint", tuple[str, ...], models), *fields],
        bases=(Work,),
        namespace=about,
        frozen=True,
        kw_only=True,
    )


def script(experiment: ModuleType, command: str) -> None:
    """Run an experiment that is no command of kanerva, with the flags on the command line."""
    path, figures = tyro.cli(flags(experiment, command)).main()
    show("\n".join(map(str, (path, *figures))))


# Results


def file_name(name: str) -> str:
    """A name that can be part of a file's: that of Hopfield retrieval on a checkpoint is hopfield:PATH."""
    return re.sub(r"[/\\:]+", "-", name)


def keep(path: Path, planned: dict[str, Any]) -> None:
    """Refuse to replace results that were made with other models or settings than planned."""
    if not path.exists():
        return
    try:
        then, now = made_with(strict_json.loads(read_file(path))), made_with(strict_json.finite(planned))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise FileExistsError(
            f"{path}: is no readable file of results; --overwrite replaces it, --out names another place"
        ) from None
    names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    if names:
        differ = ", ".join(f"{name} = {now.get(name)} (there: {then.get(name)})" for name in names)
        raise FileExistsError(
            f"{path}: holds results of other settings: {differ}; --overwrite replaces them, --out names another "
            f"place"
        )


def made_with(results: dict[str, Any]) -> dict[str, Any]:
    """What the numbers of results depend on, by name: settings, models and images."""
    flags = {name: value for name, value in results["config"].items() if name not in ("device", "data_dir")}
    # a checkpoint is known by its checksum, wherever it lies
    who = [(model["kind"], model.get("crc32") or model["checkpoint"]) for model in results["models"]]
    images = [model["dataset"] for model in results["models"]]
    return {**flags, "smoke": results["smoke"], "models": who, "dataset": images}


def save(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON, whole or not at all."""
    with atomic_write(path) as file:
        file.write((strict_json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())
