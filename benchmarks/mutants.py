"""Change the memory in one place at random, many times, and count how often a test notices: `make mutants`.

Cosmic Ray makes the changes: another operator, a number off by one, a condition turned over. Each is made in a copy
of the project, in which the tests of that file run until one fails. The seed decides which changes are made.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

# how the names of files begin: their tests, without those that are slow and notice little
TARGETS: dict[str, tuple[list[str], str]] = {
    "memory": (["memory", "frame", "linalg", "gradients", "properties"], ""),
    "kernels/cpu.py": (["kernels"], "not triton"),
    "nn.py": (["nn", "layer_oracle"], "not itself and not distributed and not graph"),
}
OPERATORS = re.compile(
    r"core/(ReplaceBinaryOperator_(Add|Sub|Mul|Div)_(Add|Sub|Mul|Div)|Replace(Comparison|Unary)Operator_.*|AddNot|"
    r"NumberReplacer|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr|ReplaceOrWithAnd)"
)
LIMIT = 900
"""Seconds for one run of the tests: a change that makes a loop endless is noticed."""


def edits(source: str) -> list[list[tuple[str, int]]]:
    """For each place that can be changed, the operators that can change it, each with its count of that place."""
    nodes = ast.walk(ast.parse(source))
    notes = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")]
    typed = [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in notes if n is not None]
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for name in filter(OPERATORS.fullmatch, sorted(operator_names())):
        operator = get_operator(name)()
        places = [place for node in ast_nodes(get_ast(source)) for place in operator.mutation_positions(node)]
        for i, (start, _) in enumerate(places):
            if not any(begin <= start < end for begin, end in typed):
                found.setdefault(start, []).append((name, i))
    return list(found.values())


def noticed(root: Path, target: str) -> bool:
    """Whether a test of the target fails."""
    names, chosen = TARGETS[target]
    tests = [str(path) for name in names if (path := root / f"tests/test_{name}.py").exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests, "-k", chosen]
    settings = {"PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        run = subprocess.run(
            command, cwd=root, env=os.environ | settings, timeout=LIMIT, stdout=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=[*TARGETS], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--count", type=int, default=20, help="changes of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the project to change")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, skipped = Path(folder, "project"), shutil.ignore_patterns(".*", "runs", "site", "dist")
        shutil.copytree(options.root, root, ignore=skipped)
        for target in options.targets:
            if noticed(root, target):
                sys.exit(f"{target}: a test fails before anything is changed")
            package = root / "src/kanerva"
            files = [
                path for path in sorted(package.rglob("*.py")) if str(path.relative_to(package)).startswith(target)
            ]
            places = [(path, place) for path in files for place in edits(path.read_text())]
            random.seed(options.seed)
            sample, caught = random.sample(places, min(options.count, len(places))), 0
            for path, place in sample:
                name, occurrence = random.choice(place)
                before = path.read_text()
                after = mutate_code(before, get_operator(name)(), occurrence)
                path.write_text(after)
                caught += (killed := noticed(root, target))
                path.write_text(before)
                for old, new in zip(before.splitlines(), after.splitlines(), strict=True):
                    if old != new and not killed:
                        print(f"{path.name}: {old.strip()}  →  {new.strip()}", flush=True)
            print(f"{target}: {caught} of {len(sample)} changes noticed, of {len(places)} places", flush=True)


if __name__ == "__main__":
    main()
