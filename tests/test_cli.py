"""The command line: what it prints, and what it says when something is wrong."""

import dataclasses
import errno
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch.nn.functional import binary_cross_entropy_with_logits, conv2d, conv_transpose2d, linear, relu

import kanerva
from kanerva import PRESETS, DataConfig, RunConfig
from kanerva.app.commands import COMMANDS as FLAGGED
from kanerva.app.train import FROM_DATA, Train, parse
from kanerva.cli import COMMANDS, main
from kanerva.data import load
from kanerva.models import checkpoint
from kanerva.support import tensors as storage
from kanerva.support.configs import to_dict
from kanerva.training.run import flat, saved_config
from small import patterns, tiny
from test_say import EVIL, harmless

pytestmark = pytest.mark.usefixtures("no_shape_checks")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("cli")
    kanerva.train(tiny(folder), folder / "run")
    return folder / "run"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(list(arguments))
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says when it fails; it must fail."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    output = capsys.readouterr()
    assert end.value.code not in (0, None)
    assert "Traceback" not in output.err or os.environ.get("KANERVA_TRACEBACK")
    return " ".join(f"{output.out} {output.err} {end.value.code}".split())


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--help")
    assert said(capsys) == text
    assert kanerva.__version__ in said(capsys, "--version")
    assert all(f"  {name}" in text and line in text for name, line in COMMANDS.items())
    for name, command in {"train": Train, **FLAGGED}.items():
        assert (command.__doc__ or "").split("\n")[0] == COMMANDS[name]


def helped(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", FLAGGED)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"kanerva {command}" in helped(capsys, command, "--help")


def test_help_of_training_is_one_screen_and_all_of_it_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "train", "demo", "--help")
    assert len(text.splitlines()) <= 24
    assert re.findall(r"--[\w-]+", text)[:6] == ["--out", "--steps", "--dataset", "--device", "--resume", "--model"]
    groups = [row.split()[0] for row in text.splitlines() if " flags: " in row]
    assert groups == ["model", "codec", "data", "training"]
    everything = helped(capsys, "train", "demo", "--help-all")
    assert [line.strip() for line in everything.splitlines() if line.strip() in groups] == groups
    assert all(f"--{name.replace('_', '-')}" in everything for name in flags())
    listed = helped(capsys, "train", "--help")
    assert all(name in listed for name in PRESETS)
    assert helped(capsys, "train") == listed


def flags() -> set[str]:
    """The flags of a DKM's training that stand for a field of the run."""
    names = {name.split(".")[-1] for name in flat(to_dict(PRESETS["demo"][1]))}
    return names - {"kind", *FROM_DATA}


def test_flags_and_presets_are_few() -> None:
    own = {field.name for field in dataclasses.fields(Train)} - {"config"}
    assert len(flags() | own) <= 40
    assert len(PRESETS) <= 11


