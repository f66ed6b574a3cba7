"""Images in rows on a PNG file."""

from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from ..data import ClassImages
from ..data.own import write_sheet
from ..support.files import atomic_write
from ..support.pixels import to_bytes


def preview(images: ClassImages, path: Path) -> None:
    """Write eight images each of twelve classes."""
    index = images.start[:12, None] + torch.arange(8) % images.count[:12, None]
    write(images.pixels[index] * (255 if images.binary else 1), path)


def in_rows(x: Float[Tensor, "n c h w"], binary: bool, columns: int = 8) -> UInt8[Tensor, "rows columns c H W"]:
    """Images of a model three times as large, eight in a row, with a line around each; ink is black on white."""
    levels = to_bytes(1 - x if binary else x, binary).cpu()
    levels = levels.repeat_interleave(3, -2).repeat_interleave(3, -1)
    blank = levels.new_full((-len(x) % columns, *levels.shape[1:]), 255)
    return pad(torch.cat([levels, blank]), (1, 1, 1, 1), value=192).unflatten(0, (-1, columns))


def mosaic(x: UInt8[Tensor, "rows columns c h w"]) -> Image.Image:
    """Images in rows and columns as one picture."""
    rows, columns, channels, height, width = x.shape
    x = x.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)
    return Image.fromarray(x.squeeze(-1).numpy())


def write(x: UInt8[Tensor, "rows columns c h w"], path: Path) -> None:
    """Write a PNG of images in rows and columns."""
    with atomic_write(path) as file:
        write_sheet(mosaic(x), file)
