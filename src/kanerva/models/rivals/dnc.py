"""DNC: a differentiable neural computer (Graves et al., Nature 2016) as a memory for images.

A controller writes an episode, code by code, into a memory of N rows, and learns how: by content, into free rows,
and with links from each row to the one written next. Then every image is read back from a cue, which is the image
itself, or a corrupted one.

No path around the memory: the decoder sees read vectors alone, and a reading controller starts from one learned
state and knows nothing of the controller that wrote, only its cue. But read *weights* are made from the cue, and
nothing is charged for them. A controller may write the same basis of all images in every episode, and read with the
cue's coordinates: an autoencoder with a memory for show. That is what training finds where cues are good (measured:
CUE_NOISE). So cues are corrupted in training, up to where they can only tell the stored images apart. The extra
score, which reads each image from the memory of another episode, says how much is left of that.

What the score is: −ln p(x | what was read), a reconstruction error. There is no latent and no prior, so it is no
bound on ln p of an episode, nor on ln p(x | memory), and it flatters the model where others pay KL(w). The paper
draws a DNC's errors beside its own conditional ELBO, from Wu et al. (2018), and does not say how they were scored.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from ...support import checks
from ...support.checks import Random
from ...support.door import public
from ..base import CodecModel, CodecModelConfig, Episode, Pixels, Preparation, Seen, Terms
from .gaussian import normal

# Added to squared norms, so that a blank row is like nothing, and its gradient is finite (√ has none at 0).
TINY = 1e-6
# The worst cues in training have nearly half of their bits flipped. With at most 15 % the memory is not used: in
# episodes of 4, glyphs cost 197 nats after 600 steps, and 199 from another episode's memory. At 45 %, 191 and 237.
CUE_NOISE = 0.45
# Usage is raised by so much before its logarithm is taken: a row that was never written has usage 0.
UNUSED = 1e-6


@dataclass(frozen=True)
class DNCConfig(CodecModelConfig):
    """A codec around a memory of N rows for words of C numbers, and its controller."""

    kind: ClassVar[str] = "dnc"

    rows: int = 64
    """N, the rows of the memory."""
    heads: int = 4
    """R, the rows (or blends of rows) that are read at once."""
    hidden: int = 256
    """H, the size of the LSTM that controls the memory."""
    reads: int = 2
    """Reading steps for each cue; with more than one, links can be followed from what was read first."""
    cue_noise: float = CUE_NOISE
    """Training corrupts cues: each has a share of its bits flipped (or noise of a standard deviation added) that is
    drawn between 0 and this. Scores are of clean cues."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, rows=1, heads=1, hidden=1, reads=1, cue_noise=0)
        if self.binary and self.cue_noise > 1:
            raise ValueError(f"cue_noise: expected a share of bits from 0 to 1, got {self.cue_noise}")


class DNCState(NamedTuple):
    """A memory, and all that is needed to write on: the next step depends on nothing else."""

    memory: Float[Tensor, "*#b N C"]
    links: Float[Tensor, "*#b N N"]
    """How far row i was written right after row j."""
    usage: Float[Tensor, "*#b N"]
    precedence: Float[Tensor, "*#b N"]
    """How far a row was the last one written."""
    write: Float[Tensor, "*#b N"]
    """The last write weights."""
    read: Float[Tensor, "*#b R N"]
    """The last read weights of the writing controller."""
    hidden: Float[Tensor, "*#b H"]
    cell: Float[Tensor, "*#b H"]


# The equations of the article's Methods, for any number of heads and of batch axes. Weights are not negative, and
# sum to 1 at most. Proof: tests/test_dnc.py has each as loops over rows.


def content(
    memory: Float[Tensor, "*b N C"], key: Float[Tensor, "*b R C"], strength: Float[Tensor, "*b R"]
) -> Float[Tensor, "*b R N"]:
    """c = softmax(strength · cos(key, row)) over rows."""
    of_keys, of_rows = ((x.square().sum(-1) + TINY).sqrt() for x in (key, memory))
    cosine = key @ memory.mT / (of_keys[..., :, None] * of_rows[..., None, :])
    return (strength[..., None] * cosine).softmax(-1)


