"""Basins: outcomes by hand, the plane and the energy on it, and figures from the file alone."""

import dataclasses
import functools
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import normal
from kanerva import DKM, DKMConfig, memory
from kanerva.experiments import base, basins, plots
from kanerva.experiments.basins import Basins
from kanerva.experiments.plots import basins as figures
from kanerva.recall.methods import Recall
from trials import COLOUR, SMALL, Toy, generator, run, subject, toy

pytestmark = pytest.mark.usefixtures("short_search")

METHODS = ("least-squares", "descent")
WORK = Basins(episodes=2, length=5, levels=(0.0, 0.3), loads=(3, 6), queries=4, steps=2, grid=7)


@functools.cache
def result(config: DKMConfig) -> dict[str, Any]:
    return run(WORK, subject(config))


def lines(*ink: int) -> Tensor:
    """Images of 40 pixels in a row, of which the first so many are 1."""
    return (torch.arange(40) < torch.tensor(ink)[:, None]).float()[:, None, None]


# recovery


def test_outcomes_by_hand() -> None:
    """5 % of 40 pixels are 2."""
    stored = lines(10, 20, 1)
    asked = torch.tensor([0, 0, 0, 0, 2, 2])
    found = basins.outcome(lines(12, 13, 18, 0, 0, 3), stored, asked)
    assert found.right.tolist() == [1, 1, 0, 0, 1, 1]
    assert found.near.tolist() == [1, 0, 0, 0, 0, 1]
    assert found.other.tolist() == [0, 0, 1, 0, 0, 0]
    assert found.blank.tolist() == [0, 0, 0, 1, 1, 0]


def test_outcomes_of_colours_are_by_their_range() -> None:
    """5 % of a range of 2 is 0.1."""
    stored = torch.stack([torch.full((3, 4, 4), v) for v in (-0.5, 0.5)]) + 0.01 * torch.randn(2, 3, 4, 4)
    end = stored[[0, 0, 0]] + torch.tensor([0.099, 0.101, 0.95])[:, None, None, None]
    found = basins.outcome(end, stored, torch.tensor([0, 0, 0]))
    assert found.right.tolist() == [1, 1, 0]
    assert found.near.tolist() == [1, 0, 0]
    assert found.other.tolist() == [0, 0, 1]


def test_the_radius_is_where_one_half_is_lost() -> None:
    assert basins.radius((0.0, 0.1, 0.2, 0.3), (1.0, 0.9, 0.4, 0.0)) == pytest.approx(0.18)
    assert basins.radius((0.0, 0.1), (1.0, 0.5)) is None
    assert basins.radius((0.0, 0.1), (0.2, 0.1)) is None


