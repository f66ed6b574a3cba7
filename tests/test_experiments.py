"""Every experiment by the command line, in its smallest size: it runs, writes, draws, and goes into a report."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import kanerva
from kanerva import MODELS, DataConfig, lab
from kanerva.app import report
from kanerva.app.report.words import blocks, captioned
from kanerva.cli import main
from kanerva.lab import EXPERIMENTS, plots
from kanerva.lab.capacity import Capacity
from small import patterns, tiny
from test_report import read
from trials import Toy

pytestmark = pytest.mark.usefixtures("no_shape_checks", "coarse", "short_search")


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of few pixels, which are drawn sooner."""
    monkeypatch.setitem(plots.STYLE, "savefig.dpi", 40)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("binary")
    kanerva.train(tiny(folder), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grey")
    data = DataConfig(str(patterns(folder, binary=False)))
    kanerva.train(dataclasses.replace(tiny(folder), data=data), folder / "run")
    return folder / "run"


def numbers(name: str, run: Path, out: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What an experiment finds, without its figures."""
    monkeypatch.setattr(plots, "draw", lambda results, path: [])
    work = lab.find(name)(checkpoint=(str(run),), smoke=True, seed=seed, device="cpu", out=out)
    return json.loads(dataclasses.replace(work, overwrite=True).main().read_text())["models"]  # type: ignore[no-any-return]


def untimed(value: Any) -> Any:
    """Results without their seconds, which are never the same."""
    if isinstance(value, dict):
        return {key: untimed(part) for key, part in value.items() if key != "seconds"}
    return [untimed(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", ["binary", "grey"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke(
    name: str,
    kind: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = request.getfixturevalue(kind)
    main(["experiment", name, "--smoke", "--checkpoint", str(run), "--device", "cpu"])
    said = capsys.readouterr().out.splitlines()
    path = run / "experiments" / "smoke" / f"{name}.json"
    assert str(path) in said
    assert {line for line in said if line.endswith(".png")} == set(map(str, lab.figures(path)))
    results = json.loads(path.read_text())
    assert results["experiment"] == name
    assert results["smoke"]
    (model,) = results["models"]
    assert model["crc32"] == report.gather(str(run)).checkpoint["crc32"]

    # the report knows what to say of its numbers and of each of its figures
    known, found = lab.find(name), report.Results(path, results)
    head, rows = known.table(model["result"]).text()
    assert rows
    assert {len(row) for row in rows} == {len(head)}
    assert [line.split("  ")[0].strip() for line in said[: said.index("")][-len(rows) :]] == [
        row[0] for row in rows
    ]
    ends = [file.stem[len(name) + 1 :] for file in lab.figures(path)]
    assert sorted(ends) == sorted(known.FIGURES)
    (tmp_path / "alone").mkdir()
    shutil.copy(path, tmp_path / "alone")
    text = read(report.write(run, results=tmp_path / "alone")).text
    assert known.ABOUT in text
    for end in ends:
        assert captioned(found, end) == (end, "", known.FIGURES[end])
        above = end == "pictures" and known.strips(model["result"]) is not None  # on the first screen
        assert (known.FIGURES[end] in text) == (not above)

    if kind == "binary":
        # the file alone is enough to draw them again, to the last byte
        drawn = [file for end in ("png", "svg") for file in path.parent.glob(f"{name}*.{end}")]
        main(["plot", str(path), "--out", str(tmp_path / "again")])
        assert sorted(capsys.readouterr().out.split()) == sorted(str(tmp_path / "again" / f.name) for f in drawn)
        assert all((tmp_path / "again" / file.name).read_bytes() == file.read_bytes() for file in drawn)
        # the seed decides
        assert untimed(results["models"]) == untimed(numbers(name, run, tmp_path, 0, monkeypatch))
        assert untimed(results["models"]) != untimed(numbers(name, run, tmp_path, 1, monkeypatch))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; expected the JSON that kanerva experiment writes"),
        ("{", "expected results as JSON, which kanerva experiment writes, got Expecting property name"),
        ("[]", "speed, got a list"),
        ('{"experiment": "denoise"}', "an experiment of the name 'denoise'; did you mean 'denoising'?"),
        ('{"nats": 1.0}', "got a score, which has no figure"),
        ('{"settings": 1, "results": 2}', "got numbers of an example, whose figure the script in examples/ draws"),
        ('{"rows": 1}', "got an object with 'rows' in it"),
        ('{"experiment": "capacity"}', "its figures cannot be drawn (KeyError: 'models'); the usual cause"),
    ],
)
def test_what_is_no_file_of_results(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "some.json").write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["plot", str(tmp_path / "some.json")])
    assert str(end.value.code).startswith(f"kanerva: {tmp_path / 'some.json'}: ")
    assert message in str(end.value.code)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_flags_are_listed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["experiment", name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(
        flag in text for flag in (f"kanerva experiment {name}", "--checkpoint", "--smoke", "--seed", "--out")
    )


def test_several_models_and_another_place(binary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [str(binary), str(binary / "best.safetensors")]
    main(["experiment", "basins", "--smoke", "--checkpoint", *both, "--device", "cpu", "--out", str(tmp_path)])
    path = tmp_path / "basins.json"
    assert str(path) in capsys.readouterr().out.splitlines()
    found = report.Results(path, json.loads(path.read_text()))
    assert [model["name"] for model in found.models] == ["run", "best"]
    figures = lab.find("basins").FIGURES
    assert captioned(found, "energy-best") == ("energy", "best", figures["energy"])
    # models stand side by side; figures are drawn from the results, whatever files there are
    (tmp_path / "basins-energy-best.png").rename(tmp_path / "basins-energy.png")
    recovery, energy = blocks(found, None, [])
    assert (recovery.caption, energy.caption) == (figures["recovery"], figures["energy"])
    assert list(recovery.models) == list(energy.models) == ["run", "best"]
    assert blocks(found, "recovery", [])[0].caption == figures["energy"]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Flags that take a model with no training, energy, weights or codec, in a folder of its own."""
    monkeypatch.setitem(MODELS, "toy", Toy)
    monkeypatch.chdir(tmp_path)
    return ["--checkpoint", "toy", "--dataset", str(patterns(tmp_path)), "--device", "cpu", "--smoke"]


FIGURES = {"capacity": 1, "denoising": 3, "sampling": 3, "basins": 1, "rivals": 2}
ANY = [name for name in EXPERIMENTS if lab.find(name).NEEDS is None]


@pytest.mark.parametrize("name", ANY)
def test_any_model_takes_part(name: str, toy: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["experiment", name, *toy])
    out, err = capsys.readouterr()
    path = Path("runs/toy/experiments/smoke") / f"{name}.json"
    assert str(path) in out.splitlines()
    assert len(lab.figures(path)) == FIGURES[name]
    slice_needs = "basins: toy: the energy slice needs a DKM, and is left out\n"
    assert err == (slice_needs if name == "basins" else "")
    # the folder has results and no checkpoint; they say what it is
    text = read(report.write(Path("runs/toy"), results=path.parent)).text
    assert "Toy with a shelf." in text
    (model,) = json.loads(path.read_text())["models"]
    head, rows = lab.find(name).table(model["result"]).text()
    assert all(cell in text for row in (head, *rows) for cell in row)


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - set(ANY)))
def test_what_needs_a_dkm_says_so_before_any_work(name: str, toy: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main(["experiment", name, *toy])
    assert end.value.code == f"kanerva: {name}: needs a DKM, got toy, which is of kind toy"
    assert not (tmp_path / "runs").exists()


def test_models_of_several_kinds(binary: Path, toy: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["experiment", "capacity", *toy[2:], "--checkpoint", str(binary), "toy", "--out", "."])
    said = capsys.readouterr().out.splitlines()
    assert said[-3:-1] == ["capacity.json", "capacity.png"]
    assert [said[0], said[said.index("") + 1]] == ["run", "toy"]
    models = json.loads(Path("capacity.json").read_text())["models"]
    assert [(model["name"], model["kind"], model["result"]["rows"]) for model in models] == [
        ("run", "dkm", 4),
        ("toy", "toy", None),
    ]


def test_results_have_their_place(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.safetensors").touch()
    for place, folder in (
        (tmp_path / "run", tmp_path / "run"),
        (tmp_path / "run" / "best.safetensors", tmp_path / "run"),
        ("omniglot", "runs/omniglot"),
        ("nearest", "runs/nearest"),
        ("hopfield:runs/demo", "runs/hopfield-runs-demo"),
    ):
        assert Capacity(checkpoint=(str(place),)).place() == Path(folder) / "experiments" / "capacity.json"


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("denoising", ["--flips", "0.1", "1.5"], "flips: expected shares of at most 1, got (0.1, 1.5)"),
        ("denoising", ["--steps", "0"], "steps: expected 1 or more, got 0"),
        ("denoising", ["--checkpoint"], "checkpoint: expected at least one model, got none"),
        ("capacity", ["--episodes", "0"], "episodes: expected 1 or more, got 0"),
        ("capacity", ["--lengths", "0"], "lengths: expected 1 or more, got (0,)"),
        ("capacity", ["--classes", "0"], "classes: expected 1 or more, got (0,)"),
        ("capacity", ["--seed", "-1"], "seed: expected a whole number from 0 to 4294967295, got -1"),
        ("fixed-points", ["--length", "0"], "length: expected 1 or more, got 0"),
        ("basins", ["--length", "2"], "length: expected 3 or more, got 2"),
        ("sampling", ["--chain", "3"], "chain: expected 5 or more, got 3"),
    ],
    ids=str,
)
def test_flags_that_cannot_work_are_refused_at_once(
    name: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["experiment", name, *flags])
    assert end.value.code == f"kanerva: {message}; see kanerva experiment {name} --help"


