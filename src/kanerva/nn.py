"""Memory: a layer that writes vectors of any kind by Bayesian inference, and reads them by least squares.

    import torch, kanerva

    layer = kanerva.nn.Memory(16, rows=8)               # vectors of 16 numbers, a memory of 8 rows
    z = torch.randn(4, 6, 16)                           # 4 episodes of 6 vectors
    state = layer.write(z)                              # a MemoryState for each episode
    found = layer.read(state, z + 0.1 * torch.randn_like(z))
    found.square().mean().backward()                    # all of it can be differentiated

    pairs = kanerva.nn.Memory(16, rows=8, values=3)     # addressed by 16 numbers, holds 3 more with each
    state = pairs.write(z, values=torch.randn(4, 6, 3))
    mean, var = pairs.predict(state, z)                 # what it expects, and how surely

    known = torch.rand(4, 6, 16) < 0.7                  # which entries of a cue are known
    found = pairs.read(state, z, known)                 # the others are left out, whatever z has there
    mask = torch.arange(6) < torch.tensor([[6], [4], [3], [6]])
    state = pairs.write(z, mask=mask, values=torch.randn(4, 6, 3))    # episodes of 6, 4, 3 and 6 vectors

The state is a NamedTuple of two tensors, R and U, and never changed in place: keep it, save it, batch it, move it.
A state has the batch axes of what was written, any number of them, also none. `Stream` holds one state and goes on
writing; `Memory.reader` makes a module of one state that can be exported. The mathematics is `kanerva.memory`.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from . import kernels, memory
from .kernels import Stored
from .memory import Faded, Inverse, MemoryState, moments
from .memory.moments import Whole
from .memory.sums import Told
from .recall import counts, frame, vectors
from .recall.retriever import Hyper
from .support import checks
from .support.checks import Count, Share
from .support.door import public
from .support.linalg import broadcast, together

__all__ = ["Contents", "Memory", "Prediction", "Reader", "Stream", "Writing"]


class Start(NamedTuple):
    """What the parameters begin with: the variances of R0's entries, of the memory, and of the noise.

    The values here are for entries of mean square 1. R0 is small: what is read was written, not there from the
    start. Untrained, K/4 to 2 K vectors in K rows (4 to 128) are read with an error that is 0.004 of their mean
    square above the best of eight settings; with the paper's, all 1, it is 0.24. With a prior_var of 1 it is 0.005,
    but every row that is still blank adds that much to the variances of `predict`.
    """

    R0_var: float = 0.02**2
    prior_var: float = 0.1
    noise_var: float = 0.1


START = Start()
PAPER = Start(1.0, 1.0, 1.0)
"""The start values of app. B."""


def variances(name: str, value: Any, call: checks.Call) -> None:
    """Variances of 0 or more, one for each cue."""
    if isinstance(value, Tensor):
        state, cue = call.given["state"], call.given["cue"]
        checks.fits(name, value, together(*(part.shape[:-2] for part in (*state, cue))) + cue.shape[-2:-1])
    checks.not_negative(name, value, call)


def own_precision(name: str, x: Tensor, call: checks.Call) -> None:
    """Vectors may be in bfloat16 or float16; the memory's own parameters may not."""
    kind = call.owner.like.dtype
    if kind not in (torch.float32, torch.float64):
        raise TypeError(
            f"R0: expected float32 or float64, got {kind}; usual cause: .bfloat16() or .half() of the whole "
            "network; .float() of the layer brings it back, and vectors may stay as they are"
        )


def wide_enough(name: str, cue: Tensor, call: checks.Call) -> None:
    """A cue has the size of a vector; one that goes on with its value says which entries are known."""
    layer, width = call.owner, cue.shape[-1]
    whole = layer.size + layer.values
    if width != layer.size and not (width == whole and call.given["known"] is not None):
        more = "; one that goes on with its value needs `known`" if layer.values else ""
        raise ValueError(f"{name}: expected vectors of {layer.size} numbers, got {width}{more}")


