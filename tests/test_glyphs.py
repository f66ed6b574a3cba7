"""The glyphs: enough of them, all different, none blank or cut off, and as benchmarks/glyphs.py draws them."""

import unicodedata

import numpy as np
import pytest

import glyphs as drawing
from kanerva.data import ClassImages, load

SPLITS = {"train": 770, "validation": 193, "test": 321}


@pytest.fixture(scope="module")
def every() -> dict[str, ClassImages]:
    return {split: load("glyphs", split) for split in SPLITS}


@pytest.fixture(scope="module")
def labels(every: dict[str, ClassImages]) -> list[str]:
    return [label for images in every.values() for label in images.labels]


@pytest.fixture(scope="module")
def pixels(every: dict[str, ClassImages]) -> np.ndarray:
    """All images, (classes, 20, 28, 28)."""
    return np.concatenate([images.pixels.reshape(-1, 20, 28, 28).numpy() for images in every.values()])


def test_splits_are_of_whole_classes(every: dict[str, ClassImages], labels: list[str]) -> None:
    for split, images in every.items():
        assert (images.num_classes, images.name, images.split) == (SPLITS[split], "glyphs", split)
        assert (images.count == 20).all()
        assert images.binary
    assert len(set(labels)) == sum(SPLITS.values())
    kinds = [{image.numpy().tobytes() for image in images.pixels} for images in every.values()]
    assert len(set.union(*kinds)) == sum(map(len, kinds))  # no image comes twice
    both = load("glyphs", "train+validation")
    assert both.labels == every["train"].labels + every["validation"].labels


def test_many_scripts_without_lookalikes_and_marks(labels: list[str]) -> None:
    scripts = {unicodedata.name(label).split()[0] for label in labels}
    wanted = "LATIN GREEK CYRILLIC ARMENIAN GEORGIAN HEBREW ARABIC CANADIAN TIFINAGH NKO OGHAM LAO LISU DIGIT"
    assert set(wanted.split()) <= scripts
    assert {"A", "Δ", "Ж", "א", "ب", "ᐅ", "ⴰ", "ᚊ", "7"} <= set(labels)
    assert not {"Α", "А", "Ο", "О", "ο", "о", "С", "с"} & set(labels)  # Greek and Cyrillic, after Latin
    assert not {"é", ".", "·", "─", "█", "\u200b", " ", "ᐧ", "٠", "ﹷ"} & set(labels)


def test_none_is_blank_or_cut_off_and_ink_is_that_of_handwriting(pixels: np.ndarray) -> None:
    assert pixels.max() == 1
    assert pixels.sum((2, 3)).min() >= 20
    border = np.ones((28, 28), bool)
    border[1:-1, 1:-1] = False
    assert not pixels[..., border].any()
    ink = pixels.mean((2, 3))
    assert 0.1 < ink.mean() < 0.2
    assert np.quantile(ink, 0.99) < 0.33


def test_images_of_a_class_differ_but_less_than_others(pixels: np.ndarray) -> None:
    kinds = [len({image.tobytes() for image in images}) for images in pixels]
    assert min(kinds) >= 18  # a straight bar has few ways to look
    flat = pixels.reshape(*pixels.shape[:2], -1).astype(np.float32)
    within = np.abs(flat[:, 0] - flat[:, 12]).sum(-1)
    between = np.abs(flat[:-1, 0] - flat[1:, 12]).sum(-1)
    assert within.mean() < 0.8 * between.mean()


def test_the_script_draws_them(every: dict[str, ClassImages]) -> None:
    fonts = drawing._fonts()
    test = every["test"]
    for c in (0, 17, test.num_classes - 1):
        drawn = drawing.variants(ord(test.labels[c]), fonts)
        assert (test.pixels[20 * c : 20 * (c + 1), 0].numpy() != drawn).mean() < 0.01  # other versions of the fonts
    missing, space, dot = 0x4E00, 0x20, 0x2E
    points = [missing, space, dot, 0x41, 0x391, 0x410, 0x42]  # A comes in three scripts
    assert drawing.distinct(points, fonts) == [0x41, 0x42]


def test_the_script_turns_and_shifts_about_the_middle() -> None:
    bar = np.full((80, 20), 255, np.uint8)
    expected = np.zeros((28, 28), bool)
    expected[6:22, 12:16] = True
    assert np.array_equal(drawing.place(bar, np.eye(2) / 5), expected)  # 16 by 4
    assert np.array_equal(drawing.place(bar, np.array([[0, -1], [1, 0]]) / 5), expected.T)
    assert np.array_equal(drawing.place(bar, np.eye(2) / 5, (3.0, -2.0)), np.roll(expected, (-2, 3), (0, 1)))
