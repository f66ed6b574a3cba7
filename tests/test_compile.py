"""torch.compile takes every function as one graph, forward and backward, and gives the same numbers."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cases import case
from kanerva import MemoryState, memory

pytestmark = pytest.mark.usefixtures("no_shape_checks")


def every(R: Tensor, U: Tensor, w: Tensor, z: Tensor, s2: Tensor) -> tuple[Tensor, ...]:
    state = MemoryState(R, U)
    written, weights = memory.write(state, z, s2, iterations=2, block=2)
    return (
        *memory.prior(R, s2),
        memory.address(z, state, s2),
        *memory.update(state, w[:, 0], z[:, 0], s2),
        *memory.condition(state, w, z, s2),
        *written,
        weights,
        memory.read(written, w),
        *memory.predict(written, w, s2),
        memory.kl_memory(written, state),
        memory.kl_weights(w, s2),
        memory.kl_update(state, w[:, 0], z[:, 0], s2),
    )


def gradients(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    total = sum(x.square().sum() for x in outputs)
    assert isinstance(total, Tensor)
    return (*outputs, *torch.autograd.grad(total, leaves))


@pytest.mark.filterwarnings("default")
def test_plain_numbers_do_not_break_the_graph() -> None:
    """A variance that is a float, and then another one: the second makes it a symbol."""
    c = case((2,), T=3)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda z, noise_var: memory.write(c.state, z, noise_var)[0].R, fullgraph=True, backend="aot_eager"
    )
    for noise_var in (0.3, 0.4, 2.0):
        torch.testing.assert_close(compiled(c.z, noise_var), memory.write(c.state, c.z, noise_var)[0].R)


@pytest.mark.filterwarnings("default")  # the compiler's own warnings differ from version to version
@pytest.mark.parametrize(("K", "C"), [(4, 5), (5, 4)])
def test_one_graph_forward_and_backward(K: int, C: int, device: str) -> None:
    c = case((2,), K, C, T=3, device=device)
    inputs = (*c.state, c.w, c.z, c.noise_var)
    torch.compiler.reset()
    compiled = torch.compile(every, fullgraph=True, backend="aot_eager")
    for a, b in zip(gradients(compiled, *inputs), gradients(every, *inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


MODEL = """
import torch, kanerva
for batch in ((), (2,), (2, 1)):
    x = torch.rand(*batch, 3, 1, 28, 28).round()
    for call in (lambda m, x: m(x), lambda m, x: m.given(m.blank(batch), x)):
        model = kanerva.create("dkm", code=6, rows=4, codec=kanerva.CodecConfig((4, 4))).eval()
        torch.compiler.reset()
        torch.manual_seed(0)
        found = torch.compile(lambda x: call(model, x), fullgraph=True, backend="eager")(x)
        torch.manual_seed(0)
        for a, b in zip(found, call(model, x), strict=True):
            torch.testing.assert_close(a, b)
"""


def test_a_model_is_one_graph() -> None:
    """With any batch axes, also where nothing was called before; the test-time shape checks are no part of it."""
    ran = subprocess.run([sys.executable, "-c", MODEL], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
