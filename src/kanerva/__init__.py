"""The Dynamic Kanerva Machine: a generative memory that writes by Bayesian inference.

`kanerva.memory` is the exact mathematics, as pure functions on a `MemoryState`; `kanerva.data` loads images and
draws episodes from them.
"""

from . import data, memory
from .checks import deep_checks
from .memory import MemoryState

__version__ = "0.1.0.dev0"
__all__ = ["MemoryState", "__version__", "data", "deep_checks", "memory"]
