"""Watching a search: what it looks at, and what it has found, while it goes on.

    with watching(print):
        model.contents(state)

A search has no steps to wait for: it takes as long as it takes. Who watches is told of every look, tens of
milliseconds apart, and can end the search by raising an error.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

from jaxtyping import Float
from torch import Tensor

Watch = Callable[[str, Float[Tensor, "*b c h w"]], None]
"""Called with "looking" and the images that are looked at, or with "found" and one image that is in the memory."""

_watch: contextvars.ContextVar[Watch | None] = contextvars.ContextVar("watch", default=None)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Be told of the searches within; holds for the thread that entered it."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def tell(what: str, x: Float[Tensor, "*b c h w"]) -> None:
    """Tell whoever watches."""
    if (watch := _watch.get()) is not None:
        watch(what, x.detach())
