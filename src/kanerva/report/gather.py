"""Reading: all that there is about a run. What is missing or cannot be read is noted, and never an error."""

import contextlib
import glob
from pathlib import Path
from typing import Any, NamedTuple

from .. import experiments, plain, storage
from ..experiments import EXPERIMENTS
from ..experiments.base import Experiment
from ..experiments.tables import is_number
from ..files import contents
from ..spelling import nearest


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

    @property
    def models(self) -> list[dict[str, Any]]:
        """What was measured, model by model."""
        found = self.data.get("models")
        return [model for model in found if isinstance(model, dict)] if isinstance(found, list) else []

    @property
    def config(self) -> dict[str, Any]:
        return part(self.data, "config")


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
    name = path.resolve().name if whole else path.stem
    results, scores = collect(where, folder, name, checkpoint, missing)
    dataset = at(config, "data", "dataset")
    tests = [line for line in metrics if is_score(line.get("validation"))]
    # that of the checkpoint, or the last
    own = [line for line in tests if line.get("step") == checkpoint.get("step")] or tests
    scores += [{**line["validation"], "step": line.get("step"), "dataset": dataset} for line in own[-1:]]
    # on its own kind of images, and then on as many as possible
    scores.sort(key=lambda s: (s.get("dataset") != dataset, s.get("classes") is not None, -number(s.get("images"))))
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
        data = plain.loads(contents(path))
    except FileNotFoundError:
        missing.append(f"{path}: no such file")
        return {}
    except (OSError, ValueError) as error:
        missing.append(f"{path}: could not be read ({error})")
        return {}
    return data if isinstance(data, dict) else {}


def lines(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; one that was cut short by a crash is left out."""
    if not path.is_file():
        missing.append(f"{path}: no such file, so there is no training curve")
        return []
    try:
        text = contents(path).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        missing.append(f"{path}: could not be read ({error}), so there is no training curve")
        return []
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(plain.loads(line))
    return [line for line in found if isinstance(line, dict)]


def collect(
    where: Path, folder: Path, name: str, checkpoint: dict[str, Any], missing: list[str]
) -> tuple[list[Results], list[dict[str, Any]]]:
    """Results of experiments in the order of the list of experiments, and evaluations of this checkpoint.

    They are EXPERIMENT.json, or EXPERIMENT/NAME.json where a folder has results of several models.
    """
    results, scores = [], []
    mine = {*where.glob("*.json"), *where.glob(f"*/{glob.escape(name)}.json")}
    for path in sorted((mine | set(folder.glob("*.json"))) - {folder / "config.json"}):
        if not path.is_file():  # a pipe would be waited for
            missing.append(f"{path}: not a file, left out")
            continue
        data = read(path, missing)
        if isinstance(data.get("experiment"), str) and path in mine:
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
