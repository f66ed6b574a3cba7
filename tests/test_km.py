"""KM: its memory against writing one by one, its bound against draws of the memory, and against an integral."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

import kanerva
from cases import AWKWARD, case, generator, images, normal
from kanerva import CodecConfig, MemoryState, memory
from kanerva.memory import moments
from kanerva.models.rivals.gaussian import DiagonalGaussian
from kanerva.models.rivals.km import KM, KMConfig, posterior, uncertainty

SMALL = KMConfig(image=(1, 6, 7), code=5, rows=4, key=3, codec=CodecConfig((4, 6)), memory="exact")
COLOUR = dataclasses.replace(SMALL, image=(3, 6, 6), likelihood="gaussian", memory="mean")


def model(config: KMConfig = SMALL) -> KM:
    torch.manual_seed(0)
    return KM(config).double()


# the memory


@pytest.mark.parametrize(("batch", "K", "C", "T"), AWKWARD)
def test_posterior_is_that_of_writing_one_by_one(batch: tuple[int, ...], K: int, C: int, T: int) -> None:
    c, prior_var = case(batch, K, C, T), torch.tensor(0.7, dtype=torch.float64)
    R0 = normal(K, C, seed=9)
    state, log_det = posterior(R0, prior_var, c.w, c.z, c.noise_var)
    expected = blank = memory.prior(R0, prior_var, batch)
    for t in range(T):
        expected = memory.update(expected, c.w[..., t, :], c.z[..., t, :], c.noise_var)
    for one, other in zip(state, expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(log_det, torch.logdet(expected.U) - torch.logdet(blank.U))
    kl = moments.kl_prior(state, R0, prior_var, log_det)
    torch.testing.assert_close(kl, memory.kl_memory(expected, blank))


@pytest.mark.parametrize(("K", "C"), [(3, 4), (4, 2), (1, 2)])
def test_posterior_and_uncertainty_have_gradients(K: int, C: int) -> None:
    c = case((2,), K, C, T=3)

    def both(R0: Tensor, prior_var: Tensor, w: Tensor, z: Tensor, noise_var: Tensor) -> tuple[Tensor, ...]:
        state, log_det = posterior(R0, prior_var, w, z, noise_var)
        return (*state, log_det, uncertainty(state, w, noise_var))

    leaves = (normal(K, C, seed=9), torch.tensor(0.7, dtype=torch.float64), c.w, c.z, c.noise_var)
    assert torch.autograd.gradcheck(both, [x.clone().requires_grad_() for x in leaves])


def test_writing_on_is_writing_at_once() -> None:
    m, x = model(), images(SMALL, 2, 5)
    at_once, blank = m.write(x), memory.prior(m.memory.R0, m.memory.prior_var, (2,))
    in_parts = m.write(x[:, [1]], m.write(x[:, [4, 2]], m.write(x[:, [3, 0]])))
    e = m.encode(x)
    one_by_one = memory.condition(blank, m.weights(m.keys(e).mean), e, m.memory.noise_var)
    for a, b, c in zip(at_once, in_parts, one_by_one, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c)
    assert sum(part[0].numel() for part in at_once) == m.kept(5)


# the bound


def inferred(m: KM, x: Tensor, seed: int) -> tuple[MemoryState, Normal, Tensor, Normal]:
    """The memory, q(y | x), the weights of the keys that a seed draws, and q(z | x, y, X)."""
    e = m.encode(x)
    mean, log_var = m.key_head(e).chunk(2, -1)
    q_y = Normal(mean, (0.5 * log_var - 1).exp())
    w = m.f(q_y.mean + q_y.stddev * torch.randn(mean.shape, generator=generator(seed), dtype=x.dtype)) @ m.A.T
    state = m.write(x)
    correction, log_ratio = m.code_head(torch.cat([e, w @ state.R], -1)).chunk(2, -1)
    mean = (e + w @ state.R) / 2 + correction
    return state, q_y, w, Normal(mean, (m.memory.noise_var / 2 * log_ratio.exp()).sqrt())


@torch.no_grad()
@pytest.mark.parametrize("config", [SMALL, COLOUR], ids=["binary", "colour"])
def test_the_bound_averages_over_draws_of_the_memory(config: KMConfig) -> None:
    """What is charged for z is the mean of KL(q(z) ‖ p(z | y, M)) over draws of M; with M = R, the paper's."""
    m, x = model(config), images(config, 2, 4)
    state, q_y, w, q_z = inferred(m, x, seed=3)
    kl_y = kl_divergence(q_y, Normal(0.0, 1.0)).sum(-1)
    many = memory.sample(MemoryState(*(part.expand(4000, *part.shape) for part in state)), generator(5))
    drawn = kl_divergence(q_z, Normal(w @ many, m.memory.noise_var.sqrt())).sum(-1)
    exact, plain_one = (model(dataclasses.replace(config, memory=kind)) for kind in ("exact", "mean"))  # one seed
    charged = exact(x, generator(3)).kl_weights
    assert charged is not None
    error = 4 * drawn.std(0) / 4000**0.5  # four standard errors
    assert bool(((kl_y + drawn.mean(0) - charged).abs() < error).all())
    plain = kl_y + kl_divergence(q_z, Normal(w @ state.R, m.memory.noise_var.sqrt())).sum(-1)
    assert bool((charged - plain > 2 * error).all())  # or the test could not tell the two apart
    torch.testing.assert_close(plain_one(x, generator(3)).kl_weights, plain)
    torch.testing.assert_close(m(x, generator(3)).kl_weights, charged if config.memory == "exact" else plain)


