"""benchmarks/bounds.py: fits find a known posterior, strict bounds are the score, other memories are worse."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import bounds
import kanerva
from cases import generator
from kanerva import DKM, CodecConfig, DKMConfig, memory
from kanerva.data import ClassImages
from kanerva.memory import MemoryState
from kanerva.models.dkm import STRICT
from kanerva.models.rivals.vae import VAE
from kanerva.training.evaluate import halves, new_images

KINDS: dict[str, dict[str, Any]] = {
    "dkm": {"rows": 4, "weights": "full"},
    "dkm-isotropic": {"rows": 4, "weights": "isotropic"},
    "vae": {},
}


def problem(kind: str, linear: bool = False) -> bounds.Problem:
    """Three new images in each of two memories of five; a tiny model, not trained, in float64."""
    torch.manual_seed(0)
    image, likelihood = ((1, 5, 6), "gaussian") if linear else ((1, 7, 8), "bernoulli")
    codec = CodecConfig((4, 4), linear=linear)
    model = kanerva.create(kind.split("-")[0], image, likelihood, code=5, codec=codec, **KINDS[kind])
    assert isinstance(model, DKM | VAE)
    model.double().eval().requires_grad_(False)
    x = torch.rand(2, 8, *image, generator=generator(), dtype=torch.float64)
    x = x if linear else x.round()
    return bounds.Problem(model, model.write(x[:, :5]), x[:, 5:])


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


def exact(one: bounds.Problem) -> Tensor:
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
    monkeypatch.setattr(bounds, "DRAWS", 1_024)
    one = problem(kind, linear=True)
    for parameter in one.model.decoder.up[-1].parameters():
        parameter.zero_()  # of the convolutions nothing is left
    found = bounds.score(one, bounds.fit(one, one.inferred(), 600, generator(1)), generator(2))
    # ln p(x | u) has a deviation of √(5/2) or less, and each mean is over 3 · 1,024 draws: 0.03
    torch.testing.assert_close(found[""], exact(one), atol=0.1, rtol=0)
    # p(x, u) / q(u) is the same for all u, up to what Adam left
    torch.testing.assert_close(found[", importance-weighted"], exact(one), atol=0.01, rtol=0)


@pytest.fixture
def model() -> DKM:
    torch.manual_seed(0)
    config = DKMConfig(rows=6, code=9, codec=CodecConfig((4, 4, 4)), weights="full", read_noise="own", block=32)
    return DKM(config).eval()


@pytest.fixture(scope="module")
def images() -> ClassImages:
    return kanerva.data.load("glyphs", "test")


@torch.no_grad()
def test_a_memory_that_is_sure_is_read_as_its_mean_and_costs_more(model: DKM, images: ClassImages) -> None:
    """At the scale 1e-14 what is drawn is R, so the first term is the usual score, and the second KL(M) there."""
    found = bounds.strict(model, images, [1e-14], 512)[0]
    generator = torch.Generator().manual_seed(0)
    x = model.episodes(images, 16, 32, None, generator)
    nats = model(x, generator).nats().double()
    R, U = model.write(x).to(torch.float64)
    blank = memory.prior(model.R0.double(), 1e-14 * model.prior_var.double(), (16,))
    kl_memory = memory.kl_memory(MemoryState(R, 1e-14 * U), blank)
    torch.testing.assert_close(found, nats + kl_memory / 32, rtol=1e-6, atol=0)


@torch.no_grad()
def test_at_its_own_scale_it_is_the_score_with_m_drawn(model: DKM, images: ClassImages) -> None:
    found = bounds.strict(model, images, [1.0], 2_048)[0]
    score = kanerva.evaluate(model, images, count=2_048)
    assert abs(float(found.mean()) - score.extra[STRICT]["mean"]) < 4 * score.extra[STRICT]["stderr"]


@torch.no_grad()
def test_scores_are_those_of_evaluate_and_of_other_memories(images: ClassImages) -> None:
    model = kanerva.load("omniglot-new").eval()
    written, read = halves(images, 6, 4, 20, seed=0)
    found = bounds.scored(model, written, read)
    score = new_images(model, images, count=240)
    assert score is not None
    assert float(found[bounds.OWN].mean()) == pytest.approx(score["mean"], rel=1e-5)
    shifted = bounds.scored(model, written.roll(1, 0), read)
    # float32: a memory comes out a little different at another place in the batch
    torch.testing.assert_close(found[bounds.OTHER], shifted[bounds.OWN], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[bounds.BLANK], shifted[bounds.BLANK], rtol=1e-5, atol=0)
    assert (found[bounds.OWN] < found[bounds.OTHER]).all()
    assert (found[bounds.OWN] < found[bounds.BLANK]).all()
