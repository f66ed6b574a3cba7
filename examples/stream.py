"""Regression on a stream whose statistics drift: keys and values in a memory that fades, against linear models.

    python examples/stream.py --out results/examples

32 sensors (the keys) are read, then 4 values that belong to them arrive; each is predicted before it is seen.
Three streams: "six causes", which drive all sensors; "half missing", the same with half of the sensors gone at
each step; and "all apart", where every sensor matters and none says anything of another.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import kanerva
from saving import arguments, save, show, spread

KEYS, VALUES, CAUSES, LIFE, NOISE = 32, 4, 6, 300.0, 0.3  # LIFE: steps after which the past says little
STREAMS = ("six causes", "half missing", "all apart")
ALL, EYE = KEYS + VALUES, torch.eye(KEYS)


def stream(kind: str, batch: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """[keys; values] (batch, steps, ALL) of a linear map that drifts, and which keys are there."""
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator)
    causes = KEYS if kind == "all apart" else CAUSES
    keep, scale = (1 - 1 / LIFE) ** 0.5, causes**-0.5
    L, out = scale * normal(batch, ALL, causes), []
    for _ in range(steps):
        L = keep * L + (1 - keep**2) ** 0.5 * scale * normal(batch, ALL, causes)
        key_map = EYE.expand(batch, KEYS, KEYS) if kind == "all apart" else L[:, :KEYS]
        z = torch.cat([key_map, L[:, KEYS:]], 1) @ normal(batch, causes, 1)
        out.append(z[..., 0] + NOISE * normal(batch, ALL))
    there = torch.rand(batch, steps, KEYS, generator=generator) > (0.5 if kind == "half missing" else -1)
    return torch.stack(out, 1), there


def memory(x: Tensor, there: Tensor, rows: int, keep: float, noise_var: float) -> Tensor:
    """Read the values at the keys that are there; fill the gaps of the key; write both."""
    torch.manual_seed(0)
    layer = kanerva.nn.Memory(KEYS, rows=rows, values=VALUES)
    torch.nn.init.normal_(layer.R0, std=0.1)
    torch.nn.init.zeros_(layer.log_prior_var)  # variance 1
    torch.nn.init.constant_(layer.log_noise_var, float(np.log(noise_var)))
    kept, out = kanerva.nn.Stream(layer, batch=x.shape[:1], keep=keep), []
    with torch.no_grad(), kanerva.deep_checks(False):
        for z, known in zip(x.split(1, dim=1), there.split(1, dim=1), strict=True):
            expected = layer.predict(kept.state, z[..., :KEYS], known).mean
            out.append(expected[..., KEYS:])
            kept.write(torch.where(known, z[..., :KEYS], expected[..., :KEYS]), values=z[..., KEYS:])
    return torch.cat(out, 1)


def linear(x: Tensor, there: Tensor, keep: float, noise_var: float = 0.0) -> Tensor:
    """Recursive least squares with forgetting, or with noise_var a Kalman filter of weights that fade as ours do.

    A key that is missing counts as zero, its mean.
    """
    P, W, out = EYE.expand(len(x), KEYS, KEYS), torch.zeros(len(x), KEYS, VALUES), []
    for z, known in zip(x.unbind(1), there.unbind(1), strict=True):
        key = (z[:, :KEYS] * known)[..., None]
        P, W = (keep * P + (1 - keep) * EYE, keep**0.5 * W) if noise_var else (P / keep, W)
        out.append((W.mT @ key)[..., 0])
        gain = P @ key / ((noise_var or 1) + key.mT @ P @ key)
        W = W + gain * (z[:, KEYS:] - out[-1])[:, None]
        P = P - gain @ key.mT @ P
        P = (P + P.mT) / 2
    return torch.stack(out, 1)


def factors(x: Tensor, there: Tensor, rank: int, keep: float) -> Tensor:
    """A running covariance of all, as `rank` factors and noise (probabilistic PCA): the linear model that fits."""
    S, weight, out = torch.eye(ALL).expand(len(x), ALL, ALL), 1.0, []
    for z, known in zip(x.unbind(1), there.unbind(1), strict=True):
        size, V = torch.linalg.eigh(S / weight)
        noise = size[:, :-rank].mean(-1)[:, None, None]
        L = V[..., -rank:] * (size[:, None, -rank:] - noise).clamp(min=0).sqrt()
        A = L[:, :KEYS] * known[..., None]
        w = torch.linalg.solve(A.mT @ A + noise * torch.eye(rank), A.mT @ (z[:, :KEYS] * known)[..., None])
        expected = (L @ w)[..., 0]
        out.append(expected[:, KEYS:])
        whole = torch.cat([torch.where(known, z[:, :KEYS], expected[:, :KEYS]), z[:, KEYS:]], -1)
        S, weight = keep * S + whole[:, :, None] * whole[:, None], keep * weight + 1
    return torch.stack(out, 1)


def errors(found: Tensor, x: Tensor) -> Tensor:
    """Squared error over the variance of the values, (batch, steps); 1 is as good as knowing nothing."""
    return (found - x[..., KEYS:]).square().mean(-1) / x[..., KEYS:].square().mean()


def floats(name: str, rows: int) -> int:
    """What a method keeps between two steps."""
    return {"memory": rows * (ALL + rows), "factor model": ALL * ALL}.get(name, KEYS * ALL)


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(__doc__, given)
    batch, steps, first = (2, 30, 10) if args.quick else (16, 1000, 200)  # the first steps do not count
    keeps = [0.9, 0.93, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 0.998]
    grids: dict[str, tuple[Callable[..., Tensor], list[tuple[float, ...]]]] = {
        "memory": (memory, list(itertools.product([6, 32], [0.99, 0.995, 0.998], [0.3, 1.0]))),
        "RLS": (linear, [(keep,) for keep in keeps]),
        "Kalman filter": (linear, list(itertools.product(keeps, [1.0, 4.0, 16.0]))),
        "factor model": (factors, list(itertools.product([6, 30], keeps))),
    }
    results, curves = [], {}
    for kind in STREAMS:
        # settings are chosen on one set of streams, and judged on another
        trial, test = stream(kind, 2, max(steps // 2, 20), seed=1), stream(kind, batch, steps, seed=0)
        for name, (method, grid) in grids.items():
            tried = {
                at: float(errors(method(*trial, *at), trial[0]).mean()) for at in grid[:: 5 if args.quick else 1]
            }
            best = min(tried, key=tried.__getitem__)
            each = errors(method(*test, *best), test[0])
            curves[kind, name] = each.mean(0)
            about = {
                "stream": kind,
                "method": name,
                "setting": best,
                "floats": floats(name, int(best[0])),
            }
            results.append(about | spread(each[:, first:].mean(-1).tolist()))
    rows = [
        [r["stream"], r["method"], r["floats"], str(r["setting"]), f"{r['mean']:.3f} ± {r['stderr']:.3f}"]
        for r in results
    ]
    columns = ["stream", "method", "floats kept", "chosen", "error"]
    show("Squared error of values before they are seen, over their variance", columns, rows)

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for ax, kind in zip(figure.subplots(1, 3, sharey=True), STREAMS, strict=True):
        for name, line in zip(grids, ("-", ":", "-.", "--"), strict=True):
            window = max(steps // 40, 1)
            smooth = curves[kind, name][: steps // window * window].reshape(-1, window).mean(-1)
            ax.plot([window * (i + 0.5) for i in range(len(smooth))], smooth, line, label=name)
        ax.set(title=kind, xlabel="step", ylim=(0, 1))
    ax.legend(frameon=False)
    figure.axes[0].set_ylabel("error / variance")
    settings = {"keys": KEYS, "values": VALUES, "causes": CAUSES, "life": LIFE, "noise": NOISE}
    settings |= {"streams": batch, "steps": steps, "first": first}
    save(args.out, "stream", settings, results, figure)


if __name__ == "__main__":
    main()
