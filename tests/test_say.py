"""What is said on the streams, also where nobody listens, and how progress is shown."""

import contextlib
import io
import re
import sys
import time
import warnings
from collections.abc import Callable

import pytest

from kanerva.lab.tables import Table
from kanerva.support import say

# A window's title, a cleared screen, a line of its own, colours in one character, and text from right to left.
EVIL = "\x1b]0;x\x07\x1b[2J\nkanerva: all is well\x9b1m\u202e"


def harmless(text: str) -> None:
    """Check that a text has EVIL in it, as it can be shown."""
    assert not set(text) & set("\x1b\x07\x9b\u202e")
    assert not any(line.startswith("kanerva: all") for line in text.splitlines())
    assert r"\x1b]0;x\x07\x1b[2J\nkanerva: all is well\x9b1m\u202e" in text


class Gone(io.StringIO):
    """A terminal, or a pipe, whose reader has left."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal  # type: ignore[method-assign]

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), Gone(False), Gone(True)], ids=["none", "closed", "pipe", "tty"])
def test_an_error_stream_that_is_gone_stops_nothing(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(say, "FIRST", 0.0)
    say.say("a word")
    with say.progress("work", 3) as work:
        work.update(1, "well")
        say.say("another word")
        work.update(2)
    with say.bar("more", None) as advance:
        advance(1)


def test_a_stream_without_our_characters_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, "ascii"))
    say.prepare()
    print("−3 ± 1, é")
    sys.stdout.flush()
    assert data.getvalue() == b"-3 +- 1, ?\n"


def test_streams_that_were_closed_at_the_start_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    say.prepare()
    for stream in (sys.stdout, sys.stderr):
        assert stream.write("nowhere\n")
        stream.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(say, "FIRST", 0.1)
    monkeypatch.setattr(say, "EVERY", 0.02)


@pytest.mark.usefixtures("impatient")
def test_progress_is_said_off_a_terminal_while_nothing_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with say.progress("work", 1200) as work:
        work.update(7, "well")
        said = wait_for(capsys, lines=2)
    assert all(re.fullmatch(r"work: 7 of 1,200, \d s, (0:\d\d:\d\d left, )?well", line) for line in said)
    assert "left" in said[-1]
    capsys.readouterr()
    with say.bar("more", 9, 1) as advance:
        advance(1)
        assert wait_for(capsys, lines=1)[0].startswith("more: 2 of 9, ")
    with say.bar("no end", None):
        assert re.fullmatch(r"no end: \d s", wait_for(capsys, lines=1)[-1])


def wait_for(capsys: pytest.CaptureFixture[str], lines: int) -> list[str]:
    """At least so many lines of the error stream."""
    said: list[str] = []
    wait(lambda: said.extend(capsys.readouterr().err.splitlines()) or len(said) >= lines)
    return said


@pytest.mark.usefixtures("impatient")
def test_only_the_outer_work_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with say.progress("outer", 2), say.bar("inner", 5) as advance:
        advance(1)
        said = wait_for(capsys, lines=2)
    assert all(line.startswith("outer: 0 of 2, ") for line in said)
    with contextlib.suppress(KeyError), say.progress("failed", 1):
        raise KeyError
    capsys.readouterr()
    with say.progress("next", 1):
        assert wait_for(capsys, lines=1)[0].startswith("next: 0 of 1, ")


def test_a_terminal_gets_a_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(say, "REDRAW", 0.001)
    with say.progress("work", 4) as work:
        work.update(3, "well")
        wait(lambda: re.search("work: 3 of 4, .*well", stream.getvalue()) is not None)
        say.say("a word ±")
        wait(lambda: stream.getvalue().endswith("well"))
    assert "\ra word ±\n" in stream.getvalue()
    assert stream.getvalue().endswith(" \r")


def wait(ready: Callable[[], bool]) -> None:
    for _ in range(1000):
        if ready():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def test_what_a_terminal_obeys_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    harmless(say.printable(f"naïve ± {EVIL}"))
    assert say.printable("naïve ± 日本 🙂") == "naïve ± 日本 🙂"
    for put in (say.say, say.show):
        put("two\nlines\x1b[2J")
        output = capsys.readouterr()
        assert output.out + output.err == "two\nlines\\x1b[2J\n"
    say.prepare()
    harmless(warnings.formatwarning(EVIL, UserWarning, "a.py", 1))
    harmless(Table([EVIL, "number"], [[EVIL, 1.0]]).lines())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(say, "FIRST", 0.0)
        with say.progress(f"reading {EVIL}", 3) as work:
            harmless(work.line())
