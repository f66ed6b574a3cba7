"""More of a class: draws have the spread of the examples, and are judged as they should be."""

import numpy as np
import pytest
import torch

from kanerva import DKM
from kanerva.data import ClassImages
from kanerva.experiments.more import Case, draw, fresh, judge
from recalling import generator, model


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


def test_every_memory_of_a_batch_has_draws_of_its_own() -> None:
    m, x = written()
    both = torch.stack([x, 1 - x])
    with torch.no_grad():
        state = m.write(both)
        found = m.more(state, both, 3, generator())
        assert found.x.shape == (1, 2, 3, *m.config.image)
        again = m.more(state, both, 3, generator())
    assert torch.equal(found.x, again.x)


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
    flat = pixels.reshape(-1, 1, 4, 8)
    return ClassImages.from_labels(flat, np.repeat(np.arange(count), each), binary=True)


def test_what_is_written_is_not_held_out() -> None:
    case = draw(classes(), 2, 3, generator())
    assert case.written.shape == (2, 1, 4, 8)
    assert case.held_out.shape == (3, 2, 1, 4, 8)
    own = torch.cat([case.written, case.held_out[0]]).flatten(1)
    assert len(own.unique(dim=0)) == 4
    label = case.held_out.flatten(3)[:, 0, 0].argmax(-1)
    assert len(label.unique()) == 3
    assert case.written[0].flatten().argmax() == label[0]


def test_images_are_told_by_the_nearest_held_out_one() -> None:
    case = draw(classes(), 2, 3, generator())
    assert judge(case.written, case) == {"right": 1.0, "apart": 0.0}
    other = judge(case.held_out[1], case)
    assert other["right"] == 0
    assert other["apart"] >= 8  # two columns of four
    assert fresh(case)["right"] == 1  # though each is not told by itself
    lonely = Case(case.written, torch.stack([case.held_out[0] * torch.tensor([1.0, 0.0])[:, None, None, None]] * 2))
    assert fresh(lonely)["right"] < 1


def test_too_few_images_of_a_class() -> None:
    with pytest.raises(
        ValueError, match="among: expected at most 0, as many classes of images/all as have 6 images"
    ):
        draw(classes(), 3, 2, generator())
