"""What CONTRIBUTING says of adding a model is enough: a toy model of one file goes through everything."""

import inspect
import json
from pathlib import Path

import pytest

import kanerva
import test_models
from kanerva import MODELS
from kanerva.cli import main
from small import patterns
from toy import Mean

CONTRIBUTING = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


@pytest.fixture(autouse=True)
def mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line in MODELS."""
    monkeypatch.setitem(MODELS, "mean", Mean)


def test_the_lines_name_what_a_model_needs() -> None:
    """What the toy has beside its own helpers is what the lines say."""
    text = CONTRIBUTING.split("## To add a model")[1].split("\n## ")[0]
    contract = {*vars(kanerva.Model), *kanerva.Model.__annotations__}
    needed = sorted(name for name in contract & set(vars(Mean)) if not name.startswith("_"))
    assert {"forward", "write", "recall", "sample", "kept", "TITLE", "METHODS", "Config"} <= set(needed)
    assert [name for name in needed if f"`{name}" not in text] == []
    assert len([line for line in text.splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("likelihood", test_models.IMAGE)
def test_a_new_model_keeps_the_contract(likelihood: str) -> None:
    """By the tests that every model of MODELS goes through."""
    walk = [
        test
        for name, test in vars(test_models).items()
        if name.startswith("test_") and list(inspect.signature(test).parameters) == ["model"]
    ]
    assert len(walk) > 10
    for test in walk:
        test(test_models.small("mean", likelihood))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "grey"])
def test_a_new_model_goes_through_every_command(
    binary: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = ["--dataset", str(patterns(tmp_path, binary)), "--out", str(run), "--lengths", "5", "--blank", "2"]
    flags += ["--steps", "4", "--evaluate-images", "40", "--device", "cpu"]
    main(["train", "demo", "--model", "mean", *flags])
    assert "nats per validation image" in capsys.readouterr().out
    assert kanerva.load(run).config == Mean.Config((1, 8, 8), "bernoulli" if binary else "gaussian", blank=2.0)
    main(["evaluate", str(run), "--images", "40", "--length", "5", "--device", "cpu"])
    assert "nats per image" in capsys.readouterr().out
    for name in ("capacity", "denoising"):
        main(["experiment", name, "--checkpoint", str(run), "--smoke", "--device", "cpu"])
        results = json.loads((run / "experiments" / "smoke" / f"{name}.json").read_text())
        assert results["models"][0]["kind"] == "mean"
    main(["report", str(run), "--experiments", str(run / "experiments" / "smoke")])
    page = (run / "report.html").read_text()
    assert Mean.TITLE in page
    assert "data:image" in page
