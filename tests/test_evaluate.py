"""Scores and what they mean: stored and new images, a blank memory, a memory that is drawn and charged."""

import copy
import dataclasses
import math
from typing import Literal

import pytest
import torch

from kanerva import DKM, MODELS, CodecConfig, DKMConfig, RunConfig, memory
from kanerva.data import ClassImages
from kanerva.likelihood import Correlated, Gaussian
from kanerva.memory import moments
from kanerva.models.base import CodecModel, Preparation
from kanerva.models.dkm import STRICT
from kanerva.nn import Writing
from kanerva.support.pixels import LEVEL, dequantise
from kanerva.training.config import with_model
from kanerva.training.evaluate import WAYS, evaluate, halves, new_images

CONFIG = DKMConfig(image=(1, 6, 6), rows=4, code=5, codec=CodecConfig((4, 4)), weights="full")


def images(classes: int = 6, each: int = 8) -> ClassImages:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(2, (classes * each, 1, 6, 6), dtype=torch.uint8, generator=generator)
    labels = torch.arange(classes).repeat_interleave(each)
    return ClassImages.from_labels(pixels.numpy(), labels.numpy(), binary=True, name="some", split="test")


def model() -> DKM:
    torch.manual_seed(1)
    return DKM(CONFIG).double()


def test_the_bound_is_the_score_and_what_it_leaves_out() -> None:
    score = evaluate(model().float(), images(), length=5, count=80)
    assert score.kl_memory is not None
    assert score.bound == pytest.approx(score.nats + score.kl_memory)
    assert score.nats == pytest.approx(score.reconstruction + score.kl_weights)


def test_quick_scores_leave_out_what_takes_long() -> None:
    score = evaluate(model().float(), images(), length=5, count=80, extra=False)
    assert (score.new, score.blank, score.extra) == (None, None, {})


@torch.no_grad()
def test_new_images_are_read_from_memories_of_others() -> None:
    m, own = model().float(), images()
    written, read = halves(own, 10, 3, 8, seed=4)
    assert written.shape == read.shape == (10, 12, 1, 6, 6)
    generator = torch.Generator().manual_seed(4)
    found = [m.given(m.write(a), b, generator) for a, b in zip(written.split(16), read.split(16), strict=True)]
    wanted = torch.cat([terms.nats() for terms in found])
    said = new_images(m, own, count=120, classes=3, seed=4)
    assert said == {
        "mean": pytest.approx(float(wanted.mean())),
        "stderr": pytest.approx(float(wanted.std() / math.sqrt(10))),
    }


@pytest.mark.parametrize("how", [Writing(2, 5), Writing(block=5, noise=3.0)])
def test_a_model_writes_as_it_is_told(how: Writing) -> None:
    """As one that is made so; the model and its config stay as they were."""
    m = model().float()
    other = DKM(dataclasses.replace(m.config, iterations=how.iterations, block=how.block))
    other.load_state_dict(m.state_dict())
    x, score = images().images(torch.arange(5)), evaluate(m, images(), 5, 80, how=how)
    assert score.kl_memory != evaluate(m, images(), 5, 80).kl_memory
    if how.noise == 1:  # the inverse of reads is another backend's
        same = evaluate(other, images(), 5, 80)
        assert (score.nats, score.kl_memory) == pytest.approx((same.nats, same.kl_memory), rel=1e-6)
    state, _ = memory.write(m.blank(), m.encode(x), how.noise * m.noise_var, how.iterations, how.block)
    for part, wanted in zip(m.write(x, how=how), state, strict=True):
        torch.testing.assert_close(part, wanted)
    assert m.config == CONFIG


def test_classes_of_one_image_have_no_new_ones() -> None:
    assert new_images(model().float(), images(each=1)) is None
    assert new_images(model().float(), images(classes=3)) is None  # four are wanted


@torch.no_grad()
def test_a_memory_that_is_drawn_and_charged_is_a_bound_of_its_own() -> None:
    """Many draws of M, w and their densities, term by term, against the extra score of as many draws."""
    m, many = model(), 8_000
    x = images().images(torch.arange(4)).double()
    state = m.write(x)
    w = m.retriever(state).find(x)
    generator = torch.Generator().manual_seed(0)
    M = state.R + torch.linalg.cholesky(state.U) @ torch.randn(many, 4, 5, generator=generator, dtype=torch.float64)
    drawn = moments.draw(m.retriever(state).around(w.expand(many, 4, 4)), generator)
    log_lik = m.decode(drawn @ M).log_prob(x.expand(many, *x.shape))
    kl = memory.kl_memory(state, m.blank()) / 4
    each = -log_lik.mean(-1) + moments.kl_address(m.retriever(state).around(w)).mean() + kl
    said = m.extra_scores(x.expand(many, *x.shape), generator.manual_seed(1))["M drawn and charged"]
    assert abs(each.mean() - said.mean()) < 4 * (each.var() / many + said.var() / many).sqrt()
    mean = m(x.expand(many, *x.shape), generator).nats() + kl
    # reading a memory that is uncertain costs more, or the test could not tell the two apart
    assert said.mean() - mean.mean() > 4 * (said.var() / many + mean.var() / many).sqrt()


