"""Random changes of images: turned, scaled, sheared and shifted a little, or mirrored; on their own device."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .damage import check
from .episodes import check_generator


@torch.no_grad()
def augment(
    x: Float[Tensor, "*b channels height width"],
    binary: bool,
    generator: torch.Generator | None = None,
    *,
    rotation: float = 10.0,
    scale: float = 0.1,
    shear: float = 0.1,
    shift: float = 0.07,
) -> Float[Tensor, "*b channels height width"]:
    """Change every image by an affine map of its own, drawn uniformly: for training only, never for a score.

    rotation: up to so many degrees either way; scale: size times 1 ± scale, and each side by half as much more on
    its own; shear: x moves by up to shear × y; shift: up to this share of the side. Binary images are interpolated,
    then ink ≥ 0.5 is 1, with 0 outside; an image that would come out blank is left as it was, because blank images
    make group normalisation blow up. Others are filled at the border by the border's value. Proof: test_augment_*.
    """
    check(x, rotation=(rotation, 180.0), scale=(scale, 0.6), shear=(shear, 1.0), shift=(shift, 1.0))
    check_generator(generator, x.device)
    flat = x.reshape(-1, *x.shape[-3:])
    if not flat.numel():
        return x.clone()
    theta = _maps(flat, generator, math.radians(rotation), scale, shear, shift)
    grid = (_places(flat) @ theta.mT[:, None]).to(x.dtype)
    y = F.grid_sample(flat, grid, padding_mode="zeros" if binary else "border", align_corners=False)
    if binary:
        y = (y >= 0.5).to(x.dtype)
        y = torch.where((y.sum((1, 2, 3)) > 0)[:, None, None, None], y, flat)
    return y.reshape(x.shape)


@torch.no_grad()
def mirror(
    x: Float[Tensor, "*b channels height width"], generator: torch.Generator | None = None
) -> Float[Tensor, "*b channels height width"]:
    """Exchange left and right of each image with probability ½: for training only. Proof: test_mirror_*."""
    chosen = torch.rand((*x.shape[:-3], 1, 1, 1), generator=generator, device=x.device) < 0.5
    return torch.where(chosen, x.flip(-1), x)


def _places(x: Float[Tensor, "N channels height width"]) -> Float[Tensor, "height width 3"]:
    """The centres (x, y, 1) of all pixels on [−1, 1]; F.affine_grid would make the host wait for a GPU."""
    y, x_ = (
        torch.linspace(1 / n - 1, 1 - 1 / n, n, dtype=x.dtype, device=x.device) for n in (x.shape[-2], x.shape[-1])
    )
    return torch.stack([*torch.meshgrid(x_, y, indexing="xy"), torch.ones_like(y[:, None] * x_)], -1)


def _maps(
    x: Float[Tensor, "N channels height width"],
    generator: torch.Generator | None,
    rotation: float,
    scale: float,
    shear: float,
    shift: float,
) -> Float[Tensor, "N 2 3"]:
    """Draw the maps from places in the new image to places in the old one, both on [−1, 1]."""
    height, width = x.shape[-2:]
    u = 2 * torch.rand(7, len(x), generator=generator, dtype=x.dtype, device=x.device) - 1
    angle, size = rotation * u[0], 1 + scale * u[1]
    a, b = size * (1 + 0.5 * scale * u[2]), size * (1 + 0.5 * scale * u[3])
    cos, sin, k = angle.cos(), angle.sin(), shear * u[4]
    # (old x, old y) = rotation · [[1, k], [0, 1]] · diag(1/a, 1/b) · (new x, new y); in pixels, so that an image
    # that is not square is turned and not bent
    ratio = height / width
    row1 = torch.stack([cos / a, ratio * (cos * k - sin) / b, 2 * shift * u[5]], -1)
    row2 = torch.stack([sin / (a * ratio), (sin * k + cos) / b, 2 * shift * u[6]], -1)
    return torch.stack([row1, row2], 1)
