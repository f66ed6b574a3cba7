"""Fixed points: paths made by hand, a linear model whose Jacobian is known, and finite differences."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases import normal
from kanerva import DKM, CodecConfig, DKMConfig, MemoryState
from kanerva.experiments import base
from kanerva.experiments.fixed_points import (
    FixedPoints,
    Found,
    Smooth,
    count_attractors,
    differ,
    follow,
    in_double,
    jacobian,
    periods,
    radius,
    settle,
    smooth_step,
    summary,
)
from kanerva.experiments.plots import fixed_points as plots
from kanerva.recall.reader import Reader
from kanerva.support.pixels import LEVEL
from trials import COLOUR, images, model, run, subject

SMALL = DKMConfig(image=(1, 8, 8), rows=4, code=6, codec=CodecConfig((4, 8), norm="group", activation="silu"))
GREY = dataclasses.replace(SMALL, likelihood="gaussian")
WORK = FixedPoints(length=5, episodes=2, steps=6)


def result(config: DKMConfig = SMALL, work: FixedPoints = WORK) -> dict[str, Any]:
    return run(work, subject(config))


def path(*cues: str) -> Tensor:
    """Paths of one-pixel images, a digit for each step."""
    return torch.tensor([[float(digit) for digit in cue] for cue in cues]).mT[..., None, None, None]


def linear(size: float) -> tuple[Reader, Tensor, Tensor]:
    """A grey model with a linear codec and a random memory; J, of that spectral radius, and c of its J w + c."""
    m = model(dataclasses.replace(GREY, image=(1, 2, 3))).double().requires_grad_(False)
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
    return Reader(m, state, m.inverse(state)), J, torch.linalg.solve(A, state.R @ c)


# recall by modes


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
    assert differ(a[:, None], b[None]).shape == (3, 3)


def test_attractors_are_counted_once() -> None:
    """Two at 4; two in the cycle 1, 2 at different times; one in 1, 3; one going nowhere."""
    cues = path("123444", "144444", "121212", "212121", "131313", "567890")
    assert count_attractors(cues, periods(cues)) == 3


def test_stored_images_are_compared_with_themselves_and_others_with_the_nearest() -> None:
    stored = torch.tensor([[0.0, 0, 0, 0], [1, 1, 1, 1]]).reshape(2, 1, 2, 2)
    first = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0]]).reshape(2, 1, 2, 2)
    last = torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 0]]).reshape(2, 1, 2, 2)
    smooth = Smooth(torch.zeros(3, 2), torch.zeros(2), first)
    found = follow(torch.stack([first, last]), stored, True, smooth)
    assert found.wrong.tolist() == [[1, 2], [3, 1]]
    assert found.right.tolist() == [False, True]
    assert found.smooth_wrong.tolist() == [1, 2]
    others = follow(torch.stack([last, first]), stored, False, smooth)
    assert others.wrong.tolist() == [[1, 1], [1, 2]]
    assert not bool(others.blank.any())
    assert follow(torch.stack([first, stored]), stored, False, smooth).blank.tolist() == [True, True]


def test_a_summary_by_hand() -> None:
    """Two memories of four cues; 100 pixels."""
    radii = torch.tensor([[2.0, 3.0, 0.5, 0.5], [2.0, 0.5, 0.5, 0.5], [0.1, 0.2, 0.3, 0.4]])
    smooth = Smooth(radii, torch.tensor([0, 0, 0, 0.1]), torch.zeros(4, 1, 1, 1))

    def memory_(first: list[int], last: list[int], period: list[int], attractors: int) -> Found:
        steps = torch.tensor([first, last])
        ends = steps[-1]
        return Found(steps, ends < 3, ends > 5, torch.tensor(period), attractors, torch.tensor(last), smooth)

    numbers = summary(
        [memory_([0, 1, 2, 3], [0, 2, 5, 6], [1, 2, 3, 0], 3), memory_([0] * 4, [1] * 4, [1] * 4, 1)], 100
    )
    assert numbers["wrong"]["mean"] == [0.75, (13 / 4 + 1) / 2]
    assert numbers["first"] == [0, 0, 0, 0, 0, 1, 2, 3]
    assert [share["mean"] for share in numbers["within"]["first"]] == [5 / 8, 6 / 8, 7 / 8, 1]
    assert [share["mean"] for share in numbers["within"]["last"]] == [1 / 8, 5 / 8, 6 / 8, 7 / 8]
    assert numbers["within"]["first"][0]["stderr"] == pytest.approx(0.375)  # of 1/4 and 1
    assert {end: share["mean"] for end, share in numbers["ends"].items()} == {
        "fixed": 5 / 8,
        "cycle": 2 / 8,
        "neither": 1 / 8,
    }
    assert numbers["periods"] == {"0": 1, "1": 5, "2": 1, "3": 1}
    assert numbers["attractors"]["mean"] == 2
    assert numbers["right"]["mean"] == 6 / 8
    assert numbers["blank"]["mean"] == 1 / 8
    assert numbers["smooth"]["settled"]["mean"] == 3 / 4
    numbers = numbers["smooth"]["radius"]
    assert {place: r["stable"]["mean"] for place, r in numbers.items()} == {
        "image": 0.5,
        "recall": 0.75,
        "smooth": 1,
    }
    assert numbers["smooth"]["values"] == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4])
    assert numbers["smooth"]["quantiles"]["0.5"] == pytest.approx(0.25)


# the smooth map


@pytest.mark.parametrize("config", [SMALL, GREY])
def test_the_jacobian_is_that_of_finite_differences(config: DKMConfig) -> None:
    m = in_double(model(config))
    with torch.no_grad():
        state = m.write(images(config).images(torch.arange(6)).double())
        at, w, step = Reader(m, state, m.inverse(state)), normal(3, 4), 1e-6
        moved = [
            (smooth_step(at, w + step * e) - smooth_step(at, w - step * e)) / (2 * step)
            for e in torch.eye(4, dtype=torch.float64)
        ]
        torch.testing.assert_close(jacobian(at, w), torch.stack(moved, -1), rtol=1e-5, atol=1e-8)


def test_the_smooth_map_of_images_has_the_same_radius() -> None:
    """Read from images instead of weights: x → mean p(x | decoder(Rᵀ address(encoder(x)))), 64 numbers to 64."""
    m = in_double(model())
    state = m.write(images().images(torch.arange(6)).double())
    at = Reader(m, state, m.inverse(state))
    w = normal(1, 4)
    for _ in range(200):
        w = smooth_step(at, w)
    x = at.decode(w).logits.sigmoid()
    whole = torch.autograd.functional.jacobian(lambda y: at.decode(at.address(y)).logits.sigmoid(), x)
    assert float(radius(jacobian(at, w))) == pytest.approx(float(radius(whole.reshape(64, 64))), rel=1e-6)


def test_a_linear_model_has_the_jacobian_of_its_matrices() -> None:
    at, J, c = linear(0.8)
    w = normal(5, 4, seed=3)
    torch.testing.assert_close(smooth_step(at, w), w @ J.mT + c)
    torch.testing.assert_close(jacobian(at, w), J.expand(5, 4, 4))
    assert float(radius(jacobian(at, w))[2]) == pytest.approx(0.8)


def test_iteration_ends_at_the_fixed_point_where_there_is_a_stable_one() -> None:
    at, J, c = linear(0.6)
    cues = 0.05 * normal(3, 1, 2, 3, seed=5)
    found = settle(at.model, at.model, at.state, cues, 2 * cues, 200)
    assert float(found.residual.max()) < 1e-8
    w = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - J, c)
    torch.testing.assert_close(found.x, at.decode(w.expand(3, 4)).mode())
    for radii in found.radius:
        assert radii.tolist() == pytest.approx([0.6] * 3)


@torch.no_grad()
def test_radii_are_taken_at_the_image_at_the_end_of_recall_and_at_the_end_of_iteration() -> None:
    m, x = model(), images().images(torch.arange(8))
    state = m.write(x[:4])
    found = settle(m, in_double(m), state, x[:4], x[4:], 3)
    at, w = Reader(in_double(m), state.to(torch.float64), in_double(m).inverse(state.to(torch.float64))), []
    w = [at.address(cues.double()) for cues in (x[:4], x[4:], x[:4])]
    for _ in range(3):
        w[2] = smooth_step(at, w[2])
    # the model itself computes in single precision
    torch.testing.assert_close(
        found.radius, torch.stack([radius(jacobian(at, v)) for v in w]), rtol=1e-4, atol=1e-5
    )
    residual = (smooth_step(at, w[2]) - w[2]).norm(dim=-1) / w[2].norm(dim=-1)
    torch.testing.assert_close(found.residual, residual, rtol=1e-3, atol=1e-6)
    assert torch.equal(found.x, at.decode(w[2]).mode().float())


def test_iteration_does_not_end_where_there_is_none() -> None:
    at, _, _ = linear(1.2)
    cues = 0.05 * normal(3, 1, 2, 3, seed=5)
    found = settle(at.model, at.model, at.state, cues, cues, 3)
    assert float(found.residual.min()) > 1e-3


def test_radius_is_the_largest_modulus() -> None:
    turn = torch.tensor([[0.0, -2.0], [2.0, 0.0]])
    torch.testing.assert_close(
        radius(torch.stack([turn, torch.diag(torch.tensor([0.5, -0.7]))])), torch.tensor([2.0, 0.7])
    )


# the whole


@pytest.mark.parametrize("config", [SMALL, GREY])
def test_numbers_of_a_run(config: DKMConfig) -> None:
    numbers = result(config)
    assert (numbers["length"], numbers["pixels"]) == (5, 64)
    for cues in numbers["cues"].values():
        assert len(cues["wrong"]["mean"]) == 6
        assert len(cues["first"]) == len(cues["smooth"]["radius"]["smooth"]["values"]) == 10
        assert sum(end["mean"] for end in cues["ends"].values()) == pytest.approx(1)
    assert numbers["examples"]["shape"] == [3, 10, 1, 8, 8]
    pictures = base.unpack(numbers["examples"])
    if config is SMALL:
        wrong = (pictures[0] != pictures[1]).reshape(10, -1).sum(-1)
        assert sorted(wrong.tolist()) == numbers["cues"]["stored"]["first"]
    counted = "wrong pixels" if config is SMALL else "values off by more than a grey level"
    assert FixedPoints.table(numbers).rows[1][0] == f"{counted} at the end"


@torch.no_grad()
def test_cues_are_the_stored_images_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Tensor, Tensor]] = []
    m, whole = model(), DKM.recall

    def recall(self: DKM, state: MemoryState, x: Tensor, steps: int, method: str) -> Any:
        asked.append((state.R, x))
        assert method == "least-squares"
        return whole(self, state, x, steps, method)

    monkeypatch.setattr(DKM, "recall", recall)
    subject = base.Subject("small", m, images(), images(), {})
    WORK.run(subject, torch.Generator().manual_seed(0), lambda: None)
    for (R, stored), (again, others) in (asked[:2], asked[2:]):
        assert torch.equal(R, again)
        assert torch.equal(R, m.write(stored).R)
        assert int(differ(others[:, None], stored).min()) > 0


@pytest.mark.parametrize("models", [1, 2])
def test_figures_are_drawn_from_the_file(models: int) -> None:
    numbers = result()
    figures = plots.figures({"models": [{"name": f"model {i}", "result": numbers} for i in range(models)]})
    assert set(figures) == {"", "stability", "pictures"}
    axes = figures[""].axes
    assert len(axes) == 3 * models
    assert axes[0].lines[0].get_ydata().tolist() == numbers["cues"]["stored"]["wrong"]["mean"]
    heights = [bar.get_height() for bar in axes[2].patches]
    assert sum(heights) == pytest.approx(200)
    assert heights[0] == pytest.approx(100 * numbers["cues"]["stored"]["ends"]["fixed"]["mean"])
    for outline in figures["stability"].axes[0].patches:  # ten cues, at each of three places, as area and line
        edges, heights = outline.get_data().edges, outline.get_data().values
        assert heights.sum() == 10
        assert len(edges) == len(heights) + 1
    assert len(figures["stability"].axes[0].patches) == 6
    for figure in figures.values():
        figure.savefig("/dev/null", format="svg")


def test_a_model_that_reads_beyond_the_range_of_pixels_is_measured_too() -> None:
    far = model(COLOUR).requires_grad_(False)
    far.decoder.up[-1].bias.fill_(1.6)
    run(FixedPoints(length=5, episodes=2, steps=3), subject(COLOUR, far))
