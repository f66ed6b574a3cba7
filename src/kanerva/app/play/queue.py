"""Who computes when: a bounded line, a few at a time, one job a visitor, and an end to each.

Where nobody asks for anything, memories are searched in the background, so that recall only has to choose.
"""

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from jaxtyping import Float
from starlette.exceptions import HTTPException
from torch import Tensor

from ...memory import MemoryState
from ...models import DKM
from ...recall import frame
from ...recall.watch import watching
from ...support.say import say
from .pictures import pack
from .session import Inside, Session, Sessions

# Jobs in line, and those of one visitor.
WAITING, OWN = 40, 3
# Seconds that a job may take.
SECONDS = 60.0
# Seconds after which a search in the background ends that has found nothing, and those that it sleeps while others
# are served.
BARREN, NAP = 10.0, 0.02
# Least seconds between two reports of what a search looks at.
EVERY = 0.06

Body = dict[str, Any]


class Stopped(Exception):
    """Nobody waits for the result any more."""


class Job:
    """What a panel reports to: `emit` sends an event, and ends the job where it is to end."""

    def __init__(self, send: Callable[[dict[str, Any] | None], None], binary: bool) -> None:
        self.send, self.binary, self.stop = send, binary, threading.Event()
        self.until, self.next = time.monotonic() + SECONDS, 0.0
        self.found: Callable[[Tensor], None] | None = None
        """What to do with images that a search finds."""
        self.tags: dict[str, Any] = {}
        """What every report of a search says beside its image."""

    def emit(self, **event: Any) -> None:
        """Send an event to the page."""
        self.check()
        self.send(event)

    def check(self) -> None:
        """End here if nobody waits, or if it took too long."""
        if self.stop.is_set():
            raise Stopped
        if time.monotonic() > self.until:
            raise ValueError(f"stopped after {SECONDS:.0f} s; fewer images in the memory are quicker")

    def watch(self, what: str, x: Float[Tensor, "*b c h w"]) -> None:
        """Show what a search looks at, now and then, and all that it finds."""
        self.check()
        if what == "found" and self.found is not None:
            self.found(x)
        elif what == "looking" and time.monotonic() > self.next:
            self.next = time.monotonic() + EVERY
            first = x.reshape(-1, *x.shape[-3:])[0]
            self.send({"event": "looking", **self.tags, "image": pack(first, self.binary)})


Work = Callable[[Session, Body, Job], dict[str, Any]]


class Line:
    """Threads that work off jobs, and the jobs that wait for them."""

    def __init__(self, threads: int, after: Callable[[Session], None]) -> None:
        self.threads, self.pool = threads, ThreadPoolExecutor(threads, "kanerva-play")
        self.now, self.after = set[Job](), after
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def jobs(self) -> int:
        """How many run or wait."""
        return len(self.now)

    def close(self) -> None:
        """Stop all jobs."""
        for job in self.now:
            job.stop.set()

    def ask(self, work: Work, session: Session, body: Body) -> AsyncIterator[dict[str, Any]]:
        """What a job reports, as it reports it, up to "done" or "error"; an error where the line is full."""
        if self.jobs >= WAITING:
            raise HTTPException(503, "too many visitors are waiting; try again in a moment")
        if session.jobs >= OWN:
            raise HTTPException(503, "what you asked for before is still being worked on; wait for it")
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Body | None]()
        job = Job(lambda event: post(loop, events, event), session.binary)
        if self.jobs >= self.threads:
            job.send({"event": "waiting", "ahead": self.jobs})
        self.now.add(job)
        session.jobs += 1
        task = loop.create_task(self.run(work, session, body, job))
        self.tasks.add(task)  # it goes on until its thread has noticed that nobody waits
        task.add_done_callback(self.tasks.discard)
        return stream(job, events)

    async def run(self, work: Work, session: Session, body: Body, job: Job) -> None:
        """Wait for the visitor's other jobs and for a thread, then work."""
        try:
            async with session.lock:
                if not job.stop.is_set():
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(self.pool, attempt, work, session, body, job)
        finally:
            self.now.remove(job)
            session.jobs -= 1
            job.send(None)
            self.after(session)


