"""Every model that goes through the harness, by name; `create` makes one, `load` reads a trained one."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from .. import data, storage
from ..fields import from_dict
from .base import BaseConfig, Model, Recall, Terms
from .dkm import DKM, DKMConfig
from .hopfield import Hopfield
from .nearest import Nearest
from .vae import VAE

__all__ = ["DKM", "MODELS", "BaseConfig", "DKMConfig", "Model", "Recall", "Terms", "create", "find", "load"]

MODELS: dict[str, type[Model]] = {
    "dkm": DKM,
    "vae": VAE,
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
    """Load a pretrained model ("omniglot"), or what `Model.save` or training wrote (a file, or a run's folder).

    Weights are the averaged ones where there are any. A file that names no kind of model holds a DKM.
    """
    path = storage.find(path)
    tensors, about = storage.load(path)
    return build(tensors, about, str(path))


def config_of(about: dict[str, Any], where: str) -> BaseConfig:
    """The config of the model that a checkpoint holds."""
    return from_dict(BaseConfig, about.get("model"), f"{where}: model")


def build(tensors: dict[str, torch.Tensor], about: dict[str, Any], where: str) -> Model:
    """The model of a checkpoint that has been read."""
    config = config_of(about, where)
    with torch.inference_mode(False):  # a model that could not be differentiated would be a surprise later
        model = find(config.kind)(config)
    storage.fill(model, storage.part(tensors, "average.") or storage.part(tensors, "model."), where)
    return model.eval()
