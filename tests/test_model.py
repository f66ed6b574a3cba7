"""Codec, likelihoods, DKM and its objectives, each against the parts that it is made of."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import kanerva
from cases import covariance_of, generator, normal
from kanerva import DKM, CodecConfig, DKMConfig, memory
from kanerva.codec import Down, Up
from kanerva.likelihood import Bernoulli, Correlated, Gaussian, bits_per_dimension
from kanerva.memory import moments
from kanerva.models.rivals.gaussian import DiagonalGaussian
from kanerva.models.rivals.vae import VAE, VAEConfig
from kanerva.support.pixels import LEVEL, dequantise, middle

SMALL = DKMConfig(image=(1, 9, 10), rows=5, code=7, codec=CodecConfig((4, 6)))
COLOUR = dataclasses.replace(SMALL, image=(3, 8, 8), likelihood="gaussian")


def model(config: DKMConfig = SMALL, seed: int = 0) -> DKM:
    torch.manual_seed(seed)
    return DKM(config).double()


def binary(*shape: int, seed: int = 0) -> Tensor:
    return (normal(*shape, seed=seed) > 0.5).double()


# codec


def test_the_paper_s_model_has_its_size() -> None:
    """99,576 numbers in codec and memory, as three independent reimplementations count."""
    assert sum(p.numel() for p in DKM(DKMConfig()).parameters()) == 99_576


@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32), (1, 7, 12), (2, 3, 5)])
@pytest.mark.parametrize("codec", [CodecConfig(), CodecConfig((4, 6), style="silu")])
def test_images_of_any_size_come_back_in_their_size(image: tuple[int, int, int], codec: CodecConfig) -> None:
    m = model(DKMConfig(image=image, rows=3, code=5, codec=codec))
    x = binary(2, 3, *image)
    z = m.encode(x)
    assert z.shape == (2, 3, 5)
    assert m.decode(z).mode().shape == x.shape
    assert m.encode(x[0, 0]).shape == (5,)
    torch.testing.assert_close(m.encode(x)[1, 2], m.encode(x[1, 2]))


# likelihoods


def test_bernoulli_and_gaussian_are_those_of_torch() -> None:
    logits, x = 3 * normal(2, 5, 3, 4, 4), binary(2, 5, 3, 4, 4, seed=1)
    exact = TorchBernoulli(logits=logits).log_prob(x).sum((-3, -2, -1))
    torch.testing.assert_close(Bernoulli(logits).log_prob(x), exact)
    y, scale = normal(2, 5, 3, 4, 4, seed=1), torch.tensor(0.3, dtype=torch.float64)
    exact = Normal(logits, scale).log_prob(y).sum((-3, -2, -1))
    torch.testing.assert_close(Gaussian(logits, scale).log_prob(y), exact)


def correlated(c: int, *batch: int, h: int = 2, w: int = 3) -> Correlated:
    """Means, scales and correlations of any size, for images of c channels."""
    mean, s = normal(*batch, c, h, w), normal(*batch, c, h, w, seed=1)
    return Correlated(mean, (0.5 * s).exp(), normal(*batch, c * (c - 1) // 2, h, w, seed=2))


def density(likelihood: Correlated, x: Tensor, covariance: Tensor) -> Tensor:
    mean = likelihood.mean.movedim(-3, -1)
    return MultivariateNormal(mean, covariance).log_prob(x.movedim(-3, -1)).sum((-2, -1))


@pytest.mark.parametrize("c", [1, 2, 3, 5])
def test_correlated_is_that_of_torch(c: int) -> None:
    likelihood, x = correlated(c, 2, 4), normal(2, 4, c, 2, 3, seed=3)
    Sigma, noise_var = covariance_of(likelihood), torch.tensor([0.0, 1e-3, 0.5, 30.0]).double()
    torch.testing.assert_close(likelihood.log_prob(x), density(likelihood, x, Sigma))
    noisy = Sigma + noise_var[:, None, None, None, None] * torch.eye(c)
    torch.testing.assert_close(likelihood.through(noise_var).log_prob(x), density(likelihood, x, noisy))
    torch.testing.assert_close(covariance_of(likelihood.through(noise_var)), noisy)
    torch.testing.assert_close(covariance_of(likelihood.tempered(0.3)), 0.3 * Sigma)


def test_correlated_integrates_out_what_a_mask_leaves_out() -> None:
    likelihood, x = correlated(3, 2, 4), normal(2, 4, 3, 2, 3, seed=3)
    Sigma = covariance_of(likelihood)
    mask = torch.rand(4, 3, 2, 3, generator=generator()) > 0.4
    mask[0] = mask[0, :1]  # whole pixels
    wanted = torch.zeros(2, 4, dtype=torch.float64)
    for t, h, w in itertools.product(range(4), range(2), range(3)):
        if bool((m := mask[t, :, h, w]).any()):
            some = MultivariateNormal(likelihood.mean[:, t, m, h, w], Sigma[:, t, h, w][:, m][:, :, m])
            wanted[:, t] += some.log_prob(x[:, t, m, h, w])
    lost = torch.where(mask, x, torch.nan)
    torch.testing.assert_close(likelihood.log_prob(lost, mask.double()), wanted)
    torch.testing.assert_close(likelihood.log_prob(lost, mask[:, :1].double())[:, 0], wanted[:, 0])


def test_correlated_channels_are_drawn_with_their_covariance() -> None:
    one = correlated(3, h=1, w=1)
    drawn = Correlated(*(a.expand(100_000, *a.shape) for a in one)).sample(generator())[..., 0, 0]
    torch.testing.assert_close(drawn.mean(0), one.mean[:, 0, 0], rtol=0, atol=0.03)  # 1/√100,000 of scales up to 3
    torch.testing.assert_close(drawn.T.cov(), covariance_of(one)[0, 0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("scale", [0.003, 0.02, 0.3])
def test_levels_are_integrals(scale: float) -> None:
    """ln of the mean density over a level, by quadrature, with LEVEL² / 12 taken from the variance."""
    x, own = torch.linspace(-0.99, 0.97, 50).double(), math.sqrt(scale**2 - LEVEL**2 / 12)
    low = (x / LEVEL).floor() * LEVEL
    at = low[:, None] + LEVEL * (torch.arange(2_000).double() + 0.5) / 2_000
    mean = x + normal(50) * 2 * scale
    exact = Normal(mean[:, None], own).log_prob(at).logsumexp(-1) - math.log(2_000)
    found = Gaussian(mean[:, None, None, None], torch.tensor(scale).double()).log_level(x[:, None, None, None])
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0025, 0.005, 0.1, 2.0])
def test_levels_have_their_gradients_in_float32(scale: float) -> None:
    """Also for pixels that are wrong by the whole range, and sure of it; float64 is the judge."""
    apart = torch.tensor([0.0, 0.001, 0.004, 0.02, 0.05, 0.3, 1.0, 1.9]).double()
    x = torch.full_like(apart, -1.0)[:, None, None, None]

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        mean, s = middle(x) + apart[:, None, None, None] + 1e-4, torch.full_like(x, scale)
        inputs = [a.to(dtype).requires_grad_() for a in (mean, s)]
        found = Gaussian(*inputs).log_level(x.to(dtype))
        assert found.isfinite().all()
        return [g.double() for g in torch.autograd.grad(found.sum(), inputs)]

    for single, exact in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        # near the mean the gradient itself is small, and its error relative to 1 / scale
        torch.testing.assert_close(single, exact, rtol=1e-3, atol=1e-3 / scale)


def test_correlated_keeps_its_digits_in_float32() -> None:
    """Channels that are nearly the same, with little noise: a difference of large numbers would be noise."""
    likelihood = correlated(3, 5)
    likelihood = Correlated(
        likelihood.mean,
        likelihood.scale * torch.tensor([1.0, 1e-3, 1e-3]).double()[:, None, None],
        1 + 0.1 * likelihood.lower,
    )
    noise_var = torch.full((5,), 1e-6).double()
    single = Correlated(*(a.float() for a in likelihood)).through(noise_var.float())
    exact = likelihood.through(noise_var)
    torch.testing.assert_close(single.scale.double(), exact.scale, rtol=1e-5, atol=0)
    torch.testing.assert_close(single.lower.double(), exact.lower, rtol=1e-4, atol=1e-5)


def test_samples_have_the_mean_of_their_likelihood() -> None:
    logits = torch.tensor([-2.0, 0.0, 1.0]).expand(40_000, 1, 1, 3)
    drawn = Bernoulli(logits).sample(generator()).mean((0, 1, 2))
    torch.testing.assert_close(drawn, torch.tensor([-2.0, 0.0, 1.0]).sigmoid(), atol=0.01, rtol=0)
    grey = Gaussian(logits, torch.tensor(0.5)).sample(generator())
    torch.testing.assert_close(grey.mean((0, 1, 2)), torch.tensor([-2.0, 0.0, 1.0]), atol=0.01, rtol=0)
    assert float(grey[..., 0].std()) == pytest.approx(0.5, abs=0.01)


def test_correlated_has_the_gradients_of_its_density() -> None:
    inputs = [*correlated(3, 2, h=1, w=2), normal(2, 3, 1, 2, seed=3), normal(2, seed=4).square()]
    mask = torch.tensor([1.0, 0.0, 1.0]).double()[:, None, None].expand(3, 1, 2)

    def all_of_it(mean: Tensor, scale: Tensor, lower: Tensor, x: Tensor, noise_var: Tensor) -> tuple[Tensor, ...]:
        likelihood = Correlated(mean, scale, lower)
        noisy = likelihood.through(noise_var)
        scores = likelihood.log_prob(x), noisy.log_prob(x), noisy.log_prob(x, mask), likelihood.log_level(x / 9)
        return *scores, likelihood.sample(generator())

    assert torch.autograd.gradcheck(all_of_it, [a.requires_grad_() for a in inputs])


def test_dequantising_stays_within_a_level() -> None:
    x = torch.zeros(10_000)
    noise = dequantise(x, generator())
    assert 0 <= float(noise.min()) < 0.01 * LEVEL
    assert 0.99 * LEVEL < float(noise.max()) < LEVEL
    levels = (torch.arange(-128, 128) * LEVEL).repeat(8_000)  # of which a few would be rounded up to the next
    assert torch.equal(middle(dequantise(levels, generator())), levels + LEVEL / 2)


def test_bits_per_dimension_of_the_paper() -> None:
    """The paper's −9046.5 nats for 32×32×3 values are its 2.75 bits."""
    assert bits_per_dimension(-9046.5, 3 * 32 * 32) == pytest.approx(2.75, abs=0.005)