def used(
    usage: Float[Tensor, "*b N"],
    write: Float[Tensor, "*b N"],
    read: Float[Tensor, "*b R N"],
    free: Float[Tensor, "*b R"],
) -> Float[Tensor, "*b N"]:
    """u ← (u + w − u w) ψ with ψ = Π_r (1 − f_r w_r): rows written are in use; gates f free those just read."""
    kept = 1 - free[..., None] * read
    # a product of a few heads, one by one: the gradient of prod() looks at its values on the host
    retained = kept[..., 0, :]
    for r in range(1, kept.shape[-2]):
        retained = retained * kept[..., r, :]
    return (usage + write - usage * write) * retained


def allocation(usage: Float[Tensor, "*b N"]) -> Float[Tensor, "*b N"]:
    """a_i = (1 − u_i) Π_j u_j over the rows j that are freer than i: all goes to the free rows, the freest first.

    Freer is a smaller usage, or an equal one with a smaller index. This is the article's sorted list without
    sorting; no gradient goes through the order there either. The product is a sum of logarithms, so usage is raised
    to at least 1e-6: where it is 0 the gradient of a product is a product of the others, which no logarithm has.
    """
    u = UNUSED + (1 - UNUSED) * usage
    mine, other = usage[..., :, None], usage[..., None, :]
    index = torch.arange(u.shape[-1], device=u.device)
    freer = (other < mine) | ((other == mine) & (index < index[:, None]))
    return (1 - u) * (freer.to(u) @ u.log()[..., None])[..., 0].exp()


def linked(
    links: Float[Tensor, "*b N N"], precedence: Float[Tensor, "*b N"], write: Float[Tensor, "*b N"]
) -> Float[Tensor, "*b N N"]:
    """L_ij ← (1 − w_i − w_j) L_ij + w_i p_j, and 0 for i = j; p is the precedence before this write."""
    to, since = write[..., :, None], write[..., None, :]
    new = (1 - to - since) * links + to * precedence[..., None, :]
    return new * (1 - torch.eye(new.shape[-1], dtype=new.dtype, device=new.device))


def read_weights(
    memory: Float[Tensor, "*b N C"],
    links: Float[Tensor, "*b N N"],
    before: Float[Tensor, "*b R N"],
    how: "ReadSignals",
) -> Float[Tensor, "*b R N"]:
    """w ← π₁ Lᵀw + π₂ c + π₃ L w: rows written before those read last, rows by content, rows written after them."""
    backward, forward = before @ links, before @ links.mT
    back, by_content, on = how.modes.unsqueeze(-1).unbind(-2)
    return back * backward + by_content * content(memory, how.key, how.strength) + on * forward


class ReadSignals(NamedTuple):
    """What a controller says of reading, for each head."""

    key: Float[Tensor, "*b R C"]
    strength: Float[Tensor, "*b R"]
    modes: Float[Tensor, "*b R 3"]
    """Shares of backward, content and forward reading; they sum to 1."""


class WriteSignals(NamedTuple):
    """What a controller says of writing."""

    key: Float[Tensor, "*b C"]
    erase: Float[Tensor, "*b C"]
    """How much of each column to erase, from 0 to 1."""
    add: Float[Tensor, "*b C"]
    strength: Float[Tensor, "*b"]
    allocate: Float[Tensor, "*b"]
    """Whether to write into free rows (1) or by content (0)."""
    gate: Float[Tensor, "*b"]
    """Whether to write at all."""
    free: Float[Tensor, "*b R"]
    """For each head, whether rows that it has just read may be used again."""


