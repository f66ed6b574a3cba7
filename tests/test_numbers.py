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
NUMBER = r"−?\d+(?:,\d{3})*(?:\.\d+)?(?:e[−-]\d+)?"
COMMENT = re.compile(r"(?<!`)<!-- numbers: ((?:(?!-->).)*) -->", re.DOTALL)
UNIT = rf"(?:(?= (?:to|and) {NUMBER} (%|ms))| ?(%|ms|µs|kB)(?!\w))?"
TOKEN = re.compile(rf"(?<![\w.,/×·^⁻-])({NUMBER})(?: ± ({NUMBER}))?{UNIT}(?![\w/×·]|[.,]\d)")
NAMES = re.compile(
    r"(?:Python|PyTorch|TensorFlow|version|torch|secs?\.|app\.|alg\.)(?: up to)? \d[\d.]*|\d+\.\d+\.\d+"
)
WORDS = ("published", "given", "derived", "unchecked", "commits")
SCALES = {"": (1.0,), "%": (100.0, 1.0), "ms": (1e3, 1.0), "µs": (1e6,), "kB": (1e-3,)}


class Number(NamedTuple):
    """A number of a page: as it is written, its standard error if it has one, and its unit."""

    text: str
    error: str
    unit: str

    def __str__(self) -> str:
        return f"{self.text} ± {self.error}".removesuffix(" ± ") + (f" {self.unit}" if self.unit else "")


class Block(NamedTuple):
    """A table or a paragraph, and what follows it."""

    page: str
    text: str
    source: str | None
    """What its comment says."""

    @property
    def is_table(self) -> bool:
        return self.text.startswith("|")


def blocks(page: Path) -> list[Block]:
    """The blocks of a page without code and tables that are written by program."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = tables.MARKED.sub("", text)
    parts = [part.strip("\n") for part in re.split(r"\n\s*\n", text) if part.strip()]
    found = []
    for part, after in pairwise([*parts, ""]):
        said = COMMENT.fullmatch(after.strip())
        *inside, last = COMMENT.split(part)  # text, source, text, source, …, text
        pieces = [*zip(inside[::2], inside[1::2], strict=True), (last, said[1] if said else None)]
        found += [Block(str(page.relative_to(ROOT)), *piece) for piece in pieces if piece[0].strip(" #\n")]
    return found


def numbers(block: Block) -> list[Number]:
    """The numbers of a block that need a source."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "]", block.text).replace("**", "")
    text = NAMES.sub("", text)
    if block.is_table:
        rows = text.splitlines()[2:]
        text = "\n".join(row.split("|", 2)[2] for row in rows)
    found = [Number(m[1], m[2] or "", m[3] or m[4] or "") for m in TOKEN.finditer(text)]
    return [n for n in found if block.is_table or n.error or n.unit == "%" or "." in n.text]


class Source(NamedTuple):
    """What a comment says: where to look, and which numbers need no looking for."""

    files: list[str]
    words: dict[str, list[str] | None]
    """The numbers under each word; None: all of the block."""
    reasons: list[str]

    @property
    def all_of_it(self) -> bool:
        return None in self.words.values()


def source(text: str) -> Source:
    """Read a comment; one that cannot be understood is an error."""
    files, words, reasons = [], {}, []
    for part in " ".join(text.split()).split("; "):
        word = re.fullmatch(rf"({'|'.join(WORDS)})([^:]*)(?:: (.+))?", part)
        if re.fullmatch(r"results/\S+?\.json(#.+)?", part):
            files.append(part)
        elif word is None or (word[1] in ("derived", "unchecked") and not word[3]):
            raise ValueError(f"expected a file of results/, or one of {', '.join(WORDS)} with its reason: {part!r}")
        else:
            words[word[1]] = word[2].strip().split(", ") if word[2].strip() else None
            reasons += [word[3]] if word[3] else []
    if None in words.values() and (files or len(words) > 1):
        raise ValueError(f"expected a list of numbers after each word, where others are looked for: {text!r}")
    return Source(files, words, reasons)


class Pool(NamedTuple):
    """What a number may be found among: numbers, and means with their standard errors."""

    values: list[float]
    pairs: list[tuple[float, float]]

    def has(self, number: Number) -> bool:
        """Whether a value, rounded to as many places, is the number."""
        if number.error:
            return any(
                agrees(number.text, s * mean) and agrees(number.error, s * error)
                for s in SCALES[number.unit]
                for mean, error in self.pairs
            )
        return any(agrees(number.text, s * value) for s in SCALES[number.unit] for value in self.values)


