"""Tensors and JSON in one safetensors file, written atomically and checked whole. Nothing is ever unpickled.

Format 2: the file's metadata have `kanerva`, a JSON description, and `sha256`, which covers that text and the name,
dtype, shape and bytes of every tensor. Format 1 had a CRC-32 of names and bytes only, and loads with a warning.
"""

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .files import atomic_write, check_size
from .memory import MemoryState
from .plain import loads

FORMAT = 2
HEADER = (
    2**22
)  # bytes that name and describe tensors: ours has some thousand, and each takes 20 times as many to read
WEIGHTS = Path(__file__).parent / "weights"
LAST, BEST = "last.safetensors", "best.safetensors"  # of a run's folder


def save(path: str | Path, tensors: dict[str, Tensor], about: dict[str, Any], parents: bool = True) -> None:
    """Write named tensors and what is to be said about them; an old file stays until the new one is whole.

    What `load` gave can be saved again. `parents`: make the folder if it is not there.
    """
    from . import __version__

    plain = at_rest(tensors)
    own = {"format": FORMAT, "version": __version__, "crc32": crc32(plain)}
    description = own | {name: value for name, value in about.items() if name not in ("format", "crc32")}
    note = json.dumps(description, allow_nan=False)
    data = safetensors.torch.save(plain, {"kanerva": note, "sha256": sha256(plain, note)})
    with atomic_write(Path(path), parents) as file:
        file.write(data)


def load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; a file that is missing, damaged or not ours is an error that says so."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file{_hint(path)}")
    tensors, metadata = read(path)
    if "kanerva" not in metadata:
        raise ValueError(f"{path}: a safetensors file, but not one that kanerva wrote")
    note = metadata["kanerva"]
    about = _description(note, path)
    writer = f"written by kanerva {about.get('version')!r}"
    if "sha256" in metadata or about.get("format") == FORMAT:
        if metadata.get("sha256") != sha256(tensors, note):
            raise ValueError(f"{path}: damaged: its numbers or its description are not those that were written")
    elif about.get("format") != 1:
        raise ValueError(f"{path}: expected format {FORMAT}, got {about.get('format')!r} {writer}")
    elif about.get("crc32") != crc32(tensors):
        raise ValueError(f"{path}: damaged: its numbers are not those that were written")
    else:
        warnings.warn(
            f"{path}: not fully checked: it was {writer}, when checksums did not cover shapes and settings; saving "
            f"it again adds one that does",
            stacklevel=2,
        )
    return tensors, about


def _hint(path: Path) -> str:
    """The usual cause of a missing file."""
    if not path.suffix:
        return f"; models that come along: {', '.join(shipped())}"
    if path.name == LAST and path.parent.is_dir():
        return f"; {path.parent} is not the folder of a run, or nothing was saved there yet"
    return ""


def _description(note: str, path: Path) -> dict[str, Any]:
    try:
        about = loads(note)
    except ValueError as error:
        raise ValueError(f"{path}: its description is damaged ({error})") from None
    if not isinstance(about, dict):
        raise ValueError(f"{path}: its description is damaged: expected a JSON object, got {type(about).__name__}")
    return about


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of any safetensors file, and its metadata."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            check_size(size)
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if 8 + length > size or length > HEADER:
                most = min(HEADER, max(0, size - 8))
                raise ValueError(f"expected a header of at most {most:,} bytes, got {length:,}")
            data = head + file.read()
    except OSError as error:
        # reading, unlike opening, names no file
        raise OSError(error.errno, f"{error.strerror}: {path} could not be read") from error
    except ValueError as error:
        raise ValueError(f"{path}: not a readable safetensors file, cut short or damaged ({error})") from None
    try:
        tensors = safetensors.torch.load(data)
        # the library checks the header before it gives a tensor, but gives no metadata of bytes
        return tensors, json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
    # KeyError, RuntimeError: a dtype or a shape that safetensors knows and this PyTorch does not
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: not a readable safetensors file, cut short or damaged ({error})") from None


