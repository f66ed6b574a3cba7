"""What may happen to an image before it is recalled: bits flip, noise is added, parts are lost.

Each function gives the cue and a mask that is 1 where its pixels can be trusted, or None where nobody knows.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..support import checks
from ..support.pixels import is_binary


class Cue(NamedTuple):
    """A corrupted image, and which of its pixels are known to be good."""

    x: Float[Tensor, "*b c h w"]
    mask: Float[Tensor, "*b 1 h w"] | None


def flips(x: Float[Tensor, "*b c h w"], share: float, generator: torch.Generator | None = None) -> Cue:
    """Flip a share of the bits of binary images [sec. 4]."""
    check(x, True, share=(share, 1.0))
    return Cue(torch.where(_uniform(x, generator) < share, 1 - x, x), None)


def salt_and_pepper(x: Float[Tensor, "*b c h w"], share: float, generator: torch.Generator | None = None) -> Cue:
    """Put black or white, by the toss of a coin, into a share of the pixels of binary images."""
    check(x, True, share=(share, 1.0))
    coin = (_uniform(x, generator) < 0.5).to(x)
    return Cue(torch.where(_uniform(x, generator) < share, coin, x), None)


def noise(x: Float[Tensor, "*b c h w"], scale: float, generator: torch.Generator | None = None) -> Cue:
    """Add Gaussian noise of a standard deviation [sec. 4]; what leaves ±1.5 is cut off."""
    check(x, scale=(scale, math.inf))
    added = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return Cue((x + scale * added).clamp(-1.5, 1.5), None)


def block(x: Float[Tensor, "*b c h w"], share: float, generator: torch.Generator | None = None) -> Cue:
    """Erase one rectangle at a random place, a share of the image's area and of its proportions."""
    check(x, share=(share, 1.0))
    *batch, _, height, width = x.shape
    tall, wide = (min(n, round(n * share**0.5)) for n in (height, width))
    top = torch.randint(height - tall + 1, (*batch, 1, 1, 1), generator=generator, device=x.device)
    left = torch.randint(width - wide + 1, (*batch, 1, 1, 1), generator=generator, device=x.device)
    i, j = torch.arange(height, device=x.device)[:, None], torch.arange(width, device=x.device)
    lost = (i >= top) & (i < top + tall) & (j >= left) & (j < left + wide)
    return erase(x, (~lost).to(x))


def half(x: Float[Tensor, "*b c h w"], side: str = "right") -> Cue:
    """Erase one half: left, right, top or bottom."""
    check(x)
    height, width = x.shape[-2:]
    mask = torch.ones(*x.shape[:-3], 1, height, width, dtype=x.dtype, device=x.device)
    parts = {
        "left": mask[..., : width // 2],
        "right": mask[..., width // 2 :],
        "top": mask[..., : height // 2, :],
        "bottom": mask[..., height // 2 :, :],
    }
    if side not in parts:
        raise ValueError(f"side: expected one of {', '.join(parts)}, got {side!r}")
    parts[side].zero_()
    return erase(x, mask)


def erase(x: Float[Tensor, "*b c h w"], mask: Float[Tensor, "*b 1 h w"]) -> Cue:
    """Set every pixel outside of a mask to 0."""
    return Cue(torch.where(mask.bool(), x, 0), mask)


def check(x: Any, binary: bool = False, **amounts: tuple[Any, float]) -> None:
    """Check that x are images, `binary`: of 0 and 1; and amounts by their names, with the most that each can be."""
    for name, (value, most) in amounts.items():
        if not isinstance(value, int | float) or not 0 <= value <= most:
            raise ValueError(f"{name}: expected a number from 0 to {most:g}, got {value!r}")
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 3:
        came = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x: expected floating point images (*b, channels, height, width), got {came}")
    if binary and checks.deep(x) and not is_binary(x):
        raise ValueError("x: expected binary images, of 0 and 1, got other values; noise is for grey and colour")


def _uniform(x: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
