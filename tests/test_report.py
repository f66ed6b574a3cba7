"""The report: all there is about a run is on it, nothing on it comes from elsewhere, and files cannot break it."""

import base64
import hashlib
import html.parser
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import kanerva
from kanerva.app import report
from kanerva.cli import main
from kanerva.lab import EXPERIMENTS
from kanerva.lab.pictures import pack
from kanerva.lab.tables import Share, percent, plus_minus, show
from kanerva.support import tensors as storage
from small import metrics, tiny

pytestmark = pytest.mark.usefixtures("no_shape_checks")

VOID = {"meta", "link", "img", "br", "hr", "input"}
EVIL = "<img src=x onerror=alert(1)>&\"'"


class Page(html.parser.HTMLParser):
    """A page that was read: tags must be balanced, and what they name must be inside the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.own = {"style": "", "script": ""}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.own:
            self.own[self.open[-1]] += data
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(path: Path) -> Page:
    """Read a page and look for anything that would leave it, or run without being its own."""
    text = path.read_text()
    assert text.startswith("<!DOCTYPE html>")
    page = Page(text)
    names = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            if value := attributes.get(name):
                assert value.startswith("data:") or value.removeprefix("#") in names, value[:60]
    policy = page.all("meta")[1]["content"] or ""
    for tag, content in page.own.items():
        assert len(page.all(tag)) == 1
        assert f"{tag}-src '{sha256(content)}'" in policy
        assert "url(" not in content
        assert "@import" not in content
    assert policy.startswith("default-src 'none'; base-uri 'none'; img-src data:; ")
    return page


def svg(source: str | None) -> str:
    """The SVG in an address."""
    return base64.b64decode((source or "").split(",")[1]).decode()


def sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def results(name: str, crc32: object = None, **changes: Any) -> dict[str, Any]:
    """A file of results as experiments write it, with the numbers of capacity."""
    values = {"mean": [12.345], "stderr": [0.067]}
    numbers = {"rows": 4, "kept": [40], "unit": "wrong pixels", "lengths": [3], "classes": [2]}
    numbers["curves"] = [dict.fromkeys(("nats", "distance", "right"), values)]  # type: ignore[list-item]
    return {
        "experiment": name,
        "date": "2026-01-02",
        "command": f"kanerva experiment {name}",
        "config": {"seed": 3, "episodes": 64},
        "smoke": False,
        "versions": {"kanerva": "0.1"},
        "device": "cpu",
        "seconds": 1.5,
        "models": [{"name": "run", "crc32": crc32, "step": 6, "result": numbers}],
        **changes,
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    kanerva.train(tiny(folder), folder / "run")
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_report_has_the_score_the_curve_and_the_config(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(run)])
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    page = read(run / "report.html")
    score = [line["validation"] for line in metrics(run) if "validation" in line][-1]
    places = f"{plus_minus(score['nats'], score['nats_stderr'])} nats per image"
    assert places in page.text
    for name in ("reconstruction", "kl_weights", "kl_memory", "autoencoder"):
        assert f"{score[name]:,.2f}" in page.text, name
    assert "Dynamic Kanerva Machine" in page.text
    assert "trained onbits.npz" in page.text.replace("\n", "")
    assert '"lengths"' in page.text
    (curve,) = page.all("img")
    assert "Loss, nats per image" in svg(curve["src"])
    assert "validation classes" in svg(curve["src"])
    assert curve["alt"]
    assert "None yet" in page.text  # experiments


def test_experiments_are_shown_in_order_with_figures_and_numbers(run: Path) -> None:
    folder = run / "experiments"
    folder.mkdir()
    crc32 = report.gather(str(run)).checkpoint["crc32"]
    for name in ("basins", "capacity", "new-idea"):
        (folder / f"{name}.json").write_text(json.dumps(results(name, crc32)))
    page = read(report.write(run))
    assert page.text.index("kanerva experiment capacity") < page.text.index("kanerva experiment basins")
    assert EXPERIMENTS["capacity"] in page.text
    assert page.text.count("seed 3, episodes 64, date 2026-01-02, device cpu, seconds 1.5") == 2
    assert page.text.count("12.345 ± 0.067") == 2
    assert page.text.count("Not all of this can be shown") == 1  # basins have other numbers
    assert "another checkpoint" not in page.text
    assert len(page.all("img")) == 1 + 1
    assert all(image["alt"] for image in page.all("img"))
    links = {link["download"]: link["href"] for link in page.all("a") if "download" in link}
    assert sorted(links) == ["basins.json", "capacity.json", "run.json"]
    found = {name: json.loads(base64.b64decode((href or "").split(",")[1])) for name, href in links.items()}
    assert found["capacity.json"] == results("capacity", crc32)
    assert found["run.json"]["metrics"] == metrics(run)


def test_damaged_images_are_shown_and_results_of_smoke_and_of_others_marked(run: Path) -> None:
    """Binary images and colours, pixel for pixel."""
    (run / "experiments").mkdir()
    (run / "experiments" / "capacity.json").write_text(json.dumps(results("capacity", 1, smoke=True)))
    x = np.random.default_rng(0).integers(0, 2, (4, 5, 1, 6, 4)).astype(np.float32)
    shown = {"rows": ["original", "cue", "descent, step 1", "descent, step 3"], "images": pack(torch.tensor(x))}
    found = results("denoising", models=[{"name": "run", "result": {"pictures": shown}}])
    (run / "experiments" / "denoising.json").write_text(json.dumps(found))
    page = read(report.write(run))
    assert "too small for its numbers to mean anything" in page.text
    assert "Made with another checkpoint than this: run at step 6" in page.text
    strips = [image for image in page.all("img") if "data-step" in image]
    assert [image["data-step"] for image in strips] == ["0", "0", "1", "3"]
    assert ["hidden" in image for image in strips] == [False, False, True, False]
    assert {image["class"] for image in strips} == {"ink"}
    source = strips[0]["src"] or ""
    with Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))) as image:
        seen = np.asarray(image).reshape(8, 5, 6).transpose(1, 0, 2)[:, 1:-1, 1:-1]
    assert np.array_equal(seen < 128, x[0, :, 0] == 1)


def test_whatever_files_say_is_only_text(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / EVIL))
    (run / "experiments").mkdir()
    evil = results("capacity", command=EVIL, date=EVIL, device=EVIL, versions={EVIL: EVIL}, config={"seed": EVIL})
    evil["models"] = [{**model, "name": EVIL, "step": EVIL} for model in 2 * evil["models"]]
    evil["models"][0]["result"]["unit"] = EVIL
    (run / "experiments" / f"{EVIL}.json").write_text(json.dumps(evil))
    config = json.loads((run / "config.json").read_text())
    config["data"]["dataset"] = config["train"]["seed"] = EVIL
    (run / "config.json").write_text(json.dumps(config))
    with open(run / "metrics.jsonl", "a") as file:
        score = {"nats": 1.0, "nats_stderr": 0.1, "images": EVIL, "seed": EVIL}
        file.write(json.dumps({"step": 6, "validation": score}))
    path = report.write(run)
    page = read(path)
    assert len(page.all("img")) == 1 + 1
    assert page.text.count(EVIL) > 10
    # never as a tag, and in an attribute only as text
    assert "<img src=x" not in path.read_text()


@pytest.mark.parametrize(
    "content",
    [
        {"experiment": "denoising", "models": 3, "config": [1], "versions": None},
        {"experiment": "../capacity", "date": {"a": 1}, "config": {"seed": [1]}, "models": [{"result": {"a": {}}}]},
    ],
    ids=str,
)
def test_what_is_strange_does_no_harm_and_what_is_damaged_is_said(run: Path, content: dict[str, Any]) -> None:
    (run / "experiments").mkdir()
    (run / "experiments" / "some.json").write_text(json.dumps(content))
    (run / "experiments" / "sampling.json").write_text("[")
    (run / "best.safetensors").write_bytes(b"no")
    (run / "config.json").write_text("{")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('[1]\n{"step": 7, "loss": null}\n{"step": 8, "skipped": "loss nan"}\n{"step": 9, "lo')
    page = read(report.write(run))
    for name in ("best.safetensors: not a readable", "config.json: could not be", "sampling.json: could not be"):
        assert name in page.text
    assert "Loss, nats per image" in svg(page.all("img")[0]["src"])  # of the lines that are whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such run; expected a run's folder, a checkpoint, or a pretrained"),
        (["."], "expected a run's folder with config.json, metrics.jsonl, last.safetensors, got one with none"),
        (["my.safetensors"], "not a readable safetensors file"),
        (["omniglot", "--experiments", "nowhere"], "no such folder; expected one with results"),
    ],
    ids=str,
)
def test_no_run_is_an_error_of_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.safetensors").write_bytes(b"no")
    with pytest.raises(SystemExit) as end:
        main(["report", *arguments])
    assert message in str(end.value.code)
    assert "\n" not in str(end.value.code)
    assert [path.name for path in tmp_path.iterdir()] == ["my.safetensors"]


def test_a_checkpoint_and_a_shipped_model(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = report.write(run / "best.safetensors")
    assert path == run / "report-best.html"
    assert "No curve" in read(path).text

    monkeypatch.chdir(tmp_path)
    assert report.write("omniglot") == Path("runs/omniglot/report.html")
    elsewhere = tmp_path / "results"
    elsewhere.mkdir()
    (elsewhere / "capacity.json").write_text(json.dumps(results("capacity")))
    (elsewhere / "speed.json").write_text(json.dumps({"rows": [1]}))  # something else, which is no one's business
    page = read(report.write("omniglot", tmp_path / "deep" / "page.html", elsewhere))
    assert "trained onomniglot" in page.text.replace("\n", "")
    assert "740,712" in page.text
    assert "12.345 ± 0.067" in page.text
    assert "speed" not in page.text


def test_numbers_are_as_precise_as_their_errors() -> None:
    assert plus_minus(54.4816, 0.4258) == "54.48 ± 0.43"
    assert plus_minus(-9046.5, 12.3) == "−9,046 ± 12"
    assert plus_minus(1.5, 0.0) == plus_minus(1.5, 4e-8) == "1.5"
    assert [show(x) for x in (True, 12345, [1, 2], Share(0.125))] == ["yes", "12,345", "1, 2", "12.5 %"]
    assert percent({"mean": 0.5, "stderr": 0.01}) == "50.0 ± 1.0 %"
    unknown = {"mean": None, "stderr": None}  # null in JSON, for what was not finite or is not known
    assert [plus_minus(float("inf"), 1.0), *map(show, (None, unknown, Share(None), Share(unknown)))] == 5 * ["–"]


def test_scores_have_the_letters_and_the_extras_of_their_model(tmp_path: Path) -> None:
    kanerva.create("vae", (1, 8, 8), code=2, codec={"filters": (2,)}).save(tmp_path / "vae.safetensors")
    score = {
        "nats": 5.0,
        "nats_stderr": 0.1,
        "kl_weights": 1.5,
        "crc32": storage.load(tmp_path / "vae.safetensors")[1]["crc32"],
    }
    score["extra"] = {EVIL: {"mean": 4.25, "stderr": 0.25}, "odd": 3}
    (tmp_path / "evaluation.json").write_text(json.dumps(score))
    text = read(report.write(tmp_path / "vae.safetensors")).text
    assert "of it, KL(z)1.50" in text.replace("\n", "")
    assert f"{EVIL}4.25 ± 0.25" in text.replace("\n", "")
    assert "KL(w)" not in text


def test_files_that_are_too_large_are_not_read(run: Path) -> None:
    (run / "experiments").mkdir(exist_ok=True)
    for name in ("config.json", "metrics.jsonl", "experiments/x.json"):
        (run / name).touch()
        os.truncate(run / name, 2**28)  # which takes no room
    text = read(report.write(run)).text
    for name in ("config.json", "metrics.jsonl", "x.json"):
        assert f"{name}: could not be read (it has 268,435,456 bytes, expected at most " in text


def test_a_report_replaces_nothing_but_a_report(run: Path) -> None:
    for name in ("best.safetensors", "config.json", "metrics.jsonl"):
        before = (run / name).read_bytes()
        with pytest.raises(ValueError, match=f"--out: expected a new file or an earlier report, got .*{name}"):
            report.write(run, run / name)
        assert (run / name).read_bytes() == before
    assert report.write(run, report.write(run, run / "page.html")) == run / "page.html"
