"""The models that come with the package are what their cards say."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

import kanerva
from kanerva import RunConfig
from kanerva.app.train import parse
from kanerva.data import damage
from kanerva.lab.measures import distinct
from kanerva.models import checkpoint
from kanerva.support.configs import from_dict
from kanerva.support.pixels import distances
from test_omniglot import REAL, real


def card(name: str) -> str:
    return checkpoint.locate(name).with_suffix(".md").read_text()


@pytest.mark.parametrize("name", checkpoint.shipped())
def test_a_model_comes_with_its_card(name: str) -> None:
    path, said, model = checkpoint.locate(name), card(name), kanerva.load(name)
    assert path.stat().st_size < 5_000_000
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in said
    for word in ("Data", "Split", "Training", "Score", "Licence", "Limits"):
        assert word in said
    about = checkpoint.read(name).about
    assert f"{about['step']:,} steps" in said
    assert about["run"]["data"]["dataset"] == name.split("-")[0]
    assert f"src/kanerva/models/weights/{name}.md" in (Path(__file__).parents[1] / "mkdocs.yml").read_text()


@pytest.mark.parametrize("name", checkpoint.shipped())
def test_a_card_has_the_command_that_trained_its_model(name: str) -> None:
    """Also when the preset has changed since."""
    command = re.search(r"\*\*Training\*\* \| `kanerva train ([^`]+)`", card(name))
    assert command
    said = parse(command[1].split()).config
    run = from_dict(RunConfig, checkpoint.read(name).about["run"], "run")
    assert dataclasses.replace(said.model, image=run.model.image, likelihood=run.model.likelihood) == run.model
    logged = ("evaluate_every",)  # which changes nothing of the model
    assert dataclasses.replace(said.train, **{key: getattr(run.train, key) for key in logged}) == run.train


def test_a_name_is_told_from_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "omniglot").mkdir()
    assert checkpoint.locate("omniglot").parent == checkpoint.WEIGHTS
    assert checkpoint.locate("./omniglot") == Path("omniglot/last.safetensors")
    with pytest.raises(
        FileNotFoundError,
        match=r"omniglit: no such .*; pretrained: mazes, omniglot, omniglot-new; .* did you mean 'omniglot'",
    ):
        kanerva.load("omniglit")


@real
def test_the_omniglot_model_has_its_score() -> None:
    model, images = kanerva.load("omniglot"), kanerva.data.load("omniglot", "test", data_dir=str(REAL))
    found = re.search(r"\*\*([\d.]+) ± [\d.]+\*\* nats", card("omniglot"))
    assert found
    score = kanerva.evaluate(model, images, count=1024, seed=1)
    assert abs(score.nats - float(found[1])) < 4 * score.nats_stderr
    assert score.nats < 60


@real
def test_the_omniglot_model_recalls_what_is_damaged() -> None:
    """Half of them with 15 % of bits flipped, half with one side erased: by descent a third of the wrong pixels at
    most, all right."""
    model, images = kanerva.load("omniglot"), kanerva.data.load("omniglot", "test", data_dir=str(REAL))
    generator = torch.Generator().manual_seed(0)
    x = distinct(images, 1, 32, generator)
    state = model.write(x)
    flipped, halved = damage.flips(x[:, :16], 0.15, generator), damage.half(x[:, 16:], "right")
    for cue, stored in ((flipped, torch.arange(16)), (halved, torch.arange(16, 32))):
        with torch.no_grad():
            usual = model.recall(state, cue.x, 5, "least-squares").x[-1]
        path = model.recall(state, cue.x, 5, "descent", mask=cue.mask)
        wrong, before = (float((a - x[:, stored]).abs().sum((-3, -2, -1)).mean()) for a in (path.x[-1], usual))
        assert wrong < before / 3
        right = distances(path.x[-1], x).argmin(-1) == stored
        assert int(right.sum()) >= 15
        assert bool((path.energy.diff(dim=0) <= 0).all())
