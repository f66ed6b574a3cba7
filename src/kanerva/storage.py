"""Tensors and JSON in one safetensors file, written atomically. Nothing is ever unpickled."""

import json
import zlib
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from .files import atomic_write
from .memory import MemoryState

FORMAT = 1
WEIGHTS = Path(__file__).parent / "weights"
LAST = "last.safetensors"  # of a run's folder


def save(path: str | Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write named tensors and what is to be said about them; an old file stays until the new one is whole."""
    from . import __version__

    plain = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
    note = json.dumps({"format": FORMAT, "version": __version__, "crc32": crc32(plain), **about})
    data = safetensors.torch.save(plain, {"kanerva": note})
    with atomic_write(Path(path)) as file:
        file.write(data)


def load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; a file that is missing, damaged or not ours is an error that says so."""
    path = Path(path)
    if not path.is_file():
        usual = ""
        if not path.suffix:
            usual = f"; models that come along: {', '.join(shipped())}"
        elif path.name == LAST and path.parent.is_dir():
            usual = f"; {path.parent} is not the folder of a run, or nothing was saved there yet"
        raise FileNotFoundError(f"{path}: no such file{usual}")
    tensors, note = read(path)
    if note is None:
        raise ValueError(f"{path}: a safetensors file, but not one that kanerva wrote")
    try:
        about = json.loads(note)
    except json.JSONDecodeError:
        raise ValueError(f"{path}: its description is damaged") from None
    if not isinstance(about, dict):
        raise ValueError(f"{path}: its description is damaged")
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{path}: expected format {FORMAT}, got {about.get('format')} written by kanerva {about.get('version')}"
        )
    if about.get("crc32") != crc32(tensors):
        raise ValueError(f"{path}: damaged: its numbers are not those that were written")
    return tensors, about


def read(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """The tensors of any safetensors file, and what kanerva has noted in it, if anything."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            note = (file.metadata() or {}).get("kanerva")
            return {name: file.get_tensor(name) for name in file.keys()}, note  # noqa: SIM118 (it is no dict)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a readable safetensors file, cut short or damaged ({error})") from None


def load_state(path: str | Path) -> MemoryState:
    """Read a memory, or many, from a safetensors file of R and U: save_file(state._asdict(), path) wrote it."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    tensors, note = read(path)
    if not {"R", "U"} <= set(tensors):
        usual = "; this is a checkpoint of a model" if note is not None else ""
        raise ValueError(f"{path}: expected the R and U of a memory, got {', '.join(sorted(tensors)[:5])}{usual}")
    return MemoryState(tensors["R"], tensors["U"])


def find(path: str | Path) -> Path:
    """A file's own path, that of the last checkpoint in a run's folder, or that of a model that comes along."""
    if str(path) in shipped():
        return WEIGHTS / f"{path}.safetensors"
    path = Path(path)
    return path / LAST if path.is_dir() else path


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(file.stem for file in WEIGHTS.glob("*.safetensors"))


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, named without it."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def crc32(tensors: dict[str, Tensor]) -> int:
    """A checksum of all names and numbers; safetensors has none."""
    total = 0
    for name in sorted(tensors):
        data = tensors[name].reshape(-1).view(torch.uint8).numpy()
        total = zlib.crc32(data.tobytes(), zlib.crc32(name.encode(), total))
    return total


def fill(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Copy tensors into a module's parameters; every one must be there and fit."""
    own = module.state_dict()
    if set(own) != set(tensors):
        missing, unknown = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
        raise ValueError(f"{where}: weights do not fit the model: missing {missing[:3]}, unknown {unknown[:3]}")
    for name, x in tensors.items():
        if own[name].shape != x.shape:
            raise ValueError(f"{where}: {name}: expected shape {tuple(own[name].shape)}, got {tuple(x.shape)}")
    with torch.no_grad():
        module.load_state_dict(tensors)
