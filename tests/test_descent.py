"""Descent and search in many small vectors, against what they promise."""

import math

import pytest
import torch
from torch import Tensor

from cases import normal
from kanerva.recall import descent


def bowl(n: int, batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Symmetric positive definite matrices with condition up to 100, and where their bowls have their least."""
    Q, _ = torch.linalg.qr(normal(batch, n, n, seed=seed))
    return (Q * torch.logspace(0, -2, n, dtype=torch.float64)) @ Q.mT, normal(batch, n, seed=seed + 1)


def test_descent_finds_the_least_of_a_bowl() -> None:
    A, least = bowl(6, 20)

    def energy(v: Tensor) -> Tensor:
        return 0.5 * ((v - least) * (A @ (v - least)[..., None])[..., 0]).sum(-1)

    point = descent.start(energy, torch.zeros(20, 6, dtype=torch.float64), torch.eye(6).double().expand(20, 6, 6))
    for _ in range(60):
        point = descent.step(energy, point)
    assert float(point.energy.max()) < 1e-10
    # the curvature was learnt as well
    assert float((point.H @ A - torch.eye(6)).abs().amax()) < 0.3


def test_descent_never_rises_and_keeps_its_curvature_positive() -> None:
    """Also where the landscape is rough, has cliffs, or is not a number."""

    def energy(v: Tensor) -> Tensor:
        rough = v.square().sum(-1) + 3 * torch.sin(5 * v).sum(-1) + 10 * (v[..., 0] > 0.7)
        return torch.where(v[..., 1] > 1.5, math.nan, rough)

    point = descent.start(energy, normal(500, 4), torch.eye(4).double().expand(500, 4, 4))
    for _ in range(40):
        after = descent.step(energy, point)
        known = ~point.energy.isnan()
        assert bool((after.energy <= point.energy)[known].all())
        torch.testing.assert_close(after.energy, energy(after.v), equal_nan=True)
        assert float(torch.linalg.eigvalsh(after.H).min()) > 0
        point = after


def test_descent_solves_each_vector_by_itself() -> None:
    A, least = bowl(3, 8)

    def run(i: slice) -> Tensor:
        def energy(v: Tensor) -> Tensor:
            return ((v - least[i]) * (A[i] @ (v - least[i])[..., None])[..., 0]).sum(-1).cosh()

        point = descent.start(energy, torch.zeros_like(least[i]), torch.eye(3).double().expand(len(least[i]), 3, 3))
        for _ in range(5):
            point = descent.step(energy, point)
        return point.v

    torch.testing.assert_close(run(slice(None))[3:5], run(slice(3, 5)))


def holes(v: Tensor) -> Tensor:
    """A wide valley around 2, and around −1 a hole that is deeper but narrow."""
    return (v - 2).square().sum(-1) - 40 * torch.exp(-4 * (v + 1).square().sum(-1))


def test_a_search_prefers_wide_valleys() -> None:
    start, root = torch.full((30, 2), -0.9).double(), torch.eye(2).double()
    found, energy = descent.search(holes, start, root, 0.7 * normal(400, 2), last=0.1)
    assert float((found - 2).abs().max()) < 0.3
    # the mean around a bowl's least is that of the shakes alone
    assert float((energy - 2 * 0.49).abs().max()) < 0.3
    # where nothing is shaken, the hole is what is found
    stuck, _ = descent.search(holes, start, root, torch.zeros(400, 2).double(), last=0.1)
    assert float((stuck + 1).abs().max()) < 0.3


def test_a_search_goes_as_far_as_its_root_says() -> None:
    """In coordinates that are stretched, the same search."""
    A = torch.tensor([[2.0, 0.3], [0.0, 0.1]]).double()
    shakes = 0.7 * normal(20, 2)
    plain, low = descent.search(holes, torch.zeros(1, 2).double(), torch.eye(2).double()[None], shakes)

    def stretched(v: Tensor) -> Tensor:
        return holes((torch.linalg.inv(A) @ v[..., None])[..., 0])

    found, also = descent.search(stretched, torch.zeros(1, 2).double(), A[None], shakes)
    torch.testing.assert_close(found[0], A @ plain[0])
    torch.testing.assert_close(low, also)


@pytest.mark.parametrize("last", [1.0, 0.1])
def test_a_search_is_adam(last: float) -> None:
    """Against torch's own, a vector at a time: the mean of the later half of places and of energies."""
    start, shakes = normal(4, 2, seed=5), 0.7 * normal(9, 2)
    found, energy = descent.search(holes, start, torch.eye(2).double(), shakes, last)
    for i in range(4):
        v = start[i].clone().requires_grad_()
        adam = torch.optim.Adam([v], lr=descent.RATE, betas=descent.FORGET, eps=1e-3)
        places, energies = [], []
        for number, shake in enumerate(shakes):
            adam.param_groups[0]["lr"] = descent.RATE * (1 + (last - 1) * number / 9)
            adam.zero_grad()
            value = holes(v + shake)
            value.backward()
            places.append(v.detach().clone())
            energies.append(value.detach())
            adam.step()
        torch.testing.assert_close(found[i], torch.stack(places[4:]).mean(0))
        torch.testing.assert_close(energy[i], torch.stack(energies[4:]).mean())


def test_a_search_passes_over_what_is_not_a_number() -> None:
    """Where a slope is not a number, nothing moves; vectors beside it do."""
    start = torch.tensor([[2.0, 0.0], [-3.0, 0.5]]).double()
    root = torch.eye(2).double()
    found, low = descent.search(lambda v: (1 - v).sqrt().sum(-1).square(), start, root, torch.zeros(40, 2).double())
    assert torch.equal(found[0, :1], start[0, :1])
    assert bool(low[0].isnan())
    assert float(found[1, 0]) > -3
    assert bool(found[1].isfinite().all())
