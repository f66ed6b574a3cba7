"""What each panel of the page asks for. A function takes a visitor's session and what the page sent.

It emits events on the way, where there are steps to watch, and gives what is known at the end.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .. import data
from ..data import ClassImages
from ..lab.plane import MARGIN, landscape, through
from ..models import DKM
from ..recall import methods
from ..recall.frame import Contents
from ..recall.trajectory import Snapshot
from .pictures import pack, unpack, unpack_mask
from .queue import Job, Work
from .session import LENGTH, Session

# Bounds on what one request can ask for.
STEPS, SAMPLES, EXAMPLES, CHAIN, GRID = 40, 16, 8, 200, 41
# Early steps of a recall at most: others wait for theirs.
EARLY = 8

Body = dict[str, Any]


class Way(NamedTuple):
    """A way to recall, as the page offers it."""

    method: str
    options: dict[str, Any]


WAYS = {
    "least-squares": Way("least-squares", {}),
    "descent": Way("descent", {}),
    "cue": Way("descent", {"inside": False}),
    "stochastic": Way("stochastic", {}),
}


# What came from the page


def whole(body: Body, name: str, least: int, most: int, default: int | None = None) -> int:
    """A whole number within bounds."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}: expected a whole number from {least} to {most}, got {value!r}")
    return value


def real(body: Body, name: str, least: float, most: float, default: float | None = None) -> float:
    """A number within bounds."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name}: expected a number from {least:g} to {most:g}, got {value!r}")
    return float(value)


def one_of(body: Body, name: str, known: Any) -> str:
    """One of some names."""
    value = body.get(name)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    return value


def generator(body: Body) -> torch.Generator:
    """Random numbers of the seed that came, or of any."""
    made = torch.Generator()
    if body.get("seed") is None:
        made.seed()
        return made
    return made.manual_seed(whole(body, "seed", 0, 2**31))


def something(session: Session) -> None:
    """Refuse where nothing is stored."""
    if not len(session.x):
        raise ValueError("the memory is blank: write some images first")


# Store


def describe(session: Session) -> dict[str, Any]:
    """What is stored."""
    binary = session.model.config.binary
    return {
        "model": session.name,
        "stored": [pack(x, binary) for x in session.x],
        "labels": session.labels,
        "rows": session.model.config.rows,
        "known": session.inside.contents is not None,
    }


def pick(sets: dict[str, ClassImages]) -> Work:
    """Draw images of unseen classes, no image twice where there are enough."""

    def work(session: Session, body: Body, job: Job) -> dict[str, Any]:
        images = sets[one_of(body, "set", sets)]
        count = whole(body, "count", 1, LENGTH)
        classes = whole(body, "classes", 1, min(LENGTH, images.num_classes))
        x = data.episodes(images, 1, 4 * count, classes, generator(body))[0]
        order = {image.numpy().tobytes(): i for i, image in reversed(list(enumerate(x)))}
        chosen = (sorted(order.values()) + list(range(len(x))))[:count]
        return {"images": [pack(x[i], images.binary) for i in chosen]}

    return work


def write(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """Write images into the memory, beside what is there."""
    texts, labels = body.get("images"), body.get("labels")
    room = LENGTH - len(session.x)
    if not isinstance(texts, list) or not 1 <= len(texts) <= room:
        came = len(texts) if isinstance(texts, list) else "none"
        raise ValueError(f"images: expected 1 to {room} more in a memory of at most {LENGTH}, got {came}")
    labels = labels if isinstance(labels, list) and len(labels) == len(texts) else [""] * len(texts)
    # half of a character, which a browser may send, could not be sent back
    labels = [str(label)[:40].encode("utf-8", "replace").decode() for label in labels]
    x = torch.stack([unpack(text, session.model) for text in texts])
    start = time.perf_counter()
    session.state = session.model.write(x, session.state)
    ms = 1000 * (time.perf_counter() - start)
    session.x = torch.cat([session.x, x])
    session.labels += labels
    session.changed()
    return {**describe(session), "ms": ms}


def clear(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """Start again with a blank memory."""
    session.begin(session.name, session.model)
    return describe(session)


def show(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """Say what is stored."""
    return describe(session)


# Recall


def damage(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """Damage an image; the mask says which pixels are known to be lost."""
    x, kind = unpack(body.get("image"), session.model)[None], one_of(body, "kind", damages(session.model))
    if kind == "half":
        side = one_of(body, "side", ("left", "right", "top", "bottom")) if "side" in body else "right"
        cue = data.half(x, side)
    else:
        kinds: dict[str, Callable[..., data.Cue]] = {
            "flips": data.flips,
            "salt and pepper": data.salt_and_pepper,
            "noise": data.noise,
            "block": data.block,
        }
        cue = kinds[kind](x, real(body, "amount", 0, 1), generator(body))
    mask = None if cue.mask is None else pack(cue.mask[0], binary=True)
    return {"image": pack(cue.x[0], session.model.config.binary), "mask": mask}


def damages(model: DKM) -> tuple[str, ...]:
    """The kinds of damage for a model's images."""
    return ("flips", "salt and pepper", "block", "half") if model.config.binary else ("noise", "block", "half")


