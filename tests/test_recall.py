"""The methods of recall, against what they promise; descent from the cue alone, for the rest see test_inside.py."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import kanerva
from kanerva import DKM, DKMConfig, MemoryState, memory
from kanerva.data import damage
from kanerva.recall import methods
from kanerva.recall.trajectory import Snapshot
from recalling import BITS, COLOUR, CONFIGS, FULL, generator, images, model

# what descent is told to go by the cue alone
ALONE: dict[str, dict[str, Any]] = {"descent": {"inside": False}, "least-squares": {}, "stochastic": {}}


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
            m.recall(state, noisy, 6, "descent", inside=False),
            m.recall(state, noisy, 6, "descent", inside=False, noise=0.1, mask=damage.half(noisy).mask),
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
    path = m.recall(m.write(x), images(config, 2, 5, seed=3), 5, "descent", inside=False)
    for s in range(5):
        torch.testing.assert_close(path.x[s], m.decode(memory.read(m.write(x), path.w[s])).mode())


def test_what_is_masked_says_nothing() -> None:
    m, x = model(), images(BITS, 2, 6)
    state, y = m.write(x), images(BITS, 2, 5, seed=9)
    mask = damage.half(y, "left").mask
    assert mask is not None
    other = torch.where(mask.bool(), y, 1 - y)
    a, b = (m.recall(state, cue, 4, "descent", inside=False, mask=mask) for cue in (y, other))
    for left, right in zip(a, b, strict=True):
        torch.testing.assert_close(left, right)


def test_descent_goes_on_where_gradients_are_off(tmp_path: Path) -> None:
    m, x = model(), images(BITS, 2, 6)
    state = m.write(x)
    mask = torch.ones(8, 9)
    usual = m.recall(state, x, 3, "descent", inside=False, mask=mask)
    with torch.no_grad():
        torch.testing.assert_close(m.recall(state, x, 3, "descent", inside=False, mask=mask), usual)
    m.save(tmp_path / "m.safetensors")
    with torch.inference_mode():
        made = torch.ones(8, 9)
        inside = m.recall(m.write(x), x.clone(), 3, "descent", inside=False, mask=made)
        again = kanerva.load(tmp_path / "m.safetensors").recall(state, x, 3, "descent", inside=False, mask=mask)
    torch.testing.assert_close(inside, usual)
    torch.testing.assert_close(again, usual)
    torch.testing.assert_close(m.recall(state, x, 3, "descent", inside=False, mask=made), usual)


def test_descent_is_float32_under_autocast() -> None:
    for config in (BITS, COLOUR):
        m, x = model(config), images(config, 2, 6)
        state = m.write(x)
        with torch.autocast("cpu", torch.bfloat16):
            found = m.recall(state, x, 2, "descent", inside=False)
        torch.testing.assert_close(found, m.recall(state, x, 2, "descent", inside=False))


@CONFIGS
def test_a_cue_is_recalled_as_if_it_were_alone(config: DKMConfig) -> None:
    """In float64, where the order of summation does not decide; who has arrived waits for nobody."""
    m, x = model(config, dtype=torch.float64), images(config, 1, 6, dtype=torch.float64)
    state = m.write(x)
    together = m.recall(state, x, 4, "descent", inside=False, noise=0.1)
    for i in (0, 3):
        alone = m.recall(state, x[:, i : i + 1], 4, "descent", inside=False, noise=0.1)
        torch.testing.assert_close(alone.w, together.w[:, :, i : i + 1], rtol=1e-4, atol=1e-4)


def test_descent_leaves_parameters_alone() -> None:
    torch.manual_seed(0)
    m = DKM(BITS)
    path = m.recall(m.write(images(BITS, 2, 6)), images(BITS, 2, 3), 3, "descent", inside=False)
    assert all(p.grad is None for p in m.parameters())
    assert not path.x.requires_grad


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
        cov = temperature * m.weight_var * memory.infer(m.encode(cue[:1]), state, m.noise_var).cov[0]
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
    a, b = (m.sample(state, 4, 3, generator(1), "stochastic") for _ in range(2))
    assert torch.equal(a.x, b.x)


@pytest.mark.parametrize("method", methods.METHODS)
def test_a_callback_sees_every_step(method: str) -> None:
    m, x = model(), images(BITS, 2, 6)
    seen: list[Any] = []
    path = m.recall(
        m.write(x), x, 4, method, callback=lambda number, step: seen.append((number, step)), **ALONE[method]
    )
    assert path.x.shape == (4, 2, 6, 1, 8, 9)
    assert [number for number, _ in seen] == list(range(len(seen)))
    for number, step in seen:
        for a, b in zip(step[:3], path[:3], strict=True):
            assert torch.equal(a, b[number])
    assert path.certified is None


@pytest.mark.parametrize("method", ["least-squares", "descent"])
def test_a_path_that_has_arrived_is_not_walked_on(method: str) -> None:
    m, x = model(), images(BITS, 1, 6)
    state = m.write(x)
    made: list[int] = []
    for i in range(6):  # least squares may also end in a cycle, and never arrive
        made.clear()
        path = m.recall(
            state, x[:, i : i + 1], 200, method, callback=lambda number, _: made.append(number), **ALONE[method]
        )
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
        last = Snapshot(path.x[-1], path.w[-1], path.energy[-1])
        on = methods.fall(m.retriever(state), last, torch.zeros_like(last.energy, dtype=torch.bool))
        *_, end = (step for _, step in zip(range(50), on, strict=False))
        assert torch.equal(end.x, path.x[-1])
        assert float(path.energy[-1] - end.energy) < 20 * methods.STILL


def test_snapshots_are_joined_cue_by_cue() -> None:
    one, two = (
        Snapshot(torch.full((2, 3, 1, 2, 2), v), torch.full((2, 3, 4), v), torch.full((2, 3), v))
        for v in (1.0, 2.0)
    )
    which = torch.tensor([[True, False, True], [False, False, True]])
    for part in one.where(which, two)[:3]:
        each = part.flatten(2) if part.ndim > 2 else part[..., None]
        assert torch.equal(each, torch.where(which, 1.0, 2.0)[..., None].expand_as(each))
    assert one.where(which, two).certified is None
    # who was not looked at is not certified
    sure = one._replace(certified=torch.ones(2, 3, dtype=torch.bool))
    for joined, expected in ((sure.where(which, two), which), (two.where(which, sure), ~which)):
        assert joined.certified is not None
        assert torch.equal(joined.certified, expected)


def test_snapshots_take_others_in_some_memories() -> None:
    one = Snapshot(
        torch.ones(3, 2, 1, 2, 2), torch.ones(3, 2, 4), torch.ones(3, 2), torch.ones(3, 2, dtype=torch.bool)
    )
    two = Snapshot(torch.zeros(2, 2, 1, 2, 2), torch.zeros(2, 2, 4), torch.zeros(2, 2))
    rows, columns = torch.tensor([[2], [0]]), torch.tensor([[1, 0], [0, 1]])
    joined = one.put(rows, columns, torch.tensor([[False, True], [False, False]]), two)
    expected = torch.tensor([[False, False], [True, True], [True, False]])
    for part in joined:
        each = part.flatten(2) if part.ndim > 2 else part[..., None]
        assert torch.equal(each, expected[..., None].expand_as(each).to(each))


@pytest.mark.parametrize("method", methods.METHODS)
def test_no_cue_and_any_batch(method: str) -> None:
    m, x = model(dtype=torch.float64), images(BITS, 2, 3, 6, dtype=torch.float64)
    state = m.write(x)
    assert m.recall(state, x[:, :, :0], 2, method, **ALONE[method]).x.shape == (2, 2, 3, 0, 1, 8, 9)
    path = m.recall(state, x, 2, method, **ALONE[method])
    assert path.w.shape == (2, 2, 3, 6, 5)
    alone = m.recall(MemoryState(state.R[1, 2], state.U[1, 2]), x[1, 2], 1, method, **ALONE[method])
    if method != "stochastic":
        torch.testing.assert_close(alone.x[0], path.x[0, 1, 2])
    assert m.sample(state, 4, 3, method=method).x.shape == (3, 2, 3, 4, 1, 8, 9)


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_takes_every_hint(method: str) -> None:
    """What it cannot use changes nothing; a name that is no hint is an error."""
    m, x = model(), images(BITS, 2, 6)
    state, alone = m.write(x), ALONE[method]
    hints = {"descent": {"temperature": 2.0}, "least-squares": {"noise": 0.1, "mask": torch.ones(8, 9)}}
    hints["stochastic"] = {"noise": 0.1, "mask": torch.ones(8, 9)}
    usual, hinted = (
        m.recall(state, x, 2, method, generator=generator(), **alone, **h) for h in ({}, hints[method])
    )
    torch.testing.assert_close(hinted.x, usual.x, rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"nose"):
        m.recall(state, x, 2, method, nose=0.1)  # type: ignore[call-arg]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a method": ({"method": "newton"}, r"method: expected one of descent, least-squares, stochastic, got 'newton'"),
    "no steps": ({"steps": 0}, r"steps: .* got 0"),
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


@pytest.mark.parametrize("method", methods.METHODS)
def test_a_memory_of_another_model_is_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any work: neither its rows nor its codes may have another size."""
    m, x = model(), images(BITS, 2, 6)
    monkeypatch.setattr(DKM, "encode", None)
    monkeypatch.setattr(DKM, "decode", None)
    for change, wanted in (({"rows": 3}, "K = 5"), ({"code": 6}, "C = 7")):
        other = model(dataclasses.replace(BITS, **change)).blank((2,))
        for call in (
            lambda state: m.recall(state, x, 2, method),
            lambda state: m.sample(state, 2, 2, method=method),
            lambda state: m.energy(state, x, torch.zeros(2, 6, 5)),
        ):
            with pytest.raises(ValueError, match=rf"state\.R: expected .* {wanted} .*another model"):
                call(other)


