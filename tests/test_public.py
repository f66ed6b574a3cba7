"""The public names, in one list: what is not on it may change at any time."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import kanerva

ROOT = Path(__file__).parents[1]
PACKAGE = Path(kanerva.__file__).parent

PUBLIC = {
    "kanerva": """
        __version__ create data deep_checks evaluate kernels load memory nn train MODELS PRESETS
        CodecConfig DKM DKMConfig DataConfig MemoryState Model Recall RunConfig Score Terms TrainConfig""",
    "kanerva.memory": """
        absorb address complete condition drift energy forget frame infer inverse kl_memory kl_update kl_weights
        predict prior read sample span update write Faded Frame Inverse MemoryState Weights""",
    "kanerva.kernels": "inverse pick store write Stored",
    "kanerva.nn": "Contents Memory Prediction Reader Stream Writing",
    "kanerva.data": "augment block episodes flips half load mirror noise salt_and_pepper ClassImages Cue",
    "kanerva.models": """
        create load read MODELS BaseConfig Checkpoint CodecModel CodecModelConfig DKM DKMConfig Model Recall Terms
        DNC GPM Hopfield KM Nearest VAE""",
    "kanerva.recall": "watching METHODS Recall Snapshot StoredImages Watch",
    "kanerva.distributed": "condition",
}
NAMES = [(storey, name) for storey, names in PUBLIC.items() for name in names.split()]


@pytest.mark.parametrize("storey", PUBLIC)
def test_a_storey_exports_its_public_names(storey: str) -> None:
    module = importlib.import_module(storey)
    assert sorted(module.__all__) == sorted(PUBLIC[storey].split())
    scope: dict[str, object] = {}
    exec(f"from {storey} import *", scope)
    assert all(scope[name] is getattr(module, name) for name in module.__all__)
    assert set(module.__all__) <= set(dir(module))


def test_nothing_else_is_exported() -> None:
    exporting = [path for path in PACKAGE.rglob("*.py") if re.search(r"^__all__\b", path.read_text(), re.MULTILINE)]
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in exporting}
    assert {name.removesuffix(".__init__") for name in names} == set(PUBLIC)


def test_a_name_means_one_thing_and_says_what() -> None:
    """A name of the root is a short way to that of a storey; only `load` means two: a model, and images."""
    found: dict[str, set[object]] = {}
    for storey, name in NAMES:
        thing = getattr(importlib.import_module(storey), name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{storey}.{name}"
        found.setdefault(name, set()).add(id(thing))
    short = {name for storey, name in NAMES if storey == "kanerva"}
    twice = {name for name, things in found.items() if len(things) > 1 and name in short}
    assert twice == {"load"}


def test_pages_use_public_names_alone() -> None:
    """In their blocks of Python, and what the API reference shows by its path."""
    used: set[str] = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text("utf-8")
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kanerva"):
                    used |= {f"{node.module}.{alias.name}" for alias in node.names}
                if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("kanerva."):
                    used.add(ast.unparse(node))
    known = {f"{storey}.{name}" for storey, name in NAMES} | set(PUBLIC)
    assert len(used) > 15
    # what is below a public class, such as kanerva.nn.Memory.write, is public too
    assert [name for name in used if name not in known and name.rpartition(".")[0] not in known - set(PUBLIC)] == []
