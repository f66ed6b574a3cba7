"""Two processes do what one does: the same gradients, the same memory, a run that trains."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

import kanerva
from cases import case, normal
from kanerva import DKM, CodecConfig, DKMConfig, distributed, memory, storage
from kanerva.fields import to_dict
from kanerva.step import Loss, Step
from kanerva.train import fit, new_run, train_here
from small import metrics, tiny

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")

CONFIG = DKMConfig(image=(1, 6, 6), rows=4, code=5, codec=CodecConfig((3,)))


def model() -> DKM:
    torch.manual_seed(0)
    return DKM(CONFIG).double()


def batch() -> torch.Tensor:
    return (normal(4, 3, 1, 6, 6) > 0.5).double()


def half(rank: int) -> tuple[torch.Tensor, torch.Generator]:
    """A process's episodes, and where its noise comes from."""
    return batch()[2 * rank : 2 * rank + 2], torch.Generator().manual_seed(rank)


def join(function: Callable[[int, str], None], folder: Path) -> list[dict[str, torch.Tensor]]:
    """Run a function in two gloo processes; each leaves its tensors in a file."""
    mp.spawn(enter, (function, str(folder)), nprocs=2)  # type: ignore[no-untyped-call]
    return [storage.load(folder / f"{rank}.safetensors")[0] for rank in range(2)]


def enter(rank: int, function: Callable[[int, str], None], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    rendezvous = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", rendezvous, rank=rank, world_size=2)
    function(rank, folder)
    torch.distributed.destroy_process_group()


def gradients(rank: int, folder: str) -> None:
    wrapped = distributed.wrap(Loss(model(), "L", 0), distributed.World(rank, 2, torch.device("cpu")))
    loss, _ = wrapped(*half(rank))
    loss.backward()
    found = {name.removeprefix("module.model."): p.grad for name, p in wrapped.named_parameters()}
    storage.save(f"{folder}/{rank}.safetensors", found, {})


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    first, second = join(gradients, tmp_path)
    alone = Loss(model(), "L", 0)
    losses = [alone(*half(rank))[0] for rank in range(2)]
    ((losses[0] + losses[1]) / 2).backward()
    for name, p in alone.model.named_parameters():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], p.grad, rtol=1e-12, atol=1e-14)


def shard(rank: int) -> slice:
    """Uneven shares of nine patterns."""
    return slice(0, 2) if rank == 0 else slice(2, 9)


def together(rank: int, folder: str) -> None:
    c = case((2,), K=5, C=7, T=9)
    w, z = c.w[:, shard(rank)].clone(), c.z[:, shard(rank)].clone().requires_grad_()
    state = distributed.condition(c.state, w, z, c.noise_var)
    (state.R.square().sum() / 2).backward()  # each of two workers holds half of the loss
    storage.save(f"{folder}/{rank}.safetensors", {**state._asdict(), "grad": z.grad}, {})


def test_workers_write_one_memory_together(tmp_path: Path) -> None:
    parts = join(together, tmp_path)
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
    command += ["--batch", "4", "--lengths", "5", "--log-every", "1", "--evaluate-images", "40", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:]


def skipping(rank: int, folder: str) -> None:
    """A step that went wrong in one process only."""
    config = tiny(Path(folder) / str(rank), nonfinite="skip")
    world = distributed.World(rank, 2, torch.device("cpu"))
    images, _ = config.data.load()
    run = new_run(dataclasses.replace(config, model=fit(config.model, images)), world)
    step = Step(run, images, world)
    step(0)
    step.number.fill_(1)
    step.judge(torch.tensor(rank == 0))
    skipped = step.skip.clone()
    bad = step.bad()
    assert bad is not None
    step(2)
    found = {"R0": run.model.R0.detach(), "skipped": skipped, "bad": torch.tensor([bad.step, bad.steps])}
    storage.save(f"{folder}/{rank}.safetensors", found, {})


def test_processes_skip_the_same_steps(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    first, second = join(skipping, tmp_path)
    assert first["skipped"] == second["skipped"] == 1
    assert first["bad"].tolist() == second["bad"].tolist() == [1, 1]
    assert torch.equal(first["R0"], second["R0"])


def test_torchrun_trains(tmp_path: Path) -> None:
    launch(tmp_path / "run", tiny(tmp_path), 2)
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4]
    assert storage.load(tmp_path / "run" / "last.safetensors")[1]["step"] == 4


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    world = distributed.World(0, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match="batch: expected a multiple of the 2 processes, got 5"):
        train_here(tiny(tmp_path, batch=5), tmp_path / "run", False, world)
    assert not (tmp_path / "run").exists()


def test_an_error_in_one_process_ends_all(tmp_path: Path) -> None:
    """The other one waits for gradients that never come; it must not wait for long."""
    script = tmp_path / "fail.py"
    script.write_text(FAIL)
    config = tiny(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [json.dumps(to_dict(config)), str(tmp_path / "run")]
    result = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode != 0
    assert "kanerva: process 1: a pixel too far" in result.stderr


FAIL = """
import json, sys, kanerva
from kanerva.config import RunConfig
from kanerva.fields import from_dict
from kanerva.step import Step
original = Step.draw
def draw(self, length):
    if self.number == 3 and self.world.rank == 1:
        raise ValueError("a pixel too far")
    return original(self, length)
Step.draw = draw
kanerva.train(from_dict(RunConfig, json.loads(sys.argv[1])), sys.argv[2])
"""
