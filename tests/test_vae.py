"""VAE: its bound and its importance-weighted bound, against torch.distributions and against an integral."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

import kanerva
from cases import normal
from kanerva import CodecConfig
from kanerva.cli import main
from kanerva.models.rivals.vae import VAE, VAEConfig
from kanerva.training.config import with_model
from small import metrics, tiny

SMALL = VAEConfig(image=(1, 6, 7), code=5, codec=CodecConfig((4, 6)))
COLOUR = dataclasses.replace(SMALL, image=(3, 6, 6), likelihood="gaussian")


def model(config: VAEConfig = SMALL) -> VAE:
    torch.manual_seed(0)
    return VAE(config).double()


def images(config: VAEConfig, *batch: int) -> Tensor:
    x = normal(*batch, *config.image)
    return (x > 0.5).double() if config.binary else x.clamp(-1, 1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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


def test_the_memory_is_empty_but_has_its_axes() -> None:
    m, x = model(), images(SMALL, 3, 4)
    assert m.kept(1000) == 0
    state = m.write(x, m.write(x[0]))
    assert sum(part.numel() for part in state) == m.kept(4)
    assert m.recall(state, x[0], 2).x.shape == (2, 3, 4, *SMALL.image)
    assert m.sample(state, 5, 1, generator()).x.shape == (1, 3, 5, *SMALL.image)


def test_colours_out_of_range_are_decoded_on() -> None:
    """What an untrained decoder makes of an image need not be one; recall goes on from it all the same."""
    m, x = model(COLOUR).requires_grad_(False), images(COLOUR, 4)
    for part in m.decoder.up:
        part.weight.mul_(10)  # type: ignore[operator]
    assert float(m.recall(m.write(x), x, 3).x.abs().max()) > 1.5


def test_it_is_trained_and_its_bounds_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = with_model(tiny(tmp_path, steps=60, lr=1e-2, evaluate_every=60), "vae")
    score = kanerva.train(config, tmp_path / "run")
    assert score is not None
    assert score.extra == {}  # in training it would take too long
    rows: list[dict[str, Any]] = metrics(tmp_path / "run")
    assert score.nats < 0.85 * rows[0]["nats"]
    flags = ["evaluate", str(tmp_path / "run"), "--images", "256", "--length", "4", "--device", "cpu"]
    main([*flags, "--json"])
    found = json.loads(capsys.readouterr().out)
    (name,) = found["extra"]
    assert name == "importance-weighted, k = 50"
    assert found["extra"][name]["mean"] < found["nats"]
    m, x = (
        kanerva.load(tmp_path / "run"),
        kanerva.data.load(str(tmp_path / "bits.npz"), "test").images(torch.arange(64)),
    )
    assert isinstance(m, VAE)
    # the same bound of all test images, in other draws
    assert found["extra"][name]["mean"] == pytest.approx(-float(m.importance(x).detach().mean()), abs=1)
    main(flags)
    text = capsys.readouterr().out
    assert (
        f"{found['extra'][name]['mean']:.2f} ± {found['extra'][name]['stderr']:.2f} nats per image, {name}" in text
    )
    assert f"+ KL(z) {found['kl_weights']:.2f}" in text


def test_a_run_is_not_resumed_with_another_kind_of_model(tmp_path: Path) -> None:
    """In either direction: neither kind has all fields of the other."""
    config = tiny(tmp_path, steps=1)
    for name, other in (("vae", "dkm"), ("dkm", "vae")):
        kanerva.train(with_model(config, name), tmp_path / name)
        with pytest.raises(ValueError, match=rf"another config: model\.kind = {other} \(was {name}\)"):
            kanerva.train(with_model(config, other), tmp_path / name, resume=True)
