"""A memory between your own encoder and decoder: 16 handwritten digits are stored, and read from noisy cues.

    python examples/digits.py --out results/examples

The digits are scikit-learn's, 64 numbers each, so nothing is downloaded. The same network is trained without a
memory and with attention over all stored codes instead; nearest neighbour keeps the images themselves.
"""

from collections.abc import Callable, Sequence

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

import kanerva
from saving import arguments, curves, save, show, spread

CODE, ROWS, LENGTH, NOISE = 64, 32, 16, 0.5  # numbers a code, rows, digits an episode, cues' noise


def mlp(size: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 256), nn.SiLU(), nn.Linear(256, out))


class Network(nn.Module):
    """Store x, then clean up cues."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        # the layer wants codes of one scale, with entries of about 1: normalise them
        self.encoder = nn.Sequential(mlp(64, CODE), nn.LayerNorm(CODE, elementwise_affine=False))
        self.decoder = mlp(CODE, 64)
        self.memory = kanerva.nn.Memory(CODE, rows=ROWS)
        self.kind, self.log_beta = kind, nn.Parameter(torch.tensor(-2.0))

    def forward(self, x: Tensor, cue: Tensor) -> Tensor:
        z, query = self.encoder(x), self.encoder(cue)
        if self.kind == "memory":
            state = self.memory.write(z)
            return self.decoder(self.memory.read(state, query))
        if self.kind == "attention":
            return self.decoder((self.log_beta.exp() * query @ z.mT).softmax(-1) @ z)
        return self.decoder(query)


def episodes(x: Tensor, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sets of different digits, and a noisy cue of each."""
    chosen = torch.stack([torch.randperm(len(x), generator=generator)[:length] for _ in range(batch)])
    return x[chosen], x[chosen] + NOISE * torch.randn(batch, length, 64, generator=generator)


def train(kind: str, x: Tensor, steps: int, seed: int) -> Network:
    torch.manual_seed(seed)
    network, generator = Network(kind), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        stored, cue = episodes(x, 16, LENGTH, generator)
        loss = (network(stored, cue) - stored).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network


def nearest(x: Tensor, cue: Tensor) -> Tensor:
    """The stored image that is nearest to each cue."""
    return torch.stack([stored[torch.cdist(c, stored).argmin(-1)] for stored, c in zip(x, cue, strict=True)])


def kept(kind: str, length: int) -> int:
    """Floats that are kept of so many digits."""
    return {"memory": ROWS * CODE + ROWS * ROWS, "attention": length * CODE, "nearest": length * 64}.get(kind, 0)


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(__doc__, given)
    seeds, steps, lengths, tests = (2, 20, [8, 16], 4) if args.quick else (3, 800, [8, 16, 32, 64], 64)
    x = torch.from_numpy(load_digits().data).float() / 16
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    seen, unseen = x[:1297], x[1297:]  # tested on digits that no network was trained on

    kinds = ["no memory", "memory", "attention"]
    error: dict[tuple[str, int], list[float]] = {}
    for seed in range(seeds):
        ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            kind: train(kind, seen, steps, seed) for kind in kinds
        }
        ways["nearest"] = nearest
        for length in lengths:
            stored, cue = episodes(unseen, tests, length, torch.Generator().manual_seed(100 + seed))
            for kind, way in ways.items():
                with torch.no_grad():
                    error.setdefault((kind, length), []).append(float((way(stored, cue) - stored).square().mean()))

    results = [{"kind": k, "stored": n, "floats": kept(k, n)} | spread(e) for (k, n), e in error.items()]
    rows = [[r["kind"], r["stored"], r["floats"], f"{r['mean']:.4f} ± {r['stderr']:.4f}"] for r in results]
    columns = ["", "stored", "floats kept", "squared error a pixel"]
    show(f"Unseen digits from cues with noise {NOISE} (the cue itself: {NOISE**2})", columns, rows)

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    curve, pictures = figure.subplots(1, 2, width_ratios=[1, 1.3])
    means = {kind: [spread(error[kind, length])["mean"] for length in lengths] for kind in ways}
    curves(
        curve, lengths, means, xlabel=f"digits stored (trained with {LENGTH}, {ROWS} rows)", ylabel="error a pixel"
    )
    curve.legend(frameon=False)
    stored, cue = episodes(unseen, 1, LENGTH, torch.Generator().manual_seed(100))
    with torch.no_grad():
        strips = [stored, cue, *(way(stored, cue) for way in ways.values())]
    tiles = nn.functional.pad(torch.cat(strips)[:, :10].reshape(-1, 10, 8, 8), (1, 1, 1, 1))
    sheet = tiles.permute(0, 2, 1, 3).reshape(-1, 100).clamp(0, 1).numpy()
    pictures.imshow(sheet, cmap="gray_r")
    pictures.set_yticks([10 * i + 4.5 for i in range(len(strips))], ["stored", "cue", *ways])
    pictures.set(xticks=[], title=f"ten of {LENGTH} stored digits")
    settings = {"code": CODE, "rows": ROWS, "noise": NOISE, "steps": steps, "seeds": seeds, "episodes": tests}
    save(args.out, "digits", settings, results, figure)


if __name__ == "__main__":
    main()
