"""Looking into a memory through a model: contains, forget, contents, and recall that ends at a stored image.

`mirror` has a codec that inverts itself, and must be right to the last pixel. The shipped model is asked the same
with a codec that was learned.
"""

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import kanerva
from cases import generator, normal
from kanerva import DKM, MemoryState, memory
from kanerva.data import damage
from kanerva.recall.retriever import StoredImages
from mirror import PIXELS, SHAPE, bits, mirror
from recalling import COLOUR, images, model

# float32 states: rounding of the codes, times the spread of the weights
NEAR = {"rtol": 1e-3, "atol": 2e-3}


def same(a: MemoryState, b: MemoryState, **tolerance: float) -> None:
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def never(m: DKM, x: Tensor, kept: list[int]) -> MemoryState:
    """The memory of the kept images alone, each with the weight it had among all."""
    z = m.encode(x)
    _, w = memory.write(m.blank(), z, m.noise_var)
    return memory.condition(m.blank(), w[kept], z[kept], m.noise_var)


def spoilt(x: Tensor, n: int = 3, seed: int = 0) -> Tensor:
    """Images with n pixels each turned over."""
    order = normal(*x.shape, seed=seed).flatten(-3).argsort(-1)
    return torch.where((order < n).unflatten(-1, x.shape[-3:]), 1 - x, x)


def where(found: Tensor, x: Tensor) -> list[int]:
    """Which of the images x each one is, to the last pixel; −1 for none."""
    equal = (found[:, None] == x).flatten(2).all(-1)
    return torch.where(equal.any(-1), equal.int().argmax(-1), -1).tolist()


