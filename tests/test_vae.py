"""VAE: its bound and its importance-weighted bound, against torch.distributions and against an integral."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from cases import generator, images
from kanerva import CodecConfig
from kanerva.models.rivals.vae import VAE, VAEConfig

SMALL = VAEConfig(image=(1, 6, 7), code=5, codec=CodecConfig((4, 6)))
COLOUR = dataclasses.replace(SMALL, image=(3, 6, 6), likelihood="gaussian")


def model(config: VAEConfig = SMALL) -> VAE:
    torch.manual_seed(0)
    return VAE(config).double()


def posterior(m: VAE, x: Tensor) -> Normal:
    """q(z | x), from the encoder's outputs."""
    mean, log_var = m.encoder(x.flatten(0, -4)).reshape(*x.shape[:-3], 2, m.config.code).unbind(-2)
    return Normal(mean, (0.5 * log_var).exp())


@pytest.mark.parametrize("config", [SMALL, COLOUR], ids=["binary", "colour"])
def test_forward_gives_the_terms_of_the_bound(config: VAEConfig) -> None:
    m, x = model(config), images(config, 2, 4)
    q = posterior(m, x)
    z = q.mean + q.stddev * torch.randn(2, 4, 5, generator=generator(3), dtype=x.dtype)
    terms = m(x, generator(3))
    torch.testing.assert_close(terms.log_lik, m.decode(z).log_prob(x))
    torch.testing.assert_close(terms.kl_weights, kl_divergence(q, Normal(0.0, 1.0)).sum(-1))
    assert terms.log_lik_auto is None
    assert terms.kl_memory is None
    torch.testing.assert_close(m.encode(x), q.mean)


@pytest.mark.parametrize("config", [SMALL, COLOUR], ids=["binary", "colour"])
def test_importance_weights_are_joint_over_posterior(config: VAEConfig) -> None:
    m, x = model(config), images(config, 2, 4)
    q, draws, weights = posterior(m, x), generator(3), []
    for _ in range(3):
        z = q.mean + q.stddev * torch.randn(2, 4, 5, generator=draws, dtype=x.dtype)
        weights.append(m.decode(z).log_prob(x) + Normal(0.0, 1.0).log_prob(z).sum(-1) - q.log_prob(z).sum(-1))
    torch.testing.assert_close(m.importance(x, 3, generator(3)), torch.stack(weights).exp().mean(0).log())
    with pytest.raises(ValueError, match="k: expected a whole number of at least 1, got 0"):
        m.importance(x, 0)


@torch.no_grad()
def test_importance_comes_to_the_likelihood() -> None:
    """With codes of one number, ln p(x) is an integral over a line. On average, the bounds rise to it with k."""
    m = model(dataclasses.replace(SMALL, code=1))
    m.encoder.out.bias[:] = torch.tensor([0.5, 0.5])  # a posterior that is off, and wider than the true one
    x, z, prior = images(SMALL, 6), torch.linspace(-8, 8, 2001, dtype=torch.float64)[:, None], Normal(0.0, 1.0)
    joint = [m.decode(z).log_prob(image.expand(2001, *image.shape)) + prior.log_prob(z[:, 0]) for image in x]
    exact = torch.stack(joint).logsumexp(-1) + math.log(16 / 2000)
    often = x.expand(200, *x.shape)
    single, some = (m.importance(often, k, generator()) for k in (1, 10))
    # errors of four standard errors
    error = 4 * single.exp().std(0) / single.exp().mean(0) / 200**0.5
    assert bool(((single.logsumexp(0) - math.log(200) - exact).abs() < error).all())
    assert float(error.max()) < 0.3
    assert bool((single.mean(0) < some.mean(0)).all())
    assert bool((some.mean(0) < exact + error).all())
    bound = -m(often, generator(1)).each().mean(0)
    assert bool(((bound - single.mean(0)).abs() < 4 * single.std(0) / 200**0.5).all())


def test_recall_encodes_and_decodes() -> None:
    m, x = model(), images(SMALL, 2, 4)
    found = m.recall(m.write(x), x, 2)
    once = m.decode(posterior(m, x).mean).mode()
    assert torch.equal(found.x[0], once)
    assert torch.equal(found.x[1], m.decode(posterior(m, once).mean).mode())


def test_samples_are_decoded_from_the_prior() -> None:
    m = model()
    drawn = m.sample(m.write(images(SMALL, 4)), 6, 3, generator(2))
    z = torch.randn(6, 5, generator=generator(2), dtype=torch.float64)
    assert torch.equal(drawn.x[0], m.decode(z).mode())
    assert torch.equal(drawn.x[1:], m.recall(m.write(drawn.x[0]), drawn.x[0], 2).x)


def test_colours_out_of_range_are_decoded_on() -> None:
    """What an untrained decoder makes of an image need not be one; recall goes on from it all the same."""
    m, x = model(COLOUR).requires_grad_(False), images(COLOUR, 4)
    for part in m.decoder.up:
        part.weight.mul_(10)  # type: ignore[operator]
    assert float(m.recall(m.write(x), x, 3).x.abs().max()) > 1.5
