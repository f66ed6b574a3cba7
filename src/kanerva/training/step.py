"""One training step: draw, forward, backward; sum gradients over the processes; clip, update, average.

Nothing in it waits for the device, so the same body runs as it stands or as a CUDA graph, one launch a step. With
several processes there are two graphs, and between them one all-reduce of one tensor, which holds all gradients and
what is reported. Whether a step counts is decided on the device too; the host looks now and then.
The random numbers of a step are a function of (seed, step, process) alone.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from .. import data
from ..data import ClassImages
from ..models.base import NAMES, Model
from .config import TrainConfig
from .processes import World, add_up, shared_gradients
from .run import Run


class StepPlan(NamedTuple):
    """What a step's episodes are like."""

    length: int
    classes: int | None
    unwritten: int
    augment: bool = False


def loss_of(
    model: Model, x: Float[Tensor, "B T c h w"], config: TrainConfig, generator: torch.Generator, unwritten: int = 0
) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
    """The loss, and the means of what the model has of NAMES, for the whole episode."""
    if config.bound == "B":
        bounds = model.online(x, config.intermediate, generator)
    elif unwritten:
        bounds = [model(x, generator, written=x.shape[-4] - unwritten)]
    else:
        bounds = [model(x, generator)]
    losses = [terms.loss(config.autoencoder) for terms in bounds]
    return torch.stack(losses).mean(), {k: v.detach().mean() for k, v in bounds[0].parts().items()}


class Bad(NamedTuple):
    """The first step since the last look whose loss or gradient is not finite, how many there were, its values."""

    step: int
    steps: int
    values: dict[str, float]


class Step:
    """Calling it with a step's number makes that step; `values` and `bad` say how it went, and wait for it."""

    def __init__(self, run: Run, images: ClassImages, world: World) -> None:
        self.config, self.images, self.world = run.config.train, images, world
        self.model, self.average, self.optimizer = run.model, run.average, run.optimizer
        device = world.device
        self.generator = torch.Generator(device)
        # set by the host before a step
        self.number = torch.zeros((), dtype=torch.int64, device=device)
        self.lr = torch.zeros((), device=device)
        # set by the step
        self.names: tuple[str, ...] = ()
        self.last = torch.zeros(len(NAMES) + 2, device=device)
        self.skip = torch.zeros((), device=device)
        self.held = torch.zeros((), dtype=torch.bool, device=device)
        self.bad_count = torch.zeros((), dtype=torch.int64, device=device)
        self.bad_number, self.bad_last = self.number.clone(), self.last.clone()
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        # where `skip` is 1, a fused optimiser leaves weights and moments alone, as for torch.amp.GradScaler
        self.optimizer.found_inf, self.optimizer.grad_scale = self.skip, None  # type: ignore[attr-defined]
        # with several processes, all that they add up
        self.sums = shared_gradients(self.model, len(NAMES) + 1, world)
        self.captured = why_not_captured(self.config, world) is None
        if self.captured:
            self.graphs: dict[StepPlan, list[torch.cuda.CUDAGraph]] = {}
            self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def __call__(self, number: int) -> int:
        """Make one step; returns the number of images in it, over all processes."""
        c, plan = self.config, plan_of(self.config, number)
        if self.captured and plan not in self.graphs:
            self.graphs[plan] = self.capture(plan)
        self.generator.manual_seed(step_seed(c.seed, number, self.world.rank))
        self.number.fill_(number)
        self.lr.fill_(learning_rate(number, c))
        parts = [graph.replay for graph in self.graphs[plan]] if self.captured else self.parts(plan)
        for i, part in enumerate(parts):
            if i:
                add_up(self.sums)
            part()
        return c.batch * plan.length

    def parts(self, plan: StepPlan) -> list[Callable[[], None]]:
        """The step itself; with several processes, what comes before and after they add up their gradients.

        All that it reads and leaves lies on the device.
        """
        if self.world.size > 1:
            return [lambda: self.gradients(plan), self.update]

        def whole() -> None:
            self.gradients(plan)
            self.update()

        return [whole]

    def gradients(self, plan: StepPlan) -> None:
        """Draw episodes, and find the loss and its gradient for this process's share of them."""
        x = self.draw(plan)
        if self.world.size > 1:
            self.sums.zero_()
        else:
            self.optimizer.zero_grad(set_to_none=True)
        loss, terms = loss_of(self.model, x, self.config, self.generator, plan.unwritten)
        loss.backward()
        self.names = ("loss", *terms, "grad_norm")
        self.sums[: len(terms) + 1].copy_(torch.stack([loss.detach(), *terms.values()]))

    def update(self) -> None:
        """Clip the gradient, and move the weights and their average along it, if all is finite.

        What is not finite in one process is not in the sums, so all processes decide alike.
        """
        if self.world.size > 1:
            self.sums /= self.world.size
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf)
        reported = len(self.names) - 1
        self.last[: reported + 1].copy_(torch.cat([self.sums[:reported], norm[None]]))
        self.judge(self.sums[0].isfinite() & norm.isfinite())
        self.optimizer.step()
        if self.average is not None:
            update_average(self.average, self.model, self.config.average, self.skip)

    def draw(self, plan: StepPlan) -> Float[Tensor, "B T c h w"]:
        """This process's share of the episodes. Where some images are read but not written, none comes twice."""

        def change(x: Tensor) -> Tensor:
            if plan.augment:
                x = data.augment(x, self.images.binary, generator=self.generator)
            return data.mirror(x, self.generator) if self.config.mirror else x

        batch, distinct = self.config.batch // self.world.size, plan.unwritten > 0
        return self.model.episodes(self.images, batch, plan.length, plan.classes, self.generator, distinct, change)

    def judge(self, finite: Bool[Tensor, ""]) -> None:
        """Skip a step that is not finite, and note the first. With nonfinite="stop", later ones are skipped too."""
        bad = ~finite & ~self.held
        first = bad & (self.bad_count == 0)
        self.bad_number.copy_(torch.where(first, self.number, self.bad_number))
        self.bad_last.copy_(torch.where(first, self.last, self.bad_last))
        self.bad_count += bad
        if self.config.nonfinite == "stop":
            self.held |= bad
        self.skip.copy_(bad | self.held)

    def capture(self, plan: StepPlan) -> list[torch.cuda.CUDAGraph]:
        """Record the parts as graphs. They run a few times before, to choose algorithms; held: nothing changes."""
        held, parts = self.held.clone(), self.parts(plan)
        self.held.fill_(True)
        self.stream.wait_stream(torch.cuda.current_stream())
        with warnings.catch_warnings(), torch.cuda.stream(self.stream), fastest_convolutions():
            warnings.filterwarnings("ignore", ".*capturable=True")  # these runs are not captured; the next one is
            for part in 3 * parts:
                part()
        graphs = []
        for part in parts:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            # Graphs may share their memory: they run one after another, and what outlives one was made outside.
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream), fastest_convolutions():
                part()
            graphs.append(graph)
        torch.cuda.current_stream().wait_stream(self.stream)
        self.held.copy_(held)
        return graphs

    def values(self) -> dict[str, float]:
        """The loss, the terms and the norm of the gradient of the last step, means over the processes."""
        return self.named(self.last)

    def named(self, values: Float[Tensor, "n"]) -> dict[str, float]:
        """What a step left behind, with its names."""
        return dict(zip(self.names, values.tolist(), strict=False))

    def bad(self) -> Bad | None:
        """What was not finite since this was last asked."""
        count = int(self.bad_count)
        if not count:
            return None
        self.bad_count.zero_()
        return Bad(int(self.bad_number), count, self.named(self.bad_last))


