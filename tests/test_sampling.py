"""Sampling: distances, coverage and chains by hand, and figures from the file alone."""

import functools
import io
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kanerva import DKM, DKMConfig
from kanerva.experiments import base, plots, sampling
from kanerva.experiments.plots import sampling as figures
from kanerva.experiments.sampling import Sampling, Written
from kanerva.recall.chains import mixing
from kanerva.recall.trajectory import Recall
from trials import COLOUR, SMALL, bits, generator, run, subject, toy

METHODS = ("least-squares", "descent", "stochastic")
WORK = Sampling(
    episodes=2, length=4, samples=5, steps=3, seen=10, temperatures=(0.5, 1.0), chain=10, chains=3, pictures=2
)


@functools.cache
def result(config: DKMConfig) -> dict[str, Any]:
    return run(WORK, subject(config))


def written(x: Tensor) -> Written:
    return Written(x, x, subject().model.blank())


# what samples are


def test_images_are_judged_by_hand() -> None:
    stored = written(bits("110000", "001100", "000011", "111111"))
    seen = bits("000000", "111000")
    samples = bits("110000", "111000", "001000", "001000", "011100")
    found = sampling.judge([samples], [stored], seen)
    assert found["to stored"]["mean"] == pytest.approx((0 + 1 + 1 + 1 + 1) / 5)
    assert found["to training"]["mean"] == pytest.approx((1 + 0 + 1 + 1 + 2) / 5)
    assert found["distinct"]["mean"] == 4
    assert found["reached"]["mean"] == 2
    assert found["shares"]["mean"] == pytest.approx([0.6, 0.4, 0, 0])  # most frequent first
    assert found["entropy"]["mean"] == pytest.approx(-0.6 * math.log(0.6) - 0.4 * math.log(0.4))
    assert found["brightness"]["mean"] == pytest.approx(10 / 30)


def test_memories_are_judged_one_by_one() -> None:
    first, second = written(bits("1100", "0011")), written(bits("1111", "0000"))
    samples = [bits("1100", "1100"), bits("1111", "0000")]
    found = sampling.judge(samples, [first, second], bits("0000"))
    assert found["to stored"] == {"mean": 0, "stderr": 0}
    assert found["reached"] == {"mean": 1.5, "stderr": pytest.approx(0.5)}
    assert found["shares"]["mean"] == [0.75, 0.25]


def test_colours_that_nobody_can_tell_apart_are_one() -> None:
    x = torch.rand(3, 3, 4, 4, generator=generator()) - 0.5
    same = torch.cat([x, x[:1] + 1e-4, x[1:2] + 0.01])
    assert sampling.distinct(same) == 4


def test_how_many_are_reached_by_chance() -> None:
    for length, samples in ((2, 2), (3, 4), (4, 1)):
        draws = list(itertools.product(range(length), repeat=samples))
        assert sampling.expected_reached(length, samples) == pytest.approx(
            sum(len(set(draw)) for draw in draws) / len(draws)
        )


def test_visits_are_counted_in_each_chain() -> None:
    nearest = torch.tensor([[0, 1], [0, 2], [3, 1], [0, 0]])  # chains are columns
    assert sampling.visited(nearest) == pytest.approx((2 + 3) / 2)


def test_steps_by_hand() -> None:
    stored = written(bits("1100", "0011"))
    x = torch.stack([bits("1000", "0000"), bits("1100", "0001"), bits("1100", "0011")])
    energy = torch.tensor([[3.0, 5.0], [4.0, 4.0], [2.0, 4.0]])
    found = sampling.stepwise([Recall(x, torch.zeros(3, 2, 4), energy)], [stored])
    assert found["to stored"]["mean"] == [1.5, 0.5, 0]
    assert found["energy"]["mean"] == [4, 4, 3]
    assert found["rose"]["mean"] == [0, 0.5, 0]


# the whole


def test_all_methods_begin_with_the_same_draw_from_the_prior() -> None:
    found = result(SMALL)
    starts = [found["steps"][method]["energy"]["mean"][0] for method in METHODS]
    assert starts[0] == starts[1] == starts[2]
    assert len({found["steps"][method]["energy"]["mean"][-1] for method in METHODS}) == 3
    images = {name: base.unpack(packed) for name, packed in found["pictures"]["samples"].items()}
    assert all(np.array_equal(images["descent"][:, 0], other[:, 0]) for other in images.values())
    assert found["sets"]["first draw"]["to stored"]["mean"] == pytest.approx(
        found["steps"]["descent"]["to stored"]["mean"][0]
    )


