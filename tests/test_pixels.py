"""Bytes become pixels and bytes again, levels have edges, ink is what there is less of, and distances are right."""

import numpy as np
import pytest
import torch

from kanerva.support import pixels

LEVELS = torch.arange(256, dtype=torch.uint8)


def test_all_grey_levels_come_back() -> None:
    x = pixels.from_bytes(LEVELS)
    assert x.dtype == torch.float32
    assert torch.equal(x.double(), LEVELS.double() / 128 - 1)  # exactly
    assert torch.equal(pixels.to_bytes(x), LEVELS)
    assert torch.equal(pixels.to_bytes(x.double()), LEVELS)
    assert pixels.to_bytes(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]


def test_binary_pixels_and_probabilities_come_back() -> None:
    assert torch.equal(pixels.from_bytes(LEVELS, binary=True), (LEVELS >= 128).float())
    x = torch.tensor([0.0, 1.0])
    assert torch.equal(pixels.from_bytes(pixels.to_bytes(x, binary=True), binary=True), x)
    assert torch.equal(pixels.to_bytes(LEVELS / 255, binary=True), LEVELS)


def test_a_level_is_as_wide_as_two_bytes_lie_apart() -> None:
    x = pixels.from_bytes(LEVELS)
    spread = pixels.dequantise(x.expand(1000, -1), torch.Generator().manual_seed(0))
    assert torch.equal(pixels.lower(spread), x.expand(1000, -1))
    assert torch.equal(pixels.middle(spread), x.expand(1000, -1) + pixels.LEVEL / 2)
    assert (spread.amax(0) - x).min() > 0.98 * pixels.LEVEL


@pytest.mark.parametrize("ink", ["dark", "light"])
def test_ink_is_what_there_is_less_of(ink: str) -> None:
    levels = np.full((4, 4, 1), 255 if ink == "dark" else 0, np.uint8)
    levels[1] = 255 - levels[1]
    share, found = pixels.ink_of(levels)
    assert found == ink
    assert share[..., 0].tolist() == [[0] * 4, [1] * 4, [0] * 4, [0] * 4]
    other = {"dark": "light", "light": "dark"}[ink]
    assert np.array_equal(pixels.ink_of(levels, other)[0], 1 - share)


def test_distances_are_wrong_pixels_or_root_mean_squares() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = (torch.rand(2, n, 3, 4, 5, generator=random) for n in (6, 7))
    apart = (x[:, :, None] - y[:, None]).flatten(3)
    assert torch.allclose(pixels.distances(x, y), apart.square().mean(-1).sqrt(), atol=1e-6)
    x, y = x.round(), y.round()
    assert torch.equal(pixels.distances(x, y), (x[:, :, None] != y[:, None]).flatten(3).sum(-1).float())
