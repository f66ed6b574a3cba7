"""The speed benchmark runs, and what it says is computed rightly; how fast anything is, no test asserts."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import contenders
import report
import seeds
import speed
import timing

pytestmark = pytest.mark.usefixtures("no_shape_checks")


class Clock:
    """Contenders that take as long as they are told; a round is slow or fast for all of them alike."""

    def __init__(self, seconds: dict[str, float], loads: list[float]) -> None:
        self.seconds, self.loads, self.turns = seconds, loads, list[str]()
        self.contenders = {name: lambda name=name: self.turns.append(name) for name in seconds}

    def measure(self, work: timing.Work, calls: int) -> float:
        for _ in range(calls):
            work()
        round_ = self.turns.count(self.turns[-1]) - 3  # two warm-ups
        return calls * self.seconds[self.turns[-1]] * self.loads[max(round_, 0) % len(self.loads)]


def test_contenders_take_turns_until_the_budget_is_spent() -> None:
    clock = Clock({"a": 0.5, "b": 0.25}, [1.0])
    times = timing.take_turns(clock.contenders, clock.measure, budget=3.0, least=2)
    assert clock.turns == ["a", "a", "b", "b"] + ["a", "b"] * 4
    assert times == {"a": [0.5] * 4, "b": [0.25] * 4}


def test_ratios_are_taken_within_a_round() -> None:
    """A load that comes and goes moves the times, not the ratios."""
    clock = Clock({"reference": 3.0, "fast": 1.0}, [1.0, 5.0, 2.0, 9.0])
    times = timing.take_turns(clock.contenders, clock.measure, budget=0.0, least=4)
    found = timing.compare(times, ["reference", "absent"])
    assert found["fast"]["faster_than"] == {"reference": {"ratio": 3.0, "quartiles": [3.0, 3.0]}}
    assert found["fast"]["seconds"] == 3.5
    assert found["fast"]["quartiles"] == [1.75, 6.0]
    assert found["reference"]["faster_than"] == {}


@pytest.mark.parametrize("masked", [False, True])
def test_the_plain_loop_is_the_layer(masked: bool) -> None:
    """What is timed beside the layer computes the same, gradients too."""
    case, device = contenders.Case(4, 6, 5, 3), torch.device("cpu")
    found = [contenders.layer(case, device, name, masked, compiled=False)() for name in ("layer", "loop")]
    for a, b in zip(*found, strict=True):
        # float32, and solves in another order
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.fixture
def little_garbage() -> Iterator[None]:
    """`speed` collects garbage after every row: it need not look through all that was imported each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("little_garbage")
def test_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every part runs, and the file has all that the figure is drawn from."""
    path = tmp_path / "speed.json"
    speed.main(["--quick", "--device", "cpu", "--out", str(path), "--plot"])
    results = json.loads(path.read_text())
    assert list(results["parts"]) == list(speed.PARTS)
    assert str(tmp_path) not in path.read_text()
    assert {"date", "command", "config", "versions", "machine", "seconds"} <= set(results)
    for part in ("write", "read", "layer", "recall", "cues", "train"):
        for row in results["parts"][part]:
            assert set(row["case"]) == set("KCTB")
            assert len(row["contenders"]) >= 2, row["left_out"]
            for result in row["contenders"].values():
                assert result["quartiles"][0] <= result["seconds"] <= result["quartiles"][1]
    assert all("gram" in row["contenders"] for row in results["parts"]["write"])
    (cues,) = (row["contenders"] for row in results["parts"]["cues"])
    # 2 steps; two cues of one memory: 200 evaluations by inference, and the draws of `search.weight`
    assert cues["least-squares"]["evaluations_a_cue"] == {"encoder": 2, "decoder": 2}
    assert cues["nearest"]["evaluations_a_cue"] == {"encoder": 0, "decoder": 0}
    assert cues["descent, inside=False"]["evaluations_a_cue"]["decoder"] > 200
    assert all(result["seconds_a_cue"] == result["seconds"] / 2 for result in cues.values())
    assert all(row["bytes"]["gram"] > 0 for row in results["parts"]["memory"])
    assert [row["what"] for row in results["parts"]["layer"]] == ["no mask", "mask"]
    assert {row["what"] for row in results["parts"]["scaling"]} == set("TKCB")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "speed.svg").read_text()
    assert "faster than" in capsys.readouterr().out


def test_a_figure_of_some_parts_on_two_devices(tmp_path: Path) -> None:
    """What a run without all parts, or with a contender that failed, has left is drawn all the same."""
    case = dict(zip("KCTB", (32, 100, 32, 16), strict=True))
    ratio = {"reference": {"ratio": 5.0, "quartiles": [4.0, 6.0]}}
    fast = {"seconds": 1e-3, "quartiles": [9e-4, 2e-3], "rounds": 5, "faster_than": ratio}
    contenders = {"reference": fast | {"faster_than": {}}, "triton": fast, "triton, captured": fast}
    row = {"case": case, "what": "forward + backward", "left_out": {"gram": "out of memory"}}
    rows = [row | {"device": "cpu", "contenders": {}}, row | {"device": "cuda", "contenders": contenders}]
    results = {"machine": {"cpu": "a CPU", "gpu": "a GPU"}, "parts": {"write": rows}}
    report.draw(results, tmp_path / "some.json")
    assert (tmp_path / "some.png").stat().st_size > 0
    assert "out of memory" in str(report.table("write", rows).caption)


def test_scores_of_several_seeds_are_put_together() -> None:
    runs = [{"seed": i, "nats": nats, "extra": {"other": {"mean": nats + 1}}} for i, nats in enumerate((1.0, 3.0))]
    runs[0]["new"] = {"mean": 5.0, "stderr": 0.5}  # which the other lacks
    found = seeds.summary(runs)
    assert found["seeds"] == 2
    assert found["nats"] == {"mean": 2.0, "std": pytest.approx(2**0.5)}
    assert found["other"]["mean"] == 3.0
    assert "new" not in found
    for wrong, got in ((runs[1:] * 2, r"\[1, 1\]"), (runs[1:], r"\[1\]")):
        with pytest.raises(ValueError, match=f"expected two seeds or more, each once in a row, got {got}"):
            seeds.summary(wrong)


def test_a_score_belongs_to_the_preset_and_seed_of_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[1]
    monkeypatch.chdir(root)
    score = json.loads((root / "results" / "evaluation" / "omniglot-km.json").read_text())
    row, run = seeds.scored(score, "a machine")
    assert (row, run["seed"], run["steps"]) == ("omniglot --model km --steps 20000", 0, 20_000)
    assert run["train"] == "kanerva train omniglot --model km --steps 20000 --seed 0"
    assert run["nats"] == score["nats"]
    with pytest.raises(ValueError, match="expected the checkpoint that was scored, 1, got "):
        seeds.scored({**score, "crc32": 1}, "a machine")
