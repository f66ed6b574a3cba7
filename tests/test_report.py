"""The report: all there is about a run is on it, nothing on it comes from elsewhere, and files cannot break it."""

import base64
import hashlib
import html.parser
import io
import json
import os
import re
import shutil
import urllib.parse
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import kanerva
from kanerva import MODELS, experiments, report, storage
from kanerva.cli import main
from kanerva.experiments import EXPERIMENTS
from kanerva.experiments.plots import training
from kanerva.experiments.tables import Share, Table, percent, plus_minus, show
from kanerva.report import figures
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
        if (image["src"] or "").startswith("data:image/svg+xml,"):
            check_svg(svg(image["src"]))
    return page


def sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def svg(source: str | None) -> str:
    """The SVG in an address."""
    return urllib.parse.unquote((source or "").removeprefix("data:image/svg+xml,"))


def check_svg(text: str) -> None:
    """A picture that is well formed, runs nothing, fetches nothing, and has the page's colours."""
    for element in xml.etree.ElementTree.fromstring(text).iter():
        tag = element.tag.split("}")[-1]
        assert tag not in ("script", "foreignObject", "a")
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            if name.endswith("href"):
                assert value.startswith(("#", "data:image/png;base64,"))
    assert all(place.startswith("#") for place in re.findall(r"url\(([^)]*)\)", text))
    assert "@media(prefers-color-scheme:dark)" in text
    assert "stroke: #000000" not in text


def pixels(source: str | None) -> tuple[int, int]:
    assert source is not None
    with Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))) as image:
        return image.size


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
    assert "Dynamic Kanerva Machine, trained on bits.npz: a memory of 4 rows for codes of 6 numbers" in page.text
    assert "First, the loss: score + KL(M) / T + the autoencoder's error." in page.text
    assert '"lengths"' in page.text
    loss, score = page.all("img")
    assert "Loss, nats per image" in svg(loss["src"])
    assert "Score, nats per image" in svg(score["src"])
    assert loss["alt"]
    assert all(int(image["width"] or 0) < 350 for image in (loss, score))  # a phone has 390
    assert "None yet" in page.text  # experiments
    assert {"viewport"} == {m["name"] for m in page.all("meta") if "name" in m}
    about = json.loads((run / "config.json").read_text())["train"]
    assert f"seed {about['seed']}" in page.text


def test_experiments_are_shown_in_order_with_figures_and_numbers(run: Path) -> None:
    folder = run / "experiments"
    folder.mkdir()
    crc32 = report.gather(str(run)).checkpoint["crc32"]
    for name in ("order", "new-idea", "capacity"):
        (folder / f"{name}.json").write_text(json.dumps(results(name, crc32)))
        picture(folder / f"{name}.png")
        picture(folder / f"{name}-more.png", width=40)
    page = read(report.write(run))
    places = [page.text.index(f"kanerva experiment {name}") for name in ("capacity", "order", "new-idea")]
    assert places == sorted(places)
    assert experiments.find("capacity").ABOUT in page.text
    assert experiments.find("capacity").FIGURES[""] in page.text
    assert page.text.count("kanerva experiment capacity") == 1  # and not once a figure
    assert page.text.count("seed 3, 64 episodes, 2026-01-02, cpu, 1.5 s") == 3
    assert page.text.count("12.345 ± 0.067") == 3
    assert "another checkpoint" not in page.text
    sizes = [pixels(image["src"]) for image in page.all("img")[2:]]
    assert len(sizes) == 2 * 3
    assert max(width for width, _ in sizes) == figures.WIDEST
    assert all(image["alt"] for image in page.all("img")[2:])
    links = {link["download"]: link["href"] for link in page.all("a") if "download" in link}
    assert list(links) == ["capacity.json", "order.json", "new-idea.json", "run.json"]
    found = {name: json.loads(base64.b64decode((href or "").split(",")[1])) for name, href in links.items()}
    assert found["order.json"] == results("order", crc32)
    assert found["run.json"]["metrics"] == metrics(run)


def test_results_of_smoke_and_of_another_checkpoint_are_marked(run: Path) -> None:
    (run / "experiments").mkdir()
    (run / "experiments" / "capacity.json").write_text(json.dumps(results("capacity", 1, smoke=True)))
    page = read(report.write(run))
    assert "too small for its numbers to mean anything" in page.text
    assert "Made with another checkpoint than this: run at step 6" in page.text
    assert "No figures beside capacity.json" in page.text


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


def test_of_unknown_results_all_plain_numbers_are_shown(run: Path) -> None:
    (run / "experiments").mkdir()
    result = {"right at 15 %": {"mean": 0.5, "stderr": 0.01}, "pixels_left": 38}
    content = results("novel", models=[{"name": "run", "result": result}])
    (run / "experiments" / "novel.json").write_text(json.dumps(content))
    text = read(report.write(run)).text
    assert "right at 15 %0.500 ± 0.010" in text
    assert "pixels left38" in text


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
    assert len(page.all("img")) == 2 + 1
    assert page.text.count(EVIL) > 10
    # never as a tag, and in an attribute only as text
    assert "<img src=x" not in path.read_text()