@pytest.mark.parametrize("method", methods.METHODS)
def test_cues_and_memories_that_do_not_fit_are_refused(method: str) -> None:
    m, x = model(), images(BITS, 2, 6)
    with pytest.raises(ValueError, match=r"batch axes: .*\(3,\) of state.R, .*\(2,\) of x"):
        m.recall(m.blank((3,)), x, 2, method)


def test_descent_says_what_it_cannot_leave() -> None:
    with torch.inference_mode():
        m = model()
    x = images(BITS, 2, 6)
    with torch.no_grad():
        state = m.write(x)
        with pytest.raises(RuntimeError, match=r"model: expected one made outside of inference mode"):
            m.recall(state, x, 1, "descent", inside=False)
        assert m.recall(state, x, 1, "least-squares").x.shape == (1, 2, 6, 1, 8, 9)


def test_an_empty_memory_recalls_what_the_prior_has() -> None:
    """Nothing written is a memory too; its answers are finite."""
    m, x = model(), images(BITS, 2, 6)
    for method in methods.METHODS:
        path = m.recall(m.blank((2,)), x, 3, method)
        assert all(bool(part.isfinite().all()) for part in path[:3])


def test_memories_may_share_their_mean() -> None:
    m, x = model(), images(BITS, 4)
    state = m.write(x)
    shared = MemoryState(state.R, state.U.expand(3, -1, -1))
    path = m.recall(shared, x, 2, "descent", inside=False)
    assert path.energy.shape == (2, 3, 4)
    torch.testing.assert_close(path.energy[:, 1], m.recall(state, x, 2, "descent", inside=False).energy)


