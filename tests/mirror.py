"""A model whose encoder and decoder invert each other, so that what is in its memories is found at once."""

import torch
from torch import Tensor, nn

from cases import normal
from kanerva import DKM, DKMConfig

SHAPE = (1, 5, 6)
PIXELS = 30


class Encoder(nn.Module):
    """The bits as ±1, and products of neighbours, so that a negative is no negative code; rotated."""

    def __init__(self, rotation: Tensor) -> None:
        super().__init__()
        self.register_buffer("rotation", rotation)

    def forward(self, x: Tensor) -> Tensor:
        bits = 2 * x.flatten(1) - 1
        return torch.cat([bits, bits * bits.roll(1, -1)], -1) @ self.get_buffer("rotation")


class Decoder(nn.Module):
    """Logits of the bits; what the products say is left out."""

    def __init__(self, rotation: Tensor) -> None:
        super().__init__()
        self.register_buffer("rotation", rotation)

    def forward(self, z: Tensor) -> Tensor:
        return 4 * (z @ self.get_buffer("rotation").mT)[..., :PIXELS].unflatten(-1, SHAPE)


def mirror(rows: int = 8, dtype: torch.dtype = torch.float32) -> DKM:
    """A memory of so many rows for codes of 60 numbers."""
    m = DKM(DKMConfig(image=SHAPE, rows=rows, code=2 * PIXELS))
    rotation = torch.linalg.qr(normal(2 * PIXELS, 2 * PIXELS)).Q
    m.encoder, m.decoder = Encoder(rotation), Decoder(rotation)  # type: ignore[assignment]
    with torch.no_grad():
        m.R0.copy_(0.3 * normal(m.memory.rows, 2 * PIXELS, seed=1))
        m.memory.log_noise_var.fill_(-1.0)
    return m.to(dtype).requires_grad_(False)


def bits(*batch: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random images, a third of whose pixels is 1."""
    return (normal(*batch, *SHAPE, seed=seed) > 0.45).to(dtype)
