"""One memory that several workers write together, each with its own part of an episode."""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from . import memory
from .memory import MemoryState
from .memory.moments import Whole
from .support.checks import Variance
from .support.door import public

__all__ = ["condition"]


class Total(torch.autograd.Function):
    """The sum of a tensor over the workers. Every worker's gradient is the sum of all gradients of that sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return Total.apply(grad, ctx.group), None  # type: ignore[no-untyped-call]


@public
def condition(
    state: Whole,
    w: Float[Tensor, "*#b T K"],
    z: Float[Tensor, "*#b T C"],
    noise_var: Variance,
    group: dist.ProcessGroup | None = None,
) -> MemoryState:
    """Condition one memory on the codes of all workers: `memory.condition` where each holds a part of the episode.

        G = Σ WᵀW / noise_var     H = Σ Wᵀ(Z − W R) / noise_var        (sums over workers)
        U_T = (U⁻¹ + G)⁻¹         R_T = R + U_T H                       [app. A]

    Every worker passes the same state and its own w and z, of any length T, and gets the same memory. K² + K·C
    numbers travel. Gradients flow to every worker's codes. Proof: test_workers_write_one_memory_together.
    """
    group = group or dist.group.WORLD
    G = Total.apply(w.mT @ w / noise_var, group)  # type: ignore[no-untyped-call]
    H = Total.apply(w.mT @ (z - w @ state.R) / noise_var, group)  # type: ignore[no-untyped-call]
    return memory.absorb(state, G, H)
