"""A tiny run for the tests: 8×8 crosses, in an array file."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kanerva import CodecConfig, DataConfig, DKMConfig, RunConfig, TrainConfig


def patterns(folder: Path, binary: bool = True) -> Path:
    """Crosses: 64 classes of one row and one column each, four copies with a few bits flipped."""
    row, column = np.divmod(np.arange(64), 8)
    lines = np.arange(8)
    cross = (lines[:, None] == row[:, None, None]) | (lines == column[:, None, None])
    images = cross[:, None] ^ (np.random.default_rng(0).random((64, 4, 8, 8)) > 0.98)
    path = folder / ("bits.npz" if binary else "greys.npz")
    pixels = images.reshape(-1, 8, 8).astype(np.uint8) * (1 if binary else 200)
    np.savez(path, images=pixels, labels=np.repeat(np.arange(64), 4))
    return path


def tiny(folder: Path, split: Literal["train", "train+validation"] = "train", **changes: Any) -> RunConfig:
    """A run of six steps on `patterns`; `changes` are fields of TrainConfig."""
    train = TrainConfig(
        steps=6,
        batch=4,
        lengths=(5,),
        evaluate_every=2,
        device="cpu",
    )
    return RunConfig(
        DKMConfig(rows=4, code=6, codec=CodecConfig((4, 4))),
        DataConfig(str(patterns(folder)), split=split),
        dataclasses.replace(train, **changes),
    )


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
