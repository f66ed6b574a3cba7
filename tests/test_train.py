"""Training: it learns, resumes bit for bit, survives what can go wrong, and says so."""

import copy
import dataclasses
import errno
import functools
import io
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kanerva
from conftest import cuda
from kanerva import CodecConfig, RunConfig, Score, Terms, TrainConfig
from kanerva.models.rivals.nearest import NearestConfig
from kanerva.models.rivals.vae import VAEConfig
from kanerva.support import tensors as storage
from kanerva.support.configs import to_dict
from kanerva.training.evaluate import mean_image_nats
from kanerva.training.loop import NonFinite, interrupts, new_run, suited
from kanerva.training.metrics import Log
from kanerva.training.processes import World
from kanerva.training.run import Run, alone, saved_config
from kanerva.training.step import Step, StepPlan, learning_rate, loss_of, plan_of
from small import metrics, patterns, tiny

pytestmark = pytest.mark.usefixtures("no_shape_checks")


def same_checkpoint(a: Path, b: Path) -> None:
    (x, about_x), (y, about_y) = storage.load(a), storage.load(b)
    assert set(x) == set(y)
    assert [name for name in x if not torch.equal(x[name], y[name])] == []
    assert (about_x["step"], about_x["best"]) == (about_y["step"], about_y["best"])


def new_step(config: RunConfig, resume: Path | None = None) -> tuple[Run, Step]:
    """A step to be called by hand, on the device of the config."""
    world = World(0, 1, torch.device(config.train.device))
    images, _ = config.data.load(world.device)
    run = new_run(suited(config, images, world), world)
    if resume is not None:
        run.restore(resume)
    return run, Step(run, images, world)


def of(config: RunConfig, **changes: Any) -> RunConfig:
    """The same run with another training; `model` may have other fields of its model."""
    model = dataclasses.replace(config.model, **changes.pop("model", {}))
    return dataclasses.replace(config, model=model, train=dataclasses.replace(config.train, **changes))


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "images_per_s"} for row in rows]


# the loop


def test_training_learns(tmp_path: Path) -> None:
    """The training crosses, much better than by predicting the mean image."""
    config = tiny(tmp_path, steps=300, batch=8, lr=1e-2, split="train+validation")
    model = dataclasses.replace(config.model, rows=8, code=16, codec=kanerva.CodecConfig((8, 16)))
    kanerva.train(dataclasses.replace(config, model=model), tmp_path / "run")
    images, _ = config.data.load()
    # seen: 18 nats against 37
    assert metrics(tmp_path / "run")[-1]["nats"] < 0.7 * mean_image_nats(images, images)


VARIED: list[dict[str, Any]] = [
    {},
    {"lengths": (3, 5), "average": 0.9, "augment": 1.0, "compute": ("bfloat16",), "schedule": "constant"},
    {"lengths": (3, 5, 8), "bound": "B", "intermediate": 1},
    {"related": (2, 2, 0.5), "augment": 0.5, "mirror": True},
    {"bound": "strict", "related": (0, 2, 1.0), "model": {"read_noise": "own", "block": 32}},
    {"model": {"read_noise": "image", "weights": "full"}},
]


@pytest.mark.parametrize("changes", VARIED, ids=str)
def test_a_resumed_run_goes_on_bit_for_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    config = of(tiny(tmp_path), **changes)
    kanerva.train(config, tmp_path / "whole")
    # the schedule must be that of the whole run: stop it after step 4, as Ctrl-C would
    halt(config, tmp_path / "parts", after=4)
    assert storage.load(tmp_path / "parts" / "last.safetensors")[1]["step"] == 4
    kanerva.train(config, tmp_path / "parts", resume=True)
    same_checkpoint(tmp_path / "whole" / "last.safetensors", tmp_path / "parts" / "last.safetensors")
    assert without_clock(metrics(tmp_path / "whole")) == without_clock(metrics(tmp_path / "parts"))


def halt(config: RunConfig, folder: Path, after: int) -> None:
    """Train and send ourselves SIGTERM when step `after` is logged."""
    original = Log.train

    def train(self: Log, step: int, *rest: Any) -> None:
        original(self, step, *rest)
        if step == after:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "train", train)
        kanerva.train(config, folder)


