"""Hopfield: its update, its energy and its β, against their formulas; and that it is nearest where it should be."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kanerva
from cases import normal
from kanerva import CodecConfig, data
from kanerva.cli import main
from kanerva.data import ClassImages, damage
from kanerva.lab import runner
from kanerva.models.rivals.hopfield import BETAS, Hopfield, HopfieldConfig
from kanerva.models.rivals.nearest import Nearest, rounded
from kanerva.training.config import with_model
from small import patterns, tiny

IMAGE = {"bernoulli": (1, 5, 6), "gaussian": (3, 5, 6)}
CODEC: dict[str, Any] = {"code": 4, "codec": CodecConfig((4, 4))}


def model(likelihood: str = "bernoulli", **fields: Any) -> Hopfield:
    torch.manual_seed(0)
    made = kanerva.create("hopfield", IMAGE[likelihood], likelihood, **fields).double()
    assert isinstance(made, Hopfield)
    return made


def images(m: Hopfield, *batch: int, seed: int = 0) -> Tensor:
    return rounded(normal(*batch, *m.config.image, seed=seed), m.config.binary)


def corrupted(m: Hopfield, x: Tensor) -> Tensor:
    corrupt, level = (damage.flips, 0.3) if m.config.binary else (damage.noise, 0.6)
    return corrupt(x, level, torch.Generator().manual_seed(0)).x


def masks(x: Tensor) -> Tensor:
    return (normal(*x.shape, seed=9) > 0).to(x)


def crosses(folder: Path, binary: bool = True) -> ClassImages:
    return data.load(str(patterns(folder, binary)), "train")


@pytest.mark.parametrize("known", [True, False])
def test_with_a_large_beta_it_is_nearest(known: bool) -> None:
    """Of bits, several images may be as near, which a softmax blends."""
    m = model("gaussian", beta=1e4)
    nearest = Nearest(Nearest.Config(m.config.image, m.config.likelihood)).double()
    x, cue = images(m, 2, 7), images(m, 2, 7, seed=1)
    options = {"mask": masks(cue)} if known else {}
    found = m.recall(m.write(x), cue, 3, **options)
    torch.testing.assert_close(found.x, nearest.recall(nearest.write(x), cue, 3, **options).x)
    torch.testing.assert_close(m(x).log_lik, nearest(x).log_lik)
    assert m.kept(7) == nearest.kept(7)
    between = (x + cue) / 2  # is kept as bits or bytes, like all images
    assert torch.equal(m.write(between).v, nearest.write(between).images.flatten(-3))


def soft(v: Tensor, patterns: Tensor, mask: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """The weights of patterns for one state, and its energy, one after another."""
    e = torch.stack([(-beta * (mask * (v - pattern)).square().sum()).exp() for pattern in patterns])
    return e / e.sum(), -e.sum().log() / beta


@pytest.mark.parametrize("likelihood", IMAGE)
def test_a_step_is_the_update_and_the_energy_is_its_formula(likelihood: str) -> None:
    """Two steps: the second begins at the blend that the first has made, not at its rounded image."""
    m = model(likelihood, beta=0.1)
    x = images(m, 5)
    cue, mask, state, stored = corrupted(m, x), masks(x), m.write(x), x.flatten(1)
    found, energies = m.recall(state, cue, 2, mask=mask), m.energy_at(state, cue)
    assert found.w is not None
    assert found.energy is not None
    for q in range(5):
        v = cue[q].flatten()
        torch.testing.assert_close(energies[q], soft(v, stored, torch.ones_like(v), 0.1)[1])
        for step in range(2):
            p, _ = soft(v, stored, mask[q].flatten(), 0.1)
            v = p @ stored
            torch.testing.assert_close(found.w[step, q], p)
            torch.testing.assert_close(found.energy[step, q], soft(v, stored, mask[q].flatten(), 0.1)[1])
            image = v.reshape(m.config.image)
            torch.testing.assert_close(found.x[step, q], (image > 0.5).double() if m.config.binary else image)
        assert float((v[:, None] - stored.mT).abs().amax(0).min()) > 0.01  # a blend, and none of the images


@pytest.mark.parametrize("likelihood", IMAGE)
@pytest.mark.parametrize("fields", [{}, CODEC], ids=["images", "codes"])
def test_recall_never_raises_the_energy(likelihood: str, fields: dict[str, Any]) -> None:
    """In single precision too, where what is left to gain is less than rounding errors."""
    for beta in (0.01, 0.3, 10.0):
        m = model(likelihood, beta=beta, **fields).float()
        x = images(m, 4, 8).float()
        state, cue = m.write(x), corrupted(m, x)
        energy = m.recall(state, cue, 12).energy
        assert energy is not None
        assert bool((energy.diff(dim=0) <= 0).all())


def test_lost_pixels_are_filled_in() -> None:
    """Also where the others are those of a stored image, whose energy falls by less than rounding errors."""
    m = model("gaussian", beta=1.0).float()
    x = rounded(0.5 * normal(20, 8, *m.config.image), binary=False).float()
    cue = damage.half(x)
    found = m.recall(m.write(x), cue.x, 3, mask=cue.mask).last
    assert bool(found[..., 3:].flatten(-3).any(-1).all())


@pytest.mark.parametrize("binary", [True, False])
def test_beta_is_the_best_of_the_grid(tmp_path: Path, binary: bool) -> None:
    """By the definition: recall of corrupted training images, for each β as a fixed one, which then stays."""
    seen = crosses(tmp_path, binary)

    def made(beta: float | None) -> Any:
        return kanerva.create("hopfield", seen.shape, "bernoulli" if binary else "gaussian", beta=beta)

    m = made(None)
    m.adapt(seen)
    draws = torch.Generator().manual_seed(0)
    x = data.episodes(seen, 8, 32, generator=draws)
    cue = (damage.flips if binary else damage.noise)(x, 0.15, draws).x
    errors = {}
    for beta in BETAS:
        fixed = made(beta)
        fixed.adapt(seen)
        errors[float(fixed.beta)] = float((fixed.recall(fixed.write(x), cue, 15).last - x).square().mean())
    assert len(errors) == len(BETAS)
    assert float(m.beta) == max(beta for beta in errors if errors[beta] == min(errors.values()))
    assert max(errors.values()) > 2 * min(errors.values())
    m.save(tmp_path / "model.safetensors")
    assert torch.equal(kanerva.load(tmp_path / "model.safetensors").beta, m.beta)  # type: ignore[arg-type]


# codes


@pytest.mark.parametrize("kind", ["dkm", "vae"])
@pytest.mark.parametrize(("likelihood", "scale"), [*((name, "one") for name in IMAGE), ("gaussian", "colour")])
def test_codes_are_those_of_the_model(kind: str, likelihood: str, scale: str, tmp_path: Path) -> None:
    """A copy of its codec: another model does not change with it, and it is saved along."""
    torch.manual_seed(0)
    other = kanerva.create(kind, IMAGE[likelihood], likelihood, scale=scale, **CODEC).double()
    with torch.no_grad():
        for p in other.decoder.up.parameters():  # type: ignore[union-attr]
            p.normal_(std=0.3)
    m = Hopfield.on(other, beta=2.0)
    x = images(m, 2, 5)
    assert torch.equal(m.write(x).v, other.encode(x))  # type: ignore[operator]
    exact = other.decode(m.write(x).v[0])  # type: ignore[operator]
    pairs = torch.stack([exact.log_prob(image.expand(5, *image.shape)).logsumexp(0) for image in x[0]])
    torch.testing.assert_close(m(x[0]).log_lik, pairs - math.log(5))
    assert m.kept(7) == 7 * 4
    m.save(tmp_path / "model.safetensors")
    again = kanerva.load(tmp_path / "model.safetensors").double()
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    torch.testing.assert_close(again.write(x).v, m.write(x).v, rtol=0, atol=0)
    assert bool(m.write(x).v.any())
    masked = m.recall(m.write(x), x, 2, mask=torch.zeros(5, 6, dtype=x.dtype))  # codes have no pixels
    torch.testing.assert_close(masked, m.recall(m.write(x), x, 2))


def test_a_place_names_the_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kanerva.train(with_model(tiny(tmp_path, steps=1), "vae"), tmp_path / "run")
    place = f"hopfield:{tmp_path / 'run'}"
    (found,) = runner.find([place])
    assert isinstance(found.model, Hopfield)
    assert found.model.config.code == 6
    assert float(found.model.beta) != 1  # chosen on its training images
    main(["evaluate", place, "--images", "64", "--length", "4", "--device", "cpu"])
    assert f"{kanerva.evaluate(found.model, found.unseen, 4, 64).nats:.2f} ± " in capsys.readouterr().out
    for bad in ("hopfield:", "hopfield:nearest"):
        with pytest.raises(ValueError, match="expected a trained model after the colon, got"):
            list(runner.find([bad], dataset=str(tmp_path / "bits.npz")))


@pytest.mark.parametrize(
    ("name", "value"),
    [("beta", 0.0), ("beta", math.inf), ("code", -1), ("codec", CodecConfig((4,)))],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_nonsense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        HopfieldConfig(**{name: value})
