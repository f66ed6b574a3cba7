"""Basins: curves by hand, the plane and the energy on it, and figures from the file alone."""

import functools
from typing import Any

import numpy as np
import pytest
import torch

from cases import normal
from kanerva import DKM, DKMConfig, MemoryState, memory
from kanerva.lab import basins, pictures, plane
from trials import COLOUR, SMALL, drawn, images, run, subject, toy

pytestmark = pytest.mark.usefixtures("short_search")


@functools.cache
def result(config: DKMConfig) -> dict[str, Any]:
    return run(basins, subject(config), levels=(0.0, 0.3), loads=(3, 6), queries=4, steps=2, grid=7)


@pytest.fixture
def written() -> tuple[DKM, torch.Tensor, MemoryState]:
    """A model, five images and a memory of them."""
    m = subject().model
    assert isinstance(m, DKM)
    x = images().images(torch.arange(5))
    with torch.no_grad():
        return m, x, m.write(x)


def test_the_radius_is_where_one_half_is_lost() -> None:
    assert basins.radius((0.0, 0.1, 0.2, 0.3), (1.0, 0.9, 0.4, 0.0)) == pytest.approx(0.18)
    assert basins.radius((0.0, 0.1), (1.0, 0.5)) is None
    assert basins.radius((0.0, 0.1), (0.2, 0.1)) is None


def test_noise_and_load_meet_in_one_point() -> None:
    """The same length and level, in either curve, are the same memories and the same cues."""
    found = run(basins, subject(), levels=(0.2,), loads=(5,), level=0.2)
    for method in ("least-squares", "descent"):
        assert found["noise"][method] == found["loads"][method]


@pytest.mark.parametrize("in_a_line", [False, True])
def test_a_plane_goes_through_its_points(in_a_line: bool) -> None:
    w = normal(3, 6)
    w = w[:1] * torch.tensor([[0.0], [1.0], [1.0]], dtype=w.dtype) if in_a_line else w
    found = plane.through(w)
    torch.testing.assert_close(found.axes @ found.axes.mT, torch.eye(2, dtype=w.dtype))
    torch.testing.assert_close(found.outside(w), torch.zeros(3, dtype=w.dtype))
    torch.testing.assert_close(found.at(found.place(w)), w)
    assert found.place(w)[1, 0] > 0
    assert abs(found.place(w)[1, 1]) < 1e-12


@torch.no_grad()
def test_the_landscape_is_the_energy_at_the_mode_and_nothing_is_lower(
    written: tuple[DKM, torch.Tensor, MemoryState],
) -> None:
    m, x, state = written
    w = memory.address(m.encode(x), state, m.noise_var)
    found = plane.landscape(m, state, w)
    torch.testing.assert_close(found, m.energy(state, m.decode(memory.read(state, w)).mode(), w))
    for other in (x, 1 - x, torch.zeros_like(x)):
        assert bool((found <= m.energy(state, other, w)).all())


@torch.no_grad()
def test_the_slice_is_that_plane(written: tuple[DKM, torch.Tensor, MemoryState]) -> None:
    m, x, state = written
    found = basins.energy_slice(m, x, 1 - x[:3], 2, 7)
    w = memory.address(m.encode(x[:3]), state, m.noise_var)
    at = plane.through(w)
    for row, column in ((0, 0), (1, 5), (6, 2)):  # a row for each height, a column for each place along it
        place = torch.tensor([found["across"][column], found["up"][row]])
        exact = plane.landscape(m, state, at.at(place)[None])
        assert found["energy"][row][column] == pytest.approx(float(exact), abs=1e-3)
    assert found["stored"]["places"] == [pytest.approx(place, abs=1e-5) for place in at.place(w).tolist()]
    assert np.array_equal(pictures.unpack(found["images"])[0], x[:3].numpy())


@pytest.mark.parametrize("config", [SMALL, COLOUR])
def test_figures_are_drawn_from_the_file(config: DKMConfig) -> None:
    found = result(config)
    made = drawn(basins, a=found)
    assert set(made) == {"recovery", "energy"}
    for axes, part in zip(made["recovery"].axes, ("noise", "loads"), strict=True):
        (line,) = [a for a in axes.lines if a.get_label() == "descent: nearest to the right image"]
        assert list(line.get_xdata()) == found[part]["x"]
        assert list(line.get_ydata()) == found[part]["descent"]["right"]["mean"]
    stars = [line for line in made["energy"].axes[0].lines if line.get_marker() == "*"]
    assert [line.get_xydata().tolist() for line in stars] == [found["slice"]["stored"]["places"]]


def test_a_model_that_is_no_dkm_has_no_slice() -> None:
    found = run(basins, toy(), loads=(3, 6))
    assert found["noise"]["copy"]["right"]["mean"][0] == 1
    assert [row[0] for row in basins.table(found).rows if "images" in row[0]] == [
        "copy, images 3",
        "copy, images 6",
    ]
    assert set(drawn(basins, a=result(SMALL), toy=found)) == {"recovery-a", "energy-a", "recovery-toy"}
