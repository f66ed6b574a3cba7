"""PAPER.md lists what the docstrings cite, and what it lists exists."""

import ast
import pkgutil
import re
from pathlib import Path

from kanerva import memory

ROOT = Path(__file__).parents[1]
PAPER = (ROOT / "PAPER.md").read_text()
TAG = re.compile(r"(?:eq\. [\w:-]*\w|alg\. \d|app\. [A-F]\b|sec\. \d(?:\.\d)?|fig\. [\w-]*\w)")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAPER.splitlines() if TAG.match(line[2:])]


def docstrings() -> dict[str, str]:
    """Every docstring of the package, by file and name."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                found[f"{path.name}:{getattr(node, 'name', '')}"] = ast.get_docstring(node) or ""
    return found


def test_every_tag_in_a_docstring_is_listed() -> None:
    cited = {(where, tag) for where, text in docstrings().items() for tag in TAG.findall(text)}
    assert len(cited) > 10
    listed = {row[0] for row in ROWS}
    assert {(where, tag) for where, tag in cited if tag not in listed} == set()


def test_every_function_of_the_memory_cites_the_paper() -> None:
    public = [getattr(memory, name) for name in memory.__all__ if name[0].islower()]
    assert len(public) > 15
    assert [function.__name__ for function in public if not TAG.search(function.__doc__ or "")] == []


def test_what_is_listed_exists() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    for row in ROWS:
        assert len(row) == 5, row
        for name in re.findall(r"`(test_\w+)`", row[3]):
            assert f"def {name}(" in tests, name
        for path in re.findall(r"`(\w+(?:\.\w+)+)`", row[2]):
            pkgutil.resolve_name(f"kanerva.{path}")  # an error where there is none


def test_every_label_of_the_paper_is_listed() -> None:
    """The labels of equations and figures in the paper's source."""
    equations = (
        "read ll elbo dkl_w least_squares marg_M seq_address ll:ae obj prediction T-ll T-vlb ll_t cond_ll B_def"
    )
    wanted = {f"eq. {name}" for name in [*equations.split(), "elbo-alt"]}
    wanted |= {f"fig. {name}" for name in ("gm", "capacity", "omniglot", "dmlab", "gm-app")} | {"alg. 1"}
    wanted |= {f"app. {letter}" for letter in "ABCDEF"}
    assert wanted - {row[0] for row in ROWS} == set()
