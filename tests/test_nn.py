"""kanerva.nn against one dense Gaussian in NumPy, and as part of somebody's network.

The oracle here knows of joint Gaussians and of conditioning on some of their entries, and of nothing else.
"""

import copy
import importlib.util
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cases import normal
from kanerva import MemoryState, memory
from kanerva import nn as nn_file
from kanerva.nn import Memory, Stream
from oracle import Array, array

# What is asked of float64: rounding, 1e-16, times the conditioning of small memories.
EXACT = 1e-10


def layer(size: int = 5, rows: int = 4, values: int = 0, seed: int = 0) -> Memory:
    made = Memory(size, rows, values).double()
    with torch.no_grad():
        made.R0.copy_(normal(made.rows, size + values, seed=seed))
        made.log_prior_var.fill_(0.3)
        made.log_noise_var.fill_(-1.0)
    return made


def variances(m: Memory) -> tuple[float, float]:
    return float(m.prior_var.detach()), float(m.noise_var.detach())


# the oracle


def conditioned(mean: Array, cov: Array, known: Array, seen: Array) -> tuple[Array, Array]:
    """Mean and covariance of a Gaussian, given the entries `known`."""
    gain = np.linalg.solve(cov[np.ix_(known, known)], cov[known]).T
    return mean + gain @ (seen - mean[known]), cov - gain @ cov[known]


def given_code(R: Array, noise_var: float, z: Array, known: Array) -> tuple[Array, Array]:
    """The joint Gaussian of w ~ N(0, I) and z = Rᵀw + noise, given some entries of z; [w; z]."""
    K, C = R.shape
    both = np.concatenate([np.eye(K), R], axis=1)  # [w; z] = bothᵀ w + noise in z
    cov = both.T @ both + np.diag([0.0] * K + [noise_var] * C)
    where = K + np.flatnonzero(known)
    return conditioned(np.zeros(K + C), cov, where, z[known])


def is_dense(state: MemoryState, dense: tuple[Array, Array]) -> None:
    R, cov = dense
    np.testing.assert_allclose(array(state.R), R, rtol=0, atol=EXACT)
    np.testing.assert_allclose(np.kron(array(state.U), np.eye(R.shape[1])), cov, rtol=0, atol=EXACT)


# writing


BACKENDS = ["reference", "gram", *(["cpu"] if importlib.util.find_spec("numba") else [])]