# terms and objectives


def by_hand(m: DKM, x: Tensor, seed: int) -> tuple[Tensor, ...]:
    """The terms of eq. elbo, step by step, with nothing of model.forward; isotropic weights."""
    z = m.encode(x)
    prior = memory.prior(m.R0, m.prior_var, (x.shape[0],))
    state, _ = memory.write(prior, z, m.noise_var)
    mu = memory.address(z, state, m.noise_var)
    noise = torch.randn(mu.shape, generator=generator(seed), dtype=mu.dtype)
    logits = m.decoder((mu + m.weight_var**0.5 * noise).matmul(state.R).flatten(0, 1)).unflatten(0, x.shape[:2])
    q = MultivariateNormal(mu, m.weight_var * torch.eye(mu.shape[-1], dtype=mu.dtype))
    p = MultivariateNormal(torch.zeros_like(mu), torch.eye(mu.shape[-1], dtype=mu.dtype))
    auto = m.decoder(z.flatten(0, 1)).unflatten(0, x.shape[:2])
    return (
        TorchBernoulli(logits=logits).log_prob(x).sum((-3, -2, -1)),
        TorchBernoulli(logits=auto).log_prob(x).sum((-3, -2, -1)),
        kl_divergence(q, p),
        memory.kl_memory(state, prior),
    )


