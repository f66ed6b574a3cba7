"""Models to try, by name or from checkpoints, each with images that it has seen and has not.

A place is a checkpoint, the folder of a run, a pretrained model ("mazes", "omniglot", "omniglot-new"), or the name
of a model that needs no training ("nearest"); "hopfield:PLACE" is Hopfield retrieval on the codes of the model at
PLACE.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import models, storage
from .config import DataConfig, RunConfig
from .data import ClassImages, changes
from .fields import from_dict
from .models import Model
from .streams import say


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
    """The other part: models and images. Says which checkpoint of a run is taken, and which images have changed."""
    called = names([found.place for found, _ in sources])
    for (found, config), own in zip(sources, called, strict=True):
        if said := storage.taken(found.place):
            say(said)
        seen, unseen = config.load(device, config.split, "test")
        about = origin(found, config)
        if changed := since(found, config, seen, unseen):
            say(f"{found.place}: {changed}")
            about["changed"] = changed
        yield Subject(own, make(found, seen).to(device), seen, unseen, about)


def since(found: Source, config: DataConfig, seen: ClassImages, unseen: ClassImages) -> str:
    """What has become of the user's own images since a model was trained on them; empty if nothing has."""
    then, parts = storage.part(found.tensors, "data."), list[str]()
    if found.data is not None and found.data.dataset == config.dataset:
        both = {images.split: images for images in (seen, unseen)}
        whole = {name: changes(then[name], images.marks) for name, images in both.items() if name in then}
        parts = [f"{name} images: {what}" for name, what in whole.items() if what]
    said = f"{config.dataset} has changed since this model was trained: {'; '.join(parts)}" if parts else ""
    trained = {mark for name in then if name.startswith("train") for mark in then[name][:, 1].tolist()}
    known = len(trained & set(unseen.marks[:, 1].tolist())) if trained else 0
    if known:
        again = f"{known} of {unseen.different} different test images of {config.dataset} were trained on"
        said = f"{said}; {again}" if said else again
    return said


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
    return names([place])[0]


def names(places: Sequence[str]) -> list[str]:
    """Short names for places, each another: with the folders above them where the names are the same."""
    ways = [way(place) for place in places]
    deep = dict.fromkeys(ways, 1)
    for _ in range(max(map(len, ways), default=0)):
        made = ["/".join(parts[-depth:]) for parts, depth in deep.items()]
        deep = {
            parts: depth + (made.count(name) > 1) for (parts, depth), name in zip(deep.items(), made, strict=True)
        }
    found = ["/".join(parts[-deep[parts] :]) for parts in ways]
    # the same place twice
    return [
        name if name not in found[:i] else f"{name} ({found[: i + 1].count(name)})" for i, name in enumerate(found)
    ]


def way(place: str) -> tuple[str, ...]:
    """The parts of a path, without its ending; or a name."""
    if place in storage.shipped() or not Path(place).exists():
        return (place,)
    path = Path(place)
    return path.resolve().parts if path.is_dir() else (*path.absolute().parts[:-1], path.stem)
