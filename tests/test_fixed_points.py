"""Fixed points: paths made by hand, a linear model whose Jacobian is known, and finite differences."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from cases import normal
from kanerva import DKM, CodecConfig, DKMConfig, MemoryState
from kanerva.lab import fixed_points
from kanerva.lab.fixed_points import (
    Found,
    count_attractors,
    differ,
    follow,
    jacobian,
    periods,
    radius,
    settle,
    smooth_step,
    summary,
)
from kanerva.recall.retriever import Retriever
from kanerva.support.pixels import LEVEL
from trials import COLOUR, drawn, images, model, run, subject

SMALL = DKMConfig(image=(1, 8, 8), rows=4, code=6, codec=CodecConfig((4, 8), style="silu"))
GREY = dataclasses.replace(SMALL, likelihood="gaussian")


def path(*cues: str) -> Tensor:
    """Paths of one-pixel images, a digit for each step."""
    return torch.tensor([[float(digit) for digit in cue] for cue in cues]).mT[..., None, None, None]


def double(config: DKMConfig) -> DKM:
    return model(config).double().requires_grad_(False)


def linear(size: float) -> tuple[Retriever, Tensor, Tensor]:
    """A grey model with a linear codec and a random memory; J, of that spectral radius, and c of its J w + c."""
    m = double(dataclasses.replace(GREY, image=(1, 2, 3)))
    state = MemoryState(0.3 * normal(4, 6, seed=2), torch.eye(4, dtype=torch.float64))
    A = state.R @ state.R.mT + m.noise_var * torch.eye(4, dtype=torch.float64)
    D, E, c = 0.02 * normal(6, 6), normal(6, 6, seed=1), 0.1 * normal(6, seed=4)
    E = E * size / radius(torch.linalg.solve(A, state.R @ E @ D @ state.R.mT))
    first, last = nn.Linear(6, 6).double(), nn.Linear(6, 6).double()
    m.decoder, m.encoder = nn.Sequential(first, nn.Unflatten(1, (1, 2, 3))), nn.Sequential(nn.Flatten(), last)  # type: ignore[assignment]
    for layer, weight, bias in ((first, D, 0 * c), (last, E, c)):
        layer.weight.data, layer.bias.data = weight, bias
    m.requires_grad_(False)
    J = torch.linalg.solve(A, state.R @ E @ D @ state.R.mT)
    return m.retriever(state), J, torch.linalg.solve(A, state.R @ c)


def test_periods_of_paths() -> None:
    cues = path("123444", "121212", "412312", "123456", "111112")
    assert periods(cues).tolist() == [1, 2, 3, 0, 0]
    assert periods(cues[:1]).tolist() == [0] * 5


def test_a_grey_level_is_no_difference() -> None:
    a = normal(3, 1, 4, 5, dtype=torch.float32)
    b = a.clone()
    b[0, 0, 0, 0] += 0.9 * LEVEL
    b[1, 0, :2, 0] += 1.1 * LEVEL
    b[2] -= 0.5
    assert differ(a, b).tolist() == [0, 2, 20]


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
    assert not bool(others.blank.any())
    assert follow(torch.stack([first, stored]), stored, False, torch.zeros(3, 2)).blank.tolist() == [True, True]


def test_a_summary_by_hand() -> None:
    """Two memories of four cues; 100 pixels."""
    radii = torch.tensor([[2.0, 3.0, 0.5, 0.5], [2.0, 0.5, 0.5, 0.5], [0.1, 0.2, 0.3, 0.4]])

    def made(first: list[int], last: list[int], period: list[int], attractors: int) -> Found:
        ends = torch.tensor(last)
        return Found(torch.tensor([first, last]), ends < 3, ends > 5, torch.tensor(period), attractors, radii)

    memories = [made([0, 1, 2, 3], [0, 2, 5, 6], [1, 2, 3, 0], 3), made([0] * 4, [1] * 4, [1] * 4, 1)]
    numbers = summary(memories, 100)
    assert numbers["wrong"]["mean"] == [0.75, (13 / 4 + 1) / 2]
    assert numbers["first"] == [0, 0, 0, 0, 0, 1, 2, 3]
    assert [share["mean"] for share in numbers["within"]["first"]] == [5 / 8, 6 / 8, 7 / 8, 1]
    assert [share["mean"] for share in numbers["within"]["last"]] == [1 / 8, 5 / 8, 6 / 8, 7 / 8]
    assert numbers["within"]["first"][0]["stderr"] == pytest.approx(0.375)  # of 1/4 and 1
    assert [share["mean"] for share in numbers["ends"].values()] == [5 / 8, 2 / 8, 1 / 8]
    assert [numbers[name]["mean"] for name in ("attractors", "right", "blank")] == [2, 6 / 8, 1 / 8]
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


def test_the_smooth_map_of_images_has_the_same_radius() -> None:
    """Read from images instead of weights: x → mean p(x | decoder(Rᵀ address(encoder(x)))), 64 numbers to 64."""
    m = double(SMALL)
    state = m.write(images().images(torch.arange(6)).double())
    at, w = m.retriever(state), normal(1, 4)
    for _ in range(200):
        w = smooth_step(at, w)
    x = at.read(w).logits.sigmoid()
    whole = torch.autograd.functional.jacobian(lambda y: at.read(at.find(y)).logits.sigmoid(), x)
    assert float(radius(jacobian(at, w))) == pytest.approx(float(radius(whole.reshape(64, 64))), rel=1e-6)


def test_a_linear_model_has_the_jacobian_of_its_matrices() -> None:
    at, J, c = linear(0.8)
    w = normal(5, 4, seed=3)
    torch.testing.assert_close(smooth_step(at, w), w @ J.mT + c)
    torch.testing.assert_close(jacobian(at, w), J.expand(5, 4, 4))
    assert float(radius(jacobian(at, w))[2]) == pytest.approx(0.8)


@torch.no_grad()
def test_radii_are_taken_at_the_image_at_the_end_of_recall_and_at_the_end_of_iteration() -> None:
    m, x = model(), images().images(torch.arange(8))
    state, exact = m.write(x[:4]), double(SMALL if m.config == SMALL else m.config)
    found = settle(m, exact, state, x[:4], x[4:], 3)
    at = exact.retriever(state.to(torch.float64))
    w = [at.find(cues.double()) for cues in (x[:4], x[4:], x[:4])]
    for _ in range(3):
        w[2] = smooth_step(at, w[2])
    # the model itself computes in single precision
    torch.testing.assert_close(found, torch.stack([radius(jacobian(at, v)) for v in w]), rtol=1e-4, atol=1e-5)


def test_radius_is_the_largest_modulus() -> None:
    turn = torch.stack([torch.tensor([[0.0, -2.0], [2.0, 0.0]]), torch.diag(torch.tensor([0.5, -0.7]))])
    torch.testing.assert_close(radius(turn), torch.tensor([2.0, 0.7]))


@pytest.mark.parametrize("config", [SMALL, GREY])
def test_numbers_of_a_run(config: DKMConfig) -> None:
    numbers = run(fixed_points, subject(config))
    assert (numbers["length"], numbers["pixels"]) == (6, 64)
    for cues in numbers["cues"].values():
        assert len(cues["wrong"]["mean"]) == len(cues["first"]) == 12
        assert sum(end["mean"] for end in cues["ends"].values()) == pytest.approx(1)
    assert numbers["cues"]["others"]["wrong"]["mean"][0] > 0
    counted = "wrong pixels" if config is SMALL else "values off by more than a grey level"
    assert fixed_points.table(numbers).rows[1][0] == f"{counted} at the end"


def test_the_figure_is_drawn_from_the_file() -> None:
    numbers = run(fixed_points, subject(SMALL))
    axes = drawn(fixed_points, a=numbers, b=numbers)[""].axes
    assert len(axes) == 6
    assert axes[0].lines[0].get_ydata().tolist() == numbers["cues"]["stored"]["wrong"]["mean"]
    heights = [bar.get_height() for bar in axes[2].patches]
    assert sum(heights) == pytest.approx(200)
    assert heights[0] == pytest.approx(100 * numbers["cues"]["stored"]["ends"]["fixed"]["mean"])


def test_a_model_that_reads_beyond_the_range_of_pixels_is_measured_too() -> None:
    far = model(COLOUR).requires_grad_(False)
    far.decoder.up[-1].bias.fill_(1.6)
    assert len(run(fixed_points, subject(COLOUR, far), steps=3)["cues"]) == 2
