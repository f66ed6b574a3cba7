"""Every experiment by the command line, in its smallest size: it runs, writes, draws, and goes into a report."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kanerva
from kanerva import MODELS, DataConfig, lab
from kanerva.app import report
from kanerva.cli import main
from kanerva.lab import EXPERIMENTS, drawing, runner
from kanerva.lab.runner import Work
from small import patterns, tiny
from test_report import read
from trials import Toy

pytestmark = pytest.mark.usefixtures("no_shape_checks", "coarse", "short_search")


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of few pixels, which are drawn sooner."""
    monkeypatch.setitem(drawing.STYLE, "savefig.dpi", 40)


@pytest.fixture(scope="module", params=["binary", "grey"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp(request.param)
    data = DataConfig(str(patterns(folder, request.param == "binary")))
    kanerva.train(dataclasses.replace(tiny(folder), data=data), folder / "run")
    return folder / "run"


def work(name: str, *places: Path | str, **values: Any) -> Work:
    kind = runner.flags(lab.find(name), f"kanerva experiment {name}")
    return kind(checkpoint=tuple(map(str, places)), **{"device": "cpu", **values})


def untimed(value: Any) -> Any:
    """Results without their seconds, which are never the same."""
    if isinstance(value, dict):
        return {key: untimed(part) for key, part in value.items() if key != "seconds"}
    return [untimed(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke(name: str, run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["experiment", name, "--smoke", "--checkpoint", str(run), "--device", "cpu"])
    said = capsys.readouterr().out.splitlines()
    path = run / "experiments" / "smoke" / f"{name}.json"
    figures = sorted(path.parent.glob(f"{name}*.png"))
    assert figures
    assert {str(path), *map(str, figures)} <= set(said)
    results = json.loads(path.read_text())
    assert (results["experiment"], results["smoke"]) == (name, True)
    assert results["command"] == f"kanerva experiment {name} --checkpoint {run} --device cpu --smoke"
    (model,) = results["models"]
    assert model["crc32"] == report.gather(str(run)).checkpoint["crc32"]
    # the table is printed, and has one width
    head, rows = lab.find(name).table(model["result"]).text()
    assert {len(row) for row in rows} == {len(head)}
    assert rows[-1][0] in said[said.index("") - 1]
    # the file alone is enough to draw the figures again, to the last byte
    main(["plot", str(path), "--out", str(tmp_path)])
    assert capsys.readouterr().out.split() == [
        str(tmp_path / Path(line).name) for line in said if line.endswith("png")
    ]
    for file in path.parent.glob(f"{name}*.[ps][nv]g"):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    # the same again gives the same
    again, _ = work(name, run, smoke=True, out=tmp_path / "again.json").main()
    assert untimed(results["models"]) == untimed(json.loads(again.read_text())["models"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; expected the JSON that kanerva experiment writes"),
        ("{", "expected results as JSON, which kanerva experiment writes, got Expecting property name"),
        ("[]", "expected results of capacity, denoising, "),
        ("[" * 10**5 + "]" * 10**5, "which kanerva experiment writes, got JSON nested more than 100 deep; usual"),
        (2**28, "which kanerva experiment writes, got it has 268,435,456 bytes"),
        ('{"experiment": "denoise"}', "did you mean 'denoising'?"),
        ('{"experiment": "capacity"}', "its figures cannot be drawn (KeyError: 'models'); the usual cause"),
    ],
)
def test_what_is_no_file_of_results(text: str | int | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "some.json").write_text(str(text))
    if isinstance(text, int):
        os.truncate(tmp_path / "some.json", text)  # which takes no room
    with pytest.raises(SystemExit) as end:
        main(["plot", str(tmp_path / "some.json")])
    assert str(end.value.code).startswith(f"kanerva: {tmp_path / 'some.json'}: ")
    assert message in str(end.value.code)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_flags_are_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["experiment", name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    flags = (f"kanerva experiment {name}", "--checkpoint", "--smoke", "--seed", "--out", "Memories", "Models, one")
    assert all(flag in text for flag in flags if name != "capacity" or flag != "Memories")
    assert "(default: )" not in text


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Flags that take a model with no training, energy, weights or codec, in a folder of its own."""
    monkeypatch.setitem(MODELS, "toy", Toy)
    monkeypatch.chdir(tmp_path)
    return ["--checkpoint", "toy", "--dataset", str(patterns(tmp_path)), "--device", "cpu", "--smoke"]


NEEDY = [name for name in EXPERIMENTS if hasattr(lab.find(name), "NEEDS")]


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - set(NEEDY)))
def test_any_model_takes_part(name: str, toy: list[str]) -> None:
    main(["experiment", name, *toy])
    path = Path("runs/toy/experiments/smoke") / f"{name}.json"
    # the folder has results and no checkpoint; they say what it is
    text = read(report.write(Path("runs/toy"), results=path.parent)).text
    assert "Toy with a shelf" in text
    (model,) = json.loads(path.read_text())["models"]
    head, rows = lab.find(name).table(model["result"]).text()
    assert all(cell in text for row in (head, *rows) for cell in row)


@pytest.mark.parametrize("name", NEEDY)
def test_what_needs_a_dkm_says_so_before_any_work(name: str, toy: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main(["experiment", name, *toy])
    assert end.value.code == f"kanerva: {name}: needs a DKM, got toy, which is of kind toy"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("run", "run"),
        ("run/best.safetensors", "run"),
        ("omniglot", "runs/omniglot"),
        ("hopfield:runs/demo", "runs/hopfield-runs-demo"),
    ],
)
def test_results_have_their_place(place: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/best.safetensors").touch()
    assert work("capacity", place).place() == Path(folder) / "experiments" / "capacity.json"


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("denoising", ["--steps", "0"], "steps: expected 1 or more, got 0"),
        ("denoising", ["--flips", "-0.1"], "flips: expected 0 or more, got (-0.1,)"),
        ("capacity", ["--lengths", "0"], "lengths: expected 1 or more, got (0,)"),
        ("capacity", ["--lengths"], "lengths: expected 1 or more, got ()"),
        ("capacity", ["--seed", "-1"], "seed: expected a whole number from 0 to 4294967295, got -1"),
    ],
    ids=str,
)
def test_flags_that_cannot_work_are_refused_at_once(name: str, flags: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["experiment", name, *flags])
    assert end.value.code == f"kanerva: {message}; kanerva experiment {name} --help lists all flags"


def test_a_place_that_cannot_be_written_is_refused_before_any_work(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    small = work("capacity", run, out=tmp_path / "file")
    with pytest.raises(OSError, match=r"file: expected a folder, or a place to make one, but .* is a file"):
        small.main()
    (tmp_path / "null.json").symlink_to(os.devnull)
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("null.json", "pipe.json"):  # results are read again after they were written
        with pytest.raises(OSError, match=f"{name}: expected the name of a file, which is read again"):
            dataclasses.replace(small, out=tmp_path / name, overwrite=True).main()


def test_results_of_other_settings_are_not_replaced(run: Path, tmp_path: Path) -> None:
    """Neither by a smoke run, which has a folder of its own."""
    place = run / "experiments" / "capacity.json"
    small = work("capacity", run, lengths=(2,), classes=(2,), episodes=2)
    assert small.main()[0] == place
    written = place.read_bytes()
    assert dataclasses.replace(small, smoke=True).main()[0] == run / "experiments" / "smoke" / "capacity.json"
    assert place.read_bytes() == written
    small.main()  # the same again may replace it

    for changes, said in (
        ({"episodes": 3}, r"episodes = 3 \(there: 2\); --overwrite replaces them, --out names another place"),
        ({"smoke": True, "out": run / "experiments"}, "smoke = True"),
        ({"checkpoint": (str(run), str(run / "best.safetensors"))}, "models = "),
        ({"dataset": str(patterns(tmp_path))}, "dataset = "),
    ):
        with pytest.raises(FileExistsError, match=said):
            dataclasses.replace(small, **changes).main()  # type: ignore[arg-type]
    for damage in (b"{", b"\xff", b"[]", b'{"config": {}, "models": [1]}'):
        place.write_bytes(damage)
        with pytest.raises(FileExistsError, match="no readable file of results"):
            small.main()
        assert place.read_bytes() == damage
    dataclasses.replace(small, episodes=3, overwrite=True).main()  # type: ignore[call-arg]
    assert json.loads(place.read_text())["config"]["episodes"] == 3


def test_models_of_one_file_name_have_figures_of_their_own(run: Path, tmp_path: Path) -> None:
    """Their results and figures would take each other's place."""
    places = [tmp_path / folder / "last.safetensors" for folder in ("x/a", "x/b", "y/b")]
    for place in places:
        place.parent.mkdir(parents=True)
        shutil.copy(run / "last.safetensors", place)
    assert runner.names([*map(str, places), "omniglot"]) == ["a/last", "x/b/last", "y/b/last", "omniglot"]
    assert runner.names([str(places[0])] * 2) == ["last", "last (2)"]
    path, drawn = work("basins", *places, smoke=True, out=tmp_path / "out").main()
    models = json.loads(path.read_text())["models"]
    assert [model["name"] for model in models] == ["a/last", "x/b/last", "y/b/last"]
    names = [
        f"basins-{figure}-{name}"
        for name in ("a-last", "x-b-last", "y-b-last")
        for figure in ("recovery", "energy")
    ]
    assert [file.stem for file in drawn] == names
    assert {file.stem for file in (tmp_path / "out").glob("*.png")} == set(names)


@pytest.mark.parametrize("name", ["order", "more"])
def test_a_script_is_an_experiment_too(name: str, run: Path, tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    flags = ["--smoke", "--checkpoint", str(run), "--device", "cpu", "--out", str(tmp_path)]
    out = subprocess.run([sys.executable, str(path), *flags], capture_output=True, text=True, check=True).stdout
    assert all(Path(line).exists() for line in out.split())
    results = json.loads((tmp_path / f"{name}.json").read_text())
    assert results["experiment"] == name
    assert results["command"].startswith(f"python benchmarks/{name}.py --checkpoint")
