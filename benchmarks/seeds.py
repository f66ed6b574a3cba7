"""Put the scores of runs that differ in their seed together: results/evaluation/seeds.json.

    kanerva train omniglot --model km --steps 20000 --seed 1 --out runs/omniglot-km-seed1
    kanerva evaluate runs/omniglot-km-seed1 --images 20480 --json > km1.json
    python benchmarks/seeds.py "one H200" results/evaluation/omniglot-km.json km1.json …

The first word says what the runs were trained on, the others are files that `kanerva evaluate --json` wrote. Which
preset, seed and steps a score is of is read from its checkpoint, which must still be there. Rows of other presets,
or of memories written in other ways, stay in the file as they are.
"""

import dataclasses
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from kanerva import PRESETS, RunConfig, models
from kanerva.lab import runner
from kanerva.support.configs import from_dict, to_dict
from kanerva.training.config import with_model

OUT = Path(__file__).parents[1] / "results" / "evaluation" / "seeds.json"
# What two runs of one row may differ in: how they are computed, logged and kept, and of course the seed.
FREE = ("seed", "device", "compute", "evaluate_every", "nonfinite")
# What is taken over from a score, where it is there.
SCORES = ("nats", "nats_stderr", "kl_memory", "new", "blank", "extra")


def main(device: str, files: list[str]) -> None:
    """Write the file."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        row, run = scored(json.loads(Path(file).read_text()), device)
        rows.setdefault(row, []).append(run)
    found = json.loads(OUT.read_text())["rows"] if OUT.exists() else {}
    found |= {row: summary(sorted(runs, key=lambda run: run["seed"])) for row, runs in rows.items()}
    runner.save(OUT, {"command": f"python benchmarks/seeds.py {json.dumps(device)} SCORE.json …", "rows": found})


def scored(score: dict[str, Any], device: str) -> tuple[str, dict[str, Any]]:
    """The row that a score belongs to, and what is to be said of its run."""
    place = score["checkpoint"]
    about = models.read(place).about
    if about["crc32"] != score["crc32"]:
        raise ValueError(
            f"{place}: expected the checkpoint that was scored, {score['crc32']}, got {about['crc32']}"
        )
    run = from_dict(RunConfig, about["run"], place)
    row = preset(run, place)
    if run.train.steps != PRESETS[row.split()[0]][1].train.steps:
        row += f" --steps {run.train.steps}"
    if about["step"] != run.train.steps:
        raise ValueError(f"{place}: expected a run of {run.train.steps} steps, got {about['step']} of them")
    how = f" --length {score['length']}" if score["length"] != 32 else ""
    how += "".join(f" --{name} {score[name]}" for name in ("classes", "block", "iterations") if score.get(name))
    train = f"kanerva train {row} --seed {run.train.seed}" + (f" --out {place}" if Path(place).is_dir() else "")
    return row + (f", evaluated with{how}" if how else ""), {
        "seed": run.train.seed,
        "steps": about["step"],
        **{name: score[name] for name in SCORES if score.get(name) is not None},
        "crc32": score["crc32"],
        "train": train,
        "evaluate": f"kanerva evaluate {place} --images {score['images']}{how} --json",
        "device": device,
        "seconds": about["seconds"],
    }


def preset(run: RunConfig, place: str) -> str:
    """The preset of a run, whatever its steps, and the kind of its model where that is another."""
    for name, (_, config) in PRESETS.items():
        row, kind = name, run.model.kind
        if config.model.kind != kind:
            row, config = f"{name} --model {kind}", with_model(config, kind)
        train = {key: getattr(config.train, key) for key in FREE} | {"steps": config.train.steps}
        # runs from before there was a validation split are of the same preset
        images = dataclasses.replace(run.data, split=config.data.split)
        same = dataclasses.replace(run, data=images, train=dataclasses.replace(run.train, **train))
        if to_dict(same) == to_dict(config):
            return row
    raise ValueError(f"{place}: expected a run of a preset, whatever its seed and steps, got other settings")


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs, and the mean and standard deviation over seeds of what all of them have."""
    if len({run["seed"] for run in runs}) != len(runs) or len(runs) < 2:
        raise ValueError(f"expected two seeds or more, each once in a row, got {[run['seed'] for run in runs]}")
    columns: dict[str, list[float]] = {}
    for run in runs:
        for name, value in numbers(run).items():
            columns.setdefault(name, []).append(value)
    every = {name: values for name, values in columns.items() if len(values) == len(runs)}
    spread = {name: {"mean": statistics.mean(v), "std": statistics.stdev(v)} for name, v in every.items()}
    return {"runs": runs, "seeds": len(runs), **spread}


def numbers(run: dict[str, Any]) -> dict[str, float]:
    """The scores of a run by name; of those with a standard error, the mean."""
    found = {name: run[name] for name in ("nats", "kl_memory", "new", "blank") if name in run} | run.get(
        "extra", {}
    )
    return {name: value["mean"] if isinstance(value, dict) else value for name, value in found.items()}


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
