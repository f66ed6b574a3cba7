"""Training: one loop, read from top to bottom.

A run lives in a folder: config.json, metrics.jsonl (a JSON object a line), last.safetensors and best.safetensors.
The random numbers of a step are a function of (seed, step, process) alone, so a resumed run goes on bit for bit.
"""

import contextlib
import dataclasses
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from . import checkpoint, data, distributed, objective
from .checks import deep_checks
from .config import DataConfig, ModelConfig, RunConfig, TrainConfig
from .data import ClassImages
from .distributed import World
from .evaluate import Score, evaluate
from .likelihood import dequantise
from .log import Log
from .model import DKM
from .objective import NAMES


class NonFinite(RuntimeError):
    """A loss or gradient that is not a number."""


class Loss(nn.Module):
    """The model and its objective as one module, so that DistributedDataParallel sees every use of a parameter."""

    def __init__(self, model: DKM, bound: str, intermediate: int) -> None:
        super().__init__()
        self.model, self.bound, self.intermediate = model, bound, intermediate

    def forward(
        self, x: Float[Tensor, "B T c h w"], generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "5"]]:
        """The loss, and the means of NAMES for the whole episode."""
        if self.bound == "L":
            bounds = [self.model(x, generator)]
        else:
            bounds = self.model.online(x, self.intermediate, generator)
        losses = [objective.loss(terms) for terms in bounds]
        return torch.stack(losses).mean(), objective.parts(bounds[0]).detach().flatten(1).mean(1)


def train(config: RunConfig, folder: str | Path, resume: bool = False) -> Score | None:
    """Train a model in `folder`, or go on with the run that is there; returns the last evaluation."""
    with distributed.start(config.train.device) as world:
        return train_here(config, Path(folder), resume, world)


def train_here(config: RunConfig, folder: Path, resume: bool, world: World) -> Score | None:
    """The part of `train` that one process does."""
    c = config.train
    with contextlib.ExitStack() as stack:
        if c.batch % world.size:
            raise ValueError(f"batch: expected a multiple of the {world.size} processes, got {c.batch}")
        images, test = load_images(config.data, world.device)
        config = dataclasses.replace(config, model=fit(config.model, images))
        if world.main:
            stack.enter_context(checkpoint.claim(folder, config, resume))
        torch.manual_seed(c.seed)
        model = DKM(config.model).to(world.device)
        model.codec_dtype = torch.bfloat16 if c.bf16 else None
        average = AveragedModel(model, multi_avg_fn=running_average(c.average)) if c.average else None
        optimizer = make_optimizer(model, c)
        run = checkpoint.Run(config, model, average, optimizer)
        if resume:
            run.restore(folder / "last.safetensors")
        loss_module = distributed.wrap(Loss(model, c.bound, c.intermediate), world)
        log = stack.enter_context(Log(folder, world.main, c.steps, run.step))
        stop = stack.enter_context(interrupts())
        # a NaN is to reach the loss, where the step, its terms and the state are at hand
        stack.enter_context(deep_checks(False))
        score = None
        if run.step >= c.steps:
            log.say(f"{folder}: already at step {run.step} of {c.steps}; --steps may be raised to go on")

        while run.step < c.steps:
            generator = seeded(world.device, c.seed, run.step, world.rank)
            x = draw(images, c, run.step, world, generator)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(run.step, c)
            optimizer.zero_grad(set_to_none=True)
            loss, terms = loss_module(x, generator)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), c.clip or math.inf)
            if distributed.agree(not bool(torch.isfinite(loss) & torch.isfinite(norm)), world):
                values = distributed.mean(torch.cat([loss.detach()[None], norm[None], terms]), world).tolist()
                handle_nonfinite(run, folder, values, world, c.nonfinite, log)
            else:
                optimizer.step()
                if average is not None:
                    average.update_parameters(model)
            run.step += 1

            log.step(run.step, x.shape[0] * x.shape[1] * world.size)
            last = run.step == c.steps
            if due(run.step, c.log_every) or last:
                values = distributed.mean(torch.cat([loss.detach()[None], terms, norm[None]]), world).tolist()
                log.train(
                    run.step,
                    dict(zip(("loss", *NAMES, "grad_norm"), values, strict=True)),
                    learning_rate(run.step - 1, c),
                )
            if c.evaluate_every and (due(run.step, c.evaluate_every) or last) and world.main:
                score = evaluate(run.best_weights(), test, c.lengths[0], c.evaluate_images)
                log.test(run.step, score)
                if score.nats < run.best:
                    run.best = score.nats
                    run.save(folder / "best.safetensors")
            stopping = distributed.agree(stop(), world)
            if world.main and (due(run.step, c.save_every) or last or stopping):
                run.save(folder / "last.safetensors")
            if world.main and due(run.step, c.keep_every):
                run.save(folder / f"step-{run.step:07d}.safetensors")
            if stopping:
                log.say(f"stopped at step {run.step}; --resume goes on from here")
                break
        return score


