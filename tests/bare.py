"""What the package does without its extras: write, recall with the pretrained model, train ten steps on glyphs.

`python tests/bare.py [MODULE …]`: modules that are treated as missing. tests/test_package.py names those of the
extras, and .ci/run calls it in an environment that has none of them.
"""

# ruff: noqa: E402 (modules are made missing before anything imports them)

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.modules |= dict.fromkeys(sys.argv[1:])  # type: ignore[arg-type]

import torch

import kanerva
from kanerva.cli import main


def remembers() -> None:
    """Half of each image is lost, and recall finds what was written."""
    images = kanerva.data.load("glyphs", split="test")
    x = kanerva.data.episodes(images, batch=1, length=8, generator=torch.Generator().manual_seed(0))
    model = kanerva.load("omniglot")
    mask = torch.ones(x.shape[-2:])
    mask[14:] = 0
    found = model.recall(model.write(x), x * mask, mask=mask).x
    wrong = (found - x).abs().mean().item()
    print(f"recall: {wrong:.1%} of pixels wrong")
    assert wrong < 0.05


def trains() -> None:
    config = kanerva.PRESETS["demo"][1]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        kanerva.train(replace(config, train=replace(config.train, steps=10, device="cpu")), run)
        print(f"train: {len(list(run.iterdir()))} files")
        assert isinstance(kanerva.load(run), kanerva.DKM)


def says_what_is_missing() -> None:
    said = None
    try:
        main(["evaluate", "omniglot"])
    except SystemExit as end:
        said = end.code
    print(said)
    assert said == "kanerva: this command needs tyro: pip install 'kanerva[app]'"


if __name__ == "__main__":
    remembers()
    trains()
    says_what_is_missing()
