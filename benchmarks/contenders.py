"""What is timed: writes, reads, the layer, recall and training steps, as functions without arguments."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Module

import kanerva
from kanerva import DKM, PRESETS, DataConfig, DKMConfig, MemoryState, RunConfig, data, kernels, memory
from kanerva.lab.measures import distinct
from kanerva.models import Model
from kanerva.models.base import CodecModel
from kanerva.training.loop import new_run, suited
from kanerva.training.processes import World
from kanerva.training.step import Step, why_not_captured
from timing import Work


class Case(NamedTuple):
    """Sizes: B memories of K rows for codes of C numbers, T codes each."""

    K: int
    C: int
    T: int
    B: int


class Inputs(NamedTuple):
    """A memory without anything in it, and the codes of an episode; all take part in the gradient."""

    state: MemoryState
    z: Tensor
    noise_var: Tensor

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return (*self.state, self.z, self.noise_var)


def make_inputs(case: Case, device: torch.device) -> Inputs:
    K, C, T, B = case
    batch = () if B == 1 else (B,)
    prior = memory.prior(normal((K, C), 0, device), 1.0, batch)
    inputs = Inputs(prior, normal((*batch, T, C), 1, device), torch.ones((), device=device))
    for x in inputs.leaves:
        x.requires_grad_()
    return inputs


def normal(shape: tuple[int, ...], seed: int, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def write(case: Case, device: torch.device, backend: str, gradient: bool) -> Work:
    """Write an episode; with `gradient`, also the gradient of a loss that is linear in R, U and w."""
    inputs = make_inputs(case, device)

    def forward() -> tuple[Tensor, Tensor, Tensor]:
        state, w = kernels.write(*inputs, backend=backend)
        return *state, w

    if not gradient:
        return torch.no_grad()(forward)
    with torch.no_grad():
        slopes = [normal(tuple(x.shape), 2 + i, device) for i, x in enumerate(forward())]
    return lambda: torch.autograd.grad(forward(), inputs.leaves, slopes)


def usable(case: Case, device: torch.device) -> tuple[list[str], dict[str, str]]:
    """The backends that can write these sizes, and why the others cannot."""
    state, z, _ = make_inputs(case, device)
    left_out = {}
    for backend in kernels.BACKENDS:
        try:
            kernels.pick(device.type, z.dtype, state.R.shape[-2], state.R.shape[-1], backend)
        except ValueError as error:
            left_out[backend] = str(error)
    return [backend for backend in kernels.BACKENDS if backend not in left_out], left_out


def read(case: Case, device: torch.device, with_inverse: bool) -> Work:
    """Address T codes, with the inverse that the write left or by factoring anew."""
    state, z, noise_var = make_inputs(case, device)
    with torch.no_grad():
        written, _ = kernels.write(state, z[..., :32, :], noise_var)
        inverse = kernels.inverse(written, noise_var) if with_inverse else None
    return torch.no_grad()(lambda: memory.address(z, written, noise_var, inverse))


Layer = Callable[[kanerva.nn.Memory, Tensor, Tensor, Tensor | None], Tensor]
"""Store z, then read cues: (layer with its parameters, z, cue, mask) → what is read."""
LoopStep = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""One write: (R, U, vectors, noise_var, eye, whether to write) → R, U."""


def our_layer(layer: kanerva.nn.Memory, z: Tensor, cue: Tensor, mask: Tensor | None) -> Tensor:
    return layer(z, cue, mask)


def loop_step(
    R: Tensor, U: Tensor, x: Tensor, s2: Tensor, eye: Tensor, here: Tensor | None
) -> tuple[Tensor, Tensor]:
    w = torch.linalg.solve(R @ R.mT + s2 * eye, R @ x[:, :, None])
    c = U @ w
    s = w.mT @ c + s2
    after = R + c @ (x[:, None] - w.mT @ R) / s, U - c @ c.mT / s
    return after if here is None else (torch.where(here, after[0], R), torch.where(here, after[1], U))


def plain_loop(
    layer: kanerva.nn.Memory, z: Tensor, cue: Tensor, mask: Tensor | None, step: LoopStep = loop_step
) -> Tensor:
    """The same mathematics as one would write it down: a solve for each vector, gradients by autograd."""
    s2, eye = layer.noise_var, torch.eye(layer.rows, device=z.device)
    R, U = layer.R0.repeat(len(z), 1, 1), (layer.prior_var * eye).repeat(len(z), 1, 1)
    for t, x in enumerate(z.unbind(1)):
        R, U = step(R, U, x, s2, eye, None if mask is None else mask[:, t, None, None])
    return torch.linalg.solve(R @ R.mT + s2 * eye, R @ cue.mT).mT @ R


def attention(layer: kanerva.nn.Memory, z: Tensor, cue: Tensor, mask: Tensor | None) -> Tensor:
    """A modern Hopfield network's read: softmax over all stored vectors, which it keeps."""
    allowed = None if mask is None else mask[:, None, :]
    return torch.nn.functional.scaled_dot_product_attention(cue, z, z, attn_mask=allowed)


LAYERS: dict[str, Layer] = {"layer": our_layer, "loop": plain_loop, "attention": attention}


