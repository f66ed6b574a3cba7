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

server = pytest.importorskip("kanerva.play.server", reason="needs kanerva[play]: starlette and uvicorn")
from kanerva.play import queue, session  # noqa: E402
from kanerva.play.pictures import pack, unpack  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_shape_checks")

# What a stored image of the shipped model looks like: 28×28 bytes.
SIZE = 28 * 28


class Visitor:
    """One visitor of a server, with a session of its own."""

    def __init__(self, port: int) -> None:
        self.port, self.id = port, ""
        status, answer = self.send("session")
        assert status == 200
        self.id, self.about = answer["session"], answer

    def raw(self, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
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
        assert status == 200, events
        assert events[-1]["event"] == "done", events[-1]
        return dict(events[-1])

    def refusal(self, job: str, **body: Any) -> str:
        """What is said of a job that must fail."""
        status, events = self.send(job, **body)
        last = events[-1] if isinstance(events, list) else events
        assert "error" in last, last
        assert status in (200, 400, 404, 410, 413, 503)
        return str(last["error"])

    def write(self, count: int = 5, seed: int = 0) -> list[str]:
        """Pick and write images; gives them."""
        images = self.ask("pick", set="glyphs", count=count, classes=count, seed=seed)["images"]
        self.ask("write", images=images)
        return list(images)


@contextmanager
def serving(playable: list[Any], host: str = "127.0.0.1") -> Iterator[SimpleNamespace]:
    """A server in a thread, which believes that it listens on `host`."""
    playground = server.Playground(playable)
    running, listener = server.prepared(playground, host), server.bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield SimpleNamespace(port=port, playground=playground, running=running, url=f"http://127.0.0.1:{port}/")
    finally:
        running.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def colour() -> Any:
    """A small model of colour images, untrained."""
    torch.manual_seed(0)
    codec = {"filters": [4, 4], "norm": "group"}
    model = kanerva.create("dkm", (3, 16, 16), "gaussian", rows=8, code=12, codec=codec)
    return server.Playable("squares", "squares", model.eval().requires_grad_(False), {})


@pytest.fixture(scope="module")
def place(colour: Any, cache: Path) -> Iterator[SimpleNamespace]:
    """A server with the shipped model, on glyphs alone, and one in colour."""
    kanerva.data.load("glyphs", split="test")
    (shipped,) = server.gather(["omniglot"])
    glyphs = {"glyphs": shipped.sets["glyphs"]}
    with serving([server.Playable("omniglot", "omniglot", shipped.model, glyphs), colour]) as started:
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


# The server


def test_the_page_comes_with_its_headers_and_nothing_from_elsewhere(place: SimpleNamespace) -> None:
    weight = 0
    for path, kind in (("/", "text/html"), ("/style.css", "text/css"), ("/play.js", "text/javascript")):
        with closing(http.client.HTTPConnection("127.0.0.1", place.port)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
        weight += len(body)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        outside = [word for word in ("http://", "https://", "//cdn", "@import") if word in body]
        assert outside in ([], ["http://"] if "www.w3.org/2000/svg" in body else [])
    assert weight < 100_000


def test_a_page_under_another_name_is_refused(place: SimpleNamespace, visitor: Visitor) -> None:
    """A site whose name is made to point here cannot ask in its visitor's browser."""
    status, said = visitor.raw("/api/show", b"{}", Host="evil.example:80")
    assert (status, "not called" in said.decode()) == (421, True)
    for host in ("localhost.evil.example", "127.0.0.1:80@evil.example", "[::1", "", "localhost:"):
        assert visitor.raw("/api/show", b"{}", Host=host)[0] == 421, host
    for host in ("localhost", "LOCALHOST:80", f"127.0.0.1:{place.port}", "[::1]:80"):
        assert visitor.raw("/api/show", b"{}", Host=host)[0] == 200, host
    # nor can one that asks under the right name: it would drop others' sessions by beginning new ones
    elsewhere = {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}
    for headers in elsewhere:
        assert visitor.raw("/api/session", b"{}", **headers)[0] == 403, headers
    for headers in {"Origin": f"http://localhost:{place.port}"}, {"Sec-Fetch-Site": "same-origin"}:
        assert visitor.raw("/api/session", b"{}", **headers)[0] == 200, headers
    assert server.loopback("127.0.0.1")
    assert server.loopback("localhost")
    assert not server.loopback("0.0.0.0")


def test_on_an_open_address_other_pages_are_refused_too(place: SimpleNamespace) -> None:
    """Their browsers say where they are from, and nothing else where a page comes without encryption."""
    with serving([place.playground.first], "0.0.0.0") as opened:
        visitor = Visitor(opened.port)
        own = f"127.0.0.1:{opened.port}"
        for origin in (
            "http://evil.example",
            f"http://evil.example:{opened.port}",
            "http://127.0.0.1:1",
            "null",
            "",
        ):
            for job in ("session", "show"):
                status, said = visitor.raw(f"/api/{job}", b"{}", Origin=origin)
                assert (status, "only the page of this server" in said.decode()) == (403, True), origin
        for headers in {}, {"Origin": f"http://{own}"}, {"Origin": f"https://{own}"}:
            assert visitor.raw("/api/show", b"{}", **headers)[0] == 200, headers
        assert visitor.raw("/api/show", b"{}", Host="box.example:80", Origin="http://box.example:80")[0] == 200


def test_what_is_picked_is_written_and_shown(visitor: Visitor) -> None:
    images = visitor.write(6)
    assert len(set(images)) == 6
    answer = visitor.ask("write", images=images[:1])
    assert answer["stored"] == [*images, images[0]]
    assert answer["rows"] == 32
    assert 0 < answer["ms"] < 60_000
    assert visitor.ask("contains", image=images[0])["times"] == 2
    assert visitor.ask("clear")["stored"] == []


def test_pictures_come_back_as_they_were() -> None:
    model = kanerva.load("omniglot")
    x = (torch.rand(1, 28, 28) > 0.5).float()
    assert torch.equal(unpack(pack(x, True), model), x)
    grey = kanerva.create("dkm", (3, 8, 8), "gaussian", rows=4, code=6)
    levels = torch.randint(256, (3, 8, 8)).float() / 128 - 1
    assert torch.equal(unpack(pack(levels, False), grey), levels)


def test_models_and_pictures_of_one_name_are_all_offered(tmp_path: Path) -> None:
    for i, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        torch.manual_seed(i)
        kanerva.create("dkm", (1, 8, 8), rows=4, code=6).save(tmp_path / folder / "mine.safetensors")
    playable = server.gather([str(tmp_path / folder / "mine.safetensors") for folder in ("a", "b")])
    kept = server.Playground(playable).models
    assert {name: one.place for name, one in kept.items()} == {
        f"{folder}/mine": str(tmp_path / folder / "mine.safetensors") for folder in ("a", "b")
    }


@pytest.mark.usefixtures("no_background")
def test_recall_streams_every_step_of_both_methods(visitor: Visitor) -> None:
    images = visitor.write(4)
    cue = visitor.ask("damage", image=images[2], kind="flips", amount=0.05, seed=1)
    assert cue["mask"] is None
    status, events = visitor.send(
        "recall", image=cue["image"], methods=["least-squares", "descent"], steps=6, seed=0
    )
    assert status == 200
    early = [e for e in events if e["event"] == "step" and e["early"]]
    assert {e["column"] for e in early} == {1}
    assert [e["step"] for e in early] == [*range(len(early))]
    falling = [e["energy"] for e in early]
    assert falling == sorted(falling, reverse=True)
    assert len(early) >= 3
    # they come before the search: who waits sees something at once
    assert events.index(early[-1]) < next(i for i, e in enumerate(events) if e["event"] == "looking")
    steps = [[e for e in events if e["event"] == "step" and e["column"] == c and not e["early"]] for c in (0, 1)]
    assert [[e["step"] for e in column] for column in steps] == [[*range(len(c))] for c in steps]
    assert min(map(len, steps)) >= 2
    assert any(e["event"] == "looking" and e["column"] == 1 for e in events)
    for column in steps:
        assert column[0]["image"] == cue["image"]
        assert column[0]["energy"] > column[-1]["energy"]
    assert steps[1][-1]["image"] == images[2]
    assert steps[1][-1]["nearest"] == 2
    assert steps[1][-1]["apart"][2] == 0
    ends = events[-1]["columns"]
    assert [end["certified"] is None for end in ends] == [True, False]


def test_steps_are_those_of_the_model(visitor: Visitor) -> None:
    """What the page shows is what the library gives for the same cue."""
    images = visitor.write(4)
    cue = visitor.ask("damage", image=images[0], kind="half", side="left")
    assert base64.b64decode(cue["mask"])[:28] == b"\0" * 14 + b"\xff" * 14
    _, events = visitor.send("recall", image=cue["image"], methods=["cue"], mask=cue["mask"], steps=3)
    model = kanerva.load("omniglot")
    x = torch.stack([tensor(image) for image in images])
    with torch.no_grad():
        state = model.write(x, model.blank())
        mask = torch.ones(1, 1, 28, 28)
        mask[..., :14] = 0
        found = model.recall(state, tensor(cue["image"])[None], 3, "descent", mask=mask, inside=False)
    shown = [e for e in events if e["event"] == "step" and not e["early"]][1:]
    for step, x, energy in zip(shown, found.x[:, 0], found.energy[:, 0], strict=False):
        assert torch.equal(tensor(step["image"]), x)
        assert step["energy"] == pytest.approx(float(energy), rel=1e-4)


def tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(base64.b64decode(text))).reshape(1, 28, 28).float() / 255


def test_looking_inside(visitor: Visitor) -> None:
    images = visitor.write(3)
    _, events = visitor.send("contents")
    found = [e["image"] for e in events if e["event"] == "found"]
    assert sorted(found) == sorted(images)
    assert sorted(events[-1]["images"]) == sorted(images)
    assert events[-1]["times"] == [1, 1, 1]
    assert visitor.ask("show")["known"]
    # what was found is used: descent has nothing to search for
    _, events = visitor.send("recall", image=images[1], methods=["descent"])
    assert not [e for e in events if e["event"] == "looking"]
    left = visitor.ask("forget", image=images[1])
    assert left["stored"] == [images[0], images[2]]
    assert not left["known"]
    assert visitor.ask("contains", image=images[1])["times"] == 0
    assert visitor.ask("contains", image=images[2])["times"] == 1
    assert "expected images that are in the memory" in visitor.refusal("forget", image=images[1])


def test_dreams_and_maps_stream_their_steps(visitor: Visitor) -> None:
    images = visitor.write(4)
    _, events = visitor.send("dream", n=3, steps=4, method="stochastic", seed=0)
    assert [e["step"] for e in events[:-1]] == [0, 1, 2, 3]
    assert all(len(e["images"]) == 3 for e in events[:-1])
    _, events = visitor.send("chain", index=1, steps=5, temperature=0.0)
    assert [e["energy"] for e in events if e["event"] == "step"]
    _, events = visitor.send("map", three=[0, 2, 3], grid=7, image=images[0], method="least-squares")
    assert [e["row"] for e in events if e["event"] == "row"] == list(range(7))
    start = next(e for e in events if e["event"] == "path")
    frame = next(e for e in events if e["event"] == "frame")
    # an undamaged image lies at its own corner of the plane
    assert start["place"] == pytest.approx(frame["places"][0], abs=1e-3)
    assert start["outside"] == pytest.approx(0, abs=1e-2)
    at = visitor.ask("point", a=frame["places"][1][0], b=frame["places"][1][1])
    assert at["nearest"] == 2


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
    assert "examples: expected a whole number from 2 to 8" in visitor.refusal("family", set="glyphs", examples=1)


def test_memories_of_two_visitors_never_mix(place: SimpleNamespace) -> None:
    first, second = Visitor(place.port), Visitor(place.port)
    assert first.id != second.id
    mine, theirs = first.write(3, seed=1), second.write(3, seed=2)
    assert first.ask("show")["stored"] == mine
    assert second.ask("show")["stored"] == theirs
    assert second.ask("contains", image=mine[0])["times"] == 0
    first.ask("clear")
    assert second.ask("contains", image=theirs[0])["times"] == 1


@pytest.mark.parametrize(
    ("job", "body", "message"),
    [
        ("nothing", {}, "no such job"),
        ("pick", {"set": "omniglot", "count": 3, "classes": 3}, "set: expected one of glyphs"),
        ("pick", {"set": "glyphs", "count": 65, "classes": 3}, "count: expected a whole number from 1 to 64"),
        ("pick", {"set": "glyphs", "count": True, "classes": 3}, "count: expected a whole number"),
        ("write", {"images": []}, "images: expected 1 to 64 more"),
        ("write", {"images": ["AAAA"] * 65}, "images: expected 1 to 64 more"),
        ("write", {"images": ["AAAA"]}, "image: expected 784 bytes"),
        ("write", {"images": [7]}, "image: expected 784 bytes"),
        ("damage", {"image": "A" * 1046, "kind": "noise"}, "image: expected 784 bytes"),
        ("recall", {"methods": ["descent"]}, "the memory is blank"),
        ("dream", {}, "the memory is blank"),
        ("map", {"three": [0, 1, 1]}, "three: expected the numbers of three different"),
        ("point", {"a": 0, "b": 0}, "draw a map first"),
        ("model", {"model": "nobody"}, "model: expected one of omniglot, squares"),
    ],
)
def test_what_is_wrong_is_said(visitor: Visitor, job: str, body: dict[str, Any], message: str) -> None:
    assert message in visitor.refusal(job, **body)


def test_wrong_options_of_a_written_memory_are_said(visitor: Visitor) -> None:
    image = visitor.write(4)[0]
    for job, body, message in (
        ("recall", {"image": image, "methods": ["magic"]}, "method: expected one of"),
        ("recall", {"image": image, "methods": ["cue"] * 3}, "methods: expected one or two"),
        (
            "recall",
            {"image": image, "methods": ["cue"], "steps": 41},
            "steps: expected a whole number from 1 to 40",
        ),
        ("recall", {"image": image, "methods": ["cue"], "mask": "AA=="}, "mask: expected 784 bytes"),
        ("damage", {"image": image, "kind": "noise"}, "kind: expected one of flips"),
        ("damage", {"image": image, "kind": "flips", "amount": 2}, "amount: expected a number from 0 to 1"),
        ("map", {"three": [0, 1, 9]}, "three: expected a whole number from 0 to 3"),
        ("map", {"three": [0, 1]}, "three: expected the numbers of three different"),
        ("chain", {"index": 4}, "index: expected a whole number from 0 to 3"),
        ("write", {"images": [image] * 61}, "images: expected 1 to 60 more in a memory of at most 64, got 61"),
    ):
        assert message in visitor.refusal(job, **body)
    visitor.ask("write", images=[image] * 2)
    assert "two that are the same" in visitor.refusal("map", three=[0, 4, 5])


def test_broken_requests_are_refused(visitor: Visitor) -> None:
    for body in (b"{", b"[1]", b"\xff", b"[" * 100_000):
        assert visitor.raw("/api/show", body)[0] == 400
    for job, asked in (("recall", "methods"), ("map", "method"), ("dream", "method")):
        for odd in (5, "descent", {}, [[]], None):
            said = visitor.raw(f"/api/{job}", json.dumps({asked: odd}).encode())[1]
            assert "error" in json.loads(said.splitlines()[-1]), (job, odd)
    assert visitor.raw("/api/write", b"x" * 10_000_000)[0] == 413
    assert visitor.raw("/api/upload", b"x" * (2**21 + 1))[0] == 413
    visitor.id = "somebody else's"
    assert visitor.raw("/api/show", b"{}")[0] == 410


def png(*pictures: np.ndarray[Any, Any], kind: str = "png") -> bytes:
    file = io.BytesIO()
    first, *rest = (Image.fromarray(picture) for picture in pictures)
    first.save(file, kind, **({"save_all": True, "append_images": rest} if rest else {}))
    return file.getvalue()


def test_uploads_are_brought_to_the_model(visitor: Visitor) -> None:
    drawing = np.full((280, 280), 255, np.uint8)
    drawing[100:180, 40:240] = 0  # black on white paper
    for picture in (drawing, 255 - drawing):
        status, said = visitor.raw("/api/upload", png(picture))
        assert status == 200
        (image,) = json.loads(said)["images"]
        assert torch.equal(tensor(image)[0], torch.tensor(drawing[5::10, 5::10] == 0).float())
    # 16 bits, the four inks of a printer, and a photograph that was taken sideways
    side = np.rot90(drawing)
    turned = Image.Exif()
    turned[274] = 6  # to be turned to the right
    for picture, kind, options in (
        (Image.fromarray(drawing.astype(np.uint16) * 257), "png", {}),
        (Image.fromarray(drawing).convert("RGB").convert("CMYK"), "jpeg", {"quality": 95}),
        (Image.fromarray(side).convert("RGB"), "jpeg", {"quality": 95, "exif": turned}),
    ):
        file = io.BytesIO()
        picture.save(file, kind, **options)  # type: ignore[attr-defined]
        (image,) = json.loads(visitor.raw("/api/upload", file.getvalue())[1])["images"]
        assert torch.equal(tensor(image)[0], torch.tensor(drawing[5::10, 5::10] == 0).float())
    frames = [np.full((40, 40), shade, np.uint8) for shade in (0, 10, 20)]
    status, said = visitor.raw("/api/upload", png(*frames, kind="gif"))
    assert len(json.loads(said)["images"]) == 3


def test_bad_uploads_get_a_message(visitor: Visitor) -> None:
    good = png(np.random.default_rng(0).integers(256, size=(40, 40)).astype(np.uint8))
    tiff = io.BytesIO()
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tiff, "tiff")
    many = png(*(np.full((4, 4), shade, np.uint8) for shade in range(70)), kind="gif")
    large = png(*(np.full((1000, 1000), shade, np.uint8) for shade in range(20)), kind="gif")
    for data, message in (
        (b"", "expected an image (PNG, JPEG, GIF, WEBP or BMP), but it cannot be read as one"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be read as one"),
        (b"GIF89a", "cannot be read"),
        (good[: len(good) // 2], "cannot be read"),
        (tiff.getvalue(), "cannot be read"),
        (png(np.zeros((1, 5000 * 5000), np.uint8)), "expected at most 16,777,216 pixels"),
        (many, "expected at most 64 pictures in one file, got 70"),
        (large, "expected at most 16,777,216 pixels, got 20 × 1,000 × 1,000"),
    ):
        status, said = visitor.raw("/api/upload", data, **{"X-Name": "my%20file.png"})
        assert status == 400
        assert message in json.loads(said)["error"]
        assert json.loads(said)["error"].startswith("my file.png: ")


def test_another_model_has_a_blank_memory_and_its_own_images(visitor: Visitor) -> None:
    visitor.write(2)
    answer = visitor.ask("model", model="squares")
    assert (answer["stored"], answer["rows"]) == ([], 8)
    image = base64.b64encode(bytes(range(256)) * 3).decode()
    assert visitor.ask("write", images=[image])["stored"] == [image]
    cue = visitor.ask("damage", image=image, kind="noise", amount=0.2)["image"]
    _, events = visitor.send("recall", image=cue, methods=["least-squares"], steps=2)
    assert events[-1]["event"] == "done"
    assert len(base64.b64decode(events[1]["image"])) == 3 * 256


# Bounds


def blank(name: str = "") -> Any:
    return SimpleNamespace(
        like=torch.zeros(1), config=SimpleNamespace(image=(1, 2, 2), binary=True), blank=lambda: None, name=name
    )


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST", 3)
    sessions = session.Sessions()
    ids = [sessions.new("m", blank()).id for _ in range(3)]
    sessions.find(ids[0])
    sessions.kept[ids[1]].jobs = 1  # works, and is not dropped
    new = sessions.new("m", blank()).id
    assert set(sessions.kept) == {ids[0], ids[1], new}
    with pytest.raises(session.Gone, match="no longer kept"):
        sessions.find(ids[2])
    sessions.kept[ids[0]].used -= session.IDLE + 1
    sessions.trim()
    assert ids[0] not in sessions.kept


def test_sessions_keep_to_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "BYTES", 100)
    sessions = session.Sessions()
    for _ in range(3):
        one = sessions.new("m", blank())
        one.x = torch.zeros(3, 1, 2, 2)  # 48 bytes
    sessions.trim()
    assert len(sessions.kept) == 2


def test_a_full_line_is_said_and_memory_stays(
    place: SimpleNamespace, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor.write(1)
    monkeypatch.setattr(queue, "WAITING", 0)
    status, said = visitor.send("recall", methods=["descent"])
    assert status == 503
    assert "too many visitors" in said["error"]
    monkeypatch.setattr(queue, "WAITING", 40)
    monkeypatch.setattr(queue, "OWN", 0)
    assert "still being worked on" in visitor.refusal("show")
    monkeypatch.undo()
    assert len(visitor.ask("show")["stored"]) == 1
    assert place.playground.searches.jobs == place.playground.short.jobs == 0


def test_who_leaves_stops_the_job(place: SimpleNamespace, visitor: Visitor) -> None:
    """A search of many seconds ends when its page is closed, and the visitor's next job begins."""
    visitor.write(30)
    connection = http.client.HTTPConnection("127.0.0.1", place.port)
    connection.request("POST", "/api/contents", b"{}", {"X-Session": visitor.id})
    answer = connection.getresponse()
    assert json.loads(answer.readline())["event"] == "looking"
    answer.close()
    connection.close()
    assert place.playground.searches.jobs == 1
    until(lambda: not place.playground.searches.jobs)
    assert len(visitor.ask("show")["stored"]) == 30


def test_who_sends_too_slowly_is_turned_away(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ARRIVE", 0.05)
    with closing(http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=60)) as connection:
        connection.putrequest("POST", "/api/show")
        connection.putheader("X-Session", visitor.id)
        connection.putheader("Content-Length", "2")
        connection.endheaders(b"{")
        answer = connection.getresponse()
        assert (answer.status, "expected within" in answer.read().decode()) == (408, True)


def ended(connection: socket.socket) -> bool:
    """Whether the server has ended a connection, at last; what it said before is passed over."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1000):
            pass
    return True


def connections(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(count)]


def test_who_says_nothing_is_let_go(place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start, in the middle of what asks, after an answer, or where an answer is not read."""
    monkeypatch.setattr(server, "HEAD", 0.2)
    silent, begun, before, more = connections(place.port, 4)
    begun.send(b"POST /api/show HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Se")
    before.send(b"GET /style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nG")
    more.send(b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n{")
    for connection in (silent, begun, before, more):
        with connection:
            assert ended(connection)


def test_a_head_that_comes_letter_by_letter_is_not_waited_for(
    place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD", 0.2)
    (slow,) = connections(place.port, 1)
    with slow:
        slow.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Odd: ")

        def over() -> bool:
            try:
                slow.send(b"x")
            except ConnectionError:
                return True
            return False

        until(over)


def test_who_does_not_read_is_let_go(place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD", 0.2)
    large = server.Response(bytes(64 * 2**20))
    monkeypatch.setattr(server, "FileResponse", lambda *_, **__: large)
    (deaf,) = connections(place.port, 1)
    with deaf:
        deaf.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        until(lambda: place.running.server_state.connections)
        until(lambda: not place.running.server_state.connections)


@pytest.mark.parametrize(
    "asked", ["", "POST /api/show HTTP/1.1\r\n", "POST /api/show HTTP/1.1\r\nX-Session: {}\r\n"]
)
def test_who_never_asks_keeps_nobody_out(
    place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """One of them makes way for each that comes; who is answered does not."""
    monkeypatch.setattr(server, "CONNECTIONS", 8)
    with serving([place.playground.first]) as small:
        working = http.client.HTTPConnection("127.0.0.1", small.port, timeout=60)
        first = Visitor(small.port)
        first.write(30)
        working.request("POST", "/api/contents", b"{}", {"X-Session": first.id})
        answer = working.getresponse()
        silent = connections(small.port, 20)
        if "Session" in asked:
            asked = asked.format(first.id) + "Host: 127.0.0.1\r\nContent-Length: 99\r\n\r\n"
        for connection in silent:
            with contextlib.suppress(ConnectionError):
                connection.send(asked.encode())
        images = Visitor(small.port).write(3)
        assert len(images) == 3
        assert ended(silent[0])
        assert json.loads(answer.readline())["event"] == "looking"
        for connection in silent:
            connection.close()
        answer.close()
        working.close()


def test_half_a_character_in_a_label_is_replaced(visitor: Visitor) -> None:
    """A browser may send it, and no text that is sent back may have it."""
    image = visitor.write(1)[0]
    answer = visitor.ask("write", images=[image], labels=["a\ud800b"])
    assert answer["labels"][-1] == "a?b"
    assert visitor.ask("show")["labels"][-1] == "a?b"


def test_the_server_ends_while_jobs_run(place: SimpleNamespace) -> None:
    """Ctrl-C does not wait for searches, neither of visitors nor in the background."""
    with serving([place.playground.first]) as short:
        first, second = Visitor(short.port), Visitor(short.port)
        second.write(30)
        until(lambda: short.playground.background.now is not None)
        first.write(30)
        connection = http.client.HTTPConnection("127.0.0.1", short.port)
        connection.request("POST", "/api/contents", b"{}", {"X-Session": first.id})
        assert json.loads(connection.getresponse().readline())["event"] == "looking"
    for line in (*short.playground.lines, short.playground.background):
        line.pool.shutdown(wait=True)  # its threads have nothing to do any more
    connection.close()


def test_a_job_that_takes_too_long_is_stopped(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor.write(20)
    monkeypatch.setattr(queue, "SECONDS", 0.2)
    assert "stopped after 0 s" in visitor.refusal("contents")


def test_who_has_to_wait_is_told(place: SimpleNamespace, visitor: Visitor) -> None:
    image = visitor.write(3)[0]
    other = queue.Job(lambda event: None, True)
    place.playground.steps.now.add(other)
    try:
        _, events = visitor.send("recall", image=image, methods=["least-squares"], steps=2)
    finally:
        place.playground.steps.now.remove(other)
    assert events[0] == {"event": "waiting", "ahead": 1}
    assert events[-1]["event"] == "done"


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
    assert events[-1]["columns"][0]["known"]


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


def test_searches_in_the_background_nap_and_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = kanerva.load("omniglot"), iter([True, True, True])
    x = kanerva.data.episodes(kanerva.data.load("glyphs", "test"), 1, 3, generator=torch.Generator().manual_seed(0))
    state = model.write(x[0]).detach()
    background = queue.Background(session.Sessions(), lambda: next(asked, False))
    for barren, found in ((60.0, 3), (0.0, 0)):
        monkeypatch.setattr(queue, "BARREN", barren)
        inside = session.Inside(search=threading.Event())
        with torch.no_grad():
            background.search(model, state, inside)
        assert inside.over
        assert len(inside.images) == found
        assert (inside.contents is None) == (not found)
    assert next(asked, None) is None  # it has waited as long as others were served
    stopped = session.Inside(search=threading.Event())
    stopped.stop()
    background.search(model, state, stopped)
    assert not stopped.over


def test_the_last_used_memory_is_searched_first(place: SimpleNamespace, visitor: Visitor) -> None:
    visitor.write(30)
    first = place.playground.sessions.kept[visitor.id].inside
    until(lambda: first.search is not None)
    second = Visitor(place.port)
    second.write(3)
    until(lambda: place.playground.sessions.kept[second.id].inside.over)
    assert not first.over
    until(lambda: first.search is not None)  # its turn comes again


@pytest.mark.usefixtures("no_background")
def test_recall_uses_what_was_found_so_far(place: SimpleNamespace, visitor: Visitor) -> None:
    images = visitor.write(6)
    inside = place.playground.sessions.kept[visitor.id].inside
    for image in images[:5]:
        inside.add(tensor(image))
    _, events = visitor.send("recall", image=images[0], methods=["descent"], steps=3)
    found = [e for e in events if e["event"] == "inside"]
    assert [(e["found"], e["of"]) for e in found[:5]] == [(n, 6) for n in range(1, 6)]
    before = events.index(found[4])
    assert not [e for e in events[:before] if e["event"] == "looking"]
    assert tensor(images[0]).equal(tensor(events[-3]["image"]))


# Watching a search


def test_a_search_is_watched_and_changes_nothing() -> None:
    model = kanerva.load("omniglot")
    x = kanerva.data.episodes(kanerva.data.load("glyphs", "test"), 1, 3, generator=torch.Generator().manual_seed(0))
    state, told = model.write(x[0]).detach(), list[tuple[str, torch.Tensor]]()
    with watching(lambda *what: told.append(what)):
        seen = model.contents(state)
    assert torch.equal(seen.x, model.contents(state).x)
    again = list[str]()
    with watching(lambda what, _: again.append(what)):
        known = frame.contents(model.retriever, state, known=seen.x)
    assert again == ["found"] * 3  # what was found before is not looked for
    assert torch.equal(known.x, seen.x)
    found = [image for what, image in told if what == "found"]
    assert [image.shape for image in found] == [(1, 28, 28)] * 3
    assert {what for what, _ in told} == {"looking", "found"}
    with pytest.raises(KeyError), watching(lambda what, _: {}[what]):
        model.contents(state)


# The command


def test_play_says_what_is_missing_or_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["play", *arguments, "--no-browser"])
        return str(end.value.code)

    assert "port: expected 0 to 65535" in refused("--port", "70000")
    assert "expected a DKM, got a model of kind nearest" in refused("nearest", "--port", "0")
    taken = server.bind("127.0.0.1", 0)
    assert "--port 0 takes any that is free" in refused("--port", str(taken.getsockname()[1]))
    taken.close()
    assert "cannot be listened on" in refused("--host", "203.0.113.7")


def test_images_are_offered_only_where_they_are_at_hand(own_cache: Path) -> None:
    assert server.at_hand("glyphs", (1, 28, 28))
    assert not server.at_hand("omniglot", (1, 28, 28))
    assert not server.at_hand("mazes", (3, 32, 32))
    assert not server.at_hand("nowhere", (3, 32, 32))
    own_cache.mkdir(parents=True)
    (own_cache / "omniglot-v2.npz").touch()
    (own_cache / "mazes-v1-32-test.npz").touch()
    assert server.at_hand("omniglot", (1, 28, 28))
    assert server.at_hand("mazes", (3, 32, 32))
    assert 'kanerva.data.load("mazes", split="test")' in server.missing((3, 32, 32))
    assert "mazes" not in server.missing((1, 28, 28))
    assert not server.at_hand("mazes", (3, 64, 64))


def test_every_pretrained_model_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: Any, cache: Path
) -> None:
    """The list is that of kanerva.load; one in colour whose pictures are not at hand can be played with too."""
    for name in checkpoint.shipped():
        shutil.copy(checkpoint.locate(name), tmp_path)
    colour.model.save(tmp_path / "paints.safetensors")
    monkeypatch.setattr(checkpoint, "WEIGHTS", tmp_path)
    monkeypatch.setattr(server, "at_hand", lambda name, image: name == "glyphs" and image == (1, 28, 28))
    found = {one.name: one.about() for one in server.gather([])}
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
    """The pixels of a canvas as the browser has them, as grey."""
    data = page.js(
        "const c = document.querySelector(arguments[0]); "
        "return [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]",
        selector,
    )
    return np.array(data[2], np.uint8).reshape(data[1], data[0], 4)[..., :3]


def ink(picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where a picture is dark."""
    return picture.astype(int).sum(-1) < 200


def test_page_store(page: Browser, tmp_path: Path) -> None:
    assert page.js("return document.querySelectorAll('#tray .thumb').length") == 8  # a newcomer finds some there
    page.press("#tray-clear")
    page.stroke("#draw-pad", [(0.2, 0.2), (0.8, 0.8)])
    drawn = ink(canvas(page, "#draw-pad"))
    assert drawn[14, 14]
    assert 25 < drawn.sum() < 120
    assert not drawn[3, 20]
    page.click(".switch[data-pad=draw] [data-key=eraser]")
    page.stroke("#draw-pad", [(0.5, 0.5), (0.55, 0.55)])
    assert not ink(canvas(page, "#draw-pad"))[14, 14]
    # what is seen is what the canvas holds: dark at one end of the line, white in the middle
    seen = page.picture("#draw-pad")
    assert seen[60, 60].sum() < 200
    assert seen[102, 102].sum() > 700
    page.press("#draw-add")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    (tmp_path / "good.png").write_bytes(png(np.tri(50, dtype=np.uint8) * 255))
    page.upload("#files", tmp_path / "good.png", tmp_path / "bad.png")
    page.wait("document.querySelector('#message').textContent.includes('bad.png: expected an image')")
    page.wait("document.querySelectorAll('#tray .thumb').length === 2")
    page.press("#write")
    assert "2 pictures written in" in page.text("#write-said")
    assert page.text("#load-text") == "2 written, 32 rows"
    assert ink(canvas(page, "#stored .thumb:nth-child(2) canvas")).sum() == pytest.approx(28 * 28 / 2, rel=0.1)
    # the browser itself notes the answer to a bad upload
    assert all("400 (Bad Request)" in line for line in page.log())


@pytest.mark.usefixtures("no_background")
def test_page_recall(page: Browser) -> None:
    written(page)
    page.click("#stored .thumb:nth-child(2)")
    assert page.js("return document.querySelector('[data-tab=recall]').ariaSelected") == "true"
    clean = ink(canvas(page, "#cue-pad"))
    page.set("#amount", 0.05)
    page.press("#damage")
    cue = ink(canvas(page, "#cue-pad"))
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
    assert np.array_equal(ink(canvas(page, "#column-1 canvas")), clean)
    # the first step on the slider is the cue, with its wrong pixels in red
    page.set("#column-0 input", 0)
    shown = canvas(page, "#column-0 canvas").astype(int)
    assert ((shown[..., 0] - shown[..., 1]) > 50).sum() == (cue ^ clean).sum()
    for column in (0, 1):
        assert page.js(f"return document.querySelectorAll('#column-{column} svg .dot').length") >= 2
    assert (np.ptp(page.picture("#column-0 svg").astype(int), -1) > 60).any()  # the curve is in colour
    # by hand: erased pixels are marked, and told to descent
    page.press("#cue-reset")
    page.click(".switch[data-pad=cue] [data-key=eraser]")
    page.stroke("#cue-pad", [(0.35, 0.3), (0.35, 0.7)])
    assert "changed by hand" in page.text("#cue-said")
    page.set("#method-0", "cue")
    page.press("#run")
    assert "Wrong pixels" in page.text("#column-0 .facts")


def test_page_recall_of_a_drawing(page: Browser) -> None:
    """Somebody draws a character, stores it, draws it again from memory, and finds it."""
    page.press("#tray-clear")
    strokes = [(0.25, 0.2), (0.25, 0.8), (0.75, 0.8)]
    page.stroke("#draw-pad", strokes)
    page.press("#draw-add")
    page.press("#write")
    page.click("[data-tab=recall]")
    page.press("#cue-clear")
    page.stroke("#cue-pad", [(x + 0.04, y) for x, y in strokes])
    page.press("#run")
    assert "#1" in page.text("#column-1 .facts")


def test_page_inside(page: Browser) -> None:
    written(page, 3)
    page.click("[data-tab=inside]")
    page.press("#contains")
    assert "Yes, it was written once" in page.text("#contains-said")
    page.stroke("#ask-pad", [(0.02, 0.02), (0.03, 0.02)])
    assert page.text("#contains-said") == ""
    page.press("#contains")
    assert "No, it was never written" in page.text("#contains-said")
    page.js(
        "window.one_by_one = 0; new MutationObserver((changes) => { for (const change of changes) "
        "for (const node of change.addedNodes) window.one_by_one += node.classList.contains('new'); })"
        ".observe(document.querySelector('#found'), {childList: true})"
    )
    page.press("#contents")
    assert page.js("return window.one_by_one") == 3
    assert "3 of 3 different pictures found" in page.text("#contents-said")
    found = sorted(ink(canvas(page, f"#found .thumb:nth-child({i}) canvas")).tobytes() for i in (1, 2, 3))
    assert found == sorted(ink(canvas(page, f"#stored .thumb:nth-child({i}) canvas")).tobytes() for i in (1, 2, 3))
    page.click("#stored .thumb:nth-child(1)")
    page.press("#forget")
    assert page.text("#load-text") == "2 written, 32 rows"
    page.press("#contains")
    assert "No, it was never written" in page.text("#contains-said")


def test_page_dream(page: Browser) -> None:
    written(page, 3)
    page.click("[data-tab=dream]")
    page.set("#dream-n", 5)
    page.set("#dream-steps", 4)
    for kind, message in (("dream", "4 steps"), ("family", "5 new pictures in")):
        page.click(f"#dreams [data-key={kind}]")
        page.press("#dream-run")
        assert page.js("return document.querySelectorAll('#samples canvas').length") == 5
        assert message in page.text("#dream-said")
        assert page.js("return document.querySelector('#player').hidden") == (kind == "family")
    assert page.js("return document.querySelectorAll('#example-images canvas').length") == 4
    assert sum(ink(canvas(page, f"#samples .thumb:nth-child({i}) canvas")).any() for i in range(1, 6)) >= 4
    page.click("#dreams [data-key=chain]")
    page.set("#chain-steps", 12)
    page.press("#dream-run")
    assert page.js("return document.querySelector('#dream-at').max") == "11"
    last = canvas(page, "#film-picture")
    page.set("#dream-at", 0)
    assert not np.array_equal(canvas(page, "#film-picture"), last)


def test_page_map(page: Browser) -> None:
    written(page, 4)
    page.click("[data-tab=map]")
    page.set("#grid", 11)
    page.set("#map-method", "least-squares")
    page.press("#map-run")
    drawn = canvas(page, "#map-canvas")
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 100
    path = (np.abs(drawn.astype(int) - [255, 180, 84]).sum(-1) < 12).sum()
    assert path > 60
    page.stroke("#map-canvas", [(0.1, 0.1)])
    page.wait("document.querySelector('#map-said').textContent.startsWith('What is read there')")
    page.click("#stored .thumb:nth-child(4)")
    assert page.js("return document.querySelectorAll('#stored .on').length") == 3


def test_page_python_runs(page: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines beside every panel are Python that does something."""
    written(page, 3)
    page.set("#count", 3)
    page.click("[data-tab=dream]")
    texts = [page.text(f"#code-{name}") for name in ("store", "recall", "inside", "map")]
    for kind in ("dream", "family", "chain"):
        page.click(f"#dreams [data-key={kind}]")
        texts.append(page.text("#code-dream"))
    assert len(set(texts)) == 7
    # the same models and images for all, which are loaded once
    model, images = kanerva.load("omniglot"), kanerva.data.load("glyphs", split="test")
    monkeypatch.setattr(kanerva, "load", lambda place: {"omniglot": model}[place])
    monkeypatch.setattr(kanerva.data, "load", lambda name, split: {("glyphs", "test"): images}[name, split])
    for text in texts:
        scope: dict[str, Any] = {"print": lambda *_: None}
        exec(text.replace("steps=15", "steps=2"), scope)
        assert scope["model"] is model


def test_page_can_be_used_by_keyboard_and_by_ear(page: Browser) -> None:
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


def test_page_on_a_phone_and_in_the_dark(page: Browser) -> None:
    written(page, 3)
    page.size(390, 844, phone=True)
    for dark, name in itertools.product((False, True), ("store", "recall", "inside", "dream", "map")):
        page.dark(dark)
        page.click(f"[data-tab={name}]")
        assert page.js("return document.documentElement.scrollWidth") <= 390, name
        level = page.picture()[5, 5].mean()
        assert level < 60 if dark else level > 200
    # ink is light on dark, on canvases too
    page.wait("getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 28)'")
    thumb = canvas(page, "#stored .thumb canvas").astype(int).sum(-1)
    assert np.median(thumb) < 100 < 600 < thumb.max()


def test_page_says_that_the_memory_is_gone(page: Browser, place: SimpleNamespace) -> None:
    written(page, 3)
    place.playground.sessions.kept.clear()
    page.press("#pick")
    assert "no longer kept" in page.text("#message")
    assert page.text("#load-text") == "The memory is blank"
    written(page, 2)
    assert page.text("#load-text") == "2 written, 32 rows"
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
