"""Encoder and Decoder: images ↔ codes. They know nothing of memory.

The Kanerva Machine's codec: at each stage a strided 4×4 convolution halves the image (rounding up) and residual
blocks of two 3×3 convolutions follow; a linear map makes the code. The decoder mirrors it, with transposed
convolutions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, pad, relu, silu

from .support import checks

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": relu, "silu": silu}


# Up to so many channels a convolution is faster as a product of patches on a GPU: steps of omniglot-paper go from
# 486 to 565 a second. On a CPU it is slower.
FEW = 4
# Principal components that are sought beyond those that are wanted, which makes the last of these exact.
SPARE = 16
# The variance of a number in such a code. noise_var is 1 at first, so that memories hold such codes from the start.
LOUD = 16.0


@dataclass(frozen=True)
class CodecConfig:
    """The convolutional codec between images and codes."""

    filters: tuple[int, ...] = (16, 16, 16)
    """Channels of each stage; every stage halves the image."""
    style: Literal["relu", "silu"] = "relu"
    """The nonlinearity of the residual blocks: relu (the paper), or silu with GroupNorm before it."""
    linear: bool = False
    """Grey and colour images: also map pixels to the code and back by a matrix each, which start as the principal
    components of the training images. The convolutions learn what those leave out."""

    def __post_init__(self) -> None:
        checks.fields(self, filters=1)


class Residual(nn.Module):
    """h + conv(act(norm(conv(act(norm(h))))))."""

    def __init__(self, width: int, config: CodecConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(width, config), _norm(width, config)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.activation = ACTIVATIONS[config.style]

    def forward(self, h: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        a = self.conv1(self.activation(self.norm1(h)))
        return h + self.conv2(self.activation(self.norm2(a)))


class Down(nn.Conv2d):
    """A 4×4 convolution that halves the image."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after, 4, stride=2, padding=1)

    def forward(self, h: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        return self.product(h) if h.is_cuda and self.in_channels <= FEW else super().forward(h)

    def product(self, h: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        """The same as a product of patches and weights."""
        patches = pad(h, (1, 1, 1, 1)).unfold(2, 4, 2).unfold(3, 4, 2).permute(0, 2, 3, 1, 4, 5)
        return linear(patches.flatten(3), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


class Up(nn.ConvTranspose2d):
    """A transposed 4×4 convolution that doubles the image."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after, 4, stride=2, padding=1)

    def forward(self, h: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:  # type: ignore[override]
        return self.product(h) if h.is_cuda and self.out_channels <= FEW else super().forward(h)

    def product(self, h: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        """The same as a product that makes a 4×4 patch of every pixel; patches overlap by half."""
        patches = (h.permute(0, 2, 3, 1) @ self.weight.flatten(1)).unflatten(-1, (-1, 2, 2, 2, 2))
        # the quarters (a, b) of a patch, 2×2 pixels each, fall on places (i + a, j + b) of a grid of such
        quarters = patches.permute(4, 6, 0, 3, 5, 7, 1, 2)
        q00, q01, q10, q11 = (pad(quarters[a, b], (b, 1 - b, a, 1 - a)) for a in (0, 1) for b in (0, 1))
        grid = q00 + q01 + q10 + q11
        whole = grid.permute(0, 1, 4, 2, 5, 3).flatten(4).flatten(2, 3)[:, :, 1:-1, 1:-1]
        assert self.bias is not None
        return whole + self.bias[:, None, None]


class Encoder(nn.Module):
    """Images to codes, z = e(x)."""

    def __init__(self, image: tuple[int, int, int], code: int, config: CodecConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.style]
        widths = (image[0], *config.filters)
        self.down = nn.ModuleList(Down(a, b) for a, b in pairwise(widths))
        self.blocks = nn.ModuleList(_blocks(width, config) for width in config.filters)
        self.out = nn.Linear(config.filters[-1] * math.prod(sizes(image, config)[-1]), code)
        self.linear = nn.Linear(math.prod(image), code) if config.linear else None
        _start(self)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n code"]:
        found = self.bent(x)
        return found if self.linear is None else found + _precisely(self.linear, x.flatten(1))

    def bent(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n code"]:
        """What the convolutions make of images."""
        h = x
        for i, (down, blocks) in enumerate(zip(self.down, self.blocks, strict=True)):
            # an odd side is padded once more at its end, so that n becomes ⌈n/2⌉
            h = pad(h, (0, h.shape[-1] % 2, 0, h.shape[-2] % 2))
            h = blocks(down(self.activation(h) if i else h))
        return self.out(self.activation(h).flatten(1))


class Decoder(nn.Module):
    """Codes to the parameters of a likelihood: logits, or means, and `more` channels, which are zero at first.

    precise: the last layer is not run in bfloat16, where autocast has the others in it. Near ±1, bfloat16 has
    numbers half a grey level apart: rounding to them cost a model of mazes 0.03 bits per dimension, and without it
    0.003 are left.
    """

    def __init__(
        self, image: tuple[int, int, int], code: int, config: CodecConfig, more: int = 0, precise: bool = False
    ) -> None:
        super().__init__()
        self.precise = precise
        self.activation = ACTIVATIONS[config.style]
        self.sizes = sizes(image, config)[::-1]
        widths = (*config.filters[::-1], image[0] + more)
        self.start = nn.Linear(code, widths[0] * math.prod(self.sizes[0]))
        self.blocks = nn.ModuleList(_blocks(width, config) for width in widths[:-1])
        up = [Up(a, b) for a, b in pairwise(widths)]
        self.up = nn.ModuleList(up)
        self.image = image
        self.linear = nn.Linear(code, math.prod(image)) if config.linear else None
        _start(self)
        nn.init.zeros_(up[-1].weight.detach()[:, image[0] :])

    def forward(self, z: Float[Tensor, "n code"]) -> Float[Tensor, "n c h w"]:
        h = self.bent(z)
        if self.linear is None:
            return h
        straight = _precisely(self.linear, z).unflatten(1, self.image)
        return torch.cat([h[:, : self.image[0]] + straight, h[:, self.image[0] :]], 1)

    def bent(self, z: Float[Tensor, "n code"]) -> Float[Tensor, "n c h w"]:
        """What the convolutions make of codes."""
        h = self.start(z).unflatten(1, (-1, *self.sizes[0])).contiguous(memory_format=torch.channels_last)
        for i, (blocks, up) in enumerate(zip(self.blocks, self.up, strict=True)):
            h = self.activation(blocks(h))
            h = up(h) if i + 1 < len(self.up) else self.last(h)
            height, width = self.sizes[i + 1]
            h = h[..., :height, :width]
        return h

    def last(self, h: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        """The last layer."""
        return _precisely(self.up[-1], h) if self.precise else self.up[-1](h)


@torch.no_grad()
def start_linear(encoder: Encoder, decoder: Decoder, x: Float[Tensor, "n c h w"]) -> None:
    """Start the matrices as the principal components P of images, and the convolutions at zero.

        e(x) = s Pᵀ(x − mean),   d(z) = P z / s + mean,   E‖e(x)‖² = LOUD C

    P has orthonormal columns, so that an error in a code is as large as that of the image, up to s. It is found by
    random projections, always the same ones. Where there are fewer images than numbers in a code, the columns that
    are left are zero. Cost: that of 15 passes of the matrix. Proof: test_a_linear_codec_starts_*.
    """
    assert encoder.linear is not None
    assert decoder.linear is not None
    flat = x.flatten(1).float().cpu()
    mean, C = flat.mean(0), decoder.linear.in_features
    rank = min(C, len(flat) - 1, flat.shape[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        P = torch.svd_lowrank(flat - mean, min(rank + SPARE, *flat.shape), niter=5)[2][:, :rank]
    length = ((flat - mean) @ P).square().sum(-1).mean()
    s = (LOUD * C / length).sqrt() if length else torch.ones_like(length)
    for layer in (encoder.linear, encoder.out, decoder.linear):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    nn.init.zeros_(decoder.up[-1].weight)  # type: ignore[arg-type]
    encoder.linear.weight[:rank] = (s * P.mT).to(encoder.linear.weight)
    encoder.linear.bias[:rank] = (-s * P.mT @ mean).to(encoder.linear.bias)
    decoder.linear.weight[:, :rank] = (P / s).to(decoder.linear.weight)
    decoder.linear.bias.copy_(mean)


def _precisely(layer: nn.Module, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A layer in its own precision, whatever autocast says."""
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(next(layer.parameters()).dtype))


def sizes(image: tuple[int, int, int], config: CodecConfig) -> list[tuple[int, int]]:
    """Heights and widths from the image to the last stage: 28, 14, 7, 4."""
    result = [image[1:]]
    for _ in config.filters:
        height, width = result[-1]
        result.append((-(-height // 2), -(-width // 2)))
    return result


def _blocks(width: int, config: CodecConfig) -> nn.Sequential:
    return nn.Sequential(Residual(width, config))


def _norm(width: int, config: CodecConfig) -> nn.Module:
    # eight groups, or as many as divide the width
    return nn.GroupNorm(math.gcd(8, width), width) if config.style == "silu" else nn.Identity()


def _start(module: nn.Module) -> None:
    """Glorot's initialisation, biases at zero [app. B]; channels last, which is up to twice as fast on a CPU."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
