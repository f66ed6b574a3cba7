"""Sampling: distances and coverage by hand, and figures from the file alone."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from cases import generator
from kanerva import DKMConfig, Recall
from kanerva.lab import pictures, sampling
from trials import COLOUR, SMALL, bits, drawn, run, subject, toy

METHODS = ("least-squares", "descent", "stochastic")


@functools.cache
def result(config: DKMConfig) -> dict[str, Any]:
    return run(sampling, subject(config), length=4)


def test_images_are_judged_by_hand() -> None:
    stored = bits("110000", "001100", "000011", "111111")[None]
    samples = bits("110000", "111000", "001000", "001000", "011100")[None]
    found = sampling.judge(samples, stored, bits("000000", "111000"))
    assert found["to stored"]["mean"] == pytest.approx((0 + 1 + 1 + 1 + 1) / 5)
    assert found["to training"]["mean"] == pytest.approx((1 + 0 + 1 + 1 + 2) / 5)
    assert (found["distinct"]["mean"], found["reached"]["mean"]) == (4, 2)


def test_colours_that_nobody_can_tell_apart_are_one() -> None:
    x = torch.rand(3, 3, 4, 4, generator=generator()) - 0.5
    assert sampling.different(torch.cat([x, x[:1] + 1e-4, x[1:2] + 0.01])) == 4


@pytest.mark.parametrize(("length", "samples"), [(2, 2), (3, 4), (4, 1)])
def test_how_many_are_reached_by_chance(length: int, samples: int) -> None:
    draws = list(itertools.product(range(length), repeat=samples))
    exact = sum(len(set(draw)) for draw in draws) / len(draws)
    assert sampling.expected_reached(length, samples) == pytest.approx(exact)


def test_steps_by_hand() -> None:
    x = torch.stack([bits("1000", "0000"), bits("1100", "0001"), bits("1100", "0011")])[:, None]
    energy = torch.tensor([[3.0, 5.0], [4.0, 4.0], [2.0, 4.0]])[:, None]
    found = sampling.stepwise(Recall(x, None, energy), bits("1100", "0011")[None])
    assert found["to stored"]["mean"] == [1.5, 0.5, 0]
    assert found["energy"]["mean"] == [4, 4, 3]
    assert found["rose"]["mean"] == [0, 0.5, 0]


def test_all_methods_begin_with_the_same_draw_from_the_prior() -> None:
    found = result(SMALL)
    starts = [found["steps"][method]["energy"]["mean"][0] for method in METHODS]
    assert starts[0] == starts[1] == starts[2]
    assert len({found["steps"][method]["energy"]["mean"][-1] for method in METHODS}) == 3
    images = {name: pictures.unpack(packed) for name, packed in found["pictures"]["samples"].items()}
    assert all(np.array_equal(images["descent"][:, 0], other[:, 0]) for other in images.values())


@pytest.mark.parametrize("config", [SMALL, COLOUR])
def test_figures_are_drawn_from_the_file(config: DKMConfig) -> None:
    made = drawn(sampling, a=result(config))
    assert set(made) == {"pictures", "energy"}
    lines = {str(line.get_label()).split(" (")[0]: line for line in made["energy"].axes[0].lines}
    for method in METHODS:
        assert list(lines[method].get_ydata()) == result(config)["steps"][method]["energy"]["mean"]


def test_a_model_without_energy_and_chain_leaves_them_out() -> None:
    found = run(sampling, toy(), length=4)
    assert set(found["steps"]["copy"]) == {"to stored"}
    assert list(found["sets"]) == ["first draw", "copy", "fresh images"]
    assert found["sets"]["copy"]["to stored"]["mean"] == 0  # it draws what it keeps
    assert [row[0] for row in sampling.table(found).rows][:3] == list(found["sets"])
    assert set(drawn(sampling, toy=found)) == {"pictures"}
