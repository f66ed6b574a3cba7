"""What is at a place: a checkpoint, its model, or a memory. A model is made, loaded and found here.

A place is a file, the folder of a run, or the name of a model that comes with the package.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from ..memory import MemoryState
from ..support import files, tensors
from ..support.configs import from_dict
from ..support.say import nearest
from .base import MODELS, BaseConfig, Model, find

WEIGHTS = Path(__file__).parent / "weights"
LAST, BEST = "last.safetensors", "best.safetensors"  # of a run's folder


class Checkpoint(NamedTuple):
    """A file of tensors, and what it says of itself."""

    path: Path
    tensors: dict[str, Tensor]
    about: dict[str, Any]
    """What was saved with the tensors: model and run, both configs; step, seconds, best score, …"""

    @property
    def config(self) -> BaseConfig:
        """The config of the model."""
        return from_dict(BaseConfig, self.about.get("model"), f"{self.path}: model")

    @property
    def step(self) -> int | None:
        """How many steps the model was trained; None where the file does not say."""
        found = self.about.get("step")
        return found if isinstance(found, int) else None

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(x.numel() for x in self.part("model.").values())

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with a prefix, named without it."""
        return {name.removeprefix(prefix): x for name, x in self.tensors.items() if name.startswith(prefix)}

    def weights(self) -> dict[str, Tensor]:
        """The model's weights, averaged where there is an average."""
        return self.part("average.") or self.part("model.")

    def model(self) -> Model:
        """The model, in the dtype of its weights; float16, which makes files smaller, becomes float32."""
        config, where = self.config, str(self.path)
        kind = find(config.kind)
        weights = {name: x.float() if x.dtype == torch.float16 else x for name, x in self.weights().items()}
        dtype = tensors.dtype_of(weights, where)
        with torch.inference_mode(False):  # a model that could not be differentiated would be a surprise later
            try:
                # wrong digits in a config can ask for any amount of memory: a model without numbers takes none
                with torch.device("meta"):
                    shapes = kind(config).to(dtype).state_dict()
            except (ValueError, TypeError, RuntimeError, OverflowError) as error:
                line = str(error).splitlines()[0]
                raise ValueError(f"{where}: weights do not fit the model: {line}") from None
            tensors.match(shapes, weights, where)
            model = kind(config).to(dtype)
        model.load_state_dict(weights)
        return model.eval()


def read(place: str | Path) -> Checkpoint:
    """Read the checkpoint at a place; where there is none, the error says what there is."""
    path = locate(place)
    if path.is_file():
        return Checkpoint(path, *tensors.load(path))
    if path.name == LAST and path.parent.is_dir():
        hint = f"; {path.parent} is not the folder of a run, or nothing was saved there yet"
        raise FileNotFoundError(f"{path}: no such file{hint}")
    if path.suffix:
        raise FileNotFoundError(f"{path}: no such file")
    trained, others = shipped(), sorted(name for name, kind in MODELS.items() if kind.UNTRAINED)
    raise FileNotFoundError(
        f"{place}: no such checkpoint or run; pretrained: {', '.join(trained)}; without training, for commands "
        f"and kanerva.create: {', '.join(others)}{nearest(place, [*trained, *others])}"
    )


def locate(place: str | Path) -> Path:
    """A file's own path, that of the best checkpoint in a run's folder, or that of a model that comes along.

    A run that was never evaluated has no best checkpoint; its last one stands in for it.
    """
    if str(place) in shipped():
        return WEIGHTS / f"{place}.safetensors"
    path = Path(place)
    if not path.is_dir():
        return path
    return path / BEST if (path / BEST).is_file() else path / LAST


def taken(place: str | Path) -> str:
    """Which checkpoint `locate` takes of a run's folder, to be said; empty where there was no choice."""
    path = locate(place)
    chosen = path.name == BEST and path != Path(place)
    return f"{path}, the checkpoint with the best validation score of the run" if chosen else ""


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(file.stem for file in WEIGHTS.glob("*.safetensors"))


def load(path: str | Path) -> Model:
    """Load a pretrained model, such as "omniglot", or what `Model.save` or training wrote.

    `kanerva info` lists the pretrained models; the others are a file, or a run's folder. Weights are the averaged
    ones where there are any.
    """
    return read(path).model()


def create(
    name: str, image: tuple[int, int, int] = (1, 28, 28), likelihood: str = "bernoulli", **fields: Any
) -> Model:
    """Make an untrained model; `fields` are those of its config, such as rows, code or codec."""
    kind = find(name)
    known = [field.name for field in dataclasses.fields(kind.Config)]
    for field in fields:
        if field not in known:
            raise TypeError(f"{field}: expected a field of {name} ({', '.join(known)}){nearest(field, known)}")
    return kind(from_dict(kind.Config, {"kind": name, "image": image, "likelihood": likelihood, **fields}, name))


def load_state(path: str | Path) -> MemoryState:
    """Read a memory, or many, from a safetensors file of R and U: save_file(state._asdict(), path) wrote it."""
    found, metadata = tensors.read(Path(path))
    if not {"R", "U"} <= set(found):
        came = "a checkpoint of a model" if "kanerva" in metadata else ", ".join(sorted(found)[:5])
        raise ValueError(f"{path}: expected the R and U of a memory, got {came}")
    return MemoryState(found["R"], found["U"])


def save_state(path: str | Path, state: Any) -> None:
    """Write a memory, a NamedTuple of tensors, to a safetensors file, for `load_state`."""
    with files.atomic_write(Path(path)) as file:
        file.write(safetensors.torch.save(tensors.at_rest(state._asdict())))
