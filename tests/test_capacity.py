"""Capacity: its numbers are those of `evaluate` and of a plain loop, and its figures come from its file alone."""

import dataclasses
import importlib
from typing import Any

import pytest
import torch

from kanerva import DKM, DKMConfig, evaluate, memory
from kanerva.data import episodes
from kanerva.experiments import capacity as experiment
from kanerva.experiments.capacity import Capacity, measure, readout
from kanerva.experiments.plots import capacity as plots
from kanerva.experiments.tables import Share, point
from kanerva.likelihood import bits_per_dimension
from kanerva.models.base import NAMES
from trials import SMALL, generator, images, run, subject, toy

WORK = Capacity(lengths=(3, 6), classes=(2, 3), episodes=5)


def result(work: Capacity = WORK, config: DKMConfig = SMALL) -> dict[str, Any]:
    return run(work, subject(config))


def test_the_error_is_that_of_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same 32 episodes, 16 at a time, with the same noise."""
    drawn = episodes(images(), 32, 6, 2, generator(1))
    halves = iter(drawn.split(16))
    # the module, which the package's function of the same name hides
    monkeypatch.setattr(importlib.import_module("kanerva.evaluate"), "episodes", lambda *_: next(halves))
    monkeypatch.setattr(experiment, "episodes", lambda *_: drawn)
    monkeypatch.setattr(experiment, "AT_ONCE", 16 * 6)
    score = evaluate(subject().model, images(), length=6, count=192, classes=2, seed=0, batch=16, extra=False)
    (curves,) = result(Capacity(lengths=(6,), classes=(2,), episodes=32))["curves"]
    for name in ("nats", "reconstruction", "kl_weights", "kl_memory", "autoencoder"):
        assert curves[name]["mean"] == [pytest.approx(getattr(score, name), rel=1e-6)]
    assert curves["nats"]["stderr"] == [pytest.approx(score.nats_stderr, rel=1e-5)]


def test_all_models_have_the_same_images() -> None:
    """Whatever noise they draw; of another seed they are others."""
    mine, other = result(), run(WORK, toy())
    assert mine["sha256"] == other["sha256"]
    for a, b in zip(mine["curves"], other["curves"], strict=True):
        assert a["different"] == b["different"]
    assert result(dataclasses.replace(WORK, seed=1))["sha256"] != mine["sha256"]


@torch.no_grad()
def test_read_outs_are_compared_with_their_own_images() -> None:
    m, x = subject().model, episodes(images(), 3, 5, 2, generator())
    wrong, right, different = (values.tolist() for values in readout(m, x).values())
    for b in range(3):
        state, _ = memory.write(m.blank(), m.encode(x[b]), m.noise_var)
        read = m.decode(memory.read(state, memory.address(m.encode(x[b]), state, m.noise_var))).mode()
        apart = [[int((one != other).sum()) for other in x[b]] for one in read]
        assert wrong[b] == pytest.approx(sum(apart[t][t] for t in range(5)) / 5)
        assert right[b] == pytest.approx(sum(apart[t][t] == min(apart[t]) for t in range(5)) / 5)
        assert different[b] == len({tuple(image.flatten().tolist()) for image in x[b]})
    assert min(different) < 5
    assert any(r < 1 for r in right)  # an untrained model; the test would not see the difference otherwise


@torch.no_grad()
def test_a_few_episodes_at_a_time_are_the_same_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    m, x = subject().model, episodes(images(), 4, 5, 2, generator())
    whole = measure(m, x, generator())
    monkeypatch.setattr(experiment, "AT_ONCE", 11)  # two episodes
    parts = measure(m, x, generator())
    # all but what noise enters, which comes in other portions
    for name in set(whole) - {"nats", "reconstruction"}:
        torch.testing.assert_close(parts[name], whole[name])


@torch.no_grad()
def test_short_episodes_are_the_beginnings_of_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def measured(_: DKM, x: torch.Tensor, __: torch.Generator) -> dict[str, torch.Tensor]:
        seen.append(x)
        return {"nats": torch.full((len(x),), x.shape[1])}

    monkeypatch.setattr(experiment, "measure", measured)
    numbers = WORK.run(subject(), generator(), lambda: None)
    assert all(values["mean"] == [3, 6] for curves in numbers["curves"] for values in curves.values())
    assert [tuple(x.shape[:2]) for x in seen] == [(5, 3), (5, 6)] * 2
    for short, long in (seen[:2], seen[2:]):
        assert torch.equal(short, long[:, :3])
    for x, classes in zip(seen[1::2], (2, 3), strict=True):
        for episode in x:
            every = (images().images(torch.arange(24))[:, None] == episode).flatten(2).all(-1)
            assert len({int(i) // 4 for i in every.any(1).nonzero()}) <= classes


def test_numbers_and_their_shape() -> None:
    numbers = result()
    assert (numbers["rows"], numbers["unit"]) == (4, "wrong pixels")
    assert numbers["kept"] == [4 * 6 + 4 * 4] * 2
    assert (numbers["lengths"], numbers["classes"]) == ([3, 6], [2, 3])
    assert len(numbers["curves"]) == 2
    for curves in numbers["curves"]:
        assert set(curves) == {*NAMES, "distance", "right", "different"}
        assert all(len(values["mean"]) == len(values["stderr"]) == 2 for values in curves.values())
    grey = dataclasses.replace(SMALL, likelihood="gaussian")
    assert result(config=grey)["unit"] == "RMS difference"


def test_images_that_are_not_binary_have_their_error_in_bits() -> None:
    """Nats of a density may be negative: the curve has to be inside of its axes."""
    numbers = result(config=dataclasses.replace(SMALL, likelihood="gaussian"))
    (nats, *_), (bits, *_) = (numbers["curves"][0][name]["mean"] for name in ("nats", "bits"))
    assert bits == pytest.approx(bits_per_dimension(nats, images().pixels[0].numel()), rel=1e-6)
    assert Capacity.table(numbers).head[1] == "bits per dimension"
    for curves in numbers["curves"]:
        curves["nats"]["mean"] = [-9000.0, -8000.0]
    left = plots.figures({"models": [{"name": "grey", "result": numbers}]})[""].axes[0]
    assert left.get_ylabel() == "retrieval error (bits per dimension)"
    assert left.lines[0].get_ydata().tolist() == numbers["curves"][0]["bits"]["mean"]
    for curves in numbers["curves"]:  # as results were before
        del curves["bits"]
    low, high = plots.figures({"models": [{"name": "grey", "result": numbers}]})[""].axes[0].get_ylim()
    assert low < -9000 < -8000 < high


@pytest.mark.parametrize("models", [1, 3])
def test_figures_are_drawn_from_the_file(models: int) -> None:
    numbers = result()
    named = [{"name": f"model {i}", "result": numbers} for i in range(models)]
    figure = plots.figures({"models": named})[""]
    axes = figure.axes
    assert len(axes) == (3 if models == 1 else 4)
    assert [line.get_label() for line in axes[0].lines[: len(axes[0].lines) - 1]] == (
        ["2 classes", "3 classes"] if models == 1 else [f"model {i}" for i in range(3)]
    )
    assert axes[0].lines[0].get_ydata().tolist() == numbers["curves"][0]["nats"]["mean"]
    assert axes[-1].get_xlabel() == "episode length T"
    figure.savefig("/dev/null", format="svg")


def test_a_model_says_only_what_it_has() -> None:
    numbers = run(WORK, toy())
    assert numbers["rows"] is None
    assert numbers["kept"] == [3 * 64, 6 * 64]
    for curves in numbers["curves"]:
        assert set(curves) == {"nats", "reconstruction", "distance", "right", "different"}
        assert curves["distance"]["mean"] == [0, 0]
        assert curves["right"]["mean"] == [1, 1]
    # a dotted line for the rows of a memory, once for each number of them
    both = [{"name": name, "result": found} for name, found in (("toy", numbers), ("small", result()))]
    for models, dotted in ((both[:1], 0), (both, 1), ([*both, both[1]], 1)):
        axes = plots.figures({"models": models})[""].axes[0]
        assert sum(line.get_linestyle() == ":" for line in axes.lines) == dotted


def test_the_table_has_the_ends_of_each_curve() -> None:
    numbers = result()
    head, rows = Capacity.table(numbers)
    assert head == ["", "nats per image", "wrong pixels", "nearest to the right image", "floats kept"]
    names = [f"{length} images of {classes} classes" for classes in (2, 3) for length in (3, 6)]
    assert [row[0] for row in rows] == names
    curves = numbers["curves"][1]
    assert rows[3][1:] == [
        point(curves["nats"], 1),
        point(curves["distance"], 1),
        Share(point(curves["right"], 1)),
        40,
    ]
    del numbers["kept"]  # as results were before
    assert Capacity.table(numbers).text().rows[0][-1] == "–"
