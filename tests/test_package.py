"""The package as it is imported: light until something is used, and complete then."""

import itertools
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kanerva
from kanerva import cli

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["experiment"], ["experiment", "--help"]], ids=str
)
def test_help_imports_no_torch(arguments: list[str]) -> None:
    code = (
        f"import sys, kanerva; from kanerva.cli import main; main({arguments!r}); "
        "print([m for m in sys.modules if m in ('torch', 'numpy', 'matplotlib', 'tyro')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_files_are_there_when_they_are_used() -> None:
    code = "import kanerva; print(kanerva.data.load.__name__, kanerva.MemoryState is kanerva.memory.MemoryState)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["load", "True"]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = kanerva.nothing


def test_every_folder_lists_its_files() -> None:
    for start in Path(kanerva.__file__).parent.rglob("*/__init__.py"):
        said = start.read_text().replace("-", "_")
        files = {path.stem for path in start.parent.glob("*.py")} - {"__init__"}
        assert [name for name in files if not re.search(rf"\b{name}\b", said)] == [], start


def test_the_core_needs_no_extra() -> None:
    """With the modules of all extras missing, and what they bring along."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {extra: [re.split("[>;]", line)[0] for line in lines] for extra, lines in extras.items()}
    assert sorted(names["app"]) == sorted(cli.APP)
    missing = [name.replace("scikit-learn", "sklearn") for name in itertools.chain(*names.values())]
    subprocess.run([sys.executable, ROOT / "tests/bare.py", *missing, "rich", "platformdirs"], check=True)


def test_configs_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(kanerva.TrainConfig(steps=3))) == kanerva.TrainConfig(steps=3)


def test_one_version_everywhere() -> None:
    released = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released
    assert released[1] in ("Unreleased", kanerva.__version__)
    assert f"\nversion: {kanerva.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_an_index_shows_the_readme_without_broken_links() -> None:
    """By the substitutions of pyproject.toml: relative links and images become text, others stay."""
    config, readme = (ROOT / "pyproject.toml").read_text(), (ROOT / "README.md").read_text()
    rules = re.findall(r"\{ pattern = '(.+?)', replacement = '(.+?)' \}", config)
    assert len(rules) == 2
    shown = f"{readme} ![a](b.png) [c](d.md#e) [f](https://g) [![h](i.svg)](j)"
    for pattern, replacement in rules:
        shown = re.sub(pattern, replacement, shown)
    assert [link for link in re.findall(r"\]\(([^)]+)\)", shown) if not link.startswith("http")] == []
    assert shown.count("](http") == readme.count("](http") + 1
