"""Nearest: what it keeps, what it finds, and its score, each by hand."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Normal

import kanerva
from cases import normal
from kanerva import data
from kanerva.cli import main
from kanerva.models.rivals.nearest import Nearest, NearestConfig, rounded
from kanerva.support.pixels import LEVEL
from small import patterns

BITS = NearestConfig(image=(1, 5, 6))
BYTES = NearestConfig(image=(3, 5, 6), likelihood="gaussian")


def images(config: NearestConfig, *batch: int, seed: int = 0) -> Tensor:
    x = normal(*batch, *config.image, seed=seed).clamp(-1, 1 - LEVEL)
    return rounded(x, config.binary)


@pytest.mark.parametrize("config", [BITS, BYTES], ids=["bits", "bytes"])
@pytest.mark.parametrize("known", [True, False])
def test_recall_finds_the_nearest(config: NearestConfig, known: bool) -> None:
    """Against a loop over all pairs, in pixels that can be trusted."""
    model, x, cue = Nearest(config).double(), images(config, 2, 7), images(config, 2, 7, seed=2)
    mask = (normal(2, 7, 1, 5, 6, seed=1) > 0).double() if known else torch.ones(2, 7, 1, 5, 6).double()
    found = model.recall(model.write(x), cue, 3, **({"mask": mask} if known else {}))
    for b in range(2):
        for q in range(7):
            costs = [float((mask[b, q] * (cue[b, q] - stored).square()).sum()) for stored in x[b]]
            assert torch.equal(found.last[b, q], x[b, costs.index(min(costs))])
    assert torch.equal(found.x[0], found.x[2])


@pytest.mark.parametrize("config", [BITS, BYTES], ids=["bits", "bytes"])
def test_the_score_is_that_of_the_mixture(config: NearestConfig) -> None:
    """Against torch.distributions, one pair after another."""
    model, x = Nearest(config).double(), images(config, 2, 4)
    x = x if config.binary else x + LEVEL * torch.rand(x.shape, dtype=x.dtype)
    stored, scores = model.write(x).images, model(x).log_lik
    for b in range(2):
        for t in range(4):
            pairs = []
            for image in stored[b]:
                flips, scale = model.noise, torch.tensor(LEVEL, dtype=x.dtype)
                p = Bernoulli(image * (1 - flips) + (1 - image) * flips) if config.binary else None
                pairs.append((p or Normal(image + LEVEL / 2, scale)).log_prob(x[b, t]).sum())
            torch.testing.assert_close(scores[b, t], torch.stack(pairs).logsumexp(0) - math.log(4))


def test_a_stored_image_costs_little() -> None:
    """One of T, and a thousandth of a nat for each pixel; the same in single precision, to its digits."""
    model = Nearest()
    x = (torch.rand(32, 1, 28, 28, generator=torch.Generator().manual_seed(0)) > 0.8).float()
    exact = -math.log(32) + 784 * math.log(1 - 1e-3)
    torch.testing.assert_close(model(x).log_lik, torch.full((32,), exact), rtol=1e-6, atol=0)


def test_colours_are_scored_to_their_digits() -> None:
    """In single precision, where products of images would lose a grey level."""
    config = NearestConfig(image=(3, 32, 32), likelihood="gaussian")
    x = images(config, 32)
    exact, ours = Nearest(config).double()(x).log_lik, Nearest(config)(x.float()).log_lik
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=0)  # sums of 3,072 terms


def test_samples_are_stored_images() -> None:
    model, x = Nearest(BITS).double(), images(BITS, 3, 5)
    drawn = model.sample(model.write(x), 40, 2, torch.Generator().manual_seed(0)).last
    for memory, found in zip(x, drawn, strict=True):
        index = (found[:, None] == memory).flatten(2).all(-1)
        assert bool(index.any(1).all())
        assert bool(index.any(0).all())  # each of five in forty draws, but for one in a thousand


def test_an_empty_memory_is_refused() -> None:
    model, x = Nearest(BITS).double(), images(BITS, 3)
    empty = model.write(x[:0])
    assert empty.images.shape == (0, 1, 5, 6)
    assert torch.equal(model.write(x, empty).images, x)
    for call in (lambda: model.recall(empty, x), lambda: model.sample(empty, 2)):
        with pytest.raises(ValueError, match="state: expected a memory with at least one image"):
            call()
    assert model(x[:0]).log_lik.shape == (0,)


@pytest.mark.parametrize("binary", [True, False])
def test_it_is_evaluated_by_its_name(tmp_path: Path, binary: bool, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(patterns(tmp_path, binary))
    main(["evaluate", "nearest", "--dataset", path, "--images", "64", "--length", "4", "--device", "cpu"])
    text = capsys.readouterr().out
    images = data.load(path, "test")
    model = kanerva.create("nearest", images.shape, "bernoulli" if binary else "gaussian")
    assert f"{kanerva.evaluate(model, images, 4, 64).nats:.2f} ± " in text
    assert "KL" not in text
    assert "autoencoder" not in text
