"""Reading: all that there is about a run. What is missing or cannot be read is noted, and never an error."""

import contextlib
import glob
from pathlib import Path
from typing import Any, NamedTuple

from ... import lab
from ...lab.tables import is_number
from ...models.checkpoint import LAST, locate, shipped
from ...models.checkpoint import read as read_checkpoint
from ...support import strict_json
from ...support.files import read_file
from ...support.say import nearest


class Results(NamedTuple):
    """An experiment's file of results, of one of `lab.EXPERIMENTS`."""

    path: Path
    data: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["experiment"])

    @property
    def models(self) -> list[dict[str, Any]]:
        """What was measured, model by model."""
        found = self.data.get("models")
        return [model for model in found if isinstance(model, dict)] if isinstance(found, list) else []


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
    path, pretrained = Path(place), place in shipped()
    if not pretrained and not path.exists():
        raise FileNotFoundError(
            f"{place}: no such run; expected a run's folder, a checkpoint, or a pretrained model: "
            f"{', '.join(shipped())}{nearest(place, shipped())}"
        )
    whole = path.is_dir() and not pretrained
    # where experiments put their results when not told otherwise
    folder = Path("runs") / place if pretrained else path if whole else path.parent
    if where is not None and not where.is_dir():
        raise FileNotFoundError(f"{where}: no such folder; expected one with results of experiments")
    where = folder / "experiments" if where is None else where
    usual = ("config.json", "metrics.jsonl", LAST)
    if whole and not where.is_dir() and not any((path / name).exists() for name in usual):
        raise FileNotFoundError(
            f"{path}: expected a run's folder with {', '.join(usual)}, got one with none of them"
        )

    missing: list[str] = []
    checkpoint = describe(locate(place), missing if whole else None)
    config = checkpoint.get("run") or {"model": checkpoint.get("model")}
    config = (read(path / "config.json", missing) if whole else {}) or config
    metrics = lines(path / "metrics.jsonl", missing) if whole else []
    name = path.resolve().name if whole else path.stem
    results, scores = collect(where, folder, name, checkpoint, missing)
    dataset = part(config, "data").get("dataset")
    tests = [line for line in metrics if is_score(line.get("validation"))]
    # that of the checkpoint, or the last
    own = [line for line in tests if line.get("step") == checkpoint.get("step")] or tests
    scores += [{**line["validation"], "step": line.get("step"), "dataset": dataset} for line in own[-1:]]
    # on its own kind of images, and then on as many as possible
    scores.sort(key=lambda s: (s.get("dataset") != dataset, s.get("classes") is not None, -number(s.get("images"))))
    return Material(name, place, folder, checkpoint, config, metrics, scores, results, missing)


def describe(path: Path, missing: list[str] | None) -> dict[str, Any]:
    """What a checkpoint says, and the variances and scales that it learned, through their logarithms."""
    try:
        found = read_checkpoint(path)
    except (OSError, ValueError) as error:
        if missing is None:
            raise
        missing.append(str(error))
        return {}
    scalars = {name.rpartition(".")[2]: x for name, x in found.weights().items() if x.ndim == 0}
    logs = {name.removeprefix("log_"): x for name, x in scalars.items() if name.startswith("log_")}
    learned = {name: float(x.double().exp()) for name, x in logs.items()}
    return {**found.about, "parameters": found.parameters, "learned": learned, "file": path.name}


def text(path: Path, missing: list[str], note: str = "") -> str:
    """What is in a file; empty where it cannot be read, which is noted."""
    try:
        return read_file(path).decode("utf-8", "replace")
    except FileNotFoundError:
        missing.append(f"{path}: no such file{note}")
    except (OSError, ValueError) as error:
        missing.append(f"{path}: could not be read ({error}){note}")
    return ""


def read(path: Path, missing: list[str]) -> dict[str, Any]:
    """A file with a JSON object in it; an empty one where there is none."""
    try:
        data = strict_json.loads(text(path, missing) or "{}")
    except ValueError as error:
        missing.append(f"{path}: could not be read ({error})")
        return {}
    return data if isinstance(data, dict) else {}


def lines(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; one that was cut short by a crash is left out."""
    found = []
    for line in text(path, missing, ", so there is no training curve").splitlines():
        with contextlib.suppress(ValueError):
            found.append(strict_json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def collect(
    where: Path, folder: Path, name: str, checkpoint: dict[str, Any], missing: list[str]
) -> tuple[list[Results], list[dict[str, Any]]]:
    """Results of experiments in the order of the list of experiments, and evaluations of this checkpoint.

    They are EXPERIMENT.json, or EXPERIMENT/NAME.json where a folder has results of several models.
    """
    results, scores, order = [], [], list(lab.EXPERIMENTS)
    mine = {*where.glob("*.json"), *where.glob(f"*/{glob.escape(name)}.json")}
    for path in sorted((mine | set(folder.glob("*.json"))) - {folder / "config.json"}):
        data = read(path, missing)
        if data.get("experiment") in order and path in mine:
            results.append(Results(path, data))
        elif is_score(data) and "crc32" in data:
            if data["crc32"] == checkpoint.get("crc32"):
                scores.append(data)
            else:
                missing.append(f"{path}: the score of another checkpoint, left out")
    results.sort(key=lambda r: (order.index(r.name), r.path))
    return results, scores


def is_score(data: Any) -> bool:
    return isinstance(data, dict) and all(is_number(data.get(name)) for name in ("nats", "nats_stderr"))


def number(value: Any) -> float | int:
    return value if is_number(value) else 0


def part(tree: Any, name: str) -> dict[str, Any]:
    """A dictionary in a dictionary; an empty one where there is none."""
    found = tree.get(name) if isinstance(tree, dict) else None
    return found if isinstance(found, dict) else {}
