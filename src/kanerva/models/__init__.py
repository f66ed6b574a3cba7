"""Every model that goes through the harness, by name; `create` makes one, `load` reads a trained one."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from .. import data, storage
from ..fields import from_dict
from .base import BaseConfig, Model, Recall, Terms
from .dkm import DKM, DKMConfig
from .rivals.dnc import DNC
from .rivals.gpm import GPM
from .rivals.hopfield import Hopfield
from .rivals.km import KM
from .rivals.nearest import Nearest
from .rivals.vae import VAE

__all__ = ["DKM", "MODELS", "BaseConfig", "DKMConfig", "Model", "Recall", "Terms", "create", "find", "load"]

MODELS: dict[str, type[Model]] = {
    "dkm": DKM,
    "km": KM,
    "gpm": GPM,
    "vae": VAE,
    "dnc": DNC,
    "hopfield": Hopfield,
    "nearest": Nearest,
}


def find(name: str) -> type[Model]:
    """The model of a name; an unknown one is an error."""
    if name not in MODELS:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}, got {name!r}{data.nearest(name, MODELS)}")
    return MODELS[name]


def create(
    name: str, image: tuple[int, int, int] = (1, 28, 28), likelihood: str = "bernoulli", **fields: Any
) -> Model:
    """Make an untrained model; `fields` are those of its config, such as rows, code or codec."""
    kind = find(name)
    known = [field.name for field in dataclasses.fields(kind.Config)]
    for field in fields:
        if field not in known:
            raise TypeError(f"{field}: expected a field of {name} ({', '.join(known)}){data.nearest(field, known)}")
    return kind(from_dict(kind.Config, {"kind": name, "image": image, "likelihood": likelihood, **fields}, name))


def load(path: str | Path) -> Model:
    """Load a pretrained model ("mazes", "omniglot", "omniglot-new"), or what `Model.save` or training wrote.

    That is a file, or a run's folder. Weights are the averaged ones where there are any.
    """
    where, tensors, about = read(path)
    return build(tensors, about, str(where))


def read(place: str | Path) -> tuple[Path, dict[str, torch.Tensor], dict[str, Any]]:
    """Find a checkpoint and read it; where there is none, the error says what there is."""
    path = storage.find(place)
    if not path.exists() and not path.suffix:
        trained, others = storage.shipped(), sorted(name for name, kind in MODELS.items() if kind.UNTRAINED)
        raise FileNotFoundError(
            f"{place}: no such checkpoint or run; pretrained: {', '.join(trained)}; without training, for commands "
            f"and kanerva.create: {', '.join(others)}{data.nearest(place, [*trained, *others])}"
        )
    return path, *storage.load(path)


def config_of(about: dict[str, Any], where: str) -> BaseConfig:
    """The config of the model that a checkpoint holds."""
    return from_dict(BaseConfig, about.get("model"), f"{where}: model")


def build(tensors: dict[str, torch.Tensor], about: dict[str, Any], where: str) -> Model:
    """The model of a checkpoint that has been read, in the dtype of its weights; float16 becomes float32."""
    config = config_of(about, where)
    kind = find(config.kind)
    weights = storage.widened(storage.part(tensors, "average.") or storage.part(tensors, "model."))
    dtype = storage.dtype(weights, where)
    with torch.inference_mode(False):  # a model that could not be differentiated would be a surprise later
        # a few wrong digits in a config can ask for any amount of memory, so compare sizes before anything is made
        storage.match(blueprint(kind, config, len(weights), where).to(dtype).state_dict(), weights, where)
        model = kind(config).to(dtype)
    model.load_state_dict(weights)
    return model.eval()


# So many more tensors than there are may a config ask for and still be built, to say which are missing.
SPARE = 1000


def blueprint(kind: type[Model], config: BaseConfig, count: int, where: str) -> Model:
    """A model on the meta device, which has shapes and no numbers.

    One of far more than `count` parameters is refused while it is being made: layers without numbers take time too.
    """
    made, here = 0, threading.get_ident()

    def register(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal made
        made += parameter is not None and threading.get_ident() == here
        if made > count + SPARE:
            raise ValueError(f"the config asks for more than {count + SPARE} tensors, and there are {count}")

    handle = register_module_parameter_registration_hook(register)
    try:
        with torch.device("meta"):
            return kind(config)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        line = str(error).splitlines()[0]
        raise ValueError(f"{where}: weights do not fit the model: {line}") from None
    finally:
        handle.remove()
