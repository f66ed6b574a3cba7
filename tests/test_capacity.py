"""Capacity: its numbers are those of `evaluate` and of a plain loop, and its figures come from its file alone."""

import dataclasses
from typing import Any

import pytest
import torch

from cases import generator
from kanerva import DKM, evaluate, memory
from kanerva.data import episodes
from kanerva.lab import capacity
from trials import COLOUR, SMALL, drawn, images, run, subject, toy

SIZES: dict[str, Any] = {"lengths": (3, 6), "classes": (2, 3), "episodes": 5}


def test_the_error_is_that_of_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same 32 episodes, 16 at a time, with the same noise."""
    given = episodes(images(), 32, 6, 2, generator(1))
    halves = iter(given.split(16))
    monkeypatch.setattr(DKM, "episodes", lambda *_: next(halves))
    score = evaluate(subject().model, images(), length=6, count=192, classes=2, seed=0, batch=16, extra=False)
    noise = generator()
    with torch.no_grad():
        parts = [capacity.measure(subject().model, half, noise) for half in given.split(16)]
    for name in ("nats", "reconstruction", "kl_weights", "kl_memory", "autoencoder"):
        found = torch.cat([part[name] for part in parts])
        assert float(found.mean()) == pytest.approx(getattr(score, name), rel=1e-6)


def test_all_models_have_the_same_images() -> None:
    """Whatever noise they draw."""
    mine, other = run(capacity, subject(), **SIZES), run(capacity, toy(), **SIZES)
    assert mine["sha256"] == other["sha256"]
    assert [curves["different"] for curves in mine["curves"]] == [curves["different"] for curves in other["curves"]]


@torch.no_grad()
def test_read_outs_are_compared_with_their_own_images() -> None:
    m, x = subject().model, episodes(images(), 3, 5, 2, generator())
    found = capacity.measure(m, x, generator())
    for b in range(3):
        state, _ = memory.write(m.blank(), m.encode(x[b]), m.noise_var)
        read = m.decode(memory.read(state, memory.address(m.encode(x[b]), state, m.noise_var))).mode()
        apart = [[int((one != other).sum()) for other in x[b]] for one in read]
        assert float(found["distance"][b]) == pytest.approx(sum(apart[t][t] for t in range(5)) / 5)
        assert float(found["right"][b]) == pytest.approx(sum(apart[t][t] == min(apart[t]) for t in range(5)) / 5)
        assert int(found["different"][b]) == len({tuple(image.flatten().tolist()) for image in x[b]})
    assert float(found["right"].min()) < 1  # an untrained model; the test would not see the difference otherwise


def test_colours_are_scored_in_bits() -> None:
    found = run(capacity, subject(COLOUR), **SIZES)
    assert capacity.table(found).head[1:3] == ["bits per dimension", "RMS difference"]


def test_figures_are_drawn_from_the_file() -> None:
    found = run(capacity, subject(), **SIZES)
    alone = drawn(capacity, a=found)[""].axes
    assert list(alone[0].lines[1].get_ydata()) == found["curves"][1]["nats"]["mean"]
    assert all(4 in axes.lines[-1].get_xdata() for axes in alone)  # as many images as rows
    wider = run(capacity, subject(dataclasses.replace(SMALL, rows=5)), **SIZES)
    both = drawn(capacity, a=found, b=wider)[""].axes
    assert [axes.get_title() for axes in both] == ["2 unseen classes", "3 unseen classes"]
    assert list(both[1].lines[1].get_ydata()) == wider["curves"][1]["nats"]["mean"]
