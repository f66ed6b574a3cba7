"""The Dynamic Kanerva Machine: a generative memory that writes by Bayesian inference.

`kanerva.memory` is the exact mathematics, as pure functions on a `MemoryState`; `kanerva.kernels`
writes episodes faster with the same results; `DKM` is the model around them.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import data, kernels, memory, nn
    from .codec import CodecConfig
    from .memory import MemoryState
    from .models import DKM, MODELS, DKMConfig, Model, Recall, Terms, create, load
    from .support.checks import deep_checks
    from .training.config import DataConfig, RunConfig, TrainConfig
    from .training.evaluate import Score, evaluate
    from .training.loop import train
    from .training.presets import PRESETS

__all__ = [
    "DKM",
    "MODELS",
    "PRESETS",
    "CodecConfig",
    "DKMConfig",
    "DataConfig",
    "MemoryState",
    "Model",
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
    "nn",
    "train",
]

# The files that names come from. They are imported when a name is first used: `kanerva --help` needs no PyTorch.
_SOURCES = {
    "support.checks": ("deep_checks",),
    "codec": ("CodecConfig",),
    "memory": ("MemoryState",),
    "models": ("DKM", "MODELS", "DKMConfig", "Model", "Recall", "Terms", "create", "load"),
    "training.config": ("DataConfig", "RunConfig", "TrainConfig"),
    "training.evaluate": ("Score", "evaluate"),
    "training.loop": ("train",),
    "training.presets": ("PRESETS",),
}
_SOURCE = {name: source for source, names in _SOURCES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name, or a file of the package, when it is first used [PEP 562]."""
    if name in _SOURCE:
        value = getattr(importlib.import_module(f"{__name__}.{_SOURCE[name]}"), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
