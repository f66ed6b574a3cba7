"""Training: one loop, read from top to bottom.

A run lives in a folder: config.json, metrics.jsonl (a JSON object a line), last.safetensors and best.safetensors.
What a step draws depends on the seed and its number alone, so a resumed run goes on bit for bit.
"""

import contextlib
import dataclasses
import math
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from . import checkpoint, distributed, kernels, plain
from .checkpoint import Run
from .config import RunConfig, TrainConfig
from .data import ClassImages, find
from .distributed import World
from .evaluate import Score, evaluate
from .fields import from_dict
from .likelihood import SURE
from .log import Log
from .models import MODELS, BaseConfig, load
from .models.base import CodecModel, CodecModelConfig, Model, Preparation
from .models.checkpoint import BEST, LAST, read
from .step import Bad, Step, learning_rate, make_optimizer, why_not_captured
from .support.checks import deep_checks
from .support.files import contents
from .support.pixels import LEVEL
from .support.say import say

# Measured: results/training/colour-emoji.json.
EXPECT = (
    "on a CPU expect the right colours, a little blurred: after seven minutes on one core, new emoji come back "
    "from noise of 0.15 with an error of 0.08 (seen with codes of 400 and 2,840 images to train on, 32×32; codes "
    "of 200 leave 0.12, and 20,000 steps on a GPU were no better)"
)


# Different held-out images below which a score says little about others.
FEW = 300


class NonFinite(RuntimeError):
    """A loss or gradient that is not a number."""


def train(config: RunConfig, folder: str | Path, resume: bool = False) -> Score | None:
    """Train a model in `folder`, or go on with the run that is there; returns the last evaluation."""
    with distributed.start(config.train.device) as world:
        return train_here(config, Path(folder), resume, world)


def train_here(config: RunConfig, folder: Path, resume: bool, world: World) -> Score | None:
    """The part of `train` that one process does."""
    c, kind = config.train, config.model.kind
    if MODELS[kind].UNTRAINED:
        raise ValueError(
            f"model: expected one to train, got {kind}, which has nothing to learn; it is used as it is, as in "
            f"kanerva evaluate {kind}"
        )
    if c.bound == "B" and MODELS[kind].online is Model.online:
        raise ValueError(f"bound: expected L for {kind}, which has no one-pass bound B")
    if c.autoencoder != 1 and not getattr(MODELS[kind], "AUTO", False):
        raise ValueError(f"autoencoder: expected 1 for {kind}, which has no L_AE, got {c.autoencoder:g}")
    start = None if c.start is None or resume else load(c.start)  # or an error, before anything is made
    if c.batch % world.size:
        raise ValueError(f"batch: expected a multiple of the {world.size} processes, got {c.batch}")
    images, held = config.data.load(world.device)
    check_episodes(c, images)
    own = find(config.data.dataset) == "images"
    marks = {split.split: split.marks for split in (images, held)} if own else {}
    config = dataclasses.replace(config, model=fit(config.model, images))
    remarks = [held_out(images, held), advice(config, images, world)]
    said = describe(config, world)  # before anything is made: a write that cannot be had is an error
    with contextlib.ExitStack() as stack:
        if world.main:
            stack.enter_context(checkpoint.claim(folder, config, resume, marks))
        run = new_run(config, world, None if resume else images, start)
        run.marks = marks
        if resume:
            run.restore(folder / LAST)
        step = Step(run, images, world)
        log = stack.enter_context(Log(folder, world.main, c.steps, run.step))
        stop = stack.enter_context(interrupts())
        place = folder.stat() if world.main else None
        # a NaN is to reach the loss, where the step, its terms and the state are at hand
        stack.enter_context(deep_checks(False))
        score, told = None, False
        if run.step >= c.steps:
            log.say(f"{folder}: already at step {run.step} of {c.steps}; --steps may be raised to go on")
        else:
            for remark in filter(None, [said, *remarks]):
                log.say(remark)

        while run.step < c.steps:
            try:
                drawn = step(run.step)
            except distributed.Lost as error:
                # what is left of the step is not made: weights are those before it
                if world.main:
                    run.save(folder / LAST)
                raise distributed.Lost(f"{error}; saved at step {run.step}, --resume goes on from there") from error
            run.step += 1
            log.step(run.step, drawn)
            last = run.step == c.steps
            logging = due(run.step, c.log_every) or last
            # weights are not chosen by images that they were trained on
            scoring = images.split == "train" and c.evaluate_every > 0 and (due(run.step, c.evaluate_every) or last)
            # a GPU works ahead while nobody asks how it went
            looking = world.device.type != "cuda" or logging or scoring
            if looking:
                handle_nonfinite(run, step.bad(), folder, world, log)
            if logging:
                still_there(folder, place)
                log.train(run.step, step.values(), learning_rate(run.step - 1, c))
            if scoring and world.main:
                score = evaluate(run.best_weights(), held, c.lengths[0], c.evaluate_images, extra=False)
                log.score(run.step, score)
                if score.nats < run.best:
                    run.best, run.best_step = score.nats, run.step
                    still_there(folder, place)
                    run.save(folder / BEST)
                elif score.nats > run.best + 2 * score.nats_stderr and not told:
                    log.say(risen(run))
                    told = True
            stopping = (looking or world.size == 1) and distributed.agree(stop(), world)
            saving, keeping = due(run.step, c.save_every) or last or stopping, due(run.step, c.keep_every)
            if saving or keeping:
                still_there(folder, place)
                handle_nonfinite(run, step.bad(), folder, world, log)
            if saving and world.main:
                run.save(folder / LAST)
            if keeping and world.main:
                run.save(folder / f"step-{run.step:07d}.safetensors")
            if stopping:
                log.say(f"stopped at step {run.step}; kanerva train --resume {folder} goes on from here")
                break
        return score


