"""Every model of MODELS keeps the contract of Model: the same walk for all of them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import kanerva
from kanerva import MODELS, CodecConfig, Model, Recall, subject
from kanerva.data import ClassImages, damage
from kanerva.fields import from_dict, to_dict
from kanerva.models import BaseConfig

pytestmark = pytest.mark.usefixtures("short_search")

# Small sizes, for the models that have them.
SMALL: dict[str, Any] = {"rows": 4, "code": 6, "codec": CodecConfig((4, 4))}
IMAGE = {"bernoulli": (1, 7, 8), "gaussian": (3, 6, 6)}
# Options of recall that some model has, with a value that it can use.
VALUES: dict[str, Any] = {
    "noise": 0.1,
    "mask": torch.ones(1, 1),
    "inside": False,
    "contents": None,
    "temperature": 0.5,
    "generator": None,
    "callback": lambda step, where: None,
}


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


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(model: Model, *batch: int, seed: int = 0) -> Tensor:
    """Images of grey levels, or bits."""
    x = torch.rand(*batch, *model.config.image, generator=generator(seed))
    x = (x > 0.7).float() if model.config.binary else (256 * x).floor() / 128 - 1
    return x.to(model.like)


def corrupted(model: Model, x: Tensor) -> Tensor:
    corrupt = damage.flips if model.config.binary else damage.noise
    return corrupt(x, 0.15, generator(1)).x


def recall(model: Model, state: Any, x: Tensor, steps: int = 2, method: str | None = None) -> Recall:
    """Recall with the same random numbers, where it takes any."""
    drawn = {"generator": generator()} if "generator" in model.options(method or model.METHODS[0]) else {}
    return model.recall(state, x, steps, method, **drawn)


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


def test_its_config_goes_through_json(model: Model) -> None:
    data = to_dict(model.config)
    assert data["kind"] == model.config.kind
    assert from_dict(BaseConfig, data) == model.config


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
    if terms is None:
        return
    for one, wanted in zip(terms[:3], model(x, generator())[:3], strict=True):
        assert (one is None) == (wanted is None)
        if one is not None and wanted is not None:
            torch.testing.assert_close(one, wanted)
    new = model.given(state, other, generator())
    assert new is not None
    assert new.log_lik.shape == (2, 4)
    assert new.kl_memory is None


def test_what_is_not_written_is_read_from_a_memory_that_has_not_seen_it(model: Model) -> None:
    """With `written`, the terms are those of reading all images from the memory of the first ones."""
    model.to(torch.float64)
    x = images(model, 2, 5)
    terms = model.given(model.write(x[:, :3]), x, generator())
    if terms is None:
        return
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
    if blank is None:
        return
    state = model.write(x)
    assert [(a.shape, a.dtype) for a in blank] == [(a.shape, a.dtype) for a in state]
    terms = model.given(blank, x, generator())
    assert (terms is None) == (model.given(state, x, generator()) is None)
    assert terms is None or bool(terms.log_lik.isfinite().all())


def test_writing_into_a_blank_memory_is_writing(model: Model) -> None:
    model.to(torch.float64)
    blank, x = model.blank((2,)), images(model, 2, 3)
    if blank is not None:
        for part, wanted in zip(model.write(x, blank), model.write(x), strict=True):
            torch.testing.assert_close(part, wanted)


def test_images_are_scored_in_every_memory(model: Model) -> None:
    """Batch axes of memories and of images go together, as in recall, or the error says what came."""
    model.to(torch.float64)
    x = images(model, 2, 3)
    state, one = model.write(x), images(model, 3, seed=1)
    terms, wanted = (model.given(state, cue, generator()) for cue in (one, one.expand(2, *one.shape)))
    if terms is None or wanted is None:
        return
    for term, other in zip(terms[:3], wanted[:3], strict=True):
        assert (term is None) == (other is None)
        assert term is None or torch.equal(term, other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"batch axes: expected .*, got \(2,\) of state, \(3,\) of x"):
        model.given(state, images(model, 3, 4))


def test_every_weight_has_a_gradient(model: Model) -> None:
    weights = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not model.UNTRAINED:
        kanerva.objective.loss(model(images(model, 2, 4), generator())).backward()
    bad = [name for name, p in weights if p.grad is None or not bool(p.grad.isfinite().all()) or not p.grad.any()]
    assert bad == []


def test_forward_is_the_same_under_a_seed(model: Model) -> None:
    x = images(model, 2, 4)
    for one, other in zip(model(x, generator(3)), model(x, generator(3)), strict=True):
        assert one is other is None or torch.equal(one, other)


def test_a_step_reads_nothing_on_the_host(model: Model) -> None:
    """So that a CUDA graph can capture it: no number is brought to the device, and none is looked at."""
    x = images(model, 2, 4)
    with HostReads() as reads, kanerva.checks.deep_checks(False):
        loss = kanerva.objective.loss(model(x, generator()))
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


def test_the_first_method_is_taken_where_none_is_named(model: Model) -> None:
    x = images(model, 4)
    state = model.write(x)
    same(recall(model, state, x), recall(model, state, x, method=model.METHODS[0]))


def test_options_are_taken_and_others_refused(model: Model) -> None:
    x = images(model, 4)
    state, height_and_width = model.write(x), model.config.image[1:]
    for method in model.METHODS:
        assert set(model.options(method)) <= set(VALUES)
        for option, value in {**VALUES, "nonsense": 1.0}.items():
            value = value.expand(height_and_width).to(x) if option == "mask" else value
            value = generator() if option == "generator" else value
            if option in model.options(method):
                assert model.recall(state, x, 1, method, **{option: value}).x.shape == (1, *x.shape)
            else:
                with pytest.raises((TypeError, ValueError), match=option):
                    model.recall(state, x, 1, method, **{option: value})


# sample


def test_samples_are_images(model: Model) -> None:
    for batch in ((), (2, 3)):
        state = model.write(images(model, *batch, 3))
        drawn = model.sample(state, 5, 2, generator())
        assert drawn.x.shape == (2, *batch, 5, *model.config.image)
        assert bool(drawn.x.isfinite().all())
        same(drawn, model.sample(state, 5, 2, generator()))
    assert not torch.equal(drawn.x, model.sample(state, 5, 2, generator(1)).x)


# saved, loaded, in another precision


def test_what_is_saved_is_loaded(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "model.safetensors")
    again = kanerva.load(tmp_path / "model.safetensors")
    assert type(again) is type(model)
    assert again.config == model.config
    x = images(model, 2, 4)
    assert torch.equal(again(x, generator()).log_lik, model(x, generator()).log_lik)
    same(recall(again, again.write(x), x), recall(model, model.write(x), x))


def test_double_precision_works_from_end_to_end(model: Model) -> None:
    model = model.double()
    x = images(model, 2, 4)
    state = model.write(x)
    found = recall(model, state, corrupted(model, x))
    drawn = model.sample(state, 3, 2, generator())
    for part in (*model(x, generator()), *state, *found[:3], *drawn[:3]):
        assert part is None or part.dtype == torch.float64


# what is refused


@pytest.mark.parametrize(
    ("broken", "error", "message"),
    [
        (lambda x: x.tolist(), TypeError, r"x: expected a tensor of shape \(\*b, .*\), got list"),
        (lambda x: None, TypeError, r"x: expected a tensor of shape \(\*b, .*\), got NoneType"),
        (lambda x: x[..., :-1], ValueError, r"x: expected images of shape \(\*b, .*\), got \(2, 4, "),
        (lambda x: x[0, 0], ValueError, r"x: expected images of shape \(\*b, [TQ], .*\), got "),
        (lambda x: x.double(), TypeError, "x: expected torch.float32 on cpu like the model, got torch.float64"),
        (lambda x: x * torch.nan, ValueError, "x: expected pixels on .* likelihood, got nan to nan"),
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
    for call in (model.recall, model.sample):
        what: Any = x if call == model.recall else 3
        with pytest.raises(ValueError, match=f"method: expected one of {', '.join(model.METHODS)}, got 'guess'"):
            call(state, what, method="guess")
        with pytest.raises(ValueError, match="steps: expected a whole number of at least 1, got 0"):
            call(state, what, 0)
        with pytest.raises(TypeError, match="nonsense"):
            call(state, what, nonsense=1)
        with pytest.raises(TypeError, match=r"state: expected .*, got NoneType"):
            call(None, what)
        with pytest.raises(TypeError, match=r"state.*expected torch\.float32"):
            call(type(state)(*(part.double() for part in state)), what)
        last = [part[..., :-1] if part.shape[-1] else part.new_empty(1) for part in state]
        with pytest.raises(ValueError, match=r"state\.\w+: expected shape \(\*b, "):
            call(type(state)(*last), what)
        if any(part.numel() for part in state):
            with pytest.raises(ValueError, match=r"state\.\w+: expected finite values, got \d+ NaN"):
                call(type(state)(*(part * torch.nan for part in state)), what)
    with pytest.raises(TypeError, match=r"state: expected .*, got Tensor"):
        model.write(x, x)
    for count in (-1, 5, 1.0) if model.given(state, x) is not None else ():
        with pytest.raises(ValueError, match="written: expected a whole number from 0 to 4, the images, got "):
            model(x, None, count)
    if not torch.equal(model(x, generator()).log_lik, model(x, generator(1)).log_lik):  # it draws something
        with pytest.raises(TypeError, match=r"generator: expected a torch\.Generator or None, got int"):
            model(x, 7)
    with pytest.raises(ValueError, match="n: expected a whole number of at least 1, got 0"):
        model.sample(state, 0)
    for wrong in (7, np.random.default_rng(0)):
        with pytest.raises(TypeError, match=r"generator: expected a torch\.Generator or None, got "):
            model.sample(state, 3, 1, wrong)
    with pytest.raises(TypeError, match=r"(?s)images.*ClassImages"):
        kanerva.evaluate(model, x)
    with pytest.raises(ValueError, match=r"batch axes: expected shapes that broadcast, got \(2,\) of state"):
        model.recall(state, images(model, 3, 4))
    energy = model.energy_at(state, x[0])
    assert energy is None or energy.shape == (2, 4)


def test_an_unknown_model_or_field_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"model: expected one of dkm, .*, got 'hopfeld'; did you mean 'hopfield'\?"
    ):
        kanerva.create("hopfeld")
    for name in MODELS:
        with pytest.raises(TypeError, match=f"colour: expected a field of {name} "):
            kanerva.create(name, colour=3)
        with pytest.raises(ValueError, match="likelihood: expected one of"):
            kanerva.create(name, likelihood="poisson")
        with pytest.raises(TypeError, match=f"config: expected a {MODELS[name].Config.__name__}, got BaseConfig"):
            MODELS[name](BaseConfig())


def test_a_wrong_name_is_answered_with_those_there_are() -> None:
    for name, meant in (("neerest", "nearest"), ("omniglott", "omniglot")):
        with pytest.raises(
            FileNotFoundError,
            match=rf"{name}: no such .*omniglot-new; .*kanerva\.create: hopfield, nearest; .*'{meant}'\?",
        ):
            kanerva.load(name)
    with pytest.raises(
        ValueError, match=r"codec: expected fields of CodecConfig \(.*'kernel'\]; usual causes: a typ"
    ):
        kanerva.create("vae", codec={"kernel": 3})


def test_only_trained_models_lend_their_codec(tmp_path: Path) -> None:
    kanerva.create("dkm", (1, 7, 8), rows=2, code=3, codec=CodecConfig((4,))).save(tmp_path / "m.safetensors")
    place = f"hopfield:{tmp_path / 'm.safetensors'}"
    assert subject.source(place).kind == "hopfield"
    with pytest.raises(ValueError, match="expected a trained model after the colon, got hopfield:"):
        subject.source(f"hopfield:{place}")