def test_metrics_report_every_term_and_no_test_image_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, real = [], kanerva.data.load

    def load(name: str, split: str = "train", **options: Any) -> Any:
        asked.append(split)
        return real(name, split, **options)

    monkeypatch.setattr(kanerva.data, "load", load)
    kanerva.train(tiny(tmp_path), tmp_path / "run")
    assert asked == ["train", "validation"]
    assert "device: cpu; write: " in capsys.readouterr().err
    first = metrics(tmp_path / "run")[0]
    terms = {"nats", "reconstruction", "kl_weights", "kl_memory", "autoencoder"}
    assert set(first) == {"step", "loss", "grad_norm", "lr", "images_per_s"} | terms
    assert first["nats"] == pytest.approx(first["reconstruction"] + first["kl_weights"], rel=1e-5)
    total = first["nats"] + first["kl_memory"] + first["autoencoder"]
    assert first["loss"] == pytest.approx(total, rel=1e-5)
    scores = [row["validation"] for row in metrics(tmp_path / "run") if "validation" in row]
    assert [set(row) >= terms | {"nats_stderr", "images"} for row in scores] == 3 * [True]
    assert [row["split"] for row in scores] == 3 * ["validation"]


def test_training_on_validation_too_keeps_the_last_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kanerva.PRESETS["omniglot-paper"][1].data.split == "train+validation"
    config = tiny(tmp_path)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, split="train+validation"))
    assert kanerva.train(config, tmp_path / "run") is None
    assert {path.stem for path in (tmp_path / "run").glob("*.safetensors")} == {"last"}
    assert not [row for row in metrics(tmp_path / "run") if "validation" in row]
    assert "those for validation among them: the last weights are kept" in capsys.readouterr().err
    assert len(config.data.load("cpu", "train+validation")[0]) == sum(map(len, tiny(tmp_path).data.load()))


