"""The report: all there is about a run is on it, nothing on it comes from elsewhere, and files cannot break it."""

import base64
import hashlib
import html.parser
import io
import json
import os
import re
import shutil
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import kanerva
from kanerva import MODELS
from kanerva.app import report
from kanerva.app.report import figures
from kanerva.cli import main
from kanerva.lab import EXPERIMENTS, drawing
from kanerva.lab.pictures import pack
from kanerva.lab.tables import Share, Table, percent, plus_minus, show
from kanerva.support import tensors as storage
from small import metrics, tiny
from trials import Toy

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
    for image in page.all("img"):
        if (image["src"] or "").startswith("data:image/svg+xml;"):
            check_svg(svg(image["src"]))
    return page


def svg(source: str | None) -> str:
    """The SVG in an address."""
    return base64.b64decode((source or "").split(",")[1]).decode()


def check_svg(text: str) -> None:
    """A picture that is well formed, runs nothing and fetches nothing."""
    for element in xml.etree.ElementTree.fromstring(text).iter():
        assert element.tag.split("}")[-1] not in ("script", "foreignObject", "a")
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            assert not name.endswith("href") or value.startswith(("#", "data:image/png;base64,"))
    assert all(place.startswith("#") for place in re.findall(r"url\(([^)]*)\)", text))


def sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def results(name: str, crc32: object = None, **changes: Any) -> dict[str, Any]:
    """A file of results as experiments write it, with numbers that nobody knows."""
    numbers = {"wrong_pixels": {"mean": 12.345, "stderr": 0.067}, "nested": {"share": 0.5}, "list": [1, 2]}
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


def picture(path: Path, width: float = 3) -> None:
    Figure(figsize=(width, 1)).savefig(path, dpi=100)


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
    assert "test classes" in svg(curve["src"])
    assert curve["alt"]
    assert "None yet" in page.text  # experiments


def test_experiments_are_shown_in_order_with_figures_and_numbers(run: Path) -> None:
    folder = run / "experiments"
    folder.mkdir()
    crc32 = report.gather(str(run)).checkpoint["crc32"]
    for name in ("sampling", "new-idea", "capacity"):
        (folder / f"{name}.json").write_text(json.dumps(results(name, crc32)))
        picture(folder / f"{name}.png")
        picture(folder / f"{name}-more.png")
    page = read(report.write(run))
    places = [page.text.index(f"kanerva experiment {name}") for name in ("capacity", "sampling", "new-idea")]
    assert places == sorted(places)
    assert EXPERIMENTS["capacity"] in page.text
    assert page.text.count("seed 3, episodes 64, date 2026-01-02, device cpu, seconds 1.5") == 3
    assert page.text.count("12.345 ± 0.067") == 3
    assert "another checkpoint" not in page.text
    assert len(page.all("img")) == 1 + 2 * 3
    assert all(image["alt"] for image in page.all("img"))
    links = {link["download"]: link["href"] for link in page.all("a") if "download" in link}
    assert sorted(links) == ["capacity.json", "new-idea.json", "run.json", "sampling.json"]
    found = {name: json.loads(base64.b64decode((href or "").split(",")[1])) for name, href in links.items()}
    assert found["sampling.json"] == results("sampling", crc32)
    assert found["run.json"]["metrics"] == metrics(run)


def test_what_recall_makes_of_damaged_images_comes_first(run: Path) -> None:
    """Binary images and colours, pixel for pixel."""
    x = np.random.default_rng(0).integers(0, 2, (4, 5, 1, 6, 4)).astype(np.float32)
    shown = {"rows": ["original", "cue", "descent, step 1", "descent, step 3"], "images": pack(torch.tensor(x))}
    found = results("denoising", models=[{"name": "run", "result": {"pictures": shown}}])
    (run / "experiments").mkdir()
    (run / "experiments" / "denoising.json").write_text(json.dumps(found))
    page = read(report.write(run))
    strips = [image for image in page.all("img") if "data-step" in image]
    assert [(image["data-step"], "hidden" in image) for image in strips] == [
        ("0", False),
        ("0", False),
        ("1", True),
        ("3", False),
    ]
    assert {image["class"] for image in strips} == {"ink"}
    source = strips[0]["src"] or ""
    with Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))) as image:
        seen = np.asarray(image).reshape(8, 5, 6).transpose(1, 0, 2)[:, 1:-1, 1:-1]
    assert np.array_equal(seen < 128, x[0, :, 0] == 1)