def test_a_memory_that_is_not_a_number_leaves_the_others_alone() -> None:
    m, x = model(dtype=torch.float64), images(BITS, 2, 4, dtype=torch.float64)
    state = m.write(x)
    broken = MemoryState(state.R.clone(), state.U)
    broken.R[0, 0, 0] = math.nan
    with kanerva.deep_checks(False):
        path = m.recall(broken, x, 3, "descent", inside=False)
    assert bool(path.energy[:, 0].isnan().all())
    torch.testing.assert_close(path.energy[:, 1], m.recall(state, x, 3, "descent", inside=False).energy[:, 1])


def test_what_is_no_memory_mask_or_number_is_said(no_shape_checks: None) -> None:
    m, x = model(), images(BITS, 2, 6)
    state: Any = m.write(x)
    with pytest.raises(TypeError, match=r"state: expected a MemoryState"):
        m.recall((state, x), x)
    with pytest.raises(TypeError, match=r"state\.R: expected torch\.float32"):
        m.recall(state.to(torch.float64), x)
    with pytest.raises(TypeError, match=r"noise: expected a number"):
        m.recall(state, x, method="descent", inside=False, noise=torch.ones(6))
    with pytest.raises(TypeError, match=r"mask: expected a tensor"):
        m.recall(state, x, method="descent", inside=False, mask=[[1.0]])
    with pytest.raises(ValueError, match=r"x: expected shape \(\*b, Q, 1, 8, 9\)"):
        m.energy(state, x[..., :1, :1], state.R[:, :1].new_zeros(2, 6, 5))
    with pytest.raises(ValueError, match=r"w: .*Q"):
        m.energy(state, x, torch.zeros(2, 5, 5))
    with pytest.raises(TypeError, match=r"temperature: expected a number"):
        m.recall(state, x, method="stochastic", temperature=torch.ones(3))
    colour = model(COLOUR)
    for options in ({"method": "descent", "noise": 1e300}, {"method": "stochastic", "temperature": 1e-300}):
        with pytest.raises(ValueError, match=r": expected .* from .* to 1e\+20, got 1e"):
            colour.recall(colour.blank(), images(COLOUR, 2), **options)
