"""Requests and answers: who may ask, how much, and what is sent back."""

import asyncio
import contextlib
import ipaddress
import json
import math
import re
import socket
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..data import ClassImages, mazes, omniglot
from ..lab import runner
from ..models import DKM, checkpoint
from ..support import plain
from . import panels
from .panels import Body
from .pictures import UPLOAD, pack, upload
from .queue import Background, Busy, Job, Line, Work
from .session import LENGTH, Gone, Session, Sessions

PAGE = Path(__file__).parent / "page"
# All that a browser loads.
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/play.js": ("play.js", "text/javascript; charset=utf-8"),
}
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


class Refused(Exception):
    """A request that is answered by a status and a line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Playable:
    """A model to play with, and the unseen images at hand that fit it."""

    name: str
    place: str
    """Where it was loaded from."""
    model: DKM
    sets: dict[str, ClassImages]

    def about(self) -> dict[str, Any]:
        """What the page has to know."""
        config = self.model.config
        return {
            "name": self.name,
            "place": self.place,
            "image": list(config.image),
            "binary": config.binary,
            "rows": config.rows,
            "code": config.code,
            "damages": panels.damages(self.model),
            "missing": "" if self.sets else missing(config.image),
            "sets": {
                name: {"classes": images.num_classes, "place": images.name} for name, images in self.sets.items()
            },
        }


class Playground:
    """The models, the visitors and their jobs."""

    def __init__(self, playable: Sequence[Playable]) -> None:
        self.models = {one.name: one for one in playable}
        self.first = playable[0]
        self.sessions = Sessions()
        self.background = Background(self.sessions, lambda: any(line.jobs for line in self.lines))
        self.lines = [Line(threads, self.background.look) for threads in (SEARCHES, STEPS, SHORT, UPLOADS)]
        self.searches, self.steps, self.short, self.uploads = self.lines
        # the largest request is a whole episode, as base64
        pixels = max(len(pack(one.model.like.new_zeros(one.model.config.image), True)) for one in playable)
        self.most = LENGTH * (pixels + 64) + SPARE

    def work(self, name: str, session: Session, body: Body) -> tuple[Work, Line]:
        """What does a job of a name, and in which line it waits: nobody's steps wait for others' searches."""
        sets = self.models[session.name].sets
        short: dict[str, Work] = {
            "show": panels.show,
            "pick": panels.pick(sets),
            "write": panels.write,
            "clear": panels.clear,
            "damage": panels.damage,
            "contains": panels.contains,
            "forget": panels.forget,
            "point": panels.point,
            "model": self.choose,
        }
        long: dict[str, Work] = {
            "contents": panels.contents,
            "dream": panels.dream,
            "family": panels.family(sets),
            "chain": panels.chain,
            "map": panels.energy_map,
        }
        if name in short:
            return short[name], self.short
        if name in long:
            search = name == "contents" or (name == "map" and body.get("method") in ("descent", "cue"))
            return long[name], self.searches if search else self.steps
        raise Refused(404, f"{name}: no such job")

    def recall(self, session: Session, body: Body) -> AsyncIterator[dict[str, Any]]:
        """The events of a recall: nobody's first steps wait for others' searches."""
        ends: dict[int, dict[str, Any]] = {}
        begin, finish = panels.recall(ends)
        first = self.steps.ask(begin, session, body)

        async def events() -> AsyncIterator[dict[str, Any]]:
            last: dict[str, Any] = {}
            async with contextlib.aclosing(first) as some:  # type: ignore[type-var]
                async for last in some:
                    if last["event"] != "done":
                        yield last
            if last["event"] != "done":
                return
            if len(ends) == len(body["methods"]):
                yield last
                return
            try:
                rest = self.searches.ask(finish, session, body)
            except Busy as error:
                yield {"event": "error", "error": str(error)}
                return
            async with contextlib.aclosing(rest) as some:  # type: ignore[type-var]
                async for event in some:
                    yield event

        return events()

    def choose(self, session: Session, body: Body, job: Job) -> dict[str, Any]:
        """Start with a blank memory of another model."""
        chosen = self.models[panels.one_of(body, "model", self.models)]
        session.begin(chosen.name, chosen.model)
        return panels.describe(session)

    def close(self) -> None:
        """Stop all that is still computed."""
        self.background.close()
        for line in self.lines:
            line.close()

    # Requests

    async def file(self, request: Request) -> Response:
        name, kind = FILES[request.url.path]
        return FileResponse(PAGE / name, media_type=kind)

    async def begin(self, request: Request) -> Response:
        """The session that the page has, or a new one, and what there is to play with."""
        try:
            session = self.sessions.find(request.headers.get("x-session"))
        except Gone:
            session = self.sessions.new(self.first.name, self.first.model)
        return JSONResponse(
            {
                "session": session.id,
                "models": [one.about() for one in self.models.values()],
                "limits": {"length": LENGTH, "upload": UPLOAD, "steps": panels.STEPS},
                **panels.describe(session),
            }
        )

    async def job(self, request: Request) -> Response:
        """A job of a panel: its events, one a line."""
        session = self.sessions.find(request.headers.get("x-session"))
        body = parsed(await arrived(request, self.most, "what the page sent"))
        if request.path_params["name"] == "recall":
            return streamed(self.recall(session, body))
        work, line = self.work(request.path_params["name"], session, body)
        events = line.ask(work, session, body)
        self.sessions.trim()
        return await answered(events) if line is self.short else streamed(events)

    async def upload(self, request: Request) -> Response:
        """The pictures of one file, which is the body of the request."""
        session = self.sessions.find(request.headers.get("x-session"))
        name = unquote(request.headers.get("x-name", "file"))[:80]
        raw = await arrived(request, UPLOAD, name)

        def work(session: Session, body: Body, job: Job) -> dict[str, Any]:
            made = upload(raw, name, session.model, LENGTH)
            return {"images": [pack(x, session.model.config.binary) for x in made]}

        return await answered(self.uploads.ask(work, session, {}))

    def app(self, hosts: Sequence[str] | None = None) -> ASGIApp:
        """The application; `hosts` are the names by which it may be called, None: any."""
        routes = [Route(path, self.file) for path in FILES]
        routes += [
            Route("/api/session", self.begin, methods=["POST"]),
            Route("/api/upload", self.upload, methods=["POST"]),
            Route("/api/{name}", self.job, methods=["POST"]),
        ]
        handlers: dict[Any, Any] = dict.fromkeys((Refused, Gone, Busy, ClientDisconnect), said)
        return guarded(Starlette(routes=routes, exception_handlers=handlers), hosts)


async def said(request: Request, error: Exception) -> Response:
    """An error as the page shows it."""
    status = error.status if isinstance(error, Refused) else {Gone: 410, Busy: 503}.get(type(error), 400)
    # the rest of a request that is too slow is not waited for
    return JSONResponse({"error": str(error)}, status, {"connection": "close"} if status == 408 else None)


async def answered(events: AsyncIterator[dict[str, Any]]) -> Response:
    """The last event alone, for a job that has no steps."""
    last: dict[str, Any] = {"event": "error", "error": "no answer"}
    async for event in events:
        last = event
    return JSONResponse(last, 400 if last["event"] == "error" else 200)


def streamed(events: AsyncIterator[dict[str, Any]]) -> Response:
    """Events as they come, one a line."""

    async def lines() -> AsyncIterator[str]:
        try:
            async for event in events:
                yield json.dumps(event, separators=(",", ":")) + "\n"
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    return StreamingResponse(lines(), media_type="application/x-ndjson")


async def arrived(request: Request, most: int, what: str) -> bytes:
    """The body of a request of at most so many bytes, once it is there; who sends too slowly is turned away.

    What it says of its length is looked at first.
    """
    refusal = Refused(413, f"{what}: expected at most {most / 2**20:.1f} MB")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise refusal
    parts, size, until, stream = [], 0, time.monotonic() + ARRIVE, request.stream()
    with contextlib.suppress(StopAsyncIteration):
        while True:
            try:
                part = await asyncio.wait_for(anext(stream), until + size / RATE - time.monotonic())
            except TimeoutError:
                raise Refused(
                    408, f"{what}: expected within {ARRIVE:.0f} s, or at {RATE >> 10} kB a second"
                ) from None
            size += len(part)
            if size > most:
                raise refusal
            parts.append(part)
    return b"".join(parts)


def parsed(text: bytes) -> Body:
    """A JSON object."""
    try:
        body = plain.loads(text or b"{}")
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "expected a JSON object")
    return body


def guarded(app: ASGIApp, hosts: Sequence[str] | None) -> ASGIApp:
    """Add the headers, and refuse pages from elsewhere, which ask in their visitor's browser.

    Such a page could make its own name point here: so the server wants to be called by its own. Or it could send
    what a browser sends without asking first, and take the place of others' sessions: so only this page may post.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        if scope["type"] == "http" and (refusal := unwelcome(scope, hosts)) is not None:
            await refusal(scope, receive, with_headers)
            return
        await app(scope, receive, with_headers)

    return call