def padded(z: Tensor, mask: Tensor, what: float) -> Tensor:
    return torch.where(mask[..., None], z, torch.tensor(what, dtype=z.dtype)).requires_grad_()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("values", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_masked_code_changes_nothing_to_the_last_bit(backend: str, values: int, dtype: torch.dtype) -> None:
    m = layer(8, 4, values).to(dtype)
    m.backend = backend
    z, v = normal(3, 5, 8, dtype=dtype), normal(3, 5, values, seed=1, dtype=dtype)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    found = []
    for what in (0.0, 7e30, torch.nan, torch.inf):
        codes, more = padded(z, mask, what), padded(v, mask, what)
        state = m.write(codes, mask=mask, values=more if values else None)
        total = sum((x * normal(*x.shape, seed=9).to(x)).sum() for x in state)
        grads = torch.autograd.grad(total, [codes, more, *m.parameters()], allow_unused=True)
        found.append([*state, *(g for g in grads if g is not None)])
        assert not grads[0][~mask].any()
        assert grads[0][mask].any()
        if values:
            assert not grads[1][~mask].any()
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    blank = m.prior()
    assert torch.equal(found[0][0][2], blank.R)
    assert torch.equal(found[0][1][2], blank.U)


def test_keys_values_and_masks_broadcast() -> None:
    m, z, v = layer(values=2), normal(6, 5), normal(3, 6, 2)
    many = m.write(z, values=v)
    for i in range(3):
        torch.testing.assert_close(many.R[i], m.write(z, values=v[i]).R)
    assert m.write(z.expand(3, 6, 5), values=v[0]).R.shape == (3, 4, 7)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    both = m.write(z, mask=mask, values=v[0])
    torch.testing.assert_close(both.R[0], m.write(z[:2], values=v[0, :2]).R)
    torch.testing.assert_close(both.R[1], many.R[0])


# reading


def test_forward_writes_and_reads() -> None:
    m, z, v = layer(6, 4, values=2), normal(2, 3, 6), normal(2, 3, 2, seed=1)
    torch.testing.assert_close(m(z, values=v), m.read(m.write(z, values=v), z))
    torch.testing.assert_close(m(z, z[:, :1], values=v), m.read(m.write(z, values=v), z[:, :1]))
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    torch.testing.assert_close(
        m(padded(z, mask, torch.nan), mask=mask, values=v)[0, :2], m(z[:1, :2], values=v[:1, :2])[0]
    )


# fading


def test_fading_is_conditioning_of_two_moments_at_once() -> None:
    """Codes seen of M before it drifts, and of M' after: the posterior of M' from one dense Gaussian of both."""
    m, keep = layer(2, 3), 0.7
    (K, C), (prior_var, noise_var) = m.R0.shape, variances(m)
    w, z = normal(4, K, seed=1), normal(4, C, seed=2)
    state = memory.condition(m.prior(), w[:2], z[:2], m.noise_var)
    state = memory.condition(m.fade(state, keep), w[2:], z[2:], m.noise_var)
    H = np.kron(array(w), np.eye(C))
    first, last = np.split(H, 2)
    zero = np.zeros_like(first)
    H = np.block([[first, zero], [zero, last]])
    prior = prior_var * np.kron(np.array([[1, np.sqrt(keep)], [np.sqrt(keep), 1]]), np.eye(K * C))
    mean = np.tile(array(m.R0).reshape(-1), 2)
    joint = np.block([[prior, prior @ H.T], [H @ prior, H @ prior @ H.T + noise_var * np.eye(len(H))]])
    at = len(mean) + np.arange(len(H))
    both, cov = conditioned(np.concatenate([mean, H @ mean]), joint, at, array(z).reshape(-1))
    after = slice(K * C, 2 * K * C)
    is_dense(state, (both[after].reshape(K, C), cov[after, after]))


# what is in there


def signs(*shape: int, seed: int = 0) -> Tensor:
    return torch.where(normal(*shape, seed=seed) < 0, -1.0, 1.0).double()


@pytest.mark.parametrize("values", [0, 3])
def test_contains_counts_vectors_and_pairs(values: int) -> None:
    m = layer(20, 12, values)
    z, v = normal(2, 4, 20), normal(2, 4, values, seed=1)
    twice, more = torch.cat([z, z[:, :1]], 1), torch.cat([v, v[:, :1]], 1)
    state = m.write(twice, values=more if values else None)
    assert m.contains(state, z).tolist() == [[2, 1, 1, 1]] * 2
    assert m.contains(state, torch.cat([z + 0.1, 0 * z], 1)).tolist() == [[0] * 8] * 2
    if values:
        assert m.contains(state, z, v).tolist() == [[2, 1, 1, 1]] * 2
        assert m.contains(state, z, v.flip(1)).tolist() == [[0] * 4] * 2
        again = m.write(z[:, :1], state, values=v[:, 1:2])  # the same key with another value
        assert m.contains(again, z).tolist() == [[3, 1, 1, 1]] * 2
        assert m.contains(again, z, v).tolist() == [[2, 1, 1, 1]] * 2
    full = m.write(normal(2, 40, 20, seed=3), values=normal(2, 40, values, seed=4) if values else None)
    assert m.contains(full, z).tolist() == [[-1] * 4] * 2


def test_recall_completes_a_clean_cue() -> None:
    """As many known entries as codes, of keys or of values, are enough."""
    m = layer(12, 10, values=6)
    z, v = normal(2, 5, 12), normal(2, 5, 6, seed=1)
    state, codes = m.write(z, values=v), torch.cat([z, v], -1)
    where = torch.rand(2, 5, 18, generator=torch.Generator().manual_seed(0)).argsort(-1)
    known = where < 6
    found = m.recall(state, torch.where(known, codes, torch.nan), known)
    torch.testing.assert_close(found, codes, rtol=0, atol=1e-6)
    torch.testing.assert_close(m.recall(state, z), codes, rtol=0, atol=1e-6)
    only_values = torch.arange(18) >= 12
    torch.testing.assert_close(m.recall(state, codes, only_values), codes, rtol=0, atol=1e-6)
    assert float((m.predict(state, codes, known).mean - codes).square().mean().detach()) > 0.1  # a read shrinks


@pytest.mark.parametrize(("length", "exact"), [(30, True), (4, False)])
def test_recall_from_a_full_memory_is_conditioning(length: int, exact: bool) -> None:
    m = layer(6, 4)
    _, noise_var = variances(m)
    state, cue, known = m.write(normal(length, 6)).detach(), normal(2, 6, seed=1), normal(2, 6, seed=2) > 0
    found = m.recall(state, cue, known, cue_var=0.4, exact=exact)
    for q in range(2):
        w = given_code(array(state.R), noise_var + 0.4, array(cue[q]), np.asarray(known[q]))[0][:4]
        np.testing.assert_allclose(array(found[q]), array(state.R).T @ w, rtol=0, atol=EXACT)


def test_recall_finds_the_likeliest_noise() -> None:
    """As good as if it were told, and far better than a read."""
    m = layer(60, 24)
    z = normal(12, 60)
    state, cue = m.write(z).detach(), z + 0.5 * normal(12, 60, seed=1)
    told, untold = m.recall(state, cue, cue_var=0.25), m.recall(state, cue)
    errors = [float((x - z).square().mean().detach()) for x in (told, untold, m.read(state, cue))]
    assert errors[1] < 1.05 * errors[0]
    assert errors[0] < 0.3 * 0.25  # 12 of 60 dimensions of the noise are left, a fifth
    assert errors[2] > 1.5 * errors[1]


def test_recall_settles_in_valid_vectors() -> None:
    m, z = layer(64, 32), signs(20, 64)
    state = m.write(z).detach()
    cue = torch.where(normal(20, 64, seed=1) < -1.28, -z, z)  # a tenth of the signs turned
    assert torch.equal(m.recall(state, cue, valid=torch.sign), z)
    assert not torch.equal(m.recall(state, cue).sign(), z)
    with pytest.raises(ValueError, match=r"valid: expected a map of vectors"):
        m.recall(state, cue, valid=lambda x: x[..., :3])


def test_contents_are_found_without_a_cue() -> None:
    """Vectors of ±1 that begin with 1: of z and −z, one is valid."""
    m, z = layer(64, 32), torch.cat([torch.ones(20, 1), signs(20, 63)], -1).double()
    seen: list[tuple[int, int]] = []
    state = m.write(z).detach()
    valid = lambda x: torch.cat([torch.ones_like(x[..., :1]), x[..., 1:].sign()], -1)  # noqa: E731
    found = m.contents(state, valid, lambda *n: seen.append(n))
    assert sorted(found.z.tolist()) == sorted(z.tolist())
    assert float(found.cost.max().detach()) < 1e-9
    assert seen[-1][1] == 20


def test_what_has_faded_is_not_taken_apart() -> None:
    """Counts and lists would be wrong without a word; a recall goes by what can be read."""
    m, z, v = layer(9, 8, values=2), normal(3, 9), normal(3, 2)
    faded = m.fade(m.write(z, values=v), 0.9)
    for state in (faded, faded.detach().to(torch.float64), m.write(z, faded, values=v)):
        for ask in (
            lambda s: m.contains(s, z),
            lambda s: m.forget(s, z),
            lambda s: m.contents(s, torch.sign),
            lambda s: memory.frame(s, m.R0, m.prior_var, m.noise_var),
        ):
            with pytest.raises(ValueError, match="state: expected a memory that never faded"):
                ask(state)
        plain = MemoryState(*state)
        assert torch.equal(m.recall(state, z), m.recall(plain, z, exact=False))
        assert not torch.equal(m.recall(state, z), m.recall(plain, z))
        assert torch.equal(m.read(state, z), m.read(plain, z))
    assert type(memory.condition(faded, normal(1, 8), normal(1, 11), 1.0)) is type(faded)
    assert type(memory.update(faded, normal(8), normal(11), 1.0)) is type(faded)


# start values


@pytest.mark.parametrize("scale", [2.0**-4, 1.0, 2.0**8])
def test_a_scale_is_a_change_of_units(scale: float) -> None:
    """Vectors in other units: all that is read comes out in these units, to the last bit for powers of two."""
    found = []
    for unit in (1.0, scale):
        torch.manual_seed(0)
        m = Memory(12, rows=6, values=2, scale=unit)
        z, v = (normal(8, n, seed=n, dtype=torch.float32) for n in (12, 2))
        state = m.write(unit * z, values=unit * v)
        mean, var = m.predict(state, unit * z)
        found.append((m.address(state, unit * z), mean / unit, var / unit**2, m.kl(state)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_untrained_start_values_read_what_was_written() -> None:
    torch.manual_seed(0)
    for scale in (0.06, 1.0, 30.0):
        z = scale * normal(24, 64, dtype=torch.float32)
        m = Memory(64, rows=32, scale=scale)
        told, untold = (float((one(z) - z).square().mean().detach()) for one in (m, Memory(64, rows=32)))
        assert told < 0.01 * scale**2
        assert scale > 0.1 or untold > 5 * told


# streams


def test_a_stream_goes_on() -> None:
    m, z, v = layer(8, 4, values=2), normal(3, 9, 8), normal(3, 9, 2, seed=1)
    stream = Stream(m, (3,))
    for i in range(0, 9, 3):
        last = stream.write(z[:, i : i + 3], values=v[:, i : i + 3])
    wanted = m.write(z, values=v)
    torch.testing.assert_close(stream.state, wanted.detach())
    torch.testing.assert_close(stream(z), m.read(stream.state, z))
    assert not stream.state.R.requires_grad
    last.R.sum().backward()  # of the last write alone
    assert m.log_noise_var.grad is not None
    assert m.R0.grad is None
    stream.reset()
    torch.testing.assert_close(stream.state, m.prior((3,)).detach())


def test_a_stream_fades() -> None:
    m, z = layer(), normal(4, 5)
    stream, state = Stream(m, keep=0.9), m.prior()
    for code in z:
        stream.write(code[None])
        state = m.write(code[None], m.fade(state, 0.9))
    torch.testing.assert_close(stream.state, state.detach())


class Calls(TorchDispatchMode):
    """Counts the operations that are called inside."""

    def __enter__(self) -> Self:
        self.of: Counter[str] = Counter()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.of[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_stream_looks_at_its_state_once(no_shape_checks: None) -> None:
    """A write that fades reads no more values than one that does not; taking a state in factors it, and no more."""
    m, z = layer(), normal(4, 5)
    soft, hard = Stream(m, keep=0.9), Stream(m)
    with Calls() as fading:
        soft.write(z)
    with Calls() as writing:
        hard.write(z)
    assert fading.of["_local_scalar_dense"] == writing.of["_local_scalar_dense"] > 0
    with Calls() as taking:
        soft.state = hard.state
    assert taking.of["linalg_cholesky_ex"] == 1
    assert taking.of["log"] == 0
    before = soft.state
    for wrong in (layer(6).prior(), MemoryState(before.R, -before.U), m.prior((2,))):
        with pytest.raises(ValueError, match=r"^state\.|^batch axes"):
            soft.state = wrong
    torch.testing.assert_close(soft.state, before)


def test_a_stream_knows_that_its_state_has_faded(tmp_path: Path) -> None:
    """Wherever the state comes from, and whatever `keep` is now."""
    m, z = layer(9, 8), normal(3, 9)
    fading = Stream(m, keep=0.9)
    fading.write(z)
    torch.save(fading.state_dict(), tmp_path / "stream.pt")
    loaded, given, changed = Stream(m), Stream(m), Stream(m, keep=0.9)
    loaded.load_state_dict(torch.load(tmp_path / "stream.pt"))
    given.state = m.fade(m.write(z), 0.9)
    changed.write(z)
    changed.keep = 1.0
    for stream in (loaded, given, changed):
        for one in (stream, copy.deepcopy(stream)):
            assert isinstance(one.state, memory.Faded)
        assert isinstance(stream.write(z[:1]), memory.Faded)
        stream.reset()
        stream.write(z)
        assert m.contains(stream.state, z).tolist() == [1, 1, 1]
    left_out = Stream(m, save=False)
    assert "kept" not in left_out.state_dict()
    given.state = fading.state
    given.load_state_dict(left_out.state_dict(), strict=False)  # brings no state, and so no mark
    assert isinstance(given.state, memory.Faded)
    with pytest.raises(ValueError, match="_extra_state: expected"):
        given.load_state_dict({**given.state_dict(), "_extra_state": None})


def test_reads_see_one_whole_state_while_another_thread_writes() -> None:
    """Every state of this stream has R and U that belong together: of a code written again and again."""
    m = layer(4, 3)
    stream, alone, code = Stream(m), Stream(m), normal(1, 4)
    states = [alone.state]
    for _ in range(40):
        alone.write(code)
        states.append(alone.state)
    number = {float(s.U.sum()): float(s.R.sum()) for s in states}
    seen: list[MemoryState] = []
    with ThreadPoolExecutor(2) as pool:
        reads = pool.submit(lambda: [seen.append(stream.state) for _ in range(20_000)])
        writes = pool.submit(lambda: [stream.write(code) for _ in range(40)])
        writes.result()
        reads.result()
    assert {float(s.R.sum()) for s in seen} <= set(number.values())
    assert all(number[float(s.U.sum())] == float(s.R.sum()) for s in seen)


# in somebody's network


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.memory, self.after = nn.Linear(6, 8), Memory(8, rows=4), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.memory(self.before(x)))


def test_the_example_runs() -> None:
    """The code of the module's own docstring."""
    lines = (nn_file.__doc__ or "").split("\n")
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["mean"].shape == names["var"].shape == (4, 6, 19)
    assert names["layer"].R0.grad is not None


def test_autocast_leaves_the_memory_alone() -> None:
    net, x = Network(), normal(2, 3, 6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        h = net.before(x)
        assert h.dtype == torch.bfloat16
        state = net.memory.write(h)
        assert state.R.dtype == state.U.dtype == net.memory.read(state, h).dtype == torch.float32
        assert torch.equal(state.R, net.memory.write(h.float()).R)
        net(x).sum().backward()
    assert net.memory.R0.grad is not None
    assert net.memory.R0.grad.dtype == torch.float32


def test_vmap_over_layers() -> None:
    layers, z = [layer(seed=i) for i in range(3)], normal(2, 3, 5)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    parameters, buffers = torch.func.stack_module_state(layers)

    def call(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layers[0], (p, b), (z,), {"mask": mask})

    found = torch.func.vmap(call)(parameters, buffers)
    grads = torch.func.vmap(torch.func.grad(lambda p, b: call(p, b).square().sum()))(parameters, buffers)
    for i, one in enumerate(layers):
        out = one(z, mask=mask)
        torch.testing.assert_close(found[i], out)
        out.square().sum().backward()
        for name, p in one.named_parameters():
            torch.testing.assert_close(grads[name][i], p.grad)


def test_copies_and_files(tmp_path: Path) -> None:
    m = layer(values=2)
    state = m.write(normal(3, 5), values=normal(3, 2))
    stream = Stream(m, keep=0.9)
    stream.state = state
    for made in (m, stream, m.reader(state)):
        torch.save(made, tmp_path / "made.pt")
        for again in (copy.deepcopy(made), torch.load(tmp_path / "made.pt", weights_only=True)):
            assert type(again) is type(made)
            theirs, ours = again.state_dict(), made.state_dict()
            assert list(theirs) == list(ours)
            assert all(torch.equal(theirs[name], ours[name]) for name in ours)
    torch.save(state, tmp_path / "state.pt")
    assert torch.equal(torch.load(tmp_path / "state.pt", weights_only=True).R, state.R)


@pytest.mark.parametrize("values", [0, 3])
def test_the_reader_is_exported(values: int, tmp_path: Path) -> None:
    m = layer(6, 4, values).float()
    z, v = normal(5, 6, dtype=torch.float32), normal(5, values, seed=1, dtype=torch.float32)
    state = m.write(z, values=v if values else None)
    reader, wanted = m.reader(state), m.read(state, z).detach()
    torch.testing.assert_close(reader(z), wanted)
    torch.testing.assert_close(torch.export.export(reader, (z,)).module()(z), wanted)
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, of its own parts
        shapes = {"cue": {0: torch.export.Dim("Q")}}
        torch.onnx.export(reader, (z,), tmp_path / "reader.onnx", dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "reader.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: z[:3].numpy()})
    torch.testing.assert_close(torch.from_numpy(found), wanted[:3])


# PyTorch's compiler; last, because it needs the shape checks off to the end


@pytest.mark.filterwarnings("default")  # the compiler's own warnings differ from version to version
def test_one_graph(no_shape_checks: None) -> None:
    m = layer(6, 4, values=2)
    z, v, cue = normal(2, 3, 6), normal(2, 3, 2, seed=1), normal(2, 2, 6, seed=2)
    mask, known = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool), normal(6) > 0

    def every(z: Tensor) -> tuple[Tensor, ...]:
        state = m.fade(m.write(z, mask=mask, values=v), 0.9)
        return (m.read(state, cue), *m.predict(state, cue, known), m(z, values=v))

    torch.compiler.reset()
    compiled = torch.compile(every, fullgraph=True, backend="aot_eager")
    for function in (compiled, every):
        m.zero_grad()
        out = function(z)
        sum(x.square().sum() for x in out).backward()  # type: ignore[union-attr]
        found = [*out, *(p.grad for p in m.parameters())]
        first = found if function is compiled else first
    for a, b in zip(first, found, strict=True):
        torch.testing.assert_close(a, b)


# each call is wrong in one argument, whose name the error begins with
Wrong = Callable[[Memory, Memory, Tensor], Any]
WRONG: list[tuple[str, Wrong]] = [
    (r"z: expected shape \(\*b, T, 5\)", lambda m, p, z: m.write(z[:, :4])),
    ("z: expected finite", lambda m, p, z: m.write(z / 0)),
    (r"z: expected torch\.float64 like the Memory", lambda m, p, z: m.write(z.float())),
    ("z: expected a dense tensor", lambda m, p, z: m.contains(m.prior(), z.to_sparse())),
    ("z: .* in the memory", lambda m, p, z: m.forget(m.write(z[:1]), z[1:2])),
    ("R0: expected float32 or float64", lambda m, p, z: m.bfloat16().write(z.bfloat16())),
    ("values: ", lambda m, p, z: m.write(z, values=z)),
    ("values: expected a tensor .*, got None", lambda m, p, z: p.write(z)),
    ("values: .* with T = 3 as in z", lambda m, p, z: p.write(z, values=z[:2, :2])),
    ("values: expected finite", lambda m, p, z: p.write(z, values=z[:, :2] / 0)),
    ("values: .* more than once", lambda m, p, z: p.forget(p.write(z[[0, 0]], values=z[:2, :2]), z[:1])),
    (r"mask: expected torch\.bool", lambda m, p, z: m.write(z, mask=z[:, 0])),
    ("mask: expected shape", lambda m, p, z: m.write(z, mask=z[:2, 0] > 0)),
    (r"state\.R: expected shape .* with C = 5", lambda m, p, z: m.read(p.prior(), z)),
    ("cue: expected vectors of 5 numbers, got 7", lambda m, p, z: p.read(p.prior(), torch.cat([z, z[:, :2]], -1))),
    ("cue: expected finite", lambda m, p, z: m.recall(m.prior(), z / 0)),
    ("known: expected shape", lambda m, p, z: m.read(m.prior(), z, z[0, :4] > 0)),
    ("known: expected a shape that fits", lambda m, p, z: m.read(m.prior(), z, z[:2] > 0)),
    ("cue_var: ", lambda m, p, z: m.recall(m.prior(), z, cue_var=-1.0)),
    ("cue_var: .* fits", lambda m, p, z: m.recall(m.prior(), z, cue_var=z[:, :1].square())),
    ("valid: expected a function", lambda m, p, z: m.contents(m.prior(), None)),  # type: ignore[arg-type]
    ("rows: expected", lambda m, p, z: Memory(5, rows=0)),
    ("scale: expected one positive", lambda m, p, z: Memory(4, scale=0.0)),
    ("memory: expected", lambda m, p, z: Stream(nn.Linear(2, 2))),  # type: ignore[arg-type]
    ("batch: expected a tuple", lambda m, p, z: Stream(m, 3)),  # type: ignore[arg-type]
    ("keep: expected", lambda m, p, z: Stream(m, keep=0.0)),
    ("batch axes: expected those of the stream", lambda m, p, z: Stream(m).write(z.expand(2, 3, 5))),
]


@pytest.mark.parametrize(("message", "call"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_what_is_wrong_is_said(message: str, call: Wrong, no_shape_checks: None) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        call(layer(), layer(values=2), normal(3, 5))


@pytest.mark.filterwarnings("default")
def test_the_read_itself_is_exported(no_shape_checks: None) -> None:
    m, z = layer(), normal(3, 5)
    stream = Stream(m)
    stream.write(z)
    with torch.no_grad():
        torch.testing.assert_close(torch.export.export(stream, (z,)).module()(z), stream(z))