def apart(x: Float[Tensor, "c h w"], others: Float[Tensor, "T c h w"], binary: bool) -> Float[Tensor, "T"]:
    """How many pixels differ; for images that are not binary, the root mean square of the difference."""
    difference = (x - others).flatten(1)
    if binary:
        return difference.abs().sum(-1)
    return difference.square().mean(-1).sqrt()


def step(session: Session, x: Float[Tensor, "c h w"], energy: Tensor) -> dict[str, Any]:
    """A step as the page shows it: the image, its energy, the nearest stored one, how far it is from each."""
    binary = session.model.config.binary
    far = apart(x, session.x, binary)
    return {
        "image": pack(x, binary),
        "energy": float(energy),
        "nearest": int(far.argmin()),
        "apart": [round(float(value), 3) for value in far],
    }


def way(session: Session, body: Body, name: str) -> Way:
    """The method of a name, with its options: what is known of the cue and of the memory."""
    chosen = WAYS[one_of({"method": name}, "method", WAYS)]
    options = dict(chosen.options)
    if chosen.method == "stochastic":
        options |= {"temperature": real(body, "temperature", 0, 4, 1.0), "generator": generator(body)}
    if chosen.method == "descent" and body.get("mask") is not None:
        options["mask"] = unpack_mask(body["mask"], session.model)[None]
    if name == "descent":
        session.inside.stop()
        known = session.inside.known if session.inside.contents is None else session.inside.contents.x
        if known is not None:
            options["contents"] = Contents(known, known.new_zeros(len(known)))
    return Way(chosen.method, options)


def recall(ends: dict[int, dict[str, Any]]) -> tuple[Work, Work]:
    """Recall one cue by one method or two, in two jobs; `ends` gathers how the columns end.

    The first makes all steps that need no search; for a method that has to search, these are early ones. The other
    has the searches, for which there may be a line.
    """

    def begin(session: Session, body: Body, job: Job) -> dict[str, Any]:
        both = falls(session, body, job)
        ends.update({fall.column: fall.run() for fall in both if not fall.searches})
        for fall in both:
            if fall.column not in ends:
                fall.early()
        return columns(ends)

    def finish(session: Session, body: Body, job: Job) -> dict[str, Any]:
        ends.update({fall.column: fall.run() for fall in falls(session, body, job) if fall.column not in ends})
        return columns(ends)

    return begin, finish


