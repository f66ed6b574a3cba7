"""Rivals: the same images for all, room for what fits, and new images that were not written."""

import copy
import functools
import importlib
from typing import Any

import pytest
import torch

import kanerva
from kanerva.evaluate import halves
from kanerva.experiments import rivals as experiment
from kanerva.experiments.plots import rivals as plots
from kanerva.experiments.rivals import Rivals, Task, fitting, recall
from trials import COLOUR, SMALL, Subject, generator, images, run, subject, toy

WORK = Rivals(lengths=(3, 5), budgets=(4, 7), episodes=2, steps=2, images=64, classes=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, short_search: None) -> None:
    monkeypatch.setattr(experiment, "REPEATS", 1)
    monkeypatch.setattr(experiment, "LENGTH", 6)


def keeper(config: Any = SMALL) -> Subject:
    both = images(config)
    return Subject("nearest", kanerva.create("nearest", config.image, config.likelihood), both, both, {})


@functools.cache
def machine() -> dict[str, Any]:
    """What the DKM gives, which takes a second or two."""
    return run(WORK, subject())


def test_all_models_have_the_same_tasks() -> None:
    mine, other, toys = machine(), run(WORK, keeper()), run(WORK, toy())
    assert mine["sha256"] == other["sha256"] == toys["sha256"]
    again = run(Rivals(**{**vars(WORK), "seed": 1}), keeper())
    assert again["sha256"] != other["sha256"]


def test_a_model_that_keeps_images_writes_what_fits() -> None:
    model = keeper().model  # 64 bits are two floats
    assert [fitting(model, budget, 5) for budget in (0, 1, 2, 3, 4, 9, 10, 100)] == [0, 0, 1, 1, 2, 4, 5, 5]
    assert WORK.rooms(model, 5) == [2, 3, 5]
    found = run(WORK, keeper())["recall"]
    assert [(row["length"], row["written"], row["kept"]) for row in found] == [
        (3, 2, 4),
        (3, 3, 6),
        (5, 2, 4),
        (5, 3, 6),
        (5, 5, 10),
    ]


def test_a_memory_of_one_size_always_writes_all() -> None:
    found = machine()["recall"]
    assert [(row["length"], row["written"]) for row in found] == [(3, 3), (5, 5)]
    assert {row["kept"] for row in found} == {4 * (6 + 4)}


def test_what_was_not_written_is_asked_for_all_the_same() -> None:
    x = images().images(torch.arange(8)).reshape(2, 4, 1, 8, 8)
    found = recall(keeper().model, Task(x, torch.arange(4), {"clean": x}, {"clean": None}), 3, 2, generator())
    assert found["clean"]["right"] == {"mean": 0.75, "stderr": 0.0}
    # the last of each is answered by another, which is the nearest of those that were written
    nearest = [min(int((a != b).sum()) for b in episode[:3]) for episode in x for a in episode[3:]]
    assert found["clean"]["wrong"]["mean"] == pytest.approx(sum(nearest) / 8)


def test_few_of_many_are_asked_for() -> None:
    """The first and the last of five are found again if all were written, and the last not if it was not."""
    work = Rivals(**{**vars(WORK), "cues": 2})
    task = work.task(images(), 5)
    assert task.asked.tolist() == [0, 4]
    assert {cue.shape[1] for cue in task.cues.values()} == {2}
    clean = Task(task.x, task.asked, {"clean": task.x[:, task.asked]}, {"clean": None})
    for room, right in ((5, 1.0), (4, 0.5)):
        found = recall(keeper().model, clean, room, 2, generator())["clean"]
        assert found["right"]["mean"] == right
        assert (found["wrong"]["mean"] == 0) == (right == 1)


def test_a_mask_is_for_holes_that_are_known() -> None:
    masks = WORK.task(images(), 3).masks
    assert {name for name, mask in masks.items() if mask is not None} == {"25 % block erased", "half erased"}


def test_halves_of_classes_share_no_image() -> None:
    """Every image is of a class of its own kind: its pixels tell class and number."""
    own = images()
    known = {own.images(torch.tensor(i)).numpy().tobytes(): i for i in range(len(own))}
    written, read = halves(own, 50, 2, 4, seed=0)
    assert written.shape == read.shape == (50, 4, 1, 8, 8)
    for a, b in zip(written, read, strict=True):
        one, other = ([known[x.numpy().tobytes()] for x in part] for part in (a, b))
        assert len({*one, *other}) == 8
        classes = [sorted(i // 4 for i in part) for part in (one, other)]
        assert classes[0] == classes[1]
        assert len(set(classes[0])) == 2


def test_new_images_are_scored_given_the_others() -> None:
    who = keeper()
    written, read = halves(who.unseen, 64 // (2 * 2), 2, 4, seed=0)
    terms = who.model.given(who.model.write(written), read)
    found = run(WORK, who)["nats"]
    assert found["new"]["mean"] == pytest.approx(float(terms.nats().mean()))
    assert found["new"]["mean"] > found["stored"]["mean"]


def test_colour_has_errors_instead_of_wrong_pixels() -> None:
    result = run(WORK, keeper(COLOUR))
    assert result["headline"] == "noise 0.15"
    assert Rivals.table(result).head[2] == "root mean square error"


def test_the_figures_come_from_the_file() -> None:
    results = {
        "models": [{"name": "small", "result": machine()}, {"name": "nearest", "result": run(WORK, keeper())}]
    }
    before = copy.deepcopy(results)
    made = plots.figures(results)
    assert set(made) == {"", "wrong"}
    assert results == before
    lines = made[""].axes[0].containers
    assert [bar.get_label() for bar in lines] == ["small", "nearest"]
    assert lines[1].lines[0].get_xdata().tolist() == [4, 6]


def test_times_are_of_one_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves a second at every look: 1 s for each job, whatever it does."""
    ticks = iter(range(1000))
    monkeypatch.setattr(importlib.import_module("time"), "perf_counter", lambda: float(next(ticks)))
    found = experiment.clock(keeper().model, WORK.task(images(), 5), 2)
    assert found == {"write": 1 / 10, "recall": 1 / 10}
