"""What each panel of the page asks for. A function takes a visitor's session and what the page sent.

It emits events on the way, where there are steps to watch, and gives what is known at the end.
"""

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ... import data
from ...data import ClassImages
from ...lab.plane import MARGIN, landscape, through
from ...models import Model
from ...recall import methods
from ...recall.retriever import StoredImages
from ...recall.trajectory import Snapshot
from .pictures import pack, unpack, unpack_mask
from .queue import Body, Job
from .session import LENGTH, Session

# Bounds on what one request can ask for.
STEPS, SAMPLES, EXAMPLES, CHAIN, GRID = 40, 16, 8, 200, 41
# Early steps of a recall at most: others wait for theirs.
EARLY = 8
# The ways to recall that the page offers; "cue" is descent that does not look inside.
WAYS = ("least-squares", "descent", "cue", "stochastic")

Answer = dict[str, Any]


# What came from the page


def whole(body: Body, name: str, least: int, most: int, default: int | None = None) -> int:
    """A whole number within bounds."""
    value = body.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name}: expected a whole number from {least} to {most}, got {value!r}")
    return value


def real(body: Body, name: str, least: float, most: float, default: float | None = None) -> float:
    """A number within bounds."""
    value: Any = body.get(name, default)
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{name}: expected a number from {least:g} to {most:g}, got {value!r}")
    return float(value)


def one_of(body: Body, name: str, known: Collection[str]) -> str:
    """One of some names."""
    value = body.get(name)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    return value


def image(session: Session, body: Body) -> Float[Tensor, "1 c h w"]:
    """The image that came, as a batch of one."""
    return unpack(body.get("image"), session.model)[None]


def images_of(session: Session, body: Body) -> ClassImages:
    """The unseen images of a name."""
    return session.playable.sets[one_of(body, "set", session.playable.sets)]


def generator(body: Body) -> torch.Generator:
    """Random numbers of the seed that came, or of any."""
    made = torch.Generator()
    if "seed" not in body:
        made.seed()
        return made
    return made.manual_seed(whole(body, "seed", 0, 2**31))


def something(session: Session) -> None:
    """Refuse where nothing is stored."""
    if not len(session.x):
        raise ValueError("the memory is blank: write some images first")


# Store


def show(session: Session, *_: Any) -> Answer:
    """Say what is stored."""
    return {
        "model": session.playable.name,
        "stored": [pack(x, session.binary) for x in session.x],
        "rows": session.model.config.rows,
        "known": session.inside.contents is not None,
    }


def pick(session: Session, body: Body, job: Job) -> Answer:
    """Draw images of unseen classes, no image twice where there are enough."""
    images, count = images_of(session, body), whole(body, "count", 1, LENGTH)
    classes = whole(body, "classes", 1, min(LENGTH, images.num_classes))
    x = data.episodes(images, 1, 4 * count, classes, generator(body))[0]
    drawn = [pack(one, images.binary) for one in x]
    return {"images": [*dict.fromkeys(drawn), *drawn][:count]}


def write(session: Session, body: Body, job: Job) -> Answer:
    """Write images into the memory, beside what is there."""
    texts, room = body.get("images"), LENGTH - len(session.x)
    if not isinstance(texts, list) or not 1 <= len(texts) <= room:
        came = len(texts) if isinstance(texts, list) else "none"
        raise ValueError(f"images: expected 1 to {room} more in a memory of at most {LENGTH}, got {came}")
    x = torch.stack([unpack(text, session.model) for text in texts])
    session.became(session.model.write(x, session.state), torch.cat([session.x, x]))
    return show(session)


def clear(session: Session, body: Body, job: Job) -> Answer:
    """Start again with a blank memory."""
    session.begin(session.playable)
    return show(session)


# Recall


def damages(model: Model) -> tuple[str, ...]:
    """The kinds of damage for a model's images."""
    return ("flips", "salt and pepper", "block", "half") if model.config.binary else ("noise", "block", "half")


def damage(session: Session, body: Body, job: Job) -> Answer:
    """Damage an image; the mask says which pixels are known to be lost."""
    x, kind = image(session, body), one_of(body, "kind", damages(session.model))
    if kind == "half":
        cue = data.half(x, one_of(body, "side", ("right", "left", "top", "bottom")))
    else:
        harm = getattr(data, kind.replace(" ", "_"))
        cue = harm(x, real(body, "amount", 0, 1), generator(body))
    mask = None if cue.mask is None else pack(cue.mask[0], binary=True)
    return {"image": pack(cue.x[0], session.binary), "mask": mask}


def apart(session: Session, x: Float[Tensor, "c h w"]) -> Float[Tensor, "T"]:
    """How many pixels differ from those of each stored image; in colour, the root mean square of the difference."""
    difference = (x - session.x).flatten(1)
    return difference.abs().sum(-1) if session.binary else difference.square().mean(-1).sqrt()


