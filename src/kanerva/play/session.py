"""A visitor's memory, and how many of them are kept."""

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from ..lab.plane import Plane
from ..memory import MemoryState
from ..models import DKM
from ..recall.retriever import StoredImages

# Sessions that are kept, the bytes of their images, and the seconds that one may be idle.
MOST, BYTES, IDLE = 200, 256 * 2**20, 3600.0
# Images that can be written into one memory.
LENGTH = 64


class Gone(Exception):
    """A session that is no longer kept, or never was."""


@dataclass
class Inside:
    """What has been found in one memory without a cue; where the memory changes, another one takes its place."""

    images: dict[bytes, Float[Tensor, "c h w"]] = field(default_factory=dict)
    """What searches have found so far, by their pixels."""
    contents: StoredImages | None = None
    """All that a search to its end has found."""
    search: threading.Event | None = None
    """Stops the search that goes on in the background."""
    over: bool = False
    """Whether there is nothing to gain by another one."""

    def add(self, x: Float[Tensor, "c h w"]) -> None:
        """Note an image that was found."""
        self.images[x.numpy().tobytes()] = x

    def stop(self) -> None:
        """Stop the search in the background; what it has found is kept."""
        if self.search is not None:
            self.search.set()

    @property
    def known(self) -> Float[Tensor, "n c h w"] | None:
        """What is known to be in there."""
        some = list(self.images.values())  # a copy: a search may still add to it
        return torch.stack(some) if some else None


@dataclass
class Session:
    """One visitor's memory, what was written in it, and what has been found out about it."""

    id: str
    name: str
    """Of the model."""
    model: DKM
    state: MemoryState
    x: Float[Tensor, "T c h w"]
    labels: list[str] = field(default_factory=list)
    inside: Inside = field(default_factory=Inside)
    plane: Plane | None = None
    """The plane of the last map."""
    used: float = field(default_factory=time.monotonic)
    jobs: int = 0
    """Jobs that run or wait."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def nbytes(self) -> int:
        return self.x.numel() * self.x.element_size()

    @property
    def distinct(self) -> int:
        """How many different images were written."""
        return len({x.numpy().tobytes() for x in self.x})

    def begin(self, name: str, model: DKM) -> None:
        """Start with a blank memory of a model."""
        with torch.no_grad():
            self.name, self.model, self.state = name, model, model.blank()
        self.x, self.labels = model.like.new_zeros(0, *model.config.image), []
        self.changed()

    def changed(self) -> None:
        """Drop what was found out about the memory before it changed."""
        self.inside.stop()
        self.inside, self.plane = Inside(), None


class Sessions:
    """All sessions, the last used at the end; beyond the limits, the longest idle are dropped, never a busy one."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, Session] = OrderedDict()

    def new(self, name: str, model: DKM) -> Session:
        """A session with a blank memory and an id that nobody can guess."""
        blank = model.like.new_zeros(0, *model.config.image)
        with torch.no_grad():
            session = Session(secrets.token_urlsafe(18), name, model, model.blank(), blank)
        self.kept[session.id] = session
        self.trim()
        return session

    def find(self, id: str | None) -> Session:
        """The session of an id, used now."""
        session = self.kept.get(id or "")
        if session is None:
            raise Gone("this page's memory is no longer kept; a new, blank one takes its place")
        session.used = time.monotonic()
        self.kept.move_to_end(session.id)
        return session

    def trim(self) -> None:
        """Keep to the limits."""
        now = time.monotonic()
        for session in [one for one in self.kept.values() if not one.jobs][:-1]:
            full = len(self.kept) > MOST or sum(one.nbytes for one in self.kept.values()) > BYTES
            if full or now - session.used > IDLE:
                del self.kept[session.id]
                session.begin(session.name, session.model)  # a blank one, in which nobody looks for anything