def test_descent_never_rises() -> None:
    assert result(SMALL)["steps"]["descent"]["rose"]["mean"] == [0, 0, 0]
    assert sum(result(SMALL)["steps"]["stochastic"]["rose"]["mean"]) > 0


def test_fresh_images_are_not_stored() -> None:
    """They are of the same images, and none of them is in the memory."""
    assert result(SMALL)["sets"]["fresh images"]["to stored"]["mean"] > 0
    with torch.no_grad():
        x = base.distinct(subject().unseen, 2, 9, generator())
    stored = base.unpack(result(SMALL)["pictures"]["stored"]).reshape(4, 1, 8, 8)
    assert np.array_equal(stored, x[0, :4].numpy())
    nearest = [base.distances(a[4:], a[:4]).amin(-1).mean() for a in x]
    assert result(SMALL)["sets"]["fresh images"]["to stored"]["mean"] == pytest.approx(float(sum(nearest) / 2))


@torch.no_grad()
def test_chains_are_judged_in_each_memory_by_itself() -> None:
    m = subject().model
    memories = [Written(x, x, m.write(x)) for x in base.distinct(subject().unseen, 2, 4, generator())]
    found = WORK.mix(subject(), memories, 0.5, generator(7), lambda: None)
    noise = generator(7)
    paths = [m.sample(a.state, 3, 10, noise, method="stochastic", temperature=0.5) for a in memories]
    judged = [mixing(path.energy) for path in paths]
    assert found["time"]["mean"] == pytest.approx(sum(a.time for a in judged) / 2)
    assert found["r_hat"]["mean"] == pytest.approx(sum(a.r_hat for a in judged) / 2)
    assert found["effective"]["mean"] == pytest.approx(sum(a.effective for a in judged) / 2)
    assert found["autocorrelation"] == pytest.approx(sum(a.autocorrelation for a in judged).div(2).tolist())
    assert found["energy"]["mean"] == pytest.approx(float(sum(a.energy[1:].mean() for a in paths) / 2))


# figures


@pytest.mark.parametrize("config", [SMALL, COLOUR])
def test_figures_are_drawn_from_the_file(config: DKMConfig) -> None:
    found = result(config)
    with plots.style():
        drawn = figures.figures({"models": [{"name": "a", "result": found}]})
        for figure in drawn.values():
            figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    assert set(drawn) == {"pictures", "steps", "novelty", "chains"}
    energy, near = ({line.get_label(): line for line in axes.lines} for axes in drawn["steps"].axes)
    for method in METHODS:
        assert list(energy[method].get_ydata()) == found["steps"][method]["energy"]["mean"]
        assert list(near[method].get_ydata()) == found["steps"][method]["to stored"]["mean"]
    lags = drawn["chains"].axes[0].lines[1]
    assert list(lags.get_ydata()) == found["chains"][1]["autocorrelation"]
    shares = drawn["novelty"].axes[1].lines[-2]
    assert list(shares.get_ydata()) == found["sets"]["fresh images"]["shares"]["mean"]


# other models


def test_a_model_without_energy_and_chain_leaves_them_out() -> None:
    found = run(WORK, toy())
    assert (found["paths"], found["chains"]) == ({}, [])
    assert set(found["steps"]["copy"]) == {"to stored"}
    assert list(found["sets"]) == ["first draw", "copy", "fresh images"]
    assert found["sets"]["copy"]["to stored"]["mean"] == 0  # it draws what it keeps
    assert [row[0] for row in Sampling.table(found).rows][:3] == list(found["sets"])
    with plots.style():
        drawn = figures.figures({"models": [{"name": "toy", "result": found}]})
        for figure in drawn.values():
            figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    assert set(drawn) == {"pictures", "steps", "novelty"}
    (near,) = drawn["steps"].axes
    assert list(near.lines[0].get_ydata()) == found["steps"]["copy"]["to stored"]["mean"]


@torch.no_grad()
def test_a_chain_without_energy_is_judged_by_its_distance() -> None:
    m = subject().model
    (x,) = base.distinct(subject().unseen, 1, 4, generator())
    path = m.sample(m.write(x), 3, 10, generator(7), method="stochastic", temperature=0.5)
    silent = subject()._replace(model=Silent(m.config))
    silent.model.load_state_dict(m.state_dict())
    found = WORK.mix(silent, [Written(x, x, m.write(x))], 0.5, generator(7), lambda: None)
    near = base.distances(path.x, x).amin(-1)
    assert "energy" not in found
    assert found["autocorrelation"] == pytest.approx(mixing(near).autocorrelation.tolist())


class Silent(DKM):
    """A DKM that keeps its energies to itself."""

    def sample(self, *arguments: Any, **options: Any) -> Recall:
        return super().sample(*arguments, **options)._replace(energy=None)