def load_images(config: DataConfig, device: torch.device | str = "cpu") -> tuple[ClassImages, ClassImages]:
    """The training and test images, on a device."""
    taken = {"glyphs": (), "omniglot": ("data_dir",)}.get(config.dataset, ("size", "binary", "invert", "channels"))
    blank = DataConfig()
    for name in ("data_dir", "size", "binary", "invert", "channels"):
        if name not in taken and getattr(config, name) != getattr(blank, name):
            raise ValueError(f"{name}: not an option of {config.dataset}, got {getattr(config, name)!r}")
    options: dict[str, Any] = {name: getattr(config, name) for name in taken}
    train, test = (data.load(config.dataset, split, **options) for split in ("train", "test"))
    return train.to(device), test.to(device)


def fit(config: ModelConfig, images: ClassImages) -> ModelConfig:
    """Give the model the images' shape and likelihood."""
    return dataclasses.replace(config, image=images.shape, likelihood="bernoulli" if images.binary else "gaussian")


def draw(
    images: ClassImages, config: TrainConfig, step: int, world: World, generator: torch.Generator
) -> Float[Tensor, "B T c h w"]:
    """This process's share of a step's episodes; their length is the same in all processes."""
    host = torch.Generator().manual_seed(step_seed(config.seed, step, -1))
    length = config.lengths[int(torch.randint(len(config.lengths), (), generator=host))]
    x = data.episodes(images, config.batch // world.size, length, generator=generator)
    if config.augment:
        x = data.augment(x, images.binary, generator=generator)
    return x if images.binary else dequantise(x, generator)


def make_optimizer(model: DKM, config: TrainConfig) -> torch.optim.Optimizer:
    if config.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.Adam(model.parameters(), lr=config.lr)


def running_average(decay: float) -> Callable[[Any, Any, Any], None]:
    """Exponential averaging that forgets the first steps sooner, so that short runs are not held back."""

    @torch.no_grad()
    def update(averages: Any, weights: Any, count: Any) -> None:
        torch._foreach_lerp_(averages, weights, max(1 - decay, 9 / (10 + int(count))))

    return update


def learning_rate(step: int, config: TrainConfig) -> float:
    """Rise over the warm-up, then stay, or fall to zero as half a cosine."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))


def step_seed(seed: int, step: int, rank: int) -> int:
    """One seed for each step of each process. Hashed, because a CPU generator keeps only the low 32 bits."""
    return int(np.random.SeedSequence([seed, step, rank + 1]).generate_state(1, np.uint64)[0])


def seeded(device: torch.device, seed: int, step: int, rank: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(step_seed(seed, step, rank))


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def handle_nonfinite(
    run: "checkpoint.Run",
    folder: Path,
    values: list[float],
    world: World,
    action: str,
    log: Log,
) -> None:
    """Say which step and terms went wrong; stop with the state saved to look at, or go on without this step."""
    named = zip(("loss", "gradient norm", *NAMES), values, strict=True)
    text = f"step {run.step}: " + ", ".join(f"{name} {value:.4g}" for name, value in named)
    if action == "skip":
        log.nonfinite(run.step, text)
        return
    path = folder / "nonfinite.safetensors"
    if world.main:
        run.save(path)
    raise NonFinite(
        f"{text}. The weights before this step are in {path}; last.safetensors is as it was. Usual causes: "
        f"a learning rate that is too high, blank images under a normalisation. --nonfinite skip leaves them out"
    )


@contextlib.contextmanager
def interrupts() -> Iterator[Any]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop after the step; a second one ends at once."""
    asked = []

    def ask(number: int, frame: Any) -> None:
        asked.append(number)
        signal.signal(number, before[number])

    before: dict[int, Any] = {}
    with contextlib.suppress(ValueError):  # signals belong to the main thread
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            before[number] = signal.signal(number, ask)
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