def test_forward_gives_the_terms_of_the_bound() -> None:
    m, x = model(), binary(2, 6, 1, 9, 10)
    for ours, exact in zip(m(x, generator(3)), by_hand(m, x, 3), strict=True):
        torch.testing.assert_close(ours, exact)


def test_objective_weighs_the_terms() -> None:
    terms = model()(binary(2, 6, 1, 9, 10), generator())
    log_lik, auto, kl_w, kl_m = (t.tolist() for t in terms)
    bounds = [sum(a - k for a, k in zip(log_lik[b], kl_w[b], strict=True)) - kl_m[b] for b in range(2)]
    assert terms.bound().tolist() == pytest.approx(bounds)
    assert float(terms.loss().detach()) == pytest.approx(
        -sum(bounds[b] / 6 + sum(auto[b]) / 6 for b in range(2)) / 2
    )
    nats = [sum(k - a for a, k in zip(log_lik[b], kl_w[b], strict=True)) / 6 for b in range(2)]
    assert terms.nats().tolist() == pytest.approx(nats)


@pytest.mark.parametrize(("before", "after", "height", "width"), [(1, 16, 28, 28), (3, 2, 6, 10), (16, 1, 14, 14)])
def test_convolutions_as_products_are_convolutions(before: int, after: int, height: int, width: int) -> None:
    """What a GPU does where there are few channels; values and gradients."""
    for layer in (Down(before, after), Up(before, after)):
        layer = layer.double()
        x = torch.rand(2, before, height, width, dtype=torch.float64, requires_grad=True)
        wanted, got = layer(x), layer.product(x)
        torch.testing.assert_close(got, wanted)
        leaves = (x, layer.weight, layer.bias)
        direction = torch.rand_like(wanted)
        gradients = [torch.autograd.grad(y, leaves, direction) for y in (wanted, got)]
        torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("weights", ["isotropic", "full"])
