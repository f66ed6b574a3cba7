"""Training: one loop, read from top to bottom.

A run lives in a folder: config.json, metrics.jsonl (a JSON object a line), last.safetensors and best.safetensors.
What a step draws depends on the seed and its number alone, so a resumed run goes on bit for bit.
"""

import contextlib
import dataclasses
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from .. import kernels
from ..data import ClassImages, find
from ..models import MODELS, load
from ..models.base import CodecModel, CodecModelConfig, Model, Preparation
from ..models.checkpoint import BEST, LAST
from ..support.checks import deep_checks
from .config import COMPILES, PRECISIONS, RunConfig, TrainConfig
from .evaluate import Score, evaluate
from .metrics import Log
from .processes import Lost, World, agree, start
from .run import Run, claim
from .step import Bad, Step, learning_rate, make_optimizer, why_not_captured

# Measured: results/training/colour-emoji.json.
EXPECT = (
    "on a CPU expect the right colours, a little blurred: after seven minutes on one core, new emoji come back "
    "from noise of 0.15 with an error of 0.08 (seen with codes of 400 and 2,840 images to train on, 32×32; codes "
    "of 200 leave 0.12, and 20,000 steps on a GPU were no better)"
)


NONFINITE = "nonfinite.safetensors"
# Different held-out images below which a score says little about others.
FEW = 300
# Images that are drawn for an evaluation, at most.
SCORED = 2_048


class NonFinite(RuntimeError):
    """A loss or gradient that is not a number."""


def train(config: RunConfig, folder: str | Path, resume: bool = False) -> Score | None:
    """Train a model in `folder`, or go on with the run that is there; returns the last evaluation."""
    with start(config.train.device) as world:
        return train_here(config, Path(folder), resume, world)


def train_here(config: RunConfig, folder: Path, resume: bool, world: World) -> Score | None:
    """The part of `train` that one process does."""
    start = None if config.train.start is None or resume else load(config.train.start)
    images, held = config.data.load(world.device)
    config = suited(config, images, world)  # every refusal, before anything is made
    c = config.train
    own = find(config.data.dataset) == "images"
    marks = {split.split: split.marks for split in (images, held)} if own else {}
    with contextlib.ExitStack() as stack:
        still_ours = stack.enter_context(claim(folder, config, resume, marks)) if world.main else None
        run = new_run(config, world, None if resume else images, start)
        run.marks = marks
        if resume:
            run.restore(folder / LAST)
        step = Step(run, images, world)
        log = stack.enter_context(Log(folder, world.main, c.steps, run.step))
        stop = stack.enter_context(interrupts())
        # a NaN is to reach the loss, where the step, its terms and the state are at hand
        stack.enter_context(deep_checks(False))

        def save(name: str) -> None:
            if still_ours is not None:
                still_ours()
                run.save(folder / name)

        score, told = None, False
        if run.step >= c.steps:
            log.say(f"{folder}: already at step {run.step} of {c.steps}; --steps may be raised to go on")
        else:
            log.say(describe(config, world))
            log.say(held_out(images, held))
            log.say(advice(config, images, world))

        while run.step < c.steps:
            try:
                drawn = step(run.step)
            except Lost as error:
                save(LAST)  # what is left of the step is not made: weights are those before it
                raise Lost(f"{error}; saved at step {run.step}, --resume goes on from there") from error
            run.step += 1
            log.step(run.step, drawn)
            last = run.step == c.steps
            logging, keeping = (last or run.step % every == 0 for every in (c.log_every, c.evaluate_every))
            # a GPU works ahead while nobody asks how it went
            looking = world.device.type != "cuda" or logging or keeping
            if looking:
                handle_nonfinite(run, step.bad(), save, log)
            if logging:
                if still_ours is not None:
                    still_ours()
                log.train(run.step, step.values(), learning_rate(run.step - 1, c))
            # weights are not chosen by images that they were trained on
            if keeping and images.split == "train" and world.main:
                score = evaluate(run.best_weights(), held, c.lengths[0], min(SCORED, len(held)), extra=False)
                log.score(run.step, score)
                if score.nats < run.best:
                    run.best, run.best_step = score.nats, run.step
                    save(BEST)
                elif score.nats > run.best + 2 * score.nats_stderr and not told:
                    log.say(risen(run))
                    told = True
            stopping = (looking or world.size == 1) and agree(stop(), world)
            if keeping or stopping:
                handle_nonfinite(run, step.bad(), save, log)
                save(LAST)
            if stopping:
                log.say(f"stopped at step {run.step}; kanerva train --resume {folder} goes on from here")
                break
        return score


