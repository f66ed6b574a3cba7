"""The Dynamic Kanerva Machine: a generative memory that writes by Bayesian inference.

`kanerva.memory` is the exact mathematics, as pure functions on a `MemoryState`; `kanerva.kernels`
writes episodes faster with the same results; `DKM` is the model around them.
"""

__version__ = "0.1.0.dev0"

from . import data, kernels, memory
from .checks import deep_checks
from .codec import CodecConfig
from .config import PRESETS, DataConfig, RunConfig, TrainConfig
from .evaluate import Score, evaluate
from .memory import MemoryState
from .models import DKM, MODELS, DKMConfig, Model, Recall, Terms, create, load
from .train import train

ModelConfig = DKMConfig
"""The name of the DKM's config from before there were other models."""

__all__ = [
    "DKM",
    "MODELS",
    "PRESETS",
    "CodecConfig",
    "DKMConfig",
    "DataConfig",
    "MemoryState",
    "Model",
    "ModelConfig",
    "Recall",
    "RunConfig",
    "Score",
    "Terms",
    "TrainConfig",
    "__version__",
    "create",
    "data",
    "deep_checks",
    "evaluate",
    "kernels",
    "load",
    "memory",
    "train",
]