@pytest.mark.parametrize("length", [3, 6])
def test_every_cue_is_compared_with_its_own_image(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With recall that gives back its cue, and no noise, all are right, whichever were asked for."""

    def nothing(self: DKM, state: Any, x: Tensor, steps: int, method: str, generator: Any) -> Recall:
        asked.append(x)
        return Recall(x[None], torch.zeros(1, len(x), 4), torch.zeros(1, len(x)))

    asked: list[Tensor] = []
    monkeypatch.setattr(DKM, "recall", nothing)
    with torch.no_grad():
        found = WORK.recover(subject(), length, 0.0, lambda: None)
        noisy = WORK.recover(subject(), length, 0.5, lambda: None)
    assert [len(x) for x in asked] == 8 * [min(length, 4)]
    for method in METHODS:
        assert found[method].near.tolist() == 2 * [min(length, 4) * [1]]
        assert noisy[method].near.mean() < 0.5
    # not always the first that were written, nor in their order
    first = base.distinct(subject().unseen, 2, length, generator())[:, : min(length, 4)]
    assert not (torch.equal(asked[0], first[0]) and torch.equal(asked[2], first[1]))


def test_noise_and_load_meet_in_one_point() -> None:
    """The same length and level, in either curve, are the same memories and the same cues."""
    work = dataclasses.replace(WORK, levels=(0.2,), loads=(5,), level=0.2)
    with torch.no_grad():
        found = work.run(subject(), generator(), lambda: None)
    for method in METHODS:
        assert found["noise"][method] == found["loads"][method]


def test_curves_are_means_over_memories() -> None:
    ones, zeros = torch.ones(3), torch.zeros(3)
    some = basins.Outcome(*4 * [torch.stack([ones, zeros])])
    all_ = basins.Outcome(*4 * [torch.stack([ones, ones])])
    found = basins.curves([dict.fromkeys(METHODS, point) for point in (some, all_)])
    assert found["descent"]["near"] == {"mean": [0.5, 1], "stderr": [pytest.approx(0.5), 0]}


# the slice


def test_a_plane_goes_through_its_points() -> None:
    w = normal(3, 6)
    plane = basins.through(w)
    torch.testing.assert_close(plane.axes @ plane.axes.mT, torch.eye(2, dtype=w.dtype))
    torch.testing.assert_close(plane.outside(w), torch.zeros(3, dtype=w.dtype))
    places = plane.place(w)
    torch.testing.assert_close(torch.pdist(places), torch.pdist(w))
    assert places[1, 0] > 0
    assert abs(places[1, 1]) < 1e-12
    torch.testing.assert_close(plane.at(places), w)


def test_what_is_outside_a_plane_is_the_rest() -> None:
    plane = basins.through(normal(3, 6))
    away = normal(5, 6, seed=1)
    place, outside = plane.place(away), plane.outside(away)
    torch.testing.assert_close(place.square().sum(-1) + outside**2, (away - plane.origin).square().sum(-1))
    assert bool((outside > 0.1).all())


def test_three_points_in_a_line_have_a_plane_too() -> None:
    w = normal(1, 6) * torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64)
    plane = basins.through(w)
    torch.testing.assert_close(plane.axes @ plane.axes.mT, torch.eye(2, dtype=w.dtype))
    torch.testing.assert_close(plane.outside(w), torch.zeros(3, dtype=w.dtype))


@torch.no_grad()
def test_the_landscape_is_the_energy_at_the_mode_and_nothing_is_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    m = subject().model
    x = base.distinct(subject().unseen, 1, 5, generator())[0]
    state = m.write(x)
    w = memory.address(m.encode(x), state, m.noise_var)
    found = basins.landscape(m, state, w)
    torch.testing.assert_close(found, m.energy(state, m.decode(memory.read(state, w)).mode(), w))
    for other in (x, 1 - x, torch.zeros_like(x)):
        assert bool((found <= m.energy(state, other, w)).all())
    monkeypatch.setattr(basins, "CHUNK", 2)
    torch.testing.assert_close(basins.landscape(m, state, w), found)


@torch.no_grad()
def test_of_a_gaussian_landscape_only_the_prior_is_left() -> None:
    m, w = subject(COLOUR).model, normal(7, 4, dtype=torch.float32)
    x = base.distinct(subject(COLOUR).unseen, 1, 5, generator())[0]
    found = basins.landscape(m, m.write(x), w) - w.square().sum(-1) / 2
    torch.testing.assert_close(found, found[:1].expand(7), rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_the_slice_is_that_plane() -> None:
    m = subject().model
    x = base.distinct(subject().unseen, 1, 5, generator())[0]
    found = WORK.slice(m, x, generator())
    state = m.write(x)
    w = memory.address(m.encode(x[:3]), state, m.noise_var)
    plane = basins.through(w)
    # a row for each height, a column for each place along it
    for row, column in ((0, 0), (1, 5), (6, 2)):
        place = torch.tensor([found["across"][column], found["up"][row]])
        exact = basins.landscape(m, state, plane.at(place)[None])
        assert found["energy"][row][column] == pytest.approx(float(exact), abs=1e-3)
    mode = m.decode(memory.read(state, w)).mode()
    assert found["stored"]["energy"] == pytest.approx(m.energy(state, mode, w).tolist(), rel=1e-5)
    assert np.array_equal(base.unpack(found["stored"]["decoded"])[0], mode.numpy())
    assert np.array_equal(base.unpack(found["images"])[0], x[:3].numpy())
    assert found["lowest"]["energy"][0] == pytest.approx(min(map(min, found["energy"])), abs=1e-3)
    for a, b in found["stored"]["places"]:
        assert found["across"][0] < a < found["across"][-1]
        assert found["up"][0] < b < found["up"][-1]


@torch.no_grad()
def test_paths_begin_at_the_cue_s_address_and_say_how_far_they_leave_the_plane() -> None:
    m = subject().model
    x = base.distinct(subject().unseen, 1, 5, generator())[0]
    state = m.write(x)
    plane = basins.through(memory.address(m.encode(x[:3]), state, m.noise_var))
    cue = 1 - x[:3]
    start = memory.address(m.encode(cue), state, m.noise_var)
    for method in METHODS:
        paths = WORK.paths(m, state, cue, plane, method)
        end = m.recall(state, cue, 2, method).w[-1]
        for i, path in enumerate(paths):
            assert len(path["places"]) == len(path["outside"]) == len(path["energy"]) == 3
            for step, w in ((0, start[i]), (2, end[i])):
                assert path["places"][step] == pytest.approx(plane.place(w).tolist(), abs=1e-5)
                rest = w - plane.origin - plane.place(w) @ plane.axes
                assert path["outside"][step] == pytest.approx(float(rest.norm()), abs=1e-5)


# figures


@pytest.mark.parametrize("config", [SMALL, COLOUR])
def test_figures_are_drawn_from_the_file(config: DKMConfig) -> None:
    found = result(config)
    with plots.style():
        drawn = figures.figures({"models": [{"name": "a", "result": found}]})
        for figure in drawn.values():
            figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    assert set(drawn) == {"recovery", "energy"}
    for axes, part in zip(drawn["recovery"].axes, ("noise", "loads"), strict=True):
        for method in METHODS:
            (line,) = [a for a in axes.lines if a.get_label() == f"{method}: nearest to the right image"]
            assert list(line.get_xdata()) == found[part]["x"]
            assert list(line.get_ydata()) == found[part][method]["right"]["mean"]
    left = drawn["energy"].axes[0]
    stars = [line for line in left.lines if line.get_marker() == "*"]
    assert [[*line.get_xdata(), *line.get_ydata()] for line in stars] == found["slice"]["stored"]["places"]


# other models


def test_a_model_that_is_no_dkm_has_no_slice() -> None:
    who = toy()
    assert WORK.left_out(subject().model) is None
    assert WORK.left_out(who.model) == "the energy slice needs a DKM, and is left out"
    found = run(WORK, who)
    assert "slice" not in found
    assert found["noise"]["copy"]["right"]["mean"][0] == 1
    assert [row[0] for row in Basins.table(found).rows if "images" in row[0]] == [
        "copy, images 3",
        "copy, images 6",
    ]
    models = [{"name": name, "result": numbers} for name, numbers in (("a", result(SMALL)), ("toy", found))]
    with plots.style():
        drawn = figures.figures({"models": models})
    assert set(drawn) == {"recovery-a", "energy-a", "recovery-toy"}


def test_a_recall_that_draws_leaves_cues_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(self: Toy, state: Any, x: Tensor, steps: int, method: str, generator: torch.Generator) -> Recall:
        asked.append(x)
        drawn.append(float(torch.rand((), generator=generator)))
        return Recall(x[None])

    asked: list[Tensor] = []
    drawn: list[float] = []
    monkeypatch.setattr(Toy, "recall", noisy)
    who = toy()
    for methods in (("a",), ("a", "b")):
        monkeypatch.setattr(Toy, "METHODS", methods)
        WORK.recover(who, 5, 0.3, lambda: None)
    once, twice = asked[:2], asked[2:]
    for i, cue in enumerate(once):
        assert torch.equal(cue, twice[2 * i])
        assert torch.equal(cue, twice[2 * i + 1])
    assert len(set(drawn)) == 1
