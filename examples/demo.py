"""Train the demo model, score it, see what it remembers, and put all of it on one page: `make demo`.

Built-in glyphs, no network, under seven minutes on two cores. A demo that was interrupted goes on where it stopped.
Beside the small model that it trains stands the one that comes along, which was trained on Omniglot and never saw a
glyph.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import kanerva
from kanerva import lab
from kanerva.app import report
from kanerva.lab.runner import flags
from kanerva.models import read
from kanerva.support.say import end_output, prepare, say
from kanerva.training.evaluate import mean_image_nats

FOLDER = Path("runs/demo")
BOTH: dict[str, Any] = {"checkpoint": (str(FOLDER), "omniglot"), "dataset": "glyphs", "overwrite": True}
# small enough for two minutes in all; `kanerva experiment NAME` has the paper's sizes
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "capacity": {"lengths": (8, 16, 32, 64), "classes": (2, 8), "episodes": 4},
    "denoising": {"episodes": 2, "length": 16, "flips": (0.05, 0.15, 0.3), "pictures": 8},
    "sampling": {"episodes": 2, "length": 16, "samples": 16, "seen": 2000},
}
SHADES = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"


def art(image: torch.Tensor) -> list[str]:
    """A binary image as text, four pixels a character."""
    p = image[0].int()
    code = p[::2, ::2] + 2 * p[::2, 1::2] + 4 * p[1::2, ::2] + 8 * p[1::2, 1::2]
    return ["".join(SHADES[c] for c in row) for row in code.tolist()]


def main() -> None:
    prepare()
    config = kanerva.PRESETS["demo"][1]
    last = FOLDER / "last.safetensors"
    began = time.perf_counter()
    kanerva.train(config, FOLDER, resume=last.exists())
    minutes = (time.perf_counter() - began) / 60
    if (read(last).step or 0) < config.train.steps:  # Ctrl-C, which saved
        raise KeyboardInterrupt

    model = kanerva.load(last)
    seen, unseen = kanerva.data.load("glyphs", "train"), kanerva.data.load("glyphs", "test")
    score = kanerva.evaluate(model, unseen)
    dull = mean_image_nats(seen, unseen)

    generator = torch.Generator().manual_seed(0)
    x = kanerva.data.episodes(unseen, 8, 32, generator=generator)
    with torch.no_grad():
        found = model.recall(model.write(x), x, 1, "least-squares").last
    ink = float(x.sum((-3, -2, -1)).mean())
    wrong = float((found - x).abs().sum((-3, -2, -1)).mean())

    print("\nGlyphs of classes never seen in training, stored (above) with 27 others, and read back (below):\n")
    for row in (x[0, :5], found[0, :5]):
        for line in zip(*map(art, row), strict=True):
            print("  ".join(line))
    print(
        f"Reading back: {wrong:.0f} wrong pixels of 784, where a glyph has {ink:.0f} of ink, from 32 in one memory."
    )
    print(f"Score: {score.nats:.1f} ± {score.nats_stderr:.1f} nats per image, on {score.images:,} images of unseen")
    print(f"classes ({dull:.1f} by predicting the mean image); trained for {minutes:.1f} minutes.")

    print("\nCapacity, denoising and sampling, with this model and the Omniglot one ...", flush=True)
    began = time.perf_counter()
    for name, sizes in EXPERIMENTS.items():
        flags(lab.find(name), f"kanerva experiment {name}")(**BOTH, **sizes).main()
    denoising(FOLDER / "experiments" / "denoising.json")
    page = report.write(FOLDER)
    print(f"That took {(time.perf_counter() - began) / 60:.1f} minutes.\n")
    print(f"Everything on one page: {page.resolve().as_uri()}")
    print(f"The model: {last} (kanerva evaluate {FOLDER}, kanerva experiment basins --checkpoint {FOLDER}, ...)")


def denoising(path: Path) -> None:
    """Say how recall ends."""
    print("Recalled from cues with 15 % of all pixels (118) flipped:")
    for model in json.loads(path.read_text())["models"]:
        cell = next(cell for cell in model["result"]["cells"] if cell["name"] == model["result"]["headline"])
        for method in ("least-squares", "descent"):
            end = cell["methods"][method]
            wrong, right = end["wrong"]["mean"], 100 * end["right"]["mean"]
            print(f"{model['name']:8} {method:13} {wrong:4.0f} wrong pixels, the right glyph in {right:3.0f} %")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        end_output()
        say("interrupted; make demo goes on with the training that is saved")
        sys.exit(130)
