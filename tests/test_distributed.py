"""Two processes do what one does: the same gradients, the same memory, a run that trains."""

import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

import kanerva
from cases import case, normal
from conftest import cuda
from kanerva import DKM, CodecConfig, DKMConfig, TrainConfig, distributed, memory
from kanerva.support import tensors as storage
from kanerva.support.configs import to_dict
from kanerva.training import processes
from kanerva.training.loop import new_run, suited, train_here
from kanerva.training.step import Step, StepPlan, loss_of
from small import metrics, tiny

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")

CONFIG = DKMConfig(image=(1, 6, 6), rows=4, code=5, codec=CodecConfig((3,)))


def model(seed: int = 0) -> DKM:
    torch.manual_seed(seed)
    return DKM(CONFIG).double()


def batch() -> torch.Tensor:
    return (normal(4, 3, 1, 6, 6) > 0.5).double()


def half(rank: int) -> tuple[torch.Tensor, torch.Generator]:
    """A process's episodes, and where its noise comes from."""
    return batch()[2 * rank : 2 * rank + 2], torch.Generator().manual_seed(rank)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two gloo processes, which take seconds to start, left what the functions of `enter` gave."""
    folder = tmp_path_factory.mktemp("joined")
    mp.spawn(enter, (folder,), nprocs=2)  # type: ignore[attr-defined]
    return folder


def enter(rank: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    torch.distributed.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for function in (gradients, together, skipping, layer):
        storage.save(place(folder, function, rank), function(rank, folder), {})
    torch.distributed.destroy_process_group()


def place(folder: Path, function: Callable[..., Any], rank: int) -> Path:
    return folder / f"{function.__name__}-{rank}.safetensors"


def left(folder: Path, function: Callable[..., Any]) -> list[dict[str, torch.Tensor]]:
    """The tensors that a function gave in each of the processes."""
    return [storage.load(place(folder, function, rank))[0] for rank in range(2)]


def gradients(rank: int, folder: Path) -> dict[str, Any]:
    m, (x, generator) = model(seed=rank), half(rank)
    sums = processes.shared_gradients(m, 1, processes.World(rank, 2, torch.device("cpu")))
    sums.zero_()
    loss_of(m, x, TrainConfig(), generator)[0].backward()
    processes.add_up(sums)
    return {name: p.grad / 2 for name, p in m.named_parameters() if p.grad is not None}


def slope(m: torch.nn.Module, part: slice) -> torch.Tensor:
    """A loss of nn.Memory, with masks, keys and values, of some of four episodes."""
    z, values, mask = normal(4, 5, 6)[part], normal(4, 5, 2, seed=1)[part], (normal(4, 5, seed=2) > -0.5)[part]
    return m(z, mask=mask, values=values).square().mean()


def layer(rank: int, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    m = kanerva.nn.Memory(6, rows=4, values=2).double()
    both = torch.nn.parallel.DistributedDataParallel(m)
    for _ in range(2):  # the second forward complains of parameters that the first left without a gradient
        m.zero_grad()
        slope(both, slice(2 * rank, 2 * rank + 2)).backward()
    return {name: p.grad for name, p in m.named_parameters()}


def test_a_layer_in_two_processes_has_the_gradients_of_one(folder: Path) -> None:
    torch.manual_seed(0)
    m = kanerva.nn.Memory(6, rows=4, values=2).double()
    slope(m, slice(None)).backward()
    for found in left(folder, layer):
        for name, p in m.named_parameters():
            torch.testing.assert_close(found[name], p.grad)


def test_two_processes_have_the_gradients_of_one(folder: Path) -> None:
    first, second = left(folder, gradients)
    alone = model()
    losses = [loss_of(alone, x, TrainConfig(), generator)[0] for x, generator in map(half, range(2))]
    ((losses[0] + losses[1]) / 2).backward()
    for name, p in alone.named_parameters():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], p.grad, rtol=1e-12, atol=1e-14)


def shard(rank: int) -> slice:
    """Uneven shares of nine patterns."""
    return slice(0, 2) if rank == 0 else slice(2, 9)


def together(rank: int, folder: Path) -> dict[str, Any]:
    c = case((2,), K=5, C=7, T=9)
    w, z = c.w[:, shard(rank)].clone(), c.z[:, shard(rank)].clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # of what PyTorch is about to take away
        state = distributed.condition(c.state, w, z, c.noise_var)
    (state.R.square().sum() / 2).backward()  # each of two workers holds half of the loss
    return {**state._asdict(), "grad": z.grad}


def test_workers_write_one_memory_together(folder: Path) -> None:
    parts = left(folder, together)
    c = case((2,), K=5, C=7, T=9)
    z = c.z.clone().requires_grad_()
    alone = memory.condition(c.state, c.w, z, c.noise_var)
    alone.R.square().sum().backward()
    for part in parts:
        torch.testing.assert_close(part["R"], alone.R.detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(part["U"], alone.U.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.cat([part["grad"] for part in parts], 1), z.grad, rtol=1e-10, atol=1e-10)


def launch(folder: Path, config: kanerva.RunConfig, processes: int) -> None:
    """Train through torchrun, as the README says."""
    data = config.data.dataset
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "kanerva", "train", "demo", "--out", str(folder), "--dataset", data, "--steps", "4"]
    command += ["--batch", "4", "--lengths", "5", "--device", "cpu"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:]


def skipping(rank: int, folder: Path) -> dict[str, Any]:
    """A step that went wrong in one process only."""
    (folder / str(rank)).mkdir()
    config = tiny(folder / str(rank), nonfinite="skip")
    world = processes.World(rank, 2, torch.device("cpu"))
    images, _ = config.data.load()
    run = new_run(suited(config, images, world), world)
    step = Step(run, images, world)
    step(0)
    step.number.fill_(1)
    step.gradients(StepPlan(5, None, 0))
    if rank == 1:
        step.sums[-1] = math.nan  # of a gradient
    processes.add_up(step.sums)
    step.update()
    skipped = step.skip.clone()
    bad = step.bad()
    assert bad is not None
    step(2)
    return {"R0": run.model.R0.detach(), "skipped": skipped, "bad": torch.tensor([bad.step, bad.steps])}


def test_processes_skip_the_same_steps(folder: Path) -> None:
    first, second = left(folder, skipping)
    assert first["skipped"] == second["skipped"] == 1
    assert first["bad"].tolist() == second["bad"].tolist() == [1, 1]
    assert torch.equal(first["R0"], second["R0"])


def test_torchrun_trains(tmp_path: Path) -> None:
    launch(tmp_path / "run", tiny(tmp_path), 2)
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4]
    assert storage.load(tmp_path / "run" / "last.safetensors")[1]["step"] == 4


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    world = processes.World(0, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match="batch: expected a multiple of the 2 processes, got 5"):
        train_here(tiny(tmp_path, batch=5), tmp_path / "run", False, world)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value"), [("LOCAL_RANK", None), ("WORLD_SIZE", "two")])
def test_an_environment_that_no_launcher_sets_is_refused(
    name: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for key, word in (given | ({name: value} if value else {})).items():
        monkeypatch.setenv(key, word)
    with pytest.raises(ValueError, match=f"^{name}: expected"), processes.start("cpu"):
        pass


@pytest.mark.parametrize("end", ["raise", "kill"])
def test_a_process_that_ends_ends_all(tmp_path: Path, end: str) -> None:
    """The other one waits for gradients that never come; it must not wait for long, and saves what it has."""
    script = tmp_path / "fail.py"
    script.write_text(FAIL)
    config = tiny(tmp_path, evaluate_every=100)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    arguments = [json.dumps(to_dict(config)), str(tmp_path / "run"), end]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
    assert result.returncode != 0
    if end == "raise":
        assert "kanerva: process 1: a pixel too far" in result.stderr
    assert storage.load(tmp_path / "run" / "last.safetensors")[1]["step"] == 3
    # torchrun may end the other one when it has saved, just before it says why
    ended = "closing signal SIGTERM" in result.stderr
    assert ended or "another process of the run is gone" in result.stderr


FAIL = """
import json, os, signal, sys, kanerva
from kanerva.training.config import RunConfig
from kanerva.support.configs import from_dict
from kanerva.training.step import Step
original = Step.draw
def draw(self, plan):
    if self.number == 3 and self.world.rank == 1:
        if sys.argv[3] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("a pixel too far")
    return original(self, plan)
