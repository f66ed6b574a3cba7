"""Inside: what a memory knows of itself: which images it holds, how often, and all of them without a cue.

A memory of up to K codes gives them away up to one rotation (`recall.frame`). Here its answers are compared with
what was written, for more and more images, up to and beyond the K rows. Truth is decided by pixels: an image counts
as written as often as one that is equal to it was.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .. import checks
from ..data import ClassImages, damage
from ..memory import MemoryState
from ..models import DKM, Model, Recall
from ..recall.frame import EXACT, Frames, fit
from ..support.pixels import LEVEL
from . import base
from .base import Experiment, Subject
from .basins import NEAR
from .denoising import Cell, hits, noisy, rises
from .tables import Share, Table, point

MOST = 5
"""The most often that an image is written."""
AT_ONCE = 4
"""Memories that recall works on at once: with 32 cues each, what two cores do best with."""
REMOVED = 4
"""Images of each memory that are forgotten, one at a time."""
COLUMNS = 8
"""Images in a row of the picture."""
INSIDE = {"inside": True, "alone": False}
"""Recall that looks into the memory, and recall that infers weights from each cue alone."""


class Asked(NamedTuple):
    """Images for B memories, the longest first; shorter episodes are the beginnings of these."""

    stored: Float[Tensor, "B T c h w"]
    pixel: Float[Tensor, "B T c h w"]
    """Stored images with one pixel changed."""
    drawing: Float[Tensor, "B T c h w"] | None
    """Another image of each one's class; None where classes have one image."""
    other: Float[Tensor, "B T c h w"]
    """Images of other classes."""

    def kinds(self) -> list[str]:
        return [name for name, x in self._asdict().items() if x is not None]