def new_run(config: RunConfig, world: World, images: ClassImages | None = None, start: Model | None = None) -> Run:
    """A model with its first weights, its optimiser and its average."""
    c = config.train
    torch.manual_seed(c.seed)
    model = MODELS[config.model.kind](config.model).to(world.device)
    if images is not None:
        model.begin_with(images)
    if start is not None:
        model.begin_as(start.to(world.device))
    precision, compiled = how(c, world)
    model.prepare(Preparation(torch.bfloat16 if precision == "bfloat16" else None, compiled, c.write))
    average = AveragedModel(model, device=world.device) if c.average else None  # its copy is not compiled
    return Run(config, model, average, make_optimizer(model, c, world))


def how(config: TrainConfig, world: World) -> tuple[str, bool]:
    """The codec's precision, and whether it is compiled."""
    gpu = world.device.type == "cuda"
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if gpu and torch.cuda.is_bf16_supported() else "float32"
    compiled = config.compile == "yes" or (config.compile == "auto" and gpu and kernels.C_COMPILER)
    return precision, compiled


def describe(config: RunConfig, world: World) -> str:
    """Where and how a run computes."""
    c = config.train
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else str(world.device)
    obstacle = why_not_captured(c, world)
    launches = "one graph launch" if world.size == 1 else "two graph launches and one all-reduce"
    captured = f"each step is {launches}" if obstacle is None else f"steps are not captured: {obstacle}"
    precision, compiled = how(c, world)
    has_codec = issubclass(MODELS[config.model.kind], CodecModel)
    codec = f"codec: {precision}{', compiled' if compiled else ''}" if has_codec else ""
    own = MODELS[config.model.kind].says(config.model, world.device.type, c.write)
    return "; ".join(filter(None, (f"device: {device}", own, codec, captured)))


def held_out(images: ClassImages, held: ClassImages) -> str:
    """How many images there are to train on and to validate with, and what that means where they are few."""
    if images.split != "train":
        return f"{len(images):,} images to train on, those for validation among them: the last weights are kept"
    said = f"{len(images):,} images to train on, {held.different:,} different ones held out for validation"
    if held.different < FEW:
        said += (
            ": too few for a score that says much about others. Every score is of the same ones, drawn again and "
            "again, and its ± does not cover that"
        )
    return said


def risen(run: Run) -> str:
    """What to say where a score is worse than the best of the run."""
    when = "" if run.best_step is None else f" at step {run.best_step:,}"
    return (
        f"the validation score has risen: it was {run.best:.2f}{when}, kept in {BEST}; usual cause: too "
        f"few images, which are learned by heart"
    )


