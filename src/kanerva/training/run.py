"""Checkpoints of a run: weights, their average, the optimiser's state, the step and the config, in one file."""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import filelock
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from ..data.episodes import changes
from ..models.base import Model
from ..models.checkpoint import LAST, Checkpoint, read
from ..support.configs import from_dict, to_dict
from ..support.files import atomic_write, lock, make_folder, sweep
from ..support.tensors import match, save
from .config import RunConfig

# What may change when a run goes on: how long, how often it reports, where and how it computes.
FREE = ("steps", "device", "compute", "evaluate_every", "nonfinite")
# What Adam keeps of each parameter once there was a step, beside the number of steps.
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Run:
    """What changes as a run goes on."""

    config: RunConfig
    model: Model
    average: AveragedModel | None
    optimizer: torch.optim.Optimizer
    step: int = 0
    best: float = math.inf
    best_step: int | None = None
    spent: float = 0.0
    """Seconds of training before this session."""
    began: float = field(default_factory=time.perf_counter)
    marks: dict[str, Tensor] = field(default_factory=dict)
    """`ClassImages.marks` of the user's own images, by split."""

    def best_weights(self) -> Model:
        """The model to evaluate: the averaged one, where there is one."""
        return self.model if self.average is None else self.average.module  # type: ignore[return-value]

    def save(self, path: Path) -> None:
        """Write all of it to one file; the one that was there stays until the new one is whole."""
        tensors = self._weights() | {f"data.{split}": marks for split, marks in self.marks.items()}
        for name, parameter in self.model.named_parameters():
            kept = self.optimizer.state.get(parameter, {})
            tensors |= {f"optimizer.{key}.{name}": torch.as_tensor(x) for key, x in kept.items()}
        about = {
            "model": to_dict(self.config.model),
            "run": to_dict(self.config),
            "step": self.step,
            "best": self.best if math.isfinite(self.best) else None,
            "best_step": self.best_step,
            "random": {"seed": self.config.train.seed, "step": self.step},
            "seconds": round(self.spent + time.perf_counter() - self.began, 1),
        }
        save(path, tensors, about, parents=False)

    def restore(self, path: Path) -> None:
        """Take all of it from a file; nothing is changed unless everything fits."""
        found = read(path)
        tensors, about = found.tensors, found.about
        fits(self.config, from_dict(RunConfig, about.get("run"), f"{path}: run"), path)
        same_images(self.marks, found)
        own, state = self._weights(), dict[int, dict[str, Tensor]]()
        for i, (name, parameter) in enumerate(self.model.named_parameters()) if about["step"] else ():
            # files keep no strides, and a fused optimiser takes moments to lie in memory as their parameter does
            state[i] = {"step": torch.tensor(0.0), **{key: torch.empty_like(parameter) for key in MOMENTS}}
            own |= {f"optimizer.{key}.{name}": x for key, x in state[i].items()}
        match(own, {name: x for name, x in tensors.items() if not name.startswith("data.")}, str(path))
        for name, x in own.items():
            x.copy_(tensors[name])
        self.optimizer.load_state_dict(
            {"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )
        self.step, self.spent = about["step"], about["seconds"]
        self.best = math.inf if about["best"] is None else about["best"]
        self.best_step = about["best_step"]

    def _weights(self) -> dict[str, Tensor]:
        """The weights and their average, by the names that they have in a file."""
        tensors = {f"model.{name}": x for name, x in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{name}": x for name, x in self.average.module.state_dict().items()}
            tensors["averaged"] = self.average.n_averaged
        return tensors


def fits(config: RunConfig, saved: RunConfig, where: Path) -> None:
    """Check that a run may go on with this config; the error names the fields that differ."""
    free = {name: getattr(config.train, name) for name in FREE}
    freed = replace(
        saved, data=replace(saved.data, data_dir=config.data.data_dir), train=replace(saved.train, **free)
    )
    now, then = flat(to_dict(config)), flat(to_dict(freed))
    shared = [name for name in now if name in then]  # two kinds of model do not share all fields
    differ = [f"{name} = {now[name]} (was {then[name]})" for name in shared if now[name] != then[name]]
    if differ:
        raise ValueError(
            f"{where}: the run was started with another config: {', '.join(differ)}; go on with the old values, "
            f"or start a new run in another folder"
        )


def flat(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    """{"train": {"lr": 1}} as {"train.lr": 1}."""
    result: dict[str, object] = {}
    for name, value in tree.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return result


def same_images(marks: dict[str, Tensor], saved: Checkpoint) -> None:
    """Check that a run may go on with these images; a checkpoint that has no marks of its own takes any."""
    before = saved.part("data.")
    found = {name: changes(before[name], now) for name, now in marks.items() if name in before}
    if differ := "; ".join(f"{name} images: {what}" for name, what in found.items() if what):
        raise ValueError(
            f"{saved.path}: the images are not those that the run was started with: {differ}; go on with the old "
            f"ones, or begin a new run with these weights: --start {saved.path.parent} --out ANOTHER"
        )


@contextlib.contextmanager
def claim(
    folder: Path, config: RunConfig, resume: bool, marks: dict[str, Tensor] | None = None
) -> Iterator[Callable[[], None]]:
    """Make a run's folder ours: not another run's by accident, and no second process in it.

    marks: those of the images that it is to go on with. The function that is given checks that the folder is still
    the same one: a lone checkpoint in a new one would be no run.
    """
    last = folder / LAST
    started = any(folder.glob("*.safetensors"))
    if resume and not last.exists():
        raise FileNotFoundError(f"{last}: no checkpoint to resume from; start the run without --resume")
    if started and not resume:
        raise FileExistsError(
            f"{folder}: holds a run already; --resume goes on with it, --out names another folder"
        )
    if resume:
        saved = read(last)
        fits(config, from_dict(RunConfig, saved.about.get("run"), f"{last}: run"), last)
        same_images(marks or {}, saved)
    make_folder(folder)
    with alone(folder):
        for name in ("*.safetensors", "config.json", "metrics.jsonl"):
            sweep(folder, name)
        with atomic_write(folder / "config.json") as file:
            file.write((json.dumps(to_dict(config), indent=1) + "\n").encode())
        place = folder.stat()

        def still_ours() -> None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(folder.stat(), place):
                    return
            raise FileNotFoundError(
                f"{folder}: the run's folder was removed or replaced during training; nothing more is saved there"
            )

        yield still_ours


def saved_config(folder: Path) -> RunConfig:
    """The config of the run in a folder, as its last checkpoint has it."""
    last = folder / LAST
    if not last.is_file():
        raise FileNotFoundError(f"{folder}: no run to resume; expected a run's folder, with {LAST}")
    return from_dict(RunConfig, read(last).about.get("run"), f"{last}: run")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder against other processes, where the system knows locks."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock(folder / ".lock", wait=False))
        except filelock.Timeout:
            raise FileExistsError(f"{folder}: another process is training here") from None
        yield
