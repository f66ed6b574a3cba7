"""Train the demo model, score it, and see what it remembers: `make demo`.

Built-in glyphs, no network, under five minutes on two cores. A demo that was interrupted goes on where it stopped.
"""

import time
from pathlib import Path

import torch

import kanerva
from kanerva.evaluate import mean_image_nats

FOLDER = Path("runs/demo")
SHADES = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"


def art(image: torch.Tensor) -> list[str]:
    """A binary image as text, four pixels a character."""
    p = image[0].int()
    code = p[::2, ::2] + 2 * p[::2, 1::2] + 4 * p[1::2, ::2] + 8 * p[1::2, 1::2]
    return ["".join(SHADES[c] for c in row) for row in code.tolist()]


def main() -> None:
    config = kanerva.PRESETS["demo"][1]
    last = FOLDER / "last.safetensors"
    began = time.perf_counter()
    kanerva.train(config, FOLDER, resume=last.exists())
    minutes = (time.perf_counter() - began) / 60

    model = kanerva.load(last)
    seen, unseen = kanerva.data.load("glyphs", "train"), kanerva.data.load("glyphs", "test")
    score = kanerva.evaluate(model, unseen)
    dull = mean_image_nats(seen, unseen)

    generator = torch.Generator().manual_seed(0)
    x = kanerva.data.episodes(unseen, 8, 32, generator=generator)
    with torch.no_grad():
        found = model.recall(model.write(x), x, steps=1).x[0]
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
    print(f"Look at: {FOLDER}/metrics.jsonl (curves), {last} (the model: kanerva evaluate {FOLDER}).")


if __name__ == "__main__":
    main()
