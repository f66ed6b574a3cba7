"""Attractor dynamics, and looking into a memory. Recall knows a `Retriever` and nothing of models.

retriever    what does recall know of a model, of memories and of cues?
methods      descent, least-squares, stochastic: which steps lead from a cue to an image?
trajectory   what does recall give, step by step?
search       which weights explain a cue of bits best?
newton       which weights explain a cue of real-valued pixels best?
descent      how are many small vectors lowered in energy at once?
frame        what does a memory contain: counting, forgetting, finding without a cue?
counts       how often were vectors written, which have no codec?
vectors      how are vectors recalled, which have no codec?
watch        who is told what a search looks at and finds?
"""

from .methods import METHODS
from .retriever import StoredImages
from .trajectory import Recall, Snapshot
from .watch import Watch, watching

__all__ = ["METHODS", "Recall", "Snapshot", "StoredImages", "Watch", "watching"]
