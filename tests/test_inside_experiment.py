"""The experiment inside: what is found is matched once, and its figure comes from its file alone."""

import functools
from typing import Any

import numpy as np
import pytest
import torch

from kanerva import MemoryState
from kanerva.data import ClassImages
from kanerva.lab import inside, pictures
from kanerva.lab.runner import Subject
from mirror import SHAPE, mirror
from trials import bits, drawn, run

pytestmark = pytest.mark.usefixtures("short_search")


@functools.cache
def result() -> dict[str, Any]:
    """Of random images, which `mirror` finds at once."""
    pixels = (np.random.default_rng(0).random((60, *SHAPE)) > 0.6).astype(np.uint8)
    images = ClassImages.from_labels(pixels, np.repeat(np.arange(20), 3), binary=True)
    return run(inside, Subject("mirror", mirror(), images, images, {}), episodes=3, searched=(3, 6))


def test_a_codec_that_inverts_itself_finds_all() -> None:
    contents = result()["contents"]
    assert contents["found"]["mean"] == contents["exact"]["mean"] == [1, 1]
    assert contents["false"]["mean"] == contents["wrong"]["mean"] == [0, 0]


def test_what_is_found_is_matched_once() -> None:
    """5 % of 40 pixels are 2."""
    written = bits("1" * 40, "0" * 40, "01" * 20)
    found = bits("01" * 20, "001" + "1" * 37, "1" * 40, "000111" + "0" * 34, "0" * 39 + "1")
    which, wrong = inside.match(found, written)
    assert which.tolist() == [2, -1, 0, -1, 1]
    assert wrong.tolist() == [0, 0, 0, 0, 1]
    assert inside.match(found[:0], written)[0].tolist() == []


def test_what_is_not_found_is_blank_in_the_picture() -> None:
    written = bits("1111", "1010", "1100")
    state = MemoryState(torch.tensor([[0.5, -2.0]]), torch.tensor([[0.25]]))
    shown = inside.show(state, written, bits("1100", "1110"), torch.tensor([2, 0]), 1.0)
    assert (shown["images"], shown["found"]) == (3, 2)
    rows = pictures.unpack(shown["beside"])[0, :, 0, 0].astype(int).tolist()
    assert rows == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]] + 5 * [[0, 0, 0, 0]]
    assert pictures.unpack(shown["written"])[0, 1, 0, 0].tolist() == [1, 0, 1, 0]
    memory = (2 * pictures.unpack(shown["memory"]["R"]) - 1).tolist()
    assert memory == [pytest.approx([0.25, -1], abs=0.01)]


def test_the_figure_is_drawn_from_the_file() -> None:
    made = drawn(inside, a=result())
    assert set(made) == {"picture"}
    right = made["picture"].axes[2]
    assert right.get_title() == "found in it without a cue: 6 of 6, 0 wrong pixels"
    pixels = 1 - np.asarray(right.images[0].get_array())
    stored = pictures.unpack(result()["picture"]["written"])
    assert np.array_equal(pixels[1:6, 1:7], stored[0, 0, 0])