@dataclass(frozen=True, kw_only=True)
class Inside(Experiment):
    """Compare what a memory says of itself, and finds in itself without a cue, with what was written."""

    episodes: int = 8
    """Memories; the spread is over them."""
    loads: tuple[int, ...] = (*range(1, 33), 33, 36, 40, 48)
    """Images in each memory, where it is asked whether images were written."""
    counted: tuple[int, ...] = (5, 8, 16, 24, 28, 31)
    """Different images in each memory, where it is asked how often; five are written 1 to 5 times, others once."""
    searched: tuple[int, ...] = (8, 16, 24, 32)
    """Images in each memory, where it is searched without a cue, and where one is forgotten."""
    length: int = 32
    """Images in each memory, where cues are recalled."""
    flips: tuple[float, ...] = (0.15, 0.3, 0.35)
    """Binary images: shares of bits to flip."""
    noises: tuple[float, ...] = (0.15, 0.3)
    """Other images: standard deviations of noise to add."""
    sides: tuple[str, ...] = ("left", "right", "top", "bottom")
    """Halves of images to lose."""
    steps: int = 15
    """Steps of recall."""

    NAME: ClassVar[str] = "inside"
    TITLE: ClassVar[str] = "Looking into a memory"
    ABOUT: ClassVar[str] = (
        "A memory that holds no more images than it has rows gives all of them away, up to one rotation of their "
        "codes. So it can be asked whether an image was written, and how often; an image can be taken out again; "
        "all images can be found without any cue; and recall can end at the stored image itself. Here each answer "
        "is compared with what was written, as more and more is. With more images than rows a memory cannot know, "
        "and must say so."
    )
    FIGURES: ClassVar[dict[str, str]] = {
        "picture": "Images that were written into one memory, all that is kept of them, and what "
        "was found in it without any cue, in the order of the first; what was not found is left blank.",
        "recognition": "Whether an image was written: wrong answers, and memories that cannot know, against the "
        "number of images in memory; and how far codes are from the span of all that was written, from the "
        "nearest to the farthest, with the median as a line. Below the dashed line is taken for written.",
        "counts": "How often images were written, as the memory says before it is rounded, from the least to the "
        "most; and wrong pixels when one image is forgotten: of the others, and of the one, beside a memory "
        "that never had it.",
        "contents": "What is found in a memory without a cue, and what it costs, against the number of images.",
        "recall": "Recall that looks into the memory, and recall that infers weights from each cue alone.",
    }
    NEEDS: ClassVar[str | None] = "dkm"
    SMOKE: ClassVar[dict[str, Any]] = {
        "episodes": 2,
        "loads": (1, 3, 6),
        "counted": (3,),
        "searched": (3,),
        "length": 3,
        "flips": (0.15,),
        "noises": (0.15,),
        "sides": ("left",),
        "steps": 2,
    }

    def __post_init__(self) -> None:
        # of one image, nothing is left to compare with once it is forgotten
        least = {"episodes": 1, "loads": 1, "counted": 1, "searched": 2, "length": 1, "steps": 1}
        checks.fields(self, flips=0, noises=0, **least)
        if max(self.flips) > 1:
            raise ValueError(f"flips: expected shares of at most 1, got {self.flips}")

    def rounds(self, model: Model) -> int:
        cells = len(self.flips if model.config.binary else self.noises) + len(self.sides)
        parts = -(-self.episodes // AT_ONCE)
        return 2 + len(self.loads) + len(self.searched) * self.episodes + 2 * cells * parts

    def run(self, subject: Subject, generator: torch.Generator, tick: Callable[[], None]) -> dict[str, Any]:
        model = base.only(subject.model, DKM)
        longest = max(*self.loads, *self.counted, *self.searched, self.length)
        asked = draw(subject.unseen, self.episodes, longest, generator)
        x = asked.stored
        found = {"counts": self.count(model, x, generator)}
        tick()
        found["forgetting"] = self.remove(model, x)
        tick()
        found["recognition"] = self.recognise(model, asked, tick)
        found |= self.search(model, x, tick)
        return {
            "binary": model.config.binary,
            "pixels": x[0, 0].numel(),
            "rows": model.config.rows,
            "code": model.config.code,
            "length": self.length,
            **found,
            "recall": self.compare(model, x[:, : self.length], tick),
        }

    @staticmethod
    def table(result: dict[str, Any]) -> Table:
        """The numbers to know, with recall from the cue alone beside recall that looks inside."""
        counts, known, gone, found = (result[key] for key in ("counts", "recognition", "forgetting", "contents"))
        unit = "wrong pixels" if result["binary"] else "root mean square error"
        rows: list[list[Any]] = []
        for i in ends(counts["loads"]):
            name = f"{counts['loads'][i]} different images: counts that are right"
            rows.append([name, Share(point(counts["right"], i)), None])
        for kind, values in known["kinds"].items():
            most = [i for i, load in enumerate(known["loads"]) if load < result["rows"]] or [0]
            wrong = Share(max(values["wrong"]["mean"][i] for i in most))
            rows.append([f"up to {known['loads'][most[-1]]} images, {kind}: wrong answers", wrong, None])
        for i in ends(gone["loads"]):
            for key, name in FORGOTTEN.items():
                rows.append([f"{gone['loads'][i]} images, {name}: {unit}", point(gone[key], i), None])
        for i, load in enumerate(found["loads"]):
            shares = {"found": "found without a cue", "exact": "and to the last pixel", "false": "false ones"}
            rows += [[f"{load} images, {name}", Share(point(found[key], i)), None] for key, name in shares.items()]
            error = point(found["wrong"], i) if found["found"]["mean"][i] else None
            rows.append([f"{load} images, {unit} of those found", error, None])
        for cell in result["recall"]:
            both = [cell[how] for how in INSIDE]
            rows.append([f"{cell['name']}: {unit}", *(values["wrong"] for values in both)])
            rows.append([f"{cell['name']}: nearest to the right image", *(Share(v["right"]) for v in both)])
            rows.append([f"{cell['name']}: certified", Share(both[0]["certified"]), None])
            mistaken = Share(both[0]["mistaken"] if both[0]["certified"]["mean"] else None)
            rows.append([f"{cell['name']}: of these, not the right image", mistaken, None])
        return Table(["", "looking inside", "from the cue alone"], rows)

    def count(self, model: DKM, x: Float[Tensor, "B T c h w"], generator: torch.Generator) -> dict[str, Any]:
        """Write a few images several times, in a random order, and ask how often each was written."""
        made, exact = [], []
        for load in self.counted:
            times = torch.ones(load, dtype=torch.long, device=x.device)
            times[:MOST] = 1 + torch.arange(len(times[:MOST]), device=x.device)
            order = torch.arange(load, device=x.device).repeat_interleave(times)
            order = order[torch.rand(len(order), generator=generator, device=x.device).argsort()]
            some, written = x[:, :load], x[:, order]
            state = model.write(written)
            u, _ = vectors(model, state, some)
            truth, said = occurrences(some, written), model.contains(state, some)
            made.append({"right": said == truth, "unknown": said < 0})
            exact.append([spread((1 / u.square().sum(-1))[truth == m]) for m in range(1, MOST + 1)])
        return {
            "loads": list(self.counted),
            "times": list(range(1, MOST + 1)),
            "estimates": exact,
            **columns(made),
        }

    def recognise(self, model: DKM, asked: Asked, tick: Callable[[], None]) -> dict[str, Any]:
        """Ask for stored images, and for others that are more and more unlike them, each kind by itself."""
        made: dict[str, list[dict[str, Tensor]]] = {kind: [] for kind in asked.kinds()}
        outside: dict[str, list[Any]] = {kind: [] for kind in asked.kinds()}
        for load in self.loads:
            written = asked.stored[:, :load]
            state = model.write(written)
            for kind in asked.kinds():
                x = getattr(asked, kind)[:, :load]
                said, truth = model.contains(state, x), occurrences(x, written)
                made[kind].append({"wrong": (said >= 0) & (said != truth), "unknown": said < 0})
                _, away = vectors(model, state, x)
                outside[kind].append(spread(away[(truth > 0) == (kind == "stored")]))
            tick()
        return {
            "loads": list(self.loads),
            "threshold": EXACT,
            "kinds": {KINDS[kind]: {**columns(made[kind]), "outside": outside[kind]} for kind in made},
        }

    def remove(self, model: DKM, x: Float[Tensor, "B T c h w"]) -> dict[str, Any]:
        """Forget one image of each memory, and read all of them; beside it, memories that never had it."""
        made = []
        for load in self.searched:
            rows = [forgotten(model, x[:, :load].roll(-i, 1)) for i in range(min(load, REMOVED))]
            made.append({key: torch.stack([row[key] for row in rows], 1) for key in rows[0]})
        return {"loads": list(self.searched), **columns(made)}

    def search(self, model: DKM, x: Float[Tensor, "B T c h w"], tick: Callable[[], None]) -> dict[str, Any]:
        """Find what memories hold without a cue, and compare it with what was written."""
        made = []
        for load in self.searched:
            rows = []
            for written in x[:, :load]:
                state = model.write(written)
                began = time.perf_counter()
                with counting(model) as evaluations:
                    found = model.contents(state).x
                seconds = time.perf_counter() - began
                which, wrong = match(found, written)
                there = which >= 0
                cost = {"evaluations": sum(evaluations) / 2 / load, "seconds": seconds / load}
                shares = {
                    "found": there.sum() / load,
                    "exact": (there & (wrong == 0)).sum() / load,
                    "false": (~there).sum() / load,
                    "wrong": wrong[there].sum() / there.sum().clamp(min=1),
                }
                rows.append(shares | {key: torch.tensor(value) for key, value in cost.items()})
                if load == max(self.searched) and len(rows) == 1:
                    picture = show(state, written, found, which)
                tick()
            made.append({key: torch.stack([row[key] for row in rows]) for key in rows[0]})
        return {"contents": {"loads": list(self.searched), **columns(made)}, "picture": picture}

    def compare(self, model: DKM, x: Float[Tensor, "B T c h w"], tick: Callable[[], None]) -> list[dict[str, Any]]:
        """Recall damaged images with and without a look into the memory; the same cues for both."""
        cells = [noisy(model.config.binary, level, False) for level in self.levels(model)]
        cells += [half(side) for side in self.sides]
        return [
            {"name": cell.name, **{name: self.recall(model, x, cell, on, tick) for name, on in INSIDE.items()}}
            for cell in cells
        ]

    def levels(self, model: DKM) -> tuple[float, ...]:
        return self.flips if model.config.binary else self.noises

    def recall(
        self, model: DKM, x: Float[Tensor, "B T c h w"], cell: Cell, inside: bool, tick: Callable[[], None]
    ) -> dict[str, Any]:
        """Recall from one kind of damage, and measure where it ends."""
        cue = cell.corrupt(x, torch.Generator(x.device).manual_seed(self.seed))
        mask = cue.mask if cell.known else None
        made = []
        for part in torch.arange(len(x), device=x.device).split(AT_ONCE):
            options = {} if mask is None else {"mask": mask[part]}
            path = model.recall(model.write(x[part]), cue.x[part], self.steps, "descent", inside=inside, **options)
            made.append(measure(path, x[part]))
            tick()
        return {key: base.mean(torch.cat([part[key] for part in made])) for key in made[0]}


KINDS = {
    "stored": "stored images",
    "pixel": "one pixel changed",
    "drawing": "another image of the class",
    "other": "images of other classes",
}
"""What images are called that a memory is asked for."""
FORGOTTEN = {
    "others_before": "read before one is forgotten",
    "others_after": "read after it",
    "removed_before": "the one, before",
    "removed_after": "the one, after",
    "removed_never": "the one, from a memory that never had it",
}
"""What is read when an image is forgotten."""


def draw(images: ClassImages, batch: int, length: int, generator: torch.Generator) -> Asked:
    """Images to write, different ones, and for each of them three more to ask for."""
    if length > len(images):
        raise ValueError(f"loads: expected at most {len(images)}, as many images as there are, got {length}")
    device = images.device
    chance = torch.rand(batch, len(images), generator=generator, device=device)
    index = chance.topk(length, dim=1).indices
    label = torch.arange(images.num_classes, device=device).repeat_interleave(images.count)
    x, own = images.images(index), label[index]
    start, count = images.start[own], images.count[own]
    taken = torch.zeros(batch, images.num_classes, dtype=torch.bool, device=device).scatter(1, own, True)
    other = chance.masked_fill(taken[:, label], -1).topk(length, dim=1).indices
    several = int(images.count.max()) > 1
    return Asked(
        stored=x,
        pixel=changed(x, images.binary, generator),
        drawing=images.images(start + (index - start + 1) % count) if several else None,
        other=images.images(other),
    )


def changed(x: Float[Tensor, "B T c h w"], binary: bool, generator: torch.Generator) -> Float[Tensor, "B T c h w"]:
    """Images with one pixel, in one channel, at the other end of its range."""
    flat = x.flatten(2).clone()
    place = torch.randint(flat.shape[-1], (*flat.shape[:2], 1), generator=generator, device=x.device)
    old = flat.gather(2, place)
    return flat.scatter(2, place, 1 - old if binary else torch.where(old > 0, -1.0, 1.0)).reshape(x.shape)


def occurrences(x: Float[Tensor, "B Q c h w"], written: Float[Tensor, "B T c h w"]) -> Int64[Tensor, "B Q"]:
    """How often each image is among those that were written."""
    return torch.stack([(a[:, None] == b).flatten(2).all(-1).sum(-1) for a, b in zip(x, written, strict=True)])


def vectors(
    model: DKM, state: MemoryState, x: Float[Tensor, "B Q c h w"]
) -> tuple[Float[Tensor, "B Q K"], Float[Tensor, "B Q"]]:
    """The vectors u of images in the frames of memories, and how far their codes are outside of the span."""
    frames = Frames.of(model, state)
    return fit(model.encode(x), frames.codes, frames.back)


def without(model: DKM, state: MemoryState, x: Float[Tensor, "B Q c h w"]) -> MemoryState:
    """Memories without these images; one that does not know them all stays as it was."""
    known = (model.contains(state, x) > 0).all(-1)
    pairs = zip(map(MemoryState, *state), x, known.tolist(), strict=True)
    made = [model.forget(one, images) if knows else one for one, images, knows in pairs]
    return MemoryState(*map(torch.stack, zip(*made, strict=True)))


def forgotten(model: DKM, x: Float[Tensor, "B T c h w"]) -> dict[str, Float[Tensor, "B"]]:
    """What is read before and after the first image is forgotten, and what memories then say of all images."""
    state, rest = model.write(x), x[:, 1:]
    states = {"before": state, "after": without(model, state, x[:, :1]), "never": model.write(rest)}
    read = {when: errors(model, memory, x) for when, memory in states.items()}
    said = model.contains(states["after"], x)
    return {
        **{f"others_{when}": wrong[:, 1:].mean(-1) for when, wrong in read.items()},
        **{f"removed_{when}": wrong[:, 0] for when, wrong in read.items()},
        "gone": (said[:, 0] == 0).to(x),
        "kept": (said[:, 1:] == occurrences(rest, rest)).to(x).mean(-1),
    }


def errors(model: DKM, state: MemoryState, x: Float[Tensor, "B T c h w"]) -> Float[Tensor, "B T"]:
    """How far each image is from what the memory reads at its address."""
    return apart(model.recall(state, x, 1, model.READ).last, x)


def apart(a: Float[Tensor, "B T c h w"], b: Float[Tensor, "B T c h w"]) -> Float[Tensor, "B T"]:
    """Wrong pixels, or root mean square differences, of images in the same order."""
    return base.distances(a, b).diagonal(dim1=-2, dim2=-1)


def match(
    found: Float[Tensor, "n c h w"], written: Float[Tensor, "T c h w"]
) -> tuple[Int64[Tensor, "n"], Float[Tensor, "n"]]:
    """Which written image each found one is, −1 for none, and how far away it is.

    One of them differs in 5 % of pixels at most, or of their range (from −1 to 1); each is found once.
    """
    which, wrong = found.new_full((len(found),), -1, dtype=torch.long), found.new_zeros(len(found))
    if not len(found):
        return which, wrong
    distance = base.distances(found, written)
    limit = NEAR * (written[0].numel() if base.is_binary(written) else 2)
    for _ in found:  # the nearest pair first; what is matched is out of the way
        i, t = divmod(int(distance.argmin()), len(written))
        if not distance[i, t] <= limit:
            break
        which[i], wrong[i] = t, distance[i, t]
        distance[i], distance[:, t] = torch.inf, torch.inf
    return which, wrong


def show(
    state: MemoryState,
    written: Float[Tensor, "T c h w"],
    found: Float[Tensor, "n c h w"],
    which: Int64[Tensor, "n"],
) -> dict[str, Any]:
    """What was written, the memory, and what was found, in the same order and blank where it was not."""
    blank = 0.0 if base.is_binary(written) else 1 - LEVEL  # white: a sheet of ones alone would be taken for ink
    beside = torch.full_like(written, blank)
    beside[which[which >= 0]] = found[which >= 0]
    rows = -(-len(written) // COLUMNS)

    def sheet(x: Float[Tensor, "T c h w"]) -> dict[str, Any]:
        rest = x.new_full((rows * COLUMNS - len(x), *x.shape[1:]), blank)
        return base.pack(torch.cat([x, rest]).unflatten(0, (rows, COLUMNS)))

    return {
        "images": len(written),
        "found": int((which >= 0).sum()),
        "wrong": float(apart(beside[None], written[None])[0, which[which >= 0]].sum()),
        "written": sheet(written),
        "beside": sheet(beside),
        "memory": {name: base.pack(part / part.abs().max()) for name, part in state._asdict().items()},
    }


def half(side: str) -> Cell:
    """The loss of one half, which recall is told of."""
    return Cell(f"{side} half lost", "other", None, lambda x, _: damage.half(x, side), known=True)


def measure(path: Recall, x: Float[Tensor, "B T c h w"]) -> dict[str, Float[Tensor, "B"]]:
    """Judge the end of recall whose cues are those of all stored images, in their order."""
    distance = base.distances(path.last, x)
    wrong = distance.diagonal(dim1=-2, dim2=-1)
    right = hits(distance, torch.arange(x.shape[1], device=x.device))
    assert path.energy is not None  # a DKM has one
    sure = torch.zeros_like(right) if path.certified is None else path.certified
    missed = wrong > 0 if base.is_binary(x) else ~right  # no decoder gives a colour to the last digit
    return {
        "wrong": wrong.mean(-1),
        "right": right.to(wrong).mean(-1),
        "certified": sure.to(wrong).mean(-1),
        "mistaken": (sure & missed).sum(-1) / sure.sum(-1).clamp(min=1),
        "rose": rises(path.energy).mean((0, 2)),
    }


@contextlib.contextmanager
def counting(model: DKM) -> Iterator[list[int]]:
    """Note how many images go through encoder or decoder at every call."""
    seen: list[int] = []
    hooks = [
        part.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
        for part in (model.encoder, model.decoder)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def spread(values: Float[Tensor, "n"]) -> list[float] | None:
    """The least, the median and the greatest of all; None of none."""
    return [float(values.min()), float(values.median()), float(values.max())] if len(values) else None


def columns(made: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of every measure at every load, over memories (the first axis)."""
    rows = {key: [base.mean(point[key].double()) for point in made] for key in made[0]}
    return {
        key: {part: [row[part] for row in values] for part in ("mean", "stderr")} for key, values in rows.items()
    }


def ends(values: list[int]) -> list[int]:
    """The places of the first and the last."""
    return sorted({0, len(values) - 1})
