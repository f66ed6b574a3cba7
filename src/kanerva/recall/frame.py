"""Looking into a memory: was an image written, how often, and what else is in there; beyond the paper.

A memory of up to K codes gives them away up to one rotation (`memory.frame`): every code that was written is uᵀF,
with F the frame's codes and u a vector of length 1 (1/√m if written m times). So an image can be asked for
(`contains`) and taken out (`forget`) without anything kept beside the memory.

All images can even be found without a cue (`contents`). Two sets meet at a stored code: codes of the form uᵀF, and
codes of images, which encoder(mode of decoder(z)) leaves as they are. Each has a cheap projection, P_B and P_A.
Relaxed reflections look for a point in both:

    z ← z + β ( P_A(2 P_B(z) − z) − P_B(z) )

(Elser, The complexity of bit retrieval, 2018). Where that comes to rest, P_B(z) is in both sets. Descent on the
distance between the two sticks in points that are near to both, 70 times as often (32 codes in 32 rows).
What is found is taken out of the frame, and the search goes on in what is left. An image counts as found if its own
code lies in the span of what was written, which other images miss by far: so nothing false is found.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .. import memory
from ..likelihood import Bernoulli
from ..memory import MemoryState
from ..memory.sums import FORGOTTEN
from ..support import checks, linalg
from .retriever import Hyper, Retriever, StoredImages
from .search import average, likely
from .watch import tell

# An image was written if its code is this near to the span of all that was, relative to its length. Stored images:
# at most 3e-5 with fewer codes than rows (31 of 32), 3e-3 with as many; 1.5e-2 in 1 of 840 after half of 31 were
# forgotten. One pixel of a stored image changed: at least 0.018 of 5,500, a corner of an image that has much ink.
EXACT = 1e-2
# In a full memory, which may hold one code more, it must be nearer, for its count to be right.
EXACT_FULL = 6e-4
# And this near, to show that a full memory holds no more codes than rows, so that all other images are known too.
# 33 codes in 32 rows: 0.6 % of 2,112 came below 6e-4, the nearest to 3.9e-5. 32 codes: most are below 1e-6.
WITNESS = 1e-5
# An image this near is a stored one but for a few pixels, where repairing does not make it exact. Nothing false was
# seen below 0.2.
NEAR = 0.12
# The same for the last image, with all others known.
LAST = 0.2
# Candidates farther away than this are not worth repairing.
HOPE = 0.3
# Vectors whose cosine is larger are of one image.
SAME = 0.6
# Repairs in each memory after a round: how many, the pixels changed at most, the images kept each time, and the
# pixels tried of each, twice.
REPAIRS, CHANGES, BEAM, TRIES = 4, 8, 4, 12
# The images kept and the pixels tried in the last repairs of `contents`, where few are left to make exact.
LAST_BEAM, LAST_TRIES = 16, 24
# The step β of the search: 0.35 and 0.7 find a fifth less in the same time.
STEP = 0.5
# Reflections between two looks at what they have come to.
ROUND = 20
# Searches that go on side by side in one memory.
STARTS = 48
# Shortest vector u of a code: one that was written six times.
SHORTEST = 0.4
# The same for `contents` where nothing was written twice, so that all have length 1.
SHORTEST_ALONE = 0.8
# Evaluations of the codec in one memory after which a search ends. 32 images in 32 rows take 10 to 30 thousand.
BUDGET = 60_000
# Evaluations without a find after which `contents` begins all searches anew, with half the step or the whole one
# again: reflections can go round in circles. Of 26 letters in each of three fonts, 7, 20 and 24 were found without
# it, and all with it.
STUCK = 3_000
# The same for recall, which has another way where this one does not lead to all cues' images.
RECALL = 30_000
# Evaluations after which recall gives up where nothing was found.
TRIAL = 1_500
# Evaluations without a find after which it gives up where something was. 32 images in 32 rows, 30 % flips: with
# half of it, 3 % fewer answers are certified (16 memories).
PATIENCE = 12_000
# Mixtures of stored images that are tried with a codec of real-valued images, and the share of them that may pass.
# Of few images, many mixtures are one of them for the most part: of 2, 3 or 4, 31 %, 9 % or 2 % are within 0.24.
MIXTURES, PASS, FEW, PASS_FEW = 32, 0.05, 4, 0.6
# With fewer cues than this, random starts go along with them.
LEAST = 16
# The least probability of an answer that is certified.
SURE = 0.999
# So many other images must be known before one can be said to stand out.
ENOUGH = 5
# How far it stands out, in standard deviations of the others' distances: to be the answer, and to be certified
# while not all images are found, which then takes half of them. Of cues whose own image was not found (24 of 32
# were; 15 to 40 % flips), 0.2 to 1.5 % have another that stands out by 3, and none of 2,400 one by 4.
STANDS_OUT, CLEARLY = 3.0, 4.0


class Frames(NamedTuple):
    """The frames of B memories."""

    codes: Float[Tensor, "B K C"]
    """F, in the model's precision."""
    back: Float[Tensor, "B C K"]
    """F⁺: u = z F⁺."""
    exact: memory.Frame
    exact_back: Float[Tensor, "B C K"]
    """F and F⁺ as they were computed, in float64."""

    @classmethod
    def of(cls, hyper: Hyper, state: MemoryState) -> "Frames":
        """The frames of memories with one batch axis."""
        exact = memory.frame(state, *hyper)
        finite = exact.codes.nan_to_num(0)
        left, size, right = torch.linalg.svd(finite, full_matrices=False)
        kept = torch.arange(size.shape[-1], device=size.device) < exact.distinct[:, None]
        back = right.mT * torch.where(kept, 1 / size, 0)[:, None] @ left.mT  # of what rounding has left, nothing
        return cls(finite.to(state.R), back.to(state.R), exact, back)

    def full(self) -> Bool[Tensor, "B"]:
        """Which memories may hold more codes than they can tell apart."""
        return self.exact.distinct >= min(self.codes.shape[-2:])

    def lost(self) -> Bool[Tensor, "B"]:
        """Which memories are not numbers."""
        return self.exact.codes.isnan().any(-1).any(-1)


