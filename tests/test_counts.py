"""What nn.Memory says of vectors, `contains` and `forget`, against what was written: −1, or the truth.

A count means that a memory with this content could have been written so, which `could_be` finds from the vectors.
"""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from cases import normal
from kanerva import MemoryState, memory
from kanerva.nn import Memory

DTYPES = [torch.float32, torch.float64]


def layer(size: int, rows: int, dtype: torch.dtype = torch.float32, seed: int = 0, **options: float) -> Memory:
    """An untrained layer; options: factors of its variances, and its scale."""
    torch.manual_seed(seed)
    made = Memory(size, rows=rows, scale=options.pop("scale", 1.0)).requires_grad_(False).to(dtype)
    for name, factor in options.items():
        getattr(made, f"log_{name}").add_(math.log(factor))
    return made


def could_be(z: Tensor, q: Tensor, times: int, rows: int) -> bool:
    """Whether the memory of the vectors z can be one of q, written so many times, and others: to 2 %."""
    _, size, right = torch.linalg.svd(z.double(), full_matrices=False)
    kept = size > 1e-12 * size.max()
    a = right[kept] @ q.double()
    near = (q - right[kept].mT @ a).norm() < 2e-3 * q.norm()
    whole = abs(float((a / size[kept]).square().sum()) * times - 1) < 0.02
    free = times == 1 or times <= len(z) - int(kept.sum()) + 1 or len(z) >= min(rows, z.shape[-1])
    return bool(near) and whole and free


def written(m: Memory, z: Tensor, times: list[int], seed: int) -> tuple[MemoryState, Tensor]:
    """A memory of vectors, each so many times, in any order and two calls; all that was written."""
    order = torch.arange(len(z)).repeat_interleave(torch.tensor(times))
    order = order[normal(len(order), seed=seed).argsort()]
    first, second = order.tensor_split(2)
    return m.write(z[second], m.write(z[first])), z[order]


@pytest.mark.parametrize("dtype", DTYPES)
def test_contains_only_what_could_have_been_written(dtype: torch.dtype) -> None:
    m, e = layer(16, 8, dtype), torch.eye(16, dtype=dtype)
    state = m.write(e[:2])
    never = torch.stack([e[0] + e[1], e[0] - e[1], 3 * e[0], e[2], e[0] + 0.1 * e[3]])
    unknown = torch.stack([e[0] / 2, e[0] / 2**0.5, (e[0] + e[1]) / 2, e[0] + 2e-3 * e[3]])
    alike = torch.stack([e[0], e[1], -e[0], 0.6 * e[0] + 0.8 * e[1]])
    assert m.contains(state, never).tolist() == [0] * 5
    assert m.contains(state, unknown).tolist() == [-1] * 4
    assert m.contains(state, alike).tolist() == [1] * 4
    for q in never:
        with pytest.raises(ValueError, match=r"z: expected vectors .* got 1 others \(never written\)"):
            m.forget(state, q[None])
    for q in unknown:
        with pytest.raises(ValueError, match=r"got 1 others \(the memory cannot tell; usual causes: "):
            m.forget(state, q[None])


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_are_counted(dtype: torch.dtype) -> None:
    """Of independent vectors of the usual size, up to 3 copies; nearly all, and none wrong, be it crowded."""
    said: Counter[str] = Counter()
    for seed in range(60):
        rows, size = [(8, 16), (12, 40), (16, 24)][seed % 3]
        m, generator = layer(size, rows, dtype, seed), torch.Generator().manual_seed(seed)
        z = normal(int(torch.randint(1, rows - 1, (), generator=generator)), size, seed=seed, dtype=dtype)
        times = torch.randint(1, 4, (len(z),), generator=generator).tolist()
        state, every = written(m, z, times, seed)
        kind = "few" if len(every) < rows else "many"
        for truth, count in zip(times, m.contains(state, z).tolist(), strict=True):
            said[f"{kind} {'right' if count == truth else 'unknown' if count == -1 else 'wrong'}"] += 1
    assert said["few wrong"] == said["many wrong"] == 0
    assert said["few right"] > 15 * said["few unknown"]
    assert said["many right"] > 2 * said["many unknown"]


KINDS = ["random", "mixed", "one-small", "one-large", "alike", "dependent", "signs"]