def agrees(text: str, value: float) -> bool:
    """Whether a value is a number as it is written: half of its last place away, or less."""
    digits, _, power = text.replace(",", "").replace("−", "-").partition("e")
    place = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return (
        abs(value - float(f"{digits}e{power or 0}")) <= place * 0.5000001
    )  # which float rounding may turn either way


@functools.cache
def pool(files: tuple[str, ...]) -> Pool:
    """All numbers of some files, or of what stands below keys of them."""
    found = Pool([], [])
    for file in files:
        path, _, keys = file.partition("#")
        whole = json.loads((ROOT / path).read_text())
        parts = [whole]
        for key in filter(None, keys.split("/")):
            parts = [below for part in parts for below in under(part, key)]
        assert parts, f"{file}: there is no such key"
        for part in [*parts, *(whole[name] for name in ("config", "settings") if name in whole)]:
            collect(part, found)
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


def collect(node: Any, found: Pool) -> None:
    """Add the numbers below a node."""
    if isinstance(node, int | float) and not isinstance(node, bool):
        found.values.append(float(node))
    for name, child in children(node):
        error = node.get("stderr" if name == "mean" else f"{name}_stderr") if isinstance(node, dict) else None
        both = (child, error) if isinstance(error, list) else ([child], [error])
        found.pairs.extend((a, b) for a, b in zip(*both, strict=True) if a is not None and b is not None)
        collect(child, found)


def wrong(block: Block) -> str | None:
    """What is wrong with a block, if anything is."""
    found = numbers(block)
    if not found and block.source is None:
        return None
    if block.source is None:
        return f"says {', '.join(map(str, found))} without a comment <!-- numbers: … -->"
    try:
        known = source(block.source)
    except ValueError as error:
        return str(error)
    if known.all_of_it:
        return None
    excused = [text for listed in known.words.values() for text in listed or []]
    written = [str(number) for number in found]
    if stale := [text for text in excused if text not in written]:
        return f"does not say {', '.join(stale)}, which its comment lists"
    if lost := [file for file in known.files if not (ROOT / file.partition("#")[0]).exists()]:
        return f"names {', '.join(lost)}, which is not there"
    values = pool(tuple(known.files))
    missing = [str(n) for n in found if str(n) not in excused and not values.has(n)]
    return f"says {', '.join(missing)}, not in {', '.join(known.files)}" if missing else None


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_of_a_page_stand_in_results(page: Path) -> None:
    said = [f"{block.page}: {block.text[:60]!r} {why}" for block in blocks(page) if (why := wrong(block))]
    assert said == [], "\n".join(said)


# Explorations


@functools.cache
def messages() -> dict[str, str]:
    """The messages of all commits by their subjects; none where there is no history."""
    command = ["git", "-C", str(ROOT), "log", "--format=%s%x1f%B%x1e"]
    try:
        log = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(entry.strip("\n").split("\x1f", 1) for entry in log.split("\x1e") if "\x1f" in entry)


def stated(row: str) -> list[str]:
    """What a row of explorations says and its commit does not."""
    *cells, subject = (cell.strip() for cell in row.strip("| ").split(" | "))
    found = numbers(Block("", f"| |\n|---|\n| {' | '.join(cells)} |", None))
    said = messages().get(subject, "").replace(",", "")
    parts = [part.replace(",", "") for n in found for part in (n.text, n.error) if part]
    return [part for part in parts if not re.search(rf"(?<![\d.]){re.escape(part)}(?![\d]|\.\d)", said)]


def test_numbers_of_explorations_stand_in_their_commits() -> None:
    if len(messages()) < 200:
        pytest.skip("the history of the project is not here (a shallow clone, or a source distribution)")
    rows = [
        row
        for page in tables.pages()
        for block in blocks(page)
        if block.source == "commits"
        for row in block.text.splitlines()[2:]
    ]
    assert len(rows) > 40
    assert {row[:50]: lacking for row in rows if (lacking := stated(row))} == {}
    subjects = {row.strip("| ").split(" | ")[-1] for row in rows}
    assert subjects - set(messages()) == set()


# What the test itself is worth


def changed(number: Number) -> list[Number]:
    """The number with its last digit one more and one less."""
    digits, e, power = number.text.replace(",", "").partition("e")
    places = len(digits.partition(".")[2])
    step = 10.0**-places
    return [number._replace(text=f"{float(digits) + way * step:.{places}f}{e}{power}") for way in (1, -1)]


def looked_for() -> Iterator[tuple[Number, Pool]]:
    """The numbers of all pages that are looked for, with what they are looked for in."""
    for block in (block for page in tables.pages() for block in blocks(page) if block.source):
        known = source(block.source or "")
        excused = [text for listed in known.words.values() for text in listed or []]
        yield from ((n, pool(tuple(known.files))) for n in numbers(block) if known.files and str(n) not in excused)


