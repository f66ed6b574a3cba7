"""The glyphs: enough of them, all different, none blank or cut off, and the same on every run."""

import hashlib
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch

from kanerva.data import ClassImages, episodes, glyphs, load


@pytest.fixture(scope="module")
def both() -> dict[str, ClassImages]:
    return {split: load("glyphs", split) for split in ("train", "test")}


@pytest.fixture(scope="module")
def fonts() -> dict[str, glyphs.Face]:
    return glyphs._fonts()


@pytest.fixture(scope="module")
def pixels(both: dict[str, ClassImages]) -> np.ndarray:
    """All images, (classes, 20, 28, 28)."""
    every = torch.cat([both["train"].pixels, both["test"].pixels])
    return every.reshape(-1, glyphs.VARIANTS, 28, 28).numpy()


def test_there_are_enough(both: dict[str, ClassImages]) -> None:
    train, test = both["train"], both["test"]
    n = train.num_classes + test.num_classes
    assert n >= 1200
    assert abs(test.num_classes / n - 0.25) < 0.001
    for images in both.values():
        assert images.shape == (1, 28, 28)
        assert images.binary
        assert (images.count == 20).all()
        assert len(images) == 20 * images.num_classes == 20 * len(images.labels)
    assert (train.split, test.split, train.name) == ("train", "test", "glyphs")


def test_splits_share_no_class(both: dict[str, ClassImages]) -> None:
    train, test = set(both["train"].labels), set(both["test"].labels)
    assert len(train) + len(test) == both["train"].num_classes + both["test"].num_classes
    assert not train & test


def test_splits_share_no_image(both: dict[str, ClassImages]) -> None:
    train, test = ({p.numpy().tobytes() for p in both[split].pixels} for split in ("train", "test"))
    assert not train & test


def test_many_scripts(both: dict[str, ClassImages]) -> None:
    labels = both["train"].labels + both["test"].labels
    scripts = {unicodedata.name(label).split()[0] for label in labels}
    wanted = "LATIN GREEK CYRILLIC ARMENIAN GEORGIAN HEBREW ARABIC CANADIAN TIFINAGH NKO OGHAM LAO LISU DIGIT"
    assert set(wanted.split()) <= scripts
    assert all(len(label) == 1 for label in labels)


def test_none_is_blank_or_cut_off(pixels: np.ndarray) -> None:
    assert pixels.max() == 1
    assert pixels.sum((2, 3)).min() >= 20
    border = np.ones((28, 28), bool)
    border[1:-1, 1:-1] = False
    assert not pixels[..., border].any()


def test_ink_is_that_of_handwriting(pixels: np.ndarray) -> None:
    ink = pixels.mean((2, 3))
    assert 0.1 < ink.mean() < 0.2
    assert np.quantile(ink, 0.99) < 0.33


def test_glyphs_are_in_the_middle(pixels: np.ndarray) -> None:
    at = np.arange(28) - 13.5
    ink = pixels.sum((2, 3))
    for axis in (2, 3):
        centre = (pixels.sum(5 - axis) * at).sum(-1) / ink
        assert abs(centre.mean()) < 0.5
        assert np.quantile(abs(centre), 0.99) < 6


def test_variants_of_a_class_differ_from_each_other(pixels: np.ndarray) -> None:
    kinds = [len({image.tobytes() for image in images}) for images in pixels]
    assert min(kinds) >= glyphs.VARIANTS - 2  # a straight bar has few ways to look
    assert np.mean(kinds) > 19.9


def test_variants_of_a_class_are_more_alike_than_others(pixels: np.ndarray) -> None:
    flat = pixels.reshape(*pixels.shape[:2], -1).astype(np.float32)
    within = np.abs(flat[:, 0] - flat[:, 12]).sum(-1)
    between = np.abs(flat[:-1, 0] - flat[1:, 12]).sum(-1)
    assert within.mean() < 0.8 * between.mean()


def upright(point: int, fonts: dict[str, glyphs.Face]) -> np.ndarray:
    grey = next(g for face in fonts.values() if (g := face.glyph(point)) is not None)
    return glyphs.place(grey, np.eye(2) * glyphs.BODY / max(grey.shape))


def test_no_two_classes_look_the_same(both: dict[str, ClassImages], fonts: dict[str, glyphs.Face]) -> None:
    """Upright, in the face that comes first: no two share three quarters of their ink, at any shift of a pixel."""
    labels = both["train"].labels + both["test"].labels
    images = np.stack([upright(ord(label), fonts) for label in labels])
    n = len(images)
    wide = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    flat, ink = images.reshape(n, -1).astype(np.float32), images.sum((1, 2))
    for y in range(3):
        for x in range(3):
            common = flat @ wide[:, y : y + 28, x : x + 28].reshape(n, -1).astype(np.float32).T
            # a shift may push ink over the edge only where there is some, and there is none
            either = ink[:, None] + ink[None, :] - common
            unlike = (either - common) / either
            np.fill_diagonal(unlike, 1)
            assert unlike.min() > 0.25


