"""Bad input raises an error that says which argument, what came and what was wanted, and changes nothing."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kanerva
from cases import case, normal
from conftest import cuda
from kanerva import MemoryState, memory

# These calls are wrong on purpose: the package's own errors are wanted, not those of the test-time shape checks.
pytestmark = pytest.mark.usefixtures("no_shape_checks")

GOOD = case((2,), K=4, C=5, T=3)
STATE, W, Z, S2 = GOOD
R, U = STATE
NAN, INF = float("nan"), float("inf")


def spoiled(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x.view(-1)[1] = value
    return x


indefinite = spoiled(torch.eye(4, dtype=torch.float64), 2.0)
indefinite[1, 0] = 2.0
lopsided = spoiled(torch.eye(4, dtype=torch.float64), 0.5)

# call, type of error, and what its message must say
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "z of one axis": (
        lambda: memory.write(STATE, Z[0, 0], S2),
        ValueError,
        r"z: expected shape \(\*b, T, C\), got shape \(5,\)",
    ),
    "z of the wrong size": (
        lambda: memory.write(STATE, Z[..., :4], S2),
        ValueError,
        r"z: .* with C = 5 as in state\.R, got \(2, 3, 4\)",
    ),
    "a prior of another size": (
        lambda: memory.span(STATE, R[..., :4], 1.0),
        ValueError,
        r"R0: .* got \(2, 4, 4\)",
    ),
    "priors that are not as many as the memories": (
        lambda: memory.span(STATE, R[:1].expand(3, -1, -1), 1.0),
        ValueError,
        r"batch axes: .* \(2,\) of state\.R, .*\(3,\) of R0",
    ),
    "a prior without variance": (lambda: memory.span(STATE, R, 0.0), ValueError, "prior_var: expected"),
    "w of the wrong size": (
        lambda: memory.read(STATE, Z),
        ValueError,
        r"w: .* with K = 4 as in state\.R, got \(2, 3, 5\)",
    ),
    "w with an axis too few": (
        lambda: memory.read(STATE, W[0, 0]),
        ValueError,
        r"w: expected shape \(\*b, T, K\), got shape \(4,\)",
    ),
    "fewer weights than codes": (
        lambda: memory.condition(STATE, W[:, :2], Z, S2),
        ValueError,
        r"z: .* with T = 2 as in w, got \(2, 3, 5\)",
    ),
    "batches that do not fit": (
        lambda: memory.write(STATE, normal(3, 3, 5), S2),
        ValueError,
        r"batch axes: .* \(2,\) of state\.\w, .*\(3,\) of z",
    ),
    "U of another size": (
        lambda: memory.write(MemoryState(R, U[:, :3, :3]), Z, S2),
        ValueError,
        r"state.U: .* with K = 4",
    ),
    "U that is not square": (
        lambda: memory.write(MemoryState(R, U[..., :3]), Z, S2),
        ValueError,
        r"state.U: .* with K = 4 .* got \(2, 4, 3\)",
    ),
    "U with another batch": (
        lambda: memory.write(MemoryState(R, U.expand(3, 2, 4, 4)[:, 0]), Z, S2),
        ValueError,
        r"batch axes: .* \(2,\) of state.R, \(3,\) of state.U",
    ),
    "a memory without rows": (
        lambda: memory.prior(normal(0, 5), 1.0),
        ValueError,
        r"R0: expected at least one row",
    ),
    "a pair of tensors for a memory": (
        lambda: memory.read((R, U), W),  # type: ignore[arg-type]
        TypeError,
        r"state: expected a MemoryState\(R, U\), got tuple",
    ),
    "an array for a tensor": (
        lambda: memory.write(STATE, Z.numpy(), S2),  # type: ignore[arg-type]
        TypeError,
        r"z: expected a tensor of shape \(\*b, T, C\), got ndarray",
    ),
    "codes in float32": (lambda: memory.write(STATE, Z.float(), S2), TypeError, r"z: expected torch.float64"),
    "codes in bfloat16": (lambda: memory.write(STATE, Z.bfloat16(), S2), TypeError, r"z: .* got torch.bfloat16"),
    "whole numbers": (lambda: memory.write(STATE, Z.long(), S2), TypeError, r"z: .* got torch.int64"),
    "U in float32": (
        lambda: memory.write(MemoryState(R, U.float()), Z, S2),
        TypeError,
        r"state.U: .* torch.float32",
    ),
    "noise in float32": (lambda: memory.write(STATE, Z, S2.float()), TypeError, r"noise_var: .* torch.float32"),
    "codes on another device": (
        lambda: memory.write(STATE, Z.to("meta"), S2),
        ValueError,
        r"z: expected device cpu like state\.R, got meta",
    ),
    "noise on another device": (
        lambda: memory.write(STATE, Z, S2.to("meta")),
        ValueError,
        r"noise_var: expected device cpu",
    ),
    "a NaN code": (
        lambda: memory.write(STATE, spoiled(Z, NAN), S2),
        ValueError,
        r"z: expected finite values, got 1 NaN or infinite of 30",
    ),
    "an infinite code": (lambda: memory.address(spoiled(Z, INF), STATE, S2), ValueError, r"z: .* finite"),
    "a NaN weight": (lambda: memory.kl_weights(spoiled(W, NAN), S2), ValueError, r"w: .* finite"),
    "a NaN mean": (lambda: memory.read(MemoryState(spoiled(R, NAN), U), W), ValueError, r"state.R: .* finite"),
    "no noise": (lambda: memory.write(STATE, Z, 0.0), ValueError, r"noise_var: .* positive.* got 0.0"),
    "negative noise": (lambda: memory.write(STATE, Z, -S2), ValueError, r"noise_var: .* positive.* got -0.3"),
    "NaN noise": (lambda: memory.write(STATE, Z, NAN), ValueError, r"noise_var: .* got nan"),
    "infinite noise": (lambda: memory.write(STATE, Z, INF), ValueError, r"noise_var: .* got inf"),
    "no noise at all": (lambda: memory.write(STATE, Z, None), TypeError, r"noise_var: .* got None"),  # type: ignore[arg-type]
    "noise as a truth": (lambda: memory.write(STATE, Z, True), TypeError, r"noise_var: .* got bool"),
    "noise below float32": (
        lambda: memory.predict(STATE.to(torch.float32), W.float(), 1e-50),
        ValueError,
        r"noise_var: .* got 1e-50, which torch.float32 cannot hold",
    ),
    "no codes at all": (lambda: memory.address(None, STATE, S2), TypeError, r"z: .* got NoneType"),  # type: ignore[arg-type]
    "no weights at all": (lambda: memory.read(STATE, None), TypeError, r"w: .* got NoneType"),  # type: ignore[arg-type]
    "what write gave": (
        lambda: memory.read(memory.write(STATE, Z, S2), W),  # type: ignore[arg-type]
        TypeError,
        r"state: .* got tuple; .* memory.write gives a pair \(state, weights\)",
    ),
    "U of a batch that z does not fit": (
        lambda: memory.write(MemoryState(R[0], U), normal(3, 3, 5), S2),
        ValueError,
        r"batch axes: .* \(2,\) of state\.\w, .*\(3,\) of z",
    ),
    "codes that overflow": (
        lambda: memory.write(MemoryState(R.float() * 1e25, U.float()), Z.float(), 1.0),
        ValueError,
        r"R Rᵀ \+ noise_var I: expected finite values, got an overflow of torch.float32",
    ),
    "noise for each dimension": (
        lambda: memory.write(STATE, Z, S2.expand(5)),
        ValueError,
        r"noise_var: expected one .* got shape \(5,\)",
    ),
    "noise as text": (lambda: memory.write(STATE, Z, "1"), TypeError, r"noise_var: .* got str"),  # type: ignore[arg-type]
    "negative prior": (lambda: memory.prior(R, -1), ValueError, r"prior_var: .* got -1"),
    "no weight variance": (lambda: memory.kl_weights(W, 0), ValueError, r"weight_var: .* got 0"),
    "a batch that is a number": (
        lambda: memory.prior(R, 1.0, batch=3),  # type: ignore[arg-type]
        TypeError,
        r"batch: expected a tuple, got int",
    ),
    "no iterations": (lambda: memory.write(STATE, Z, S2, iterations=0), ValueError, r"iterations: .* got 0"),
    "half a block": (
        lambda: memory.write(STATE, Z, S2, block=0.5),  # type: ignore[arg-type]
        TypeError,
        r"block: expected a whole number, got float",
    ),
    "an indefinite U": (
        lambda: memory.write(MemoryState(R, indefinite), Z, S2),
        ValueError,
        r"state.U: expected a positive definite matrix, got 1 of 1 .*least eigenvalue -1\)",
    ),
    "a U that is not symmetric": (
        lambda: memory.sample(MemoryState(R, lopsided)),
        ValueError,
        r"state.U: expected a symmetric matrix, got entries that differ by 0.5",
    ),
    "a singular prior": (
        lambda: memory.kl_memory(STATE, MemoryState(R, torch.zeros_like(U))),
        ValueError,
        r"p.U: expected a positive definite matrix, got 2 of 2",
    ),
    "memories of two sizes": (
        lambda: memory.kl_memory(STATE, case((2,), K=3, C=5).state),
        ValueError,
        r"p\.R: .* with K = 4 as in q\.R, got \(2, 3, 5\)",
    ),
    "an update with another size": (
        lambda: memory.update(STATE, W[:, 0], Z[:, 0, :3], S2),
        ValueError,
        r"z: expected shape \(\*b, C\) with C = 5",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name: str) -> None:
    call, kind, message = BAD[name]
    before = [x.clone() for x in (R, U, W, Z, S2)]
    with pytest.raises(kind, match=message):
        call()
    assert all(torch.equal(a, b) for a, b in zip(before, (R, U, W, Z, S2), strict=True))


def test_noise_lost_in_rounding_is_an_error_not_a_clamp() -> None:
    """R Rᵀ of rank one, with a noise far below its last digit."""
    rows = torch.ones(3, 1) * normal(1, 50, dtype=torch.float32) * 1e4
    with pytest.raises(ValueError, match=re.escape("R Rᵀ + noise_var I: expected a positive definite matrix")):
        memory.write(memory.prior(rows, 1.0), normal(2, 50, dtype=torch.float32), 1e-20)


def test_a_u_lost_in_rounding_is_an_error() -> None:
    """200 writes in float32 with a noise far below its rounding: write says so, not the call after it."""
    z = normal(200, 100, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"U after writing: expected a positive definite matrix|W U Wᵀ"):
        memory.write(memory.prior(normal(32, 100, dtype=torch.float32), 1.0), z, 1e-8)


@pytest.mark.parametrize("value", [1, 0.3, np.float32(0.3), np.float64(0.3), np.int64(2)], ids=repr)
def test_any_real_number_is_a_variance(value: Any) -> None:
    expected = memory.predict(STATE, W, float(value))[1]
    torch.testing.assert_close(memory.predict(STATE, W, value)[1], expected)


def test_functions_run_under_vmap_and_grad() -> None:
    """torch.func has no values to look at: the checks step aside."""
    written, w = memory.write(STATE, Z, S2)
    mapped = torch.func.vmap(lambda R, U, z: memory.write(MemoryState(R, U), z, S2))(R, U, Z)
    torch.testing.assert_close(mapped[0].R, written.R)
    torch.testing.assert_close(mapped[1], w)
    lone = MemoryState(R[0], U[0])
    slope = torch.func.grad(lambda z: memory.write(lone, z, S2)[0].R.sum())(Z[0])
    assert slope.shape == Z[0].shape


@pytest.mark.parametrize("change", ["in place", "data", "numpy"])
def test_a_change_after_the_first_check_is_noticed(change: str) -> None:
    """.data and NumPy leave no trace in PyTorch's count of changes."""

    def part(x: torch.Tensor) -> Any:
        return {"in place": x, "data": x.data, "numpy": x.numpy()}[change]

    for state in (MemoryState(R.clone(), U.clone()), memory.prior(R.clone(), S2), memory.write(STATE, Z, S2)[0]):
        memory.predict(state, W, S2)
        part(state.U)[0, 0, 0] = -1.0
        with pytest.raises(ValueError, match=r"state\.U: expected a positive definite matrix"):
            memory.predict(state, W, S2)
        part(state.R)[0, 0, 0] = NAN
        with pytest.raises(ValueError, match=r"state\.R: expected finite"):
            memory.read(state, W)