def test_drawn_weights_have_the_covariance_that_their_kl_charges(weights: str) -> None:
    m = model(dataclasses.replace(SMALL, weights=weights))  # type: ignore[arg-type]
    state = m.write(binary(6, 1, 9, 10))
    w = moments.draw(m.retriever(state).around(torch.zeros(100_000, 5, dtype=torch.float64)), generator())
    if weights == "isotropic":
        cov = m.weight_var * torch.eye(5, dtype=torch.float64)
    else:
        cov = m.weight_var * m.noise_var * memory.inverse(state, m.noise_var).P
    # standard errors are √2/√100,000 = 0.0045 of the variances, which are at most 0.3
    torch.testing.assert_close(w.mT.cov(), cov.detach(), atol=0.01, rtol=0)


def test_one_pass_bound_is_that_of_the_paper() -> None:
    """B_T with the weights found while writing, KL(M_T ‖ M_T−1) and KL(M_T−1 ‖ prior) [eq. B_def]."""
    m, x = model(), binary(2, 6, 1, 9, 10)
    (terms,) = m.online(x, generator=generator(5))
    z, prior = m.encode(x), m.blank((2,))
    before, _ = memory.write(prior, z[:, :5], m.noise_var)
    state, w = memory.write(prior, z, m.noise_var)
    torch.testing.assert_close(terms.kl_memory, memory.kl_memory(state, before) + memory.kl_memory(before, prior))
    torch.testing.assert_close(terms.kl_weights, memory.kl_weights(w, m.weight_var))
    read = memory.read(state, moments.draw(m.retriever(state).around(w), generator(5)))
    torch.testing.assert_close(terms.log_lik, m.decode(read).log_prob(x))


def test_intermediate_bounds_are_those_of_shorter_episodes() -> None:
    m, x = model(), binary(2, 6, 1, 9, 10)
    whole, half = m.online(x, 1, generator())
    assert whole.log_lik.shape == (2, 6)
    assert half.log_lik.shape == (2, 3)
    (short,) = m.online(x[:, :3], 0, generator(1))
    torch.testing.assert_close(half.kl_memory, short.kl_memory)
    torch.testing.assert_close(half.kl_weights, short.kl_weights)
    (plain,) = m.online(x, 0, generator())
    torch.testing.assert_close(whole.kl_memory, plain.kl_memory)
    assert len(m.online(x[:, :1], 5)) == 1
    with pytest.raises(ValueError, match=r"intermediate: .* got -1"):
        m.online(x, -1)


