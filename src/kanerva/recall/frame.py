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
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .. import checks, memory
from ..likelihood import Bernoulli
from ..memory import MemoryState
from .reader import check_memory
from .search import average, likely

if TYPE_CHECKING:
    from ..models.dkm import DKM

# An image was written if its code is this near to the span of all that was, relative to its length. Stored images:
# at most 3e-5 with fewer codes than rows (31 of 32), 3e-3 with as many, 1.5e-2 after half of 31 were forgotten. One
# pixel of a stored image changed: at least 0.035.
EXACT = 2e-2
# In a full memory, which may hold one code more, it must be nearer, for its count to be right.
EXACT_FULL = 6e-4
# And this near, to show that a full memory holds no more codes than rows, so that all other images are known too.
# 33 codes in 32 rows: 0.6 % of 2,112 came below 6e-4, the nearest to 3.9e-5. 32 codes: most are below 1e-6.
WITNESS = 1e-5
# An image this near is a stored one but for a few pixels, where repairing does not make it exact. Nothing false was
# seen below 0.2.
NEAR = 0.12
# Candidates farther away than this are not worth repairing.
HOPE = 0.3
# The step β of the search: 0.35 and 0.7 find a fifth less in the same time.
STEP = 0.5
# Reflections between two looks at what they have come to.
ROUND = 20
# Searches that go on side by side in one memory.
STARTS = 48
# Shortest vector u of a code: one that was written six times.
SHORTEST = 0.4
# Evaluations of the codec in one memory after which a search ends. 32 images in 32 rows take 10 to 30 thousand.
BUDGET = 60_000
# The same for recall, which has another way where this one does not lead to all cues' images.
RECALL = 30_000
# Evaluations after which recall gives up where nothing was found.
TRIAL = 1_500
# Evaluations without a find after which it gives up where something was. 32 images in 32 rows, 8 cues, 30 % flips:
# at most 3.5 thousand between two finds.
PATIENCE = 6_000
# With fewer cues than this, random starts go along with them.
LEAST = 16
# The least probability of an answer that is certified.
SURE = 0.999
# So many other images must be known before one can be said to stand out.
ENOUGH = 5


class Contents(NamedTuple):
    """What was found in a memory without a cue."""

    x: Float[Tensor, "n c h w"]
    cost: Float[Tensor, "n"]
    """½ ‖encoder(x) − uᵀF‖² / noise_var, how far an image's code is from all that could have been written, in nats:
    next to nothing where x is the stored image to the last pixel."""


class Frames(NamedTuple):
    """A model, and the frames of B memories that it has written."""

    model: "DKM"
    codes: Float[Tensor, "B K C"]
    """F, in the model's precision."""
    back: Float[Tensor, "B C K"]
    """F⁺: u = z F⁺."""
    exact: memory.Frame
    exact_back: Float[Tensor, "B C K"]
    """F and F⁺ as they were computed, in float64."""

    @classmethod
    def of(cls, model: "DKM", state: MemoryState) -> "Frames":
        """The frames of memories with one batch axis."""
        exact = memory.frame(state, model.R0, model.prior_var, model.noise_var)
        finite = exact.codes.nan_to_num(0)
        back = torch.linalg.pinv(finite, rtol=1e-7)  # rows that rounding has left of zeros do not count
        return cls(model, finite.to(model.like), back.to(model.like), exact, back)

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


@checks.full_precision
@torch.no_grad()
def contains(model: "DKM", state: MemoryState, x: Float[Tensor, "*cues Q c h w"]) -> Int64[Tensor, "*b Q"]:
    """How often each image was written, 0 for never; −1 where the memory cannot know.

    Written m times, a code has a vector of length 1/√m. With as many different codes as rows (or numbers in a code)
    there may be more, and nothing need fit: then only images that do fit are known, and where one fits to the last
    digits (WITNESS), all are. Proof: test_contains_*.
    """
    flat, z, batch = opened(model, state, x)
    return count(Frames.of(model, flat), z).reshape(*batch, x.shape[-4])


