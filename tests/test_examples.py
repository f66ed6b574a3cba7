"""The examples run in their quick mode, and their rivals are what they say."""

import importlib
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import normal

pytestmark = pytest.mark.usefixtures("no_shape_checks")

ROOT = Path(__file__).parents[1]
NEEDS = {"digits": "sklearn", "sentences": "wordllama", "stream": "torch"}


def example(name: str) -> ModuleType:
    """Without what it needs, its tests are skipped: pip install 'kanerva[examples]'."""
    pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed (pip install 'kanerva[examples]')")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.filterwarnings("default")  # those of packages that only the examples use are not ours to mend
def test_quick_mode(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example(name).main(["--quick", "--out", str(tmp_path)])
    saved = json.loads((tmp_path / f"{name}.json").read_text())
    assert {"settings", "versions", "machine", "results"} == set(saved)
    assert "memory" in {row.get("kind", row.get("method")) for row in saved["results"]}
    assert all(math.isfinite(number) for number in numbers(saved["results"]))
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "memory" in capsys.readouterr().out


def numbers(found: Any) -> list[float]:
    if isinstance(found, dict | list):
        inside = found.values() if isinstance(found, dict) else found
        return [number for part in inside for number in numbers(part)]
    return [found] if isinstance(found, int | float) else []


@pytest.mark.parametrize("name", NEEDS)
def test_committed_numbers_come_from_the_whole_run(name: str) -> None:
    """Not from the quick one, and their figure lies beside them."""
    saved = json.loads((ROOT / "results" / "examples" / f"{name}.json").read_text())
    assert max(row.get("stored", saved["settings"].get("steps", 0)) for row in saved["results"]) >= 64
    assert (ROOT / "results" / "examples" / f"{name}.png").exists()


# The rivals


def test_recursive_least_squares_is_least_squares() -> None:
    """With forgetting, of all pairs up to now, weighted by keep^age, and a ridge that is forgotten too."""
    stream, keep = example("stream"), 0.9
    x = normal(1, 12, stream.ALL).float()
    there = torch.ones(1, 12, stream.KEYS, dtype=torch.bool)
    found = stream.linear(x, there, keep)[0, -1]
    key, value = x[0, :-1, : stream.KEYS].double(), x[0, :-1, stream.KEYS :].double()
    age = keep ** torch.arange(10, -1, -1.0, dtype=torch.float64)[:, None]
    ridge = keep**11 * torch.eye(stream.KEYS, dtype=torch.float64)
    W = torch.linalg.solve(key.mT @ (age * key) + ridge, key.mT @ (age * value))
    # float32, over 12 updates
    torch.testing.assert_close(found, (x[0, -1, : stream.KEYS].double() @ W).float(), rtol=1e-3, atol=1e-3)


def test_a_kalman_filter_that_keeps_all_is_ridge_regression() -> None:
    stream, noise_var = example("stream"), 4.0
    x = normal(1, 12, stream.ALL).float()
    there = torch.ones(1, 12, stream.KEYS, dtype=torch.bool)
    key, value = x[0, :-1, : stream.KEYS].double(), x[0, :-1, stream.KEYS :].double()
    W = torch.linalg.solve(key.mT @ key + noise_var * torch.eye(stream.KEYS), key.mT @ value)
    found = stream.linear(x, there, 1.0, noise_var)[0, -1]
    torch.testing.assert_close(found, (x[0, -1, : stream.KEYS].double() @ W).float(), rtol=1e-3, atol=1e-3)


def test_every_method_sees_values_only_after_it_has_predicted_them() -> None:
    """Other values at the last step change no prediction."""
    stream = example("stream")
    x, there = stream.stream("half missing", 2, 6, seed=0)
    other = x.clone()
    other[:, -1, stream.KEYS :] += 5.0
    for method, setting in ((stream.memory, (6, 0.99, 1.0)), (stream.linear, (0.9,)), (stream.factors, (6, 0.9))):
        assert torch.equal(method(x, there, *setting), method(other, there, *setting))


def test_ways_to_keep_sentences() -> None:
    """Few enough for all ways: each finds clean codes. Too many: none keeps more than the memory."""
    sentences = example("sentences")
    torch.manual_seed(0)
    layer = sentences.kanerva.nn.Memory(sentences.SIZE, rows=sentences.ROWS, scale=1 / 16)
    z = torch.nn.functional.normalize(normal(600, sentences.SIZE).float(), dim=-1)
    with torch.no_grad():
        for name, (_, found) in sentences.Kept(z[:32], layer).answers(z[:32]).items():
            # a byte an entry is 1 % off; the softmax of a Hopfield network mixes a little
            assert torch.cosine_similarity(found, z[:32], dim=-1).min() > 0.98, name
        kept = sentences.Kept(z, layer).answers(z)
    assert all(used <= sentences.BYTES for name, (used, _) in kept.items() if not name.endswith("all"))
    assert kept["nearest, int8"][0] == sentences.BYTES


def test_told_apart() -> None:
    sentences = example("sentences")
    assert sentences.told_apart(torch.tensor([3.0, 1.0]), torch.tensor([0.0, 2.0])) == 0.75


def test_nearest_digit() -> None:
    digits = example("digits")
    x: Tensor = normal(2, 5, 64)
    assert torch.equal(digits.nearest(x, x.flip(1) + 1e-3), x.flip(1))