def test_results_of_smoke_and_of_another_checkpoint_are_marked(run: Path) -> None:
    (run / "experiments").mkdir()
    (run / "experiments" / "capacity.json").write_text(json.dumps(results("capacity", 1, smoke=True)))
    page = read(report.write(run))
    assert "too small for its numbers to mean anything" in page.text
    assert "Made with another checkpoint than this: run at step 6" in page.text


@pytest.mark.parametrize(
    "content",
    [
        {"experiment": "capacity"},
        {"experiment": "denoising", "models": 3, "config": [1], "versions": None},
        {"experiment": "order", "models": [None, {"result": {"trained": {}}}, {"result": [1]}]},
        {"experiment": "sampling", "models": [{"name": None, "result": {"summary": {"a": None, "b": [EVIL]}}}]},
        {"experiment": "../capacity", "models": [{"result": {"a": {"b": {"c": {"d": {"e": {"f": {}}}}}}}}]},
        {"experiment": "capacity", "date": {"a": 1}, "seconds": "long", "config": {"seed": [1], "episodes": None}},
    ],
    ids=str,
)
def test_strange_results_do_no_harm(run: Path, content: dict[str, Any]) -> None:
    (run / "experiments").mkdir()
    (run / "experiments" / "some.json").write_text(json.dumps(content))
    read(report.write(run))


def test_whatever_files_say_is_only_text(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / EVIL))
    (run / "experiments").mkdir()
    evil = results(
        EVIL, command=EVIL, date=EVIL, device=EVIL, versions={EVIL: EVIL}, config={EVIL: EVIL, "seed": EVIL}
    )
    evil["models"] = 2 * [{"name": EVIL, "step": EVIL, "result": {EVIL: EVIL, "summary": {EVIL: EVIL}}}]
    (run / "experiments" / f"{EVIL}.json").write_text(json.dumps(evil))
    picture(run / "experiments" / f"{EVIL}-{EVIL}.png")
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


def test_what_is_missing_is_said(run: Path) -> None:
    (run / "config.json").unlink()
    (run / "metrics.jsonl").unlink()
    page = read(report.write(run))
    assert f"{run / 'config.json'}: no such file" in page.text
    assert f"{run / 'metrics.jsonl'}: no such file" in page.text
    assert '"lengths"' in page.text  # from the checkpoint
    assert "No score yet" in page.text
    assert f"kanerva evaluate {run} --json > {run}/evaluation.json" in page.text


def test_what_is_damaged_is_said(run: Path) -> None:
    (run / "best.safetensors").write_bytes(b"no")
    (run / "config.json").write_text("{")
    with open(run / "metrics.jsonl", "a") as file:
        file.write(
            '[1]\n{"step": 7, "loss": null, "nats": null}\n{"step": 8, "skipped": "loss nan"}\n{"step": 9, "lo'
        )
    (run / "experiments").mkdir()
    (run / "experiments" / "capacity.json").write_text(json.dumps(results("capacity")))
    (run / "experiments" / "sampling.json").write_text("[")
    page = read(report.write(run))
    for said in (
        "best.safetensors: not a readable safetensors file",
        "config.json: could not be read",
        "sampling.json: could not be read",
    ):
        assert said in page.text, said
    assert len(page.all("img")) == 1  # the curve of the lines that are whole


def test_a_curve_that_cannot_be_drawn_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OverflowError("too <large>")

    monkeypatch.setattr(figures, "vector", fail)
    assert "The training curve could not be drawn: too <large>" in read(report.write(run)).text


def test_tables_for_a_terminal() -> None:
    table = Table(
        ["", "a head of many words", "b"], [["one", {"mean": 1.0, "stderr": 0.1}, None], ["fourteen", 2, 3]]
    )
    assert table.lines().splitlines() == [
        "            a head of  b",
        "           many words",
        "one       1.00 ± 0.10  –",
        "fourteen            2  3",
    ]


def test_no_run_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, message in (
        (
            tmp_path / "nowhere",
            "nowhere: no such run; expected a run's folder, a checkpoint, or a pretrained",
        ),
        (
            tmp_path,
            "expected a run's folder with config.json, metrics.jsonl, last.safetensors, got one with none of",
        ),
        ("omniglt", "did you mean 'omniglot'?"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["report", str(place)])
        assert message in str(end.value.code)
        assert "\n" not in str(end.value.code)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "my.safetensors").write_bytes(b"no")
    with pytest.raises(SystemExit, match="not a readable safetensors file"):
        main(["report", str(tmp_path / "my.safetensors")])
    with pytest.raises(SystemExit, match="no such folder; expected one with results"):
        main(["report", "omniglot", "--experiments", str(tmp_path / "nowhere")])


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


