"""More than one process: start, share gradients, agree.

`torchrun --nproc-per-node N -m kanerva train …` starts N processes; each draws its own episodes, and gradients are
averaged over them. Without torchrun everything here does nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from ..support.say import say


class World(NamedTuple):
    """Who we are among the processes of a run, and where we compute."""

    rank: int
    size: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Whether this is the process that logs, evaluates and saves."""
        return self.rank == 0


@contextmanager
def start(device: str = "auto") -> Iterator[World]:
    """Join the processes that torchrun started, if any, and choose the device."""
    place = choose(device)
    if "RANK" not in os.environ or number("WORLD_SIZE", 1) == 1:
        # streams and graphs are those of the current device
        with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
            yield World(0, 1, place)
        return
    if missing := [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise ValueError(
            f"{', '.join(missing)}: expected beside RANK and WORLD_SIZE, got none; usual cause: a launcher that "
            f"sets only some of them. torchrun sets all; without RANK one process trains alone"
        )
    local, gpus = number("LOCAL_RANK"), torch.cuda.device_count()
    alone = number("LOCAL_WORLD_SIZE", 1) <= gpus and place.index is None
    if place.type == "cuda":
        place = place if place.index is not None else torch.device(f"cuda:{local % gpus}")
        torch.cuda.set_device(place)
    # NCCL wants a GPU for each process
    dist.init_process_group("nccl" if place.type == "cuda" and alone else "gloo")
    rank = dist.get_rank()
    try:
        yield World(rank, dist.get_world_size(), place)
    except BaseException as error:
        # The others wait for this process in a collective; once it is gone, torchrun ends them.
        say(f"kanerva: process {rank}: {error}")
        os._exit(1)
    dist.barrier()  # a process that left early would keep the others waiting
    dist.destroy_process_group()


def first() -> bool:
    """Whether this process is the first that torchrun started, or the only one: the one that prints."""
    return number("RANK") == 0


def number(name: str, default: int = 0) -> int:
    """A number that torchrun has put into the environment."""
    value = os.environ.get(name, str(default))
    if not value.isdecimal():
        raise ValueError(f"{name}: expected a number, which torchrun sets, got {value!r} in the environment")
    return int(value)


def choose(device: str) -> torch.device:
    """The device of a name; auto is a GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device: expected auto, cpu, cuda, …, got {device!r}") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: {device} is not to be had here; this PyTorch ({torch.__version__}) sees no GPU")
    try:
        torch.zeros((), device=place).item()
    except (RuntimeError, ImportError) as error:  # there are names of devices that PyTorch knows and has not
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"device: {device} is not to be had here: {reason}") from None
    return place


class Lost(RuntimeError):
    """Another process of the run is gone."""


def shared_gradients(model: nn.Module, more: int, world: World) -> Float[Tensor, "n"]:
    """Room for `more` numbers and, with several processes, for all gradients behind them; they are views of it.

    All processes begin with the weights of the first.
    """
    parameters = list(model.parameters())
    behind = sum(p.numel() for p in parameters) if world.size > 1 else 0
    room = torch.zeros(more + behind, dtype=parameters[0].dtype, device=world.device)
    if world.size == 1:
        return room
    for part, parameter in zip(room[more:].split([p.numel() for p in parameters]), parameters, strict=True):
        # in the order in which the parameter lies in memory, as a fused optimiser takes it
        parameter.grad = part.as_strided(parameter.shape, parameter.stride())
        parameter.grad.copy_(parameter.detach())
    with lost():
        dist.broadcast(room, 0)
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(parameter.grad)  # type: ignore[arg-type]
    return room


def add_up(x: Tensor) -> None:
    """Replace a tensor by its sum over the processes."""
    with lost():
        dist.all_reduce(x)


def agree(flag: bool, world: World) -> bool:
    """Whether any process raised its flag; all get the same answer."""
    if world.size == 1:
        return flag
    raised = torch.tensor(float(flag), device=world.device)
    add_up(raised)
    return bool(raised > 0)


@contextmanager
def lost() -> Iterator[None]:
    """Say what it means when processes cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        raise Lost(f"another process of the run is gone, or does not answer ({error})") from error