def advice(config: RunConfig, images: ClassImages, world: World) -> str:
    """What to expect of grey or colour images, where another command or machine does better; empty: all is well."""
    model, c = config.model, config.train
    if images.binary and (ink := float(images.pixels.float().mean())) > 0.5:
        return (
            f"{ink:.0%} of all pixels are ink: binary images want the pattern light (1) on dark (0). "
            f"For dark strokes on a light ground, add --invert"
        )
    if images.binary or not isinstance(model, CodecModelConfig):
        return ""
    if model.scale == "one" and c.clip:  # neither the paper's run nor one of the presets for colour
        side = f" --size {min(32, *images.shape[1:])}"
        return (
            f"this run has one scale for all pixels and clips gradients as for binary images: expect blurs. "
            f"Better: kanerva train colour --dataset {shlex.quote(config.data.dataset)}{side}"
        )
    if model.scale != "one" and world.device.type == "cpu":
        return EXPECT
    return ""


def check_episodes(c: TrainConfig, images: ClassImages) -> None:
    """Check that there are images enough for every step, not only the first: they differ in length."""
    images.check_classes(c.classes)
    most, n = images.fewest(c.classes), images.num_classes
    if c.unwritten and c.plain < 1 and max(c.lengths) > most:
        raise ValueError(
            f"lengths: expected at most {most}, got {max(c.lengths)}: with --unwritten no image comes twice in an "
            f"episode, and {c.classes or n} of the {n} classes of {images.name}/{images.split} may have no more"
        )


def fit(config: BaseConfig, images: ClassImages) -> BaseConfig:
    """Give the model the images' shape and likelihood."""
    fitted = dataclasses.replace(config, image=images.shape, likelihood=images.likelihood)
    if isinstance(fitted, CodecModelConfig) and fitted.pixels == "levels":
        if fitted.binary:
            raise ValueError(f"pixels: expected points for {images.name}, whose images are binary, got levels")
        least = math.hypot(LEVEL / math.sqrt(12), SURE)
        if fitted.min_scale < least:
            raise ValueError(
                f"min_scale: expected {least:.5f} or more with pixels levels, which take no notice of less, "
                f"got {fitted.min_scale:g}; try --min-scale 0.0025"
            )
    return fitted


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def handle_nonfinite(run: Run, bad: Bad | None, folder: Path, world: World, log: Log) -> None:
    """Say which step and values went wrong; stop with the state saved to look at, or go on without this step."""
    if bad is None:
        return
    text = f"step {bad.step}: " + ", ".join(f"{k} {v:.4g}" for k, v in bad.values.items())
    if run.config.train.nonfinite == "skip":
        log.nonfinite(bad.step, text + (f"; {bad.steps - 1} more by step {run.step}" if bad.steps > 1 else ""))
        return
    run.step = bad.step  # since then nothing has changed
    path = folder / "nonfinite.safetensors"
    if world.main:
        run.save(path)
    raise NonFinite(
        f"{text}. The weights before this step are in {path}; last.safetensors is as it was. Usual causes: "
        f"a learning rate that is too high, blank images under a normalisation. --nonfinite skip leaves them out"
    )


def still_there(folder: Path, place: os.stat_result | None) -> None:
    """Check that the run's folder is the one that it began in; a lone checkpoint in a new one would be no run."""
    if place is None:
        return
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(folder.stat(), place):
            return
    raise FileNotFoundError(
        f"{folder}: the run's folder was removed or replaced during training; nothing was saved"
    )


def saved_config(folder: Path) -> RunConfig:
    """The config of the run in a folder; that of its last checkpoint where config.json cannot be read."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such run; expected a run's folder, with config.json")
    try:
        return from_dict(RunConfig, plain.loads(contents(path)), str(path))
    except (OSError, ValueError) as error:
        last = folder / LAST
        if not last.exists():
            raise FileNotFoundError(f"{folder}: no run to resume; expected config.json and {LAST}") from None
        say(f"{path}: cannot be read ({error}); taking the config from {last}")
        return from_dict(RunConfig, read(last).about.get("run"), f"{last}: run")


@contextlib.contextmanager
def interrupts() -> Iterator[Any]:
    """Turn Ctrl-C, SIGTERM or SIGHUP into a request to stop after the step.

    A second Ctrl-C or SIGTERM ends at once; SIGHUP may come twice when a terminal is closed. Under nohup, where
    it is ignored, it stays so.
    """
    asked = []

    def ask(number: int, frame: Any) -> None:
        asked.append(number)
        if number != hangup:
            signal.signal(number, before[number])

    before: dict[int, Any] = {}
    hangup = getattr(signal, "SIGHUP", None)  # which Windows does not have
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.append(hangup)
    with contextlib.suppress(ValueError):  # signals belong to the main thread
        for number in map(int, numbers):
            before[number] = signal.signal(number, ask)
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
