"""Print how far float32 writing drifts: `make bench`, or `python benchmarks/drift.py --help`.

Three numbers for each regime, at growing numbers of writes, all relative (Frobenius norm):
  float32     the float32 memory against the exact one
  float64     a float64 memory against the exact one
  consistent  the float32 memory against the exact posterior given the weights that it chose

The exact memory is written in float64 and, where K > C, in the C dimensions that hold all of R: from a prior with
U = I every address lies in the column space of R0 and never leaves it, so the memory QᵀR0 (Q an orthonormal basis
of that space) goes through the same states, without the other K − C dimensions for rounding to leak into.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from kanerva import MemoryState, kernels, memory

Rows = list[dict[str, Any]]

REGIMES = {
    # name: K, C, number of writes, noise_var, mean common to all codes
    "easy": (32, 100, 100_000, 1.0, 0.0),
    "hard": (64, 16, 10_000, 0.01, 1.0),
}


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def episode(K: int, C: int, writes: int, mean: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """R0 and codes, in float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(K, C, generator=generator), torch.randn(writes, C, generator=generator) + mean


def marks(writes: int) -> list[int]:
    """100, 1,000, … and the end."""
    return [10**i for i in range(2, 9) if 10**i < writes] + [writes]


def exact(R0: torch.Tensor, z: torch.Tensor, start: MemoryState | None, noise_var: float) -> MemoryState:
    """Go on with the memory in the space that R0 spans; `start` is what the last call gave."""
    Q = basis(R0)
    start = memory.prior(Q.mT @ R0.double(), 1.0) if start is None else start
    return memory.write(start, z.double(), noise_var)[0]


def basis(R0: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of the column space of R0: all K dimensions unless K > C."""
    K, C = R0.shape
    return torch.linalg.qr(R0.double()).Q if K > C else torch.eye(K, dtype=torch.float64)


def lifted(state: MemoryState, R0: torch.Tensor) -> MemoryState:
    """The same memory in all K dimensions; those outside the space keep the prior's variance."""
    Q = basis(R0)
    outside = torch.eye(len(R0), dtype=torch.float64) - Q @ Q.mT
    return MemoryState(Q @ state.R, Q @ state.U @ Q.mT + outside)


def drift(name: str, seed: int = 0) -> Rows:
    K, C, writes, noise_var, mean = REGIMES[name]
    R0, z = episode(K, C, writes, mean, seed)
    single = memory.prior(R0, 1.0)
    double = given = single.to(torch.float64)
    truth = None
    rows: Rows = []
    done = 0
    for mark in marks(writes):
        z_t = z[done:mark]
        single, w = memory.write(single, z_t, noise_var)
        # where K ≤ C the fast kernel, equal to memory.write to 1e-13, in a hundredth of the time
        double, _ = kernels.write(double, z_t.double(), noise_var)
        truth = exact(R0, z_t, truth, noise_var) if K > C else double
        given = memory.condition(given, w.double(), z_t.double(), noise_var)
        rows.append(row(name, mark, single, double, lifted(truth, R0), given))
        done = mark
    return rows


def row(
    name: str, writes: int, single: MemoryState, double: MemoryState, truth: MemoryState, given: MemoryState
) -> dict[str, Any]:
    eigenvalues = torch.linalg.eigvalsh(single.U.double())
    return {
        "regime": name,
        "writes": writes,
        "float32_R": relative(single.R, truth.R),
        "float32_U": relative(single.U, truth.U),
        "float64_R": relative(double.R, truth.R),
        "float64_U": relative(double.U, truth.U),
        "consistent_R": relative(single.R, given.R),
        "consistent_U": relative(single.U, given.U),
        "least_eigenvalue": float(eigenvalues[0]),
        "greatest_eigenvalue": float(eigenvalues[-1]),
        "asymmetry": float((single.U - single.U.mT).abs().max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.time()
    rows: Rows = []
    print(f"{'':5} {'':>7}  {'float32':^15}  {'float64':^15}  {'consistent':^15}  eigenvalues of U")
    print(f"{'':5} {'writes':>7}" + f"  {'R':>7} {'U':>7}" * 3 + f"  {'least':>7} {'most':>7}")
    for name in REGIMES:
        for r in drift(name, args.seed):
            numbers = [r[f"{kind}_{x}"] for kind in ("float32", "float64", "consistent") for x in "RU"]
            text = "".join(f" {' ' if i % 2 == 0 else ''}{x:7.0e}" for i, x in enumerate(numbers))
            print(f"{name:5} {r['writes']:7,}{text}  {r['least_eigenvalue']:7.0e} {r['greatest_eigenvalue']:7.0e}")
            rows.append(r)
    print(f"seed {args.seed}, torch {torch.__version__}, {time.time() - began:.0f} s")
    if args.json:
        machine = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        args.json.write_text(json.dumps({"seed": args.seed, **machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
