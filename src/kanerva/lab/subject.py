"""Models to try, by name or from checkpoints, each with images that it has seen and has not.

A place is a checkpoint, the folder of a run, a pretrained model ("mazes", "omniglot", "omniglot-new"), or the name
of a model that needs no training ("nearest"); "hopfield:PLACE" is Hopfield retrieval on the codes of the model at
PLACE.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import models
from ..config import DataConfig, RunConfig
from ..data import ClassImages
from ..fields import from_dict
from ..models import Model


class Subject(NamedTuple):
    """A model, and images of classes that it has seen and has not."""

    name: str
    model: Model
    seen: ClassImages
    unseen: ClassImages
    about: dict[str, Any]
    """Where the model comes from, for the file of results."""


class Source(NamedTuple):
    """What is known of a model before it is made."""

    place: str
    kind: str
    data: DataConfig | None
    """The images that it was trained on, where it says."""
    tensors: dict[str, torch.Tensor]
    about: dict[str, Any]
    """What its checkpoint says of itself; empty where there is none."""


def find(
    places: Sequence[str],
    device: torch.device | str = "cpu",
    dataset: str | None = None,
    data_dir: str | None = None,
    needs: str | None = None,
    purpose: str = "this",
) -> Iterator[Subject]:
    """Load models one after another, with the images to try them on; `needs` is the one kind that serves a purpose.

    Images are those of a data set that is named, or those that a model was trained on. A model that was trained on
    none takes those of the first one here that was, or glyphs.
    """
    return load(sources(places, dataset, data_dir, needs, purpose), device)


def sources(
    places: Sequence[str],
    dataset: str | None = None,
    data_dir: str | None = None,
    needs: str | None = None,
    purpose: str = "this",
) -> list[tuple[Source, DataConfig]]:
    """The part of `find` before anything is made: what is at the places, and the images for each."""
    if not places:
        raise ValueError("checkpoint: expected at least one, got none")
    read = [source(place) for place in places]
    for found in read:
        if needs is not None and found.kind != needs:
            wanted = models.find(needs).__name__
            raise ValueError(f"{purpose}: needs a {wanted}, got {found.place}, which is of kind {found.kind}")
    usual = next((found.data for found in read if found.data is not None), DataConfig())
    return [(found, (found.data or usual).other(dataset, data_dir)) for found in read]


def load(sources: Sequence[tuple[Source, DataConfig]], device: torch.device | str = "cpu") -> Iterator[Subject]:
    """The other part: models and images."""
    for found, config in sources:
        seen, unseen = config.load(device)
        yield Subject(name(found.place), make(found, seen).to(device), seen, unseen, origin(found, config))


def origin(found: Source, config: DataConfig) -> dict[str, Any]:
    """Where a model and its images come from, for the file of results."""
    about = {key: found.about.get(key) for key in ("step", "seconds", "crc32")}
    return {"checkpoint": found.place, "kind": found.kind, **about, "dataset": config.dataset}


def source(place: str) -> Source:
    """Read what is at a place."""
    kind, colon, codec = place.partition(":")
    if kind in models.MODELS and not Path(place).exists():
        if not models.MODELS[kind].UNTRAINED:
            raise ValueError(f"{place}: expected a checkpoint of it; kanerva train PRESET --model {kind} makes one")
        if not colon:
            return Source(place, kind, None, {}, {})
        inner = source(codec) if codec else None
        if inner is None or models.MODELS[inner.kind].UNTRAINED:
            raise ValueError(f"{place}: expected a trained model after the colon, got {codec or 'nothing'}")
        return inner._replace(place=place, kind=kind)
    path, tensors, about = models.read(place)
    kind = models.config_of(about, str(path)).kind
    run = about.get("run")
    trained = None if run is None else from_dict(RunConfig, run, f"{path}: run").data
    return Source(place, kind, trained, tensors, about)


def make(found: Source, seen: ClassImages) -> Model:
    """The model of a source; one that needs no training, and is new, looks at images that training would see."""
    if found.tensors:
        model = models.build(found.tensors, found.about, found.place)
        if model.config.kind == found.kind:
            return model
        model = models.MODELS[found.kind].on(model)
    else:
        model = models.create(found.kind, seen.shape, seen.likelihood)
    model.to(seen.device).adapt(seen)
    return model.eval()


def name(place: str) -> str:
    """A short name for a place: that of the folder or file, without its ending."""
    path = Path(place)
    return place if not path.exists() else path.resolve().name if path.is_dir() else path.stem