def step(session: Session, x: Float[Tensor, "c h w"], energy: Tensor) -> Answer:
    """A step as the page shows it: the image, its energy, the nearest stored one, how far it is from each."""
    far = apart(session, x)
    return {
        "image": pack(x, session.binary),
        "energy": float(energy),
        "nearest": int(far.argmin()),
        "apart": [round(float(value), 3) for value in far],
    }


def way(session: Session, body: Body, name: Any) -> tuple[str, dict[str, Any]]:
    """The method of a name, with its options: what is known of the cue and of the memory."""
    chosen, options = one_of({"method": name}, "method", WAYS), dict[str, Any]()
    if chosen == "stochastic":
        options |= {"temperature": real(body, "temperature", 0, 4, 1.0), "generator": generator(body)}
    if chosen in ("descent", "cue") and body.get("mask") is not None:
        options["mask"] = unpack_mask(body["mask"], session.model)[None]
    if chosen == "cue":
        return "descent", {**options, "inside": False}
    if chosen == "descent":
        session.inside.stop()
        known = session.inside.known if session.inside.contents is None else session.inside.contents.x
        if known is not None:
            options["contents"] = StoredImages(known, known.new_zeros(len(known)))
    return chosen, options


def falls(session: Session, body: Body, job: Job) -> "list[Fall]":
    """The recalls that the page asks for: of one cue, by one method or two."""
    something(session)
    names = body.get("methods")
    if not isinstance(names, list) or not 1 <= len(names) <= 2:
        raise ValueError("methods: expected one or two")
    steps, cue = whole(body, "steps", 1, STEPS, 15), image(session, body)
    ways = (way(session, body, name) for name in names)
    return [Fall(session, job, column, *chosen, cue, steps) for column, chosen in enumerate(ways)]


@dataclass(eq=False)
class Fall:
    """A recall of one cue by one method, in a column of the page; step 0 is the cue itself."""

    session: Session
    job: Job
    column: int
    method: str
    options: dict[str, Any]
    cue: Float[Tensor, "1 c h w"]
    steps: int

    @property
    def searches(self) -> bool:
        """Whether it takes a search of seconds before its first step; not where all that is in there is known."""
        known = self.session.inside.contents
        whole = known is not None and len(known.x) >= self.session.distinct
        return self.method == "descent" and not (whole and self.options.get("inside", True))

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

    def run(self) -> Answer:
        """The recall itself."""
        found, model, state = set[bytes](), self.session.model, self.session.state

        def note(x: Float[Tensor, "c h w"]) -> None:
            self.session.inside.add(x)
            found.add(x.numpy().tobytes())
            self.send("inside", found=len(found), of=self.session.distinct)

        self.job.tags, self.job.found = {"column": self.column}, note
        made = model.recall(state, self.cue, self.steps, self.method, callback=self.emit, **self.options)
        certified = None if made.certified is None else bool(made.certified[0])
        end = {"certified": certified, "known": self.session.inside.contents is not None}
        self.send("end", **end)
        return end


class Recalling:
    """Recall of one cue in two jobs: the first makes all steps that need no search, the other has the searches."""

    def __init__(self) -> None:
        self.ends = dict[int, Answer]()
        """How the columns end, as far as they have ended."""

    def begin(self, session: Session, body: Body, job: Job) -> Answer:
        """Early steps alone, where a method has to search."""
        both = falls(session, body, job)
        self.ends |= {fall.column: fall.run() for fall in both if not fall.searches}
        for fall in both:
            if fall.column not in self.ends:
                fall.early()
        return self.answer(len(both))

    def finish(self, session: Session, body: Body, job: Job) -> Answer:
        """The rest, for which there may be a line."""
        both = falls(session, body, job)
        self.ends |= {fall.column: fall.run() for fall in both if fall.column not in self.ends}
        return self.answer(len(both))

    def answer(self, count: int) -> Answer:
        return {"columns": [self.ends.get(column) for column in range(count)]}


# Look inside


def contains(session: Session, body: Body, job: Job) -> Answer:
    """How often an image was written."""
    return {"times": int(session.model.contains(session.state, image(session, body))[0])}


def forget(session: Session, body: Body, job: Job) -> Answer:
    """Take an image out of the memory, however often it was written."""
    x = image(session, body)
    session.became(session.model.forget(session.state, x), session.x[apart(session, x[0]) > 0])
    return show(session)


def contents(session: Session, body: Body, job: Job) -> Answer:
    """Find all that the memory holds without a cue; images are shown as they are found."""
    session.inside.stop()

    def note(x: Float[Tensor, "c h w"]) -> None:
        session.inside.add(x)
        job.emit(event="found", image=pack(x, session.binary))

    job.found = note
    found, times = session.model.contents(session.state), list[int]()
    if len(found.x):
        session.inside.contents, session.inside.over = found, True
        times = session.model.contains(session.state, found.x).tolist()
    return {
        "images": [pack(x, session.binary) for x in found.x],
        "times": times,
        "exact": [bool((apart(session, x) < 0.01).any()) for x in found.x],
        "distinct": session.distinct,
    }


# Dream