def test_the_seed_decides_and_the_average_is_what_is_loaded(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        kanerva.train(tiny(tmp_path, seed=seed, average=0.5), tmp_path / name)
    a, b = (metrics(tmp_path / name)[-2]["loss"] for name in "ab")
    assert a != b
    tensors, _ = storage.load(tmp_path / "a" / "last.safetensors")
    assert not torch.equal(tensors["average.memory.R0"], tensors["model.memory.R0"])
    assert torch.equal(kanerva.load(tmp_path / "a" / "last.safetensors").R0, tensors["average.memory.R0"])


def test_learning_rate_rises_then_falls() -> None:
    config = TrainConfig(steps=100, lr=2.0, schedule="cosine")
    rates = [learning_rate(step, config) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[10] == 2.0
    assert rates[55] == pytest.approx(1.0)
    assert 0 < rates[99] < 0.01
    flat = dataclasses.replace(config, schedule="constant")
    assert {learning_rate(step, flat) for step in range(100)} == {2.0}


def test_a_step_s_plan_is_drawn_as_the_settings_say() -> None:
    """Whatever the plan, length is drawn first, so that the share changes no run without it."""
    config = TrainConfig(lengths=(4, 8), related=(3, 2, 0.75))
    plans = [plan_of(config, step) for step in range(400)]
    assert set(plans) == {StepPlan(n, *rest) for n in (4, 8) for rest in ((3, 2), (None, 0))}
    share = sum(plan.classes is None for plan in plans) / 400
    assert abs(share - 0.25) < 0.087  # four standard errors
    always = dataclasses.replace(config, related=(3, 2, 1.0))
    assert [plan_of(always, step) for step in range(400)] == [StepPlan(plan.length, 3, 2) for plan in plans]
    config = TrainConfig(steps=10, augment=0.7)  # the end of a run is not augmented
    assert [plan_of(config, step).augment for step in range(10)] == 7 * [True] + 3 * [False]


def test_images_are_changed_and_mirrored_as_the_settings_say(tmp_path: Path) -> None:
    _, step = new_step(tiny(tmp_path, augment=1.0))
    images = step.images.images(torch.arange(len(step.images)))

    def apart(x: torch.Tensor) -> set[bytes]:
        return {image.contiguous().numpy().tobytes() for image in x}

    known, turned = apart(images), apart(images.flip(-1))
    plain, changed = step.draw(StepPlan(5, None, 0)), step.draw(StepPlan(5, None, 0, augment=True))
    assert apart(plain.flatten(0, 1)) <= known
    assert not apart(changed.flatten(0, 1)) <= known
    _, mirrored = new_step(tiny(tmp_path, mirror=True))
    drawn = apart(mirrored.draw(StepPlan(64, None, 0)).flatten(0, 1))
    assert drawn <= known | turned
    assert drawn & (turned - known)
    assert drawn & (known - turned)


def test_what_is_read_but_not_written_is_in_the_loss(tmp_path: Path) -> None:
    """The loss is −L/T − L_AE with all images read, and KL(M) of those that were written."""
    _, step = new_step(tiny(tmp_path, related=(2, 2, 1.0)))
    model, generator = step.model, torch.Generator()
    x = step.draw(StepPlan(5, 2, 2))
    loss, _ = loss_of(model, x, step.config, generator.manual_seed(1), 2)
    state = model.write(x[:, :3])
    read = model.given(state, x, generator.manual_seed(1))
    kl_memory = model(x[:, :3], generator).kl_memory
    assert read is not None
    assert kl_memory is not None
    assert read.log_lik_auto is not None
    wanted = read.each().sum(-1) + kl_memory
    torch.testing.assert_close(loss, (wanted / 5 - read.log_lik_auto.mean(-1)).mean())


@pytest.mark.parametrize(
    "change",
    [
        {"related": (2, 32, 1.0)},
        {"related": (2, 1, 1.0), "bound": "B"},
        {"steps": 2**53},
        {"lengths": (5, 0)},
        {"lr": math.nan},
        {"batch": -1},
        {"seed": 2**32},
        {"average": 1.0},
        {"augment": 1.5},
        {"intermediate": 1},
        {"compute": ("float32", "bfloat16")},
        {"bound": "ELBO"},
    ],
    ids=str,
)
def test_a_run_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(change))}: expected"):
        TrainConfig(**change)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"related": (2, 2, 1.0), "lengths": (4, 200)}, "lengths"),
        ({"related": (10_000, 0, 1.0)}, "classes"),
        ({"compute": ("triton",)}, "triton"),
        ({"start": "nowhere.safetensors"}, "nowhere"),
        ({"model": {"scale": "pixel"}}, "scale"),
        ({"model": {"pixels": "levels"}}, "pixels"),
        ({"model": {"codec": CodecConfig((4, 4), linear=True)}}, "linear"),
    ],
    ids=str,
)
def test_a_run_that_does_not_suit_its_images_is_refused_before_anything_is_made(
    changes: dict[str, Any], name: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=name):
        kanerva.train(of(tiny(tmp_path), **changes), tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="no checkpoint to resume from"):
        kanerva.train(tiny(tmp_path), tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", [{"autoencoder": 0.0}, {"bound": "B"}, {"bound": "strict"}], ids=str)
def test_what_a_kind_of_model_does_not_have_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    config = dataclasses.replace(tiny(tmp_path, **change), model=VAEConfig(codec=CodecConfig((4, 4))))
    with pytest.raises(ValueError, match=f"{next(iter(change))}: expected .* for vae"):
        kanerva.train(config, tmp_path / "run")
    with pytest.raises(ValueError, match="model: expected one to train"):
        kanerva.train(dataclasses.replace(tiny(tmp_path), model=NearestConfig()), tmp_path / "run")


def test_without_l_ae_an_infinite_one_does_not_count() -> None:
    terms = Terms(torch.tensor([[-2.0]]), torch.tensor([[-math.inf]]), torch.tensor([[1.0]]), torch.tensor([0.5]))
    assert float(terms.loss(0.0)) == 3.5


def test_a_model_is_not_scored_on_images_of_another_kind(tmp_path: Path) -> None:
    _, held = tiny(tmp_path).data.load()
    for config in (kanerva.DKMConfig(), kanerva.DKMConfig(image=(1, 8, 8), likelihood="gaussian")):
        with pytest.raises(ValueError, match="images: expected those of a"):
            kanerva.evaluate(kanerva.DKM(config), held)


def grey(folder: Path, **changes: Any) -> RunConfig:
    """A run of six steps on grey images; `changes` are fields of DKMConfig."""
    config = tiny(folder)
    data = dataclasses.replace(config.data, dataset=str(patterns(folder, False)))
    return dataclasses.replace(config, data=data, model=dataclasses.replace(config.model, **changes))


@pytest.mark.parametrize("scale", ["one", "pixel", "colour"])
def test_colour_images_train_too(scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score = kanerva.train(grey(tmp_path, scale=scale), tmp_path / "run")
    assert score is not None
    assert score.bits_per_dimension is not None
    assert f"nats per image, {score.bits_per_dimension:.3f} bits per dimension" in capsys.readouterr().err
    config = kanerva.load(tmp_path / "run" / "last.safetensors").config
    assert isinstance(config, kanerva.DKMConfig)
    assert (config.likelihood, config.scale) == ("gaussian", scale)


# the step


def state(run: Run) -> list[torch.Tensor]:
    """Copies of all that a step may change."""
    tensors = [*run.model.state_dict().values(), *(run.average.state_dict().values() if run.average else ())]
    tensors += [x for moments in run.optimizer.state.values() for x in moments.values()]
    return [x.detach().clone() for x in tensors]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_nan_is_the_last_step_that_does_anything(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under "stop" the host may look late: weights, moments and average are still those from before the step."""
    poison(monkeypatch, 3, 5)
    with kanerva.deep_checks(False):
        run, step = new_step(tiny(tmp_path, device=device, average=0.9))
        for number in range(3):
            step(number)
        before = state(run)
        for number in range(3, 7):
            step(number)
    assert same(before, state(run))
    bad = step.bad()
    assert bad is not None
    assert (bad.step, bad.steps) == (3, 1)
    assert math.isnan(bad.values["loss"])


def test_a_skipped_step_leaves_no_trace(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that skips two steps is one that never made them."""
    poison(monkeypatch, 0, 3)
    # on a GPU, gradients of convolutions are sums in any order otherwise
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    config = tiny(tmp_path, device=device, nonfinite="skip", average=0.9)
    with kanerva.deep_checks(False):
        (run, step), (other, leaving_out) = new_step(config), new_step(config)
        for number in range(6):
            step(number)
        for number in (1, 2, 4, 5):
            leaving_out(number)
    assert same(state(run), state(other))
    bad = step.bad()
    assert bad is not None
    assert (bad.step, bad.steps) == (0, 2)
    assert step.bad() is None
    assert leaving_out.bad() is None


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.filterwarnings("default")  # the compiler's own warnings differ from version to version
def test_the_optimiser_is_adam(compile: bool, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused form takes gradients and moments to lie in memory as the weights do, and does not check."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    config = tiny(tmp_path, device=device, compute=("compiled",) if compile else ("uncompiled",))
    run, step = new_step(config)
    plain = copy.deepcopy(run.model)
    adam = torch.optim.Adam(plain.parameters(), foreach=False)
    for number in range(4):
        step(number)
        for p, q in zip(run.model.parameters(), plain.parameters(), strict=True):
            assert p.grad is not None
            q.grad = p.grad.contiguous()
        adam.param_groups[0]["lr"] = learning_rate(number, config.train)
        adam.step()
    for p, q in zip(run.model.parameters(), plain.parameters(), strict=True):
        # a step moves a weight by about 1e-3; float32 rounds it to 1e-7
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


def test_a_held_step_changes_nothing(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a graph can be warmed up and captured at any moment; even a NaN then leaves no trace."""
    poison(monkeypatch, 2)
    with kanerva.deep_checks(False):
        run, step = new_step(tiny(tmp_path, device=device, average=0.9, compute=("uncaptured",)))
        step(0)
        step(1)
        before = state(run)
        step.held.fill_(True)
        step.number.fill_(2)
        step.parts(StepPlan(5, None, 0))[0]()
        step.number.fill_(3)
        step.parts(StepPlan(4, None, 0))[0]()
    assert same(before, state(run))
    assert step.bad() is None


def test_the_average_is_that_of_the_steps(device: str, tmp_path: Path) -> None:
    run, step = new_step(tiny(tmp_path, device=device, average=0.8, lr=0.1))
    expected = torch.zeros(())
    for number in range(12):
        step(number)
        weights = run.model.R0.detach().cpu().double()
        expected = weights if number == 0 else expected + (weights - expected) * max(0.2, 9 / (10 + number))
    assert run.average is not None
    assert int(run.average.n_averaged) == 12
    # twelve roundings of float32
    torch.testing.assert_close(run.best_weights().R0.detach().cpu(), expected.float(), rtol=1e-5, atol=1e-6)


def losses(step: Step, numbers: range) -> torch.Tensor:
    rows = []
    for number in numbers:
        step(number)
        rows.append(step.last.clone())
    return torch.stack(rows)


MORE: list[dict[str, Any]] = [
    *VARIED,
    {"data": "grey", "model": {"scale": "pixel", "read_noise": "own"}},
    {"data": "grey", "model": {"scale": "colour", "pixels": "levels"}},
]


@cuda
@pytest.mark.parametrize("changes", MORE, ids=str)
def test_a_captured_step_is_the_step_on_cuda(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the first one of each plan, since capturing changes nothing; and a run that goes on makes the same."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    changes = dict(changes)
    config = grey(tmp_path) if changes.pop("data", None) else tiny(tmp_path)
    words = (*changes.pop("compute", ()), "uncompiled")
    config = of(config, device="cuda", compute=words, **changes)
    plain = of(config, compute=(*words, "uncaptured"))
    (run, step), (other, uncaptured) = new_step(config), new_step(plain)
    assert (step.captured, uncaptured.captured) == (True, False)
    first = losses(step, range(4))
    run.step = 4
    run.save(tmp_path / "last.safetensors")
    later = losses(step, range(4, 8))
    # the same kernels in the same order; the tolerance allows a library to choose another one while captured
    torch.testing.assert_close(torch.cat([first, later]), losses(uncaptured, range(8)), rtol=1e-5, atol=1e-5)
    assert set(step.graphs) == {plan_of(config.train, number) for number in range(8)}
    for a, b in zip(state(run), state(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    _, resumed = new_step(config, resume=tmp_path / "last.safetensors")
    torch.testing.assert_close(losses(resumed, range(4, 8)), later, rtol=1e-5, atol=1e-5)


@cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("compute", [(), ("uncaptured",)])
def test_a_step_never_waits_on_cuda(compute: Any, tmp_path: Path) -> None:
    _, step = new_step(tiny(tmp_path, device="cuda", compute=compute, average=0.9, augment=1.0))
    step(0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in (1, 2, 3):
            step(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(math.isfinite(x) for x in step.values().values())


@cuda
@pytest.mark.parametrize("compute", [(), ("uncaptured",)])
def test_a_nan_that_is_noticed_late_stops_the_run_on_cuda(
    compute: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, 3)
    config = tiny(tmp_path, device="cuda", compute=compute, split="train+validation", evaluate_every=100)
    with pytest.raises(NonFinite, match=r"step 3: loss nan.*nonfinite.safetens"):
        kanerva.train(config, tmp_path / "run")
    tensors, about = storage.load(tmp_path / "run" / "nonfinite.safetensors")
    assert about["step"] == 3
    assert int(tensors["optimizer.step.memory.R0"]) == 3
    assert not (tmp_path / "run" / "last.safetensors").exists()


@cuda
def test_a_run_trains_on_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole run, stopped and resumed, with another way to compute."""
    config = tiny(tmp_path, device="cuda", average=0.9, lengths=(3, 5))
    halt(config, tmp_path / "run", after=4)
    assert "each step is one graph launch" in capsys.readouterr().err
    plain = of(config, compute=("uncaptured",))
    score = kanerva.train(plain, tmp_path / "run", resume=True)
    assert "steps are not captured: --compute uncaptured" in capsys.readouterr().err
    assert score is not None
    assert [row["step"] for row in metrics(tmp_path / "run") if "loss" in row] == [1, 2, 3, 4, 5, 6]


# what can go wrong


def poison(monkeypatch: pytest.MonkeyPatch, *at: int) -> None:
    """Put a NaN into the batch of some steps, in a way that can be captured."""
    original = Step.draw

    def draw(self: Step, plan: StepPlan) -> torch.Tensor:
        x = original(self, plan)
        for number in at:
            x = x.masked_fill(self.number == number, math.nan)
        return x

    monkeypatch.setattr(Step, "draw", draw)


def test_a_nan_stops_the_run_with_its_state_saved_or_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, 3)
    with kanerva.deep_checks(False), pytest.raises(NonFinite, match=r"step 3: loss nan.*nonfinite.safetens"):
        kanerva.train(tiny(tmp_path), tmp_path / "run")
    tensors, about = storage.load(tmp_path / "run" / "nonfinite.safetensors")
    assert about["step"] == 3
    assert all(x.isfinite().all() for x in tensors.values())
    assert storage.load(tmp_path / "run" / "last.safetensors")[1]["step"] == 2
    score = kanerva.train(tiny(tmp_path, nonfinite="skip"), tmp_path / "other")
    assert score is not None
    assert math.isfinite(score.nats)
    (skipped,) = (row["skipped"] for row in metrics(tmp_path / "other") if "skipped" in row)
    assert "step 3: loss nan" in skipped


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_removed_during_training_is_an_error(
    replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a new folder with one file; nor is another run's folder of the same name written to."""
    folder = tmp_path / "run"

    def remove(self: Log, step: int, images: int) -> None:
        if step == 3:
            folder.rename(tmp_path / "elsewhere")
            if replaced:
                folder.mkdir()

    monkeypatch.setattr(Log, "step", remove)
    with pytest.raises(FileNotFoundError, match="folder was removed or replaced"):
        kanerva.train(tiny(tmp_path), folder)
    assert folder.exists() == replaced
    assert not replaced or list(folder.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="process ids as POSIX has them")
def test_a_run_is_not_overwritten_and_unfinished_files_of_killed_ones_are_removed(tmp_path: Path) -> None:
    config, folder = tiny(tmp_path), tmp_path / "run"
    kanerva.train(config, folder)
    before = (folder / "last.safetensors").read_bytes()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = [f".{name}.{gone.pid}-0123abcd.tmp" for name in ("last.safetensors", "config.json", "metrics.jsonl")]
    live = [
        f".last.safetensors.{os.getpid()}-0123abcd.tmp",
        f".report.html.{gone.pid}-0123abcd.tmp",
        ".mine.1-2.tmp",
    ]
    for name in dead + live:
        (folder / name).write_text("half")
    with pytest.raises(FileExistsError, match="--resume"):
        kanerva.train(config, folder)
    with alone(folder), pytest.raises(FileExistsError, match="another process is training"):
        kanerva.train(config, folder, resume=True)
    assert all((folder / name).exists() for name in dead)
    assert (folder / "last.safetensors").read_bytes() == before
    kanerva.train(config, folder, resume=True)
    assert sorted(path.name for path in folder.glob(".*.tmp")) == sorted(live)


# One process imports what training needs, which takes seconds, and then forks for every run it is asked for.
LAUNCHER = """
import json, os, sys
import torch._dynamo, kanerva, kanerva.kernels.cpu
from kanerva.training.config import RunConfig
from kanerva.support.configs import from_dict
for line in sys.stdin:
    config, folder, errors = json.loads(line)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        kanerva.train(from_dict(RunConfig, config), folder)
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def launcher() -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdin=pipe, stdout=pipe, text=True) as process:
        yield process


def signalled(
    launcher: "subprocess.Popen[str]", config: RunConfig, folder: Path, number: int, file: str, pause: float
) -> tuple[int, str]:
    """A run in a process of its own, sent a signal once it has written a file: its status, and what it printed."""
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    errors = folder.with_suffix(".txt")
    print(json.dumps([to_dict(config), str(folder), str(errors)]), file=launcher.stdin, flush=True)
    process = int(launcher.stdout.readline())
    try:
        wait_for(folder / file)
        time.sleep(pause)
    finally:
        os.kill(process, number)
    return int(launcher.stdout.readline()), errors.read_text()


def wait_for(path: Path) -> None:
    for _ in range(6000):
        if path.exists() and path.stat().st_size:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


def test_kill_9_leaves_a_checkpoint_that_loads(launcher: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Killed at a random moment while it saves after every step, five times; then it goes on."""
    config = tiny(tmp_path, steps=10_000, evaluate_every=1, split="train+validation")
    moments = random.Random(0)
    for attempt in range(5):
        folder = tmp_path / f"run{attempt}"
        status, _ = signalled(launcher, config, folder, signal.SIGKILL, "last.safetensors", 0.3 * moments.random())
        assert status == -signal.SIGKILL
        _, about = storage.load(folder / "last.safetensors")
        assert about["step"] > 0
    goal = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=about["step"] + 2))
    kanerva.train(goal, folder, resume=True)
    assert storage.load(folder / "last.safetensors")[1]["step"] == about["step"] + 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_saves_and_ends_cleanly(
    number: int, launcher: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    config = tiny(tmp_path, steps=10_000, evaluate_every=10_000, split="train+validation")
    status, errors = signalled(launcher, config, tmp_path / "run", number, "metrics.jsonl", 0)
    assert status == 0, errors
    assert f"--resume {tmp_path / 'run'} goes on from here" in errors
    step = storage.load(tmp_path / "run" / "last.safetensors")[1]["step"]
    assert 0 <= step - metrics(tmp_path / "run")[-1]["step"] < config.train.log_every


def test_nohup_keeps_a_run_going_and_a_second_hangup_changes_nothing() -> None:
    """When a terminal closes, the shell and the system may both send one."""
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
        signal.signal(signal.SIGHUP, lambda number, frame: heard.append(number))
        with interrupts() as stop:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                assert stop()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == []


def test_a_full_disk_costs_lines_and_not_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with Log(tmp_path, True, 3, 0) as log:
        log.lines.close()
        log.lines = Full()
        log.train(1, {"nats": 1.0}, 1e-3)
    assert f"{tmp_path / 'metrics.jsonl'}: a line could not be written" in capsys.readouterr().err


def test_damaged_metrics_do_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kanerva.train(tiny(tmp_path, split="train+validation"), folder)
    whole = (folder / "metrics.jsonl").read_bytes().splitlines()
    damaged = [b"{", b"\xff\xfe", b'{"step": 1e400}', b"[1]", b'{"nats": 3}', b"\x00", b'{"step": 9}']
    (folder / "metrics.jsonl").write_bytes(b"\n".join([*damaged, *whole, b'{"step": 7, "na']))
    kanerva.train(tiny(tmp_path, split="train+validation", steps=7), folder, resume=True)
    assert [row["step"] for row in metrics(folder)] == [1, 2, 3, 4, 5, 6, 7]


def test_metrics_hold_no_nan(tmp_path: Path) -> None:
    score = Score(
        math.nan, math.inf, 1.0, None, None, None, None, None, 8, 2, 4, None, 0, {"x": {"mean": math.nan}}
    )
    with Log(tmp_path, True, 3, 0) as log:
        log.score(1, score)
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert metrics(tmp_path)[0]["test"]["extra"] == {"x": {"mean": None}}


# files


def test_the_config_of_a_run_is_in_its_folder(tmp_path: Path) -> None:
    config, folder = tiny(tmp_path, steps=2, split="train+validation"), tmp_path / "run"
    kanerva.train(config, folder)
    assert saved_config(folder) == suited(config, config.data.load()[0], World(0, 1, torch.device("cpu")))
    with pytest.raises(FileNotFoundError, match="no run to resume"):
        saved_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer.exp_avg_sq.memory.R0", None),
        ("optimizer.exp_avg.memory.R0", torch.zeros(4, 5)),
        ("average.memory.R0", torch.zeros(4, 6, dtype=torch.int32)),
        ("model.memory.R0", torch.full((4, 6), torch.inf)),
    ],
    ids=str,
)
def test_a_checkpoint_that_cannot_be_resumed_says_why(
    name: str, value: torch.Tensor | None, tmp_path: Path
) -> None:
    """And changes nothing in the run that would have taken it."""
    config, path = tiny(tmp_path, average=0.9), tmp_path / "a.safetensors"
    run, step = new_step(config)
    for number in range(2):
        step(number)
    run.step = 2
    run.save(path)
    saved, about = storage.load(path)
    storage.save(path, {key: x for key, x in {**saved, name: value}.items() if x is not None}, about)
    fresh, _ = new_step(config)
    before = state(fresh)
    with pytest.raises(ValueError, match=rf"a.safetensors.*{re.escape(name)}"):
        fresh.restore(path)
    assert same(before, state(fresh))
    assert fresh.step == 0