def test_lookalikes_and_marks_are_left_out(both: dict[str, ClassImages]) -> None:
    labels = set(both["train"].labels + both["test"].labels)
    assert {"A", "Δ", "Ж", "א", "ب", "ᐅ", "ⴰ", "ᚊ", "7"} <= labels
    assert not {"Α", "А", "Ο", "О", "ο", "о", "С", "с"} & labels  # Greek and Cyrillic, after Latin
    assert not {"é", ".", "·", "─", "█", "́", "\u200b", " ", "ᐧ", "٠", "ﹷ"} & labels


def test_distinct_leaves_out_what_is_missing_empty_or_tiny(fonts: dict[str, glyphs.Face]) -> None:
    missing, space, dot = 0x4E00, 0x20, 0x2E
    assert all(face.glyph(missing) is None for face in fonts.values())
    assert glyphs.distinct([missing, space, dot, 0x41, 0x391, 0x410, 0x42], fonts) == [0x41, 0x42]


def test_drawing_does_not_depend_on_what_else_is_drawn(both: dict[str, ClassImages], fonts: dict) -> None:
    for split, images in both.items():
        for c in (0, 17, images.num_classes - 1):
            again = glyphs.variants(ord(images.labels[c]), fonts)
            assert np.array_equal(images.pixels[20 * c : 20 * (c + 1), 0].numpy(), again), (split, c)


DIGEST = """
import hashlib, os
from kanerva.data import glyphs
arrays = glyphs.draw(limit=40)
print(hashlib.sha256(arrays["bits"].tobytes() + arrays["points"].tobytes()).hexdigest())
"""


def test_another_process_draws_the_same(fonts: dict[str, glyphs.Face]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()
    arrays = glyphs.draw(limit=40)
    assert len(arrays["points"]) == 40
    assert run == hashlib.sha256(arrays["bits"].tobytes() + arrays["points"].tobytes()).hexdigest()


def test_the_second_load_reads_the_cache(
    both: dict[str, ClassImages], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    def draw() -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(glyphs, "draw", draw)
    assert torch.equal(load("glyphs", "test").pixels, both["test"].pixels)
    monkeypatch.setattr(glyphs, "RECIPE", glyphs.RECIPE + 1)
    with pytest.raises(AssertionError, match="drawn again"):
        load("glyphs")


@pytest.mark.parametrize("bad", [b"", b"no arrays", None])
def test_a_spoiled_cache_is_drawn_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, bad: bytes | None
) -> None:
    small = glyphs.draw(limit=8)
    calls = []
    monkeypatch.setattr(glyphs, "draw", lambda: calls.append(1) or small)
    first = load("glyphs")
    (path,) = own_cache.iterdir()
    if bad is None:  # whole, but of another size
        with path.open("wb") as file:
            np.savez(file, bits=small["bits"][:, :3], points=small["points"])
    else:
        path.write_bytes(bad)
    assert torch.equal(load("glyphs").pixels, first.pixels)
    load("glyphs", "test")
    assert len(calls) == 2


def test_missing_fonts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    monkeypatch.setattr(matplotlib, "get_data_path", lambda: str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"expected matplotlib's DejaVu fonts, but DejaVuSans, .* not there"
    ):
        glyphs._fonts()


def test_place_turns_and_shifts_about_the_middle() -> None:
    bar = np.full((80, 20), 255, np.uint8)
    standing = glyphs.place(bar, np.eye(2) / 5)  # 16 by 4
    expected = np.zeros((28, 28), bool)
    expected[6:22, 12:16] = True
    assert np.array_equal(standing, expected)
    lying = glyphs.place(bar, np.array([[0, -1], [1, 0]]) / 5)
    assert np.array_equal(lying, expected.T)
    moved = glyphs.place(bar, np.eye(2) / 5, (3.0, -2.0))
    assert np.array_equal(moved, np.roll(expected, (-2, 3), (0, 1)))


def test_episodes_of_glyphs(both: dict[str, ClassImages], device: str) -> None:
    x = episodes(both["train"].to(device), 4, 32, 8, torch.Generator(device).manual_seed(0))
    assert x.shape == (4, 32, 1, 28, 28)
    assert x.unique().tolist() == [0, 1]