class Background:
    """One thread that searches memories while nobody asks for anything; what it finds, recall chooses among.

    The memory that was used last comes first. A search naps while there are jobs. It ends when its memory changes
    or is dropped, and makes way for a search of the same memory that somebody waits for.
    """

    def __init__(self, sessions: Sessions, busy: Callable[[], bool]) -> None:
        self.sessions, self.busy, self.pool = sessions, busy, ThreadPoolExecutor(1, "kanerva-play-inside")
        self.now: Inside | None = None
        self.task: asyncio.Task[None] | None = None
        self.closed = False

    def look(self, session: Session) -> None:
        """Search a memory next, if there is something to be found in it."""
        if not wanting(session):
            return
        if self.now is not None and self.now is not session.inside:
            self.now.stop()
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self.run())

    async def run(self) -> None:
        """Search one memory after another."""
        loop = asyncio.get_running_loop()
        while not self.closed and (session := next(filter(wanting, reversed(self.sessions.kept.values())), None)):
            inside = self.now = session.inside
            inside.search = threading.Event()
            try:
                await loop.run_in_executor(self.pool, self.search, session.model, session.state, inside)
            finally:
                inside.stop()  # in case that the loop ends before the search does
                self.now = inside.search = None

    def close(self) -> None:
        """Stop, for good."""
        self.closed = True
        if self.now is not None:
            self.now.stop()

    def search(self, model: DKM, state: MemoryState, inside: Inside) -> None:
        """Find what a memory holds, in the thread."""
        torch.set_num_threads(1)
        start, stop = time.monotonic(), inside.search
        assert stop is not None

        def watch(what: str, x: Float[Tensor, "*b c h w"]) -> None:
            if what == "found":
                inside.add(x)
            while not stop.is_set() and self.busy():
                time.sleep(NAP)
            past = time.monotonic() - start
            if stop.is_set() or past > SECONDS or (past > BARREN and not inside.images):
                raise Stopped

        try:
            if not stop.is_set():
                with watching(watch):
                    inside.contents = frame.contents(model.retriever, state, known=inside.known)
        except Stopped:
            pass
        except Exception:
            say(traceback.format_exc())
        inside.over = not stop.is_set()


def wanting(session: Session) -> bool:
    """Whether it is worth while to search a visitor's memory now."""
    return bool(len(session.x)) and not session.inside.over and not session.jobs


async def stream(job: Job, events: "asyncio.Queue[dict[str, Any] | None]") -> AsyncIterator[dict[str, Any]]:
    """The events of a job up to its end; who stops listening stops the job."""
    try:
        while (event := await events.get()) is not None:
            yield event
    finally:
        job.stop.set()


def post(loop: asyncio.AbstractEventLoop, queue: "asyncio.Queue[Any]", event: Any) -> None:
    """Hand an event from a thread to the loop."""
    with contextlib.suppress(RuntimeError):  # the loop has ended: so has the server
        loop.call_soon_threadsafe(queue.put_nowait, event)


def attempt(work: Work, session: Session, body: Body, job: Job) -> None:
    """Work, in a thread of its own; its result or its error is the last event."""
    torch.set_num_threads(1)
    start = time.monotonic()
    job.until = start + SECONDS  # waiting does not count
    try:
        with torch.no_grad(), watching(job.watch):
            result = work(session, body, job)
        job.send({"event": "done", "ms": 1000 * (time.monotonic() - start), **result})
    except Stopped:
        return
    except (ValueError, TypeError) as error:
        job.send({"event": "error", "error": str(error)})
    except Exception as error:
        say(traceback.format_exc())
        job.send({"event": "error", "error": f"{type(error).__name__}: {error}; this was not foreseen"})
