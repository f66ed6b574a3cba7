"""Inference from a cue, through the channel that has corrupted it."""

import pytest
import torch
from torch import Tensor

import kanerva
from cases import normal
from kanerva import DKMConfig, memory
from kanerva.data import damage
from kanerva.likelihood import Bernoulli, Gaussian, Likelihood
from kanerva.recall import search
from recalling import BITS, COLOUR, FULL, generator, images, model, strokes


@pytest.mark.parametrize("noise", [0.05, 0.2, None])
@pytest.mark.parametrize("config", [BITS, FULL], ids=["bits", "full"])
def test_inference_lowers_the_energy_of_the_cue_as_the_channel_sees_it(
    config: DKMConfig, noise: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same energy written down by itself, from the start that the paper's address gives."""
    mean, variance = torch.tensor(5.0).double(), torch.tensor(10.0).double()
    # a model that was not trained weighs nothing
    monkeypatch.setattr(search, "weight", lambda _: (mean, variance))
    m, x = model(config, dtype=torch.float64), images(config, 3, 6, dtype=torch.float64)
    state = m.write(x)
    at = m.retriever(state)
    y = images(config, 3, 10, seed=5, dtype=torch.float64)
    mask = damage.half(y, "top").mask
    assert mask is not None
    with kanerva.deep_checks(False):  # as in recall
        found = search.infer(at, y, noise, mask)

    def cost(w: Tensor, out: Likelihood, level: float) -> Tensor:
        assert isinstance(out, Bernoulli)
        p = level + (1 - 2 * level) * out.logits.sigmoid()
        each = torch.where(y > 0.5, p, 1 - p).log()
        usual = (w.square().sum(-1) - mean).square() / (2 * variance)
        return usual - (each * mask).sum((-3, -2, -1))

    values, vectors = torch.linalg.eigh(at.curvature()[..., 0, :, :])
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
    at = m.retriever(m.write(x))
    basis = memory.span(at.state, m.R0, m.prior_var)

    def strange(x: Tensor) -> Tensor:
        sure = Bernoulli(100 * (2 * x - 1)) if config.likelihood == "bernoulli" else Gaussian(x, torch.ones(()))
        return search.strangeness(at, basis, sure)

    torch.testing.assert_close(strange(x), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-9)
    z = m.encode(other)
    exact = 3 / config.rows * (z - z @ torch.linalg.pinv(m.encode(x)) @ m.encode(x)).square().sum(-1)
    torch.testing.assert_close(strange(other), exact / (2 * m.noise_var))
    assert bool((strange(other) > 1e-6).all())


def test_a_known_channel_beats_none() -> None:
    """With a trained model, what explains a cue through the channel is nearer to it than what trusts the cue."""
    m, x = kanerva.load("omniglot").requires_grad_(False), strokes(6)
    at = m.retriever(m.write(x))
    y = damage.flips(x, 0.2, generator()).x
    errors = {}
    for noise in (0.2, 0.001, None):
        with kanerva.deep_checks(False):
            found = at.read(search.infer(at, y, noise)).mode()
        errors[noise] = float((found - x).abs().sum((-3, -2, -1)).mean())
    assert errors[0.2] < 0.5 * errors[0.001]
    assert errors[None] < 0.5 * errors[0.001]


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
