"""Store patterns in a memory and clean up noisy cues.

The codes are random, so there is nothing to learn: this is the memory alone, without an image model.
"""

import time

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from kanerva import memory

K, C, NOISE_VAR = 32, 100, 1.0


def recall(R0: Tensor, z: Tensor, cue: Tensor) -> Tensor:
    """Write the patterns z, then read what the cues point at."""
    state, _ = memory.write(memory.prior(R0, 1.0), z, NOISE_VAR)
    return memory.read(state, memory.address(cue, state, NOISE_VAR))


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    R0 = 0.03 * torch.randn(K, C, generator=generator)
    recall(R0, torch.ones(2, C), torch.ones(2, C))  # the first call loads libraries
    print(
        f"A memory of {K} rows for codes of {C} numbers. Each cue is a stored pattern with as much noise as signal."
    )
    print("Cosine with the stored pattern (1 is perfect):\n")
    print(f"{'stored':>7} {'cue':>7} {'recalled':>9} {'projected':>10} {'time':>9}")
    for T in (4, 8, 16, 32, 64, 128):
        z = torch.randn(T, C, generator=generator)
        cue = z + torch.randn(T, C, generator=generator)
        began = time.perf_counter()
        found = recall(R0, z, cue)
        took = 1e3 * (time.perf_counter() - began)
        span = torch.linalg.qr(z.mT).Q
        before, after, best = (float(cosine_similarity(x, z).mean()) for x in (cue, found, cue @ span @ span.mT))
        note = "  more patterns than rows" if T > K else ""
        print(f"{T:7} {before:7.2f} {after:9.2f} {best:10.2f} {took:6.1f} ms{note}")
    print("\nprojected: the cue without the noise that lies outside the span of the stored patterns. Up to its")
    print("number of rows the memory does as well, without seeing the patterns again; beyond, patterns share rows.")


if __name__ == "__main__":
    main()