class Controller(nn.Module):
    """An LSTM, whose input is a code and what was read last, and the two maps that make orders of its output.

    Calling it makes one step of writing.
    """

    def __init__(self, config: DNCConfig) -> None:
        super().__init__()
        self.config = config
        C, R, H = config.code, config.heads, config.hidden
        self.input = nn.Linear(C, 4 * H)
        self.recurrent = nn.Linear(R * C + H, 4 * H, bias=False)
        self.reading = nn.Linear(H, R * (C + 4))
        self.writing = nn.Linear(H, 3 * C + 3 + R)
        for layer in (self.input, self.recurrent, self.reading, self.writing):
            nn.init.xavier_uniform_(layer.weight)
        for layer in (self.input, self.reading, self.writing):
            nn.init.zeros_(layer.bias)
        nn.init.ones_(self.input.bias[H : 2 * H])  # to remember at first

    def lstm(
        self,
        z: Float[Tensor, "*b gates"],
        vectors: Float[Tensor, "*b R C"],
        hidden: Float[Tensor, "*b H"],
        cell: Float[Tensor, "*b H"],
    ) -> tuple[Float[Tensor, "*b H"], Float[Tensor, "*b H"]]:
        """Hidden and cell after a code, of which z = input(code), and what was read before."""
        gates = z + self.recurrent(torch.cat([vectors.flatten(-2), hidden], -1))
        take, keep, give, new = gates.chunk(4, -1)
        cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
        return give.sigmoid() * cell.tanh(), cell

    def how_to_read(self, hidden: Float[Tensor, "*b H"]) -> ReadSignals:
        C, R = self.config.code, self.config.heads
        key, strength, modes = self.reading(hidden).unflatten(-1, (R, C + 4)).split([C, 1, 3], -1)
        return ReadSignals(key, 1 + softplus(strength[..., 0]), modes.softmax(-1))

    def how_to_write(self, hidden: Float[Tensor, "*b H"]) -> WriteSignals:
        C, R = self.config.code, self.config.heads
        key, erase, add, strength, gates = self.writing(hidden).split([C, C, C, 1, 2 + R], -1)
        allocate, gate, free = gates.sigmoid().split([1, 1, R], -1)
        strength = 1 + softplus(strength[..., 0])
        return WriteSignals(key, erase.sigmoid(), add, strength, allocate[..., 0], gate[..., 0], free)

    def forward(self, state: DNCState, z: Float[Tensor, "*b gates"]) -> DNCState:
        """Write one code, of which z = input(code), and read: all equations in their order."""
        hidden, cell = self.lstm(z, state.read @ state.memory, state.hidden, state.cell)
        how = self.how_to_write(hidden)
        usage = used(state.usage, state.write, state.read, how.free)
        c = content(state.memory, how.key[..., None, :], how.strength[..., None])[..., 0, :]
        # w = g_w (g_a a + (1 − g_a) c)
        allocate, gate = how.allocate[..., None], how.gate[..., None]
        w = gate * (allocate * allocation(usage) + (1 - allocate) * c)
        # M ← M (1 − w eᵀ) + w vᵀ
        memory = state.memory * (1 - w[..., None] * how.erase[..., None, :]) + w[..., None] * how.add[..., None, :]
        links = linked(state.links, state.precedence, w)
        precedence = (1 - w.sum(-1, keepdim=True)) * state.precedence + w
        read = read_weights(memory, links, state.read, self.how_to_read(hidden))
        return DNCState(memory, links, usage, precedence, w, read, hidden, cell)