def columns(ends: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {"columns": [ends[column] for column in sorted(ends)]}


def falls(session: Session, body: Body, job: Job) -> "list[Fall]":
    """The recalls that the page asks for."""
    something(session)
    names = body.get("methods")
    if not isinstance(names, list) or not 1 <= len(names) <= 2:
        raise ValueError("methods: expected one or two")
    steps, cue = whole(body, "steps", 1, STEPS, 15), unpack(body.get("image"), session.model)
    return [
        Fall(session, job, column, way(session, body, name), cue[None], steps) for column, name in enumerate(names)
    ]


@dataclass(eq=False)
class Fall:
    """A recall of one cue by one method, in a column of the page; step 0 is the cue itself."""

    session: Session
    job: Job
    column: int
    way: Way
    cue: Float[Tensor, "1 c h w"]
    steps: int

    @property
    def searches(self) -> bool:
        """Whether it takes a search of seconds before its first step; not where all that is in there is known."""
        known = self.session.inside.contents
        choose = (
            self.way.options.get("inside", True) and known is not None and len(known.x) >= self.session.distinct
        )
        return self.way.method == "descent" and not choose

    def emit(self, number: int, at: Snapshot, early: bool = False) -> None:
        """Show a step."""
        if not number:
            energy = self.session.model.energy_at(self.session.state, self.cue)
            self.send("step", step=0, early=early, **step(self.session, self.cue[0], energy[0]))
        self.send("step", step=number + 1, early=early, **step(self.session, at.x[0], at.energy[0]))

    def send(self, event: str, **about: Any) -> None:
        self.job.emit(event=event, column=self.column, **about)

    def early(self) -> None:
        """Steps that need no search, until there are better ones: down the energy from the cue's own address."""
        at = self.session.model.retriever(self.session.state)
        here = at.settle(at.find(self.cue))
        self.emit(0, here, early=True)
        path = methods.fall(at, here, torch.zeros(here.w.shape[:-1], dtype=torch.bool))
        for number, after in enumerate(itertools.islice(path, min(self.steps, EARLY) - 1), start=1):
            self.emit(number, after, early=True)

    def run(self) -> dict[str, Any]:
        """The recall itself."""
        found, start = set[bytes](), time.perf_counter()

        def note(x: Float[Tensor, "c h w"]) -> None:
            self.session.inside.add(x)
            found.add(x.numpy().tobytes())
            self.send("inside", found=len(found), of=self.session.distinct)

        self.job.tags, self.job.found = {"column": self.column}, note
        model, state, (method, options) = self.session.model, self.session.state, self.way
        made = model.recall(state, self.cue, self.steps, method, callback=self.emit, **options)
        end = {
            "certified": None if made.certified is None else bool(made.certified[0]),
            "ms": 1000 * (time.perf_counter() - start),
            "known": self.session.inside.contents is not None,
        }
        self.send("end", **end)
        return end


# Look inside


def contains(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """How often an image was written."""
    x = unpack(body.get("image"), session.model)
    times = int(session.model.contains(session.state, x[None])[0])
    same = [i for i, far in enumerate(apart(x, session.x, session.model.config.binary)) if far == 0]
    return {"times": times, "same": same}


def forget(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """Take an image out of the memory, however often it was written."""
    x = unpack(body.get("image"), session.model)
    start = time.perf_counter()
    session.state = session.model.forget(session.state, x[None])
    ms = 1000 * (time.perf_counter() - start)
    left = apart(x, session.x, session.model.config.binary) > 0
    session.labels = [label for label, stays in zip(session.labels, left.tolist(), strict=True) if stays]
    session.x = session.x[left]
    session.changed()
    return {**describe(session), "ms": ms}


def contents(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """Find all that the memory holds without a cue; images are shown as they are found."""
    binary, start = session.model.config.binary, time.perf_counter()
    session.inside.stop()

    def note(x: Float[Tensor, "c h w"]) -> None:
        session.inside.add(x)
        job.emit(event="found", image=pack(x, binary))

    job.found = note
    found = session.model.contents(session.state)
    times = session.model.contains(session.state, found.x).tolist() if len(found.x) else []
    if len(found.x):
        session.inside.contents, session.inside.over = found, True
    return {
        "images": [pack(x, binary) for x in found.x],
        "cost": found.cost.tolist(),
        "times": times,
        "stored": [match(x, session.x, binary) for x in found.x],
        "distinct": session.distinct,
        "ms": 1000 * (time.perf_counter() - start),
    }


def match(x: Float[Tensor, "c h w"], stored: Float[Tensor, "T c h w"], binary: bool) -> dict[str, Any] | None:
    """The nearest of what was stored, and how far it is."""
    if not len(stored):
        return None
    far, index = apart(x, stored, binary).min(0)
    return {"index": int(index), "apart": round(float(far), 3)}


# Dream


def dream(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """New images from all that is stored, refined step by step."""
    something(session)
    model = session.model
    n, steps = whole(body, "n", 1, SAMPLES, 8), whole(body, "steps", 1, STEPS, 15)
    method = WAYS[one_of(body, "method", WAYS)].method
    options = {"temperature": real(body, "temperature", 0, 4, 1.0)} if method == "stochastic" else {}

    def callback(number: int, at: Snapshot) -> None:
        images = [pack(x, model.config.binary) for x in at.x]
        job.emit(event="samples", step=number, images=images, energy=[round(float(e), 2) for e in at.energy])

    start = time.perf_counter()
    model.sample(session.state, n, steps, generator(body), method, callback=callback, **options)
    return {"ms": 1000 * (time.perf_counter() - start)}


def family(sets: dict[str, ClassImages]) -> Work:
    """New images of one class, from a few examples in a memory of their own."""

    def work(session: Session, body: Body, job: Job) -> dict[str, Any]:
        images, random, model = sets[one_of(body, "set", sets)], generator(body), session.model
        k, n = whole(body, "examples", 2, EXAMPLES, 4), whole(body, "n", 1, SAMPLES, 8)
        several = (images.count > 1).nonzero()[:, 0]
        if not len(several):
            raise ValueError("set: expected a class of two images or more, and every image is a class of its own")
        number = int(several[torch.randint(len(several), (), generator=random)])
        few = torch.randperm(int(images.count[number]), generator=random)[:k] + images.start[number]
        x = images.images(few).to(model.like)
        label = images.labels[number] if images.labels else str(number)
        job.emit(event="examples", images=[pack(one, images.binary) for one in x], label=label, number=number)
        start = time.perf_counter()
        drawn = model.more(model.write(x), x, n, random)
        ms = 1000 * (time.perf_counter() - start)
        job.emit(event="samples", step=0, images=[pack(one, images.binary) for one in drawn.last])
        return {"ms": ms, "number": number, "label": label}

    return work


def chain(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """A Markov chain from a stored image, step by step."""
    something(session)
    index, steps = whole(body, "index", 0, len(session.x) - 1, 0), whole(body, "steps", 1, CHAIN, 60)
    options: dict[str, Any] = {"temperature": real(body, "temperature", 0, 4, 1.0), "generator": generator(body)}

    def callback(number: int, at: Snapshot) -> None:
        job.emit(event="step", step=number, **step(session, at.x[0], at.energy[0]))

    start = time.perf_counter()
    session.model.recall(
        session.state, session.x[index : index + 1], steps, "stochastic", callback=callback, **options
    )
    return {"ms": 1000 * (time.perf_counter() - start)}


# Map


def energy_map(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """The energy on the plane through the addresses of three stored images, and a path of recall over it."""
    model, size = session.model, whole(body, "grid", 5, GRID, 31)
    three = body.get("three")
    wanted = "three: expected the numbers of three different stored images"
    if not isinstance(three, list) or len(three) != 3 or len(set(map(str, three))) != 3:
        raise ValueError(f"{wanted}, got {three!r}")
    corners = session.x[[whole({"three": i}, "three", 0, len(session.x) - 1) for i in three]]
    if float(torch.stack([apart(a, corners, model.config.binary) for a in corners]).gt(0).sum()) < 6:
        raise ValueError(f"{wanted}, got two that are the same")
    at = model.retriever(session.state)
    w = at.find(corners)
    plane = session.plane = through(w)
    places = plane.place(w)
    low, high = places.amin(0), places.amax(0)
    room = MARGIN * float((high - low).max())
    a, b = (torch.linspace(float(low[i]) - room, float(high[i]) + room, size) for i in (0, 1))
    job.emit(event="frame", places=places.tolist(), a=a.tolist(), b=b.tolist())
    for row, height in enumerate(b):
        points = plane.at(torch.stack([a, height.expand_as(a)], -1).to(w))
        job.emit(event="row", row=row, energy=[round(float(e), 3) for e in landscape(model, session.state, points)])
    return {"path": path(session, body, job) if body.get("image") is not None else []}


def path(session: Session, body: Body, job: Job) -> list[dict[str, Any]]:
    """The steps of recall from a cue, as seen from above the plane, and how far from it they are."""
    assert session.plane is not None
    cue, made, plane = unpack(body["image"], session.model)[None], list[dict[str, Any]](), session.plane
    method, options = way(session, body, one_of(body, "method", WAYS))
    at = session.model.retriever(session.state)

    def add(w: Float[Tensor, "1 K"], x: Float[Tensor, "1 c h w"], energy: Tensor) -> None:
        made.append(
            {
                "place": plane.place(w)[0].tolist(),
                "outside": float(plane.outside(w)[0]),
                **step(session, x[0], energy),
            }
        )
        job.emit(event="path", **made[-1])

    w = at.find(cue)
    add(w, cue, at.energy(at.read(w), cue, w)[0])
    session.model.recall(
        session.state,
        cue,
        whole(body, "steps", 1, STEPS, 15),
        method,
        callback=lambda _, here: add(here.w, here.x, here.energy[0]),
        **options,
    )
    return made


def point(session: Session, body: Body, job: Job) -> dict[str, Any]:
    """The image at a point of the last map."""
    if session.plane is None:
        raise ValueError("draw a map first")
    place = torch.tensor([real(body, "a", -1e6, 1e6), real(body, "b", -1e6, 1e6)]).to(session.model.like)
    there = session.model.retriever(session.state).settle(session.plane.at(place)[None])
    return step(session, there.x[0], there.energy[0])
