"""Requests and answers: who may ask, how much, and what is sent back."""

import asyncio
import contextlib
import ipaddress
import json
import math
import re
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ... import data
from ...data import ClassImages, mazes, omniglot
from ...lab import runner
from ...models import Model, checkpoint, create, load
from ...support import strict_json
from ...training.config import DataConfig
from . import panels
from .panels import Answer
from .pictures import UPLOAD, pack, upload
from .queue import Background, Body, Job, Line, Work
from .session import LENGTH, Playable, Session, Sessions

# Nothing from elsewhere, and nothing to elsewhere.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
# Bytes of a request that are not pixels.
SPARE = 64 * 1024
# Threads for what searches a memory (seconds), for what makes steps, for what takes milliseconds, and for uploads,
# which may take a second to decode.
SEARCHES, STEPS, SHORT, UPLOADS = 2, 1, 1, 1
# Seconds for the head of a request to arrive, and for its body, which has another one for so many bytes that came.
HEAD, ARRIVE, RATE = 5.0, 5.0, 2**16
# Open connections, beyond which a visitor is turned away.
CONNECTIONS = 256


class Playground:
    """The models, the visitors and their jobs."""

    def __init__(self, playable: Sequence[Playable]) -> None:
        self.sessions = Sessions(playable)
        self.background = Background(self.sessions, lambda: any(line.jobs for line in self.lines))
        self.lines = [Line(threads, self.background.look) for threads in (SEARCHES, STEPS, SHORT, UPLOADS)]
        self.searches, self.steps, self.short, self.uploads = self.lines
        # the largest request is a whole episode, as base64
        self.most = SPARE + 2 * LENGTH * max(math.prod(one.model.config.image) for one in playable)
        self.quick: dict[str, Work] = {**panels.QUICK, "model": self.choose}

    def choose(self, session: Session, body: Body, job: Job) -> Answer:
        """Start with a blank memory of another model."""
        session.begin(self.sessions.models[panels.one_of(body, "model", self.sessions.models)])
        return panels.show(session)

    def close(self) -> None:
        """Stop all that is still computed."""
        self.background.close()
        for line in self.lines:
            line.close()

    # Requests

    async def begin(self, request: Request) -> Response:
        """The session that the page has, or a new one, and what there is to play with."""
        try:
            session = self.sessions.find(request.headers.get("x-session"))
        except HTTPException:
            session = self.sessions.new()
        return JSONResponse(
            {
                "session": session.id,
                "models": [about(one) for one in self.sessions.models.values()],
                "limits": {"length": LENGTH, "upload": UPLOAD},
                **panels.show(session),
            }
        )

    async def job(self, request: Request) -> Response:
        """A job of a panel: its last event, or, where there are steps to watch, all of them, one a line."""
        session = self.sessions.find(request.headers.get("x-session"))
        name, body = request.path_params["name"], parsed(await arrived(request, self.most, "what the page sent"))
        if name in self.quick:
            return await answered(self.short.ask(self.quick[name], session, body))
        if name == "recall":
            return streamed(self.recall(session, body))
        if name not in panels.SLOW:
            raise HTTPException(404, f"{name}: no such job")
        # nobody's steps wait for others' searches
        search = name == "contents" or (name == "map" and body.get("method") in ("descent", "cue"))
        return streamed((self.searches if search else self.steps).ask(panels.SLOW[name], session, body))

    def recall(self, session: Session, body: Body) -> AsyncIterator[Answer]:
        """The events of a recall: nobody's first steps wait for others' searches."""
        both = panels.Recalling()
        first = self.steps.ask(both.begin, session, body)

        async def events() -> AsyncIterator[Answer]:
            last: Answer = {"event": "stopped"}
            async for last in closing(first):
                if last["event"] != "done" or None not in last["columns"]:
                    yield last
            if last["event"] == "done" and None in last["columns"]:
                try:
                    async for event in closing(self.searches.ask(both.finish, session, body)):
                        yield event
                except HTTPException as error:
                    yield {"event": "error", "error": error.detail}

        return events()

    async def upload(self, request: Request) -> Response:
        """The pictures of one file, which is the body of the request."""
        session = self.sessions.find(request.headers.get("x-session"))
        name = unquote(request.headers.get("x-name", "file"))[:80]
        raw = await arrived(request, UPLOAD, name)

        def work(session: Session, body: Body, job: Job) -> Answer:
            return {"images": [pack(x, session.binary) for x in upload(raw, name, session.model, LENGTH)]}

        return await answered(self.uploads.ask(work, session, {}))

    def app(self, hosts: Collection[str | None] | None = None) -> ASGIApp:
        """The application; `hosts` are the names by which it may be called, None: any."""
        routes = [
            Route("/api/session", self.begin, methods=["POST"]),
            Route("/api/upload", self.upload, methods=["POST"]),
            Route("/api/{name}", self.job, methods=["POST"]),
            Mount("/", StaticFiles(directory=Path(__file__).parent / "page", html=True)),
        ]
        return guarded(Starlette(routes=routes, exception_handlers={HTTPException: said}), hosts)


