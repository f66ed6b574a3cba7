"""Recall by descent and by a Markov chain, against what they promise."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kanerva
from cases import normal
from kanerva import DKM, CodecConfig, DKMConfig, MemoryState, memory
from kanerva.data import corruption
from kanerva.likelihood import Bernoulli, Gaussian
from kanerva.recall import descent, search
from kanerva.recall import methods as dynamics
from kanerva.recall.chains import mixing
from kanerva.recall.reader import Reader
from kanerva.recall.trajectory import Snapshot

BITS = DKMConfig(image=(1, 8, 9), rows=5, code=7, codec=CodecConfig((4, 6)))
FULL = dataclasses.replace(BITS, weights="full")
COLOUR = dataclasses.replace(BITS, image=(3, 8, 8), likelihood="gaussian")
CONFIGS = pytest.mark.parametrize("config", [BITS, FULL, COLOUR], ids=["bits", "full", "colour"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(config: DKMConfig = BITS, seed: int = 0, dtype: torch.dtype = torch.float32) -> DKM:
    """A model that was never trained, but whose images depend much on their codes."""
    torch.manual_seed(seed)
    m = DKM(config).to(dtype)
    with torch.no_grad():
        for p in m.decoder.parameters():
            p.mul_(1.5)
        m.log_noise_var.fill_(-1.0)
    return m.requires_grad_(False)


def images(config: DKMConfig, *batch: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    x = normal(*batch, *config.image, seed=seed)
    return ((x > 0.5) if config.likelihood == "bernoulli" else x.clamp(-1, 1)).to(dtype)


# descent


def bowl(n: int, batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Symmetric positive definite matrices with condition up to 100, and where their bowls have their least."""
    Q, _ = torch.linalg.qr(normal(batch, n, n, seed=seed))
    return (Q * torch.logspace(0, -2, n, dtype=torch.float64)) @ Q.mT, normal(batch, n, seed=seed + 1)


def test_descent_finds_the_least_of_a_bowl() -> None:
    A, least = bowl(6, 20)

    def energy(v: Tensor) -> Tensor:
        return 0.5 * ((v - least) * (A @ (v - least)[..., None])[..., 0]).sum(-1)

    point = descent.start(energy, torch.zeros(20, 6, dtype=torch.float64), torch.eye(6).double().expand(20, 6, 6))
    for _ in range(60):
        point = descent.step(energy, point)
    assert float(point.energy.max()) < 1e-10
    # the curvature was learnt as well
    assert float((point.H @ A - torch.eye(6)).abs().amax()) < 0.3


def test_descent_never_rises_and_keeps_its_curvature_positive() -> None:
    """Also where the landscape is rough, has cliffs, or is not a number."""

    def energy(v: Tensor) -> Tensor:
        rough = v.square().sum(-1) + 3 * torch.sin(5 * v).sum(-1) + 10 * (v[..., 0] > 0.7)
        return torch.where(v[..., 1] > 1.5, math.nan, rough)

    point = descent.start(energy, normal(500, 4), torch.eye(4).double().expand(500, 4, 4))
    for _ in range(40):
        after = descent.step(energy, point)
        known = ~point.energy.isnan()
        assert bool((after.energy <= point.energy)[known].all())
        torch.testing.assert_close(after.energy, energy(after.v), equal_nan=True)
        assert float(torch.linalg.eigvalsh(after.H).min()) > 0
        point = after


def test_descent_solves_each_vector_by_itself() -> None:
    A, least = bowl(3, 8)

    def run(i: slice) -> Tensor:
        def energy(v: Tensor) -> Tensor:
            return ((v - least[i]) * (A[i] @ (v - least[i])[..., None])[..., 0]).sum(-1).cosh()

        point = descent.start(energy, torch.zeros_like(least[i]), torch.eye(3).double().expand(len(least[i]), 3, 3))
        for _ in range(5):
            point = descent.step(energy, point)
        return point.v

    torch.testing.assert_close(run(slice(None))[3:5], run(slice(3, 5)))


def holes(v: Tensor) -> Tensor:
    """A wide valley around 2, and around −1 a hole that is deeper but narrow."""
    return (v - 2).square().sum(-1) - 40 * torch.exp(-4 * (v + 1).square().sum(-1))