def suited(config: RunConfig, images: ClassImages, world: World) -> RunConfig:
    """The config with the images' shape and likelihood; whatever cannot be trained so is refused here."""
    c, kind = config.train, MODELS[config.model.kind]
    name = config.model.kind
    model = dataclasses.replace(config.model, image=images.shape, likelihood=images.likelihood)
    classes = (c.related[0] or None) if c.related else None
    images.check_classes(classes)
    most = images.fewest(classes)
    for flag, sound, wanted, came in (
        ("model", not kind.UNTRAINED, "one to train; kanerva evaluate takes this one as it is", name),
        ("bound", c.bound in kind.BOUNDS, f"{' or '.join(kind.BOUNDS)} for {name}", c.bound),
        ("autoencoder", c.autoencoder == 1 or kind.AUTO, f"1 for {name}, which has no L_AE", c.autoencoder),
        ("batch", c.batch % world.size == 0, f"a multiple of the {world.size} processes", c.batch),
        (
            "lengths",
            not c.unwritten or max(c.lengths) <= most,
            f"at most {most} with images unwritten: none comes twice, and so many have "
            f"{classes or images.num_classes} of the {images.num_classes} classes of {images.name}/{images.split}",
            max(c.lengths),
        ),
    ):
        if not sound:
            raise ValueError(f"{flag}: expected {wanted}, got {came}")
    model.check()
    fitted = dataclasses.replace(config, model=model)
    describe(fitted, world)  # a write that cannot be had is an error
    return fitted


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
    dtype = torch.bfloat16 if precision == "bfloat16" else None
    model.prepare(Preparation(dtype, compiled, c.word(kernels.BACKENDS), c.bound == "strict"))
    average = AveragedModel(model, device=world.device) if c.average else None  # its copy is not compiled
    return Run(config, model, average, make_optimizer(model, c, world))


def how(config: TrainConfig, world: World) -> tuple[str, bool]:
    """The codec's precision, and whether it is compiled."""
    gpu = world.device.type == "cuda"
    precision, compiled = config.word(PRECISIONS), config.word(COMPILES)
    if precision == "auto":
        precision = "bfloat16" if gpu and torch.cuda.is_bf16_supported() else "float32"
    return precision, compiled == "compiled" or (compiled == "auto" and gpu and kernels.C_COMPILER)


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
    own = MODELS[config.model.kind].says(config.model, world.device.type, c.word(kernels.BACKENDS))
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


def handle_nonfinite(run: Run, bad: Bad | None, save: Callable[[str], None], log: Log) -> None:
    """Say which step and values went wrong; stop with the state saved to look at, or go on without this step."""
    if bad is None:
        return
    text = f"step {bad.step}: " + ", ".join(f"{k} {v:.4g}" for k, v in bad.values.items())
    if run.config.train.nonfinite == "skip":
        log.nonfinite(bad.step, text + (f"; {bad.steps - 1} more by step {run.step}" if bad.steps > 1 else ""))
        return
    run.step = bad.step  # since then nothing has changed
    save(NONFINITE)
    raise NonFinite(
        f"{text}. The weights before this step are in {NONFINITE}; {LAST} is as it was. Usual causes: "
        f"a learning rate that is too high, blank images under a normalisation. --nonfinite skip leaves them out"
    )


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