Step.draw = draw
kanerva.train(from_dict(RunConfig, json.loads(sys.argv[1])), sys.argv[2])
"""


@cuda
@pytest.mark.parametrize("captured", [True, False])
def test_captured_parts_with_nccl_between_them_gpu(captured: bool, tmp_path: Path) -> None:
    """A group of one process that takes itself for one of two: its sums are only its own, and are halved."""
    torch.distributed.init_process_group("nccl", f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        world = processes.World(0, 2, torch.device("cuda"))
        words = ("float32", "uncompiled", *(() if captured else ("uncaptured",)))
        config = tiny(tmp_path, device="cuda", compute=words, clip=0.0)
        images, _ = config.data.load("cuda")
        run = new_run(suited(config, images, world), world)
        step = Step(run, images, world)
        assert step.captured == captured
        weights = {name: p.detach().clone() for name, p in run.model.named_parameters()}
        for number in range(3):
            step(number)
        assert step.bad() is None
        assert all(not torch.equal(p, weights[name]) for name, p in run.model.named_parameters())
        RESULTS[captured] = {name: p.detach().cpu() for name, p in run.model.named_parameters()}
    finally:
        torch.distributed.destroy_process_group()
    if len(RESULTS) == 2:
        for name, x in RESULTS[True].items():
            # Adam's first steps are about lr however small a gradient is: rounding can turn one around
            torch.testing.assert_close(x, RESULTS[False][name], rtol=0, atol=1e-3)


RESULTS: dict[bool, dict[str, torch.Tensor]] = {}
