"""What README and the documentation show works: code runs, commands parse, links lead somewhere, the site builds.

A block of Python runs as it stands, after those before it on its page. What it prints is what a block of `text`
after it says. With `<!-- not run: REASON -->` before it, it is only compiled. Arguments of commands are parsed.
"""

import ast
import contextlib
import functools
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

from kanerva import DKM, PRESETS, DKMConfig, lab, memory
from kanerva.app import commands, train
from kanerva.cli import COMMANDS, main
from kanerva.lab.runner import flags
from kanerva.support.configs import to_dict
from kanerva.support.tensors import save
from test_public import NAMES

pytestmark = pytest.mark.usefixtures("no_shape_checks")

ROOT = Path(__file__).parents[1]
PAGES = {str(path.relative_to(ROOT)): path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}
FENCE = re.compile(r"(?:^<!-- not run: (.+?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    not_run: str | None
    """Why it is not run."""


def blocks(name: str) -> list[Block]:
    text = PAGES[name].read_text("utf-8")
    return [
        Block(found[2] or "sh", found[3], text[: found.start(3)].count("\n") + 1, found[1])
        for found in FENCE.finditer(text)
    ]


def having(language: str) -> list[str]:
    return [name for name in PAGES if any(block.language == language for block in blocks(name))]


@pytest.mark.parametrize("name", PAGES)
def test_blocks_are_of_a_kind_that_is_tested(name: str) -> None:
    text = PAGES[name].read_text("utf-8")
    assert {block.language for block in blocks(name)} <= {"python", "sh", "text"}
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(blocks(name))
    assert text.count("<!-- not run") == sum(block.not_run is not None for block in blocks(name))


# Python


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that pages speak of: pictures, and models that have been trained (here they are not)."""
    monkeypatch.chdir(tmp_path)
    Path("my_images").mkdir()
    strokes = np.random.default_rng(0)
    for number in range(40):
        x = np.zeros((28, 28), np.uint8)
        for start in strokes.integers(4, 24, (3, 2)):
            x[start[0], 4 : start[1] + 1] = x[4 : start[0] + 1, start[1]] = 255
        Image.fromarray(x).save(f"my_images/{number}.png")
    for run in ("demo", "mine"):
        DKM(DKMConfig()).save(f"runs/{run}/last.safetensors")


@pytest.mark.usefixtures("workshop")
@pytest.mark.parametrize("name", having("python"))
def test_python_runs_as_it_stands(name: str) -> None:
    shown, scope = blocks(name), {"__name__": "page"}
    needs_packages([block.text for block in shown if block.language == "python" and block.not_run is None])
    for block, after in zip(shown, [*shown[1:], None], strict=True):
        if block.language != "python":
            continue
        code = compile("\n" * (block.line - 1) + block.text, name, "exec")
        if block.not_run is None:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(code, scope)
            if after is not None and after.language == "text":
                alike(said.getvalue(), after.text, f"{name}:{after.line}")


def needs_packages(texts: list[str]) -> None:
    """Skip where something that only the examples need is not installed."""
    for node in ast.walk(ast.parse("\n".join(texts))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for package in {name.split(".")[0] for name in names}:
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed (pip install 'kanerva[examples]')")


def alike(found: str, said: str, where: str) -> None:
    """Compare what was printed with what a page says: words and whole numbers exactly, others within 1 or 5 %."""
    number = re.compile(r"(\d+\.\d+)")
    a, b = number.split(found.strip()), number.split(said.strip())
    assert a[::2] == b[::2], where
    assert [float(x) for x in a[1::2]] == pytest.approx([float(x) for x in b[1::2]], rel=0.05, abs=1), where


def test_a_saved_state_is_loaded_by_another_process(tmp_path: Path) -> None:
    """By the guide's own lines, and with the mark of a memory that has faded."""
    (lines,) = (b.text for b in blocks("docs/guides/layer.md") if 'torch.load("state.pt")' in b.text)
    R0 = torch.eye(2, 3)
    torch.save(R0, tmp_path / "model.pt")
    for state in (memory.prior(R0, 1.0), memory.drift(memory.prior(R0, 1.0), R0, 1.0, 0.9)):
        torch.save(state, tmp_path / "state.pt")
        command = [sys.executable, "-c", f"{lines}\nprint(type(state).__name__, state.R.tolist())"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == f"{type(state).__name__} {R0.tolist()}\n", done.stderr


# Commands


@pytest.mark.usefixtures("workshop")
@pytest.mark.parametrize("name", having("sh"))
def test_commands_parse(name: str) -> None:
    """Also those that are not run: a flag that was renamed is noticed."""
    for block in blocks(name):
        for line in block.text.splitlines() if block.language == "sh" else ():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # for the environment
                words = words[1:]
            if words:
                check(words[words.index("-m") + 1 :] if words[0] == "torchrun" else words, f"{name}: {line}")


def check(words: list[str], where: str) -> None:
    """Raise an error for a command that does not exist, or not like that."""
    match words:
        case ["kanerva", command, *arguments]:
            parsed(command, arguments)
        case ["make", *targets]:
            assert set(targets) <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)), where
        case ["pip", "install", *rest]:
            extras = re.findall(r"\[([\w,]+)\]", " ".join(rest))
            known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
            assert {extra for group in extras for extra in group.split(",")} <= set(known), where
        case ["python", script, *rest]:
            text = (ROOT / script).read_text("utf-8")
            assert all(f'"{word}"' in text for word in rest if word.startswith("--")), where
        case _:
            pytest.fail(f"{where}: a command that no test knows")


