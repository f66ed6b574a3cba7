"""Bad input raises an error that says which argument, what came and what was wanted, and changes nothing."""

import functools
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
LAYER = kanerva.nn.Memory(5, rows=4)
NAN, INF = float("nan"), float("inf")


def spoiled(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x.view(-1)[1] = value
    return x


indefinite = spoiled(torch.eye(4, dtype=torch.float64), 2.0)
indefinite[1, 0] = 2.0
lopsided = spoiled(torch.eye(4, dtype=torch.float64), 0.5)

# each call is wrong in one way, which the error names: the argument, what came, what was wanted
BAD: list[tuple[str, Callable[[], Any]]] = [
    (r"z: expected shape \(\*b, T, C\), got shape \(5,\)", lambda: memory.write(STATE, Z[0, 0], S2)),
    (r"z: .* with C = 5 as in state\.R, got \(2, 3, 4\)", lambda: memory.write(STATE, Z[..., :4], S2)),
    ("prior_var: expected", lambda: memory.span(STATE, R, 0.0)),
    (r"w: .* with K = 4 as in state\.R", lambda: memory.read(STATE, Z)),
    (r"batch axes: .*\(3,\) of z", lambda: memory.write(MemoryState(R[0], U), normal(3, 3, 5), S2)),
    (r"state\.U: .* got \(2, 4, 3\)", lambda: memory.write(MemoryState(R, U[..., :3]), Z, S2)),
    ("R0: expected at least one row", lambda: memory.prior(normal(0, 5), 1.0)),
    (r"state: expected a MemoryState\(R, U\), got tuple", lambda: memory.read((R, U), W)),  # type: ignore[arg-type]
    (r"state: .* memory.write gives a pair", lambda: memory.read(memory.write(STATE, Z, S2), W)),  # type: ignore[arg-type]
    (r"z: expected a tensor .*, got ndarray", lambda: memory.write(STATE, Z.numpy(), S2)),  # type: ignore[arg-type]
    ("z: .* got NoneType", lambda: memory.address(None, STATE, S2)),  # type: ignore[arg-type]
    ("z: expected torch.float64", lambda: memory.write(STATE, Z.float(), S2)),
    ("z: .* got torch.bfloat16", lambda: memory.write(STATE, Z.bfloat16(), S2)),
    (r"state\.U: .* torch.float32", lambda: memory.write(MemoryState(R, U.float()), Z, S2)),
    (r"z: expected device cpu like state\.R, got meta", lambda: memory.write(STATE, Z.to("meta"), S2)),
    ("noise_var: .* torch.float32", lambda: memory.write(STATE, Z, S2.float())),
    ("noise_var: expected device cpu", lambda: memory.write(STATE, Z, S2.to("meta"))),
    (r"noise_var: expected one .* got shape \(5,\)", lambda: memory.write(STATE, Z, S2.expand(5))),
    *(
        (f"noise_var: .* got {x}", functools.partial(memory.write, STATE, Z, x))
        for x in (0.0, -0.3, NAN, INF, None)
    ),
    ("noise_var: .* got bool", lambda: memory.write(STATE, Z, True)),
    ("noise_var: .* got str", lambda: memory.write(STATE, Z, "1")),  # type: ignore[arg-type]
    ("noise_var: .* cannot hold", lambda: memory.predict(STATE.to(torch.float32), W.float(), 1e-50)),
    ("prior_var: .* got -1", lambda: memory.prior(R, -1)),
    ("z: expected finite values, got 1 NaN or infinite of 30", lambda: memory.write(STATE, spoiled(Z, NAN), S2)),
    ("z: .* finite", lambda: memory.address(spoiled(Z, INF), STATE, S2)),
    (r"state\.R: .* finite", lambda: memory.read(MemoryState(spoiled(R, NAN), U), W)),
    ("got an overflow", lambda: memory.write(MemoryState(R.float() * 1e25, U.float()), Z.float(), 1.0)),
    (r"batch: expected a tuple, got int; .*\(16,\)", lambda: memory.prior(R, 1.0, batch=3)),  # type: ignore[arg-type]
    (r"z: .* got torch.int64; z\.to\(torch\.float64\)", lambda: memory.write(STATE, Z.long(), S2)),
    (r"mask: .* got torch.float32; .*True .*False", lambda: LAYER.write(Z.float(), mask=torch.ones(2, 3))),
    (r"generator: .* got int; .*manual_seed\(0\)", lambda: memory.sample(STATE, 3)),  # type: ignore[arg-type]
    (r"batch axes: .* got \(2,\) of state\.\w, \(3,\) of z", lambda: memory.write(STATE, normal(3, 3, 5), S2)),
    ("iterations: .* got 0", lambda: memory.write(STATE, Z, S2, iterations=0)),
    ("block: expected a whole number", lambda: memory.write(STATE, Z, S2, block=0.5)),  # type: ignore[arg-type]
    (r"state\.U: .* got 1 of 1 .*eigenvalue -1", lambda: memory.write(MemoryState(R, indefinite), Z, S2)),
    (r"state\.U: expected a symmetric matrix", lambda: memory.sample(MemoryState(R, lopsided))),
    (r"p\.U: expected a positive", lambda: memory.kl_memory(STATE, MemoryState(R, torch.zeros_like(U)))),
    (r"z: expected shape \(\*b, C\) with C = 5", lambda: memory.update(STATE, W[:, 0], Z[:, 0, :3], S2)),
]


@pytest.mark.parametrize(("message", "call"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_named(message: str, call: Callable[[], Any]) -> None:
    before = [x.clone() for x in (R, U, W, Z, S2)]
    with pytest.raises((ValueError, TypeError), match=message):
        call()
    assert all(torch.equal(a, b) for a, b in zip(before, (R, U, W, Z, S2), strict=True))


def test_what_rounding_has_lost_is_an_error_not_a_clamp() -> None:
    """R Rᵀ of rank one, with a noise far below its last digit; and 200 writes with a noise below U's rounding."""
    rows = torch.ones(3, 1) * normal(1, 50, dtype=torch.float32) * 1e4
    with pytest.raises(ValueError, match=re.escape("R Rᵀ + noise_var I: expected a positive definite matrix")):
        memory.write(memory.prior(rows, 1.0), normal(2, 50, dtype=torch.float32), 1e-20)
    z = normal(200, 100, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"U after writing: expected a positive definite matrix|W U Wᵀ"):
        memory.write(memory.prior(normal(32, 100, dtype=torch.float32), 1.0), z, 1e-8)


@pytest.mark.parametrize("value", [1, np.float32(0.3), np.int64(2)], ids=repr)
def test_any_real_number_is_a_variance(value: Any) -> None:
    torch.testing.assert_close(memory.predict(STATE, W, value)[1], memory.predict(STATE, W, float(value))[1])


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
