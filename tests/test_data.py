"""Episodes are drawn as they should be, augmentation is gentle, and `load` finds what is asked for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import generator
from conftest import cuda
from kanerva.data import ClassImages, augment, episodes, load, mirror

COUNTS = (1, 2, 7, 20, 3)
STILL = {"rotation": 0.0, "scale": 0.0, "shear": 0.0, "shift": 0.0}


def numbered(counts: tuple[int, ...] = COUNTS, split: str = "train") -> ClassImages:
    """Images of 1×1×2 that say who they are: (class, number within the class), not in order."""
    labels = np.repeat(np.arange(len(counts)), counts)
    which = np.concatenate([np.arange(n) for n in counts])
    order = np.random.default_rng(1).permutation(len(labels))
    pixels = np.stack([labels, which], -1).astype(np.uint8)[order].reshape(-1, 1, 1, 2)
    return ClassImages.from_labels(pixels, labels[order], binary=False, name="numbered", split=split)


def identities(x: Tensor) -> tuple[Tensor, Tensor]:
    """Which class and which of its images, from `numbered`."""
    values = ((x + 1) * 128).long()
    return values[..., 0, 0, 0], values[..., 0, 0, 1]


def test_images_are_sorted_by_class() -> None:
    images = numbered()
    assert images.count.tolist() == list(COUNTS)
    assert images.start.tolist() == [0, 1, 3, 10, 30]
    assert (len(images), images.num_classes, images.shape) == (33, 5, (1, 1, 2))
    assert images.labels == ("0", "1", "2", "3", "4")
    for c, (start, count) in enumerate(zip(images.start, images.count, strict=True)):
        of_class = images.pixels[start : start + count]
        assert (of_class[..., 0] == c).all()
        assert sorted(of_class[..., 1].flatten().tolist()) == list(range(count))
    assert "numbered/train: 33 grey 1×1×2 in 5 classes" in repr(images)


@pytest.mark.parametrize(("batch", "length"), [(3, 5), (1, 1)])
@pytest.mark.parametrize("classes", [None, 1, 5])
def test_episodes_have_the_shape_asked_for(batch: int, length: int, classes: int | None, device: str) -> None:
    x = episodes(numbered().to(device), batch, length, classes, generator(0, device))
    assert x.shape == (batch, length, 1, 1, 2)
    assert x.device.type == device
    assert x.dtype == torch.float32


def evenly(which: Tensor, count: int) -> None:
    """Every image of a class comes as often as the others: chi squared within five standard deviations."""
    times = torch.bincount(which, minlength=count).double()
    assert len(times) == count
    expected = times.sum() / count
    assert ((times - expected) ** 2 / expected).sum() < count - 1 + 5 * (2 * count) ** 0.5


@pytest.mark.parametrize("classes", [None, 1, 3, 5])
def test_episodes_draw_classes_then_images_uniformly(classes: int | None, device: str) -> None:
    """Every image of class c comes with probability 1/(5 count[c]), however many classes an episode has."""
    B, T = 4000, 10
    label, which = identities(episodes(numbered().to(device), B, T, classes, generator(1, device)).cpu())
    for c, count in enumerate(COUNTS):
        # Episodes are independent, images of one are not: five standard errors of the mean over episodes.
        share = (label == c).double().mean(1)
        assert abs(share.mean() - 1 / 5) < 5 * share.std() / B**0.5 + 1e-12
        evenly(which[label == c], count)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_episodes_of_n_classes_keep_to_n_classes(n: int, device: str) -> None:
    label, _ = identities(episodes(numbered().to(device), 500, 60, n, generator(2, device)))
    found = torch.stack([(label == c).any(1) for c in range(5)], 1).sum(1)
    assert int(found.max()) == int(found.min()) == n  # 60 images miss one of 4 classes once in 3e7
    sets = {tuple(sorted(set(row))) for row in label.tolist()}
    assert len(sets) == {1: 5, 2: 10, 4: 5}[n]  # all sets of n of 5 occur


@pytest.mark.parametrize("classes", [None, 3, 5])
def test_episodes_of_distinct_images_have_none_twice(classes: int | None, device: str) -> None:
    """And are drawn as the others are: the first of an episode is of every class alike, then of its images."""
    T = sum(sorted(COUNTS)[: classes or 5])
    label, which = identities(episodes(numbered().to(device), 4000, T, classes, generator(1, device), True).cpu())
    seen = label * 1000 + which
    assert all(len(set(row)) == T for row in seen.tolist())
    if classes:
        assert all(len(set(row)) <= classes for row in label.tolist())
    first, one = label[:, 0], which[:, 0]
    for c, count in enumerate(COUNTS):
        assert abs((first == c).double().mean() - 1 / 5) < 5 * (0.2 * 0.8 / 4000) ** 0.5
        evenly(one[first == c], count)


def test_episodes_follow_the_generator(device: str) -> None:
    images = numbered().to(device)
    one = [episodes(images, 4, 8, n, generator(3, device)) for n in (None, 2)]
    two = [episodes(images, 4, 8, n, generator(3, device)) for n in (None, 2)]
    other = [episodes(images, 4, 8, n, generator(4, device)) for n in (None, 2)]
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    g = generator(3, device)
    assert not torch.equal(episodes(images, 4, 8, generator=g), episodes(images, 4, 8, generator=g))


@cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_gpu() -> None:
    images = numbered().to("cuda")
    assert images.sizes  # the one thing that is waited for
    g = generator(0, "cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        x = episodes(images, 4, 8, generator=g)
        episodes(images, 4, 8, 2, g)
        episodes(images, 4, 2, 2, g, distinct=True)
        augment(x, binary=False, generator=g)
        augment(x, binary=True, generator=g)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def strokes(n: int = 64, side: int = 28) -> Tensor:
    """Binary images of a thick cross somewhere near the middle."""
    x = torch.zeros(n, 1, side, side)
    at = torch.randint(side // 3, 2 * side // 3, (n, 2), generator=generator(9)).tolist()
    for image, (i, j) in zip(x, at, strict=True):
        image[0, i : i + 3, 4:-4] = 1
        image[0, 4:-4, j : j + 3] = 1
    return x


def test_augment_keeps_kind_and_shape(device: str) -> None:
    x = strokes().reshape(4, 16, 1, 28, 28).to(device)
    y = augment(x, binary=True, generator=generator(0, device))
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.unique().tolist() == [0, 1]
    assert torch.equal(y, augment(x, binary=True, generator=generator(0, device)))
    assert abs(float(y.mean() / x.mean()) - 1) < 0.05  # ink is neither lost nor made
    changed = (y != x).any(-1).any(-1).flatten()
    assert changed.all()  # each image
    moves = (y - x).flatten(0, 2).flatten(1)
    assert len(moves.unique(dim=0)) == len(moves)  # in its own way


def test_augment_keeps_the_original_where_nothing_would_be_left() -> None:
    """A dot in the corner, shifted by up to half the image, is often lost or thinned away."""
    x = torch.zeros(200, 1, 28, 28)
    x[:, :, 0, 0] = 1
    y = augment(x, True, generator(), shift=0.5)
    assert (y.sum((1, 2, 3)) > 0).all()
    kept = (y == x).all(-1).all(-1).flatten()
    assert 20 < int(kept.sum()) < 200
    blank = torch.zeros(3, 1, 28, 28)
    assert torch.equal(augment(blank, True, generator()), blank)


def test_augment_without_any_change_is_the_identity() -> None:
    x = strokes(8, 21)[..., :17]
    assert torch.equal(augment(x, True, generator(), **STILL), x)
    # bilinear weights are computed, not exact
    assert torch.allclose(augment(2 * x - 1, False, generator(), **STILL), 2 * x - 1, atol=1e-5)


def test_mirror_turns_half_of_all_images_left_to_right() -> None:
    x = torch.rand(400, 3, 4, 5)
    y = mirror(x, generator())
    kept, turned = ((y == z).flatten(1).all(1) for z in (x, x.flip(-1)))
    assert (kept ^ turned).all()
    assert abs(float(turned.float().mean()) - 0.5) < 0.1  # four standard errors
    assert torch.equal(mirror(x, generator()), y)


def test_augment_fills_colour_from_the_border_and_binary_with_nothing() -> None:
    x = torch.full((20, 3, 8, 8), -0.75)
    assert torch.allclose(augment(x, False, generator(), shift=0.5), x)
    ones = torch.ones(20, 1, 8, 8)
    assert float(augment(ones, True, generator(), shift=0.5).mean()) < 0.9


def maps(height: int, width: int, **changes: float) -> tuple[Tensor, Tensor]:
    """Where `augment` takes pixels from, old = A new + b, seen in images of their own coordinates."""
    j, i = torch.arange(width) - (width - 1) / 2, torch.arange(height) - (height - 1) / 2
    x = torch.stack(torch.meshgrid(j, i, indexing="xy")).double()
    y = augment(x.expand(500, -1, -1, -1), False, generator(), **(STILL | changes))
    top, left = height // 2 - 2, width // 2 - 2
    new, old = (z[..., top : top + 5, left : left + 5].flatten(-2).mT for z in (x, y))
    design = torch.cat([new, torch.ones_like(new[:, :1])], -1).expand(500, -1, -1)
    found = torch.linalg.lstsq(design, old).solution
    return found[:, :2].mT, found[:, 2]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"rotation": 30.0}, {"area", "angles", "middle"}),
        ({"scale": 0.3}, {"angles", "middle"}),
        ({"shear": 0.4}, {"area", "middle"}),
        ({"shift": 0.2}, {"area", "angles"}),
    ],
)
@pytest.mark.parametrize("size", [(41, 41), (31, 61)])
def test_augment_changes_what_it_says(changes: dict[str, float], kept: set[str], size: tuple[int, int]) -> None:
    """Whatever the image's proportions; each change reaches nearly as far as it may."""
    A, b = maps(*size, **changes)
    measured = {
        "area": (A.det() - 1).abs().max(),
        "angles": (A[:, :, 0] * A[:, :, 1]).sum(1).abs().max(),
        "middle": b.abs().max(),
    }
    assert {name for name, off in measured.items() if off < 1e-9} == kept
    reached = {
        "rotation": torch.atan2(A[:, 1, 0], A[:, 0, 0]).abs().max().rad2deg() / 30,
        "scale": (A.diagonal(dim1=-2, dim2=-1).max() - 1) / (1 / (0.7 * 0.85) - 1),
        "shear": A[:, 0, 1].abs().max() / 0.4,
        "shift": (b.abs().amax(0) / torch.tensor([size[1], size[0]])).min() / 0.2,
    }
    assert 0.8 < reached[next(iter(changes))] <= 1 + 1e-9