def parsed(command: str, arguments: list[str]) -> None:
    """Parse a command of kanerva, and do nothing; a run to resume is there."""
    if "--resume" in arguments:
        folder = Path(arguments[arguments.index("--resume") + 1])
        save(folder / "last.safetensors", {}, {"run": to_dict(PRESETS["demo"][1])})
    if {"--help", "--help-all"} & {*arguments}:
        assert command in COMMANDS
    elif command == "train":
        train.parse(arguments)
    elif command == "experiment":
        tyro.cli(flags(lab.find(arguments[0]), command), args=arguments[1:])
    else:
        idle = functools.wraps(commands.COMMANDS[command])(lambda *_, **__: None)
        tyro.cli(idle, args=arguments)


@pytest.mark.usefixtures("workshop")
@pytest.mark.parametrize("name", PAGES)
def test_commands_within_a_sentence_parse(name: str, known_flags: set[str]) -> None:
    """And a flag that is named alone is one of some command."""
    text = FENCE.sub("", PAGES[name].read_text("utf-8"))
    for code in re.findall(r"`([^`]+)`", text):
        match code.split():
            case ["kanerva", command, *arguments] if command.islower() and not placeholder(arguments):
                assert command in COMMANDS, code
                if arguments:
                    parsed(command, arguments)
            case [word, *_] if re.fullmatch(r"--[a-z][\w-]*", word):
                assert {flag for flag in code.split() if flag.startswith("--")} <= known_flags, code


def placeholder(arguments: list[str]) -> bool:
    """Whether an argument stands for any: PRESET, NAME, or an ellipsis."""
    return any(word in ("NAME", "PRESET", "COMMAND") or "…" in word for word in arguments)


@pytest.fixture(scope="module")
def known_flags() -> set[str]:
    """The flags in the help of every command."""
    asked = [[name, "--help"] for name in commands.COMMANDS]
    asked += [["experiment", name, "--help"] for name in lab.EXPERIMENTS]
    asked += [["train", name, some] for name in PRESETS for some in ("--help", "--help-all")]
    said = io.StringIO()
    for words in asked:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main(words)
    return {*re.findall(r"--[a-z][\w-]*", said.getvalue())}


# Links and the site


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    """In the repository, and in the sdist; the site checks links to places within pages too."""
    project = (ROOT / "pyproject.toml").read_text()
    packed = re.search(r"targets\.sdist\].*?include = \[(.*?)\n\]", project, re.DOTALL)
    assert packed
    included = [ROOT / path.lstrip("/") for path in re.findall(r'"([^"]+)"', packed[1])]
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", PAGES[name].read_text("utf-8")):
        if not link.startswith("http"):
            path = (PAGES[name].parent / link).resolve()
            assert path.exists(), link
            assert any(path.match(str(one)) or path.is_relative_to(one) for one in included), link


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning an error."""
    for package in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers"):
        pytest.importorskip(package, reason=f"{package} is not installed (pip install --group docs)")
    folder = tmp_path_factory.mktemp("site")
    # with --quiet, warnings would not be counted
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # which the theme prints, and nobody here can mend
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """Links may lead away; scripts, styles, fonts and images are in the site."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        text = page.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="?([^"\s>]+)', text)
        loaded += re.findall(r'<link\b(?![^>]*\brel="?(?:canonical|next|prev))[^>]*\bhref="?([^"\s>]+)', text)
        assert [link for link in loaded if re.match(r"(?:https?:)?//", link)] == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:@import\s+|url\()[\"']?(?:https?:)?//", style.read_text("utf-8")) == [], style


def test_the_site_documents_what_is_public(site: Path) -> None:
    text = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    shown = {name.rpartition(".")[2] for name in re.findall(r'id="(kanerva[\w.]*)"', text)}
    plain = {"data", "kernels", "memory", "nn", "MODELS", "PRESETS", "__version__"}  # said in words
    assert {name for _, name in NAMES} - shown - plain == set()