# write, recall, sample, save


@pytest.mark.parametrize("config", [SMALL, COLOUR])
def test_recall_is_the_paper_s_dynamics(config: DKMConfig) -> None:
    m, x = model(config), binary(2, 6, *config.image)
    state = m.write(x)
    path = m.recall(state, x[:, :3], 4, "least-squares")
    assert path.x.shape == (4, 2, 3, *config.image)
    assert path.w.shape == (4, 2, 3, 5)
    cue = x[:, :3]
    for s in range(4):
        w = memory.address(m.encode(cue), state, m.noise_var)
        cue = m.decode(memory.read(state, w)).mode()
        torch.testing.assert_close(path.w[s], w)
        torch.testing.assert_close(path.x[s], cue)
        torch.testing.assert_close(path.energy[s], m.energy(state, cue, w))


def test_energy_is_the_negative_of_the_score_without_sampling() -> None:
    m, x = model(), binary(2, 6, 1, 9, 10)
    state = m.write(x)
    w = memory.address(m.encode(x), state, m.noise_var)
    expected = memory.kl_weights(w, m.weight_var) - m.decode(memory.read(state, w)).log_prob(x)
    torch.testing.assert_close(m.energy(state, x, w), expected)


def test_samples_start_from_the_prior_and_repeat_with_their_generator() -> None:
    m = model()
    state = m.write(binary(2, 6, 1, 9, 10))
    a, b = (m.sample(state, 7, steps=3, generator=generator(2)) for _ in range(2))
    assert a.x.shape == (3, 2, 7, 1, 9, 10)
    assert torch.equal(a.x, b.x)
    w = torch.randn(2, 7, 5, generator=generator(2), dtype=torch.float64)
    assert torch.equal(a.w[0], w)
    torch.testing.assert_close(a.x[1:], m.recall(state, a.x[0], 2, "least-squares").x)
    assert m.sample(state, 7, steps=1).x.shape == (1, 2, 7, 1, 9, 10)


@torch.no_grad()
def test_means_of_real_pixels_are_not_rounded_to_bfloat16() -> None:
    """With the codec in bfloat16, logits have eight digits; means have the 24 of their last layer."""

    def digits(x: Tensor) -> bool:
        return bool((x.bfloat16().float() == x).all())

    z = torch.randn(3, 5, generator=generator())
    codes = DKMConfig(image=(3, 8, 8), code=5, rows=4, codec=CodecConfig((4, 4)), likelihood="gaussian")
    for config in (codes, dataclasses.replace(codes, likelihood="bernoulli")):
        m = DKM(config)
        m.codec_dtype = torch.bfloat16
        assert digits(m.decode(z)[0]) == config.binary


def test_start_values_are_the_paper_s() -> None:
    """app. B: R0 ~ N(0, 1), σ²_U = 1, σ²_w = 0.3, σ²_ξ = 1, Glorot weights with zero biases."""
    m = DKM(DKMConfig())
    assert [float(v.detach()) for v in (m.prior_var, m.noise_var)] == [1.0, 1.0]
    assert float(m.weight_var.detach()) == pytest.approx(0.3)
    assert float(m.R0.detach().std()) == pytest.approx(1.0, abs=0.05)
    limit = math.sqrt(6 / (100 + 256))
    weight = m.decoder.start.weight.detach()
    assert 0.98 * limit < float(weight.abs().max()) <= limit
    assert float(m.decoder.start.bias.detach().abs().max()) == 0


# a codec with matrices

LINEAR = DKMConfig(
    image=(3, 6, 5), code=7, rows=4, codec=CodecConfig((4, 4), linear=True), likelihood="gaussian", scale="colour"
)


