"""The Dynamic Kanerva Machine: a generative memory that writes by Bayesian inference.

`kanerva.memory` is the exact mathematics, as pure functions on a `MemoryState`; `kanerva.kernels`
writes episodes faster with the same results; `DKM` is the model around them.
"""

__version__ = "0.1.0.dev0"

from . import data, kernels, memory
from .checks import deep_checks
from .codec import CodecConfig
from .config import PRESETS, DataConfig, ModelConfig, RunConfig, TrainConfig
from .evaluate import Score, evaluate
from .memory import MemoryState
from .models.dkm import DKM, Terms, load
from .recall.methods import Recall
from .train import train

__all__ = [
    "DKM",
    "PRESETS",
    "CodecConfig",
    "DataConfig",
    "MemoryState",
    "ModelConfig",
    "Recall",
    "RunConfig",
    "Score",
    "Terms",
    "TrainConfig",
    "__version__",
    "data",
    "deep_checks",
    "evaluate",
    "kernels",
    "load",
    "memory",
    "train",
]
