"""The playground: its server by plain HTTP, and its page in a real browser, where there is one."""

import base64
import contextlib
import http.client
import io
import itertools
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import kanerva
from browser import CHROMIUM, DRIVER, MISSING, Browser, browsing
from kanerva.cli import main
from kanerva.models import checkpoint
from kanerva.recall import frame
from kanerva.recall.watch import watching

server = pytest.importorskip("kanerva.app.play.server", reason="needs kanerva[app]: starlette and uvicorn")
from kanerva.app.play import queue, session  # noqa: E402
from kanerva.app.play.pictures import pack  # noqa: E402
from kanerva.app.play.session import Playable, Sessions  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_shape_checks")


class Visitor:
    """One visitor of a server, with a session of its own."""

    def __init__(self, port: int) -> None:
        self.port, self.id = port, ""
        self.id = self.send("session")[1]["session"]

    def raw(self, path: str, body: bytes = b"{}", **headers: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("POST", path, body, {"X-Session": self.id, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def send(self, job: str, **body: Any) -> tuple[int, Any]:
        """The answer to a job, or the list of its events."""
        status, said = self.raw(f"/api/{job}", json.dumps(body).encode())
        lines = [json.loads(line) for line in said.splitlines()]
        return status, lines[0] if len(lines) == 1 and "event" not in lines[0] else lines

    def ask(self, job: str, **body: Any) -> dict[str, Any]:
        """The last event of a job that must succeed."""
        status, events = self.send(job, **body)
        assert (status, events[-1]["event"]) == (200, "done"), events
        return dict(events[-1])

    def refusal(self, job: str, **body: Any) -> str:
        """What is said of a job that must fail."""
        events = self.send(job, **body)[1]
        return str((events[-1] if isinstance(events, list) else events)["error"])

    def write(self, count: int = 5, seed: int = 0) -> list[str]:
        """Pick and write images; gives them."""
        images = self.ask("pick", set="glyphs", count=count, classes=count, seed=seed)["images"]
        self.ask("write", images=images)
        return list(images)

    @contextmanager
    def searching(self) -> Iterator[http.client.HTTPResponse]:
        """While a search for all that is in a memory goes on; at the end the visitor leaves."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/api/contents", b"{}", {"X-Session": self.id})
        with connection.getresponse() as answer:
            assert json.loads(answer.readline())["event"] == "looking"
            yield answer
        connection.close()


@contextmanager
def serving(playable: list[Playable], host: str = "127.0.0.1") -> Iterator[SimpleNamespace]:
    """A server in a thread, which believes that it listens on `host`."""
    playground = server.Playground(playable)
    running, listener = server.Server(playground, host), server.bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: running.started)
    try:
        yield SimpleNamespace(port=port, playground=playground, running=running, url=f"http://127.0.0.1:{port}/")
    finally:
        running.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def shipped(cache: Path) -> Playable:
    """The pretrained model, on glyphs alone."""
    (found,) = server.gather(["omniglot"])
    return Playable("omniglot", "omniglot", found.model, {"glyphs": found.sets["glyphs"]})


@pytest.fixture(scope="module")
def colour() -> Playable:
    """A small model of colour images, untrained."""
    torch.manual_seed(0)
    codec = {"filters": [4, 4], "style": "silu"}
    model = kanerva.create("dkm", (3, 16, 16), "gaussian", rows=8, code=12, codec=codec)
    return Playable("squares", "squares", model.eval().requires_grad_(False), {})


@pytest.fixture(scope="module")
def place(shipped: Playable, colour: Playable) -> Iterator[SimpleNamespace]:
    with serving([shipped, colour]) as started:
        yield started


@pytest.fixture
def visitor(place: SimpleNamespace) -> Iterator[Visitor]:
    yield Visitor(place.port)
    quiet(place)


def quiet(place: SimpleNamespace) -> None:
    """Let no search go on into the next test."""
    for one in place.playground.sessions.kept.values():
        one.inside.over = True
        one.inside.stop()


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for something that comes when it comes."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched before somebody asks."""
    monkeypatch.setattr(queue, "wanting", lambda session: False)


def tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(base64.b64decode(text))).reshape(1, 28, 28).float() / 255


def stored(count: int) -> tuple[Any, Any]:
    """The pretrained model, and a memory of so many glyphs."""
    model, images = kanerva.load("omniglot"), kanerva.data.load("glyphs", "test")
    x = kanerva.data.episodes(images, 1, count, generator=torch.Generator().manual_seed(0))[0]
    return model, model.write(x).detach()


# Who may ask


def test_the_page_comes_with_its_headers_and_nothing_from_elsewhere(place: SimpleNamespace) -> None:
    weight = 0
    for path, kind in (("/", "text/html"), ("/style.css", "text/css"), ("/play.js", "text/javascript")):
        with closing(http.client.HTTPConnection("127.0.0.1", place.port)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode().replace("http://www.w3.org/2000/svg", "")
        weight += len(body)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert [word for word in ("http://", "https://", "//cdn", "@import") if word in body] == []
    assert weight < 100_000


HERE = (
    ({"Host": "evil.example:80"}, 421),
    ({"Host": "localhost.evil.example"}, 421),
    ({"Host": ""}, 421),
    ({"Host": "LOCALHOST:80"}, 200),
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Origin": "http://localhost:7"}, 200),
    ({"Sec-Fetch-Site": "same-origin"}, 200),
)
ANYWHERE = (
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": ""}, 403),
    ({"Host": "box.example:80", "Origin": "http://box.example:80"}, 200),
    ({}, 200),
)


@pytest.mark.parametrize(("host", "asked"), [("127.0.0.1", HERE), ("0.0.0.0", ANYWHERE)])
def test_only_the_page_of_this_server_may_ask(shipped: Playable, host: str, asked: Any) -> None:
    """Not one whose name was made to point here, nor one that posts: it would drop others' sessions."""
    with serving([shipped], host) as opened:
        visitor = Visitor(opened.port)
        for headers, status in asked:
            for job in ("session", "show"):
                assert visitor.raw(f"/api/{job}", **headers)[0] == status, headers


# What the panels ask for


def test_memories_of_two_visitors_never_mix(place: SimpleNamespace) -> None:
    first, second = Visitor(place.port), Visitor(place.port)
    mine, theirs = first.write(6, seed=1), second.write(3, seed=2)
    assert len(set(mine)) == 6
    answer = first.ask("write", images=mine[:1])
    assert (answer["stored"], answer["rows"]) == ([*mine, mine[0]], 32)
    assert second.ask("show")["stored"] == theirs
    assert [one.ask("contains", image=mine[0])["times"] for one in (first, second)] == [2, 0]
    assert first.ask("clear")["stored"] == []
    assert second.ask("contains", image=theirs[0])["times"] == 1


def test_another_model_has_a_blank_memory_and_its_own_images(visitor: Visitor) -> None:
    visitor.write(2)
    answer = visitor.ask("model", model="squares")
    assert (answer["stored"], answer["rows"]) == ([], 8)
    image = base64.b64encode(bytes(range(256)) * 3).decode()  # every level comes back as it was
    assert visitor.ask("write", images=[image])["stored"] == [image]


@pytest.mark.usefixtures("no_background")
def test_recall_streams_every_step_of_both_methods(visitor: Visitor) -> None:
    images = visitor.write(4)
    cue = visitor.ask("damage", image=images[2], kind="flips", amount=0.05, seed=1)
    assert cue["mask"] is None
    methods = ["least-squares", "descent"]
    _, events = visitor.send("recall", image=cue["image"], methods=methods, steps=6, seed=0)
    early = [e for e in events if e["event"] == "step" and e["early"]]
    assert {e["column"] for e in early} == {1}
    assert [e["step"] for e in early] == [*range(len(early))]
    falling = [e["energy"] for e in early]
    assert falling == sorted(falling, reverse=True)
    # they come before the search: who waits sees something at once
    looking = [i for i, e in enumerate(events) if e["event"] == "looking"]
    assert events.index(early[-1]) < looking[0]
    assert {events[i]["column"] for i in looking} == {1}
    for column in (0, 1):
        steps = [e for e in events if e["event"] == "step" and e["column"] == column and not e["early"]]
        assert [e["step"] for e in steps] == [*range(len(steps))]
        assert steps[0]["image"] == cue["image"]
        assert steps[0]["energy"] > steps[-1]["energy"]
    assert (steps[-1]["image"], steps[-1]["nearest"], steps[-1]["apart"][2]) == (images[2], 2, 0)
    assert [end["certified"] is None for end in events[-1]["columns"]] == [True, False]


def test_steps_are_those_of_the_model(visitor: Visitor) -> None:
    """What the page shows is what the library gives for the same cue."""
    images = visitor.write(4)
    cue = visitor.ask("damage", image=images[0], kind="half", side="left")
    assert base64.b64decode(cue["mask"])[:28] == b"\0" * 14 + b"\xff" * 14
    _, events = visitor.send("recall", image=cue["image"], methods=["cue"], mask=cue["mask"], steps=3)
    model = kanerva.load("omniglot")
    with torch.no_grad():
        state = model.write(torch.stack([tensor(image) for image in images]))
        mask = torch.ones(1, 1, 28, 28)
        mask[..., :14] = 0
        found = model.recall(state, tensor(cue["image"])[None], 3, "descent", mask=mask, inside=False)
    shown = [e for e in events if e["event"] == "step" and not e["early"]][1:]
    assert shown
    for step, x, energy in zip(shown, found.x[:, 0], found.energy[:, 0], strict=False):
        assert torch.equal(tensor(step["image"]), x)
        assert step["energy"] == pytest.approx(float(energy), rel=1e-4)


def test_looking_inside(visitor: Visitor) -> None:
    images = visitor.write(3)
    _, events = visitor.send("contents")
    assert sorted(e["image"] for e in events if e["event"] == "found") == sorted(images)
    assert sorted(events[-1]["images"]) == sorted(images)
    assert (events[-1]["times"], events[-1]["exact"]) == ([1, 1, 1], [True] * 3)
    # what was found is used: descent has nothing to search for
    assert visitor.ask("show")["known"]
    _, events = visitor.send("recall", image=images[1], methods=["descent"])
    assert not [e for e in events if e["event"] == "looking"]
    left = visitor.ask("forget", image=images[1])
    assert (left["stored"], left["known"]) == ([images[0], images[2]], False)
    assert [visitor.ask("contains", image=image)["times"] for image in images] == [1, 0, 1]
    assert "expected images that are in the memory" in visitor.refusal("forget", image=images[1])


def test_dreams_and_maps_stream_their_steps(visitor: Visitor) -> None:
    images = visitor.write(4)
    _, events = visitor.send("dream", n=3, steps=4, method="stochastic", seed=0)
    assert [(e["step"], len(e["images"])) for e in events[:-1]] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    _, events = visitor.send("chain", index=1, steps=5, temperature=0.0)
    assert [e["energy"] for e in events if e["event"] == "step"]
    _, events = visitor.send("map", three=[0, 2, 3], grid=7, image=images[0], method="least-squares")
    assert [e["row"] for e in events if e["event"] == "row"] == list(range(7))
    start, corners = (next(e for e in events if e["event"] == kind) for kind in ("path", "frame"))
    # an undamaged image lies at its own corner of the plane
    assert start["place"] == pytest.approx(corners["places"][0], abs=1e-3)
    assert start["outside"] == pytest.approx(0, abs=1e-2)
    a, b = corners["places"][1]
    assert visitor.ask("point", a=a, b=b)["nearest"] == 2


def test_more_of_a_class_is_that_of_the_model(visitor: Visitor) -> None:
    """From its examples alone, in a memory of their own, by the spread of their weights."""
    _, (examples, samples, end) = visitor.send("family", set="glyphs", n=5, examples=4, seed=0)
    assert (examples["event"], samples["event"], end["event"]) == ("examples", "samples", "done")
    images, model = kanerva.data.load("glyphs", split="test"), kanerva.load("omniglot")
    number, random = examples["number"], torch.Generator().manual_seed(0)
    assert number == int(torch.randint(images.num_classes, (), generator=random))
    order = torch.randperm(int(images.count[number]), generator=random)[:4]
    x = images.images(images.start[number] + order)
    assert examples["images"] == [pack(one, True) for one in x]
    with torch.no_grad():
        drawn = model.more(model.write(x), x, 5, random).last
    assert samples["images"] == [pack(one, True) for one in drawn]


# What is refused


@pytest.mark.parametrize(
    ("job", "body", "message"),
    [
        ("nothing", {}, "no such job"),
        ("pick", {"set": "omniglot", "count": 3, "classes": 3}, "set: expected one of glyphs"),
        ("pick", {"set": "glyphs", "count": 65, "classes": 3}, "count: expected a whole number from 1 to 64"),
        ("write", {"images": []}, "images: expected 1 to 64 more"),
        ("write", {"images": ["AAAA"]}, "image: expected 784 bytes"),
        ("recall", {"methods": ["descent"]}, "the memory is blank"),
        ("point", {"a": 0, "b": 0}, "draw a map first"),
        ("model", {"model": "nobody"}, "model: expected one of omniglot, squares"),
        ("family", {"set": "glyphs", "examples": 1}, "examples: expected a whole number from 2 to 8"),
    ],
)
def test_what_is_wrong_is_said(visitor: Visitor, job: str, body: dict[str, Any], message: str) -> None:
    assert message in visitor.refusal(job, **body)


def test_wrong_options_of_a_written_memory_are_said(visitor: Visitor) -> None:
    image = visitor.write(4)[0]
    visitor.ask("write", images=[image])
    for job, body, message in (
        ("recall", {"methods": ["cue"] * 3}, "methods: expected one or two"),
        ("recall", {"methods": ["magic"]}, "method: expected one of"),
        ("recall", {"methods": ["cue"], "mask": "AA=="}, "mask: expected 784 bytes"),
        ("damage", {"kind": "noise"}, "kind: expected one of flips"),
        ("damage", {"kind": "flips", "amount": 2}, "amount: expected a number from 0 to 1"),
        ("map", {"three": [0, 1, 9]}, "three: expected"),
        ("map", {"three": [0, 1, 4]}, "two that are the same"),
        ("chain", {"index": 5}, "index: expected"),
        ("write", {"images": [image] * 60}, "images: expected 1 to 59 more"),
    ):
        assert message in visitor.refusal(job, **{"image": image, **body})


def test_broken_requests_are_refused(visitor: Visitor) -> None:
    for body in (b"{", b"[1]", b"\xff"):
        assert visitor.raw("/api/show", body)[0] == 400
    assert visitor.raw("/api/write", b"x" * 10_000_000)[0] == 413
    assert visitor.raw("/api/upload", b"x" * (2**21 + 1))[0] == 413
    visitor.id = "somebody else's"
    assert visitor.raw("/api/show")[0] == 410


def png(*pictures: np.ndarray[Any, Any], kind: str = "png") -> bytes:
    file = io.BytesIO()
    first, *rest = (Image.fromarray(picture) for picture in pictures)
    first.save(file, kind, **({"save_all": True, "append_images": rest} if rest else {}))
    return file.getvalue()


def shades(count: int, side: int) -> bytes:
    return png(*(np.full((side, side), shade, np.uint8) for shade in range(count)), kind="gif")


def test_uploads_are_brought_to_the_model(visitor: Visitor) -> None:
    drawing = np.full((280, 280), 255, np.uint8)
    drawing[100:180, 40:240] = 0  # black on white paper
    for picture in (drawing, 255 - drawing, drawing.astype(np.uint16) * 257):
        status, said = visitor.raw("/api/upload", png(picture))
        assert status == 200
        (image,) = json.loads(said)["images"]
        assert torch.equal(tensor(image)[0], torch.tensor(drawing[5::10, 5::10] == 0).float())
    assert len(json.loads(visitor.raw("/api/upload", shades(3, 40))[1])["images"]) == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be read as one"),
        (png(np.zeros((1, 5000 * 5000), np.uint8)), "expected at most 16,777,216 pixels"),
        (shades(70, 4), "expected at most 64 pictures in one file, got 70"),
    ],
    ids=["svg", "large", "many"],
)
def test_bad_uploads_get_a_message(visitor: Visitor, data: bytes, message: str) -> None:
    status, said = visitor.raw("/api/upload", data, **{"X-Name": "my%20file.png"})
    error = json.loads(said)["error"]
    assert (status, error.partition(": ")[0], message in error) == (400, "my file.png", True)


# Bounds


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch, colour: Playable) -> None:
    monkeypatch.setattr(session, "MOST", 3)
    sessions = Sessions([colour])
    first, busy, idle = (sessions.new() for _ in range(3))
    sessions.find(first.id)
    busy.jobs = 1  # works, and is not dropped
    new = sessions.new()
    assert set(sessions.kept) == {first.id, busy.id, new.id}
    with pytest.raises(server.HTTPException, match="no longer kept"):
        sessions.find(idle.id)
    first.used -= session.IDLE + 1
    sessions.trim()
    assert first.id not in sessions.kept
    # and by the bytes of their images
    monkeypatch.setattr(session, "BYTES", 100)
    new.x = torch.zeros(3, 1, 3, 3)
    sessions.find(sessions.new().id)
    assert new.id not in sessions.kept


