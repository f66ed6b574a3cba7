"""Lower an energy in many small vectors at once: `step` by step, where it never rises, or by a `search`.

Steps are those of BFGS. Every vector has its own energy, its own curvature and its own step size, and one
evaluation of them all is one try for each: where the energy does not fall, the vector stays, and the next try is
shorter. So there is no inner loop, and what is called descent is descent by construction, to the last bit.

A search looks for wide valleys rather than deep holes: it descends the mean of the energy around where it is.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Energy = Callable[[Float[Tensor, "*b n"]], Float[Tensor, "*b"]]

# A step must bring this share of the fall that the slope promises (Armijo's rule).
PROMISE = 1e-4

# Adam's step, in units of the root that a search is given, and how fast it forgets slopes and their squares.
RATE, FORGET = 0.3, (0.8, 0.95)


class Point(NamedTuple):
    """Where descent has come to."""

    v: Float[Tensor, "*b n"]
    energy: Float[Tensor, "*b"]
    slope: Float[Tensor, "*b n"]
    """The energy's gradient at v."""
    H: Float[Tensor, "*b n n"]
    """What BFGS knows of the inverse Hessian."""
    size: Float[Tensor, "*b"]
    """How much of the full step −H slope to try next."""


def start(energy: Energy, v: Float[Tensor, "*b n"], H: Float[Tensor, "*b n n"]) -> Point:
    """Begin at v, with a guess of the inverse Hessian."""
    value, slope = evaluate(energy, v)
    return Point(v, value, slope, H, torch.ones_like(value))


def step(energy: Energy, point: Point) -> Point:
    """Try v − size · H slope, and take it where that lowers the energy enough.

        H' = (I − ρ s yᵀ) H (I − ρ y sᵀ) + ρ s sᵀ,   s = v' − v,  y = slope' − slope,  ρ = 1/sᵀy

    Cost: one evaluation with its gradient, and n² a vector. Proof: test_descent_*.
    """
    v, old, slope, H, size = point
    way = -(H @ slope[..., None])[..., 0]
    promised = (slope * way).sum(-1)
    trial = v + size[..., None] * way
    new, slope_there = evaluate(energy, trial)
    taken = new <= old + PROMISE * size * promised
    s, y = trial - v, slope_there - slope
    sy = (s * y).sum(-1)
    # only curvature that is surely positive keeps H positive definite
    bent = taken & (sy > 1e-6 * s.norm(dim=-1) * y.norm(dim=-1))
    rho = torch.where(bent, 1 / sy, 0)
    Hy = (H @ y[..., None])[..., 0]
    stretch = rho * (1 + rho * (y * Hy).sum(-1))
    change = outer(stretch[..., None] * s - rho[..., None] * Hy, s) - outer(s, rho[..., None] * Hy)
    # the parabola through the two energies and the slope says how much shorter the next try should be
    shorter = -promised * size.square() / (2 * (new - old - promised * size))
    shorter = torch.minimum(torch.maximum(shorter.nan_to_num(0), 0.1 * size), 0.5 * size)
    return Point(
        torch.where(taken[..., None], trial, v),
        torch.where(taken, new, old),
        torch.where(taken[..., None], slope_there, slope),
        torch.where(bent[..., None, None], H + change, H),
        torch.where(taken, 1, shorter),
    )


def search(
    energy: Energy,
    v: Float[Tensor, "*b n"],
    root: Float[Tensor, "*#b n n"],
    shakes: Float[Tensor, "steps n"],
    last: float = 1.0,
) -> tuple[Float[Tensor, "*b n"], Float[Tensor, "*b"]]:
    """Lower the mean of an energy around v by Adam; gives the mean place and energy of the later half of its steps.

    Steps and shakes are taken in coordinates u with v = start + root u. A step looks at u + shake, the same for all
    vectors, so that each is searched as if it were alone. Steps shrink towards the share `last` of the first.
    Cost: one evaluation with its gradient a step.
    """

    def moved(u: Float[Tensor, "*c n"]) -> Float[Tensor, "*c n"]:
        return v + (root @ u[..., None])[..., 0]

    u, slope, square = (torch.zeros_like(v) for _ in range(3))
    steps, kept = len(shakes), len(shakes) // 2
    mean_u, mean_energy = torch.zeros_like(v), torch.zeros_like(v[..., 0])
    for number, shake in enumerate(shakes):
        value, now = evaluate(lambda u: energy(moved(u)), u + shake)
        if number >= kept:
            mean_u += u / (steps - kept)
            mean_energy += value / (steps - kept)
        now = now.nan_to_num(0, 0, 0)
        slope = FORGET[0] * slope + (1 - FORGET[0]) * now
        square = FORGET[1] * square + (1 - FORGET[1]) * now.square()
        grown, squares = slope / (1 - FORGET[0] ** (number + 1)), square / (1 - FORGET[1] ** (number + 1))
        u = u - RATE * (1 + (last - 1) * number / steps) * grown / (squares.sqrt() + 1e-3)
    return moved(mean_u), mean_energy


def evaluate(energy: Energy, v: Float[Tensor, "*b n"]) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b n"]]:
    """The energies and their gradients, also where gradients are off."""
    with torch.inference_mode(False), torch.enable_grad():
        v = v.detach().clone().requires_grad_()
        value = energy(v)
        (slope,) = torch.autograd.grad(value.sum(), v)
    return value.detach(), slope


def outer(a: Float[Tensor, "*b n"], b: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n n"]:
    return a[..., :, None] * b[..., None, :]