# contains


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contains_counts_how_often_images_were_written(dtype: torch.dtype) -> None:
    m, x = mirror(24, dtype), bits(6, dtype=dtype)
    times = torch.tensor([1, 2, 3, 4, 5, 1])
    state = m.write(x.repeat_interleave(times, 0)[normal(16).argsort()])
    assert m.contains(state, x).equal(times)
    state = m.write(x[[0, 1]], state)
    assert m.contains(state, x).tolist() == [2, 3, 3, 4, 5, 1]
    assert sorted(where(m.contents(m.forget(state, x[:1])).x, x)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("T", [1, 4, 7])
def test_contains_knows_one_pixel(T: int) -> None:
    m, x = mirror(), bits(T)
    state = m.write(x)
    assert m.contains(state, x).tolist() == [1] * T
    changed = (x[:, None] + torch.eye(PIXELS).unflatten(-1, SHAPE)) % 2
    assert m.contains(state, changed.flatten(0, 1)).tolist() == [0] * (T * PIXELS)
    assert not m.contains(state, bits(50, seed=1)).any()
    assert not m.contains(m.blank(), x).any()


def test_contains_says_when_it_cannot_know() -> None:
    """With as many images as rows, where none of those that are asked for is among them; and with more."""
    m, x, others = mirror(), bits(12), bits(3, seed=1)
    full = m.write(x[:8])
    assert m.contains(full, torch.cat([x[:2], others])).tolist() == [1, 1, 0, 0, 0]
    assert m.contains(full, others).tolist() == [-1] * 3
    assert m.contains(m.write(x), torch.cat([x, others])).tolist() == [-1] * 15
    # as many codes as numbers in a code: every code is a mixture of them
    wide = mirror(64, torch.float64)
    many = bits(60, dtype=torch.float64)
    assert wide.contains(wide.write(many), many[:3]).tolist() == [-1] * 3
    assert (
        wide.contains(wide.write(many[:59]), torch.cat([many[:3], others.double()])).tolist() == [1] * 3 + [0] * 3
    )


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
def test_looking_takes_any_batch(batch: tuple[int, ...]) -> None:
    """Of memories, of sets of images for one memory, and none of either."""
    m, x = mirror(), bits(*batch, 5)
    state = m.write(x[..., :4, :, :, :])
    expected = torch.tensor([1, 1, 1, 1, 0]).expand(*batch, 5)
    assert m.contains(state, x).equal(expected)
    assert m.contains(state, x[..., :0, :, :, :]).shape == (*batch, 0)
    same(m.forget(state, x[..., :0, :, :, :]), state)
    after = m.forget(state, x[..., :2, :, :, :])
    assert (after.R.shape, after.U.shape) == (state.R.shape, state.U.shape)
    assert m.contains(after, x).equal(torch.tensor([0, 0, 1, 1, 0]).expand(*batch, 5))
    if batch:
        assert m.contains(state, bits(4, seed=9)).equal(torch.zeros(*batch, 4, dtype=torch.long))
    else:
        assert m.contains(state, x.expand(2, *x.shape)).equal(expected.expand(2, 5))
        each = m.forget(state, x[:4, None])
        assert m.contains(each, x[:4]).equal(1 - torch.eye(4, dtype=torch.long))


def test_looking_goes_on_where_gradients_and_precision_do_not() -> None:
    """Under autocast, in inference mode, and beside a memory that is not a number, which knows nothing."""
    m, x = mirror().requires_grad_(True), bits(4)
    state = m.write(x)
    usual, left = m.contents(state), m.forget(state, x[:2])
    assert not usual.x.requires_grad
    assert not left.R.requires_grad
    found = m.recall(state, spoilt(x), 2)
    for mode in (torch.autocast("cpu", torch.bfloat16), torch.inference_mode()):
        with mode:
            assert m.contains(state, x).tolist() == [1] * 4
            assert torch.equal(m.contents(state).x, usual.x)
            same(m.forget(state, x[:2]), left, rtol=0, atol=0)
            torch.testing.assert_close(m.recall(state, spoilt(x), 2, mask=torch.ones(5, 6)), found)
    broken = MemoryState(*(torch.stack([part, part]).detach() for part in state))
    broken.R[0, 0, 0] = math.nan
    with kanerva.deep_checks(False):
        assert m.contains(broken, x).tolist() == [[-1] * 4, [1] * 4]


# forget


@pytest.mark.parametrize("gone", [[0], [5], [1, 4], [5, 3, 0]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forgetting_leaves_the_memory_that_never_had_it(gone: list[int], dtype: torch.dtype) -> None:
    m, x = mirror(dtype=dtype), bits(6, dtype=dtype)
    kept = [i for i in range(6) if i not in gone]
    state = m.write(x)
    after = m.forget(state, x[gone])
    expected = never(m, x, kept)
    same(after, expected, **(NEAR if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-8}))
    assert m.contains(after, x).tolist() == [int(i in kept) for i in range(6)]
    # what is read is what would be
    read, would = (memory.read(s, memory.address(m.encode(x), s, m.noise_var)) for s in (after, expected))
    torch.testing.assert_close(read, would, **NEAR)


def test_forgetting_what_is_not_there_is_an_error() -> None:
    m, x, other = mirror(), bits(2, 4), bits(2, 1, seed=1)
    state = m.write(x)
    before = MemoryState(state.R.clone(), state.U.clone())
    with pytest.raises(ValueError, match=r"x: expected images .*, got 1 others \(never written\): \[\(1, 1\)\]"):
        m.forget(state, torch.stack([x[0, :2], torch.cat([x[1, :1], other[1]])]))
    full = m.write(bits(9, seed=2))
    with pytest.raises(
        ValueError, match=r"got 1 others \(a memory of as many codes as rows, or more, cannot tell\)"
    ):
        m.forget(full, bits(9, seed=2)[:1])
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))


# contents


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("T", [1, 5, 8])
def test_contents_are_all_that_was_written(T: int, dtype: torch.dtype) -> None:
    m, x = mirror(dtype=dtype), bits(T, dtype=dtype)
    state = m.write(x)
    seen: list[tuple[int, int]] = []
    found = m.contents(state, lambda n, of: seen.append((n, of)))
    assert sorted(where(found.x, x)) == list(range(T))
    assert found.x.dtype == found.cost.dtype == dtype
    assert found.cost.shape == (T,)
    assert float(found.cost.max()) < 1e-4
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)
    assert seen[-1] == (T, T)
    again = m.contents(state)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_contents_of_nothing_and_of_too_much_are_none() -> None:
    m, x = mirror(), bits(12)
    for state in (m.blank(), m.write(x)):
        found = m.contents(state)
        assert found.x.shape == (0, *SHAPE)
        assert found.cost.shape == (0,)


