"""Every measured number in the pages stands in a file of results/, or is marked as published, given or unchecked.

A table, or a paragraph with a decimal, a ± or a share in per cent, is followed by a comment that says where its
numbers come from, its parts divided by semicolons; one inside a paragraph or list is for what stands before it:

    <!-- numbers: results/denoising/omniglot.json#cells; published 77.2; unchecked 90.2 ± 0.2: run was not kept -->

- A file, or what stands below a key of it, at any depth (`#key`, `#key/key below it`). The fewer numbers stand
  there, the surer is the test. Settings of the file count as well.
- `published`, `given` (a setting, a size, a name), `derived` (by arithmetic from checked numbers), `unchecked`: the
  numbers listed after the word, as the page has them, or without a list all of them. The last two words give a
  reason after a colon.
- `commits`: each row ends with the subject of a commit, whose message has the numbers.

In tables all numbers count but those of the head and of the first column; in paragraphs those named above. Code and
links are left out. Tables between `<!-- table: NAME -->` and `<!-- end -->` are written by `make results`.
"""

import functools
import json
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tables

ROOT = Path(__file__).parents[1]
PAGES = {str(page.relative_to(ROOT)): page for page in tables.pages()}
NUMBER = r"−?\d+(?:,\d{3})*(?:\.\d+)?(?:e[−-]\d+)?"
COMMENT = re.compile(r"(?<!`)<!-- numbers: ((?:(?!-->).)*) -->", re.DOTALL)
UNIT = rf"(?:(?= (?:to|and) {NUMBER} (%|ms))| ?(%|ms|µs|kB)(?!\w))?"
TOKEN = re.compile(rf"(?<![\w.,/×·^⁻-])({NUMBER})(?: ± ({NUMBER}))?{UNIT}(?![\w/×·]|[.,]\d)")
NAMES = r"(?:Python|pip|PyTorch|TensorFlow|version|torch|secs?\.|app\.|alg\.)(?: up to)? \d[\d.]*|\d+\.\d+\.\d+"
WORDS = ("published", "given", "derived", "unchecked", "commits")
SCALES = {"": (1.0,), "%": (100.0, 1.0), "ms": (1e3, 1.0), "µs": (1e6,), "kB": (1e-3,)}

Values = list[tuple[float, float | None]]
"""Numbers, each with its standard error where it has one."""


class Number(NamedTuple):
    """A number of a page: as it is written, its standard error if it has one, and its unit."""

    text: str
    error: str
    unit: str

    def __str__(self) -> str:
        return f"{self.text} ± {self.error}".removesuffix(" ± ") + (f" {self.unit}" if self.unit else "")

    def among(self, values: Values) -> bool:
        """Whether a value, rounded to as many places, is the number."""
        return any(
            agrees(self.text, scale * value)
            and (not self.error or (error is not None and agrees(self.error, scale * error)))
            for scale in SCALES[self.unit]
            for value, error in values
        )


def agrees(text: str, value: float) -> bool:
    """Whether a value is a number as it is written: half of its last place away, or less."""
    digits, _, power = text.replace(",", "").replace("−", "-").partition("e")
    place = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    # half, which float rounding may turn either way
    return abs(value - float(f"{digits}e{power or 0}")) <= place * 0.5000001


class Block(NamedTuple):
    """A table or a paragraph, and what the comment after it says."""

    text: str
    source: str | None


