"""The README's examples run as they stand and do what they say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kanerva import DKM, PRESETS, DKMConfig, MemoryState, memory
from kanerva.commands import parse
from kanerva.fields import to_dict

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_memory_in_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (text for text in EXAMPLES if "memory.prior" in text)
    exec(example, {})
    cue, found = (float(x) for x in re.findall(r"tensor\((\S+)\)", capsys.readouterr().out))
    said = re.search(r"of (0\.\d\d) for the cues and (0\.\d\d) for what", README)
    assert said
    # the printed digits; another version of torch may draw other patterns
    assert cue == pytest.approx(float(said[1]), abs=0.03)
    assert found == pytest.approx(float(said[2]), abs=0.03)
    assert len([line for line in example.splitlines() if line.strip()]) == 10


def test_the_library_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an untrained model in the place of the demo's."""
    (example,) = (text for text in EXAMPLES if 'kanerva.load("runs/demo")' in text)
    monkeypatch.chdir(tmp_path)
    DKM(DKMConfig()).save("runs/demo/last.safetensors")
    scope: dict[str, Any] = {}
    exec(example, scope)
    assert scope["found"].x.shape == (15, 1, 24, 1, 28, 28)
    assert scope["drawn"].x.shape == (15, 1, 8, 1, 28, 28)
    assert isinstance(scope["state"], MemoryState)


def test_the_shipped_model_needs_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    """On glyphs, which it has never seen: descent beats the paper's recall by far, and fills in a lost half."""
    (example,) = (text for text in EXAMPLES if 'kanerva.load("omniglot")' in text)
    exec(example, {})
    usual, descent, half = (float(x) for x in re.findall(r"tensor\((\S+)\)", capsys.readouterr().out))
    assert descent < usual / 2
    assert half < 20


def test_every_function_of_the_memory_is_in_the_table() -> None:
    public = [name for name, f in vars(memory).items() if callable(f) and f.__module__ == memory.__name__]
    functions = [name for name in public if name[0].islower()]
    assert len(functions) == 24
    assert [name for name in functions if f"`{name}(" not in README] == []


def test_every_command_shown_parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags and presets in the README exist; a run to resume is there."""
    monkeypatch.chdir(tmp_path)
    Path("runs/again").mkdir(parents=True)
    Path("runs/again/config.json").write_text(json.dumps(to_dict(PRESETS["demo"][1])))
    commands = re.findall(r"^kanerva (\w+.*?)(?:  +#.*)?$", README, re.MULTILINE) + re.findall(
        r"`kanerva (train \S+ --.*?)`", README
    )
    assert len(commands) >= 9
    for command in commands:
        name, *arguments = command.split()
        if "--help" not in arguments:
            parse(name, arguments)
