"""The exact mathematics of the memory, as pure functions: the reference that every fast path is judged by.

moments   how is a memory written and read, and what do both cost?
sums      what can be added to a memory, taken out of it, and found in it?
"""

from .moments import (
    Faded,
    Inverse,
    MemoryState,
    Weights,
    address,
    complete,
    condition,
    drift,
    energy,
    infer,
    inverse,
    kl_memory,
    kl_update,
    kl_weights,
    predict,
    prior,
    read,
    sample,
    update,
    write,
)
from .sums import Frame, absorb, forget, frame, span

__all__ = [
    "Faded",
    "Frame",
    "Inverse",
    "MemoryState",
    "Weights",
    "absorb",
    "address",
    "complete",
    "condition",
    "drift",
    "energy",
    "forget",
    "frame",
    "infer",
    "inverse",
    "kl_memory",
    "kl_update",
    "kl_weights",
    "predict",
    "prior",
    "read",
    "sample",
    "span",
    "update",
    "write",
]
