"""Corruptions: as much of an image is changed as was asked for, and the mask says which pixels are good."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cases import generator
from kanerva.data import damage

LARGE = (40, 1, 50, 60)  # 120,000 pixels: a share is exact to 0.0015 at one standard deviation


def binary(*shape: int, ink: float = 0.3) -> Tensor:
    return (torch.rand(shape, generator=generator(1)) < ink).float()


@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 1.0])
def test_a_share_of_bits_is_flipped_whatever_they_are(share: float) -> None:
    """Salt and pepper flip half of what they hit."""
    x = binary(*LARGE)
    for corrupt, hit in ((damage.flips, 1.0), (damage.salt_and_pepper, 0.5)):
        cue, mask = corrupt(x, share, generator())
        assert mask is None
        assert set(cue.unique().tolist()) <= {0.0, 1.0}
        for value in (0, 1):
            flipped = (cue != x)[x == value].float().mean()
            assert flipped == pytest.approx(hit * share, abs=0.013)  # five standard deviations of 36,000 coins


def test_noise_has_its_standard_deviation_and_stays_in_range() -> None:
    x = torch.rand(LARGE, generator=generator(1)) - 0.5
    cue, mask = damage.noise(x, 0.15, generator())
    assert mask is None
    assert (cue - x).std() == pytest.approx(0.15, rel=0.01)
    assert (cue - x).mean() == pytest.approx(0, abs=0.0025)
    loud = damage.noise(torch.ones(LARGE), 5.0, generator()).x
    assert (float(loud.amin()), float(loud.amax())) == (-1.5, 1.5)


@pytest.mark.parametrize(("share", "tall", "wide"), [(0.25, 4, 5), (0.0, 0, 0), (1.0, 8, 10), (0.5, 6, 7)])
def test_a_block_is_one_rectangle_of_its_area(share: float, tall: int, wide: int) -> None:
    x = torch.rand(200, 3, 8, 10, generator=generator(1)) + 0.1
    cue, mask = damage.block(x, share, generator())
    assert mask is not None
    assert mask.shape == (200, 1, 8, 10)
    assert bool((((1 - mask).sum((-3, -2, -1))) == tall * wide).all())
    rows, columns = 1 - mask[:, 0].amin(-1), 1 - mask[:, 0].amin(-2)
    assert bool((rows.sum(-1) == tall).all())
    assert bool((columns.sum(-1) == wide).all())
    assert torch.equal(cue, x * mask)
    places = {(4, 5): 5 * 6, (6, 7): 3 * 4}.get((tall, wide), 1)
    assert len(mask.flatten(1).unique(dim=0)) == places  # every place that there is


@pytest.mark.parametrize("side", ["left", "right", "top", "bottom"])
def test_half_is_erased_and_half_is_kept(side: str) -> None:
    x = torch.rand(2, 3, 3, 4, 7, generator=generator()) + 0.1
    cue, mask = damage.half(x, side)
    assert mask is not None
    assert mask.shape == (2, 3, 1, 4, 7)
    kept = {
        "left": (slice(None), slice(3, None)),
        "right": (slice(None), slice(None, 3)),
        "top": (slice(2, None), slice(None)),
        "bottom": (slice(None, 2), slice(None)),
    }[side]
    expected = torch.zeros(4, 7)
    expected[kept] = 1
    assert torch.equal(mask, expected.expand_as(mask))
    assert torch.equal(cue, x * expected)
    with pytest.raises(ValueError, match=r"side: .* got 'middle'"):
        damage.half(x, "middle")


@pytest.mark.parametrize("name", ["flips", "salt_and_pepper", "noise", "block"])
def test_corruptions_repeat_with_their_generator_and_leave_their_input_alone(name: str) -> None:
    corrupt = getattr(damage, name)
    x = binary(3, 2, 1, 12, 12)
    before = x.clone()
    first, again, other = (corrupt(x, 0.3, generator(seed)).x for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", ["flips", "salt_and_pepper", "noise", "block"])
@pytest.mark.usefixtures("no_shape_checks")
def test_what_are_no_images_is_refused(name: str) -> None:
    corrupt: Any = getattr(damage, name)
    for x, came in ((3, "int"), ([[[1.0]]], "list"), (torch.ones(1, 2, 2, dtype=torch.uint8), "torch.uint8")):
        with pytest.raises(TypeError, match=f"x: expected floating point images .* got {came}"):
            corrupt(x, 0.1)
    with pytest.raises(ValueError, match=r"expected a number from 0 to .*, got 'much'"):
        corrupt(binary(1, 4, 4), "much")
    if name in ("flips", "salt_and_pepper"):
        with pytest.raises(ValueError, match="x: expected binary images, of 0 and 1, got other values"):
            corrupt(torch.full((1, 4, 4), 0.5), 0.1)