def count(frames: Frames, z: Float[Tensor, "B Q C"]) -> Int64[Tensor, "B Q"]:
    """`contains` for codes."""
    u, outside = fit(z, frames.codes, frames.back)
    times = (1 / u.square().sum(-1).clamp(min=1e-6)).round().long().clamp(min=1)
    full = frames.full()[:, None]
    there = outside < torch.where(full, EXACT_FULL, EXACT)
    witness = (outside < WITNESS).any(-1, keepdim=True)
    unclear = full & ~there & ~(witness & (outside > EXACT))
    blind = frames.lost() | (frames.exact.distinct >= z.shape[-1])  # a span of the whole space holds every code
    unknown = blind[:, None] | unclear
    return torch.where(unknown, -1, torch.where(there, times, 0))


@checks.full_precision
@torch.no_grad()
def forget(model: "DKM", state: MemoryState, x: Float[Tensor, "*b Q c h w"]) -> MemoryState:
    """The memory without these images, however often each was written; an image that is not there is an error.

    An image's vector u gives its weight back, so that `memory.forget` can take it out. Copies of an image leave
    something in the frame that no code lies in: it goes with the images if all of it can be theirs. Where nothing
    else was written, the prior is left. Passes no gradients. Proof: test_forgetting_*.
    """
    flat, z, batch = opened(model, state, x)
    frames = Frames.of(model, flat)
    times = count(frames, z)
    if bool((times < 1).any()):
        where = [tuple(index) for index in (times < 1).reshape(*batch, -1).nonzero().tolist()]
        why = (
            "a memory of as many codes as rows, or more, cannot tell"
            if bool((times < 0).any())
            else "never written"
        )
        raise ValueError(f"x: expected images that are in the memory, got {len(where)} others ({why}): {where[:5]}")
    if times.numel():
        vectors = unit(z.double() @ frames.exact_back)
        each = zip(*flat, zip(*frames.exact, strict=True), vectors, times, strict=True)
        made = [without(model, MemoryState(R, U), memory.Frame(*frame), *rest) for R, U, frame, *rest in each]
        flat = MemoryState(*(torch.stack(part) for part in zip(*made, strict=True)))
    return MemoryState(*(part.reshape(*batch, *part.shape[-2:]) for part in flat))


def without(
    model: "DKM",
    state: MemoryState,
    frame: memory.Frame,
    u: Float[Tensor, "Q K"],
    times: Int64[Tensor, "Q"],
) -> MemoryState:
    """One memory without the codes of these vectors of length 1, each written so many times."""
    same = (u @ u.mT).abs() > 0.5
    first = same.int().argmax(-1) == torch.arange(len(u), device=u.device)  # who asks twice is counted once
    u, copies = u[first], int(times[first].sum())
    distinct, more = int(frame.distinct), int(frame.rank - frame.distinct)
    if len(u) == distinct:
        return model.prior()
    out = torch.linalg.qr(u.mT).Q.mT
    if 0 < more <= copies - len(u):
        left, _, _ = torch.linalg.svd(frame.codes[: int(frame.rank)])
        out = torch.cat([out, torch.nn.functional.pad(left[:, distinct:].mT, (0, len(frame.codes) - len(left)))])
    w, codes = (out @ frame.weights).to(state.R), (out @ frame.codes).to(state.R)
    return memory.forget(state, w, codes, model.noise_var)


@checks.full_precision
def contents(model: "DKM", state: MemoryState, callback: Callable[[int, int], None] | None = None) -> Contents:
    """All images of one memory, found without a cue; the same ones every time.

    callback: called now and then with the number found and the number of different codes that there are. Fewer are
    found rather than a false one. Cost: about 150 evaluations of encoder and decoder for each of 8 images, 600 for
    each of 32 in 32 rows. Proof: test_contents_*.
    """
    check_memory(model, state)
    if state.R.ndim != 2 or state.U.ndim != 2:
        raise ValueError(f"state: expected one memory, R of shape (K, C), got {tuple(state.R.shape)}")
    with checks.deep_checks(False), torch.inference_mode(False), torch.no_grad():
        frames = Frames.of(model, MemoryState(*(part.clone()[None] for part in state)))
        search = Search(frames)
        total = int(frames.exact.distinct)
        for _ in search.run(search.fresh(STARTS), BUDGET):
            if callback is not None:
                callback(len(search.boxes[0].found), total)
        found = [one.x for one in search.boxes[0].found]
        x = torch.stack(found) if found else model.like.new_zeros(0, *model.config.image)
        return Contents(x, search.cost(x))


