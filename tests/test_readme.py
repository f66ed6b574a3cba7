"""The README's examples run as they stand and do what they say."""

import re
from pathlib import Path

import pytest

from kanerva import memory

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_memory_in_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    exec(EXAMPLES[0], scope)
    cue, found = (float(x) for x in re.findall(r"tensor\((\S+)\)", capsys.readouterr().out))
    said = re.search(r"of (0\.\d\d) for the cues and (0\.\d\d) for what", README)
    assert said
    # the printed digits; another version of torch may draw other patterns
    assert cue == pytest.approx(float(said[1]), abs=0.03)
    assert found == pytest.approx(float(said[2]), abs=0.03)
    assert len([line for line in EXAMPLES[0].splitlines() if line.strip()]) == 10


def test_every_function_of_the_memory_is_in_the_table() -> None:
    public = [name for name, f in vars(memory).items() if callable(f) and f.__module__ == memory.__name__]
    functions = [name for name in public if name[0].islower()]
    assert len(functions) == 11
    assert [name for name in functions if f"`{name}(" not in README] == []
