"""The model that CONTRIBUTING prints is whole: it goes through everything."""

import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kanerva
import test_models
from kanerva import MODELS, Model
from kanerva.cli import main
from small import patterns

CONTRIBUTING = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[Model]]:
    """The model of the page, from a file of its own outside of the package."""
    page = CONTRIBUTING.split("## To add a model")[1].split("\n## ")[0]
    path = tmp_path_factory.mktemp("outside") / "mean_of_the_page.py"
    path.write_text(page.split("```python\n")[1].split("```")[0])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.Mean
    del sys.modules[path.stem]


@pytest.fixture(autouse=True)
def mean(printed: type[Model], monkeypatch: pytest.MonkeyPatch) -> type[Model]:
    """The one line in MODELS."""
    monkeypatch.setitem(MODELS, "mean", printed)
    return printed


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
    mean: type[Model], binary: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = ["--dataset", str(patterns(tmp_path, binary)), "--out", str(run), "--lengths", "5", "--blank", "2"]
    flags += ["--steps", "4", "--device", "cpu"]
    main(["train", "demo", "--model", "mean", *flags])
    assert "nats per validation image" in capsys.readouterr().out
    assert kanerva.load(run).config == mean.Config((1, 8, 8), "bernoulli" if binary else "gaussian", blank=2.0)  # type: ignore[call-arg]
    main(["evaluate", str(run), "--images", "40", "--length", "5", "--device", "cpu"])
    assert "nats per image" in capsys.readouterr().out
    for name in ("capacity", "denoising"):
        main(["experiment", name, "--checkpoint", str(run), "--smoke", "--device", "cpu"])
        results = json.loads((run / "experiments" / "smoke" / f"{name}.json").read_text())
        assert results["models"][0]["kind"] == "mean"
    main(["report", str(run), "--experiments", str(run / "experiments" / "smoke")])
    page = (run / "report.html").read_text()
    assert mean.TITLE in page
    assert "data:image" in page
