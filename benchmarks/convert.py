"""Save the committed weights once in the form of format 3, and put their new checksums into results/*.json.

    python benchmarks/convert.py                    # src/kanerva/weights and results/models, in place
    python benchmarks/convert.py OLD NEW            # one file

A memory's parameters are those of its layer: R0 is memory.R0, and so are its two variances. The config is written
whole, and names its kind. No number changes, nor any dtype.
"""

import json
import re
import sys
from pathlib import Path

from kanerva import storage
from kanerva.config import RunConfig
from kanerva.fields import from_dict, to_dict
from kanerva.models.base import BaseConfig

ROOT = Path(__file__).parents[1]
MOVED = ("R0", "log_prior_var", "log_noise_var")


def renamed(name: str, kind: str) -> str:
    """model.R0 as model.memory.R0; the same for averages and for an optimiser's moments."""
    head, _, last = name.rpartition(".")
    return f"{head}.memory.{last}" if kind in ("dkm", "km") and last in MOVED else name


def convert(old: Path, new: Path) -> tuple[int, int]:
    """Read a file of format 2, check it, and write it in format 3; gives both checksums of its weights."""
    tensors, metadata = storage.read(old)
    note = metadata["kanerva"]
    about = json.loads(note)
    if about["format"] != 2 or metadata["sha256"] != storage.sha256(tensors, note):
        raise ValueError(f"{old}: expected a whole file of format 2")
    model = {"kind": "dkm"} | about["model"]
    about["model"] = to_dict(from_dict(BaseConfig, model, "model"))
    if "run" in about:
        run = about["run"] | {"model": {"kind": model["kind"]} | about["run"]["model"]}
        about["run"] = to_dict(from_dict(RunConfig, run, "run"))
    moved = {renamed(name, model["kind"]): x for name, x in tensors.items()}
    storage.save(new, moved, about)
    again, said = storage.load(new)
    assert all(again[renamed(name, model["kind"])].equal(x) for name, x in tensors.items())
    assert [x.dtype for _, x in sorted(again.items())] == [x.dtype for _, x in sorted(moved.items())]
    return about["crc32"], said["crc32"]


def main() -> None:
    if len(sys.argv) == 3:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
        return
    files = [
        *(ROOT / "src/kanerva/weights").glob("*.safetensors"),
        *(ROOT / "results/models").glob("*.safetensors"),
    ]
    names = dict(convert(path, path) for path in files)
    for path in (ROOT / "results").rglob("*.json"):
        text = path.read_text("utf-8")
        after = re.sub(r'("crc32": )(\d+)', lambda found: found[1] + str(names.get(int(found[2]), found[2])), text)
        if after != text:
            path.write_text(after, "utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