def test_a_full_line_is_said_and_memory_stays(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor.write(20)
    for name, job in (("WAITING", "recall"), ("OWN", "show"), ("SECONDS", "contents")):
        with monkeypatch.context() as patch:
            patch.setattr(queue, name, 0)
            said = visitor.refusal(job)
        assert {"WAITING": "too many", "OWN": "still being", "SECONDS": "stopped after"}[name] in said
    assert len(visitor.ask("show")["stored"]) == 20


def test_who_leaves_stops_the_job(place: SimpleNamespace, visitor: Visitor) -> None:
    """A search of many seconds ends when its page is closed, and the visitor's next job begins."""
    visitor.write(30)
    with visitor.searching():
        assert place.playground.searches.jobs == 1
    until(lambda: not place.playground.searches.jobs)
    assert len(visitor.ask("show")["stored"]) == 30


def test_the_server_ends_while_jobs_run(shipped: Playable) -> None:
    """Ctrl-C does not wait for searches, neither of visitors nor in the background."""
    with serving([shipped]) as short:
        first, second = Visitor(short.port), Visitor(short.port)
        second.write(30)
        until(lambda: short.playground.background.now is not None)
        first.write(30)
        leaving = contextlib.ExitStack()
        leaving.enter_context(first.searching())
    for line in (*short.playground.lines, short.playground.background):
        line.pool.shutdown(wait=True)  # its threads have nothing to do any more
    leaving.close()


# Connections


def connections(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(count)]


def ended(connection: socket.socket) -> bool:
    """Whether the server has ended a connection, at last; what it said before is passed over."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1000):
            pass
    return True


def test_who_sends_too_slowly_is_turned_away(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ARRIVE", 0.05)
    with closing(http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=60)) as connection:
        connection.request("POST", "/api/show", b"{", {"X-Session": visitor.id, "Content-Length": "2"})
        answer = connection.getresponse()
        assert (answer.status, "expected within" in answer.read().decode()) == (408, True)


@pytest.mark.parametrize(
    ("asked", "letter"),
    [
        (b"", b""),
        (b"POST /api/show HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Se", b""),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Odd: ", b"x"),
        (b"GET /style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nG", b""),
        (b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n{", b""),
        (b"GET /play.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1000, None),  # 40 MB
    ],
    ids=["nothing", "half a head", "letter by letter", "after an answer", "half a body", "reads nothing"],
)
def test_who_says_nothing_whole_or_does_not_read_is_let_go(
    place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, asked: bytes, letter: bytes | None
) -> None:
    monkeypatch.setattr(server, "HEAD", 0.2)
    (slow,) = connections(place.port, 1)
    with slow:
        slow.send(asked)
        if letter is None:
            until(lambda: place.running.server_state.connections)
            until(lambda: not place.running.server_state.connections)
        elif letter:
            with pytest.raises(ConnectionError):
                until(lambda: slow.send(letter) > 1)
        else:
            assert ended(slow)


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "POST /api/show HTTP/1.1\r\nX-Session: {}\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n",
    ],
    ids=["nothing", "no body"],
)
def test_who_never_asks_keeps_nobody_out(shipped: Playable, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """One of them makes way for each that comes; who is answered does not."""
    monkeypatch.setattr(server, "CONNECTIONS", 8)
    with serving([shipped]) as small:
        first = Visitor(small.port)
        first.write(30)
        with first.searching() as answer:
            silent = connections(small.port, 20)
            for connection in silent:
                with contextlib.suppress(ConnectionError):
                    connection.send(asked.format(first.id).encode())
            assert len(Visitor(small.port).write(3)) == 3
            assert ended(silent[0])
            assert json.loads(answer.readline())["event"] == "looking"
            for connection in silent:
                connection.close()


# In the background


def test_memories_are_searched_while_nobody_asks(place: SimpleNamespace, visitor: Visitor) -> None:
    """Recall by descent then only has to choose: it has nothing to search for, and no early steps."""
    images = visitor.write(3)
    inside = place.playground.sessions.kept[visitor.id].inside
    until(lambda: inside.over)
    assert visitor.ask("show")["known"]
    assert {pack(x, True) for x in inside.contents.x} == set(images)
    cue = visitor.ask("damage", image=images[1], kind="flips", amount=0.05, seed=1)["image"]
    _, events = visitor.send("recall", image=cue, methods=["descent"])
    assert not [e for e in events if e["event"] == "looking" or e.get("early")]
    assert [e["image"] for e in events if e["event"] == "step"] == [cue, images[1]]


@pytest.mark.parametrize("end", ["clear", "drop"])
def test_a_search_in_the_background_ends_with_its_memory(
    place: SimpleNamespace, visitor: Visitor, end: str
) -> None:
    visitor.write(30)
    one = place.playground.sessions.kept[visitor.id]
    inside = one.inside
    until(lambda: inside.search is not None)
    if end == "clear":
        visitor.ask("clear")
    else:
        one.used -= session.IDLE + 1
        Visitor(place.port)  # who comes sends away who was idle for too long
        assert visitor.id not in place.playground.sessions.kept
    until(lambda: inside.search is None)
    assert not inside.over
    assert one.inside is not inside


def test_a_search_is_watched_and_changes_nothing() -> None:
    (model, state), told = stored(3), list[str]()
    with watching(lambda what, x: told.append(what)):
        seen = model.contents(state)
    assert torch.equal(seen.x, model.contents(state).x)
    assert ({*told}, told.count("found")) == ({"looking", "found"}, 3)
    told.clear()
    with watching(lambda what, x: told.append(what)):
        known = frame.contents(model.retriever, state, known=seen.x)
    assert told == ["found"] * 3  # what was found before is not looked for
    assert torch.equal(known.x, seen.x)


# The command, and what is at hand


def test_play_says_what_is_wrong() -> None:
    def refused(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["play", *arguments, "--no-browser"])
        return str(end.value.code)

    assert "port: expected 0 to 65535" in refused("--port", "70000")
    assert "expected a DKM, got a model of kind nearest" in refused("nearest", "--port", "0")
    with server.bind("127.0.0.1", 0) as taken:
        assert "--port 0 takes any that is free" in refused("--port", str(taken.getsockname()[1]))


def test_models_of_one_name_are_all_offered(tmp_path: Path) -> None:
    places = [str(tmp_path / folder / "mine.safetensors") for folder in ("a", "b")]
    for place in places:
        kanerva.create("dkm", (1, 8, 8), rows=4, code=6).save(place)
    kept = Sessions(server.gather(places)).models
    assert {name: one.place for name, one in kept.items()} == dict(zip(("a/mine", "b/mine"), places, strict=True))


def test_every_pretrained_model_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: Playable, cache: Path
) -> None:
    """The list is that of kanerva.load; one in colour whose pictures are not at hand can be played with too."""
    for name in checkpoint.shipped():
        shutil.copy(checkpoint.locate(name), tmp_path)
    colour.model.save(tmp_path / "paints.safetensors")
    monkeypatch.setattr(checkpoint, "WEIGHTS", tmp_path)
    found = {one.name: server.about(one) for one in server.gather([])}
    assert sorted(found) == checkpoint.shipped()
    assert next(iter(found)) == "omniglot"
    assert found["paints"]["sets"] == {}
    assert "draw or upload" in found["paints"]["missing"]
    assert found["omniglot"]["missing"] == ""


# The page, in a browser


@pytest.fixture(scope="module")
def browser(place: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not (CHROMIUM and DRIVER):
        pytest.skip(MISSING)
    with browsing(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def page(browser: Browser, place: SimpleNamespace) -> Iterator[Browser]:
    """The page as a new visitor sees it; at the end there is no error on its console."""
    browser.size(1280, 1000)
    browser.dark(False)
    browser.open(place.url + "style.css")  # of the same origin, without the page's own script
    browser.js("sessionStorage.clear()")
    browser.open(place.url)
    browser.idle()
    yield browser
    quiet(place)
    assert browser.log() == []


def written(page: Browser, count: int = 4) -> None:
    page.set("#count", count)
    page.press("#pick")
    page.press("#write")


def canvas(page: Browser, selector: str) -> np.ndarray[Any, Any]:
    """The pixels of a canvas as the browser has them."""
    data = page.js(
        "const c = document.querySelector(arguments[0]); "
        "return [c.height, c.width, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]",
        selector,
    )
    return np.array(data[2], np.uint8).reshape(data[0], data[1], 4)[..., :3].astype(int)


def ink(page: Browser, selector: str) -> np.ndarray[Any, Any]:
    """Where the picture on a canvas is dark."""
    return canvas(page, selector).sum(-1) < 200


def test_page_store(page: Browser, tmp_path: Path) -> None:
    assert page.count("#tray .thumb") == 8  # a newcomer finds some there
    page.press("#tray-clear")
    page.stroke("#draw-pad", [(0.2, 0.2), (0.8, 0.8)])
    drawn = ink(page, "#draw-pad")
    assert (drawn[14, 14], drawn[3, 20]) == (True, False)
    assert 25 < drawn.sum() < 120
    page.click(".switch[data-pad=draw] [data-key=eraser]")
    page.stroke("#draw-pad", [(0.5, 0.5), (0.55, 0.55)])
    assert not ink(page, "#draw-pad")[14, 14]
    # what is seen is what the canvas holds: dark at one end of the line, white in the middle
    seen = page.picture("#draw-pad").astype(int)
    assert seen[60, 60].sum() < 200 < 700 < seen[102, 102].sum()
    page.press("#draw-add")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    (tmp_path / "good.png").write_bytes(png(np.tri(50, dtype=np.uint8) * 255))
    page.upload("#files", tmp_path / "good.png", tmp_path / "bad.png")
    page.wait("document.querySelector('#message').textContent.includes('bad.png: expected an image')")
    page.wait("document.querySelectorAll('#tray .thumb').length === 2")
    page.press("#write")
    assert "2 pictures written in" in page.text("#write-said")
    assert page.text("#load-text") == "2 written, 32 rows"
    assert ink(page, "#stored .thumb:nth-child(2) canvas").sum() == pytest.approx(28 * 28 / 2, rel=0.1)
    # the browser itself notes the answer to a bad upload
    assert all("400 (Bad Request)" in line for line in page.log())


@pytest.mark.usefixtures("no_background")
def test_page_recall(page: Browser) -> None:
    written(page)
    page.click("#stored .thumb:nth-child(2)")
    clean = ink(page, "#cue-pad")
    page.set("#amount", 0.05)
    page.press("#damage")
    cue = ink(page, "#cue-pad")
    assert 10 < (cue ^ clean).sum() < 80
    page.js(
        "window.said = new Set(); new MutationObserver(() => { const text = document.querySelector("
        "'#column-1').textContent; for (const words of ['(first try)', 'Still lookinginside']) "
        "if (text.includes(words)) window.said.add(words); })"
        ".observe(document.querySelector('#column-1'), {childList: true, subtree: true})"
    )
    page.press("#run")
    assert page.js("return [...window.said]") == ["(first try)", "Still lookinginside"]
    assert "Certified" in page.text("#column-1 .facts")
    assert "#2, exactly" in page.text("#column-1 .facts")
    assert np.array_equal(ink(page, "#column-1 canvas"), clean)
    # the first step on the slider is the cue, with its wrong pixels in red
    page.set("#column-0 input", 0)
    shown = canvas(page, "#column-0 canvas")
    assert ((shown[..., 0] - shown[..., 1]) > 50).sum() == (cue ^ clean).sum()
    for column in (0, 1):
        assert page.count(f"#column-{column} svg .dot") >= 2
    # by hand: erased pixels are marked, and told to descent
    page.press("#cue-reset")
    page.click(".switch[data-pad=cue] [data-key=eraser]")
    page.stroke("#cue-pad", [(0.35, 0.3), (0.35, 0.7)])
    assert "changed by hand" in page.text("#cue-said")
    page.set("#method-0", "cue")
    page.press("#run")
    assert "Wrong pixels" in page.text("#column-0 .facts")


def test_page_map_and_inside(page: Browser) -> None:
    written(page, 4)
    page.click("[data-tab=map]")
    page.set("#grid", 11)
    page.set("#map-method", "least-squares")
    page.press("#map-run")
    drawn = canvas(page, "#map-canvas")
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 100
    assert (np.abs(drawn - [255, 180, 84]).sum(-1) < 12).sum() > 60  # the path
    page.stroke("#map-canvas", [(0.1, 0.1)])
    page.wait("document.querySelector('#map-said').textContent.startsWith('What is read there')")
    page.click("#stored .thumb:nth-child(4)")
    assert page.count("#stored .on") == 3
    page.click("[data-tab=inside]")
    page.press("#contains")
    assert "Yes, it was written once" in page.text("#contains-said")
    page.stroke("#ask-pad", [(0.02, 0.02), (0.03, 0.02)])
    assert page.text("#contains-said") == ""
    page.press("#contains")
    assert "No, it was never written" in page.text("#contains-said")
    page.press("#contents")
    assert "4 of 4 different pictures found" in page.text("#contents-said")
    shown = (
        [ink(page, f"#{box} .thumb:nth-child({i}) canvas") for i in (1, 2, 3, 4)] for box in ("found", "stored")
    )
    found, stored = (sorted(picture.tobytes() for picture in pictures) for pictures in shown)
    assert found == stored
    page.click("#stored .thumb:nth-child(1)")
    page.press("#forget")
    assert page.text("#load-text") == "3 written, 32 rows"


def test_page_dream(page: Browser) -> None:
    written(page, 3)
    page.click("[data-tab=dream]")
    page.set("#dream-n", 5)
    page.set("#dream-steps", 4)
    for kind, message in (("dream", "4 steps"), ("family", "5 new pictures in")):
        page.click(f"#dreams [data-key={kind}]")
        page.press("#dream-run")
        assert page.count("#samples canvas") == 5
        assert message in page.text("#dream-said")
        assert page.js("return document.querySelector('#player').hidden") == (kind == "family")
    assert page.count("#example-images canvas") == 4
    assert sum(ink(page, f"#samples .thumb:nth-child({i}) canvas").any() for i in range(1, 6)) >= 4
    page.click("#dreams [data-key=chain]")
    page.set("#chain-steps", 12)
    page.press("#dream-run")
    assert page.js("return document.querySelector('#dream-at').max") == "11"
    last = canvas(page, "#film-picture")
    page.set("#dream-at", 0)
    assert not np.array_equal(canvas(page, "#film-picture"), last)


def test_page_python_runs(page: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines beside every panel are Python that does something."""
    written(page, 3)
    page.click("[data-tab=dream]")
    texts = {page.text(f"#code-{name}") for name in ("store", "recall", "inside", "map")}
    for kind in ("dream", "family", "chain"):
        page.click(f"#dreams [data-key={kind}]")
        texts.add(page.text("#code-dream"))
    assert len(texts) == 7
    # the same model and images for all, which are loaded once
    model, images = kanerva.load("omniglot"), kanerva.data.load("glyphs", split="test")
    monkeypatch.setattr(kanerva, "load", lambda place: {"omniglot": model}[place])
    monkeypatch.setattr(kanerva.data, "load", lambda name, split: {("glyphs", "test"): images}[name, split])
    for text in texts:
        exec(text.replace("steps=15", "steps=2"), {"print": lambda *_: None})


def test_page_by_keyboard_by_ear_on_a_phone_and_in_the_dark(page: Browser) -> None:
    """Every control has a name, what has the focus is marked, and arrow keys lead from tab to tab."""
    written(page, 3)
    nameless = page.js(
        "const some = document.querySelectorAll('button, input, select, [role=img], [role=tabpanel], .pad'); "
        "return [...some].filter((e) => !(e.ariaLabel || e.labels?.length || "
        "(e.tagName === 'BUTTON' && e.textContent.trim()) || "
        "document.getElementById(e.getAttribute('aria-labelledby')))).map((e) => e.outerHTML)"
    )
    assert nameless == []
    page.js("document.querySelector('[data-tab=store]').focus()")
    keys = [{"type": kind, "value": "\ue014"} for kind in ("keyDown", "keyUp")]  # the right arrow
    page.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": keys}]})
    assert page.js("return document.activeElement.dataset.tab") == "recall"
    assert page.js("return document.querySelector('#recall').hidden") is False
    assert page.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.size(390, 844, phone=True)
    for dark, name in itertools.product((False, True), ("store", "recall", "inside", "dream", "map")):
        page.dark(dark)
        page.click(f"[data-tab={name}]")
        assert page.js("return document.documentElement.scrollWidth") <= 390, name
        level = page.picture()[5, 5].mean()
        assert level < 60 if dark else level > 200
    # ink is light on dark, on canvases too
    page.wait("getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 28)'")
    thumb = canvas(page, "#stored .thumb canvas").sum(-1)
    assert np.median(thumb) < 100 < 600 < thumb.max()


def test_page_says_that_the_memory_is_gone(page: Browser, place: SimpleNamespace) -> None:
    written(page, 3)
    place.playground.sessions.kept.clear()
    page.press("#pick")
    assert "no longer kept" in page.text("#message")
    assert page.text("#load-text") == "The memory is blank"
    written(page, 2)
    assert all("410 (Gone)" in line for line in page.log())
    page.open(place.url)  # the same tab, opened again, still has its memory
    page.idle()
    assert page.text("#load-text") == "2 written, 32 rows"


def test_page_in_colour(page: Browser) -> None:
    page.set("#model", "squares")
    page.wait("document.querySelector('#pick-box').hidden")
    assert "No unseen pictures that fit this model are at hand" in page.text("#no-sets")
    assert page.js("return document.querySelector('#dreams [data-key=family]').disabled")
    page.set("input.colour", "#d04030")
    page.stroke("#draw-pad", [(0.2, 0.5), (0.8, 0.5)])
    assert (canvas(page, "#draw-pad")[8, 8] == [0xD0, 0x40, 0x30]).all()
    page.press("#draw-add")
    page.press("#write")
    page.click("[data-tab=recall]")
    page.press("#damage")
    page.set("#method-1", "least-squares")
    page.press("#run")
    assert "rms" in page.text("#column-0 .facts")