# recall


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("T", [5, 8])
def test_recall_ends_at_the_stored_image(T: int, batch: tuple[int, ...]) -> None:
    m, x = mirror(), bits(*batch, T)
    state = m.write(x)
    half = damage.half(x, "left")
    for cue, mask in ((x, None), (spoilt(x), None), (half.x, half.mask)):
        path = m.recall(state, cue, 4, mask=mask)
        assert path.certified is not None
        assert path.certified.shape == (*batch, T)
        assert torch.equal(path.last, x)
        assert path.x.shape == (4, *x.shape)
        if cue is x:  # of so few pixels, a spoilt cue may not tell two images apart for sure
            assert bool(path.certified.all())


@pytest.mark.parametrize("kind", ["too many", "greys that the codec does not know"])
def test_recall_is_inferred_from_the_cue_where_nothing_is_found(kind: str) -> None:
    m, x = (mirror(), bits(2, 12)) if kind == "too many" else (model(COLOUR), images(COLOUR, 2, 3))
    state, cue = m.write(x), spoilt(x) if kind == "too many" else x
    path, usual = (m.recall(state, cue, 2, inside=inside) for inside in (True, False))
    assert path.certified is not None
    assert not path.certified.any()
    assert usual.certified is None
    for one, other in zip(path[:3], usual[:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_recall_never_raises_the_energy_nor_certifies_what_was_not_written() -> None:
    """From any cue, in memories where all is found, where some is, and where nothing is."""
    m = mirror()
    for T in (3, 8, 10):
        state = m.write(bits(4, T, seed=T))
        path = m.recall(state, bits(4, 20, seed=50), 6)
        assert path.energy is not None
        assert bool((path.energy.diff(dim=0) <= 0).all())
        for s in (0, 5):
            there = m.energy(state, path.x[s], path.w[s])
            torch.testing.assert_close(path.energy[s], there, rtol=1e-4, atol=1e-3)
        assert path.certified is not None
        assert bool((m.contains(state, path.last) >= 1)[path.certified].all())
        assert T < 10 or not path.certified.any()


def test_recall_inside_of_many_cues_for_one_memory() -> None:
    """Batch axes of cues that share a memory, and of memories that share cues; alone and in company."""
    m, x = mirror(), bits(3, 5)
    states = m.write(x)
    state = MemoryState(states.R[0], states.U[0])
    cue = torch.stack([spoilt(x[0], seed=seed) for seed in range(30)]).unflatten(
        0, (6, 5)
    )  # not all are searched from
    path = m.recall(state, cue, 2)
    assert path.certified is not None
    assert path.certified.shape == (6, 5, 5)
    assert torch.equal(path.last, x[0].expand_as(path.last))
    assert torch.equal(m.recall(state, cue[1, 2, 4:], 2).last[0], x[0, 4])
    assert torch.equal(m.recall(states, spoilt(x[0]), 2).last[0], x[0])


@pytest.mark.parametrize("shape", [(5, 6), (1, 5, 6), (4, 1, 5, 6), (2, 1, 1, 5, 6), (2, 4, 1, 5, 6)])
def test_recall_inside_takes_masks_of_any_shape(shape: tuple[int, ...]) -> None:
    """What is masked says nothing: cues that differ there alone end in the same image."""
    m, x = mirror(), bits(2, 4)
    state = m.write(x)
    mask = (normal(*shape, seed=5) > -0.7).float()
    for hidden in (1 - x, torch.zeros_like(x)):
        path = m.recall(state, torch.where(mask.bool(), spoilt(x, 1), hidden), 2, mask=mask)
        assert torch.equal(path.last, x)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("batch", [(0,), (2, 0), (0, 3), (0, 0), (2, 0, 3)])
def test_recall_inside_of_no_cue(batch: tuple[int, ...]) -> None:
    """No cues, or no memories: nothing comes back, in the right shape and without a warning."""
    m, x = mirror(), bits(*batch[:-1], 4)
    for inside in (True, False):
        path = m.recall(m.write(x), bits(*batch), 3, inside=inside)
        assert path.x.shape == (3, *batch, *SHAPE)
        assert path.w.shape == (3, *batch, 8)
        assert path.energy.shape == (3, *batch)
        assert (path.certified.shape == batch) if inside else (path.certified is None)


def test_recall_inside_leaves_others_alone_where_a_memory_is_not_a_number() -> None:
    m, x = mirror(), bits(3, 4)
    state = m.write(x)
    state.R[1, 0, 0] = math.nan
    with kanerva.deep_checks(False):
        path, alone = (m.recall(state, spoilt(x), 3, inside=inside) for inside in (True, False))
    assert bool(path.energy[:, 1].isnan().all() and alone.energy[:, 1].isnan().all())
    assert not bool(alone.energy[:, [0, 2]].isnan().any())
    assert path.certified.all(-1).tolist() == [True, False, True]
    assert torch.equal(path.last[[0, 2]], x[[0, 2]])


# recall with contents that are known


def test_recall_chooses_among_contents() -> None:
    """As without them."""
    m, x = mirror(), bits(8)
    state = m.write(x)
    found = m.contents(state)
    for cue in (spoilt(x), spoilt(x).expand(2, 3, *x.shape)):
        usual, path = m.recall(state, cue, 3), m.recall(state, cue, 3, contents=found)
        assert torch.equal(path.last, usual.last)
        assert torch.equal(path.certified, usual.certified)
        assert bool((path.energy.diff(dim=0) <= 0).all())
    half = damage.half(x, "left")
    assert torch.equal(m.recall(state, half.x, 1, mask=half.mask, contents=found).last, x)


def test_contents_that_do_not_fit_are_refused() -> None:
    m, x = mirror(), bits(2, 4)
    one, wrong = m.write(x[0]), cast(Any, x[0])
    found, others, small = (StoredImages(y, y.new_zeros(4)) for y in (x[0], x[1], x[0, :, :, :4]))
    after = m.forget(one, x[0, :1])
    with pytest.raises(ValueError, match=r"state: expected one memory, R of shape \(K, C\), got \(2, 8, 60\)"):
        m.contents(m.write(x))
    for error, message, call in (
        (ValueError, r"only for one, got 2", lambda: m.recall(m.write(x), x, contents=found)),
        (ValueError, r"got 4 others .*another memory", lambda: m.recall(one, x[0], contents=others)),
        (ValueError, r"got 1 others .*forgotten", lambda: m.recall(after, x[0], contents=found)),
        (ValueError, r"expected none with inside=False", lambda: m.recall(one, x[0], contents=found, inside=False)),
        (TypeError, r"got a tensor", lambda: m.recall(one, x[0], contents=wrong)),
        (ValueError, r"x: expected", lambda: m.recall(one, x[0], contents=small)),
    ):
        with pytest.raises(error, match=rf"contents.*{message}"):
            call()


# with a codec that was learned


def test_the_shipped_model_looks_into_memories_of_glyphs() -> None:
    """All that was promised, for six images and one that was not written."""
    glyphs = kanerva.data.load("glyphs", "test")
    x, other = kanerva.data.episodes(glyphs, 1, 7, generator=generator())[0].split([6, 1])
    m = kanerva.load("omniglot").requires_grad_(False)
    state = m.write(x)
    assert m.contains(state, torch.cat([x, other])).tolist() == [1] * 6 + [0]
    found = m.contents(state)
    assert sorted(where(found.x, x)) == list(range(6))
    assert float(found.cost.max()) < 1e-3
    lost = damage.half(x, "left")
    whole = torch.ones_like(x)
    cues = [damage.flips(x, share, generator()).x for share in (0.15, 0.3)]
    path = m.recall(state, torch.cat([*cues, lost.x]), 2, mask=torch.cat([whole, whole, lost.mask.expand_as(x)]))
    assert torch.equal(path.last, x.repeat(3, 1, 1, 1))
    assert bool(path.certified.all())
    after = m.forget(m.write(x[:2], state), x[:3])
    assert m.contains(after, x).tolist() == [0] * 3 + [1] * 3