class DNC(CodecModel):
    """A differentiable neural computer between an encoder and a decoder."""

    TITLE = "Differentiable neural computer"
    METHODS = ("read",)
    AUTO = True
    Config, State = DNCConfig, DNCState

    config: DNCConfig

    def __init__(self, config: DNCConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        self.controller = Controller(c)
        self.start = nn.Parameter(torch.zeros(2, c.hidden))
        """Hidden and cell of every reading controller at first. Writing starts from zeros, as the memory does."""
        self.out = nn.Linear(c.heads * c.code, c.code)
        nn.init.xavier_uniform_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    @property
    def sizes(self) -> dict[str, int]:
        c = self.config
        return super().sizes | {"N": c.rows, "R": c.heads, "H": c.hidden}

    def _blank(self, batch: int) -> DNCState:
        """All zeros."""
        c = self.config
        N, C, R, H = c.rows, c.code, c.heads, c.hidden
        shapes = (N, C), (N, N), (N,), (N,), (N,), (R, N), (H,), (H,)
        return DNCState(*(self.like.new_zeros(batch, *shape) for shape in shapes))

    def _write(self, e: Tensor, state: DNCState) -> DNCState:
        """One step of the controller for each code."""
        for step in self.controller.input(e).unbind(-2):
            state = self.controller(state, step)
        return state

    def read(
        self, state: DNCState, z: Float[Tensor, "*b Q C"]
    ) -> tuple[Float[Tensor, "*b Q C"], Float[Tensor, "*b Q R N"]]:
        """What is read for the codes of cues, as codes for the decoder, and the last weights.

        Each cue has a controller of its own, which starts from the same state. Nothing is written.
        """
        c, controller = self.config, self.controller
        z = controller.input(z)
        hidden, cell = (part.expand(*z.shape[:-1], c.hidden) for part in self.start)
        w = z.new_zeros(*z.shape[:-1], c.heads, c.rows)
        vectors = z.new_zeros(*z.shape[:-1], c.heads, c.code)
        for _ in range(c.reads):
            hidden, cell = controller.lstm(z, vectors, hidden, cell)
            key, strength, modes = controller.how_to_read(hidden)
            # to the memory, Q cues of R heads are Q R heads
            how = ReadSignals(key.flatten(-3, -2), strength.flatten(-2), modes.flatten(-3, -2))
            weights = read_weights(state.memory, state.links, w.flatten(-3, -2), how)
            w, vectors = (part.unflatten(-2, (z.shape[-2], c.heads)) for part in (weights, weights @ state.memory))
        return self.out(vectors.flatten(-2)), w

    def _terms(
        self,
        state: DNCState,
        x: Tensor,
        e: Tensor,
        generator: torch.Generator | None,
        pixels: Pixels | None = None,
    ) -> Terms:
        """ln p(x | what was read), and L_AE, the codec alone.

        While training, cues are corrupted. The loss has L_AE in it, as for the DKM: without it training gets
        nowhere for long, as a controller cannot learn to address codes that say nothing yet.
        """
        cue = self._code(self.corrupted(x, generator)) if self.training and self.config.cue_noise else e
        return Terms(*self.log_lik(x, self.read(state, cue)[0], e, pixels))

    def corrupted(
        self, x: Float[Tensor, "*b c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "*b c h w"]:
        """Cues to train with: each image with a share of its bits flipped, or with noise, more or less of it."""

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, dtype=x.dtype, device=x.device)

        share = self.config.cue_noise * uniform(*x.shape[:-3], 1, 1, 1)
        if self.config.binary:
            return torch.where(uniform(*x.shape) < share, 1 - x, x)
        return (x + share * normal(x.shape, x, generator)).clamp(-1.5, 1.5)

    @public(flat=True)
    def extra_scores(self, x: Episode, generator: Random = None) -> dict[str, Float[Tensor, "*b"]]:
        """−ln p(x | what was read from the memory of another episode): what the cue alone can tell.

        Other is the next episode along the first batch axis; where there is one episode only, there is no score.
        """
        if len(x) < 2:
            return {}
        z = self._code(x)
        other = self._write(z.roll(1, 0), self._blank(len(x)))
        found = self.log_p(self.decoding(self.read(other, z)[0]), x)
        return {"read from another episode's memory": -found.mean(-1)}

    def _look(self, state: DNCState, e: Tensor) -> Seen:
        """What is read for the codes of cues, and the read weights, means over heads."""
        found, w = self.read(state, e)
        return Seen(found, w.mean(-2))

    def _begin(self, state: DNCState, n: int, generator: torch.Generator | None) -> Seen:
        """Codes drawn from N(0, I), of which training makes none."""
        z = normal((len(state.memory), n, self.config.code), state.memory, generator)
        return self._look(state, z)

    def kept(self, length: int) -> int:
        """All of a memory, whatever is written: N C + N² for reading (rows, links), and the rest to write on."""
        return sum(part.numel() for part in self._blank(1))

    def prepare(self, how: Preparation) -> None:
        """Set the codec's precision; compile it, and the step of writing."""
        super().prepare(how)
        if how.compiled:
            self.controller.compile()
