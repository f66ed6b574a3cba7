"""Make a run's model one that comes with the package, in models/weights; or a file of its own.

    python benchmarks/ship.py runs/mazes mazes
    python benchmarks/ship.py runs/mazes-wide results/models/mazes-wide.safetensors

The averaged weights where there are any, with what the run says of itself. Where float32 would take more than 5 MB,
all but single numbers is rounded to float16, which `kanerva.load` makes float32 again; the scores of both are
printed, so that what rounding costs is seen. Its card, NAME.md, is written by hand; `kanerva info` and
`kanerva evaluate` say what it needs.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

import kanerva
from kanerva import RunConfig
from kanerva.models.checkpoint import WEIGHTS, read
from kanerva.support import tensors
from kanerva.support.configs import from_dict

MOST = 5_000_000  # bytes of a file
IMAGES = 2_048


def main(place: str, name: str) -> None:
    """Write the file, and score what went in and what comes out."""
    found = read(place)
    weights = found.weights()
    path = Path(name) if name.endswith(".safetensors") else WEIGHTS / f"{name}.safetensors"
    if sum(x.numel() * x.element_size() for x in weights.values()) > MOST:
        weights = {key: rounded(x) for key, x in weights.items()}
    tensors.save(path, {f"model.{key}": x for key, x in weights.items()}, found.about)
    (test,) = from_dict(RunConfig, found.about["run"], "run").data.load("cpu", "test")
    for what in (place, name):
        score = kanerva.evaluate(kanerva.load(what), test, count=IMAGES)
        print(f"{what}: {score.nats:.3f} ± {score.nats_stderr:.3f} nats per image{score.in_bits}")
    print(f"{path}: {path.stat().st_size:,} bytes")


def rounded(x: Tensor) -> Tensor:
    """Matrices and vectors in float16: three more digits than bfloat16 has, and weights need no greater range."""
    return x.to(torch.float16) if x.ndim and x.is_floating_point() else x


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
