"""Rivals: the same images for all, room for what fits, and new images that were not written."""

import functools
import importlib
from typing import Any

import pytest

import kanerva
from kanerva.lab import rivals
from kanerva.lab.measures import noisy, task
from kanerva.training.evaluate import halves
from trials import SMALL, Subject, drawn, images, run, subject, toy

pytestmark = pytest.mark.usefixtures("short_search")
SIZES: dict[str, Any] = {"lengths": (3, 5), "budgets": (4, 7), "classes": 2}


def keeper(config: Any = SMALL) -> Subject:
    return subject(config, kanerva.create("nearest", config.image, config.likelihood))


@functools.cache
def machine() -> dict[str, Any]:
    """What the DKM gives, which takes a second or two."""
    return run(rivals, subject(), **SIZES)


def test_all_models_have_the_same_tasks() -> None:
    assert len({run(rivals, who, **SIZES)["sha256"] for who in (keeper(), toy())} | {machine()["sha256"]}) == 1


def test_a_model_that_keeps_images_writes_what_fits() -> None:
    """64 bits are two floats."""
    found = run(rivals, keeper(), **SIZES)["recall"]
    rows = [(row["length"], row["written"], row["kept"]) for row in found]
    assert rows == [(3, 2, 4), (3, 3, 6), (5, 2, 4), (5, 3, 6), (5, 5, 10)]


def test_what_was_not_written_is_asked_for_all_the_same() -> None:
    """Of three images two are kept, and the third is answered by one of them."""
    cell = run(rivals, keeper(), **SIZES)["recall"][0]["damage"]["half erased"]
    assert cell["right"]["mean"] == pytest.approx(2 / 3)
    assert cell["wrong"]["mean"] > 0


def test_new_images_are_scored_given_the_others() -> None:
    who = keeper()
    written, read = halves(who.unseen, 64 // (2 * 2), 2, 4, seed=0)
    terms = who.model.given(who.model.write(written), read)
    found = run(rivals, who, **SIZES)["nats"]
    assert found["new"]["mean"] == pytest.approx(float(terms.nats().mean()))
    assert found["new"]["mean"] > found["stored"]["mean"]


def test_the_figure_comes_from_the_file() -> None:
    lines = drawn(rivals, small=machine(), nearest=run(rivals, keeper(), **SIZES))[""].axes[0].containers
    assert [bar.get_label() for bar in lines] == ["small", "nearest"]
    assert lines[1].lines[0].get_xdata().tolist() == [4, 6]


def test_times_are_of_one_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves a second at every look: 1 s for each job, whatever it does."""
    ticks = iter(range(1000))
    monkeypatch.setattr(importlib.import_module("time"), "perf_counter", lambda: float(next(ticks)))
    given = task(images(), [noisy(True, 0.15)], 2, 5, 0)
    assert rivals.clock(keeper().model, given, 2) == {"write": 1 / 10, "recall": 1 / 10}