def test_a_changed_digit_is_noticed() -> None:
    """Mostly: where a file has many numbers, another of them may happen to be the changed one."""
    tries = [found.has(other) for number, found in looked_for() for other in changed(number)]
    assert len(tries) > 100
    assert sum(tries) < 0.2 * len(tries)


def test_the_list_of_unchecked_numbers_grows_no_longer() -> None:
    """Whoever commits the file of a number that is in none takes it from its comment, and makes this less."""
    every = [source(block.source).words for page in tables.pages() for block in blocks(page) if block.source]
    assert sum(len(words["unchecked"] or [0]) for words in every if "unchecked" in words) <= 28


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with a table and its file of results."""
    monkeypatch.setattr("test_numbers.ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    found = {
        "config": {"flips": [0.15]},
        "a": {"wrong": {"mean": 46.44, "stderr": 0.62}, "right": 0.555},
        "b": 9.5e-6,
    }
    (tmp_path / "results" / "some.json").write_text(json.dumps(found))
    pool.cache_clear()
    return tmp_path / "page.md"


TABLE = """| 12.5 | 99.9 |
|---|---|
| 7.7 | 46.4 ± 0.6, **55.5 %** of `8.8` |

<!-- numbers: results/some.json -->
"""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("", "", None),
        ("46.4", "46.5", "says 46.5 ± 0.6, not in results/some.json"),
        ("0.6,", "0.7,", "says 46.4 ± 0.7, not in"),
        ("55.5 %", "55.4 %", "says 55.4 %, not in"),
        ("55.5 %", "55.5", "says 55.5, not in"),
        ("55.5 %", "15 %", None),
        ("55.5 %", "1e-5", None),
        ("55.5 %", "2e-5", "says 2e-5, not in"),
        ("55.5 %", "77.2", "says 77.2, not in"),
        ("json -->", "json; published 46.4 ± 0.6 -->", None),
        ("json -->", "json; published 46.4 -->", "does not say 46.4, which its comment lists"),
        ("some.json", "other.json", "names results/other.json, which is not there"),
        ("json -->", "json#a -->", None),
        ("json -->", "json#a/wrong -->", "says 55.5 %, not in"),
        ("json -->", "json; given -->", "expected a list of numbers after each word"),
        ("results/some.json", "unchecked", "expected a file of results/, or one of published"),
        ("results/some.json", "unchecked: it was not kept", None),
        ("<!-- numbers: results/some.json -->", "", "says 46.4 ± 0.6, 55.5 % without a comment"),
    ],
)
def test_what_is_noticed(old: str, new: str, why: str | None, page: Path) -> None:
    page.write_text(TABLE.replace(old, new) if old else TABLE)
    (found,) = blocks(page)
    said = wrong(found)
    assert said is None if why is None else why in (said or "")


def test_a_comment_inside_a_paragraph_is_for_what_stands_before_it(page: Path) -> None:
    page.write_text("It has 55.5 %. <!-- numbers: results/some.json -->\nThe paper: 77.2, in 3 steps.\n")
    first, last = blocks(page)
    assert wrong(first) is None
    assert wrong(last) == "says 77.2 without a comment <!-- numbers: … -->"


# What program writes


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_those_of_results(page: Path) -> None:
    """`make results` writes them."""
    assert tables.filled(page.read_text()) == page.read_text()


def test_a_score_that_is_missing_is_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert {cell for row in tables.scores().text().rows for cell in row[1:]} == {"–", ""}
    (tmp_path / "results" / "evaluation").mkdir(parents=True)
    score = {
        "nats": 52.46,
        "nats_stderr": 0.127,
        "kl_memory": 12.16,
        "new": {"mean": 99.4, "stderr": 0.52},
        "step": 9,
    }
    (tmp_path / "results" / "evaluation" / "omniglot.json").write_text(json.dumps(score))
    assert tables.scores().text().rows[0][1:] == ["52.46 ± 0.13", "12.16", "64.62", "99.40 ± 0.52", "–", "9", ""]


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_results_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*results[^)#\s]*)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_results_hold_the_pictures_that_pages_show() -> None:
    """And no others; `kanerva plot` draws them from their files."""
    there = {path for path in (ROOT / "results").rglob("*") if path.suffix in (".png", ".svg")}
    assert there == tables.shown_pictures()
    drawn = [path.relative_to(ROOT / "results").as_posix() for path, _ in tables.figures()]
    assert {"denoising/omniglot-pictures.png", "inside/omniglot-picture.png"} <= set(drawn)
