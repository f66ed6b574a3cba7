"""The fit of q to single images: it starts as the model's own q, lowers the bound, and finds a known posterior."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import fitted
import kanerva
from kanerva import DKM, CodecConfig
from kanerva.models.rivals.vae import VAE

KINDS: dict[str, dict[str, Any]] = {
    "dkm": {"rows": 4, "weights": "full"},
    "dkm-isotropic": {"rows": 4, "weights": "isotropic"},
    "vae": {},
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(kind: str, linear: bool = False) -> fitted.Problem:
    """Three new images in each of two memories of five; a tiny model, not trained, in float64."""
    torch.manual_seed(0)
    image, likelihood = ((1, 5, 6), "gaussian") if linear else ((1, 7, 8), "bernoulli")
    codec = CodecConfig((4, 4), linear=linear)
    model = kanerva.create(kind.split("-")[0], image, likelihood, code=5, codec=codec, **KINDS[kind])
    assert isinstance(model, DKM | VAE)
    model.double().eval().requires_grad_(False)
    x = torch.rand(2, 8, *image, generator=generator(), dtype=torch.float64)
    x = x if linear else x.round()
    return fitted.Problem(model, model.write(x[:, :5]), x[:, 5:])


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_is_what_the_model_infers(kind: str) -> None:
    """Its KL is that of `given`, and so is the mean of many draws."""
    one = problem(kind)
    q = one.inferred()
    draws = [one.model.given(one.state, one.x, generator(seed)) for seed in range(100)]
    torch.testing.assert_close(q.kl(), draws[0].kl_weights)
    log_lik = torch.stack([terms.log_lik for terms in draws])
    own = one.log_lik(q.at(torch.randn(100, *q.mean.shape, generator=generator(), dtype=torch.float64)))
    error = ((log_lik.var(0) + own.var(0)) / 100).sqrt()
    assert ((own.mean(0) - log_lik.mean(0)).abs() < 4 * error).all()  # six images: once in 2,600 seeds by chance


@pytest.mark.parametrize("kind", KINDS)
def test_the_fit_lowers_the_bound(kind: str) -> None:
    """And leaves the model as it is."""
    one = problem(kind)
    before = {name: value.clone() for name, value in one.model.state_dict().items()}
    q = one.inferred()
    found = fitted.fit(one, q, 60, generator(1))
    first, last = (fitted.score(one, each, generator(2)) for each in (q, found))
    assert (last[""] < first[""]).all()
    assert all(torch.equal(value, before[name]) for name, value in one.model.state_dict().items())


def exact(one: fitted.Problem) -> Tensor:
    """−ln p(x | memory) where the decoder is x = A z + b and noise: x ~ N(b, A cov(z) Aᵀ + scale² I)."""
    assert one.model.decoder.linear is not None
    A, b = one.model.decoder.linear.weight, one.model.decoder.linear.bias
    if isinstance(one.model, DKM):
        A = A @ one.state.R.mT  # z = Rᵀw
    noise = one.model.decode(torch.zeros(1, 5, dtype=torch.float64)).scale.square() * torch.eye(len(b))
    x = one.x.flatten(-3)
    cov = (A @ A.mT + noise).expand(len(x), len(b), len(b))
    return -MultivariateNormal(b, cov[:, None]).log_prob(x).mean(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fit_finds_the_posterior_of_a_linear_decoder(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is Gaussian, so that the bound is −ln p itself; what the models infer is 2 to 10 nats above it."""
    monkeypatch.setattr(fitted, "DRAWS", 1_024)
    one = problem(kind, linear=True)
    for parameter in one.model.decoder.up[-1].parameters():
        parameter.zero_()  # of the convolutions nothing is left
    found = fitted.score(one, fitted.fit(one, one.inferred(), 600, generator(1)), generator(2))
    # ln p(x | u) has a deviation of √(5/2) or less, and each mean is over 3 · 1,024 draws: 0.03
    torch.testing.assert_close(found[""], exact(one), atol=0.1, rtol=0)
    # p(x, u) / q(u) is the same for all u, up to what Adam left
    torch.testing.assert_close(found[", importance-weighted"], exact(one), atol=0.01, rtol=0)
