"""Inference from cues of real-valued pixels, in the frame of a memory."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import kanerva
from cases import covariance_of, normal
from kanerva import DKM, DKMConfig
from kanerva.codec import start_linear
from kanerva.data import damage
from kanerva.likelihood import Correlated, Gaussian, Likelihood
from kanerva.memory import MemoryState
from kanerva.recall import frame, newton
from recalling import COLOUR, CORRELATED, generator, images, model

KINDS = pytest.mark.parametrize("config", [COLOUR, CORRELATED], ids=["colour", "correlated"])


def decodable(m: DKM, n: int, seed: int = 0) -> Tensor:
    """Images that the codec can express."""
    z = 3 * normal(n, m.config.code, seed=seed, dtype=m.R0.dtype)
    return m.decode(z).mode().clamp(-1, 1)


def energy(out: Likelihood, u: Tensor, y: Tensor, mask: Tensor, level: Tensor) -> Tensor:
    """E of the docstring, by PyTorch's distributions."""
    if isinstance(out, Correlated):
        Sigma = covariance_of(out) + level[:, None, None, None, None] * torch.eye(3)
        seen = (
            MultivariateNormal(out.mean.movedim(-3, -1), Sigma).log_prob(y.movedim(-3, -1))[:, None] * mask[:, :1]
        )
    else:
        variance = out.scale**2 + level[:, None, None, None]
        seen = torch.distributions.Normal(out.mean, variance.sqrt()).log_prob(y) * mask
    return u.shape[-1] / 2 * u.square().sum(-1) - seen.sum((-3, -2, -1))


@KINDS
def test_newton_ends_where_no_small_change_explains_more(config: DKMConfig) -> None:
    """With scales that do not depend on the code, where the energy's slope is the one that is used."""
    m = model(config, dtype=torch.float64)
    if config.scale == "colour":
        m.decoder.up[-1].weight[:, 3:] = 0
    x = decodable(m, 4)
    state = m.write(x)
    at = m.retriever(state)
    F = frame.Frames.of(at.hyper, MemoryState(*(part[None] for part in state))).codes[0, :4]
    y, v = damage.noise(x, 0.1, generator()).x, torch.full((4,), 2.0, dtype=torch.float64)
    mask = damage.half(y, "top").mask
    assert mask is not None
    mask = mask.expand_as(y)
    with kanerva.deep_checks(False):
        u = newton.explain(at, F, y, mask, 4.0, 2.0)
        found = energy(m.decode(u @ F), u, y, mask, v)
        for seed in range(20):
            other = u + 0.3 * normal(*u.shape, seed=seed) / u.shape[-1] ** 0.5
            assert bool((energy(m.decode(other @ F), other, y, mask, v) > found - newton.STILL).all())
        zero = torch.zeros_like(u)
        assert bool((energy(m.decode(zero @ F), zero, y, mask, v) > found).all())


def exact(config: DKMConfig) -> tuple[DKM, Tensor]:
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
def test_newton_finds_stored_images_from_half_of_them(config: DKMConfig, inside: bool) -> None:
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


def test_newton_is_least_squares_where_the_decoder_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """u = (JᵀJ / v + n I)⁻¹ Jᵀ (y − mean) / v over the pixels of the mask, v of the noise and of the pixels."""
    monkeypatch.setattr(newton, "STILL", 0.0)
    m = exact(COLOUR)[0].double()
    m.decoder.up[-1].weight.zero_()
    m.decoder.up[-1].bias.zero_()
    assert m.decoder.linear is not None
    at, F, y = m.retriever(m.blank()), normal(4, COLOUR.code), images(COLOUR, 3, seed=4, dtype=torch.float64)
    mask = damage.half(y, "top").mask
    assert mask is not None
    mask = mask.expand_as(y)
    with kanerva.deep_checks(False):
        u = newton.explain(at, F, y, mask, 50.0, 3.0)
    known = mask[0].flatten().bool()
    J, v = (F @ m.decoder.linear.weight.mT)[:, known], 3 + float(newton.real(m.decode(u @ F)).scale.mean()) ** 2
    apart = (y.flatten(1) - m.decoder.linear.bias)[:, known]
    exactly = torch.linalg.solve(J @ J.mT / v + 50 * torch.eye(4), J @ apart.mT / v).mT
    torch.testing.assert_close(u, exactly, rtol=0.01, atol=1e-4)  # steps are damped by a hundredth


def test_newton_finds_out_the_noise() -> None:
    y, level = normal(3, 3, 8, 8), torch.tensor([0.5, 0.5, 0.5], dtype=torch.float64)
    sure = Gaussian(torch.zeros_like(y), torch.tensor(0.01, dtype=torch.float64))
    scales = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    for _ in range(6):
        level = newton.level(sure, y * scales[:, None, None, None], None, level, None)
    assert bool((level.sqrt() / scales - 1).abs().max() < 0.3)
    assert float(newton.level(sure, 0 * y, None, level, 0.04).min()) == pytest.approx(0.04)  # as it was told
    # at least the pixels' own
    vague = Gaussian(torch.zeros_like(y), torch.tensor(0.3, dtype=torch.float64))
    assert float(newton.level(vague, 0 * y, None, level, None).min()) >= 0.3**2 - 1e-12


@KINDS
def test_white_is_the_square_root_of_the_precision(config: DKMConfig) -> None:
    """ln p(x) = −½ ‖white(x − mean)‖² + what x does not change; also with some channels of some pixels lost."""
    m = model(config, dtype=torch.float64)
    out = newton.real(m.decode(normal(2, config.code)))
    y = images(config, 2, dtype=torch.float64)
    for mask in (None, (normal(2, *config.image, seed=3) > 0).double()):
        white = out.white(y - out.mean, mask)
        zero = out.log_prob(out.mean, mask)
        torch.testing.assert_close(out.log_prob(y, mask) - zero, -0.5 * white.square().sum((-3, -2, -1)))
        if mask is not None:
            assert float(white[mask == 0].abs().max()) == 0