def fit(
    z: Float[Tensor, "*b Q C"], codes: Float[Tensor, "*b K C"], back: Float[Tensor, "*b C K"]
) -> tuple[Float[Tensor, "*b Q K"], Float[Tensor, "*b Q"]]:
    """The vectors u of codes, and how far the codes are from the span of all that was written."""
    u = z @ back
    return u, (z - u @ codes).norm(dim=-1) / z.norm(dim=-1).clamp(min=1e-12)


@torch.no_grad()
def how_often(hyper: Hyper, state: MemoryState, z: Float[Tensor, "B Q C"]) -> Int64[Tensor, "B Q"]:
    """How often each code of an image was written, 0 for never; −1 where the memory cannot know.

    Written m times, a code has a vector of length 1/√m. With as many different codes as rows (or numbers in a code)
    there may be more, and nothing need fit: then only codes that do fit are known, and where one fits to the last
    digits (WITNESS), all are. A code of zeros is never written: it changes nothing. Proof: test_contains_*.
    """
    checks.unfaded("state", state)
    return torch.where((z == 0).all(-1), 0, count(Frames.of(hyper, state), z))


def count(frames: Frames, z: Float[Tensor, "B Q C"]) -> Int64[Tensor, "B Q"]:
    """How often each code was written, 0 for never, −1 where a memory cannot know."""
    u, outside = fit(z, frames.codes, frames.back)
    times = (1 / u.square().sum(-1).clamp(min=1e-6)).round().long().clamp(min=1)
    full = frames.full()[:, None]
    there = outside < torch.where(full, EXACT_FULL, EXACT)
    witness = (outside < WITNESS).any(-1, keepdim=True)
    unclear = full & ~there & ~(witness & (outside > EXACT))
    blind = frames.lost() | (frames.exact.distinct >= z.shape[-1])  # a span of the whole space holds every code
    unknown = blind[:, None] | unclear
    return torch.where(unknown, -1, torch.where(there, times, 0))


@torch.no_grad()
def forget(hyper: Hyper, state: MemoryState, z: Float[Tensor, "B Q C"]) -> MemoryState:
    """The memories without these codes of images, however often each was written."""
    times = how_often(hyper, state, z)
    check_there(times, "x: expected images", "a memory of as many codes as rows, or more, cannot tell")
    return take_out(hyper, state, z, times)


def check_there(times: Int64[Tensor, "*b Q"], wanted: str, unknown: str) -> None:
    """Refuse codes that were written 0 times, or of which that is not known, and why it is not."""
    if bool((times < 1).any()):
        where = [tuple(index) for index in (times < 1).nonzero().tolist()]
        why = unknown if bool((times < 0).any()) else "never written"
        raise ValueError(f"{wanted} that are in the memory, got {len(where)} others ({why}): {where[:5]}")


@torch.no_grad()
def take_out(
    hyper: Hyper,
    state: MemoryState,
    z: Float[Tensor, "B Q C"],
    times: Int64[Tensor, "B Q"],
    apart: bool = False,
) -> MemoryState:
    """The memories without these codes, each of which was written so many times.

    Copies of a code leave something in the frame that no code lies in: it goes with the codes if all of it can be
    theirs. Where nothing else was written, the prior is left. apart: copies must be told from those of other codes.
    Proof: test_forgetting_*.
    """
    if not times.numel():
        return state
    frames = Frames.of(hyper, state)
    vectors = unit(z.double() @ frames.exact_back)
    w = vectors @ frames.exact.weights.nan_to_num(0)
    x = float((hyper.prior_var * w.square().sum(-1) / hyper.noise_var).max())
    if (off := float(linalg.resolution(state.U)) * x) > FORGOTTEN:  # see `without`
        raise ValueError(
            f"state: expected weights kept to {FORGOTTEN}, got an error of about {off:.1e}, rounding of U times "
            f"prior_var ‖w‖² / noise_var = {x:.3g}; usual cause: a small noise_var and float32; a memory that is "
            "float64 from its first write on keeps them"
        )
    each = zip(zip(*frames.exact, strict=True), vectors, times, strict=True)
    made = [without(hyper, memory.Frame(*frame), u, n, apart) for frame, u, n in each]
    return MemoryState(*(torch.stack(part).to(state.R) for part in zip(*made, strict=True)))