@pytest.mark.parametrize(("binary", "channels"), [(True, 1), (False, 1), (False, 3)])
def test_strips_of_images(binary: bool, channels: int) -> None:
    """Each image is there pixel for pixel, with a line around it; ink is black."""
    x = np.random.default_rng(0).integers(0, 2, (5, channels, 6, 4)).astype(np.float32)
    picture = figures.strip(x, binary)
    assert (picture.width, picture.height) == (5 * figures.SIDE, round(8 * 5 * figures.SIDE / 30))
    assert picture.kind == ("ink" if binary else "")
    with Image.open(io.BytesIO(base64.b64decode(picture.source.split(",")[1]))) as image:
        assert image.mode == ("RGB" if channels == 3 else "L")
        shown = np.asarray(image).reshape(8, 5, 6, channels).transpose(1, 3, 0, 2)[..., 1:-1, 1:-1] / 255
    assert np.array_equal(1 - shown if binary else shown, x)


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
    (run / "experiments" / "capacity.png").write_bytes(b"GIF89a")
    (run / "experiments" / "order.json").write_text("[" * 100_000)
    page = read(report.write(run))
    for said in (
        "best.safetensors: not a readable safetensors file",
        "config.json: could not be read",
        "order.json: could not be read",
        "A figure could not be read",
        "not finite: 1 or more",
    ):
        assert said in page.text, said
    assert len(page.all("img")) == 2  # the curve of the lines that are whole


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Matplotlib's, of numbers near the largest
@pytest.mark.parametrize("value", [10**400, -(10**400), 1e308, -1e308, 5e-324, 1e400, 10**30, True])
def test_extreme_numbers_do_no_harm(run: Path, value: float) -> None:
    score = {"nats": value, "nats_stderr": value, "images": value, "episodes": value, "seed": value}
    rows = [
        {"step": value, "nats": value, "loss": value},
        {"step": value, "validation": score},
        {"step": 7, "validation": score},
    ]
    with open(run / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    found = results("capacity", 1, config={"seed": value, "episodes": value}, seconds=value)
    found["models"][0]["result"] = {"x": value, "y": {"mean": value, "stderr": value}}
    (run / "experiments").mkdir()
    (run / "experiments" / "capacity.json").write_text(json.dumps(found))
    assert "Training" in read(report.write(run)).text


def test_a_curve_that_cannot_be_drawn_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OverflowError("too <large>")

    monkeypatch.setattr(training, "figures", fail)
    assert "The curve could not be drawn: too <large>." in read(report.write(run)).text


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
            "nowhere: no such run; expected a run's folder, a checkpoint, or a model that comes",
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
    assert "No curve here" in read(path).text

    monkeypatch.chdir(tmp_path)
    assert report.write("omniglot") == Path("runs/omniglot/report.html")
    elsewhere = tmp_path / "results"
    elsewhere.mkdir()
    (elsewhere / "capacity.json").write_text(json.dumps(results("capacity")))
    (elsewhere / "speed.json").write_text(json.dumps({"rows": [1]}))  # something else, which is no one's business
    page = read(report.write("omniglot", tmp_path / "deep" / "page.html", elsewhere))
    assert "Dynamic Kanerva Machine, trained on omniglot: a memory of 32 rows for codes of 100 " in page.text
    assert "740,712 parameters" in page.text
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
    assert f"mean image{score['mean_image']:,.2f}" in page.text.replace("\n", "")
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
def test_the_curve_takes_any_run(first: float) -> None:
    whole = [{"step": i, "loss": first - i, "nats": first - i} for i in range(1, 400)]
    test = [{"step": 100, "validation": {"nats": first - 90, "nats_stderr": 1.0}}]
    for lines in (whole + test, whole[:1], test, [], [{"step": 1, "loss": None, "nats": None}, {"loss": 1}]):
        (figure,) = training.figures({"metrics": lines}).values()
        figure.savefig(io.BytesIO(), format="png", dpi=30)
        left, right = figure.axes
        assert left.get_yscale() == ("log" if first > 0 and lines and lines[0] in whole else "linear")
        legend = right.get_legend()
        labels = [] if legend is None else [text.get_text() for text in legend.get_texts()]
        assert ("held-out classes" in labels) == any("validation" in line for line in lines)
    smooth = training.figures({"metrics": whole}).popitem()[1].axes[0].lines[1]
    x, y = smooth.get_data()
    # the mean over a window is what a straight line has in its middle
    assert list(y) == pytest.approx([first - value for value in x], abs=0.51)


def test_the_texts_name_what_there_is() -> None:
    for name, entry in EXPERIMENTS.items():
        known = experiments.find(name)
        assert name == known.NAME
        assert known.TITLE
        assert entry.line.endswith(".")
        assert known.ABOUT.endswith(".")
        assert all(re.search(r"[.)]$", text) for text in known.FIGURES.values())


def test_a_report_of_another_kind_of_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "toy", Toy)
    kanerva.create("toy", (1, 8, 8)).save(tmp_path / "toy.safetensors")
    path = report.write(tmp_path / "toy.safetensors")
    assert "<title>toy: Toy with a shelf</title>" in path.read_text()
    text = read(path).text
    assert "Toy with a shelf: 1 parameters." in text
    assert "grey variance1Learned." in text.replace("\n", "")
    for own in ("rows, K", "code, C", "noise variance"):  # of a DKM
        assert own not in text
    # where the package does not know the kind, its own word for it has to do
    monkeypatch.delitem(MODELS, "toy")
    assert "toy: 1 parameters." in read(report.write(tmp_path / "toy.safetensors")).text


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
    assert "KL(z)1.50" in text.replace("\n", "")
    assert f"{EVIL}4.25 ± 0.25" in text.replace("\n", "")
    assert "KL(w)" not in text


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_a_pipe_among_results_is_not_waited_for(run: Path) -> None:
    (run / "experiments").mkdir(exist_ok=True)
    os.mkfifo(run / "experiments" / "x.json")
    assert "x.json: not a file, left out" in read(report.write(run)).text
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")
    assert "config.json: could not be read (it is not a file)" in read(report.write(run)).text


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
