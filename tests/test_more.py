"""More of a class: draws have the spread of the examples, and are judged as they should be."""

import dataclasses

import numpy as np
import pytest
import torch

import more
from cases import generator
from kanerva import DKM
from kanerva.data import ClassImages
from recalling import model
from trials import SMALL, drawn, run, subject


def written() -> tuple[DKM, torch.Tensor]:
    m = model(dtype=torch.float64)
    return m, (torch.rand(4, *m.config.image, generator=generator()) < 0.5).double()


def test_draws_have_the_mean_and_the_covariance_of_the_examples_weights() -> None:
    m, x = written()
    with torch.no_grad():
        state = m.write(x)
        w = m.more(state, x, 20_000, generator()).w[0]
        wanted = m.recall(state, x, 1, "least-squares").w[0]
    error = wanted.std(0) / 20_000**0.5
    assert ((w.mean(0) - wanted.mean(0)).abs() < 5 * error + 1e-9).all()
    apart = (w.T.cov() - wanted.T.cov()).abs() / torch.outer(wanted.std(0), wanted.std(0))
    assert apart.max() < 5 * (2 / 20_000) ** 0.5


def test_one_example_has_no_spread() -> None:
    m, x = written()
    with pytest.raises(ValueError, match="x: expected at least 2 images, whose spread new ones have, got 1"):
        m.more(m.write(x), x[:1], 3)


def classes(count: int = 3, each: int = 4) -> ClassImages:
    """Classes far apart: images of class c have column c in common, and a pixel of their own."""
    pixels = np.zeros((count, each, 1, 4, 8), np.uint8)
    for c in range(count):
        pixels[c, :, 0, :, c] = 1
        for i in range(each):
            pixels[c, i, 0, i % 4, 5] = 1
    return ClassImages.from_labels(pixels.reshape(-1, 1, 4, 8), np.repeat(np.arange(count), each), binary=True)


def test_what_is_written_is_not_held_out() -> None:
    case = more.draw(classes(), 2, 3, generator())
    own = torch.cat([case.written, case.held_out[0]]).flatten(1)
    assert len(own.unique(dim=0)) == 4
    label = case.held_out.flatten(3)[:, 0, 0].argmax(-1)
    assert len(label.unique()) == 3
    assert case.written[0].flatten().argmax() == label[0]


def test_images_are_told_by_the_nearest_held_out_one() -> None:
    case = more.draw(classes(), 2, 3, generator())
    assert more.judge(case.written, case) == {"right": 1.0, "apart": 0.0}
    other = more.judge(case.held_out[1], case)
    assert other["right"] == 0
    assert other["apart"] >= 8  # two columns of four
    # real images: those written are told by those held out; the held-out ones have a distance to those written
    one = more.Case(case.written, torch.cat([case.held_out[1:2], case.held_out[:1]]))
    assert more.fresh(one) == {"right": 0.0, "apart": other["apart"]}


def test_all_models_have_the_same_classes_and_examples() -> None:
    """Whatever noise they draw: one of more rows draws more of it for `sample`."""
    found = [run(more, subject(config), episodes=3) for config in (SMALL, dataclasses.replace(SMALL, rows=9))]
    assert found[0]["sets"]["fresh images"] == found[1]["sets"]["fresh images"]
    assert more.table(found[0]).rows[-1][0] == "by chance"
    assert set(drawn(more, a=found[0])) == {"pictures"}
