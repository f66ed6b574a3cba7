"""Every model of MODELS keeps the contract of Model: the same walk for all of them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import kanerva
from cases import generator
from kanerva import MODELS, CodecConfig, Model, Recall
from kanerva.cli import main
from kanerva.data import ClassImages, damage
from kanerva.models import BaseConfig
from kanerva.training.config import with_model
from small import metrics, tiny

pytestmark = pytest.mark.usefixtures("short_search")

# Small sizes, for the models that have them.
SMALL: dict[str, Any] = {"rows": 4, "code": 6, "codec": CodecConfig((4, 4))}
IMAGE = {"bernoulli": (1, 7, 8), "gaussian": (3, 6, 6)}


def small(name: str, likelihood: str, **fields: Any) -> Model:
    torch.manual_seed(0)
    return kanerva.create(name, IMAGE[likelihood], likelihood, **fields).eval()


def cases() -> list[Any]:
    """Every model with small sizes and both likelihoods; where it may have a codec or none (code 0), both.

    A codec has correlated colours too.
    """
    found = []
    for name, kind in MODELS.items():
        own = {field.name: field for field in dataclasses.fields(kind.Config)}
        sizes = {key: value for key, value in SMALL.items() if key in own}
        variants = [sizes] if "code" not in own or own["code"].default else [sizes, {}]
        for fields in variants:
            for likelihood in IMAGE:
                label = f"{name}-{likelihood}" + ("-images" if fields != sizes else "")
                found.append(pytest.param((name, likelihood, fields), id=label))
        if "scale" in own:
            for scale in ("pixel", "colour") if name == "dkm" else ("colour",):
                found.append(pytest.param((name, "gaussian", {**sizes, "scale": scale}), id=f"{name}-{scale}"))
    return found


@pytest.fixture(params=cases())
def model(request: pytest.FixtureRequest) -> Model:
    name, likelihood, fields = request.param
    return small(name, likelihood, **fields)


def images(model: Model, *batch: int, seed: int = 0) -> Tensor:
    """Images of grey levels, or bits."""
    x = torch.rand(*batch, *model.config.image, generator=generator(seed))
    x = (x > 0.7).float() if model.config.binary else (256 * x).floor() / 128 - 1
    return x.to(model.like)


def corrupted(model: Model, x: Tensor) -> Tensor:
    corrupt = damage.flips if model.config.binary else damage.noise
    return corrupt(x, 0.15, generator(1)).x


def recall(model: Model, state: Any, x: Tensor, steps: int = 2, method: str | None = None) -> Recall:
    """Recall with the same random numbers, by the first method where none is named."""
    return model.recall(state, x, steps, method, generator=generator())


def same(a: Recall, b: Recall) -> None:
    for one, other in zip(a, b, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


# what it says of itself


def test_a_model_says_what_it_is(model: Model) -> None:
    name = model.config.kind
    assert MODELS[name] is type(model)
    assert type(model).Config is type(model.config)
    assert model.TITLE
    assert model.METHODS
    assert model.READ in (None, *model.METHODS)
    assert any(p.requires_grad for p in model.parameters()) != model.UNTRAINED
    assert len(model.LATENT) == 1


def test_what_it_keeps_is_counted(model: Model) -> None:
    counts = [model.kept(length) for length in (0, 1, 2, 5, 100)]
    assert all(type(count) is int and count >= 0 for count in counts)
    assert counts == sorted(counts)


# forward


def test_forward_gives_finite_terms(model: Model) -> None:
    for batch in ((), (3,), (2, 3)):
        terms = model(images(model, *batch, 4), generator())
        shapes = [(*batch, 4)] * 3 + [batch]
        for term, shape in zip(terms, shapes, strict=True):
            assert term is None or (term.shape == shape and bool(term.isfinite().all()))
        assert terms.log_lik is not None


def test_reading_what_was_written_has_the_terms_of_forward(model: Model) -> None:
    """All but KL(M), which is of writing."""
    model.to(torch.float64)
    x, other = images(model, 2, 4), images(model, 2, 4, seed=1)
    state = model.write(x)
    terms = model.given(state, x, generator())
    for one, wanted in zip(terms[:3], model(x, generator())[:3], strict=True):
        assert (one is None) == (wanted is None)
        if one is not None and wanted is not None:
            torch.testing.assert_close(one, wanted)
    new = model.given(state, other, generator())
    assert new.log_lik.shape == (2, 4)
    assert new.kl_memory is None


def test_what_is_not_written_is_read_from_a_memory_that_has_not_seen_it(model: Model) -> None:
    """With `written`, the terms are those of reading all images from the memory of the first ones."""
    model.to(torch.float64)
    x = images(model, 2, 5)
    terms = model.given(model.write(x[:, :3]), x, generator())
    found = model(x, generator(), written=3)
    for one, wanted in zip(found[:3], terms[:3], strict=True):
        assert (one is None) == (wanted is None)
        if one is not None and wanted is not None:
            torch.testing.assert_close(one, wanted)
    first = model(x[:, :3], generator()).kl_memory
    if first is not None:
        assert found.kl_memory is not None
        torch.testing.assert_close(found.kl_memory, first)


def test_a_blank_memory_is_one_that_can_be_read(model: Model) -> None:
    """It has the shapes of a written one; images can be scored with it where they can be with others."""
    blank, x = model.blank((2,)), images(model, 2, 3)
    state = model.write(x[:, :0])
    assert [(a.shape, a.dtype) for a in blank] == [(a.shape, a.dtype) for a in state]
    assert not model.given(blank, x, generator()).log_lik.isnan().any()


def test_writing_into_a_blank_memory_is_writing(model: Model) -> None:
    model.to(torch.float64)
    blank, x = model.blank((2,)), images(model, 2, 3)
    for part, wanted in zip(model.write(x, blank), model.write(x), strict=True):
        torch.testing.assert_close(part, wanted)


def test_images_are_scored_in_every_memory(model: Model) -> None:
    """Batch axes of memories and of images go together, as in recall, or the error says what came."""
    model.to(torch.float64)
    x = images(model, 2, 3)
    state, one = model.write(x), images(model, 3, seed=1)
    terms, wanted = (model.given(state, cue, generator()) for cue in (one, one.expand(2, *one.shape)))
    for term, other in zip(terms[:3], wanted[:3], strict=True):
        assert (term is None) == (other is None)
        assert term is None or torch.equal(term, other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"batch axes: expected .*, got \(2,\) of state.*\(3,\) of x"):
        model.given(state, images(model, 3, 4))


def test_every_weight_has_a_gradient(model: Model) -> None:
    weights = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not model.UNTRAINED:
        model(images(model, 2, 4), generator()).loss().backward()
    bad = [name for name, p in weights if p.grad is None or not bool(p.grad.isfinite().all()) or not p.grad.any()]
    assert bad == []


def test_a_step_reads_nothing_on_the_host(model: Model) -> None:
    """So that a CUDA graph can capture it: no number is brought to the device, and none is looked at."""
    x = images(model, 2, 4)
    with HostReads() as reads, kanerva.deep_checks(False):
        loss = model(x, generator()).loss()
        if not model.UNTRAINED:
            loss.backward()
    assert model.UNTRAINED or reads.found == set()


class HostReads(TorchDispatchMode):
    """Notes operators that make a tensor of numbers of the host, or numbers of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in {"lift_fresh", "_local_scalar_dense", "nonzero", "linalg_svd", "_linalg_svd", "_linalg_eigh"}:
            self.found.add(name)
        return func(*args, **(kwargs or {}))