def unwelcome(scope: Scope, hosts: Sequence[str] | None) -> Response | None:
    """The answer to a request that comes from a page elsewhere, by what the browser says of it; None for others."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    named, origin = headers.get("host", ""), headers.get("origin")
    if hosts is not None and host_of(named) not in hosts:
        return JSONResponse({"error": f"this server is not called {named!r}"}, 421)
    elsewhere = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if origin is not None and hosts is not None:
        elsewhere |= host_of(origin.removeprefix("http://")) not in hosts
    elif origin is not None:  # without a list of names, that by which it was called is its own
        elsewhere |= origin not in (f"http://{named}", f"https://{named}")
    if scope["method"] == "POST" and elsewhere:
        cause = "usual cause: a proxy that does not pass on the Host it was asked for"
        return JSONResponse({"error": f"only the page of this server may ask for that; {cause}"}, 403)
    return None


def host_of(named: str) -> str | None:
    """A host without its port; None for what is neither."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]+)?", named)
    return (found[1] or found[2]).lower() if found else None


# What is at hand


def pretrained() -> list[str]:
    """The pretrained models, first the one whose memories can be looked into; its pictures are always there."""
    return sorted(checkpoint.shipped(), key=lambda name: (name != "omniglot", name))


def gather(places: Sequence[str]) -> list[Playable]:
    """The models at these places, or all that are pretrained, each with the images at hand that fit it."""
    sets: dict[str, ClassImages] = {}
    found = [runner.source(place) for place in places or pretrained()]
    for source in found:
        if source.kind != "dkm":
            raise ValueError(f"{source.place}: expected a DKM, got a model of kind {source.kind}")
    made = []
    for source, called in zip(found, runner.names([source.place for source in found]), strict=True):
        model = source.checkpoint.model() if source.checkpoint else None
        assert isinstance(model, DKM)
        own = [source.data.dataset] if source.data is not None else []
        for name in dict.fromkeys([*own, "glyphs", "omniglot", "mazes"]):
            if name not in sets and at_hand(name, model.config.image):
                usual = source.data if name in own and source.data else DataConfig(name)
                (sets[name],) = usual.load("cpu", "test")
        fitting = [
            name
            for name in dict.fromkeys([*own, *sets])
            if name in sets and (sets[name].shape, sets[name].binary) == (model.config.image, model.config.binary)
        ]
        offered = dict(zip(runner.names(fitting), map(sets.__getitem__, fitting), strict=True))
        made.append(Playable(called, source.place, model.requires_grad_(False), offered))
    return made