def blocks(page: Path) -> list[Block]:
    """The blocks of a page without code and tables that are written by program."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    parts = [part.strip("\n") for part in re.split(r"\n\s*\n", tables.MARKED.sub("", text)) if part.strip()]
    found = []
    for part, after in pairwise([*parts, ""]):
        said = COMMENT.fullmatch(after.strip())
        *inside, last = COMMENT.split(part)  # text, source, text, source, …, text
        pieces = [*zip(inside[::2], inside[1::2], strict=True), (last, said[1] if said else None)]
        found += [Block(*piece) for piece in pieces if piece[0].strip(" #\n")]
    return found


def every() -> list[Block]:
    return [block for page in PAGES.values() for block in blocks(page) if block.source]


def numbers(text: str) -> list[Number]:
    """The numbers of a block that need a source."""
    table = text.startswith("|")
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "]", text).replace("**", "")
    text = re.sub(NAMES, "", text)
    if table:
        text = "\n".join(row.split("|", 2)[2] for row in text.splitlines()[2:])
    found = [Number(m[1], m[2] or "", m[3] or m[4] or "") for m in TOKEN.finditer(text)]
    return [n for n in found if table or n.error or n.unit == "%" or "." in n.text]


class Source(NamedTuple):
    """What a comment says: where to look, and which numbers need no looking for."""

    files: tuple[str, ...]
    words: dict[str, list[str] | None]
    """The numbers under each word; None: all of the block."""

    @property
    def excused(self) -> list[str]:
        return [text for listed in self.words.values() for text in listed or []]


def source(text: str) -> Source:
    """Read a comment; one that cannot be understood is an error."""
    files, words = list[str](), dict[str, list[str] | None]()
    for part in " ".join(text.split()).split("; "):
        word = re.fullmatch(rf"({'|'.join(WORDS)})([^:]*)(?:: (.+))?", part)
        if re.fullmatch(r"results/\S+?\.json(#.+)?", part):
            files.append(part)
        elif word is None or (word[1] in ("derived", "unchecked") and not word[3]):
            raise ValueError(f"expected a file of results/, or one of {', '.join(WORDS)} with its reason: {part!r}")
        else:
            words[word[1]] = word[2].strip().split(", ") if word[2].strip() else None
    if None in words.values() and (files or len(words) > 1):
        raise ValueError(f"expected a list of numbers after each word, where others are looked for: {text!r}")
    return Source(tuple(files), words)


@functools.cache
def values(files: tuple[str, ...]) -> Values:
    """All numbers of some files, or of what stands below keys of them, and of their settings."""
    found: Values = []
    for file in files:
        path, _, keys = file.partition("#")
        whole = json.loads((ROOT / path).read_text())
        parts = [whole]
        for key in filter(None, keys.split("/")):
            parts = [below for part in parts for below in under(part, key)]
        assert parts, f"{file}: there is no such key"
        for part in [*parts, *(whole[name] for name in ("config", "settings") if name in whole)]:
            found += collect(part)
    return found


def under(node: Any, key: str) -> Iterator[Any]:
    """Whatever stands under a key, at any depth."""
    for name, child in children(node):
        if str(name) == key:
            yield child
        yield from under(child, key)


def children(node: Any) -> list[tuple[Any, Any]]:
    """What a dictionary or list holds, with keys or places."""
    return list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []


def collect(node: Any) -> Iterator[tuple[float, float | None]]:
    """The numbers below a node."""
    if isinstance(node, int | float) and not isinstance(node, bool):
        yield float(node), None
    for name, child in children(node):
        yield from collect(child)
        error = node.get("stderr" if name == "mean" else f"{name}_stderr") if isinstance(node, dict) else None
        both = (child, error) if isinstance(error, list) else ([child], [error])
        yield from ((a, b) for a, b in zip(*both, strict=True) if a is not None and b is not None)


def wrong(block: Block) -> str | None:
    """What is wrong with a block, if anything is."""
    found = numbers(block.text)
    if block.source is None:
        return f"says {', '.join(map(str, found))} without a comment <!-- numbers: … -->" if found else None
    try:
        known = source(block.source)
    except ValueError as error:
        return str(error)
    if None in known.words.values():
        return None
    if stale := [text for text in known.excused if text not in map(str, found)]:
        return f"does not say {', '.join(stale)}, which its comment lists"
    if lost := [file for file in known.files if not (ROOT / file.partition("#")[0]).exists()]:
        return f"names {', '.join(lost)}, which is not there"
    missing = [str(n) for n in found if str(n) not in known.excused and not n.among(values(known.files))]
    return f"says {', '.join(missing)}, not in {', '.join(known.files)}" if missing else None


@pytest.mark.parametrize("page", PAGES)
def test_numbers_of_a_page_stand_in_results(page: str) -> None:
    said = [f"{block.text[:60]!r} {why}" for block in blocks(PAGES[page]) if (why := wrong(block))]
    assert said == [], "\n".join(said)


def test_numbers_of_explorations_stand_in_their_commits() -> None:
    command = ["git", "-C", str(ROOT), "log", "--format=%s%x1f%B%x1e"]
    log = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\x1e")
    messages = dict(entry.strip("\n").split("\x1f", 1) for entry in log if "\x1f" in entry)
    if len(messages) < 200:
        pytest.skip("the history of the project is not here (a shallow clone, or a source distribution)")
    rows = [row for block in every() if block.source == "commits" for row in block.text.splitlines()[2:]]
    assert len(rows) > 40
    for row in rows:
        *cells, subject = (cell.strip() for cell in row.strip("| ").split(" | "))
        said = messages[subject].replace(",", "")
        found = numbers(f"| |\n|---|\n| {' | '.join(cells)} |")
        parts = [part.replace(",", "") for n in found for part in (n.text, n.error) if part]
        lacking = [part for part in parts if not re.search(rf"(?<![\d.]){re.escape(part)}(?![\d]|\.\d)", said)]
        assert lacking == [], row


# What the test itself is worth


def test_a_changed_digit_is_noticed() -> None:
    """Mostly: where a file has many numbers, another of them may happen to be the changed one."""
    tries = []
    for text, comment in every():
        known = source(comment or "")
        for number in (n for n in numbers(text) if known.files and str(n) not in known.excused):
            digits, e, power = number.text.replace(",", "").partition("e")
            places = len(digits.partition(".")[2])
            for step in (10.0**-places, -(10.0**-places)):
                other = number._replace(text=f"{float(digits) + step:.{places}f}{e}{power}")
                tries.append(other.among(values(known.files)))
    assert len(tries) > 100
    assert sum(tries) < 0.2 * len(tries)


def test_the_list_of_unchecked_numbers_grows_no_longer() -> None:
    """Whoever commits the file of a number that is in none takes it from its comment, and makes this less."""
    words = [source(block.source or "").words for block in every()]
    assert sum(len(some["unchecked"] or [0]) for some in words if "unchecked" in some) <= 28


TABLE = """| 12.5 | 99.9 |
|---|---|
| 7.7 | 46.4 ± 0.6, **55.5 %** of `8.8` |