def test_value_checks_can_be_switched_off() -> None:
    with kanerva.deep_checks(False):
        state, _ = memory.write(STATE, spoiled(Z, NAN), S2)
        assert state.R[0].isnan().all()
        assert state.R[1].isfinite().all()
        assert memory.kl_memory(MemoryState(R, indefinite), STATE).isnan().all()
    with pytest.raises(ValueError, match="z: expected finite"):
        memory.write(STATE, spoiled(Z, NAN), S2)


@cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_gpu_unless_asked() -> None:
    state, z, w = STATE.to("cuda"), Z.cuda(), W.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        new, w2 = memory.write(state, z, 0.3, iterations=2, block=2)
        memory.kl_memory(new, state)
        memory.kl_weights(w, 0.3)
        memory.kl_update(state, w[:, 0], z[:, 0], 0.3)
        memory.predict(new, w2, 0.3)
        memory.sample(new)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@cuda
def test_bad_values_on_the_gpu_are_nan_or_an_error() -> None:
    state, z = STATE.to("cuda"), spoiled(Z, NAN).cuda()
    assert memory.write(state, z, 0.3)[0].R[0].isnan().all()
    bad = MemoryState(state.R, indefinite.cuda())
    assert memory.kl_memory(bad, state).isnan().all()
    with kanerva.deep_checks():
        with pytest.raises(ValueError, match="z: expected finite"):
            memory.write(state, z, 0.3)
        with pytest.raises(ValueError, match=r"q\.U: expected a positive definite"):
            memory.kl_memory(bad, state)