def load_state(path: str | Path) -> MemoryState:
    """Read a memory, or many, from a safetensors file of R and U: save_file(state._asdict(), path) wrote it."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    tensors, metadata = read(path)
    if not {"R", "U"} <= set(tensors):
        usual = "; this is a checkpoint of a model" if "kanerva" in metadata else ""
        raise ValueError(f"{path}: expected the R and U of a memory, got {', '.join(sorted(tensors)[:5])}{usual}")
    return MemoryState(tensors["R"], tensors["U"])


def save_state(path: str | Path, state: Any) -> None:
    """Write a memory, a NamedTuple of tensors, to a safetensors file, for `load_state`."""
    with atomic_write(Path(path)) as file:
        file.write(safetensors.torch.save(at_rest(state._asdict())))


def at_rest(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies as a file takes them: on the CPU, in order, and sharing no memory."""
    return {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}


def find(path: str | Path) -> Path:
    """A file's own path, that of the best checkpoint in a run's folder, or that of a model that comes along.

    A run that was never evaluated has no best one: then it is the last.
    """
    if str(path) in shipped():
        return WEIGHTS / f"{path}.safetensors"
    path = Path(path)
    if not path.is_dir():
        return path
    return path / BEST if (path / BEST).is_file() else path / LAST


def taken(place: str | Path) -> str:
    """Which checkpoint `find` takes of a run's folder, to be said; empty where nothing was to choose."""
    path = find(place)
    chosen = path.name == BEST and path != Path(place)
    return f"{path}, the checkpoint with the best validation score of the run" if chosen else ""


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(file.stem for file in WEIGHTS.glob("*.safetensors"))


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, named without it."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def sha256(tensors: dict[str, Tensor], note: str) -> str:
    """A checksum of all that is in a file; safetensors has none."""
    total = hashlib.sha256()
    kinds = {name: [str(x.dtype), list(x.shape)] for name, x in sorted(tensors.items())}
    for text in (note, json.dumps(kinds)):
        # the length first, so that nothing can pass from one part to the next
        total.update(f"{len(text.encode())}:".encode() + text.encode())
    for name in kinds:
        total.update(_bytes(tensors[name]))
    return total.hexdigest()


def crc32(tensors: dict[str, Tensor]) -> int:
    """A short number for these weights, by which results name the checkpoint that they were made with."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(_bytes(tensors[name]), zlib.crc32(name.encode(), total))
    return total


def _bytes(x: Tensor) -> bytes:
    return x.reshape(-1).view(torch.uint8).numpy().tobytes()


def widened(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors to compute with: those that were rounded to float16, to make a file smaller, are float32 again."""
    return {name: x.float() if x.dtype == torch.float16 else x for name, x in tensors.items()}


def dtype(tensors: Mapping[str, Tensor], where: str) -> torch.dtype:
    """The one floating dtype of a model's tensors, float32 or float64; float32 where none is floating."""
    kinds = {x.dtype: name for name, x in tensors.items() if x.is_floating_point()}
    if len(kinds) > 1:
        came = ", ".join(f"{kind} ({name})" for kind, name in kinds.items())
        raise ValueError(f"{where}: expected weights of one dtype, got {came}")
    for kind, name in kinds.items():
        if kind not in (torch.float32, torch.float64):
            raise ValueError(f"{where}: {name}: expected torch.float32 or torch.float64, got {kind}")
    return next(iter(kinds), torch.float32)


def match(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: str) -> None:
    """Check that tensors can take the place of a module's own: names, shapes, dtypes, and no NaN."""
    if set(own) != set(tensors):
        missing, unknown = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
        raise ValueError(f"{where}: weights do not fit the model: missing {missing[:3]}, unknown {unknown[:3]}")
    for name, x in tensors.items():
        if own[name].shape != x.shape:
            raise ValueError(f"{where}: {name}: expected shape {tuple(own[name].shape)}, got {tuple(x.shape)}")
        if own[name].dtype != x.dtype:
            raise ValueError(f"{where}: {name}: expected {own[name].dtype}, got {x.dtype}")
        if bad := int((~x.isfinite()).sum()):
            raise ValueError(
                f"{where}: {name}: expected finite values, got {bad} NaN or infinite of {x.numel()}; usual cause: "
                f"a run that diverged; an earlier checkpoint of it may be whole"
            )