KnownEntries = Bool[Tensor, "... n"] | Annotated[Float[Tensor, "... n"], checks.not_negative] | None
"""Which entries of a cue are known, or how surely: precisions relative to 1 / noise_var."""
Cue = Annotated[
    Float[Tensor, "*#b Q n"], checks.any_float, own_precision, wide_enough, checks.finite_where("known")
]
Vectors = Annotated[Float[Tensor, "*#b T size"], checks.any_float, own_precision, checks.finite_where("mask")]
Values = Annotated[Float[Tensor, "*#b T values"], checks.any_float, checks.finite_where("mask")] | None
Mask = Annotated[Bool[Tensor, "*#b T"], "True for a code to write, False for padding"] | None
Queries = Annotated[Float[Tensor, "*#b Q size"], checks.any_float, own_precision, checks.finite]
Held = Annotated[Float[Tensor, "*#b Q values"], checks.any_float, checks.finite] | None


Factor = Annotated[float | int, checks.positive]


class Writing(NamedTuple):
    """How an episode is written: in rounds, in blocks, with a multiple of noise_var; as in `Memory.store`."""

    iterations: Count = 1
    block: Count = 1
    noise: Factor = 1.0


class Prediction(NamedTuple):
    """What a memory expects where it is asked: every entry of a code, [key; value], with its variance."""

    mean: Float[Tensor, "*b Q C"]
    var: Float[Tensor, "*b Q C"]
    """What noise, the memory's uncertainty and the address's leave open (`memory.complete`)."""


class Contents(NamedTuple):
    """What was found in a memory without a cue."""

    z: Float[Tensor, "n C"]
    cost: Float[Tensor, "n"]
    """How far each is from all that could have been written, in nats: next to nothing where it is exact."""