def about(one: Playable) -> dict[str, Any]:
    """What the page has to know of a model."""
    config = one.model.config
    return {
        "name": one.name,
        "place": one.place,
        "image": list(config.image),
        "binary": config.binary,
        "rows": config.rows,
        "damages": panels.damages(one.model),
        "missing": "" if one.sets else missing(config.image),
        "sets": {name: {"classes": some.num_classes, "place": some.name} for name, some in one.sets.items()},
    }


async def said(request: Request, error: Exception) -> Response:
    """An error as the page shows it."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def closing(events: AsyncIterator[Answer]) -> AsyncIterator[Answer]:
    """Events; who stops listening stops the job that they come from."""
    try:
        async for event in events:
            yield event
    finally:
        await events.aclose()  # type: ignore[attr-defined]


async def answered(events: AsyncIterator[Answer]) -> Response:
    """The last event alone, for a job that has no steps."""
    last: Answer = {"event": "error", "error": "no answer"}
    async for event in events:
        last = event
    return JSONResponse(last, 400 if last["event"] == "error" else 200)


def streamed(events: AsyncIterator[Answer]) -> Response:
    """Events as they come, one a line."""
    lines = (json.dumps(event, separators=(",", ":")) + "\n" async for event in closing(events))
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def arrived(request: Request, most: int, what: str) -> bytes:
    """The body of a request of at most so many bytes, once it is there; who sends too slowly is turned away."""
    refusal = HTTPException(413, f"{what}: expected at most {most / 2**20:.1f} MB")
    if int(request.headers.get("content-length", 0)) > most:
        raise refusal
    body = bytearray()
    try:
        async with asyncio.timeout(ARRIVE) as limit:
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise refusal
                limit.reschedule((limit.when() or 0.0) + len(part) / RATE)
    except TimeoutError:
        wanted = f"expected within {ARRIVE:.0f} s, or at {RATE >> 10} kB a second"
        # the rest is not waited for
        raise HTTPException(408, f"{what}: {wanted}", {"connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(400, f"{what}: expected all of it") from None
    return bytes(body)


def parsed(text: bytes) -> Body:
    """A JSON object."""
    with contextlib.suppress(ValueError):
        if isinstance(body := strict_json.loads(text or b"{}"), dict):
            return body
    raise HTTPException(400, "expected a JSON object")


def guarded(app: ASGIApp, hosts: Collection[str | None] | None) -> ASGIApp:
    """Add the headers, and refuse pages from elsewhere, which ask in their visitor's browser.

    Such a page could make its own name point here: so the server wants to be called by its own. Or it could send
    what a browser sends without asking first, and take the place of others' sessions: so only this page may post.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (unwelcome(scope, hosts) or app)(scope, receive, with_headers)

    return call


def unwelcome(scope: Scope, hosts: Collection[str | None] | None) -> Response | None:
    """The answer to a request that comes from a page elsewhere, by what the browser says of it; None for others."""
    headers = Headers(scope=scope)
    named, origin = headers.get("host", ""), headers.get("origin")
    if hosts is not None and host_of(named) not in hosts:
        return JSONResponse({"error": f"this server is not called {named!r}"}, 421)
    if hosts is not None:
        own = origin is None or host_of(origin.removeprefix("http://")) in hosts
    else:  # without a list of names, that by which it was called is its own
        own = origin in (None, f"http://{named}", f"https://{named}")
    own &= headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    if scope["method"] == "POST" and not own:
        cause = "usual cause: a proxy that does not pass on the Host it was asked for"
        return JSONResponse({"error": f"only the page of this server may ask for that; {cause}"}, 403)
    return None


