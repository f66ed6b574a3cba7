"""What experiments have in common: flags, the models and images they are made with, files of results."""

import base64
import dataclasses
import hashlib
import math
import platform
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from .. import __version__, checks, plain, storage
from ..data import ClassImages
from ..distributed import choose
from ..files import atomic_write, check_writable, contents
from ..models import Model, Recall
from ..progress import bar
from ..streams import say
from ..subject import Subject as Subject
from ..subject import load, origin, sources
from ..support.pixels import distances as distances
from ..support.pixels import is_binary as is_binary
from ..support.pixels import to_bytes
from .tables import Table

Kind = TypeVar("Kind", bound=Model)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment. Its fields are its flags; `run` gives the numbers for one model."""

    checkpoint: tuple[str, ...] = ("omniglot",)
    """Models, one after another: checkpoints, folders of runs, pretrained models (mazes, omniglot, omniglot-new),
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

    NAME: ClassVar[str]
    TITLE: ClassVar[str]
    ABOUT: ClassVar[str]
    """What it asks and how, for somebody who has not read the paper."""
    FIGURES: ClassVar[dict[str, str]]
    """What each figure shows, by the end of its name."""
    NEEDS: ClassVar[str | None] = None
    """The one kind of model that it is about; None: any."""
    SMOKE: ClassVar[dict[str, Any]]
    """Smaller values of its own flags, for --smoke."""

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        """The numbers for one model; `tick` is called `rounds` times, as the work goes on."""
        raise NotImplementedError

    def rounds(self, model: Model) -> int:
        """How often `run` calls `tick`."""
        raise NotImplementedError

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """The numbers to know of what `run` gave."""
        raise NotImplementedError

    @staticmethod
    def strips(result: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[int, int]]] | None:
        """Images to begin a report with: packed ones, and for each strip its name and its row at each step.

        They stand for the figure `pictures`. None: an experiment that has none.
        """
        return None

    def left_out(self, model: Model) -> str | None:
        """What a model of this kind cannot show, and why; None: nothing."""
        return None

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ValueError("checkpoint: expected at least one model, got none")
        checks.seed(self.seed)

    def main(self) -> Path:
        """Run it with every model, and write the results and their figures."""
        from . import plots

        work = dataclasses.replace(self, **self.SMOKE) if self.smoke else self
        began = time.perf_counter()
        models = []
        device = choose(work.device)
        found = sources(work.checkpoint, work.dataset, work.data_dir, work.NEEDS, work.NAME)
        path, flags = work.place(), work.settings()
        if path.exists() and not path.is_file():
            raise OSError(f"{path}: expected the name of a file, which is read again, got a device or a folder")
        if not work.overwrite:
            keep(path, {"config": flags, "smoke": work.smoke, "models": [origin(*one) for one in found]})
        check_writable(path)
        for subject in load(found, device):
            if lacks := work.left_out(subject.model):
                say(f"{work.NAME}: {subject.name}: {lacks}")
            generator = torch.Generator(device).manual_seed(work.seed)
            with torch.no_grad(), bar(f"{work.NAME}: {subject.name}", work.rounds(subject.model)) as advance:
                result = work.run(subject, generator, lambda: advance(1))
            models.append({"name": subject.name, **subject.about, "result": result})
        results = {
            "experiment": work.NAME,
            "date": time.strftime("%Y-%m-%d"),
            "command": command(self),
            "config": flags,
            "smoke": work.smoke,
            "versions": {"kanerva": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "device": str(choose(work.device)),
            "seconds": round(time.perf_counter() - began, 1),
            "models": models,
        }
        save(path, results)
        with bar(f"{work.NAME}: drawing", None):
            plots.draw(results, path)
        return path

    def settings(self) -> dict[str, Any]:
        """The flags of its numbers, for the file of results."""
        other = ("checkpoint", "out", "smoke", "overwrite")
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in other}

    def place(self) -> Path:
        """Where its results go."""
        if self.out is not None:
            return self.out if self.out.suffix == ".json" else self.out / f"{self.NAME}.json"
        place = self.checkpoint[0]
        if place in storage.shipped() or not Path(place).exists():
            folder = Path("runs") / file_name(place)
        else:
            folder = Path(place) if Path(place).is_dir() else Path(place).parent
        return folder / "experiments" / ("smoke" if self.smoke else "") / f"{self.NAME}.json"


def file_name(name: str) -> str:
    """A name that can be part of a file's: that of Hopfield retrieval on a checkpoint is hopfield:PATH."""
    return re.sub(r"[/\\:]+", "-", name)


