"""A visitor's memory, and how many of them are kept."""

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from starlette.exceptions import HTTPException
from torch import Tensor

from ...data import ClassImages
from ...lab.plane import Plane
from ...memory import MemoryState
from ...models import DKM
from ...recall.retriever import StoredImages

# Sessions that are kept, the bytes of their images, and the seconds that one may be idle.
MOST, BYTES, IDLE = 200, 256 * 2**20, 3600.0
# Images that can be written into one memory.
LENGTH = 64


@dataclass(frozen=True)
class Playable:
    """A model to play with, and the unseen images at hand that fit it."""

    name: str
    place: str
    """Where it was loaded from."""
    model: DKM
    sets: dict[str, ClassImages]


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


class Session:
    """One visitor's memory, what was written in it, and what has been found out about it."""

    state: MemoryState
    x: Float[Tensor, "T c h w"]
    plane: Plane | None
    """The plane of the last map."""

    def __init__(self, playable: Playable) -> None:
        self.id = secrets.token_urlsafe(18)  # which nobody can guess
        self.used, self.lock, self.inside = time.monotonic(), asyncio.Lock(), Inside()
        self.jobs = 0
        """Jobs that run or wait."""
        self.begin(playable)

    def begin(self, playable: Playable) -> None:
        """Start with the blank memory of a model."""
        self.playable, self.model = playable, playable.model
        with torch.no_grad():
            self.became(self.model.blank(), self.model.like.new_zeros(0, *self.model.config.image))

    def became(self, state: MemoryState, x: Float[Tensor, "T c h w"]) -> None:
        """Take a changed memory, and drop what was found out about the one before it."""
        self.inside.stop()
        self.state, self.x, self.inside, self.plane = state, x, Inside(), None

    @property
    def binary(self) -> bool:
        return self.model.config.binary

    @property
    def distinct(self) -> int:
        """How many different images were written."""
        return len({x.numpy().tobytes() for x in self.x})


class Sessions:
    """All sessions, the last used at the end; beyond the limits, the longest idle are dropped, never a busy one."""

    def __init__(self, playable: Sequence[Playable]) -> None:
        self.models = {one.name: one for one in playable}
        self.kept: OrderedDict[str, Session] = OrderedDict()

    def new(self) -> Session:
        """A session with a blank memory of the first model."""
        session = Session(next(iter(self.models.values())))
        self.kept[session.id] = session
        self.trim()
        return session

    def find(self, id: str | None) -> Session:
        """The session of an id, used now."""
        session = self.kept.get(id or "")
        if session is None:
            raise HTTPException(410, "this page's memory is no longer kept; a new, blank one takes its place")
        session.used = time.monotonic()
        self.kept.move_to_end(session.id)
        self.trim()
        return session

    def trim(self) -> None:
        """Keep to the limits."""
        now = time.monotonic()
        for session in [one for one in self.kept.values() if not one.jobs][:-1]:
            full = len(self.kept) > MOST or sum(one.x.nbytes for one in self.kept.values()) > BYTES
            if full or now - session.used > IDLE:
                del self.kept[session.id]
                session.begin(session.playable)  # a blank one, in which nobody looks for anything