def test_a_place_that_cannot_be_written_is_refused_before_any_work(binary: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    work = Capacity(checkpoint=(str(binary),), device="cpu", out=tmp_path / "file")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Capacity, "run", lambda *_: pytest.fail("it has begun"))
        with pytest.raises(OSError, match=r"file: expected a folder, or a place to make one, but .* is a file"):
            work.main()


def test_results_of_other_settings_are_not_replaced(binary: Path, tmp_path: Path) -> None:
    """Neither by a smoke run, which has a folder of its own."""
    place = binary / "experiments" / "capacity.json"
    small: dict[str, Any] = {"checkpoint": (str(binary),), "device": "cpu", "lengths": (2,), "classes": (2,)}
    work = Capacity(**small, episodes=2)
    assert work.main() == place
    written = place.read_bytes()
    assert dataclasses.replace(work, smoke=True).main() == binary / "experiments" / "smoke" / "capacity.json"
    assert place.read_bytes() == written
    work.main()  # the same again may replace it

    other = "--overwrite replaces them, --out names another place"
    with pytest.raises(FileExistsError, match=f"episodes = 3 \\(there: 2\\); {other}") as error:
        Capacity(**small, episodes=3).main()
    assert str(error.value).startswith(f"{place}: holds results of other settings: ")
    with pytest.raises(FileExistsError, match="smoke = True"):
        dataclasses.replace(work, smoke=True, out=binary / "experiments").main()
    best = str(binary / "best.safetensors")
    with pytest.raises(FileExistsError, match="models = "):
        dataclasses.replace(work, checkpoint=(str(binary), best)).main()
    with pytest.raises(FileExistsError, match="dataset = "):
        dataclasses.replace(work, dataset=str(patterns(tmp_path))).main()
    for damage in (b"{", b"\xff", b"[]", b'{"config": {}, "models": [1]}'):
        place.write_bytes(damage)
        with pytest.raises(FileExistsError, match="no readable file of results"):
            work.main()
        assert place.read_bytes() == damage
    dataclasses.replace(work, episodes=3, overwrite=True).main()
    assert json.loads(place.read_text())["config"]["episodes"] == 3
