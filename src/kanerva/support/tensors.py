"""Named tensors and a description in one safetensors file, with a checksum of both. Nothing is ever unpickled."""

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .files import atomic_write, check_size, naming
from .strict_json import loads

FORMAT = 3
HEADER = 2**22  # bytes that name and describe tensors: ours have some thousand, and reading takes 20 times as many


def save(path: str | Path, tensors: dict[str, Tensor], about: dict[str, Any], parents: bool = True) -> None:
    """Write named tensors and what is to be said about them; an old file stays until the new one is whole.

    The metadata have `kanerva`, a JSON description, and `sha256`, which covers that text and the name, dtype, shape
    and bytes of every tensor. What `load` gave can be saved again. `parents`: make the folder if it is not there.
    """
    plain = at_rest(tensors)
    own = {"format": FORMAT, "version": version("kanerva"), "crc32": crc32(plain)}
    description = own | {name: value for name, value in about.items() if name not in ("format", "crc32")}
    note = json.dumps(description, allow_nan=False)
    data = safetensors.torch.save(plain, {"kanerva": note, "sha256": sha256(plain, note)})
    with atomic_write(Path(path), parents) as file:
        file.write(data)


def load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; a file that is missing, damaged or not ours is an error that says so."""
    tensors, metadata = read(path)
    if "kanerva" not in metadata:
        raise ValueError(f"{path}: a safetensors file, but not one that kanerva wrote")
    note = metadata["kanerva"]
    try:
        about = loads(note)
    except ValueError as error:
        raise ValueError(f"{path}: its description is damaged ({error})") from None
    if not isinstance(about, dict):
        raise ValueError(f"{path}: its description is damaged: expected a JSON object, got {type(about).__name__}")
    if metadata.get("sha256") != sha256(tensors, note):
        raise ValueError(f"{path}: damaged: its numbers or its description are not those that were written")
    if about.get("format") != FORMAT:
        came = f"{about.get('format')}, of kanerva {about.get('version')}"
        raise ValueError(f"{path}: expected a file of format {FORMAT}, got one of format {came}")
    return tensors, about


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of any safetensors file, and its metadata."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with naming(path, "could not be read"), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            check_size(size)
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if 8 + length > size or length > HEADER:
                most = min(HEADER, max(0, size - 8))
                raise ValueError(f"expected a header of at most {most:,} bytes, got {length:,}")
            data = head + file.read()
        tensors = safetensors.torch.load(data)
        # the library checks the header before it gives a tensor, but gives no metadata of bytes
        return tensors, json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    # KeyError, RuntimeError: a dtype or a shape that safetensors knows and this PyTorch does not
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: not a readable safetensors file, cut short or damaged ({error})") from None


def at_rest(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies as a file takes them: on the CPU, in order, and sharing no memory."""
    return {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}


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


def dtype_of(tensors: Mapping[str, Tensor], where: str) -> torch.dtype:
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