def test_every_flag_is_set_by_a_preset_or_taught() -> None:
    """By a preset that differs in it from the defaults, or by a page or the paper's list."""
    usual = flat(to_dict(RunConfig()))
    runs = [flat(to_dict(config)) for _, config in PRESETS.values()]
    set_by_one = {name.split(".")[-1] for run in runs for name, value in run.items() if value != usual.get(name)}
    root = Path(__file__).parents[1]
    pages = [
        root / "README.md",
        root / "PAPER.md",
        *(root / "docs").rglob("*.md"),
        *(root / "benchmarks").glob("*.py"),
    ]
    text = " ".join(page.read_text() for page in pages)
    taught = {name for name in flags() if re.search(rf"--{name.replace('_', '-')}\b|\b{name} ?=", text)}
    assert flags() - set_by_one - taught == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "command: expected one of .*, got 'trian'; did you mean 'train'"),
        (["train", "dmo"], "preset: expected one of .*, got dmo; did you mean 'demo'"),
        (["train", "--resume"], "--resume: expected a run's folder"),
        (["train", "--resume", "nowhere"], "nowhere: no run to resume; expected a run's folder"),
        (["train", "demo", "--stps", "3"], "^kanerva: .*--stps.*--steps.*--help-all"),
        (["train", "demo", "--image", "1", "8", "8"], "--image"),
        (["train", "demo", "--model"], "--model: expected the name of a model"),
        (["train", "demo", "--model", "dkn"], "--model: expected one of .*, got 'dkn'"),
        (["train", "demo", "--model", "hopfield"], "--model: expected one of"),
        (["train", "demo", "--lr", "inf"], "lr: expected 0 or more and finite, got inf"),
        (["train", "demo", "--lr", "fast"], "--lr: .*'fast'"),
        (["train", "demo", "--out", __file__], "expected a folder, or a place to make one, but"),
        (["train", "demo", "--device", "gpu"], "device: expected auto, cpu, cuda"),
        (["train", "demo", "--compute", "triton", "--device", "cpu"], "triton cannot be used here"),
        (["evaluate", "omniglot", "--write-noise", "0"], "write_noise: expected"),
        (["evaluate", "nearest", "--dataset", "glyphs", "--block", "3"], "--block.*: expected a DKM"),
        (["evaluate", "nowhere.safetensors"], "nowhere.safetensors: no such file"),
        (["evaluate", str(Path(__file__).parent)], "is not the folder of a run, or nothing was saved there yet"),
        (["data", "--dataset", "glyfs"], "did you mean 'glyphs'?"),
        (["experiment", "basins", "--sed", "1"], "--sed.*--seed"),
        (["experiment", "basins", "--checkpoint", "nowhere"], "nowhere: no such checkpoint or run; pretrained: "),
        (["data", "--dataset", "omniglot", "--data-dir", "nowhere"], "images_background.zip"),
    ],
    ids=str,
)
def test_mistakes_are_answered(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(message, refused(capsys, *arguments))


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_is_answered_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DataConfig, "load", interrupt)
    with pytest.raises(SystemExit) as end:
        main(["data"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "kanerva: interrupted\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out of memory (MemoryError); make smaller: --size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory\nat frame 0"), "out of memory (Default"),
        (
            torch.OutOfMemoryError("CUDA out of memory."),
            "out of memory (CUDA out of memory.); make smaller: --size",
        ),
        (KeyError("x"), "KeyError: 'x'; this was not foreseen: KANERVA_TRACEBACK=1 shows where it happened"),
    ],
    ids=str,
)
def test_any_error_is_one_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(DataConfig, "load", fail)
    assert refused(capsys, "data").startswith(f"kanerva: {message}")
    monkeypatch.setenv("KANERVA_TRACEBACK", "1")
    assert "Traceback" in refused(capsys, "data")