def test_it_is_evaluated(model: Model) -> None:
    pixels = (images(model, 20) if model.config.binary else 128 * (images(model, 20) + 1)).to(torch.uint8)
    data = ClassImages.from_labels(pixels, torch.arange(20) % 4, binary=model.config.binary)
    score = kanerva.evaluate(model, data, length=3, count=12, batch=2)
    assert score == kanerva.evaluate(model, data, length=3, count=12, batch=2)
    plain = kanerva.evaluate(model, data, length=3, count=12, batch=2, extra=False)
    assert plain == dataclasses.replace(score, extra={}, new=None, blank=None, bits=None)
    assert all(set(value) == {"mean", "stderr"} for value in score.extra.values())


# write


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_memories_are_written_and_written_on(model: Model, batch: tuple[int, ...]) -> None:
    x, more = images(model, *batch, 3), images(model, *batch, 2, seed=1)
    first = model.write(x)
    second = model.write(more, first)
    for state in (first, second):
        assert isinstance(state, tuple)
        assert hasattr(state, "_fields")
        assert all(part.shape[: len(batch)] == batch for part in state)
        found = model.recall(state, x, 2, model.READ)
        assert found.x.shape == (2, *x.shape)
        assert torch.equal(found.last, found.x[-1])
        assert found.w is None or found.w.shape[:-1] == (2, *batch, 3)
        assert found.energy is None or found.energy.shape == (2, *batch, 3)
    assert type(first) is type(second)