def dream(session: Session, body: Body, job: Job) -> Answer:
    """New images from all that is stored, refined step by step."""
    something(session)
    n, steps = whole(body, "n", 1, SAMPLES, 8), whole(body, "steps", 1, STEPS, 15)
    method = one_of(body, "method", ("least-squares", "descent", "stochastic"))
    options = {"temperature": real(body, "temperature", 0, 4, 1.0)} if method == "stochastic" else {}

    def callback(number: int, at: Snapshot) -> None:
        images, energy = [pack(x, session.binary) for x in at.x], [round(float(e), 2) for e in at.energy]
        job.emit(event="samples", step=number, images=images, energy=energy)

    session.model.sample(session.state, n, steps, generator(body), method, callback=callback, **options)
    return {}


def family(session: Session, body: Body, job: Job) -> Answer:
    """New images of one class, from a few examples in a memory of their own."""
    images, random, model = images_of(session, body), generator(body), session.model
    k, n = whole(body, "examples", 2, EXAMPLES, 4), whole(body, "n", 1, SAMPLES, 8)
    several = (images.count > 1).nonzero()[:, 0]
    if not len(several):
        raise ValueError("set: expected a class of two images or more, and every image is a class of its own")
    number = int(several[torch.randint(len(several), (), generator=random)])
    few = torch.randperm(int(images.count[number]), generator=random)[:k] + images.start[number]
    x = images.images(few).to(model.like)
    job.emit(event="examples", images=[pack(one, images.binary) for one in x], number=number)
    drawn = model.more(model.write(x), x, n, random)
    job.emit(event="samples", step=0, images=[pack(one, images.binary) for one in drawn.last])
    return {}


def chain(session: Session, body: Body, job: Job) -> Answer:
    """A Markov chain from a stored image, step by step."""
    something(session)
    index, steps = whole(body, "index", 0, len(session.x) - 1, 0), whole(body, "steps", 1, CHAIN, 60)
    method, options = way(session, body, "stochastic")

    def callback(number: int, at: Snapshot) -> None:
        job.emit(event="step", step=number, **step(session, at.x[0], at.energy[0]))

    cue = session.x[index : index + 1]
    session.model.recall(session.state, cue, steps, method, callback=callback, **options)
    return {}


# Map


def energy_map(session: Session, body: Body, job: Job) -> Answer:
    """The energy on the plane through the addresses of three stored images, and a path of recall over it."""
    something(session)
    model, size, three = session.model, whole(body, "grid", 5, GRID, 31), body.get("three")
    if not isinstance(three, list) or len(three) != 3:
        raise ValueError(f"three: expected the numbers of three different stored images, got {three!r}")
    corners = session.x[[whole({"three": i}, "three", 0, len(session.x) - 1) for i in three]]
    if len(corners.unique(dim=0)) < 3:
        raise ValueError("three: expected three different stored images, got two that are the same")
    w = model.retriever(session.state).find(corners)
    plane = session.plane = through(w)
    places = plane.place(w)
    low, high = places.amin(0), places.amax(0)
    room = MARGIN * float((high - low).max())
    a, b = (torch.linspace(float(low[i]) - room, float(high[i]) + room, size) for i in (0, 1))
    job.emit(event="frame", places=places.tolist(), a=a.tolist(), b=b.tolist())
    for row, height in enumerate(b):
        points = plane.at(torch.stack([a, height.expand_as(a)], -1).to(w))
        job.emit(event="row", row=row, energy=[round(float(e), 3) for e in landscape(model, session.state, points)])
    if "image" in body:
        path(session, body, job)
    return {}


def path(session: Session, body: Body, job: Job) -> None:
    """The steps of recall from a cue, as seen from above the plane, and how far from it they are."""
    cue, plane, at = image(session, body), session.plane, session.model.retriever(session.state)
    method, options = way(session, body, body.get("method"))
    steps = whole(body, "steps", 1, STEPS, 15)
    assert plane is not None

    def emit(w: Float[Tensor, "1 K"], x: Float[Tensor, "1 c h w"], energy: Tensor) -> None:
        where = {"place": plane.place(w)[0].tolist(), "outside": float(plane.outside(w)[0])}
        job.emit(event="path", **where, **step(session, x[0], energy))

    w = at.find(cue)
    emit(w, cue, at.energy(at.read(w), cue, w)[0])

    def callback(_: int, here: Snapshot) -> None:
        emit(here.w, here.x, here.energy[0])

    session.model.recall(session.state, cue, steps, method, callback=callback, **options)


def point(session: Session, body: Body, job: Job) -> Answer:
    """The image at a point of the last map."""
    if session.plane is None:
        raise ValueError("draw a map first")
    place = torch.tensor([real(body, "a", -1e6, 1e6), real(body, "b", -1e6, 1e6)]).to(session.model.like)
    there = session.model.retriever(session.state).settle(session.plane.at(place)[None])
    return step(session, there.x[0], there.energy[0])


# What the page asks for by name: what takes milliseconds, and what has steps to watch.
QUICK = {work.__name__: work for work in (show, pick, write, clear, damage, contains, forget, point)}
SLOW = {"contents": contents, "dream": dream, "family": family, "chain": chain, "map": energy_map}
