"""Hopfield: its update, its energy and its β, against their formulas; and that it is nearest where it should be."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kanerva
from cases import normal
from kanerva import CodecConfig, DKMConfig, data, subject
from kanerva.cli import main
from kanerva.config import with_model
from kanerva.data import ClassImages, damage
from kanerva.models import hopfield
from kanerva.models.hopfield import Hopfield, HopfieldConfig
from kanerva.models.nearest import Nearest, rounded
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


@pytest.mark.parametrize("likelihood", IMAGE)
@pytest.mark.parametrize("known", [True, False])
def test_max_with_l2_is_nearest(likelihood: str, known: bool) -> None:
    m = model(likelihood, separation="max")
    nearest = Nearest(Nearest.Config(m.config.image, m.config.likelihood)).double()
    x, cue = images(m, 2, 7), images(m, 2, 7, seed=1)
    options = {"mask": masks(cue)} if known else {}
    found = m.recall(m.write(x), cue, 3, **options)
    assert torch.equal(found.x, nearest.recall(nearest.write(x), cue, 3, **options).x)
    torch.testing.assert_close(m(x).log_lik, nearest(x).log_lik)
    assert m.kept(7) == nearest.kept(7)
    between = (x + cue) / 2  # is kept as bits or bytes, like all images
    assert torch.equal(m.write(between).v, nearest.write(between).images.flatten(-3))


def by_hand(similarity: str, v: Tensor, patterns: Tensor, mask: Tensor) -> Tensor:
    """The similarities of one state to all patterns, one after another."""
    found = []
    for pattern in patterns:
        a, b = mask * v, mask * pattern
        whole = {"l2": -(a - b).square().sum(), "dot": a @ b, "cosine": a @ b / (a.norm() * b.norm())}
        found.append(whole[similarity])
    return torch.stack(found)


@pytest.mark.parametrize("similarity", ["l2", "dot", "cosine"])
@pytest.mark.parametrize("likelihood", IMAGE)
def test_a_step_is_the_update(similarity: str, likelihood: str) -> None:
    """Two steps: the second begins at the blend that the first has made, not at its rounded image."""
    m = model(likelihood, similarity=similarity, beta=0.1 if similarity != "cosine" else 3.0)
    x = images(m, 5)
    cue, mask = corrupted(m, x), masks(x)
    found = m.recall(m.write(x), cue, 2, mask=mask)
    stored = x.flatten(1)
    for q in range(5):
        v = cue[q].flatten()
        for step in range(2):
            p = (m.beta * by_hand(similarity, v, stored, mask[q].flatten())).softmax(-1)
            v = p @ stored
            assert found.w is not None
            torch.testing.assert_close(found.w[step, q], p)
            image = v.reshape(m.config.image)
            torch.testing.assert_close(found.x[step, q], (image > 0.5).double() if m.config.binary else image)
        assert float((v[:, None] - stored.mT).abs().amax(0).min()) > 0.01  # a blend, and none of the images


@pytest.mark.parametrize("similarity", ["l2", "dot"])
def test_the_energy_is_its_formula(similarity: str) -> None:
    m = model("gaussian", similarity=similarity, beta=0.1)
    x = images(m, 5)
    cue = corrupted(m, x)
    ours, stored = m.energy_at(m.write(x), cue), x.flatten(1)
    assert ours is not None
    for q in range(5):
        v = cue[q].flatten()
        soft = sum(math.exp(0.1 * float(s)) for s in by_hand(similarity, v, stored, torch.ones_like(v)))
        exact = -math.log(soft) / 0.1 + (0.5 * float(v @ v) if similarity == "dot" else 0)
        assert float(ours[q]) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("similarity", "separation", "beta"),
    [
        *itertools.product(["l2", "dot"], ["softmax"], [0.01, 0.1, 1.0, 10.0]),
        ("l2", "max", None),
        ("dot", "max", None),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_the_energy_never_rises(similarity: str, separation: str, beta: float | None, known: bool) -> None:
    """The update itself, without the guard against rounding; float64 leaves less than 1e-12 of the energy."""
    m = model("gaussian", similarity=similarity, separation=separation, beta=beta)
    patterns, v = 0.3 * normal(3, 9, 12), normal(3, 20, 12, seed=1)
    mask = masks(v) if known else torch.ones_like(v)
    fell = 0.0
    for _ in range(6):
        similar = m.similar(v, patterns, mask)
        before = m.energy(v, similar, mask)
        v = m.separate(similar) @ patterns
        after = m.energy(v, m.similar(v, patterns, mask), mask)
        assert before is not None
        assert after is not None
        assert bool((after <= before + 1e-12 * before.abs().clamp(min=1)).all())
        fell += float((before - after).sum())
    assert fell > 0.1


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


@pytest.mark.parametrize("similarity", ["l2", "dot"])
def test_lost_pixels_are_filled_in(similarity: str) -> None:
    """Also where the others are those of a stored image, whose energy falls by less than rounding errors."""
    m = model("gaussian", similarity=similarity, beta=1.0).float()
    x = rounded(0.5 * normal(20, 8, *m.config.image), binary=False).float()
    cue = damage.half(x)
    found = m.recall(m.write(x), cue.x, 3, mask=cue.mask).last
    assert bool(found[..., 3:].flatten(-3).any(-1).all())


def test_cosine_has_no_energy() -> None:
    m = model(similarity="cosine")
    x = images(m, 4)
    state = m.write(x)
    assert m.recall(state, x, 2).energy is None
    assert m.energy_at(state, x) is None
    blank = m.recall(state, torch.zeros_like(x[:1]), 1).w  # is like none of them
    assert blank is not None
    torch.testing.assert_close(blank, torch.full_like(blank, 0.25))


# β


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("similarity", ["l2", "dot", "cosine"])
def test_beta_is_the_best_of_the_grid(tmp_path: Path, binary: bool, similarity: str) -> None:
    """By the definition: recall of corrupted training images, for each β as a fixed one."""
    seen = crosses(tmp_path, binary)
    likelihood = "bernoulli" if binary else "gaussian"

    def made(beta: float | None) -> Any:
        return kanerva.create("hopfield", seen.shape, likelihood, similarity=similarity, beta=beta)

    m = made(None)
    assert float(m.beta) == 1
    m.adapt(seen)
    chosen = float(m.beta)
    m.adapt(seen)
    assert float(m.beta) == chosen
    draws = torch.Generator().manual_seed(0)
    x = data.episodes(seen, 8, 32, generator=draws)
    cue = (damage.flips if binary else damage.noise)(x, 0.15, draws).x
    errors = {}
    for beta in hopfield.BETAS:
        fixed = made(beta)
        errors[beta] = float((fixed.recall(fixed.write(x), cue, 15).last - x).square().mean())
    best = max(beta for beta in errors if errors[beta] == min(errors.values()))
    assert chosen == pytest.approx(best)  # float32 holds it
    assert max(errors.values()) > 2 * min(errors.values())


def test_a_beta_is_saved_and_not_chosen_again(tmp_path: Path) -> None:
    m = kanerva.create("hopfield", (1, 8, 8), similarity="dot")
    m.beta.fill_(0.123)  # type: ignore[operator]
    m.save(tmp_path / "model.safetensors")
    (again,) = subject.find([str(tmp_path / "model.safetensors")], dataset=str(patterns(tmp_path)))
    assert torch.equal(again.model.beta, m.beta)  # type: ignore[arg-type]


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
    m = Hopfield.on(other, similarity="dot", beta=2.0)
    x = images(m, 2, 5)
    assert torch.equal(m.write(x).v, other.encode(x))  # type: ignore[operator]
    exact = other.decode(m.write(x).v[0])  # type: ignore[operator]
    pairs = torch.stack([exact.log_prob(image.expand(5, *image.shape)).logsumexp(0) for image in x[0]])
    torch.testing.assert_close(m(x[0]).log_lik, pairs - math.log(5))
    assert m.config.similarity == "dot"
    assert m.kept(7) == 7 * 4
    m.save(tmp_path / "model.safetensors")
    again = kanerva.load(tmp_path / "model.safetensors").double()
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    torch.testing.assert_close(again.write(x).v, m.write(x).v, rtol=0, atol=0)
    assert bool(m.write(x).v.any())
    with pytest.raises(TypeError, match="mask: expected an option of method 'hopfield'"):
        m.recall(m.write(x), x, mask=torch.ones(5, 6))


def test_a_place_names_the_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kanerva.train(with_model(tiny(tmp_path, steps=1), "vae"), tmp_path / "run")
    place = f"hopfield:{tmp_path / 'run'}"
    (found,) = subject.find([place])
    assert isinstance(found.model, Hopfield)
    assert found.model.config.code == 6
    again = Hopfield.on(kanerva.load(tmp_path / "run"))
    again.adapt(found.seen)
    assert float(again.beta) == float(found.model.beta) != 1
    assert found.about["kind"] == "hopfield"
    main(["evaluate", place, "--images", "64", "--length", "4", "--device", "cpu"])
    assert f"{kanerva.evaluate(found.model, found.unseen, 4, 64).nats:.2f} ± " in capsys.readouterr().out
    kanerva.create("nearest", (1, 8, 8)).save(tmp_path / "nearest.safetensors")
    for bad, message in (
        ("hopfield:", "expected a trained model after the colon, got nothing"),
        ("hopfield:nearest", "expected a trained model after the colon, got nearest"),
        (f"hopfield:{tmp_path / 'nearest.safetensors'}", "expected a trained model after the colon, got "),
        (f"nearest:{tmp_path / 'run'}", "nearest: expected no codec, which it does not use"),
    ):
        with pytest.raises(ValueError, match=message):
            list(subject.find([bad], dataset=str(tmp_path / "bits.npz")))


def test_settings_of_other_models_are_taken_over() -> None:
    run = with_model(kanerva.RunConfig(DKMConfig(code=7, codec=CodecConfig((4,)))), "hopfield")
    assert run.model == HopfieldConfig(code=7, codec=CodecConfig((4,)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"similarity": "l1"}, "similarity: expected one of"),
        ({"separation": "min"}, "separation: expected one of"),
        ({"beta": 0.0}, "beta: expected 1e-06 or more, got 0.0"),
        ({"beta": -1.0}, "beta: expected 1e-06 or more, got -1.0"),
        ({"beta": math.inf}, "beta: expected 1e-06 or more and finite, got inf"),
        ({"beta": 2.0, "separation": "max"}, "beta: expected none with separation max, which has no β, got 2.0"),
        ({"code": -1}, "code: expected 0 or more, got -1"),
        ({"codec": CodecConfig((4,))}, "codec: expected none with code 0"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("no_shape_checks")
def test_nonsense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HopfieldConfig(**fields)


@pytest.mark.usefixtures("no_shape_checks")
def test_a_given_beta_stays(tmp_path: Path) -> None:
    """A whole number too, as a number of the model's own precision."""
    for fields, beta in (({"beta": 3}, 3.0), ({"separation": "max"}, 1.0)):
        m = kanerva.create("hopfield", (1, 8, 8), **fields)
        m.adapt(crosses(tmp_path))
        assert torch.equal(m.double().beta, torch.tensor(beta, dtype=torch.float64))  # type: ignore[arg-type]