def without(
    hyper: Hyper, frame: memory.Frame, u: Float[Tensor, "Q K"], times: Int64[Tensor, "Q"], apart: bool
) -> MemoryState:
    """One memory without the codes of these vectors of length 1, each written so many times: in float64.

    The prior is conditioned on what is left of the frame: off by x eps, x = prior_var ‖w‖² / noise_var, where to
    subtract a weight from U⁻¹ leaves what rounding has made of it, x² eps (`memory.forget`).
    """
    alike = (u @ u.mT).abs()
    if apart and bool(((alike > 0.1) & (alike < 0.9)).any()):
        raise ValueError(
            "z: expected vectors that can all be in the memory, got some that are mixtures of others; each "
            "alone could have been written"
        )
    same = alike > 0.5
    first = same.int().argmax(-1) == torch.arange(len(u), device=u.device)  # who asks twice is counted once
    u, copies = u[first], int(times[first].sum())
    distinct, more = int(frame.distinct), int(frame.rank - frame.distinct)
    prior = hyper.prior().to(torch.float64)
    if len(u) == distinct:
        return prior
    out = torch.linalg.qr(u.mT).Q.mT
    if apart and copies > len(u) and more != copies - len(u):
        raise ValueError(
            f"z: expected all vectors that were written more than once, or none, got {copies - len(u)} of {more} "
            "copies; the memory cannot tell one vector's copies from another's: forget these vectors together"
        )
    if 0 < more <= copies - len(u):
        left, _, _ = torch.linalg.svd(frame.codes[: int(frame.rank)])
        out = torch.cat([out, torch.nn.functional.pad(left[:, distinct:].mT, (0, len(frame.codes) - len(left)))])
    keep = linalg.ridge(-out.mT @ out, 1.0)
    return memory.condition(prior, keep @ frame.weights, keep @ frame.codes, hyper.noise_var.double())


def contents(
    retriever: Callable[[MemoryState], Retriever],
    state: MemoryState,
    callback: Callable[[int, int], None] | None = None,
    known: Float[Tensor, "n c h w"] | None = None,
) -> StoredImages:
    """All images of one memory, found without a cue; the same ones every time.

    callback: called now and then with the number found and the number of different codes that there are. known:
    what an earlier search of this memory, which was stopped, has found. Fewer are found rather than a false one.
    Cost: about 150 evaluations of encoder and decoder for each of 8 images, 600 for
    each of 32 in 32 rows. Proof: test_contents_*.
    """
    if state.R.ndim != 2 or state.U.ndim != 2:
        raise ValueError(f"state: expected one memory, R of shape (K, C), got {tuple(state.R.shape)}")
    with checks.deep_checks(False), torch.inference_mode(False), torch.no_grad():
        at = retriever(MemoryState(*(part.clone()[None] for part in state)))
        search = Search(at)
        exact = search.frames.exact
        total = int(exact.distinct)
        search.shortest = SHORTEST_ALONE if total == int(exact.rank) else SHORTEST
        if known is not None:
            search.tell(known)
        for number in search.everything():
            if callback is not None:
                callback(number, total)
        found = [one.x for one in search.boxes[0].found]
        x = torch.stack(found) if found else state.R.new_zeros(0, *at.image)
        return StoredImages(x, search.cost(x))


class Recognised(NamedTuple):
    """Stored images that explain cues."""

    x: Float[Tensor, "B Q c h w"]
    there: Bool[Tensor, "B Q"]
    """Where there is such an image; elsewhere x is none."""
    certified: Bool[Tensor, "B Q"]
    """Where x is a stored image to the last pixel, and surely the one that the cue is of."""


def recognise(
    at: Retriever,
    y: Float[Tensor, "B Q c h w"],
    mask: Float[Tensor, "B Q c h w"] | None,
    known: Float[Tensor, "n c h w"] | None = None,
) -> Recognised:
    """Find the stored images that cues are of: search from the cues, and choose the nearest of what is found.

    known: images that the first memory is known to hold; where they explain all cues, nothing is searched for.

    The search in a memory ends when all of it is found, or when what was found explains all cues (`explained`). It
    is given up where nothing is found soon (TRIAL) or any more (PATIENCE), with a codec that does not know its own
    images; and in a full memory where nothing exact is, which holds more than can be told apart.
    """
    search = Search(at)
    good = torch.ones_like(y) if mask is None else mask
    if known is not None:
        search.tell(known)
        search.boxes[0].given_up |= bool(answer(search.boxes[0], y[0], good[0]).there.all())
    if search.active(RECALL):
        look_for(search, y, mask, good)
        if search.at.binary:
            search.mend([hints(*one) for one in zip(search.boxes, y, good, strict=True)])
    answers = [answer(*one) for one in zip(search.boxes, y, good, strict=True)]
    return Recognised(*(torch.stack(parts) for parts in zip(*answers, strict=True)))


