"""The methods of recall, against what they promise; descent from the cue alone, for the rest see test_inside.py."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import kanerva
from cases import generator
from kanerva import DKMConfig, memory
from kanerva.data import damage
from kanerva.recall import methods
from recalling import BITS, COLOUR, CONFIGS, FULL, images, model

pytestmark = pytest.mark.usefixtures("short_search")

# what descent is told to go by the cue alone
ALONE: dict[str, dict[str, Any]] = {"descent": {"inside": False}, "least-squares": {}, "stochastic": {}}


@CONFIGS
def test_energy_never_rises(config: DKMConfig) -> None:
    """Hundreds of trajectories, in float32, from noise of every kind: not one rise, to the last bit."""
    m = model(config)
    state, noisy = m.write(images(config, 4, 12)), images(config, 4, 40, seed=100)
    for path in (
        m.recall(state, noisy, 6, "descent", inside=False),
        m.recall(state, noisy, 6, "descent", inside=False, noise=0.1, mask=damage.half(noisy).mask),
        m.sample(state, 40, 6, generator(), "descent"),
    ):
        assert bool((path.energy.diff(dim=0) <= 0).all())
        assert bool((path.energy[-1] < path.energy[0]).any())
        # and it is the energy of what is there, the mode at the weights
        for s in (0, 5):
            there = m.energy(state, path.x[s], path.w[s])
            torch.testing.assert_close(path.energy[s], there, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(path.x[s], m.decode(memory.read(state, path.w[s])).mode())


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
    assert not usual.x.requires_grad
    m.save(tmp_path / "m.safetensors")
    with torch.inference_mode():
        made = torch.ones(8, 9)
        inside = m.recall(m.write(x), x.clone(), 3, "descent", inside=False, mask=made)
        again = kanerva.load(tmp_path / "m.safetensors").recall(state, x, 3, "descent", inside=False, mask=mask)
    torch.testing.assert_close(inside, usual)
    torch.testing.assert_close(again, usual)
    torch.testing.assert_close(m.recall(state, x, 3, "descent", inside=False, mask=made), usual)


@pytest.mark.parametrize("config", [BITS, COLOUR], ids=["bits", "colour"])
def test_a_cue_is_recalled_as_if_it_were_alone(config: DKMConfig) -> None:
    """In float64, where the order of summation does not decide; who has arrived waits for nobody."""
    m, x = model(config, dtype=torch.float64), images(config, 1, 6, dtype=torch.float64)
    state = m.write(x)
    together = m.recall(state, x, 4, "descent", inside=False, noise=0.1)
    for i in (0, 3):
        alone = m.recall(state, x[:, i : i + 1], 4, "descent", inside=False, noise=0.1)
        torch.testing.assert_close(alone.w, together.w[:, :, i : i + 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [BITS, COLOUR], ids=["bits", "colour"])
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
    "a million million": ({"method": "stochastic", "temperature": 1e-300}, r"temperature: .* to 1e\+20, got 1e"),
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
    for method in methods.METHODS:
        path = m.recall(m.blank((2,)), x, 3, method)
        assert all(bool(part.isfinite().all()) for part in path[:3])