def test_results_of_several_models_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the model are in a folder for each experiment, as in results/."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "capacity").mkdir()
    (tmp_path / "capacity" / "omniglot.json").write_text(json.dumps(results("capacity")))
    (tmp_path / "capacity" / "mazes.json").write_text(json.dumps(results("capacity")))
    found = report.gather("omniglot", tmp_path).results
    assert [one.path for one in found] == [tmp_path / "capacity" / "omniglot.json"]


def test_an_evaluation_with_more_images_comes_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run), "--images", "640", "--length", "5", "--json"])
    text = capsys.readouterr().out
    score = json.loads(text)
    (run / "evaluation.json").write_text(text)
    (run / "old.json").write_text(json.dumps({**score, "crc32": 1}))
    page = read(report.write(run))
    assert f"{plus_minus(score['nats'], score['nats_stderr'])} nats per image" in page.text
    assert f"{score['mean_image']:,.2f}" in page.text
    assert "Other evaluations" in page.text
    assert "old.json: the score of another checkpoint, left out" in page.text


def test_a_report_is_whole_or_not_at_all(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = report.write(run)
    before = path.read_bytes()
    assert not list(run.glob(".*.tmp"))

    def fail(material: report.Material) -> str:
        raise RuntimeError("no")

    monkeypatch.setattr(report, "page", fail)
    with pytest.raises(RuntimeError):
        report.write(run)
    assert path.read_bytes() == before


def test_numbers_are_as_precise_as_their_errors() -> None:
    assert plus_minus(54.4816, 0.4258) == "54.48 ± 0.43"
    assert plus_minus(-9046.5, 12.3) == "−9,046 ± 12"
    assert plus_minus(1.5, 0.0) == plus_minus(1.5, 4e-8) == "1.5"
    assert plus_minus(float("inf"), 1.0) == "–"
    assert show({"mean": 0.12345, "stderr": 0.001}) == "0.1235 ± 0.0010"
    assert [show(x) for x in (None, True, 12345, [1, 2], "a")] == ["–", "yes", "12,345", "1, 2", "a"]
    assert [percent(x) for x in (0.125, {"mean": 0.5, "stderr": 0.01})] == ["12.5 %", "50.0 ± 1.0 %"]
    assert show(Share(0.125)) == "12.5 %"
    # null in JSON, for what was not finite or is not known
    assert [
        show(x) for x in ({"mean": None, "stderr": None}, Share(None), Share({"mean": None, "stderr": None}))
    ] == (["–"] * 3)


@pytest.mark.parametrize("first", [500.0, -9000.0])
def test_the_curve_takes_any_run(first: float, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Figure] = []
    monkeypatch.setattr(figures, "vector", made.append)
    whole = [{"step": i, "loss": first - i, "nats": first - i} for i in range(1, 400)]
    test = [{"step": 100, "test": {"nats": first - 90, "nats_stderr": 1.0}}]
    for lines in (whole, whole + test, whole[:1], test, [], [{"step": 1, "loss": None, "nats": None}, {"loss": 1}]):
        figures.curve(lines)
        drawing.picture(made[-1])
    left = made[0].axes[0]
    assert left.get_yscale() == ("log" if first > 0 else "linear")
    x, y = left.lines[1].get_data()
    # the mean over a window is what a straight line has in its middle
    assert list(y) == pytest.approx([first - value for value in x], abs=0.51)


def test_a_report_of_another_kind_of_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "toy", Toy)
    kanerva.create("toy", (1, 8, 8)).save(tmp_path / "toy.safetensors")
    path = report.write(tmp_path / "toy.safetensors")
    assert "<title>toy: Toy with a shelf</title>" in path.read_text()
    text = read(path).text
    assert "parameters1" in text.replace("\n", "")
    assert "grey variance, learned1" in text.replace("\n", "")
    for own in ("rows, K", "code, C", "noise variance"):  # of a DKM
        assert own not in text
    # where the package does not know the kind, its own word for it has to do
    monkeypatch.delitem(MODELS, "toy")
    assert "<title>toy: toy</title>" in report.write(tmp_path / "toy.safetensors").read_text()


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