def look_for(
    search: "Search",
    y: Float[Tensor, "B Q c h w"],
    mask: Float[Tensor, "B Q c h w"] | None,
    good: Float[Tensor, "B Q c h w"],
) -> None:
    """Search from cues, until what is found explains them all or there is little hope for it (`recognise`)."""
    some = slice(None, None, -(-y.shape[1] // STARTS))  # of very many cues, not all are searched from
    sharp = likely(y, mask, search.at.binary)[0][:, some]
    more = STARTS - sharp.shape[1] if sharp.shape[1] < LEAST else 0
    starts = torch.cat([search.at.encode(sharp).z, search.fresh(more)], 1)
    pull = odds(y[:, some], sharp, good[:, some]) if search.at.binary else None
    if pull is not None:
        pull = torch.cat([pull, pull.new_zeros(len(y), more, *y.shape[2:])], 1)
    for _ in search.run(starts, RECALL, pull):
        for number, box in enumerate(search.boxes):
            exact = any(one.outside < EXACT for one in box.found)
            none = box.spent > TRIAL and not (exact or (box.found and not box.full))
            stuck = box.spent > box.at_find + PATIENCE
            box.given_up = none or stuck or bool(answer(box, y[number], good[number]).there.all())


def odds(
    y: Float[Tensor, "*b c h w"], x: Float[Tensor, "*b c h w"], trusted: Float[Tensor, "*b c h w"]
) -> Float[Tensor, "*b c h w"]:
    """ln p(y | 1) / p(y | 0) of every pixel of a cue, bits flipped as often as y differs from x."""
    share = average((y - x).abs(), trusted).clamp(0.02, 0.45)[..., None, None, None]
    return (2 * y - 1) * (1 / share - 1).log() * trusted


def hints(box: "Box", y: Float[Tensor, "Q c h w"], trusted: Float[Tensor, "Q c h w"]) -> Float[Tensor, "n c h w"]:
    """The odds of every pixel of what was found in one memory, from the cues that are nearest to each."""
    if not box.found:
        return y[:0]
    x = torch.stack([one.x for one in box.found])
    which = apart(y, x, trusted).argmin(-1)
    return torch.zeros_like(x).index_add(0, which, odds(y, x[which], trusted))


def answer(box: "Box", y: Float[Tensor, "Q c h w"], trusted: Float[Tensor, "Q c h w"]) -> Recognised:
    """The nearest of what was found in one memory, where it explains a cue or nothing else is left."""
    if not box.found:
        nothing = torch.zeros(len(y), dtype=torch.bool, device=y.device)
        return Recognised(torch.zeros_like(y), nothing, nothing)
    x = torch.stack([one.x for one in box.found])
    distance = apart(y, x, trusted)
    which = distance.argmin(-1)
    exact = torch.tensor([one.outside < EXACT for one in box.found], device=y.device)[which]
    exact = exact & sure(distance, trusted.flatten(1).sum(-1))
    if box.closed:
        return Recognised(x[which], torch.ones_like(exact), exact)
    there = explained(y, x[which], trusted, distance)
    clear = (gap(distance) > CLEARLY) if 2 * len(x) >= box.total else torch.zeros_like(there)
    return Recognised(x[which], there, there & exact & clear)


def sure(distance: Float[Tensor, "Q n"], pixels: Float[Tensor, "Q"]) -> Bool[Tensor, "Q"]:
    """Whether cues tell the nearest image from all others: its probability among them is SURE at least.

    ln p(cue | x) = −rate · distance + const, where the noise of the nearest sets the rate: for bits flipped with
    probability f, ln((1 − f)/f) for each that differs. (For noise of variance v, 1/2v; the first is not larger.)
    """
    share = ((distance.amin(-1) + 1) / (pixels + 2)).clamp(max=0.49)
    rate = (1 / share - 1).log()
    return (-rate[:, None] * distance).softmax(-1).amax(-1) > SURE


def apart(
    y: Float[Tensor, "Q c h w"], x: Float[Tensor, "n c h w"], trusted: Float[Tensor, "Q c h w"]
) -> Float[Tensor, "Q n"]:
    """Squared distances of cues to images over the pixels that can be trusted; for bits, how many differ."""
    y, x, m = y.flatten(1), x.flatten(1), trusted.flatten(1)
    return (m * y.square()).sum(-1, keepdim=True) - 2 * (m * y) @ x.mT + m @ x.square().mT


def explained(
    y: Float[Tensor, "Q c h w"],
    x: Float[Tensor, "Q c h w"],
    trusted: Float[Tensor, "Q c h w"],
    distance: Float[Tensor, "Q n"],
) -> Bool[Tensor, "Q"]:
    """Whether cues are surely of the images x, the nearest of n that were found, though not all were.

    Of others a cue is much farther away. And bits of a binary image differ no more often where it is 1 than where
    it is 0, by two standard errors.
    """
    alone = gap(distance) > STANDS_OUT
    wrong = (y - x).abs() * trusted
    total, ink, paper = (a.flatten(1).sum(-1) for a in (wrong, x * trusted, (1 - x) * trusted))
    on_ink = (wrong * x).flatten(1).sum(-1)
    share = (total + 1) / (ink + paper + 2)
    error = (share * (1 - share) * (1 / ink.clamp(min=1) + 1 / paper.clamp(min=1))).sqrt()
    even = on_ink / ink.clamp(min=1) - (total - on_ink) / paper.clamp(min=1) < 2 * error
    binary = ((x == 0) | (x == 1)).flatten(1).all(-1)
    return alone & (even | ~binary)


def gap(distance: Float[Tensor, "Q n"]) -> Float[Tensor, "Q"]:
    """How far the nearest of n images stands out: (mean of the other distances − the least) / their deviation."""
    others = distance.sort(-1).values[:, 1:]
    if others.shape[1] < ENOUGH:
        return torch.zeros_like(distance[:, 0])
    return (others.mean(-1) - distance.amin(-1)) / others.std(-1).clamp(min=1e-12)


class Found(NamedTuple):
    """A stored image."""

    u: Float[Tensor, "K"]
    x: Float[Tensor, "c h w"]
    outside: float


@dataclass
class Box:
    """What is known of one memory in the course of a search; vectors are on the CPU, where they are compared."""

    whole: Float[Tensor, "K K"]
    """The projection on all vectors that a code could have."""
    left: Float[Tensor, "K K"]
    """The projection on those that are left, at right angles to all that were found."""
    total: int
    full: bool
    """Whether there may be more than the total, which cannot be told apart."""
    found: list[Found] = field(default_factory=list)
    tried: set[bytes] = field(default_factory=set)
    """Images that could not be repaired."""
    spent: int = 0
    """Evaluations of the codec."""
    at_find: int = 0
    """How many they were at the last find."""
    begun: int = 0
    """How many they were when all searches began, or began anew."""
    step: float = STEP
    given_up: bool = False

    @property
    def complete(self) -> bool:
        return len(self.found) >= self.total

    @property
    def closed(self) -> bool:
        """Whether what was found is surely all that there is."""
        return self.complete and not (self.full and all(one.outside > WITNESS for one in self.found))


class Search:
    """A search for all that B memories hold; its random numbers are the same every time."""

    def __init__(self, at: Retriever) -> None:
        self.at, self.frames = at, Frames.of(at.hyper, at.state)
        frames = self.frames
        wholes = (frames.codes @ frames.back).cpu()
        each = zip(wholes, frames.exact.distinct.tolist(), frames.full().tolist(), strict=True)
        self.boxes = [Box(whole, whole.clone(), total, full) for whole, total, full in each]
        self.generator = torch.Generator().manual_seed(0)
        self.shortest = SHORTEST
        if not self.at.binary:
            self.distrust()

    def distrust(self) -> None:
        """Give up memories where mixtures of images pass for images, as they do if a codec is nearly linear.

        Binary images are rounded, so that the code of a mixture is another one. Real-valued images may be mixed and
        decoded, and have the mixed code again: then nothing tells the stored ones. Proof: test_a_linear_codec_*.
        """
        mixed = self.fresh(MIXTURES)
        codes = self.at.encode(self.at.decode(mixed).mode()).z
        outside = fit(codes, self.frames.codes, self.frames.back)[1]
        # a mixture that becomes another code of the span, such as the nearest stored one, is no cause for doubt
        moved = (codes - mixed).norm(dim=-1) / mixed.norm(dim=-1).clamp(min=1e-12)
        passing = (outside < 2 * NEAR) & (moved < 2 * NEAR)
        for box, passed in zip(self.boxes, passing.double().mean(-1).tolist(), strict=True):
            box.given_up = box.total > 1 and passed > (PASS if box.total > FEW else PASS_FEW)

    def fresh(self, n: int) -> Float[Tensor, "B n C"]:
        """Random places to start from in every memory."""
        return torch.stack([self.random(number, n) for number in range(len(self.boxes))])

    def random(self, number: int, n: int) -> Float[Tensor, "n C"]:
        """Random codes of what is left in one memory."""
        codes = self.frames.codes[number]
        noise = torch.randn(n, len(codes), generator=self.generator).to(codes.dtype)
        return unit(noise @ self.boxes[number].left).to(codes) @ codes

    def run(
        self,
        z: Float[Tensor, "B N C"],
        budget: int,
        pull: Float[Tensor, "B N c h w"] | None = None,
        stuck: int | None = None,
    ) -> Iterator[None]:
        """Search from z, a round at a time, until all is found or the budget spent; `given_up` ends a memory's.

        pull: what cues say of each pixel, as logits; it counts in the first round, less and less. stuck: after so
        many evaluations without a find, a memory's searches begin anew.
        """
        z, active = z.clone(), self.active(budget)
        while active:
            z[active] = self.round(z[active], active, None if pull is None else pull[active])
            yield
            active, pull = self.active(budget), None
            for number in active:
                box = self.boxes[number]
                if stuck is not None and box.spent > max(box.at_find, box.begun) + stuck:
                    box.begun, box.step = box.spent, STEP if box.step < STEP else STEP / 2
                    z[number] = self.random(number, z.shape[1])

    def active(self, budget: int) -> list[int]:
        """The memories where there is something left to look for."""
        return [
            number
            for number, box in enumerate(self.boxes)
            if not (box.complete or box.given_up or box.spent >= budget)
        ]

    def round(
        self, z: Float[Tensor, "A N C"], active: list[int], pull: Float[Tensor, "A N c h w"] | None
    ) -> Float[Tensor, "A N C"]:
        """Some reflections in the memories that are still searched; those that come to something begin anew."""
        codes, back = self.frames.codes[active], self.frames.back[active]
        left = torch.stack([self.boxes[number].left for number in active]).to(z)
        step = z.new_tensor([self.boxes[number].step for number in active])[:, None, None]
        for number in range(ROUND):
            b = nearest(z @ back, left, self.shortest) @ codes
            likelihood = self.at.decode(2 * b - z)
            if pull is not None and isinstance(likelihood, Bernoulli):
                likelihood = Bernoulli(likelihood.logits + (1 - number / ROUND) * pull)
            x = likelihood.mode()
            tell("looking", x)
            z = z + step * (self.at.encode(x).z - b)
        likelihood = self.at.decode(nearest(z @ back, left, self.shortest) @ codes)
        x = likelihood.mode()
        for number in active:
            self.boxes[number].spent += z.shape[1] * (ROUND + 1)
        done = self.harvest(active, x, (likelihood.mean - x).abs())
        for i, number in enumerate(active):
            if which := done[i].nonzero()[:, 0].tolist():
                z[i, which] = self.random(number, len(which))
        return z

    def harvest(
        self, active: list[int], x: Float[Tensor, "A N c h w"], doubt: Float[Tensor, "A N c h w"]
    ) -> Bool[Tensor, "A N"]:
        """Take what is found out of the frames; says which searches are done."""
        u, outside = (
            a.cpu() for a in fit(self.at.encode(x).z, self.frames.codes[active], self.frames.back[active])
        )
        good = outside < (EXACT if self.at.binary else NEAR)
        for i, number in enumerate(active):
            self.take(number, x[i, good[i]], u[i, good[i]], outside[i, good[i]])
        broken = [(i, j) for i in range(len(active)) for j in self.hopeful(active[i], x[i], u[i], outside[i])]
        if broken and self.at.binary:
            rows, columns = (list(a) for a in zip(*broken, strict=True))
            numbers = [active[i] for i in rows]
            left = torch.stack([self.boxes[number].left for number in numbers])
            mended = self.repair(numbers, left, x[rows, columns], doubt[rows, columns])
            for number, *one in zip(numbers, *mended, strict=True):
                self.take(number, *(part[None] for part in one))
            x[rows, columns], u[rows, columns], outside[rows, columns] = mended[0], mended[1], mended[2]
        known = torch.stack([self.known(self.boxes[number], u[i]) for i, number in enumerate(active)])
        return known & (outside < HOPE)

    def hopeful(
        self, number: int, x: Float[Tensor, "N c h w"], u: Float[Tensor, "N K"], outside: Float[Tensor, "N"]
    ) -> list[int]:
        """The nearest images that are worth repairing, each of another code, and none a second time."""
        box, chosen = self.boxes[number], list[int]()
        wanted = (outside < HOPE) & ~self.known(box, u)
        alike = (unit(u) @ unit(u).mT).abs() > SAME
        for i in outside.argsort().tolist():
            if len(chosen) == min(REPAIRS, box.total - len(box.found)):
                break
            if not wanted[i] or alike[i, chosen].any() or (key := x[i].cpu().numpy().tobytes()) in box.tried:
                continue
            box.tried.add(key)
            chosen.append(i)
        return chosen

    def known(self, box: Box, u: Float[Tensor, "n K"]) -> Bool[Tensor, "n"]:
        """Which vectors are mostly ones that were found already."""
        if not box.found:
            return torch.zeros(len(u), dtype=torch.bool)
        return ((unit(u) @ torch.stack([one.u for one in box.found]).mT).abs() > SAME).any(-1)

    def take(
        self, number: int, x: Float[Tensor, "n c h w"], u: Float[Tensor, "n K"], outside: Float[Tensor, "n"]
    ) -> None:
        """Note those of the images that are near enough and new, the nearest first."""
        box = self.boxes[number]
        for i in outside.argsort().tolist():
            # what is left when all others are known has one direction, which tells the last image by itself
            last = box.total == len(box.found) + 1 and float((unit(u[i]) @ box.left).norm()) > 0.9
            if float(outside[i]) < (LAST if last else NEAR) and not (box.complete or self.known(box, u[i : i + 1])):
                self.add(number, x[i], u[i], float(outside[i]))

    def add(self, number: int, x: Float[Tensor, "c h w"], u: Float[Tensor, "K"], outside: float) -> None:
        """Note a stored image that is new, and search at right angles to it from now on."""
        self.keep(number, x, u, outside)
        tell("found", x)
        self.boxes[number].at_find = self.boxes[number].spent

    def keep(self, number: int, x: Float[Tensor, "c h w"], u: Float[Tensor, "K"], outside: float) -> None:
        """Put an image with those that were found, and its direction out of what is left."""
        box = self.boxes[number]
        v = unit(u @ box.left)
        box.found.append(Found(v, x, outside))
        box.left = box.left - v[:, None] * v

    def tell(self, x: Float[Tensor, "n c h w"]) -> None:
        """Note images that are known to be in the first memory; one that is not is an error."""
        u, outside = fit(self.at.encode(x).z, self.frames.codes[0], self.frames.back[0])
        if others := int((~(outside < HOPE)).sum()):
            why = "usual cause: contents of another memory, or of this one before something was forgotten"
            raise ValueError(f"contents: expected images that are in the memory, got {others} others ({why})")
        for one, vector, far in zip(x, u.cpu(), outside.tolist(), strict=True):
            if not self.known(self.boxes[0], vector[None]):
                self.add(0, one, vector, far)

    def cost(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n"]:
        """½ ‖z − uᵀF‖² / noise_var for the codes z of images of the first memory and the nearest uᵀF."""
        z = self.at.encode(x).z
        whole = self.boxes[0].whole.to(z)
        target = nearest(z @ self.frames.back[0], whole) @ self.frames.codes[0]
        return (z - target).square().sum(-1) / (2 * self.at.hyper.noise_var)

    def repair(
        self,
        numbers: list[int],
        left: Float[Tensor, "n K K"],
        x: Float[Tensor, "n c h w"],
        doubt: Float[Tensor, "n c h w"],
        beam: int = BEAM,
        tries: int = TRIES,
    ) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n K"], Float[Tensor, "n"]]:
        """Change pixels of binary images so that their codes come nearer to what is left of their memories' frames.

        Beam searches, side by side. Tried are the pixels that the gradient promises most of, and those that the
        decoder was least sure of, until an image is exact or two changes have led no nearer. Gives the images whose
        codes are nearest to the span, their vectors, and how near.
        """
        frame = self.frames.codes[numbers], self.frames.back[numbers]
        u, outside = (a[:, 0] for a in fit(self.at.encode(x[:, None]).z, *frame))
        best, spent, far = x.clone(), torch.zeros_like(outside), torch.full_like(outside, torch.inf)
        unsure = doubt.flatten(1).topk(min(tries, doubt[0].numel())).indices
        pool, here = x[:, None], torch.arange(len(x), device=x.device)
        broken = Broken(here, *frame, left.to(x), unsure, pool, names(pool), far, torch.zeros_like(here))
        for _ in range(CHANGES):
            pool = changed(broken.pool, self.promising(broken))
            tell("looking", broken.pool)
            called = names(pool)
            new = ~again(called, broken.seen)
            z = pool.new_zeros(*new.shape, self.frames.codes.shape[-1])
            z[new] = self.at.encode(pool[new]).z
            distance = broken.away(z).masked_fill(~new, torch.inf)
            vectors, away = fit(z, broken.codes, broken.back)
            away, i = away.masked_fill(~new, torch.inf).min(-1)
            better = away < outside[broken.place]
            to, at = broken.place[better], (better.nonzero()[:, 0], i[better])
            best[to], u[to], outside[to] = pool[at], vectors[at], away[better]
            spent[broken.place] += new.sum(-1) // 2 + 2  # half of it is the encoder's
            nearer, order = distance.amin(-1), distance.topk(min(beam, new.shape[-1]), largest=False).indices
            broken = broken._replace(
                pool=pool.take_along_dim(order[..., None, None, None], 1),
                seen=torch.cat([broken.seen, called], -1),
                far=torch.minimum(nearer, broken.far),
                idle=torch.where(nearer < broken.far, 0, broken.idle + 1),
            )
            broken = broken.some((outside[broken.place] > EXACT) & (broken.idle < 2))
            if not len(broken.place):
                break
        for number, cost in zip(numbers, spent.tolist(), strict=True):
            self.boxes[number].spent += int(cost)
        return best, u.cpu(), outside.cpu()

    @torch.enable_grad()
    def promising(self, broken: "Broken") -> Int64[Tensor, "n p m"]:
        """The pixels to change in each image of the pools."""
        pool = broken.pool.clone().requires_grad_()
        (slope,) = torch.autograd.grad(broken.away(self.at.encode(pool).z).sum(), pool)
        gain = (slope * (1 - 2 * broken.pool)).flatten(2)
        steep = gain.topk(broken.unsure.shape[-1], largest=False).indices
        return torch.cat([steep, broken.unsure[:, None].expand_as(steep)], -1)

    def everything(self) -> Iterator[int]:
        """Search the first memory until all of it is found and exact, or the budget spent; gives how many are.

        What is near to an image is near to its direction only, and hides a part of those that are left. So images
        that are not exact are dropped, and looked for again in what the exact ones leave, while some are missing or
        more of them become exact.
        """
        box, binary, best, exact = self.boxes[0], self.at.binary, list[Found](), -1
        while True:
            for _ in self.run(self.fresh(2 * STARTS), BUDGET, stuck=STUCK):
                yield max(len(box.found), len(best))
                stuck = box.spent > box.at_find + 2 * STUCK
                if binary and stuck and any(one.outside > EXACT for one in box.found):
                    break
            while self.mend(None, LAST_BEAM, LAST_TRIES):
                pass
            sharp = [one for one in box.found if one.outside <= EXACT]
            best = max(best, box.found, key=lambda found: (len(found), sum(one.outside <= EXACT for one in found)))
            better, exact = len(sharp) > exact, max(len(sharp), exact)
            missing = not box.complete or (better and len(sharp) < len(box.found))
            if not (binary and missing and box.spent < BUDGET):
                box.found = best
                return
            # their directions were taken at right angles to those of images that are dropped
            box.found, box.left, box.tried, box.at_find = [], box.whole.clone(), set(), box.spent
            if sharp:
                x = torch.stack([one.x for one in sharp])
                u, outside = fit(self.at.encode(x).z, self.frames.codes[0], self.frames.back[0])
                for part in zip(x, u.cpu(), outside.tolist(), strict=True):
                    self.keep(0, *part)

    def mend(self, hints: list[Tensor] | None = None, beam: int = BEAM, tries: int = TRIES) -> bool:
        """Try again to make every image exact: with all others known, its code is confined to what they leave.

        hints: for each memory, what cues say of the pixels of each of its images, (n, c, h, w), as logits. beam,
        tries: the images kept in a repair, and the pixels tried of each, twice. Says whether any came nearer.
        """
        each = [
            (n, i) for n, box in enumerate(self.boxes) for i, one in enumerate(box.found) if one.outside > EXACT
        ]
        if not (each and self.at.binary):
            return False
        numbers, ones = [number for number, _ in each], [self.boxes[number].found[i] for number, i in each]
        left, codes = torch.stack([self.without(*one) for one in each]), self.frames.codes[numbers]
        u, x = torch.stack([one.u for one in ones])[:, None], torch.stack([one.x for one in ones])
        read = self.at.decode((unit(u @ left).to(codes) @ codes)[:, 0])
        if hints is not None and isinstance(read, Bernoulli):
            read = Bernoulli(read.logits + torch.stack([hints[number][i] for number, i in each]))
            x = read.mode()
        repaired = self.repair(numbers, left, x, (read.mean - x).abs(), beam, tries)
        nearer = False
        for (number, i), space, image, vector, outside in zip(each, left, *repaired, strict=True):
            if float(outside) < self.boxes[number].found[i].outside:
                self.boxes[number].found[i] = Found(unit(vector @ space), image, float(outside))
                nearer = True
        return nearer

    def without(self, number: int, i: int) -> Float[Tensor, "K K"]:
        """The projection on what all that was found in a memory, but for one, leaves."""
        box = self.boxes[number]
        return box.whole - sum((one.u[:, None] * one.u for j, one in enumerate(box.found) if j != i), 0 * box.whole)


class Broken(NamedTuple):
    """Images in repair, and the beams of their searches."""

    place: Int64[Tensor, "n"]
    """Which of all."""
    codes: Float[Tensor, "n K C"]
    back: Float[Tensor, "n C K"]
    left: Float[Tensor, "n K K"]
    unsure: Int64[Tensor, "n t"]
    """The pixels that the decoder was least sure of."""
    pool: Float[Tensor, "n p c h w"]
    seen: Float[Tensor, "n s"]
    """The names of all that was tried."""
    far: Float[Tensor, "n"]
    """The least distance up to now."""
    idle: Int64[Tensor, "n"]
    """Changes since then."""

    def some(self, which: Bool[Tensor, "n"]) -> "Broken":
        return Broken(*(part[which] for part in self))

    def away(self, z: Float[Tensor, "n p C"]) -> Float[Tensor, "n p"]:
        """How far codes are from what is left."""
        return (z - nearest(z @ self.back, self.left) @ self.codes).norm(dim=-1) / z.norm(dim=-1).clamp(min=1e-12)


def names(x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b"]:
    """Numbers by which binary images are told apart; whole, so that no order of summation changes them."""
    each = torch.randint(2**40, x.shape[-3:], generator=torch.Generator().manual_seed(0)).double()
    return x.double().flatten(-3) @ each.flatten().to(x.device)


def again(called: Float[Tensor, "n p"], seen: Float[Tensor, "n s"]) -> Bool[Tensor, "n p"]:
    """Which names were seen already, or come earlier among the same."""
    twice = (called[:, :, None] == called[:, None]).tril(-1).any(-1)
    return twice | (called[:, :, None] == seen[:, None]).any(-1)


def nearest(
    u: Float[Tensor, "*b N K"], left: Float[Tensor, "*b K K"], shortest: float = SHORTEST
) -> Float[Tensor, "*b N K"]:
    """The nearest vector that a code can have: in what is left, and neither longer than 1 nor too short."""
    u = u @ left
    length = u.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return u * (length.clamp(shortest, 1) / length)


def unit(u: Float[Tensor, "*b K"]) -> Float[Tensor, "*b K"]:
    return u / u.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def changed(x: Float[Tensor, "n p c h w"], which: Int64[Tensor, "n p m"]) -> Float[Tensor, "n pm c h w"]:
    """Binary images with one pixel changed, each of `which`."""
    flat = x.flatten(2)[:, :, None].repeat(1, 1, which.shape[-1], 1)
    flat.scatter_(3, which[..., None], 1 - flat.gather(3, which[..., None]))
    return flat.reshape(len(x), -1, *x.shape[2:])