ZERO = torch.zeros(1, dtype=torch.int64)
PIXELS = torch.zeros(2, 1, 3, 3, dtype=torch.uint8)


def make(**changes: Any) -> ClassImages:
    good = {"pixels": PIXELS, "start": ZERO, "count": ZERO + 2, "binary": True, "name": "n", "split": "s"}
    return ClassImages(**(good | changes))


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "float pixels": (lambda: make(pixels=PIXELS.float()), r"pixels: expected uint8 .* torch.float32"),
    "an empty class": (lambda: make(count=ZERO), r"at least one image in every class .* counts from 0"),
    "grey that is said to be binary": (lambda: make(pixels=PIXELS + 2), r"pixels: expected 0 or 1 .* 2"),
    "a label too few": (
        lambda: ClassImages.from_labels(PIXELS, [1], binary=True),
        r"labels: .* 2 images, got shape \(1,\)",
    ),
    "too many classes": (
        lambda: episodes(numbered(), 2, 3, 6),
        r"classes: expected at most 5, the number of classes of numbered/train, got 6",
    ),
    "too few that differ": (
        lambda: episodes(numbered(), 2, 7, 2, distinct=True),
        r"length: expected at most 3 with distinct images, as 2 of the 5 classes",
    ),
    "half an image": (lambda: episodes(numbered(), 2, 1.5), r"length: .* got float"),  # type: ignore[arg-type]
    "no episodes": (lambda: episodes(numbered(), 0, 5), r"batch: .* got 0"),
    "episodes of nothing": (lambda: episodes(numbered(), 2, 0), r"length: .* got 0"),
    "of no classes": (lambda: episodes(numbered(), 2, 3, 0), r"classes: .* got 0"),
    "a generator elsewhere": (
        lambda: episodes(numbered().to("meta"), 2, 1, generator=generator()),
        r"generator: expected one on meta where the images are, got one on cpu",
    ),
    "augmenting bytes": (lambda: augment(PIXELS, True), r"x: expected floating point .* torch.uint8"),
    "turning backwards": (lambda: augment(torch.zeros(1, 2, 2), True, rotation=-1.0), r"rotation: .* got -1"),
    "an unknown set": (lambda: load("omniglott"), r"dataset: .*; did you mean 'omniglot'\?"),
    "an unknown split": (lambda: load("glyphs", "tset"), r"split: .* got 'tset'; did you mean 'test'\?"),
    "an unknown option": (lambda: load("omniglot", datadir="x"), r"datadir: .*; did you mean 'data_dir'\?"),
    "images from nowhere": (lambda: load("images"), r"path: expected a folder .* got none"),
    "a path to nowhere": (lambda: load("no/such/folder"), r"no/such/folder: .* no such file"),
}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        call()
