"""Fixed points: paths made by hand, a linear model whose Jacobian is known, and finite differences."""

import dataclasses

import pytest
import torch
from torch import Tensor

from cases import normal
from kanerva import DKM, CodecConfig, DKMConfig
from kanerva.lab import fixed_points
from kanerva.lab.fixed_points import (
    Ends,
    count_attractors,
    follow,
    jacobian,
    periods,
    radius,
    settle,
    smooth_step,
    summary,
)
from trials import COLOUR, drawn, images, model, run, subject

SMALL = DKMConfig(image=(1, 8, 8), rows=4, code=6, codec=CodecConfig((4, 8), style="silu"))
GREY = dataclasses.replace(SMALL, likelihood="gaussian")


def path(*cues: str) -> Tensor:
    """Paths of one-pixel images, a digit for each step."""
    return torch.tensor([[float(digit) for digit in cue] for cue in cues]).mT[..., None, None, None]


def double(config: DKMConfig) -> DKM:
    return model(config).double().requires_grad_(False)


def test_periods_of_paths() -> None:
    cues = path("123444", "121212", "412312", "123456", "111112")
    assert periods(cues).tolist() == [1, 2, 3, 0, 0]
    assert periods(cues[:1]).tolist() == [0] * 5


def test_attractors_are_counted_once() -> None:
    """Two at 4; two in the cycle 1, 2 at different times; one in 1, 3; one going nowhere."""
    cues = path("123444", "144444", "121212", "212121", "131313", "567890")
    assert count_attractors(cues, periods(cues)) == 3


def test_stored_images_are_compared_with_themselves_and_others_with_the_nearest() -> None:
    stored = torch.tensor([[0.0, 0, 0, 0], [1, 1, 1, 1]]).reshape(2, 1, 2, 2)
    first = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0]]).reshape(2, 1, 2, 2)
    last = torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 0]]).reshape(2, 1, 2, 2)
    found = follow(torch.stack([first, last]), stored, True, torch.zeros(3, 2))
    assert found.wrong.tolist() == [[1, 2], [3, 1]]
    assert found.right.tolist() == [False, True]
    others = follow(torch.stack([last, first]), stored, False, torch.zeros(3, 2))
    assert others.wrong.tolist() == [[1, 1], [1, 2]]


def test_a_summary_by_hand() -> None:
    """Two memories of four cues; 100 pixels."""
    radii = torch.tensor([[2.0, 3.0, 0.5, 0.5], [2.0, 0.5, 0.5, 0.5], [0.1, 0.2, 0.3, 0.4]])

    def made(first: list[int], last: list[int], period: list[int], attractors: int) -> Ends:
        ends = torch.tensor(last)
        return Ends(torch.tensor([first, last]), ends < 3, torch.tensor(period), attractors, radii)

    memories = [made([0, 1, 2, 3], [0, 2, 5, 6], [1, 2, 3, 0], 3), made([0] * 4, [1] * 4, [1] * 4, 1)]
    numbers = summary(memories, 100)
    assert numbers["wrong"]["mean"] == [0.75, (13 / 4 + 1) / 2]
    assert [share["mean"] for share in numbers["within"]["first"]] == [5 / 8, 6 / 8, 7 / 8, 1]
    assert [share["mean"] for share in numbers["within"]["last"]] == [1 / 8, 5 / 8, 6 / 8, 7 / 8]
    assert numbers["within"]["first"][0]["stderr"] == pytest.approx(0.375)  # of 1/4 and 1
    assert [share["mean"] for share in numbers["ends"].values()] == [5 / 8, 2 / 8, 1 / 8]
    assert [numbers[name]["mean"] for name in ("attractors", "right")] == [2, 6 / 8]
    assert [r["stable"]["mean"] for r in numbers["smooth"]["radius"].values()] == [0.5, 0.75, 1]


@pytest.mark.parametrize("config", [SMALL, GREY])
def test_the_jacobian_is_that_of_finite_differences(config: DKMConfig) -> None:
    m = double(config)
    with torch.no_grad():
        state = m.write(images(config).images(torch.arange(6)).double())
        at, w, step = m.retriever(state), normal(3, 4), 1e-6
        moved = [
            (smooth_step(at, w + step * e) - smooth_step(at, w - step * e)) / (2 * step)
            for e in torch.eye(4, dtype=torch.float64)
        ]
        torch.testing.assert_close(jacobian(at, w), torch.stack(moved, -1), rtol=1e-5, atol=1e-8)


@torch.no_grad()
def test_radii_are_taken_at_the_image_at_the_end_of_recall_and_at_the_end_of_iteration() -> None:
    m, x = model(), images().images(torch.arange(8))
    state, exact = m.write(x[:4]), double(SMALL if m.config == SMALL else m.config)
    at = exact.retriever(state.to(torch.float64))
    found = settle(m.retriever(state), at, x[:4], x[4:], 3)
    w = [at.find(cues.double()) for cues in (x[:4], x[4:], x[:4])]
    for _ in range(3):
        w[2] = smooth_step(at, w[2])
    # the model itself computes in single precision
    torch.testing.assert_close(found, torch.stack([radius(jacobian(at, v)) for v in w]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [SMALL, GREY])
def test_the_table_and_the_figure_are_made_from_the_file(config: DKMConfig) -> None:
    numbers = run(fixed_points, subject(config))
    for cues in numbers["cues"].values():
        assert len(cues["wrong"]["mean"]) == 12
        assert sum(end["mean"] for end in cues["ends"].values()) == pytest.approx(1)
    counted = "wrong pixels" if config is SMALL else "values off by more than a grey level"
    assert fixed_points.table(numbers).rows[1][0] == f"{counted} at the end"
    axes = drawn(fixed_points, a=numbers, b=numbers)[""].axes
    assert len(axes) == 2
    assert axes[0].lines[0].get_ydata().tolist() == numbers["cues"]["stored"]["wrong"]["mean"]


def test_a_model_that_reads_beyond_the_range_of_pixels_is_measured_too() -> None:
    far = model(COLOUR).requires_grad_(False)
    far.decoder.up[-1].bias.fill_(1.6)
    assert len(run(fixed_points, subject(COLOUR, far), steps=3)["cues"]) == 2