def keep(path: Path, planned: dict[str, Any]) -> None:
    """Refuse to replace results that were made with other models or settings than planned."""
    if not path.exists():
        return
    try:
        found = plain.loads(contents(path))
        then, now = made_with(found), made_with(plain.finite(planned))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise FileExistsError(
            f"{path}: is no readable file of results; --overwrite replaces it, --out names another place"
        ) from None
    differ = [
        f"{name} = {now.get(name)} (there: {then.get(name)})"
        for name in {**now, **then}
        if now.get(name) != then.get(name)
    ]
    if differ:
        raise FileExistsError(
            f"{path}: holds results of other settings: {', '.join(differ)}; --overwrite replaces them, --out names "
            f"another place"
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
        file.write((plain.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())


def command(work: Experiment) -> str:
    """What to type for the same again: the flags that are not as they are by default."""
    words = ["kanerva", "experiment", work.NAME]
    for field in dataclasses.fields(work):
        value = getattr(work, field.name)
        if value == field.default or field.name in ("out", "overwrite"):
            continue
        words.append(f"--{field.name.replace('_', '-')}")
        if value is not True:
            words += [str(part) for part in (value if isinstance(value, tuple) else (value,))]
    return " ".join(words)


def only(model: Model, kind: type[Kind]) -> Kind:
    """The model, which must be of a kind."""
    if not isinstance(model, kind):
        raise TypeError(f"model: expected a {kind.__name__}, got a {type(model).__name__}")
    return model


def recalls(model: Model, chains: bool = True) -> list[str]:
    """The names of a model's recalls, the plain read first; without `chains`, no Markov chains."""
    names = sorted(model.METHODS, key=lambda method: method != model.READ)
    return [name for name in names if chains or not is_chain(model, name)]


def is_chain(model: Model, method: str) -> bool:
    """Whether a recall is a Markov chain, which has a temperature."""
    return "temperature" in model.options(method)


def told(model: Model, method: str, **values: Any) -> dict[str, Any]:
    """Of these options of recall, those that are known and that a method has."""
    known = model.options(method)
    return {name: value for name, value in values.items() if value is not None and name in known}


def energies(paths: dict[str, Recall]) -> dict[str, list[list[float]]]:
    """The energies of single cues, step by step, of those paths that have any; 20 are enough for a figure."""
    found = {method: path.energy for method, path in paths.items() if path.energy is not None}
    return {method: energy[:, :20].T.tolist() for method, energy in found.items()}


def mean(values: Tensor) -> dict[str, float]:
    """Mean and standard error of one number per episode (the independent unit), over the first axis."""
    values = values.double().flatten(1).mean(1) if values.ndim > 1 else values.double()
    spread = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "stderr": spread}


def means(values: Tensor) -> dict[str, list[float]]:
    """`mean` for each entry of the first axis: (S, episodes, …) gives S means and S standard errors."""
    rows = [mean(row) for row in values]
    return {key: [row[key] for row in rows] for key in ("mean", "stderr")}


def pack(x: Tensor) -> dict[str, Any]:
    """Images for JSON: bits of binary ones, bytes of others, in base 64."""
    binary = is_binary(x)
    data = np.packbits(x.detach().cpu().numpy().astype(np.uint8)) if binary else to_bytes(x).cpu().numpy()
    return {"shape": list(x.shape), "binary": binary, "data": base64.b64encode(data.tobytes()).decode()}


def unpack(packed: dict[str, Any]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """What `pack` packed: ink from 0 to 1 for binary images, else from 0 to 1 of the range."""
    data = np.frombuffer(base64.b64decode(packed["data"]), np.uint8)
    count = math.prod(packed["shape"])
    flat = np.unpackbits(data)[:count] if packed["binary"] else data / 255
    return flat.reshape(packed["shape"]).astype(np.float32)


def distinct(images: ClassImages, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Episodes without an image twice, so that every one has a right answer of its own."""
    if length > len(images):
        raise ValueError(f"length: expected at most {len(images)}, as many images as there are, got {length}")
    noise = torch.rand(batch, len(images), generator=generator, device=images.device)
    return images.images(noise.topk(length, dim=1).indices)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A checksum of images and cues on the CPU: results that were made with the same ones have the same."""
    digest = hashlib.sha256()
    for x in tensors:
        digest.update(x.contiguous().numpy().tobytes())
    return digest.hexdigest()