@contextlib.contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN time its algorithms and keep the fastest: 2.8 ms a step of omniglot-paper become 2.1."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def why_not_captured(config: TrainConfig, world: World) -> str | None:
    """Why steps are not captured; None if they are."""
    if world.device.type != "cuda":
        return f"the device is {world.device.type}"
    return "--compute uncaptured" if "uncaptured" in config.compute else None


def make_optimizer(model: Model, config: TrainConfig, world: World) -> torch.optim.Optimizer:
    """Adam, in the form that takes its learning rate from the device and can skip a step there."""
    lr = torch.tensor(config.lr, device=world.device)
    capturable = why_not_captured(config, world) is None
    return torch.optim.Adam(model.parameters(), lr, fused=True, capturable=capturable)


@torch.no_grad()
def update_average(average: AveragedModel, model: nn.Module, decay: float, skip: Float[Tensor, ""]) -> None:
    """Average exponentially, forgetting the first steps sooner, so that short runs are not held back.

    `AveragedModel.update_parameters` does it too, but would wait for the device to learn how often it was called.
    """
    count = average.n_averaged
    share = (9 / (10 + count)).clamp(min=1 - decay).masked_fill(count == 0, 1) * (1 - skip)
    averages: list[Tensor] = [*average.module.parameters()]
    weights: list[Tensor] = [*model.parameters()]
    # (1 − share) a + share w is exact where the share is 0 or 1
    torch._foreach_mul_(averages, 1 - share)
    torch._foreach_add_(averages, list(torch._foreach_mul(weights, share)))
    count += skip == 0


def learning_rate(step: int, config: TrainConfig) -> float:
    """Rise over the warm-up, then stay, or fall to zero as half a cosine."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))


def plan_of(config: TrainConfig, step: int) -> StepPlan:
    """What a step's episodes are like, the same in all processes; drawn on the host, which must know it."""
    host = torch.Generator().manual_seed(step_seed(config.seed, step, -1))
    length = config.lengths[int(torch.randint(len(config.lengths), (), generator=host))]
    augment = step < round(config.augment * config.steps)
    if config.related is None:
        return StepPlan(length, None, 0, augment)
    classes, unwritten, share = config.related
    if share < 1 and float(torch.rand((), generator=host)) < 1 - share:
        return StepPlan(length, None, 0, augment)
    return StepPlan(length, classes or None, unwritten, augment)


def step_seed(seed: int, step: int, rank: int) -> int:
    """One seed for each step of each process. Hashed, because a CPU generator keeps only the low 32 bits."""
    return int(np.random.SeedSequence([seed, step, rank + 1]).generate_state(1, np.uint64)[0])