def pixels(count: int) -> kanerva.data.ClassImages:
    """Images in a space of a few dimensions, and a little around it."""
    g = generator()
    x = torch.randn(count, 12, generator=g) @ torch.randn(12, 90, generator=g) / 10
    grey = (128 + 30 * x).round().clamp(0, 255).to(torch.uint8).reshape(count, 3, 6, 5)
    return kanerva.data.ClassImages.from_labels(grey, torch.arange(count), binary=False)


@torch.no_grad()
def test_a_linear_codec_starts_as_principal_components() -> None:
    """Decoding an image's code is its projection onto the best seven directions, by NumPy's SVD."""
    images = pixels(300)
    m = DKM(LINEAR)
    m.begin_with(images)
    x = images.images(torch.arange(300))
    flat = x.flatten(1).double()
    mean = flat.mean(0)
    best = torch.linalg.svd(flat - mean, full_matrices=False).Vh[:7]
    wanted = mean + (flat - mean) @ best.mT @ best
    z = m.encode(x)
    torch.testing.assert_close(m.decode(z).mode().flatten(1).double(), wanted, rtol=0, atol=1e-4)
    assert float(z.square().sum(-1).mean()) == pytest.approx(16 * 7, rel=1e-3)
    torch.testing.assert_close(m.encode(m.decode(z).mode()), z, rtol=0, atol=1e-3)


