"""Images in files of results, as text, and on sheets."""

import base64
import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..support.pixels import from_bytes, is_binary, to_bytes

Pixels = np.ndarray[Any, np.dtype[np.float32]]


def pack(x: Tensor) -> dict[str, Any]:
    """Images for JSON: bits of binary ones, bytes of others, in base 64."""
    binary = is_binary(x)
    levels = (x.to(torch.uint8) if binary else to_bytes(x)).cpu().numpy()
    data = np.packbits(levels) if binary else levels
    return {"shape": list(x.shape), "binary": binary, "data": base64.b64encode(data.tobytes()).decode()}


def unpack(packed: dict[str, Any]) -> Pixels:
    """What `pack` packed: ink from 0 to 1 for binary images, else from 0 to 1 of the range."""
    data = np.frombuffer(base64.b64decode(packed["data"]), np.uint8)
    count = math.prod(packed["shape"])
    if packed["binary"]:
        flat = np.unpackbits(data)[:count].astype(np.float32)
    else:
        flat = ((from_bytes(torch.tensor(data)) + 1) / 2).numpy()
    return flat.reshape(packed["shape"])


def sheet(pixels: Float[np.ndarray[Any, Any], "rows columns c h w"], binary: bool) -> Pixels:
    """Unpacked images in rows and columns as one picture (height, width, c), a line apart; ink is black."""
    rows, columns, channels, height, width = pixels.shape
    framed = np.full((rows, columns, channels, height + 2, width + 2), 0.25 if binary else 1.0, np.float32)
    framed[..., 1:-1, 1:-1] = pixels
    whole = framed.transpose(0, 3, 1, 4, 2).reshape(rows * (height + 2), columns * (width + 2), channels)
    return 1 - whole if binary else whole