def host_of(named: str) -> str | None:
    """A host without its port; None for what is neither."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]+)?", named)
    return (found[1] or found[2]).lower() if found else None


# What is at hand


def gather(places: Sequence[str]) -> list[Playable]:
    """The models at these places, or all that are pretrained, each with the images at hand that fit it."""
    # first the one whose memories can be looked into
    places = places or sorted(checkpoint.shipped(), key=lambda name: (name != "omniglot", name))
    found = [runner.source(place) for place in places]
    made = []
    for source, called in zip(found, runner.names(places), strict=True):
        model = checkpoint.as_dkm(load(source.place) if source.checkpoint else create(source.kind), source.place)
        made.append(Playable(called, source.place, model.requires_grad_(False), unseen(model, source.data)))
    return made


def unseen(model: Model, own: DataConfig | None) -> dict[str, ClassImages]:
    """The images that fit a model and need no download and no minutes of drawing; those it was trained on first."""
    shape, dataset = model.config.image, "" if own is None else own.dataset
    here = {
        "glyphs": shape == (1, 28, 28),
        "omniglot": shape == (1, 28, 28) and omniglot.at_hand(),
        "mazes": shape == (3, 32, 32) and mazes.at_hand("test"),
    }
    names = sorted((name for name, there in here.items() if there), key=lambda name: name != dataset)
    sets = {name: data.load(name, "test") for name in names}
    if own is not None and dataset not in here and Path(dataset).exists():
        sets = {Path(dataset).stem: own.load("cpu", "test")[0], **sets}
    return {name: x for name, x in sets.items() if (x.shape, x.binary) == (shape, model.config.binary)}


def missing(image: tuple[int, int, int]) -> str:
    """Why there are no images to pick from, and what to do."""
    own = "No unseen pictures that fit this model are at hand: draw or upload your own."
    if image != (3, 32, 32):
        return own
    return (
        f"{own} Frames of mazes are offered once they are drawn, in a minute or so: "
        'kanerva.data.load("mazes", split="test"), with pip install \'kanerva[mazes]\'.'
    )


def warm_up(playable: Sequence[Playable]) -> None:
    """Write and recall once: what is compiled or loaded on first use is not the first visitor's to wait for."""
    with torch.no_grad():
        for one in playable:
            x = one.model.like.new_zeros(1, *one.model.config.image)
            state = one.model.write(x, one.model.blank())
            one.model.recall(state, x, 1, "least-squares")
            one.model.contains(state, x)


# The server


def bind(host: str, port: int) -> socket.socket:
    """A socket to listen on, where who comes before the models are loaded waits; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except OSError as error:
        why = f"{error}; usual cause: another server is there; --port 0 takes any that is free"
        raise OSError(f"{host}, port {port}: cannot be listened on ({why})") from None


def loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class Connection(H11Protocol):
    """A connection that is let go where no request comes, or not the whole head of one, or where nobody reads.

    Where there are too many, the one that has waited longest for a request, or for the rest of it, makes way.
    """

    since = math.inf
    """When it began to wait for a request; infinity once there is one."""
    head, read = math.inf, math.inf
    """When it is let go unless the head of a request has come, and unless what was sent is read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        oldest = min((one for one in self.connections if isinstance(one, Connection)), key=lambda one: one.since)
        if len(self.connections) >= CONNECTIONS and oldest.since < math.inf:
            oldest.since = math.inf  # it ends soon, and not twice
            oldest.transport.abort()
        self.wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.wait()

    def wait(self) -> None:
        """Wait for a request, if none is being answered; what comes of it in bits does not prolong that."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.head = math.inf
            self.since = self.since if self.cycle.more_body else math.inf
        elif self.head == math.inf:
            self.since = self.loop.time()
            self.head = self.since + HEAD

    def pause_writing(self) -> None:
        super().pause_writing()
        self.read = self.loop.time() + HEAD

    def resume_writing(self) -> None:
        super().resume_writing()
        self.read = math.inf


class Server(uvicorn.Server):
    """A server that lets silent connections go, and stops its jobs when it is to end."""

    def __init__(self, playground: Playground, host: str) -> None:
        config = uvicorn.Config(
            playground.app({"localhost", "127.0.0.1", "::1", host} if loopback(host) else None),
            http=Connection,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            # twice: what a connection that was let go has asked ends a moment later, and must keep nobody out
            limit_concurrency=2 * CONNECTIONS,
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        super().__init__(config)
        self.playground = playground

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        for one in list(self.server_state.connections):
            if isinstance(one, Connection) and now > min(one.head, one.read):
                one.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.playground.close()
        await super().shutdown(sockets)


def serve(places: Sequence[str], host: str, port: int, browser: bool, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C."""
    with bind(host, port) as listener:
        torch.set_num_threads(1)  # two jobs at a time have a core each
        say("loading the models")
        for taken in filter(None, map(checkpoint.taken, places)):
            say(taken)
        playable = gather(places)
        if not loopback(host):
            say("everyone who can reach this machine can use it")
            playable = [replace(one, place=one.name) for one in playable]  # paths are nobody else's business
        warm_up(playable)
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}/"
        say(f"{url}  (Ctrl-C ends it)")
        if browser:  # what it asks before the server runs waits at the socket; some return when they are closed
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        Server(Playground(playable), host).run(sockets=[listener])