def at_hand(name: str, image: tuple[int, int, int]) -> bool:
    """Whether images can be had without a download, and without minutes of drawing; only those that might fit."""
    if name in ("glyphs", "omniglot") and image != (1, 28, 28):
        return False
    if name == "omniglot":
        return omniglot.at_hand()
    if name == "mazes":
        return image == (3, 32, 32) and mazes.at_hand("test")
    return name == "glyphs" or Path(name).exists()


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
    """A socket to listen on; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(CONNECTIONS)  # who comes before the models are loaded waits
    except (OSError, OverflowError) as error:
        listener.close()
        why = f"{error}; usual cause: another server is there; --port 0 takes any that is free"
        raise OSError(f"{host}, port {port}: cannot be listened on ({why})") from None
    return listener


def loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def prepared(playground: Playground, host: str) -> uvicorn.Server:
    """The server, not started yet."""
    hosts = ("localhost", "127.0.0.1", "::1", host) if loopback(host) else None
    config = uvicorn.Config(
        playground.app(hosts),
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    return Server(config, playground)


class Connection(H11Protocol):
    """A connection that is let go where no request comes, or not the whole head of one, or where nobody reads.

    Where there are too many, the one that has waited longest for a request, or for the rest of it, makes way.
    """

    since = math.inf
    """When it began to wait for a request; infinity once there is one."""
    waiting: asyncio.TimerHandle | None = None
    """Ends it, unless the head of a request comes."""
    unread: asyncio.TimerHandle | None = None
    """Ends it, unless what was sent is read."""

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
            stop(self.waiting)
            self.waiting = None
            if not self.cycle.more_body:
                self.since = math.inf
        elif self.waiting is None:
            self.since = self.loop.time()
            self.waiting = self.loop.call_later(HEAD, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread = self.loop.call_later(HEAD, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        stop(self.unread)

    def connection_lost(self, exc: Exception | None) -> None:
        stop(self.waiting)
        stop(self.unread)
        super().connection_lost(exc)


def stop(timer: asyncio.TimerHandle | None) -> None:
    """Stop a timer, if there is one."""
    if timer is not None:
        timer.cancel()


class Server(uvicorn.Server):
    """A server that does not wait for its jobs when it is to end: it stops them."""

    def __init__(self, config: uvicorn.Config, playground: Playground) -> None:
        super().__init__(config)
        self.playground = playground

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.playground.close()
        await super().shutdown(sockets)


def serve(places: Sequence[str], host: str, port: int, browser: bool, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C."""
    with bind(host, port) as listener:
        torch.set_num_threads(1)  # two jobs at a time have a core each
        say("loading the models")
        for said in filter(None, map(checkpoint.taken, places)):
            say(said)
        playable = gather(places)
        if not loopback(host):
            say("everyone who can reach this machine can use it")
            playable = [replace(one, place=one.name) for one in playable]  # paths are nobody else's business
        warm_up(playable)
        server = prepared(Playground(playable), host)
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}/"
        say(f"{url}  (Ctrl-C ends it)")
        if browser:
            threading.Thread(target=open_page, args=(server, url), daemon=True).start()
        server.run(sockets=[listener])


def open_page(server: uvicorn.Server, url: str) -> None:
    """Open the page once the server answers."""
    while not server.started:
        time.sleep(0.05)
    webbrowser.open(url)