<!-- numbers: results/some.json -->
"""
SOME = {"config": {"flips": [0.15]}, "a": {"wrong": {"mean": 46.44, "stderr": 0.62}, "right": 0.555}, "b": 9.5e-6}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("", "", None),
        ("0.6,", "0.7,", "says 46.4 ± 0.7, not in"),
        ("55.5 %", "55.4 %", "says 55.4 %, not in"),
        ("55.5 %", "55.5", "says 55.5, not in"),
        ("55.5 %", "1e-5", None),
        ("json -->", "json; published 46.4 -->", "does not say 46.4, which its comment lists"),
        ("some.json", "other.json", "names results/other.json, which is not there"),
        ("json -->", "json#a/wrong -->", "says 55.5 %, not in"),
        ("results/some.json", "unchecked", "expected a file of results/, or one of published"),
        ("results/some.json", "unchecked: it was not kept", None),
        ("<!-- numbers: results/some.json -->", "", "says 46.4 ± 0.6, 55.5 % without a comment"),
    ],
)
def test_what_is_noticed(
    old: str, new: str, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a page with one table, beside a file of results."""
    monkeypatch.setattr("test_numbers.ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "some.json").write_text(json.dumps(SOME))
    values.cache_clear()
    (tmp_path / "page.md").write_text(TABLE.replace(old, new) if old else TABLE)
    (said,) = map(wrong, blocks(tmp_path / "page.md"))
    assert said is None if why is None else why in (said or "")


# What program writes


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_those_of_results_and_links_lead_somewhere(page: str) -> None:
    """`make results` writes the tables."""
    text = PAGES[page].read_text()
    assert tables.filled(text) == text
    links = re.findall(r"\]\(([^)#\s]*results[^)#\s]*)\)", text)
    assert [link for link in links if not (PAGES[page].parent / link).exists()] == []


def test_a_score_that_is_missing_is_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert {cell for row in tables.scores().text().rows for cell in row[1:]} == {"–", ""}


def test_results_hold_the_pictures_that_pages_show() -> None:
    """And no others; `kanerva plot` draws them from their files."""
    there = {path for path in (ROOT / "results").rglob("*") if path.suffix in (".png", ".svg")}
    assert there == tables.shown_pictures()
    assert {path for path, _ in tables.figures()} <= there