class Memory(nn.Module):
    """A memory of `rows` rows for vectors of `size` numbers, and `values` more that are held with each.

    Where there are values, a vector z is a key: it alone decides where the pair goes and where it is looked for.
    scale: the usual size of a vector's entries, their root mean square: `z.square().mean().sqrt()`; 1 behind a
    LayerNorm. R0 and the variances start to suit it, and are learned from there. In float32, vectors of 100 times
    that size spoil gradients: that of log_prior_var through a read is 20 % off, and nothing but rounding at 1,000
    times; on a GPU and in torch.compile, R0's and log_noise_var's as well where there are more vectors than rows.
    Keys and values share one noise_var. Values of another scale are read just as well, but the variances that
    `predict` gives are then those of the keys' scale. Codes in bfloat16 or float16 are taken in the memory's own
    precision, float32 or float64. About as many vectors as rows are held exactly; more are mixed. No more than
    `size` rows are kept, whatever was asked for: addresses span no more dimensions, and other rows hold nothing.
    """

    State = MemoryState
    R0: Float[Tensor, "K C"]
    log_prior_var: Float[Tensor, ""]
    log_noise_var: Float[Tensor, ""]

    def __init__(
        self,
        size: int,
        rows: int = 32,
        values: int = 0,
        scale: float = 1.0,
        *,
        start: Start = START,
        cap: bool = True,
    ) -> None:
        """start: other start values. cap=False keeps all rows, for weights that do not come from the memory."""
        super().__init__()
        checks.count("size", size)
        checks.count("rows", rows)
        if values != 0:
            checks.count("values", values)
        of = checks.scale(scale) ** 2
        self.size, self.values = int(size), int(values)
        self.rows = min(int(rows), self.size) if cap else int(rows)
        self.R0 = nn.Parameter((of * start.R0_var) ** 0.5 * torch.randn(self.rows, size + values))
        self.log_prior_var = nn.Parameter(torch.tensor(math.log(of * start.prior_var)))
        self.log_noise_var = nn.Parameter(torch.tensor(math.log(of * start.noise_var)))
        self.backend: str = "auto"
        """How an episode is written: a backend of `kanerva.kernels`, or auto."""

    @property
    def sizes(self) -> dict[str, int]:
        """The axes that the layer knows by name."""
        return {"size": self.size, "values": self.values, "K": self.rows, "C": self.size + self.values}

    @property
    def like(self) -> Tensor:
        """A tensor of the layer's own: memories must have its dtype and device."""
        return self.R0

    @property
    def prior_var(self) -> Float[Tensor, ""]:
        """σ²_U, the variance of the memory before anything is written."""
        return self.log_prior_var.exp()

    @property
    def noise_var(self) -> Float[Tensor, ""]:
        """σ²_ξ, the variance of codes around what the memory reads."""
        return self.log_noise_var.exp()

    def hyper(self) -> Hyper:
        """R0 and the variances, as recall knows them."""
        return Hyper(self.R0, self.prior_var, self.noise_var)

    def prior(self, batch: tuple[int, ...] = ()) -> MemoryState:
        """The memory before anything is written."""
        return memory.prior(self.R0, self.prior_var, batch)

    def extra_repr(self) -> str:
        return f"{self.size}, rows={self.rows}, values={self.values}"

    def write(
        self,
        z: Float[Tensor, "*#b T size"],
        state: MemoryState | None = None,
        mask: Bool[Tensor, "*#b T"] | None = None,
        values: Float[Tensor, "*#b T values"] | None = None,
        **how: Any,
    ) -> MemoryState:
        """Write vectors one after another [alg. 1], into a blank memory unless `state` says which.

        mask: False for padding, which changes nothing to the last bit, gets no gradient, and may hold anything.
        Order matters a little, since each vector is addressed in what the ones before have left. `store` has the
        rest.
        """
        return self.store(z, state, mask, values, **how).state

    @public
    def store(
        self,
        z: Vectors,
        state: Whole | None = None,
        mask: Mask = None,
        values: Values = None,
        *,
        iterations: Count = 1,
        block: Count = 1,
        noise: Factor = 1.0,
    ) -> Stored:
        """`write`, and give the weights and ln det U with the memory.

        iterations, block: as in `memory.write`. noise: times noise_var, of codes as they are written.
        """
        codes = moments.masked(self.codes(z, values), mask)
        state = self.prior(tuple(codes.shape[:-2])) if state is None else state
        noise_var = self.noise_var if noise == 1 else noise * self.noise_var
        return kernels.store(state, codes, noise_var, iterations, block, self.backend, mask=mask, keys=self.size)

    @public
    def read(self, state: MemoryState, cue: Cue, known: KnownEntries = None) -> Float[Tensor, "*b Q m"]:
        """Read what the memory has nearest to each cue: its vectors, or the values if it has values.

        known: which entries of a cue are known, or how surely; unknown ones may hold anything, and are left out of
        the least squares. A cue has the size of a vector; with `known`, it may go on with entries of the value.
        """
        return self._wanted(self.address(state, cue, known) @ state.R)

    @public
    def forward(
        self,
        z: Vectors,
        cue: Queries | None = None,
        mask: Mask = None,
        values: Values = None,
    ) -> Float[Tensor, "*b Q m"]:
        """Write vectors into a blank memory, then read cues from it, or the vectors themselves."""
        cue = (moments.masked(z, mask) if cue is None else cue).to(self.R0.dtype)
        state = self.write(z, None, mask, values)
        w = memory.address(cue, self._part(state, self.size), self.noise_var, self.inverse(state))
        return self._wanted(w @ state.R)

    @public
    def address(self, state: MemoryState, cue: Cue, known: KnownEntries = None) -> Float[Tensor, "*b Q K"]:
        """Find the weights that read each cue best [app. D]; `cue` and `known` as in `read`."""
        cue = cue.to(self.R0.dtype)
        return memory.address(cue, self._part(state, cue.shape[-1]), self.noise_var, known=known)

    @public
    def predict(self, state: Whole, cue: Cue, known: KnownEntries = None) -> Prediction:
        """Predict all of [vector; value] from what is known of it, with the variance of every entry.

        mean is E[Rᵀw | cue]. var has the noise, what is uncertain of the memory, and what the cue leaves open of w.
        """
        cue = cue.to(self.R0.dtype)
        weights = memory.infer(cue, self._part(state, cue.shape[-1]), self.noise_var, known)
        return Prediction(*memory.complete(state, weights, self.noise_var))

    @public
    def energy(self, state: MemoryState, cue: Cue, known: KnownEntries = None) -> Float[Tensor, "*b Q"]:
        """−ln p(cue | memory at its mean) in nats, addresses integrated out: low for what is like its content.

        It is the least of −ln p(cue | w) + KL over all q(w) [sec. 3.5], which the exact posterior reaches.
        """
        cue = cue.to(self.R0.dtype)
        return memory.energy(cue, self._part(state, cue.shape[-1]), self.noise_var, known)

    @public
    @torch.no_grad()
    def recall(
        self,
        state: MemoryState,
        cue: Cue,
        known: KnownEntries = None,
        cue_var: Annotated[float | Float[Tensor, "..."], variances] | None = None,
        valid: Callable[[Tensor], Tensor] | None = None,
        steps: Count = 15,
        exact: bool = True,
    ) -> Float[Tensor, "*b Q C"]:
        """Find the [vector; value] that each cue is of: noisy, with entries missing, or both.

        cue_var: the variance of a cue's noise, for all or for each; None: it is estimated from the cue. valid: maps
        vectors to the nearest valid ones, if you can tell (`torch.sign`, `Tensor.round`); then up to `steps` steps
        of attractor dynamics follow. exact: fewer different vectors than `rows` are known exactly (`memory.frame`),
        and a clean cue is completed exactly from as many known entries as there are vectors; not in a memory that
        has faded. For training use `read`: no gradients here.
        """
        cue = cue.to(self.R0.dtype)
        known = torch.ones_like(cue, dtype=torch.bool) if known is None else known > 0
        gap = (0, self.size + self.values - cue.shape[-1])
        y, known = (torch.nn.functional.pad(x, gap) for x in (torch.where(known, cue, 0), known.expand(cue.shape)))
        R, U, y = broadcast((*state, y))
        batch, shape = R.shape[:-2], y.shape
        R, U, y = (x.reshape(batch.numel(), *x.shape[-2:]) for x in (R, U, y))
        known = known.expand(shape).reshape(y.shape)
        if cue_var is not None:
            cue_var = torch.as_tensor(cue_var, dtype=y.dtype, device=y.device)
            cue_var = cue_var.expand(shape[:-1]).reshape(y.shape[:2])
        exact = exact and not isinstance(state, Faded)
        found = vectors.recall(self.hyper(), MemoryState(R, U), y, known, cue_var, valid, steps, exact)
        return found.reshape(shape)

    @public(flat=True)
    @torch.no_grad()
    def contains(self, state: Told, z: Queries, values: Held = None) -> Int64[Tensor, "*b Q"]:
        """How often each vector could have been written, 0 for never; −1 where the memory cannot tell.

        Where there are values: how often with this value, or, without `values`, with any. A state fixes its vectors
        up to a rotation. So −z for z, a mixture of stored vectors whose squared shares add up to 1, and √m z for a
        z that was written m times may be counted as well; and where vectors were written several times, sums and
        parts that these copies explain. Vectors that differ by less than 1 % may be counted together. Counts of 1
        and 2 are known for vectors that do not depend on each other, with fewer writes than rows, and than a vector
        has entries; larger ones are mostly −1 in float32. With more writes, ask for all vectors in one call. −1,
        too, where lengths or variances are such that the state's precision has lost the answer. A memory that has
        faded cannot tell, which is an error.
        """
        codes = z.to(self.R0.dtype) if values is None else self.codes(z, values)
        hyper = self.hyper().columns(codes.shape[-1])
        return counts.how_often(hyper, self._part(state, codes.shape[-1]), codes, self.size)

    @public(flat=True)
    @torch.no_grad()
    def forget(self, state: Told, z: Queries, values: Held = None) -> MemoryState:
        """The memory without these vectors: the posterior of the others, with the weights they were written with.

        One trace is left: those weights were found while the forgotten vectors were there. A vector that `contains`
        does not count is an error, and one whose weight the state does not know to 1 %. What `contains` takes for a
        stored vector is taken out like one. Where there are values, a key that was written once needs none: the
        memory knows what it held. Vectors that were written more than once are forgotten together: the memory
        cannot tell one's copies from another's.
        """
        if self.values and values is None:
            times = self.contains(state, z)
            frame.check_there(times, "z: expected vectors", counts.UNKNOWN)
            if bool((times > 1).any()):
                raise ValueError("values: expected the values of keys that were written more than once, got None")
            values = self.recall(state, z)[..., self.size :]
        codes = self.codes(z, values)
        times = counts.how_often(self.hyper(), state, codes, self.size, strict=True)
        frame.check_there(times, "z: expected vectors", counts.UNKNOWN)
        return frame.take_out(self.hyper(), state, codes, times, apart=True)

    @public
    def contents(
        self,
        state: Told,
        valid: Callable[[Tensor], Tensor],
        callback: Callable[[int, int], None] | None = None,
    ) -> Contents:
        """All vectors [vector; value] of one memory (R of shape K×C), found without a cue, each with its cost.

        valid: maps any vectors to the nearest valid ones, (*b, C) → (*b, C), such as `torch.sign` for those of ±1.
        The memory gives its vectors away up to one rotation, and `valid` is all that can undo it: valid vectors
        must be few among all, as those of ±1 are, and the map must give the nearest (a flip of the whole vector is
        not); where −z is valid too, either is found. A map that leaves all as they are, or only sets their length,
        finds nothing but mixtures. callback: as for the `contents` of a model.
        """
        found = frame.contents(lambda each: vectors.images(self.hyper(), each, valid), state, callback)
        return Contents(found.x.flatten(-3), found.cost)

    @public
    def kl(self, state: Whole, log_det: Float[Tensor, "*#b"] | None = None) -> Float[Tensor, "*b"]:
        """KL(memory ‖ blank memory) in nats [eq. elbo]; with the log_det of `store`, without a factorisation."""
        if log_det is None:
            return memory.kl_memory(state, self.prior())
        return moments.kl_prior(state, self.R0, self.prior_var, log_det)

    @public
    def inverse(self, state: MemoryState) -> Inverse:
        """(R Rᵀ + noise_var I)⁻¹ of the columns that address: what all reads of a memory share."""
        return kernels.inverse(state, self.noise_var, self.backend, self.size)

    @public
    @torch.no_grad()
    def reader(self, state: MemoryState) -> "Reader":
        """A module that reads this one memory, for torch.export and ONNX: two products, and no solve."""
        part = self._part(state, self.size).to(torch.float64)
        each = torch.eye(self.size, dtype=torch.float64, device=part.R.device)
        address = memory.address(each, part, self.noise_var.double())
        return Reader(address.to(state.R.dtype), self._wanted(state.R).detach().clone())

    @public
    def fade(self, state: MemoryState, keep: Share) -> Faded:
        """Let a memory fade towards the blank one, by 0 < keep ≤ 1: exponential forgetting.

            R ← R0 + √keep (R − R0)        U ← keep U + (1 − keep) prior_var I

        For a content that changes with time (`memory.drift`): old writes count less, new ones more. What has faded
        can be read, but not be counted, listed or taken out any more.
        """
        return memory.drift(state, self.R0, self.prior_var, keep)

    def codes(
        self, z: Float[Tensor, "*#b T size"], values: Float[Tensor, "*#b T values"] | None
    ) -> Float[Tensor, "*b T C"]:
        """[key; value] of every vector, in the memory's precision; batch axes broadcast."""
        z = z.to(self.R0.dtype)
        if values is None:
            if self.values:
                raise ValueError(f"values: expected a tensor of shape (*b, T, {self.values}), got None")
            return z
        if self.values == 0:
            raise ValueError("values: expected none, since the layer was made without (values=0)")
        return torch.cat(broadcast((z, values.to(z))), dim=-1)

    def _part(self, state: MemoryState, columns: int) -> MemoryState:
        """The first columns of a memory: those that a cue speaks of."""
        return state._replace(R=state.R[..., :columns])

    def _wanted(self, read: Float[Tensor, "*b Q C"]) -> Float[Tensor, "*b Q m"]:
        return read[..., self.size :] if self.values else read