class Recognised(NamedTuple):
    """Stored images that explain cues."""

    x: Float[Tensor, "B Q c h w"]
    there: Bool[Tensor, "B Q"]
    """Where there is such an image; elsewhere x is none."""
    certified: Bool[Tensor, "B Q"]
    """Where x is a stored image to the last pixel, and surely the one that the cue is of."""


def recognise(
    frames: Frames,
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
    search = Search(frames)
    good = torch.ones_like(y) if mask is None else mask
    if known is not None:
        search.tell(known)
        search.boxes[0].given_up = bool(answer(search.boxes[0], y[0], good[0]).there.all())
    if search.active(RECALL):
        look_for(search, y, mask, good)
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
    sharp = likely(y, mask, search.model.config.binary)[0][:, some]
    more = STARTS - sharp.shape[1] if sharp.shape[1] < LEAST else 0
    starts = torch.cat([search.model.encode(sharp), search.fresh(more)], 1)
    pull = odds(y[:, some], sharp, good[:, some]) if search.model.config.binary else None
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


def answer(box: "Box", y: Float[Tensor, "Q c h w"], trusted: Float[Tensor, "Q c h w"]) -> Recognised:
    """The nearest of what was found in one memory, where it explains a cue or nothing else is left."""
    if not box.found:
        nothing = torch.zeros(len(y), dtype=torch.bool, device=y.device)
        return Recognised(torch.zeros_like(y), nothing, nothing)
    x = torch.stack([one.x for one in box.found])
    distance = apart(y, x, trusted)
    which = distance.argmin(-1)
    exact = torch.tensor([one.outside < EXACT for one in box.found], device=y.device)[which]
    there = torch.ones_like(exact) if box.closed else explained(y, x[which], trusted, distance)
    return Recognised(x[which], there, there & exact & sure(distance, trusted.flatten(1).sum(-1)))


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

    Of others a cue is much farther away: by three standard deviations of the other distances. And bits of a binary
    image differ no more often where it is 1 than where it is 0, by two standard errors.
    """
    others = distance.sort(-1).values[:, 1:]
    if others.shape[1] < ENOUGH:
        return torch.zeros(len(y), dtype=torch.bool, device=y.device)
    alone = distance.amin(-1) < others.mean(-1) - 3 * others.std(-1)
    wrong = (y - x).abs() * trusted
    total, ink, paper = (a.flatten(1).sum(-1) for a in (wrong, x * trusted, (1 - x) * trusted))
    on_ink = (wrong * x).flatten(1).sum(-1)
    share = (total + 1) / (ink + paper + 2)
    error = (share * (1 - share) * (1 / ink.clamp(min=1) + 1 / paper.clamp(min=1))).sqrt()
    even = on_ink / ink.clamp(min=1) - (total - on_ink) / paper.clamp(min=1) < 2 * error
    binary = ((x == 0) | (x == 1)).flatten(1).all(-1)
    return alone & (even | ~binary)


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

    def __init__(self, frames: Frames) -> None:
        self.frames, self.model = frames, frames.model
        wholes = (frames.codes @ frames.back).cpu()
        each = zip(wholes, frames.exact.distinct.tolist(), frames.full().tolist(), strict=True)
        self.boxes = [Box(whole, whole.clone(), total, full) for whole, total, full in each]
        self.generator = torch.Generator().manual_seed(0)

    def fresh(self, n: int) -> Float[Tensor, "B n C"]:
        """Random places to start from in every memory."""
        return torch.stack([self.random(number, n) for number in range(len(self.boxes))])

    def random(self, number: int, n: int) -> Float[Tensor, "n C"]:
        """Random codes of what is left in one memory."""
        codes = self.frames.codes[number]
        noise = torch.randn(n, len(codes), generator=self.generator).to(codes.dtype)
        return unit(noise @ self.boxes[number].left).to(codes) @ codes

    def run(
        self, z: Float[Tensor, "B N C"], budget: int, pull: Float[Tensor, "B N c h w"] | None = None
    ) -> Iterator[None]:
        """Search from z, a round at a time, until all is found or the budget spent; `given_up` ends a memory's.

        pull: what cues say of each pixel, as logits; it counts in the first round, less and less.
        """
        z, active = z.clone(), self.active(budget)
        while active:
            z[active] = self.round(z[active], active, None if pull is None else pull[active])
            yield
            active, pull = self.active(budget), None
        self.mend()

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
        """Some reflections in the memories that are still searched, and what they have come to."""
        codes, back = self.frames.codes[active], self.frames.back[active]
        left = torch.stack([self.boxes[number].left for number in active]).to(z)
        for number in range(ROUND):
            b = nearest(z @ back, left) @ codes
            likelihood = self.model.decode(2 * b - z)
            if pull is not None and isinstance(likelihood, Bernoulli):
                likelihood = Bernoulli(likelihood.logits + (1 - number / ROUND) * pull)
            z = z + STEP * (self.model.encode(likelihood.mode()) - b)
        likelihood = self.model.decode(nearest(z @ back, left) @ codes)
        x = likelihood.mode()
        doubt = (likelihood.mean - x).abs()
        u, outside = (a.cpu() for a in fit(self.model.encode(x), codes, back))
        for i, number in enumerate(active):
            self.boxes[number].spent += z.shape[1] * (ROUND + 1)
            done = self.harvest(number, x[i], u[i], outside[i], doubt[i])
            if done:
                z[i, done] = self.random(number, len(done))
        return z

    def harvest(
        self,
        number: int,
        x: Float[Tensor, "N c h w"],
        u: Float[Tensor, "N K"],
        outside: Float[Tensor, "N"],
        doubt: Float[Tensor, "N c h w"],
    ) -> list[int]:
        """Take what is found out of the frame; says which searches are done, and may begin anew."""
        box, done, repairs = self.boxes[number], [], 0
        for i in outside.argsort().tolist():
            if float(outside[i]) > HOPE or box.complete:
                break
            one, vector, far = x[i], u[i], float(outside[i])
            if not self.known(box, vector) and far > EXACT and self.model.config.binary:
                if (key := one.cpu().numpy().tobytes()) in box.tried or repairs == 4:
                    continue
                box.tried.add(key)
                repairs += 1
                one, vector, far = self.repair(number, box.left, one, doubt[i])
            known = self.known(box, vector)
            if far < NEAR and not known:
                self.add(number, one, vector, far)
            if far < NEAR or known:
                done.append(i)
        return done

    def known(self, box: Box, u: Float[Tensor, "K"]) -> bool:
        """Whether a vector is mostly one that was found already."""
        return any(abs(float(unit(u) @ one.u)) > 0.6 for one in box.found)

    def add(self, number: int, x: Float[Tensor, "c h w"], u: Float[Tensor, "K"], outside: float) -> None:
        """Note a stored image, and search at right angles to it from now on."""
        box = self.boxes[number]
        v = unit(u @ box.left)
        box.found.append(Found(v, x, outside))
        box.at_find = box.spent
        box.left = box.left - v[:, None] * v

    def tell(self, x: Float[Tensor, "n c h w"]) -> None:
        """Note images that are known to be in the first memory; one that is not is an error."""
        u, outside = fit(self.model.encode(x), self.frames.codes[0], self.frames.back[0])
        if others := int((~(outside < HOPE)).sum()):
            why = "usual cause: contents of another memory, or of this one before something was forgotten"
            raise ValueError(f"contents: expected images that are in the memory, got {others} others ({why})")
        for one, vector, far in zip(x, u.cpu(), outside.tolist(), strict=True):
            if not self.known(self.boxes[0], vector):
                self.add(0, one, vector, far)

    def cost(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n"]:
        """½ ‖z − uᵀF‖² / noise_var for the codes z of images of the first memory and the nearest uᵀF."""
        z = self.model.encode(x)
        whole = self.boxes[0].whole.to(z)
        target = nearest(z @ self.frames.back[0], whole) @ self.frames.codes[0]
        return (z - target).square().sum(-1) / (2 * self.model.noise_var)

    def repair(
        self, number: int, left: Float[Tensor, "K K"], x: Float[Tensor, "c h w"], doubt: Float[Tensor, "c h w"]
    ) -> tuple[Float[Tensor, "c h w"], Float[Tensor, "K"], float]:
        """Change pixels of a binary image so that its code comes nearer to what is left of the frame.

        A beam search. Tried are the pixels that the gradient promises most of, and those that the decoder was least
        sure of. Gives the image whose code is nearest to the span, its vector, and how near.
        """
        codes, back, box = self.frames.codes[number], self.frames.back[number], self.boxes[number]
        left = left.to(codes)

        def apart(z: Float[Tensor, "n C"]) -> Float[Tensor, "n"]:
            return (z - nearest(z @ back, left) @ codes).norm(dim=-1) / z.norm(dim=-1)

        def judged(pool: Float[Tensor, "n c h w"]) -> tuple[Tensor, Tensor, Tensor]:
            z = self.model.encode(pool)
            return apart(z), *fit(z, codes, back)

        beam, tries, most = 4, 12, 8
        pool = x[None]
        _, u, outside = judged(pool)
        best, vector, far = x, u[0], float(outside[0])
        unsure = doubt.flatten().topk(min(tries, doubt.numel())).indices
        seen = {x.cpu().numpy().tobytes()}
        for _ in range(most):
            with torch.enable_grad():
                here = pool.clone().requires_grad_()
                (slope,) = torch.autograd.grad(apart(self.model.encode(here)).sum(), here)
            gain = (slope * (1 - 2 * pool)).flatten(1)
            which = torch.cat([gain.topk(len(unsure), largest=False).indices, unsure.expand(len(pool), -1)], 1)
            pool = changed(pool, which)
            new = [i for i, image in enumerate(pool.cpu().numpy()) if image.tobytes() not in seen]
            if not new:
                break
            pool = pool[new]
            seen |= {image.tobytes() for image in pool.cpu().numpy()}
            distance, u, outside = judged(pool)
            box.spent += len(pool) // 2 + 2  # half of it is the encoder's
            i = int(outside.argmin())
            if float(outside[i]) < far:
                best, vector, far = pool[i], u[i], float(outside[i])
            if far < EXACT:
                break
            pool = pool[distance.argsort()[:beam]]
        return best, vector.cpu(), far

    def mend(self) -> None:
        """Try again to make every image exact: with all others known, its code is confined to what they leave."""
        if not self.model.config.binary:
            return
        for number, box in enumerate(self.boxes):
            for i, one in enumerate(box.found):
                if one.outside < EXACT:
                    continue
                others = [other.u[:, None] * other.u for j, other in enumerate(box.found) if j != i]
                left = box.whole - torch.stack(others).sum(0) if others else box.whole
                codes = self.frames.codes[number]
                likelihood = self.model.decode(unit(one.u @ left)[None].to(codes) @ codes)
                doubt = (likelihood.mean - one.x).abs()[0]
                x, u, outside = self.repair(number, left, one.x, doubt)
                if outside < one.outside:
                    box.found[i] = Found(unit(u @ left), x, outside)


def nearest(u: Float[Tensor, "*b N K"], left: Float[Tensor, "*b K K"]) -> Float[Tensor, "*b N K"]:
    """The nearest vector that a code can have: in what is left, and neither longer than 1 nor too short."""
    u = u @ left
    length = u.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return u * (length.clamp(SHORTEST, 1) / length)


def unit(u: Float[Tensor, "*b K"]) -> Float[Tensor, "*b K"]:
    return u / u.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def changed(x: Float[Tensor, "n c h w"], which: Int64[Tensor, "n m"]) -> Float[Tensor, "nm c h w"]:
    """Binary images with one pixel changed, each of `which`."""
    flat = x.flatten(1)[:, None].repeat(1, which.shape[1], 1)
    flat.scatter_(2, which[..., None], 1 - flat.gather(2, which[..., None]))
    return flat.reshape(-1, *x.shape[1:])


def opened(
    model: "DKM", state: MemoryState, x: Float[Tensor, "*cues Q c h w"]
) -> tuple[MemoryState, Float[Tensor, "B Q C"], tuple[int, ...]]:
    """Memories and the codes of images, both with one batch axis, and the batch axes that they have together."""
    check_memory(model, state)
    model.check_images(x, "Q")
    batches = {"state": torch.broadcast_shapes(state.R.shape[:-2], state.U.shape[:-2]), "x": x.shape[:-4]}
    checks.broadcastable(batches)
    batch = torch.broadcast_shapes(*batches.values())
    R, U, z = (a.expand(1, *batch, *a.shape[-2:]).flatten(0, -3) for a in (*state, model.encode(x)))
    return MemoryState(R, U), z, batch