@torch.no_grad()
def test_the_paper_charges_nothing_for_what_is_written_and_the_report_says_what_that_is() -> None:
    point = dataclasses.replace(SMALL, memory="mean")
    m, x = model(point), images(SMALL, 2, 4)
    assert m(x, generator(3)).kl_memory is None
    bound = model(SMALL)(x, generator(3))  # the same weights
    extra = m.extra_scores(x, generator(3))
    assert bound.kl_memory is not None
    torch.testing.assert_close(extra["KL(M) / T, not charged"], bound.kl_memory / 4)
    torch.testing.assert_close(extra["the memory's uncertainty counted"], bound.nats())


@torch.no_grad()
def test_the_bound_is_of_the_image_given_what_was_drawn() -> None:
    m, x = model(), images(SMALL, 2, 4)
    draws = generator(3)
    noise_y = torch.randn(2, 4, 3, generator=draws, dtype=x.dtype)
    noise_z = torch.randn(2, 4, 5, generator=draws, dtype=x.dtype)
    state, q_y, w, q_z = inferred(m, x, seed=3)
    torch.testing.assert_close(w, m.weights(q_y.mean + q_y.stddev * noise_y))
    terms = m(x, generator(3))
    torch.testing.assert_close(terms.log_lik, m.decode(q_z.mean + q_z.stddev * noise_z).log_prob(x))
    torch.testing.assert_close(
        terms.kl_memory, memory.kl_memory(state, memory.prior(m.memory.R0, m.memory.prior_var))
    )
    torch.testing.assert_close(terms.log_lik_auto, m.decode(m.encode(x)).log_prob(x))


@torch.no_grad()
def test_the_bound_is_below_the_likelihood() -> None:
    """With T = 1, keys of one number and a linear Gaussian decoder, ln p(x) is an integral over a line."""
    small = dataclasses.replace(COLOUR, image=(1, 2, 2), key=1, code=2)
    m, other = (model(dataclasses.replace(small, memory=kind)) for kind in ("exact", "mean"))
    decoder = Linear()
    for each in (m, other):
        each.decoding = decoder.decode  # type: ignore[method-assign,assignment]
    x = 0.4 * normal(5, 1, 1, 2, 2, seed=2)
    y = torch.linspace(-8, 8, 4001, dtype=torch.float64)[:, None]
    w = m.weights(y)
    # x = z B + ε with z = wᵀM + ξ: all Gaussian given y
    var = m.memory.prior_var * w.square().sum(-1) + m.memory.noise_var
    mean = w @ m.memory.R0 @ decoder.B
    cov = var[:, None, None] * (decoder.B.mT @ decoder.B) + 0.25 * torch.eye(4, dtype=torch.float64)
    given = torch.distributions.MultivariateNormal(mean, cov).log_prob(x.flatten(1)[:, None])
    exact = (given + Normal(0.0, 1.0).log_prob(y[:, 0])).logsumexp(-1) + torch.tensor(16 / 4000).log()
    often = m(x.expand(2000, *x.shape), generator())
    bound = often.bound()
    assert bool((bound.mean(0) < exact + 4 * bound.std(0) / 2000**0.5).all())
    loose = other(x.expand(2000, *x.shape), generator()).bound()
    assert bool((loose.mean(0) > bound.mean(0)).all())


class Linear:
    """p(x | z) = N(z B, 0.25 I)."""

    B = normal(2, 4, seed=1)

    def decode(self, z: Tensor) -> Any:
        mean = (z @ self.B).unflatten(-1, (1, 2, 2))
        return kanerva.likelihood.Gaussian(mean, torch.tensor(0.5, dtype=torch.float64))


def test_divergences_are_those_of_torch() -> None:
    q = DiagonalGaussian(normal(3, 4), normal(3, 4, seed=1))
    mine = Normal(q.mean, (0.5 * q.log_var).exp())
    torch.testing.assert_close(q.kl(), kl_divergence(mine, Normal(0.0, 1.0)).sum(-1))
    mean, log_var = normal(3, 4, seed=2), torch.tensor(-0.7, dtype=torch.float64)
    expected = kl_divergence(mine, Normal(mean, (0.5 * log_var).exp())).sum(-1)
    torch.testing.assert_close(q.kl(mean, log_var), expected)


# recall


def test_recall_goes_through_the_memory_alone() -> None:
    m, x = model(), images(SMALL, 2, 4)
    state = m.write(x)
    found = m.recall(state, x, 2)
    w = m.weights(m.keys(m.encode(x)).mean)
    once = m.decode(w @ state.R).mode()
    assert found.w is not None
    torch.testing.assert_close(found.w[0], w)
    assert torch.equal(found.x[0], once)
    assert torch.equal(found.x[1], m.recall(state, once, 1).last)


def test_samples_are_read_with_keys_from_the_prior() -> None:
    m = model()
    state = m.write(images(SMALL, 4))
    drawn = m.sample(state, 6, 3, generator(2))
    y = torch.randn(6, 3, generator=generator(2), dtype=torch.float64)
    assert torch.equal(drawn.x[0], m.decode(m.weights(y) @ state.R).mode())
    assert torch.equal(drawn.x[1:], m.recall(state, drawn.x[0], 2).x)
    assert torch.equal(m.sample(state, 6, 1, generator(2)).x, drawn.x[:1])


# in use


def test_long_episodes_stay_finite_in_float32() -> None:
    """Also where the memory is nearly certain: a noise of 1e-4 against a prior of 1e2."""
    torch.manual_seed(0)
    m = KM(dataclasses.replace(SMALL, rows=64, code=20))
    with torch.no_grad():
        m.memory.log_noise_var.fill_(-9.0)
        m.memory.log_prior_var.fill_(4.6)
    x = images(SMALL, 2, 200).float()
    m(x, generator()).loss().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in m.parameters())
    state = m.write(x, m.write(x))
    assert bool(m.recall(state, x[:, :3], 2).x.isfinite().all())