@torch.no_grad()
def test_with_drawn_training_descends_the_strict_bound() -> None:
    """The loss is that score, draw for draw; and L_AE. Scores outside training stay those of the mean."""
    m = model()
    strict = copy.deepcopy(m)
    strict.prepare(Preparation(None, False, "auto", drawn=True))
    x, generator = images().images(torch.arange(4)).double(), torch.Generator()
    said = m.extra_scores(x, generator.manual_seed(1))["M drawn and charged"]
    terms = strict.train()(x, generator.manual_seed(1))
    torch.testing.assert_close(-terms.bound() / 4, said)
    assert terms.log_lik_auto is not None
    for one, other in zip(strict.eval()(x, generator.manual_seed(1)), m(x, generator.manual_seed(1)), strict=True):
        assert torch.equal(one, other)


def grey(kind: str = "dkm", pixels: Literal["points", "levels"] = "points", scale: str = "pixel") -> CodecModel:
    """A model whose pixels are about as sure as a grey level is wide, so that points and levels differ."""
    torch.manual_seed(0)
    config = dataclasses.replace(CONFIG, likelihood="gaussian", scale=scale, pixels=pixels)  # type: ignore[arg-type]
    made = MODELS[kind](with_model(RunConfig(model=config), kind).model)
    made.min_scale = LEVEL / 2  # type: ignore[assignment]
    made.log_scale.data.fill_(-10.0)  # type: ignore[union-attr, operator]
    assert isinstance(made, CodecModel)
    return made


def plain_greys() -> ClassImages:
    """Images of one grey level each."""
    levels = torch.randint(100, 156, (48, 1, 1, 1), generator=torch.Generator().manual_seed(0))
    pixels, labels = levels.expand(48, 1, 6, 6).to(torch.uint8), torch.arange(6).repeat_interleave(8)
    return ClassImages.from_labels(pixels.numpy(), labels.numpy(), binary=False, name="some", split="test")


def test_grey_images_are_scored_at_points_and_by_levels() -> None:
    by_points, by_levels = (evaluate(grey(pixels=way), plain_greys(), 4, 128) for way in ("points", "levels"))
    assert by_points.bits == by_levels.bits  # the same weights, scored in both ways whichever they were trained for
    for score, way in ((by_points, "points"), (by_levels, "levels")):
        assert score.bits is not None
        assert score.pixels == way
        assert score.bits_per_dimension == pytest.approx(score.bits[way]["mean"], abs=1e-12)
        assert score.in_bits.startswith(f", {score.bits[way]['mean']:.3f} bits per dimension {WAYS[way]} (")
    assert by_points.nats != pytest.approx(by_levels.nats, rel=0.01)
    assert by_points.extra[STRICT]["mean"] != pytest.approx(by_levels.extra[STRICT]["mean"], rel=0.01)
    binary = evaluate(model().float(), images(), 4, 64)
    assert (binary.pixels, binary.bits, binary.in_bits) == (None, None, "")


@pytest.mark.parametrize("scale", ["one", "pixel", "colour"])
@pytest.mark.parametrize("kind", [kind for kind, made in MODELS.items() if issubclass(made, CodecModel)])
def test_every_model_scores_by_levels_what_its_decoder_says(
    kind: str, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scored by levels, a model is as one whose Gaussians have no other score."""
    x = dequantise(plain_greys().images(torch.arange(8)).reshape(2, 4, 1, 6, 6), torch.Generator().manual_seed(1))
    by_levels = grey(kind, "levels", scale)(x, torch.Generator().manual_seed(2)).nats()
    points = grey(kind, "points", scale)(x, torch.Generator().manual_seed(2)).nats()
    asked = grey(kind, "points", scale)(x, torch.Generator().manual_seed(2), pixels="levels").nats()
    assert not torch.allclose(by_levels, points, rtol=1e-3)
    for likelihood in (Gaussian, Correlated):
        monkeypatch.setattr(likelihood, "log_prob", likelihood.log_level)
    torch.testing.assert_close(grey(kind, "points", scale)(x, torch.Generator().manual_seed(2)).nats(), by_levels)
    torch.testing.assert_close(asked, by_levels, rtol=0, atol=0)


def test_levels_cost_less_than_points_where_pixels_are_sure() -> None:
    """Of a level that is as good as known, a point costs ½ ln(2πe / 12) = 0.18 nats more, in any Gaussian."""
    x = torch.full((1, 8, 8), 0.25)
    sure = Gaussian(x + LEVEL / 2, torch.tensor(LEVEL / math.sqrt(12)))
    drawn = torch.stack([dequantise(x, torch.Generator().manual_seed(i)) for i in range(2_000)])
    points, levels = (float(f(drawn).mean()) / 64 for f in (sure.log_prob, sure.log_level))
    assert levels == pytest.approx(-math.log(LEVEL), abs=1e-4)
    assert levels - points == pytest.approx(0.5 * math.log(2 * math.pi * math.e / 12), abs=0.01)