def test_a_linear_codec_has_gradients_from_the_start_and_is_not_rounded() -> None:
    """From zero, the last layers learn first; the others follow. With the rest in bfloat16, matrices are not."""
    images = pixels(40)
    m = DKM(LINEAR)
    m.begin_with(images)
    x = images.images(torch.arange(8))[None]
    m(x, generator()).loss().backward()
    for part in (m.encoder.linear, m.encoder.out, m.decoder.linear, m.decoder.up[-1]):
        assert bool(part.weight.grad.any())  # type: ignore[union-attr]
    with torch.no_grad():
        exact = m.decode(m.encode(x)).mode()
        m.codec_dtype = torch.bfloat16
        torch.testing.assert_close(m.decode(m.encode(x)).mode(), exact, rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_autoencoder_has_one_scale_where_pixels_have_their_own() -> None:
    m, x = DKM(LINEAR), pixels(6).images(torch.arange(6))[None]
    terms = m(x, generator())
    scale = LINEAR.min_scale + m.log_scale_auto.exp()
    wanted = Normal(m.decode(m.encode(x)).mean, scale).log_prob(x).sum((-3, -2, -1))
    assert terms.log_lik_auto is not None
    torch.testing.assert_close(terms.log_lik_auto, wanted)


# reads with a noise of their own


def own_noise(weights: str = "full") -> DKM:
    """A model whose two noises differ."""
    m = model(dataclasses.replace(SMALL, read_noise="own", weights=weights))
    with torch.no_grad():
        m.memory.log_noise_var.fill_(0.9)
        m.log_read_var.fill_(-1.1)
    return m


@pytest.mark.parametrize("weights", ["isotropic", "full"])
@pytest.mark.parametrize("backend", ["reference", "gram", "cpu"])
def test_reads_with_a_noise_of_their_own_are_those_of_the_plain_form(weights: str, backend: str) -> None:
    """Written with one noise, read with the other; and both are learned."""
    m, x = own_noise(weights), binary(2, 6, 1, 9, 10)
    m.memory.backend = backend
    terms = m(x, generator())
    z = m.encode(x)
    state, _ = memory.write(m.blank((2,)), z, m.noise_var)
    for a, b in zip(m.write(x), state, strict=True):
        torch.testing.assert_close(a, b)
    w = memory.address(z, state, m.read_var)
    q = m.retriever(state).around(w)
    assert terms.kl_memory is not None
    torch.testing.assert_close(terms.kl_memory, memory.kl_memory(state, m.blank((2,))))
    torch.testing.assert_close(terms.kl_weights, moments.kl_address(q))
    read = memory.read(state, moments.draw(q, generator()))
    torch.testing.assert_close(terms.log_lik, m.decode(read).log_prob(x))
    torch.testing.assert_close(m.given(state, x, generator()).log_lik, terms.log_lik)
    if weights == "full":  # the covariance of w given a code of that noise, times a scale
        cov = m.weight_var * memory.infer(z, state, m.read_var).cov
        exact = kl_divergence(MultivariateNormal(w, cov), MultivariateNormal(0 * w, torch.eye(5).double()))
        torch.testing.assert_close(terms.kl_weights, exact)
    terms.loss().backward()
    for log_var in (m.memory.log_noise_var, m.log_read_var):
        assert log_var.grad is not None
        assert abs(float(log_var.grad)) > 1e-6


def test_recall_with_a_noise_of_reads_addresses_with_it() -> None:
    m, x = own_noise(), binary(2, 4, 1, 9, 10)
    state = m.write(x)
    at = m.retriever(state)
    w = memory.address(m.encode(x), state, m.read_var)
    torch.testing.assert_close(at.find(x), w)
    torch.testing.assert_close(at.curvature(), memory.infer(m.encode(x), state, m.read_var).cov)
    torch.testing.assert_close(m.recall(state, x, steps=1, method="least-squares").w[0], w)


def test_a_drawn_memory_is_read_with_the_noise_of_reads() -> None:
    m, x = own_noise(), binary(2, 6, 1, 9, 10)
    state, z = m.write(x), m.encode(x)
    q, g = m.retriever(state).around(memory.address(z, state, m.read_var)), generator()
    M = memory.sample(state, g)
    read = moments.draw(q, g) @ M
    cost = (moments.kl_address(q) - m.decode(read).log_prob(x)).mean(-1)
    wanted = cost + memory.kl_memory(state, m.blank((2,))) / 6
    torch.testing.assert_close(m.extra_scores(x, generator())["M drawn and charged"], wanted)


# a noise of reads that the encoder finds for each image


def trusting(weights: str = "full") -> DKM:
    """A model whose encoder trusts some numbers of a code more than others."""
    m = model(dataclasses.replace(SMALL, read_noise="image", weights=weights))
    with torch.no_grad():
        m.memory.log_noise_var.fill_(0.9)
        m.log_read_var.fill_(-1.1)
        m.encoder.out.weight.normal_(0, 0.5, generator=generator(1))
    return m


@torch.no_grad()
def test_an_encoder_trusts_all_numbers_alike_at_first() -> None:
    """All are then read with one noise; draws have other numbers, since each image has a memory of its own."""
    m, x = model(dataclasses.replace(SMALL, read_noise="image")), binary(2, 6, 1, 9, 10)
    cue, state = m.cue(x), m.write(x)
    assert cue.known is not None
    torch.testing.assert_close(cue.known, torch.ones_like(cue.known), rtol=1e-3, atol=0)  # var = ½ is 1e-4 off
    w = memory.address(cue.seen, state, m.read_var / cue.known.mean())
    torch.testing.assert_close(m.retriever(state).address(cue).mean, w)
    assert torch.equal(cue.z, m.encode(x))
    torch.testing.assert_close(cue.seen, 2 * cue.z, rtol=1e-3, atol=0)  # mean (1 + 1 / trust)


@torch.no_grad()
@pytest.mark.parametrize("rows", [7, 5])
def test_a_dkm_with_a_trust_begins_as_a_vae(rows: int) -> None:
    """Its prior is N(0, I) for as many numbers as it has rows; q(w) in a blank memory is its encoder's."""
    x = binary(2, 6, 1, 9, 10)
    m = model(dataclasses.replace(SMALL, rows=rows, read_noise="image", weights="full"))
    start = VAE(VAEConfig(image=SMALL.image, code=7, codec=SMALL.codec)).to(m.R0)
    start.encoder.out.bias[7:] = -2.0  # variances well below 1: where an image says nothing, trust stays above 0
    m.begin_as(start)
    blank, q = m.blank((2,)), DiagonalGaussian(*start.encoding(x).chunk(2, -1))
    assert torch.equal(m.R0, torch.eye(7, dtype=m.R0.dtype)[:rows])
    torch.testing.assert_close(m.encode(x), q.mean)
    found = m.retriever(blank).address(m.cue(x))
    torch.testing.assert_close(found.mean, q.mean[..., :rows])
    torch.testing.assert_close(
        moments.kl_address(found), DiagonalGaussian(q.mean[..., :rows], q.log_var[..., :rows]).kl()
    )
    if rows == 7:
        torch.testing.assert_close(memory.read(blank, found.mean), q.mean)


def test_a_memory_has_no_more_rows_than_a_code_has_numbers() -> None:
    """Others would hold nothing, and spoil what is written: the config says what is kept, and training says why."""
    config = dataclasses.replace(SMALL, rows=200)
    m = model(config)
    assert config.rows == m.config.rows == len(m.R0) == 7
    assert m.kept(1) == 7 * (7 + 7)
    assert m.write(binary(2, 3, 1, 9, 10)).U.shape == (2, 7, 7)
    assert "7 rows" in DKM.says(config, "cpu", "auto")


@torch.no_grad()
def test_a_model_begins_with_what_another_has_of_its_weights() -> None:
    old, new = model(seed=1), model(dataclasses.replace(SMALL, read_noise="own"), seed=2)
    new.begin_as(old)
    for name, value in old.named_parameters():
        assert torch.equal(dict(new.named_parameters())[name], value)
    assert float(new.log_read_var) == 0
    for other in (model(dataclasses.replace(SMALL, rows=6)), kanerva.create("nearest", image=(1, 9, 10))):
        with pytest.raises(ValueError, match=r"^start: expected"):
            new.begin_as(other)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["reference", "gram", "cpu"])