def vectors(kind: str, n: int, size: int, seed: int) -> Tensor:
    z = normal(n, size, seed=seed)
    if kind == "mixed":
        z *= 10 ** (4 * normal(n, 1, seed=seed + 1)).clamp(-4, 4)
    elif kind.startswith("one"):
        z[0] *= 1e-3 if kind == "one-small" else 1e3
    elif kind == "alike":
        z = normal(1, size, seed=seed + 1) + 0.03 * z
    elif kind == "dependent":
        z[-1] = 0.6 * z[0] + 0.5 * z[1] if n > 2 else z[-1]
    elif kind == "signs":
        z = z.sign()
    return z


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_answer_is_wrong(kind: str, dtype: torch.dtype) -> None:
    """Any lengths, scales and variances, more writes than rows, multiples and mixtures of what was written."""
    for seed in range(25):
        generator = torch.Generator().manual_seed(seed)

        def draw(low: int, high: int, generator: torch.Generator = generator) -> int:
            return int(torch.randint(low, high, (), generator=generator))

        rows, size, unit = draw(2, 20), draw(4, 40), 10.0 ** draw(-14, 15)
        noise_var, beyond = 10.0 ** draw(-6, 7) if seed % 2 else 1.0, 10.0 ** draw(-4, 3) if seed % 3 == 0 else 1.0
        m = layer(size, rows, dtype, seed, scale=unit, noise_var=noise_var)
        z = (unit * beyond * vectors(kind, draw(2, rows + 3), size, seed)).to(dtype)
        times = [draw(1, 4) for _ in z]
        try:
            state, every = written(m, z, times, seed)
        except ValueError:  # a noise_var that this precision loses
            continue
        others = [-z[0], 3 * z[0], z[0] / 2, z[0] / 2**0.5, z[0] + z[1], z[0] - z[1], (z[0] + z[1]) / 2**0.5]
        others.append(unit * beyond * normal(size, seed=seed + 1).to(dtype))
        for asked in (z, torch.cat([z, torch.stack(others)])):
            for i, count in enumerate(m.contains(state, asked).tolist()):
                away, back = ((every - q).norm(dim=-1) / q.norm() for q in (asked[i], -asked[i]))
                exact, alike = int((away == 0).sum()), int(((away < 0.01) | (back < 0.01)).sum())
                if count in (-1, exact, alike):
                    continue
                assert exact == 0, (seed, i, count)
                assert could_be(every, asked[i], count, rows), (seed, i, count)


@pytest.mark.parametrize("small", [1e-15, 1e-30])
def test_what_left_no_trace_is_unknown(small: float) -> None:
    m, z = layer(16, 8), normal(3, 16, dtype=torch.float32)
    state = m.write(small * z)
    assert m.contains(state, small * z).tolist() == [-1] * 3
    assert m.contains(state, z).tolist() == [0] * 3
    assert m.contains(layer(16, 8).prior(), z).tolist() == [0] * 3
    assert m.contains(state, 0 * z).tolist() == [0] * 3  # which changes nothing
    some = z * torch.tensor([[1], [0], [1]])  # and was never written
    assert m.contains(m.write(some[:2]), some).tolist() == [1, 0, 0]
    tiny = layer(16, 8, scale=1e-14)  # the layer's own unit
    assert tiny.contains(tiny.write(1e-14 * z), 1e-14 * z).tolist() == [1] * 3


def test_a_vector_much_shorter_than_the_others_is_unknown() -> None:
    """float32 has lost it, float64 has not; the others are counted in either."""
    z = normal(4, 16)
    z[3] *= 1e-3
    for dtype, last in ((torch.float32, -1), (torch.float64, 1)):
        m = layer(16, 8, dtype)
        assert m.contains(m.write(z.to(dtype)), z.to(dtype)).tolist() == [1, 1, 1, last]
    m = layer(16, 8, torch.float64)  # a state that float32 has rounded
    assert m.contains(layer(16, 8).write(z.float()).to(torch.float64), z.float().double()).tolist() == [1, 1, 1, -1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_key_that_came_again_with_another_value(dtype: torch.dtype) -> None:
    """Where little is written, its weight is a multiple of the first, and the pairs are not known apart."""
    for seed in range(60):
        torch.manual_seed(seed)
        m = Memory(12, rows=6, values=1).to(dtype).requires_grad_(False)
        z, v = 1e-3 * torch.randn(3, 12, dtype=dtype), 1e-3 * torch.randn(3, 1, dtype=dtype)
        z[1] = z[0]
        order = [[0, 1, 1, 2], [2, 0, 1, 1], [1, 0, 2, 1], [1, 1, 0, 2]][seed % 4]
        assert 0 not in m.contains(m.write(z[order], values=v[order]), z, v).tolist(), seed


# forget


def test_forgetting_copies_takes_all_of_them_together() -> None:
    """One's weights cannot be told from another's."""
    m, z = layer(20, 12, torch.float64), normal(4, 20)
    order = [0, 1, 2, 0, 1, 3]
    state, w = memory.write(m.prior(), z[order], m.noise_var)
    with pytest.raises(ValueError, match=r"z: expected all vectors .* more than once, or none, got 1 of 2 copies"):
        m.forget(state, z[:1])
    left = memory.condition(m.prior(), w[[2, 5]], z[2:], m.noise_var)
    torch.testing.assert_close(m.forget(state, z[:2]), left, rtol=0, atol=1e-8)
    kept = memory.condition(m.prior(), w[[0, 1, 3, 4, 5]], z[[0, 1, 0, 1, 3]], m.noise_var)
    torch.testing.assert_close(m.forget(state, z[2:3]), kept, rtol=0, atol=1e-8)


def test_forgetting_a_mixture_and_its_parts_is_an_error() -> None:
    m, z = layer(20, 12), normal(4, 20).float()
    state, mixed = m.write(z), 0.6 * z[0] + 0.8 * z[1]
    assert m.contains(state, torch.stack([z[0], mixed])).tolist() == [1, 1]
    with pytest.raises(ValueError, match="z: expected vectors that can all be in the memory"):
        m.forget(state, torch.stack([z[0], mixed]))
    assert m.contains(m.forget(state, mixed[None]), z[2:]).tolist() == [1, 1]  # which is not noticed