def test_a_search_prefers_wide_valleys() -> None:
    start, root = torch.full((30, 2), -0.9).double(), torch.eye(2).double()
    found, energy = descent.search(holes, start, root, 0.7 * normal(400, 2), last=0.1)
    assert float((found - 2).abs().max()) < 0.3
    # the mean around a bowl's least is that of the shakes alone
    assert float((energy - 2 * 0.49).abs().max()) < 0.3
    # where nothing is shaken, the hole is what is found
    stuck, _ = descent.search(holes, start, root, torch.zeros(400, 2).double(), last=0.1)
    assert float((stuck + 1).abs().max()) < 0.3


def test_a_search_goes_as_far_as_its_root_says() -> None:
    """In coordinates that are stretched, the same search."""
    A = torch.tensor([[2.0, 0.3], [0.0, 0.1]]).double()
    shakes = 0.7 * normal(20, 2)
    plain, low = descent.search(holes, torch.zeros(1, 2).double(), torch.eye(2).double()[None], shakes)

    def stretched(v: Tensor) -> Tensor:
        return holes((torch.linalg.inv(A) @ v[..., None])[..., 0])

    found, also = descent.search(stretched, torch.zeros(1, 2).double(), A[None], shakes)
    torch.testing.assert_close(found[0], A @ plain[0])
    torch.testing.assert_close(low, also)


@pytest.mark.parametrize("last", [1.0, 0.1])
def test_a_search_is_adam(last: float) -> None:
    """Against torch's own, a vector at a time: the mean of the later half of places and of energies."""
    start, shakes = normal(4, 2, seed=5), 0.7 * normal(9, 2)
    found, energy = descent.search(holes, start, torch.eye(2).double(), shakes, last)
    for i in range(4):
        v = start[i].clone().requires_grad_()
        adam = torch.optim.Adam([v], lr=descent.RATE, betas=descent.FORGET, eps=1e-3)
        places, energies = [], []
        for number, shake in enumerate(shakes):
            adam.param_groups[0]["lr"] = descent.RATE * (1 + (last - 1) * number / 9)
            adam.zero_grad()
            value = holes(v + shake)
            value.backward()
            places.append(v.detach().clone())
            energies.append(value.detach())
            adam.step()
        torch.testing.assert_close(found[i], torch.stack(places[4:]).mean(0))
        torch.testing.assert_close(energy[i], torch.stack(energies[4:]).mean())


def test_a_search_passes_over_what_is_not_a_number() -> None:
    """Where a slope is not a number, nothing moves; vectors beside it do."""
    start = torch.tensor([[2.0, 0.0], [-3.0, 0.5]]).double()
    root = torch.eye(2).double()
    found, low = descent.search(lambda v: (1 - v).sqrt().sum(-1).square(), start, root, torch.zeros(40, 2).double())
    assert torch.equal(found[0, :1], start[0, :1])
    assert bool(low[0].isnan())
    assert float(found[1, 0]) > -3
    assert bool(found[1].isfinite().all())


@CONFIGS
@pytest.mark.usefixtures("short_search")
def test_energy_never_rises(config: DKMConfig) -> None:
    """Thousands of trajectories, in float32, from noise of every kind: not one rise, to the last bit."""
    m = model(config)
    count = 0
    for seed in range(4):
        x = images(config, 8, 12, seed=seed)
        state = m.write(x)
        noisy = images(config, 8, 40, seed=100 + seed)
        for path in (
            m.recall(state, noisy, 6, "descent"),
            m.recall(state, noisy, 6, "descent", noise=0.1, mask=corruption.half(noisy).mask),
            m.sample(state, 40, 6, generator(seed), "descent"),
        ):
            assert bool((path.energy.diff(dim=0) <= 0).all())
            assert bool((path.energy[-1] < path.energy[0]).any())
            # and it is the energy of what is there
            for s in (0, 5):
                there = m.energy(state, path.x[s], path.w[s])
                torch.testing.assert_close(path.energy[s], there, rtol=1e-4, atol=1e-3)
            count += path.energy[0].numel()
    assert count == 4 * 3 * 320


