"""Images as they travel: base64 of one byte for each channel and pixel, 0 to 255 whatever the model."""

import base64
import binascii
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...data import own
from ...models import Model
from ...support.pixels import from_bytes, of_picture, to_bytes

# Of a file that is uploaded, before it is decoded.
UPLOAD = 2 * 2**20


def pack(x: Float[Tensor, "c h w"], binary: bool) -> str:
    """An image, or the mean of a distribution over binary ones, as text."""
    return base64.b64encode(to_bytes(x, binary).cpu().numpy().tobytes()).decode()


def unpack(text: Any, model: Model, name: str = "image") -> Float[Tensor, "c h w"]:
    """An image for a model; what `pack` makes of one comes back as it was."""
    return from_bytes(_bytes(text, model.config.image, name), model.config.binary).to(model.like)


def unpack_mask(text: Any, model: Model) -> Float[Tensor, "1 h w"]:
    """Which pixels can be trusted: 0 for not, anything else for yes."""
    return (_bytes(text, (1, *model.config.image[1:]), "mask") > 0).to(model.like)


def _bytes(text: Any, shape: tuple[int, int, int], name: str) -> Tensor:
    size = shape[0] * shape[1] * shape[2]
    try:
        data = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != size:
        raise ValueError(f"{name}: expected {size} bytes as base64, one a channel and pixel, got {len(data)}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape)


def upload(data: bytes, where: str, model: Model, frames: int) -> list[Float[Tensor, "c h w"]]:
    """The pictures of a file in a model's size; for a binary model, ink is the lesser part of each."""
    found = own.upload(data, where, model.config.image, frames)
    return [of_picture(levels, model.config.binary)[0].to(model.like) for levels in found]