class Stream(nn.Module):
    """A memory that is written to for ever, in constant space: a layer, and the state that it has come to.

    The state is a buffer, `kept`, and moves with the module; `save` puts it into the state_dict.
    Each write cuts off the gradients of all writes before it. The buffer is replaced, never changed, so that other
    threads may read while one writes: each read sees one whole state. keep < 1 lets the memory fade before each
    call of write (`Memory.fade`), however many vectors come with it or are masked: time has passed for all. So
    about 1/(1 − keep) calls are remembered. With keep = 1 a memory hardens with time: its U shrinks, and new codes
    change it less and less. batch: of streams that run side by side, one memory each.
    """

    kept: Float[Tensor, "*b K CK"]
    faded: bool
    """Whether what is kept has faded; it is saved with the state."""

    def __init__(self, memory: Memory, batch: tuple[int, ...] = (), keep: float = 1.0, save: bool = True) -> None:
        super().__init__()
        if not isinstance(memory, Memory):
            raise TypeError(f"memory: expected a kanerva.nn.Memory, got {type(memory).__name__}")
        checks.sizes("batch", batch)
        checks.up_to_one("keep", keep)
        self.memory, self.keep, self.batch, self.save, self.faded = memory, float(keep), tuple(batch), save, False
        self.register_buffer("kept", joined(memory.prior(self.batch)), persistent=save)

    def extra_repr(self) -> str:
        return f"batch={self.batch}, keep={self.keep}"

    @property
    def state(self) -> MemoryState:
        """What the memory is now; one that fades is a `memory.Faded`."""
        columns = self.memory.size + self.memory.values
        kept = self.kept
        kind = Faded if self.faded or self.keep < 1 else MemoryState
        return kind(kept[..., :columns], kept[..., columns:])

    @state.setter
    def state(self, state: MemoryState) -> None:
        self._keep(state)

    @property
    def sizes(self) -> dict[str, int]:
        """The axes that the layer knows by name."""
        return self.memory.sizes

    @property
    def like(self) -> Tensor:
        """A tensor of the layer's own: memories must have its dtype and device."""
        return self.memory.like

    def write(
        self,
        z: Float[Tensor, "*#b T size"],
        mask: Bool[Tensor, "*#b T"] | None = None,
        values: Float[Tensor, "*#b T values"] | None = None,
    ) -> MemoryState:
        """Go on writing. Returns the new state, with gradients of this write alone; what is kept has none."""
        return self._write(self.state, z, mask, values)

    @public
    def _write(self, state: Whole, z: Vectors, mask: Mask = None, values: Values = None) -> MemoryState:
        if self.keep < 1:
            state = self.memory.fade(state, self.keep)
        state = self.memory.write(z, state, mask, values)
        self._keep(state)
        return state

    @public
    def _keep(self, state: Whole) -> None:
        batch = together(state.R.shape[:-2], state.U.shape[:-2])
        if tuple(batch) != self.batch:
            raise ValueError(
                f"batch axes: expected those of the stream, {self.batch}, got {tuple(batch)}; "
                f"Stream(memory, batch={tuple(batch)}) has a memory for each"
            )
        self.faded = isinstance(state, Faded)
        self.kept = joined(state)

    def forward(
        self, cue: Float[Tensor, "*#b Q n"], known: Bool[Tensor, "... n"] | None = None
    ) -> Float[Tensor, "*b Q m"]:
        """Read cues, as `Memory.read` does. All else a layer can be asked is asked of `stream.memory`."""
        return self.memory.read(self.state, cue, known)

    def reset(self) -> None:
        """Begin with a blank memory."""
        self._keep(self.memory.prior(self.batch))

    def get_extra_state(self) -> Bool[Tensor, "n"]:
        """The mark of a memory that has faded, for the state_dict; none where the state is left out."""
        return torch.tensor([self.faded] if self.save else [], dtype=torch.bool)

    def set_extra_state(self, state: Any) -> None:
        """Take the mark that was saved with a state."""
        if not isinstance(state, Tensor) or state.dtype != torch.bool or state.numel() > 1:
            raise ValueError(f"_extra_state: expected the mark that state_dict gives, one boolean, got {state!r}")
        if self.save and len(state):
            self.faded = bool(state)


def joined(state: MemoryState) -> Float[Tensor, "*b K CK"]:
    """R and U side by side in one tensor, without gradients: what can be replaced at once."""
    return torch.cat(broadcast(state), dim=-1).detach()


class Reader(nn.Module):
    """Address and read for one memory as it is, without a solve: read = cue · address · rows. It can be exported.

    address = R_kᵀ (R_k R_kᵀ + noise_var I)⁻¹        rows = R, or its columns of values
    """

    address: Float[Tensor, "*b n K"]
    rows: Float[Tensor, "*b K m"]

    def __init__(self, address: Float[Tensor, "*b n K"], rows: Float[Tensor, "*b K m"]) -> None:
        super().__init__()
        self.register_buffer("address", address)
        self.register_buffer("rows", rows)

    def forward(self, cue: Float[Tensor, "*b Q n"]) -> Float[Tensor, "*b Q m"]:
        return cue @ self.address @ self.rows


# torch.load takes saved layers as it takes tensors: their classes hold tensors and numbers, and run nothing
torch.serialization.add_safe_globals([Memory, Stream, Reader])
