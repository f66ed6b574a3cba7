"""What the bytes of an image mean, as models take it: known here and nowhere else.

An image is (channels, height, width): binary in {0, 1}, 1 where there is ink; grey or colour on [−1, 1), where a
byte v is v / 128 − 1, so that 256 levels lie LEVEL apart. Proof: tests/test_pixels.py.
"""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

LEVEL = 1 / 128
"""How far two grey levels lie apart."""
INK = 0.4
"""Ink of at least this share of a pixel's area sets it; none of Omniglot's pixels is at this border."""


def from_bytes(levels: UInt8[Tensor, "..."], binary: bool = False) -> Float[Tensor, "..."]:
    """Bytes from 0 to 255 as pixels of float32; binary ones are 1 from 128 on."""
    return (levels >= 128).float() if binary else levels.float() / 128 - 1


def to_bytes(x: Float[Tensor, "..."], binary: bool = False) -> UInt8[Tensor, "..."]:
    """The byte nearest to each pixel, or to the probability of a binary one: what `from_bytes` takes back."""
    levels = 255 * x if binary else (x + 1) / LEVEL
    return levels.detach().round().clamp(0, 255).to(torch.uint8)


def lower(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The lower edge of the grey level that each pixel lies in."""
    return (x / LEVEL).floor() * LEVEL


def middle(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The middle of the grey level that each pixel lies in."""
    return lower(x) + LEVEL / 2


def dequantise(x: Float[Tensor, "..."], generator: torch.Generator | None = None) -> Float[Tensor, "..."]:
    """Spread each grey level over its width, x + U(0, 1/128), so that a density has something to fit [sec. 4]."""
    spread = x + LEVEL * torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return spread.minimum((x + LEVEL).nextafter(x))  # the sum may be rounded up to the next level


def ink_of(
    levels: UInt8[np.ndarray, "..."], ink: str = "auto"
) -> tuple["np.ndarray[Any, np.dtype[np.float32]]", str]:
    """The share of ink in each pixel of one picture, and whether its ink is dark or light.

    ink: dark, light, or auto: whatever there is less of.
    """
    ink = ("dark" if float(levels.mean()) > 127.5 else "light") if ink == "auto" else ink
    share = (255 - levels if ink == "dark" else levels) / np.float32(255)
    return share.astype(np.float32, copy=False), ink


def of_picture(
    levels: UInt8[np.ndarray, "c h w"], binary: bool, threshold: float = INK, ink: str = "auto"
) -> tuple[Float[Tensor, "c h w"], str]:
    """A picture from a file as a model takes it, and its ink; of binary ones a pixel is 1 from `threshold` on."""
    if not binary:
        return from_bytes(torch.tensor(levels)), ""
    share, ink = ink_of(levels, ink)
    return torch.tensor(share >= threshold).float(), ink


def is_binary(x: Float[Tensor, "..."]) -> bool:
    """Whether all pixels are 0 or 1."""
    return bool(((x == 0) | (x == 1)).all())


def distances(x: Float[Tensor, "*b Q c h w"], stored: Float[Tensor, "*#b T c h w"]) -> Float[Tensor, "*b Q T"]:
    """Wrong pixels, where `stored` images are binary, or root mean square differences."""
    a, b = x.flatten(-3), stored.flatten(-3)
    if is_binary(stored):
        return torch.cdist(a, b, p=1)
    return torch.cdist(a, b) / math.sqrt(a.shape[-1])