@pytest.mark.parametrize(("number", "told"), [(errno.EPIPE, 1), (errno.ENOSPC, "kanerva: full")])
def test_what_cannot_be_printed_ends_in_order(
    number: int, told: int | str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise OSError(number, "full")

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == told
    assert capsys.readouterr().err == ""


def test_a_run_that_is_not_evaluated_says_how_it_ended(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    command = ["train", "demo", *flags_for(pictures, folder), "--split", "train+validation"]
    ending = rf"step 2: \d+\.\d\d nats per training image; {re.escape(str(folder))}/last.safetensors\n"
    assert re.fullmatch(ending, said(capsys, *command))
    assert re.fullmatch(ending, said(capsys, "train", "--resume", str(folder)))  # nothing is left to do
    assert "holds a run already" in refused(capsys, *command)
    (folder / "metrics.jsonl").unlink()
    assert said(capsys, *command, "--resume") == f"step 2; {folder}/last.safetensors\n"


def test_only_the_first_process_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("kanerva.training.loop.train", lambda *_: None)
    monkeypatch.setenv("RANK", "1")
    assert said(capsys, "train", "demo") == ""


def test_resume_needs_no_other_flag(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The config is that of the run's folder; flags change what may change."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    assert parse(["--resume", str(folder)]) == Train(saved_config(folder), folder, resume=True)
    assert parse(["demo", "--resume"]) == Train(PRESETS["demo"][1], Path("runs/demo"), resume=True)
    said(capsys, "train", "--resume", str(folder), "--steps", "8")
    about = json.loads(said(capsys, "info", str(folder), "--json"))
    assert about["step"] == 8
    assert about["run"]["model"]["rows"] == 4
    answer = refused(capsys, "train", "--resume", str(folder), "--rows", "5", "--lr", "0.5")
    assert "started with another config: model.rows = 5 (was 4), train.lr = 0.5 (was 0.001)" in answer


def test_another_kind_of_model_and_other_images_have_their_own_defaults() -> None:
    train = parse(["omniglot", "--model", "km", "--steps", "20000", "--key", "40"])
    assert (train.out, train.config.train.steps) == (Path("runs/omniglot-km"), 20_000)
    assert (train.config.model.kind, train.config.model.rows, train.config.model.key) == ("km", 64, 40)  # type: ignore[attr-defined]
    assert train.config.model.codec == PRESETS["omniglot"][1].model.codec  # type: ignore[attr-defined]
    # no other images have the preset's number of mazes, unless that is asked for
    assert parse(["mazes"]).config.data == DataConfig("mazes", mazes=4_000)
    assert parse(["mazes", "--dataset", "x.npz"]).config.data == DataConfig("x.npz")
    assert parse(["mazes", "--dataset", "x.npz", "--mazes", "5"]).config.data == DataConfig("x.npz", mazes=5)


def test_evaluate_prints_a_score_and_writes_as_it_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["evaluate", str(run), "--images", "100", "--length", "5"]
    text = said(capsys, *flags)
    score, others = (
        json.loads(said(capsys, *flags, "--json", *more))
        for more in ([], ["--block", "5", "--iterations", "2", "--write-noise", "3"])
    )
    assert "predicting the mean image" in text
    assert f"{score['nats']:.2f} ± {score['nats_stderr']:.2f} nats per image" in text
    assert score["images"] >= 100
    assert score["checkpoint"] == str(run)
    assert {"reconstruction", "kl_weights", "autoencoder"} <= set(score)
    assert score["kl_memory"] != others["kl_memory"]
    assert (others["block"], others["iterations"], others["write_noise"]) == (5, 2, 3)


def test_a_script_with_code_of_its_own_finds_the_same_score(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read the checkpoint with safetensors and json alone, and score it in NumPy and plain convolutions."""
    ours = json.loads(said(capsys, "evaluate", str(run), "--images", "4000", "--length", "5", "--json"))
    path = run / "last.safetensors"
    p = {
        k.removeprefix("model."): v.double() for k, v in safetensors.torch.load_file(path).items() if "model." in k
    }
    test = kanerva.data.load(str(run.parent / "bits.npz"), "test").pixels.double()

    def block(h: torch.Tensor, name: str) -> torch.Tensor:
        a = conv2d(relu(h), p[f"{name}.conv1.weight"], p[f"{name}.conv1.bias"], padding=1)
        return h + conv2d(relu(a), p[f"{name}.conv2.weight"], p[f"{name}.conv2.bias"], padding=1)

    def encode(x: torch.Tensor) -> torch.Tensor:
        for i in range(2):
            x = conv2d(relu(x) if i else x, p[f"encoder.down.{i}.weight"], p[f"encoder.down.{i}.bias"], 2, 1)
            x = block(x, f"encoder.blocks.{i}.0")
        return linear(relu(x).flatten(1), p["encoder.out.weight"], p["encoder.out.bias"])

    def decode(z: torch.Tensor) -> torch.Tensor:
        h = linear(z, p["decoder.start.weight"], p["decoder.start.bias"]).reshape(len(z), 4, 2, 2)
        for i in range(2):
            h = relu(block(h, f"decoder.blocks.{i}.0"))
            h = conv_transpose2d(h, p[f"decoder.up.{i}.weight"], p[f"decoder.up.{i}.bias"], 2, 1)
        return h

    random = np.random.default_rng(0)
    names = ("memory.log_noise_var", "log_weight_var", "memory.log_prior_var")
    s2, var_w, var_u = (math.exp(float(p[name])) for name in names)
    K, scores = 4, []
    for _ in range(800):
        x = test[random.integers(0, len(test), 5)]
        z, R, U = encode(x).numpy(), p["memory.R0"].numpy(), var_u * np.eye(K)
        for z_t in z:
            w = np.linalg.solve(R @ R.T + s2 * np.eye(K), R @ z_t)
            gain = U @ w / (w @ U @ w + s2)
            R, U = R + np.outer(gain, z_t - R.T @ w), U - np.outer(gain, U @ w)
        mean = np.linalg.solve(R @ R.T + s2 * np.eye(K), R @ z.T).T
        drawn = mean + math.sqrt(var_w) * random.standard_normal(mean.shape)
        logits = decode(torch.from_numpy(drawn @ R))
        nats = binary_cross_entropy_with_logits(logits, x, reduction="none").sum((1, 2, 3)).numpy()
        kl = 0.5 * (K * (var_w - 1 - math.log(var_w)) + (mean**2).sum(1))
        scores.append((nats + kl).mean())
    error = np.std(scores) / math.sqrt(len(scores))
    assert abs(np.mean(scores) - ours["nats"]) < 4 * math.hypot(error, ours["nats_stderr"])


def test_info(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "presets" in said(capsys, "info")
    system = json.loads(said(capsys, "info", "--json"))
    assert system["torch"] == torch.__version__
    assert system["pretrained"] == ", ".join(checkpoint.shipped())
    # how episodes are written, and why so; of the presets, those that differ from most are named
    assert (
        system["write"]
        .pop("omniglot-record on cpu")
        .startswith("reference (not triton, cpu, gram: it takes iterations = 1")
    )
    assert system["write"] == {"on cpu": "cpu (not triton: the memory is on cpu)"} or torch.cuda.is_available()
    about = json.loads(said(capsys, "info", str(run), "--json"))
    assert about["step"] == 6
    assert about["parameters"] == sum(p.numel() for p in kanerva.load(run / "last.safetensors").parameters())


def test_data_describes_and_previews(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--dataset", str(patterns(tmp_path)), "--preview", str(tmp_path / "sheet.png")]
    about = json.loads(said(capsys, "data", *flags, "--json"))
    assert about["train"]["classes"] == 34
    assert about["test"]["images"] == 64
    assert about["preview"] == flags[-1]
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.size == (64, 96)


def test_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["capacity", "denoising", "sampling", "basins", "fixed-points", "rivals", "inside"]
    text = said(capsys, "experiment")
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  ")] == names
    assert said(capsys, "experiment", "--help") == text
    assert "did you mean 'fixed-points'?" in refused(capsys, "experiment", "fixed-point")


def test_files_cannot_write_to_the_terminal_what_they_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by their names nor by what they say of themselves."""
    whole = storage.load(checkpoint.locate("omniglot"))
    place = tmp_path / "a.safetensors"
    storage.save(place, whole[0], {**whole[1], EVIL: {EVIL: EVIL}, "version": EVIL})
    harmless(said(capsys, "info", str(place)))
    assert json.loads(said(capsys, "info", str(place), "--json"))[EVIL] == {EVIL: EVIL}
    storage.save(place, whole[0], {**whole[1], "model": {**whole[1]["model"], EVIL: 3}})
    harmless(refused(capsys, "recall", str(place), str(tmp_path)))
    safetensors.torch.save_file({EVIL: torch.zeros(1)}, place)
    harmless(refused(capsys, "inspect", str(place)))
    harmless(refused(capsys, "info", f"{EVIL}.safetensors"))
    results = {"experiment": "capacity", "models": [{"name": EVIL, "result": {}}]}
    (tmp_path / "a.json").write_text(json.dumps(results))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kanerva.lab.drawing.draw", lambda made, path: [path.with_name(EVIL)])
        patch.setattr("kanerva.lab.drawing.figures", lambda *_: {})
        harmless(said(capsys, "plot", str(tmp_path / "a.json")))


# images that change, and the best checkpoint of a run


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of pictures of their own."""
    (tmp_path / "pictures").mkdir()
    random = np.random.default_rng(0)
    for number in range(24):
        pixels = (random.random((8, 8)) > 0.6).astype(np.uint8) * 255
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{number:02d}.png")
    return tmp_path / "pictures"


def flags_for(pictures: Path, run: Path, steps: int = 2) -> list[str]:
    flags = f"--dataset {pictures} --binary 0.5 --out {run} --steps {steps} --lengths 4 --batch 2 --rows 4"
    return [*flags.split(), "--filters", "4", "--device", "cpu"]


def test_evaluate_says_what_has_changed(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    said(capsys, "train", "demo", *flags_for(pictures, run))
    score = ["evaluate", str(run), "--images", "40", "--length", "4"]
    assert "changed" not in json.loads(said(capsys, *score, "--json"))
    seen, held = (load(pictures, split, binary=0.5).labels for split in ("train", "validation"))
    (pictures / seen[0]).unlink()
    Image.new("L", (8, 8)).save(pictures / held[0])
    (pictures / seen[1]).rename(pictures / "zz.png")  # which changes nothing, not even the order of the others
    main(score)
    wanted = f"{pictures} has changed since this model was trained: train images: 1 removed"
    assert wanted in capsys.readouterr().err
    assert json.loads(said(capsys, *score, "--json"))["changed"] == wanted
    assert "train images: 1 removed; validation images: 1 changed; go on" in refused(
        capsys, "train", "--resume", str(run)
    )


def test_evaluate_says_what_was_trained_on(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where other pictures are named, whose test images are among those that were trained on."""
    run, other = tmp_path / "run", tmp_path / "other"
    said(capsys, "train", "demo", *flags_for(pictures, run))
    seen = load(pictures, "train", binary=0.5).labels
    for folder in range(12):  # by their names, pictures of sub-folders go elsewhere
        for name in seen[folder::12]:
            (other / f"{folder:02d}").mkdir(parents=True, exist_ok=True)
            shutil.copy(pictures / name, other / f"{folder:02d}" / name)
    number = load(other, "test", binary=0.5).different
    about = json.loads(said(capsys, "evaluate", str(run), "--dataset", str(other), "--images", "40", "--json"))
    assert about["changed"] == f"{number} of {number} different test images of {other} were trained on"


def test_pictures_that_cannot_be_read_are_left_out_and_listed(pictures: Path, tmp_path: Path) -> None:
    (pictures / "03.png").write_text("no picture")
    left_out = "pictures: 1 of 24 files left out: 03.png: expected an image"
    with pytest.warns(UserWarning, match=left_out):
        main(["train", "demo", *flags_for(pictures, tmp_path / "run")])
    command = [sys.executable, "-m", "kanerva", "data", "--dataset", str(pictures), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert re.fullmatch(rf"warning: \S*{left_out}.*\n", done.stderr)
    about = json.loads(done.stdout)
    assert sum(about[split]["images"] for split in ("train", "validation", "test")) == 23


def test_a_preview_takes_the_place_of_no_picture(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data", "--dataset", str(pictures), "--preview"]
    before = (pictures / "00.png").read_bytes()
    assert "00.png, one of those that are read" in refused(capsys, *command, str(pictures / "00.png"))
    assert (pictures / "00.png").read_bytes() == before
    said(capsys, *command, str(pictures / "sheet.png"))
    with pytest.warns(UserWarning, match=r"sheet.png: a sheet of pictures that kanerva wrote"):
        said(capsys, *command, str(pictures / "sheet.png"))


def test_few_test_images_and_a_score_that_rises(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, scores = sys.modules["kanerva.training.loop"], iter((10.0, 90.0))
    real = module.evaluate

    def evaluate(*args: Any, **options: Any) -> Any:
        return dataclasses.replace(real(*args, **options), nats=next(scores), nats_stderr=1.0)

    monkeypatch.setattr(module, "evaluate", evaluate)
    run = tmp_path / "run"
    text = said(capsys, "train", "demo", *flags_for(pictures, run, 4), "--evaluate-every", "2")
    assert text.splitlines() == [
        f"90.00 ± 1.00 nats per validation image; {run}/last.safetensors",
        f"best: 10.00 at step 2; {run}/best.safetensors, which other commands take of this run",
    ]
    number = len(load(pictures, "test", binary=0.5))
    main(["evaluate", str(run), "--images", "40", "--length", "4"])
    output = capsys.readouterr()
    assert f"draws from {number} different test images" in output.out
    assert f"only {number} different images: too few to say much about others" in output.out
    taken = f"{run}/best.safetensors, the checkpoint with the best validation score of the run"
    assert taken in output.err
    assert json.loads(said(capsys, "evaluate", str(run), "--images", "40", "--length", "4", "--json"))["step"] == 2
    assert json.loads(said(capsys, "info", str(run), "--json"))["step"] == 4
    paths = [str(path) for path in sorted(pictures.iterdir())[:3]]
    sheet = ["--steps", "1", "--method", "least-squares", "--out", str(tmp_path / "s.png"), "--device", "cpu"]
    about = json.loads(said(capsys, "recall", str(run), *paths, *sheet, "--json"))
    assert about["recall"] == f"least-squares, 1 steps, {taken}"
    page = Path(said(capsys, "report", str(run)).strip()).read_text()
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", "", page))
    assert "The validation score was best at step 2, 10.00 nats per image, and 90.00 at step 4." in text
    assert "This page is about that checkpoint." in text
    held = len(load(pictures, "validation", binary=0.5))
    assert f"draws from only {held} validation images of pictures" in text
    assert "10.0 ± 1.0" in text