def test_each_memory_of_a_batch_is_its_own(model: Model) -> None:
    model = model.double()
    x, method = images(model, 3, 4), model.READ or model.METHODS[0]
    together = model.recall(model.write(x), x, 2, method).last
    for one, found in zip(x, together, strict=True):
        torch.testing.assert_close(model.recall(model.write(one), one, 2, method).last, found)


# recall


def test_recall_is_the_same_under_a_seed(model: Model) -> None:
    x = images(model, 2, 4)
    state = model.write(x)
    for method in model.METHODS:
        for cue in (x, corrupted(model, x)):
            found = recall(model, state, cue, 3, method)
            assert found.x.shape == (3, *x.shape)
            assert bool(found.x.isfinite().all())
            if model.config.binary:
                assert bool(((found.x == 0) | (found.x == 1)).all())
            same(found, recall(model, state, cue, 3, method))
        if method == model.METHODS[0]:
            same(found, recall(model, state, cue, 3))


def test_every_method_takes_every_hint(model: Model) -> None:
    """One that a method cannot use is no error."""
    x = images(model, 4)
    state, told = model.write(x), []
    for method in model.METHODS:
        found = model.recall(
            state,
            x,
            1,
            method,
            mask=torch.ones(model.config.image[1:]),
            noise=0.1,
            temperature=0.5,
            generator=generator(),
            callback=lambda step, where: told.append((step, where.x.shape)),
        )
        assert found.x.shape == (1, *x.shape)
        assert told.pop() == (0, x.shape)


# sample


def test_samples_are_images(model: Model) -> None:
    for batch in ((), (2, 3)):
        state = model.write(images(model, *batch, 3))
        drawn = model.sample(state, 5, 2, generator())
        assert drawn.x.shape == (2, *batch, 5, *model.config.image)
        assert bool(drawn.x.isfinite().all())
        same(drawn, model.sample(state, 5, 2, generator()))
    assert not torch.equal(drawn.x, model.sample(state, 5, 2, generator(1)).x)


# saved and loaded


def test_what_is_saved_is_loaded(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "model.safetensors")
    again = kanerva.load(tmp_path / "model.safetensors")
    assert type(again) is type(model)
    assert again.config == model.config
    x = images(model, 2, 4)
    assert torch.equal(again(x, generator()).log_lik, model(x, generator()).log_lik)
    same(recall(again, again.write(x), x), recall(model, model.write(x), x))


# what is refused