def compiled_layer(name: str) -> Layer:
    """By torch.compile: as a whole, but of the loop one step, since to compile T of them takes minutes."""
    if name == "loop":
        return partial(plain_loop, step=torch.compile(loop_step, dynamic=False))
    return torch.compile(LAYERS[name], dynamic=False)


def layer(case: Case, device: torch.device, name: str, masked: bool, compiled: bool) -> Work:
    """Store T vectors and read T cues, with the gradients of both and of what the layer learns."""
    K, C, T, B = case
    torch.manual_seed(0)
    memory_layer = kanerva.nn.Memory(C, rows=K).to(device)
    z, cue = (normal((B, T, C), seed, device).requires_grad_() for seed in (1, 2))
    # one in four is not written; in the midst too, where a rival that forgets U would be caught
    mask = ((torch.arange(T) + torch.arange(B)[:, None]) % 4 > 0).to(device) if masked else None
    way = compiled_layer(name) if compiled else LAYERS[name]
    leaves = (z, cue) if name == "attention" else (z, cue, *memory_layer.parameters())
    slope = normal((B, T, C), 3, device)
    return lambda: torch.autograd.grad(way(memory_layer, z, cue, mask), leaves, slope)


def dkm_config(config: RunConfig) -> DKMConfig:
    """The model of a preset that is a DKM's."""
    assert isinstance(config.model, DKMConfig)
    return config.model


def recall(queries: int, steps: int, device: torch.device, only_codec: bool) -> Work:
    """Clean up queries by attractor dynamics, or pass them through the encoder and decoder as often."""
    images = DataConfig("glyphs").load(device, "test")[0]
    torch.manual_seed(0)
    model = DKM(dkm_config(PRESETS["demo"][1])).to(device)  # which has the glyphs' shape
    x = data.episodes(images, 1, queries, generator=torch.Generator(device).manual_seed(0))[0]
    with torch.no_grad():
        state = model.write(x[:32])

    def codec() -> None:
        for _ in range(steps):
            model.decode(model.encode(x)).mode()

    return torch.no_grad()(codec if only_codec else lambda: model.recall(state, x, steps, "least-squares"))


def pretrained(device: torch.device) -> DKM:
    """The model that comes along."""
    model = kanerva.load("omniglot").to(device)
    assert isinstance(model, DKM)
    return model


class Cues(NamedTuple):
    """Images to write into memories, and cues of them with 15 % of bits flipped."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, images: DataConfig, memories: int, cues: int, device: torch.device) -> "Cues":
        generator = torch.Generator().manual_seed(0)
        x = distinct(images.load("cpu", "test")[0], memories, cues, generator)
        return cls(x.to(device), data.flips(x, 0.15, generator).x.to(device))

    def recall(self, model: Model, steps: int, method: str | None = None, **options: Any) -> Work:
        """Clean up the cues."""
        with torch.no_grad():
            state = model.write(self.x)
        return torch.no_grad()(lambda: model.recall(state, self.y, steps, method, **options))


def evaluations(model: CodecModel, work: Work) -> dict[str, int]:
    """Images that some work takes through the encoder, and codes through the decoder."""
    passed = {"encoder": 0, "decoder": 0}

    def count(name: str) -> Callable[[Module, tuple[Tensor, ...]], None]:
        def hook(part: Module, given: tuple[Tensor, ...]) -> None:
            passed[name] += len(given[0])

        return hook

    hooks = [model.get_submodule(name).register_forward_pre_hook(count(name)) for name in passed]
    work()
    for hook in hooks:
        hook.remove()
    return passed


def training_step(config: RunConfig, device: torch.device) -> Work:
    """One step of training, to be called again and again: captured and compiled as the config says."""
    images, world = config.data.load(device)[0], World(0, 1, device)
    run = new_run(suited(config, images, world), world)
    if "uncaptured" not in config.train.compute and (reason := why_not_captured(config.train, world)):
        raise RuntimeError(f"not captured: {reason}")  # else an uncaptured step would be timed under that name
    step, numbers = Step(run, images, world), itertools.count()
    return lambda: step(next(numbers))


def captured(work: Work) -> Work:
    """The same work as one CUDA graph; its first calls, on a side stream, are not part of it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def replay(inputs: Work = work) -> None:  # the graph reads where the inputs lie, so they must stay
        graph.replay()

    return replay


def peak_bytes(case: Case, device: torch.device, backend: str) -> int:
    """The most that a write and its gradient need on the GPU at once, beyond their inputs."""
    work = write(case, device, backend, gradient=True)
    work()  # libraries take their workspaces
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def kept_bytes(case: Case, device: torch.device, backend: str) -> int:
    """What a write keeps for its gradient, beyond its inputs: every storage once."""
    inputs = make_inputs(case, device)
    own = {x.untyped_storage().data_ptr() for x in inputs.leaves}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(x: Tensor) -> None:
        # held to the end: a freed address could come again
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()

    def never(x: None) -> Tensor:
        raise RuntimeError("nothing goes backward here")

    with saved_tensors_hooks(keep, never):
        kernels.write(*inputs, backend=backend)
    return sum(storage.nbytes() for address, storage in kept.items() if address not in own)