def test_trust_gives_the_exact_posterior_of_each_image(backend: str) -> None:
    """p(w | z) where every number of a code has a noise of its own, as one dense Gaussian, times the scale."""
    m, x = trusting(), binary(2, 6, 1, 9, 10)
    m.memory.backend = backend
    state, cue = m.write(x), m.cue(x)
    assert cue.known is not None
    assert float(cue.known.max() / cue.known.min()) > 2  # or there is nothing to see
    q = m.retriever(state).address(cue)
    precision = torch.einsum("bkc,btc,blc->btkl", state.R, cue.known / m.read_var, state.R) + torch.eye(5).double()
    mean = torch.linalg.solve(precision, torch.einsum("bkc,btc->btk", state.R, cue.seen * cue.known / m.read_var))
    cov = m.weight_var * torch.linalg.inv(precision)
    torch.testing.assert_close(q.mean, mean)
    exact = kl_divergence(MultivariateNormal(mean, cov), MultivariateNormal(0 * mean, torch.eye(5).double()))
    torch.testing.assert_close(moments.kl_address(q), exact)
    draws = torch.stack([moments.draw(q, g) for g in [generator()] for _ in range(20_000)])
    # the standard error of a variance of 20,000 draws is 1 %, of a covariance no more than that of the variances
    size = cov.diagonal(dim1=-2, dim2=-1).sqrt()
    found = torch.einsum("sbtk,sbtl->btkl", draws - mean, draws - mean) / len(draws)
    assert ((found - cov).abs() / (size[..., :, None] * size[..., None, :])).max() < 0.06


def test_recall_and_memories_of_a_model_that_trusts() -> None:
    """Recall goes by the same weights as the score; a memory can still be looked into."""
    m, x = trusting(), binary(5, 1, 9, 10)
    state = m.write(x[:4])
    w = m.retriever(state).find(x[:4])
    torch.testing.assert_close(m.recall(state, x[:4], steps=1, method="least-squares").w[0], w)
    assert not torch.allclose(w, memory.address(m.encode(x[:4]), state, m.read_var))
    assert m.contains(state, x).tolist() == [1, 1, 1, 1, 0]
    found = m.recall(state, x[:4], steps=6)
    assert found.energy is not None
    assert (found.energy.diff(dim=0) <= 1e-9).all()
    chain = m.recall(state, x[:4], steps=3, method="stochastic", generator=generator())
    assert torch.isfinite(chain.energy).all()