@pytest.mark.parametrize(
    ("broken", "error", "message"),
    [
        (lambda x: x.tolist(), TypeError, r"x: expected a tensor of shape \(\*b, .*\), got list"),
        (lambda x: None, TypeError, r"x: expected a tensor of shape \(\*b, .*\), got NoneType"),
        (lambda x: x[..., :-1], ValueError, r"x: expected shape \(\*b, .*\) with w = .*, got \(2, 4, "),
        (lambda x: x[0, 0], ValueError, r"x: expected shape \(\*b, [TQ], .*\), got shape"),
        (lambda x: x.double(), TypeError, "x: expected torch.float32 like the .*, got torch.float64"),
        (lambda x: x * torch.nan, ValueError, "x: expected finite values"),
        (lambda x: x + 2, ValueError, "x: expected pixels on .* likelihood, got "),
    ],
    ids=["list", "None", "size", "axes", "dtype", "NaN", "range"],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_bad_images_are_refused_alike(model: Model, broken: Any, error: type[Exception], message: str) -> None:
    x = images(model, 2, 4)
    state, bad = model.write(x), broken(x)
    for call in (model, model.write, lambda x: model.recall(state, x)):
        with pytest.raises(error, match=message):
            call(bad)


@pytest.mark.usefixtures("no_shape_checks")
def test_other_nonsense_is_refused(model: Model) -> None:
    x = images(model, 2, 4)
    state = model.write(x)
    kind, last = type(state), [part[..., :-1] if part.shape[-1] else part.new_empty(1) for part in state]
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "method: ", {"method": "guess"}),
        (ValueError, "steps: ", {"steps": 0}),
        (TypeError, "nonsense", {"nonsense": 1}),
        (TypeError, "generator: ", {"generator": np.random.default_rng(0)}),
        (TypeError, "state: ", {"state": None}),
        (TypeError, "state.*", {"state": kind(*(part.double() for part in state))}),
        (ValueError, r"state\.\w+: expected shape", {"state": kind(*last)}),
    ]
    if any(part.numel() for part in state):
        nans = kind(*(part * torch.nan for part in state))
        wrong.append((ValueError, r"state\.\w+: expected finite values", {"state": nans}))
    for error, message, given in wrong:
        for call, own in ((model.recall, {"x": x}), (model.sample, {"n": 3})):
            with pytest.raises(error, match=message):
                call(**({"state": state} | own | given))  # type: ignore[operator]
    with pytest.raises(TypeError, match="state: expected"):
        model.write(x, x)
    with pytest.raises(ValueError, match="written: expected a whole number from 0 to 4"):
        model(x, None, 5)
    with pytest.raises(ValueError, match="n: expected"):
        model.sample(state, 0)
    with pytest.raises(ValueError, match="batch axes: expected shapes that broadcast"):
        model.recall(state, images(model, 3, 4))


@pytest.mark.usefixtures("no_shape_checks")
def test_an_unknown_model_or_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model: expected one of dkm, .*; did you mean 'hopfield'\?"):
        kanerva.create("hopfeld")
    for name, kind in MODELS.items():
        with pytest.raises(TypeError, match=f"colour: expected a field of {name} "):
            kanerva.create(name, colour=3)
        with pytest.raises(ValueError, match="likelihood: expected one of"):
            kanerva.create(name, likelihood="poisson")
        with pytest.raises(TypeError, match=f"config: expected a {kind.Config.__name__}"):
            kind(BaseConfig())
    with pytest.raises(ValueError, match="codec: expected fields of CodecConfig"):
        kanerva.create("vae", codec={"kernel": 3})
    for name, meant in (("neerest", "nearest"), ("omniglott", "omniglot")):
        with pytest.raises(FileNotFoundError, match=rf"{name}: no such .*'{meant}'\?"):
            kanerva.load(name)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("km", {"the memory's uncertainty counted", "KL(M) / T, not charged"}),
        ("gpm", {"as released"}),
        ("dnc", {"read from another episode's memory"}),
        ("vae", {"importance-weighted, k = 50"}),
    ],
)
def test_rivals_are_trained_and_say_what_their_scores_leave_out(
    name: str, extra: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_model(tiny(tmp_path, steps=60, lr=1e-2, evaluate_every=60), name)
    score = kanerva.train(config, tmp_path / "run")
    assert score is not None
    assert score.extra == {}  # in training it would take too long
    assert score.nats < 0.85 * float(metrics(tmp_path / "run")[0]["nats"])
    main(["evaluate", str(tmp_path / "run"), "--images", "64", "--length", "4", "--device", "cpu", "--json"])
    assert set(json.loads(capsys.readouterr().out)["extra"]) == extra