@CONFIGS
def test_every_step_of_descent_ends_in_the_mode(config: DKMConfig) -> None:
    m, x = model(config), images(config, 2, 6)
    path = m.recall(m.write(x), images(config, 2, 5, seed=3), 5, "descent")
    for s in range(5):
        torch.testing.assert_close(path.x[s], m.decode(memory.read(m.write(x), path.w[s])).mode())


@pytest.mark.parametrize("noise", [0.05, 0.2, None])
@CONFIGS
def test_inference_lowers_the_energy_of_the_cue_as_the_channel_sees_it(
    config: DKMConfig, noise: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same energy written down by itself, from the start that the paper's address gives."""
    mean, variance = torch.tensor(5.0).double(), torch.tensor(10.0).double()
    # a model that was not trained weighs nothing
    monkeypatch.setattr(search, "weight", lambda _: (mean, variance))
    m, x = model(config, dtype=torch.float64), images(config, 3, 6, dtype=torch.float64)
    state = m.write(x)
    at = Reader(m, state, m.inverse(state))
    y = images(config, 3, 10, seed=5, dtype=torch.float64)
    mask = corruption.half(y, "top").mask
    assert mask is not None
    with kanerva.deep_checks(False):  # as in recall
        found = search.infer(at, y, noise, mask)

    def cost(w: Tensor, out: Bernoulli | Gaussian, level: float) -> Tensor:
        if isinstance(out, Bernoulli):
            p = level + (1 - 2 * level) * out.logits.sigmoid()
            each = torch.where(y > 0.5, p, 1 - p).log()
        else:
            each = torch.distributions.Normal(out.mean, (out.scale**2 + level).sqrt()).log_prob(y)
        usual = (w.square().sum(-1) - mean).square() / (2 * variance)
        return usual - (each * mask).sum((-3, -2, -1))

    values, vectors = torch.linalg.eigh(m.noise_var * m.inverse(state).P)
    root = vectors * (search.SHAKE * values).sqrt()[..., None, :]

    def around(w: Tensor) -> Tensor:
        """The mean cost of weights near w, at the level that is given, or that explains the cue best."""
        levels = torch.linspace(0.01, 0.45, 12).tolist() if noise is None else [noise]
        shaken = [w + normal(*w.shape, seed=s) @ root.mT for s in range(50)]
        read = [(a, m.decode(memory.read(state, a))) for a in shaken]
        return torch.stack([torch.stack([cost(*r, level) for r in read]).mean(0) for level in levels]).amin(0)

    # below every start, and below no weights at all
    end = around(found)
    for w in (*search.guesses(at, y, mask), torch.zeros_like(found)):
        start = around(w)
        assert float((end < start).double().mean()) > 0.9
        assert float((start - end).mean()) > 0.2


@pytest.mark.parametrize("config", [BITS, COLOUR])
def test_what_was_written_is_not_strange(config: DKMConfig) -> None:
    m = model(config, dtype=torch.float64)
    x, other = (images(config, 3, seed=seed, dtype=torch.float64) for seed in (1, 2))
    at = Reader.of(m, m.write(x))
    basis = memory.span(at.state, m.R0, m.prior_var)

    def strange(x: Tensor) -> Tensor:
        sure = Bernoulli(100 * (2 * x - 1)) if config.likelihood == "bernoulli" else Gaussian(x, torch.ones(()))
        return search.strangeness(at, basis, sure)

    torch.testing.assert_close(strange(x), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-9)
    z = m.encode(other)
    exact = 3 / config.rows * (z - z @ torch.linalg.pinv(m.encode(x)) @ m.encode(x)).square().sum(-1)
    torch.testing.assert_close(strange(other), exact / (2 * m.noise_var))
    assert bool((strange(other) > 1e-6).all())


def test_strangeness_has_a_slope() -> None:
    """It is that of the mean image; a mode would not move with w."""
    m = model()
    at = Reader.of(m, m.write(images(BITS, 3)))
    logits = normal(3, *BITS.image, dtype=torch.float32).requires_grad_()
    search.strangeness(at, memory.span(at.state, m.R0, m.prior_var), Bernoulli(logits)).sum().backward()
    assert logits.grad is not None
    assert bool((logits.grad.abs().amax((-3, -2, -1)) > 1e-6).all())


def test_a_search_that_knows_what_was_written_finds_more(monkeypatch: pytest.MonkeyPatch) -> None:
    m, glyphs = kanerva.load("omniglot"), kanerva.data.load("glyphs", "test")
    x = kanerva.data.episodes(glyphs, 1, 32, generator=generator())
    state, some = m.write(x), x[:, :12]
    cue = corruption.flips(some, 0.2, generator(1)).x

    def wrong() -> float:
        return float((m.recall(state, cue, 1, "descent").x[-1] - some).abs().sum((-3, -2, -1)).mean())

    knowing = wrong()
    monkeypatch.setattr(search, "strangeness", lambda at, basis, likelihood: 0)
    assert knowing < 0.95 * wrong()


def test_what_is_masked_says_nothing() -> None:
    m, x = model(), images(BITS, 2, 6)
    state, y = m.write(x), images(BITS, 2, 5, seed=9)
    mask = corruption.half(y, "left").mask
    assert mask is not None
    other = torch.where(mask.bool(), y, 1 - y)
    a, b = (m.recall(state, cue, 4, "descent", mask=mask) for cue in (y, other))
    for left, right in zip(a, b, strict=True):
        torch.testing.assert_close(left, right)


def strokes(n: int) -> Tensor:
    """Images of three straight strokes each."""
    ends = torch.rand(n, 3, 2, 1, 1, 2, generator=generator()) * 20 + 4
    pixels = torch.stack(torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij"), dim=-1)
    a, b = ends[:, :, 0], ends[:, :, 1]
    along = (((pixels - a) * (b - a)).sum(-1) / (b - a).square().sum(-1)).clamp(0, 1)[..., None]
    return ((pixels - a - along * (b - a)).norm(dim=-1) < 1.2).any(1)[:, None].float()


def test_a_known_channel_beats_none() -> None:
    """With a trained model, what explains a cue through the channel is nearer to it than what trusts the cue."""
    m, x = kanerva.load("omniglot").requires_grad_(False), strokes(12)
    at = Reader.of(m, m.write(x))
    y = corruption.flips(x, 0.2, generator()).x
    errors = {}
    for noise in (0.2, 0.001, None):
        with kanerva.deep_checks(False):
            found = at.decode(search.infer(at, y, noise)).mode()
        errors[noise] = float((found - x).abs().sum((-3, -2, -1)).mean())
    assert errors[0.2] < 0.5 * errors[0.001]
    assert errors[None] < 0.5 * errors[0.001]


@pytest.mark.parametrize("noise", [0.2, None])
def test_inference_with_a_trained_model_beats_its_starts_and_nothing(noise: float | None) -> None:
    """The mean energy around what is found is below that of every start, and of no weights at all, for each cue."""
    m, x = kanerva.load("omniglot").requires_grad_(False), strokes(8)
    at = Reader.of(m, m.write(x))
    y = corruption.flips(x, 0.2, generator()).x
    with kanerva.deep_checks(False):
        mean, variance = search.weight(at)
        starts = search.guesses(at, y, None)
        found = search.infer(at, y, noise)
    L = torch.linalg.cholesky(search.SHAKE * m.noise_var * m.inverse(at.state).P)
    shakes = torch.randn(20, 1, 32, generator=generator()) @ L.mT

    def around(w: Tensor) -> Tensor:
        near = w + shakes
        p = 0.2 + 0.6 * at.decode(near).logits.sigmoid()
        seen = torch.where(y > 0.5, p, 1 - p).log().sum((-3, -2, -1))
        return ((near.square().sum(-1) - mean).square() / (2 * variance) - seen).mean(0)

    for w in (*starts, torch.zeros_like(found)):
        assert bool((around(found) < around(w)).all())


def test_the_level_of_flips_is_found_out() -> None:
    m, x = kanerva.load("omniglot").requires_grad_(False), strokes(8)
    at = Reader.of(m, m.write(x))
    for level in (0.05, 0.15, 0.3):
        y = corruption.flips(x, level, generator()).x
        told, found = (m.recall(at.state, y, 1, "descent", noise=noise).x[0] for noise in (level, None))
        wrong = [float((a - x).abs().sum((-3, -2, -1)).mean()) for a in (told, found)]
        assert wrong[1] < 1.3 * wrong[0] + 1


def test_descent_goes_on_where_gradients_are_off(tmp_path: Path) -> None:
    m, x = model(), images(BITS, 2, 6)
    state = m.write(x)
    mask = torch.ones(8, 9)
    usual = m.recall(state, x, 3, "descent", mask=mask)
    with torch.no_grad():
        torch.testing.assert_close(m.recall(state, x, 3, "descent", mask=mask), usual)
    m.save(tmp_path / "m.safetensors")
    with torch.inference_mode():
        made = torch.ones(8, 9)
        inside = m.recall(m.write(x), x.clone(), 3, "descent", mask=made)
        again = kanerva.load(tmp_path / "m.safetensors").recall(state, x, 3, "descent", mask=mask)
    torch.testing.assert_close(inside, usual)
    torch.testing.assert_close(again, usual)
    torch.testing.assert_close(m.recall(state, x, 3, "descent", mask=made), usual)


def test_descent_is_float32_under_autocast() -> None:
    for config in (BITS, COLOUR):
        m, x = model(config), images(config, 2, 6)
        state = m.write(x)
        with torch.autocast("cpu", torch.bfloat16):
            found = m.recall(state, x, 2, "descent")
        torch.testing.assert_close(found, m.recall(state, x, 2, "descent"))


@CONFIGS
def test_a_cue_is_recalled_as_if_it_were_alone(config: DKMConfig) -> None:
    """In float64, where the order of summation does not decide; who has arrived waits for nobody."""
    m, x = model(config, dtype=torch.float64), images(config, 1, 6, dtype=torch.float64)
    state = m.write(x)
    together = m.recall(state, x, 4, "descent", noise=0.1)
    for i in (0, 3):
        alone = m.recall(state, x[:, i : i + 1], 4, "descent", noise=0.1)
        torch.testing.assert_close(alone.w, together.w[:, :, i : i + 1], rtol=1e-4, atol=1e-4)


def test_descent_leaves_parameters_alone() -> None:
    torch.manual_seed(0)
    m = DKM(BITS)
    path = m.recall(m.write(images(BITS, 2, 6)), images(BITS, 2, 3), 3, "descent")
    assert all(p.grad is None for p in m.parameters())
    assert not path.x.requires_grad


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


# the Markov chain


@CONFIGS
def test_a_cold_chain_is_the_paper_s_dynamics(config: DKMConfig) -> None:
    m, x = model(config), images(config, 2, 6)
    state = m.write(x)
    cold = m.recall(state, x, 4, "stochastic", temperature=0.0, generator=generator())
    torch.testing.assert_close(cold, m.recall(state, x, 4, "least-squares"))
    # and nearly cold is nearly that
    near = m.recall(state, x, 1, "stochastic", temperature=1e-12, generator=generator())
    torch.testing.assert_close(near.w, cold.w[:1], rtol=1e-3, atol=1e-3)


def test_a_chain_draws_weights_and_images_from_what_the_model_says() -> None:
    """One step from one image, many times: means and spreads of w and x."""
    m = model(FULL, dtype=torch.float64)
    state = m.write(images(BITS, 6, dtype=torch.float64))
    cue = images(BITS, 1, seed=2, dtype=torch.float64).expand(20_000, 1, 8, 9)
    for temperature in (1.0, 0.25):
        path = m.recall(state, cue, 1, "stochastic", temperature=temperature, generator=generator())
        mean = memory.address(m.encode(cue[:1]), state, m.noise_var)[0]
        cov = temperature * m.weight_var * m.noise_var * m.inverse(state).P
        w = path.w[0]
        spread = cov.diagonal().sqrt()
        assert float(((w.mean(0) - mean) / spread).abs().max()) < 5 / math.sqrt(20_000)
        torch.testing.assert_close(w.mT.cov(), cov, rtol=0.1, atol=0.03 * float(cov.diagonal().max()))
        p = (m.decode(memory.read(state, w)).logits / temperature).sigmoid()
        off = (path.x[0].mean(0) - p.mean(0)) / (p.mean(0) * (1 - p.mean(0)) / 20_000).sqrt().clamp(min=1e-6)
        assert float(off.abs().max()) < 5
        torch.testing.assert_close(path.energy[0], m.energy(state, path.x[0], w))


def test_chains_repeat_with_their_generator() -> None:
    m, x = model(), images(BITS, 2, 6)
    state = m.write(x)
    a, b, c = (m.recall(state, x, 3, "stochastic", generator=generator(s)) for s in (1, 1, 2))
    assert torch.equal(a.x, b.x)
    assert not torch.equal(a.x, c.x)


def test_mixing_of_a_chain_with_a_known_memory() -> None:
    """x' = a x + noise has an autocorrelation of aˡ and a time of (1 + a)/(1 − a)."""
    a, S, n = 0.8, 4000, 30
    x, rows = normal(n, seed=1) / math.sqrt(1 - a * a), []
    for s in range(S):
        x = a * x + normal(n, seed=1000 + s)
        rows.append(x)
    found = mixing(torch.stack(rows))
    torch.testing.assert_close(found.autocorrelation[:4], a ** torch.arange(4).double(), rtol=0.05, atol=0.02)
    assert abs(found.time / 9 - 1) < 0.15
    assert abs(found.effective / (0.9 * S * n / 9) - 1) < 0.15
    assert 0.99 < found.r_hat < 1.02
    apart = torch.stack(rows)[:200] + 20 * torch.arange(n)
    assert mixing(apart).r_hat > 2
    frozen = torch.arange(n).double().expand(200, n)
    assert mixing(frozen).r_hat == math.inf
    assert mixing(torch.stack(rows)[:, 0]).r_hat < 1.1
    for bad in (frozen[:3], frozen[:, :0], frozen * math.nan):
        with pytest.raises(ValueError, match="values: expected"):
            mixing(bad)


# steps, callbacks, and what cannot be


@pytest.mark.parametrize("method", dynamics.METHODS)
def test_a_callback_sees_every_step(method: str) -> None:
    m, x = model(), images(BITS, 2, 6)
    seen: list[Any] = []
    path = m.recall(m.write(x), x, 4, method, callback=lambda number, step: seen.append((number, step)))
    assert path.x.shape == (4, 2, 6, 1, 8, 9)
    assert [number for number, _ in seen] == list(range(len(seen)))
    for number, step in seen:
        for a, b in zip(step, path, strict=True):
            assert torch.equal(a, b[number])


@pytest.mark.parametrize("method", ["least-squares", "descent"])
def test_a_path_that_has_arrived_is_not_walked_on(method: str) -> None:
    m, x = model(), images(BITS, 1, 6)
    state = m.write(x)
    made: list[int] = []
    for i in range(6):  # least squares may also end in a cycle, and never arrive
        made.clear()
        path = m.recall(state, x[:, i : i + 1], 200, method, callback=lambda number, _: made.append(number))
        assert len(path.x) == 200
        if len(made) < 200:
            break
    assert len(made) < 200
    last = len(made) - 1
    assert torch.equal(path.x[last:], path.x[last].expand_as(path.x[last:]))
    # and walking on would have changed nothing, or next to nothing
    if method == "least-squares":
        assert torch.equal(m.recall(state, path.x[-1], 1, "least-squares").x[0], path.x[-1])
    else:
        on = dynamics.fall(Reader.of(m, state), Snapshot(path.x[-1], path.w[-1], path.energy[-1]))
        *_, end = (step for _, step in zip(range(50), on, strict=False))
        assert torch.equal(end.x, path.x[-1])
        assert float(path.energy[-1] - end.energy) < 20 * dynamics.STILL


@pytest.mark.parametrize("method", dynamics.METHODS)
def test_no_cue_and_any_batch(method: str) -> None:
    m, x = model(dtype=torch.float64), images(BITS, 2, 3, 6, dtype=torch.float64)
    state = m.write(x)
    assert m.recall(state, x[:, :, :0], 2, method).x.shape == (2, 2, 3, 0, 1, 8, 9)
    path = m.recall(state, x, 2, method)
    assert path.w.shape == (2, 2, 3, 6, 5)
    alone = m.recall(MemoryState(state.R[1, 2], state.U[1, 2]), x[1, 2], 1, method)
    if method != "stochastic":
        torch.testing.assert_close(alone.x[0], path.x[0, 1, 2])
    assert m.sample(state, 4, 3, method=method).x.shape == (3, 2, 3, 4, 1, 8, 9)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a method": ({"method": "newton"}, r"method: expected one of least-squares, descent, stochastic, got 'newton'"),
    "no steps": ({"steps": 0}, r"steps: .* got 0"),
    "noise elsewhere": ({"noise": 0.1}, r"noise: .*only descent"),
    "a mask elsewhere": ({"mask": torch.ones(8, 9)}, r"mask: .*only descent"),
    "temperature elsewhere": ({"temperature": 2.0}, r"temperature: .*only stochastic"),
    "a generator elsewhere": ({"method": "descent", "generator": generator()}, r"generator: .*only stochastic"),
    "too much noise": ({"method": "descent", "noise": 0.5}, r"noise: .*less than 0\.5, got 0\.5"),
    "less than no noise": ({"method": "descent", "noise": -0.1}, r"noise: .* got -0\.1"),
    "below absolute zero": ({"method": "stochastic", "temperature": -1.0}, r"temperature: .* got -1"),
    "a mask of another size": ({"method": "descent", "mask": torch.ones(9, 8)}, r"mask: .*\(9, 8\)"),
    "half a mask": ({"method": "descent", "mask": torch.full((8, 9), 0.5)}, r"mask: .*other values"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_a_method_cannot_use_is_refused(what: str) -> None:
    m, x = model(), images(BITS, 2, 6)
    options, message = BAD[what]
    with pytest.raises(ValueError, match=message):
        m.recall(m.write(x), x, **options)


def test_an_empty_memory_recalls_what_the_prior_has() -> None:
    """Nothing written is a memory too; its answers are finite."""
    m, x = model(), images(BITS, 2, 6)
    for method in dynamics.METHODS:
        path = m.recall(m.prior((2,)), x, 3, method)
        assert all(bool(part.isfinite().all()) for part in path)


def test_what_is_no_memory_mask_or_number_is_said(no_shape_checks: None) -> None:
    m, x = model(), images(BITS, 2, 6)
    state: Any = m.write(x)
    with pytest.raises(TypeError, match=r"state: expected a MemoryState"):
        m.recall((state, x), x)
    with pytest.raises(TypeError, match=r"state\.R: expected torch\.float32"):
        m.recall(state.to(torch.float64), x)
    with pytest.raises((TypeError, ValueError), match=r"noise"):
        m.recall(state, x, method="descent", noise=torch.ones(6))
    with pytest.raises(ValueError, match=r"x: expected images of shape"):
        m.energy(state, x[..., :1, :1], state.R[:, :1].new_zeros(2, 6, 5))
    with pytest.raises(ValueError, match=r"w: .*Q"):
        m.energy(state, x, torch.zeros(2, 5, 5))
    with pytest.raises(TypeError, match=r"temperature: expected a number"):
        m.recall(state, x, temperature=torch.ones(3))
    for method in dynamics.METHODS:  # also where the model's own method is not asked
        with pytest.raises(ValueError, match=r"x: expected pixels on \[0, 1\]"):
            dynamics.recall(m, state, 7 * x, 2, method)
    colour = model(COLOUR)
    for options in ({"method": "descent", "noise": 1e300}, {"method": "stochastic", "temperature": 1e-300}):
        with pytest.raises(ValueError, match=r": expected .* from .* to 1e\+20, got 1e"):
            colour.recall(colour.prior(), images(COLOUR, 2), **options)


def test_memories_may_share_their_mean() -> None:
    m, x = model(), images(BITS, 4)
    state = m.write(x)
    shared = MemoryState(state.R, state.U.expand(3, -1, -1))
    path = m.recall(shared, x, 2, "descent")
    assert path.energy.shape == (2, 3, 4)
    torch.testing.assert_close(path.energy[:, 1], m.recall(state, x, 2, "descent").energy)


def test_a_memory_that_is_not_a_number_leaves_the_others_alone() -> None:
    m, x = model(dtype=torch.float64), images(BITS, 2, 4, dtype=torch.float64)
    state = m.write(x)
    broken = MemoryState(state.R.clone(), state.U)
    broken.R[0, 0, 0] = math.nan
    with kanerva.deep_checks(False):
        path = m.recall(broken, x, 3, "descent")
    assert bool(path.energy[:, 0].isnan().all())
    torch.testing.assert_close(path.energy[:, 1], m.recall(state, x, 3, "descent").energy[:, 1])
