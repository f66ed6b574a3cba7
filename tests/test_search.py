"""Recall from a damaged cue alone: the channel that has damaged it, and what explains it best."""

import dataclasses

import pytest
import torch

import kanerva
from cases import generator, normal
from kanerva import DKM, DKMConfig
from kanerva.codec import start_linear
from kanerva.data import damage
from kanerva.likelihood import Bernoulli, Correlated, Gaussian
from recalling import COLOUR, CORRELATED, images, model

KINDS = pytest.mark.parametrize("config", [COLOUR, CORRELATED], ids=["colour", "correlated"])


def test_a_known_channel_beats_none() -> None:
    """With a trained model, what explains a cue through the channel is nearer to it than what trusts the cue."""
    m = kanerva.load("omniglot").requires_grad_(False)
    x = kanerva.data.episodes(kanerva.data.load("glyphs", "test"), 1, 4, generator=generator())[0]
    state, y = m.write(x), damage.flips(x, 0.2, generator()).x

    def error(noise: float) -> float:
        found = m.recall(state, y, 1, "descent", noise=noise, inside=False).last
        return float((found - x).abs().sum((-3, -2, -1)).mean())

    assert error(0.2) < 0.5 * error(0.001)


def exact(config: DKMConfig) -> tuple[DKM, torch.Tensor]:
    """A model whose codec is principal components, bent a little, and four images that it knows nearly all of."""
    config = dataclasses.replace(config, codec=dataclasses.replace(config.codec, linear=True))
    m, x = model(config), images(config, 8)
    x = 0.9 * x / x.abs().max()
    start_linear(m.encoder, m.decoder, x)
    m.decoder.up[-1].weight[:, :3] = 0.03 * normal(4, 3, 4, 4, dtype=torch.float32)
    m.memory.log_noise_var.fill_(-4.0)
    m.log_scale.fill_(-3.0)
    return m, x[:4]


@pytest.mark.parametrize("inside", [True, False])
@KINDS
def test_stored_images_of_real_pixels_come_back_from_half_of_them(config: DKMConfig, inside: bool) -> None:
    """Four unknowns, 96 pixels: as near as the memory reads the image itself. The encoder is lost with half."""
    m, x = exact(config)
    state = m.write(x)
    cue = damage.half(x, "top")
    read, lost = (m.recall(state, a, 1, "least-squares").last for a in (x, cue.x))
    path = m.recall(state, cue.x, 4, mask=cue.mask, inside=inside)
    off, off_lost = (float((a - read).square().mean()) for a in (path.last, lost))
    assert off < 0.01 * float(read.var())
    assert off_lost > 0.1 * float(read.var())
    assert path.energy is not None
    assert bool((path.energy.diff(dim=0) <= 0).all())


# the channel


def test_a_channel_is_the_sum_over_images() -> None:
    """P(y) = Σ_x p(y | x) p(x), added up for images of two pixels."""
    logits = normal(3, 1, 1, 2)
    f = torch.tensor([0.1, 0.25, 0.4], dtype=torch.float64)
    y = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(3, 1, 1, 2)
    total = torch.zeros(3, dtype=torch.float64)
    for bits in ((0, 0), (0, 1), (1, 0), (1, 1)):
        x = torch.tensor(bits, dtype=torch.float64).expand_as(y)
        same = (x == y).sum((-3, -2, -1))
        total += Bernoulli(logits).log_prob(x).exp() * f ** (2 - same) * (1 - f) ** same
    torch.testing.assert_close(Bernoulli(logits).through(f).log_prob(y).exp(), total)


def test_a_channel_adds_variances() -> None:
    found = Gaussian(normal(2, 1, 3, 3), torch.tensor(0.3).double()).through(torch.tensor([0.16, 0.0]).double())
    torch.testing.assert_close(found.scale.flatten(), torch.tensor([0.5, 0.3]).double())


def test_extreme_channels_are_finite() -> None:
    logits = torch.tensor([-80.0, 0.0, 80.0]).reshape(1, 1, 3).requires_grad_()
    for f in (0.0, 1e-12, 0.5):
        out = Bernoulli(logits).through(torch.tensor(f)).log_prob(torch.tensor([0.0, 1.0, 1.0]).reshape(1, 1, 3))
        (slope,) = torch.autograd.grad(out, logits)
        assert bool(out.isfinite())
        assert bool(slope.isfinite().all())


@KINDS
def test_white_is_the_square_root_of_the_precision(config: DKMConfig) -> None:
    """ln p(x) = −½ ‖white(x − mean)‖² + what x does not change; also with some channels of some pixels lost."""
    m = model(config, dtype=torch.float64)
    out = m.decode(normal(2, config.code))
    assert isinstance(out, Gaussian | Correlated)
    y = images(config, 2, dtype=torch.float64)
    for mask in (None, (normal(2, *config.image, seed=3) > 0).double()):
        white = out.white(y - out.mean, mask)
        zero = out.log_prob(out.mean, mask)
        torch.testing.assert_close(out.log_prob(y, mask) - zero, -0.5 * white.square().sum((-3, -2, -1)))
        if mask is not None:
            assert float(white[mask == 0].abs().max()) == 0
