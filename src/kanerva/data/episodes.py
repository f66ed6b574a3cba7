"""Class-indexed images, their splits, and episodes drawn from them where they lie, on the CPU or a GPU."""

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from ..support import checks
from ..support.checks import Count
from ..support.door import public
from ..support.pixels import from_bytes


@dataclasses.dataclass(frozen=True, eq=False)
class ClassImages:
    """Images sorted by class: those of class c are pixels[start[c] : start[c] + count[c]].

    binary: pixels are 0 or 1; otherwise grey or colour, 0 to 255. `labels` names the classes, where they have
    names. `name` and `split` say where the images come from.
    """

    pixels: UInt8[Tensor, "N channels height width"]
    start: Int64[Tensor, "classes"]
    count: Int64[Tensor, "classes"]
    binary: bool
    name: str
    split: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ValueError(
                f"pixels: expected uint8 of shape (N, channels, height, width), got {self.pixels.dtype} of shape "
                f"{tuple(self.pixels.shape)}; ClassImages.from_labels builds one from images and their labels"
            )
        if not 0 < self.num_classes == len(self.count) == len(self.labels or self.count):
            raise ValueError(
                f"start, count and labels: expected one of each for each class, and a class at least, got "
                f"{self.num_classes}, {len(self.count)} and {len(self.labels)}"
            )
        if checks.deep(self.count):
            least, end = int(self.count.min()), int((self.start + self.count).max())
            if least < 1 or int(self.start.min()) < 0 or end > len(self):
                raise ValueError(
                    f"start and count: expected at least one image in every class and all within the {len(self)} "
                    f"images, got counts from {least} and ends up to {end}"
                )
            if self.binary and (most := int(self.pixels.max())) > 1:
                raise ValueError(f"pixels: expected 0 or 1 as binary=True says, got {most}")

    @classmethod
    def from_labels(
        cls,
        pixels: Any,
        labels: Any,
        *,
        binary: bool,
        name: str = "images",
        split: str = "all",
        names: Sequence[str] = (),
    ) -> "ClassImages":
        """Sort images (uint8, N×channels×height×width) by their labels (N whole numbers or names).

        `names` gives names to the labels in rising order; without it the labels name themselves.
        """
        pixels, labels = np.asarray(pixels), np.asarray(labels)
        if labels.shape != pixels.shape[:1]:
            raise ValueError(f"labels: expected one for each of the {len(pixels)} images, got shape {labels.shape}")
        kinds, inverse, count = np.unique(labels, return_inverse=True, return_counts=True)
        order = np.argsort(inverse, kind="stable")
        counts = torch.from_numpy(count.astype(np.int64))
        return cls(
            pixels=torch.from_numpy(np.ascontiguousarray(pixels[order])),
            start=counts.cumsum(0) - counts,
            count=counts,
            binary=binary,
            name=name,
            split=split,
            labels=tuple(names) or tuple(str(kind) for kind in kinds),
        )

    @property
    def num_classes(self) -> int:
        return self.start.shape[0]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of images in the classes, least first; on the host, which may have to wait for them once."""
        return tuple(sorted(self.count.tolist()))

    @cached_property
    def marks(self) -> Int64[Tensor, "N 2"]:
        """Hashes of each image's class, by its name, and of its pixels, on the CPU: `changes` compares them."""
        names = self.labels or tuple(map(str, range(self.num_classes)))
        kinds = np.zeros(len(self), np.int64)
        for name, start, count in zip(names, self.start.tolist(), self.count.tolist(), strict=True):
            kinds[start : start + count] = _hash(name.encode("utf-8", "surrogateescape"))
        pixels = np.array([_hash(image.tobytes()) for image in self.pixels.cpu().numpy()], np.int64)
        return torch.from_numpy(np.stack([kinds, pixels], 1))

    @cached_property
    def different(self) -> int:
        """How many different images there are; copies are one."""
        return len(self.marks[:, 1].unique())

    def check_classes(self, classes: int | None) -> None:
        """Check that there are so many classes."""
        if classes is not None and classes > self.num_classes:
            raise ValueError(
                f"classes: expected at most {self.num_classes}, the number of classes of {self.name}/{self.split}, "
                f"got {classes}"
            )

    def fewest(self, classes: int | None = None) -> int:
        """The images that any so many classes have together, or all of them: at least this number."""
        return sum(self.sizes[:classes])

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image, (channels, height, width)."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    @property
    def likelihood(self) -> Literal["bernoulli", "gaussian"]:
        """The likelihood that a model of these images has."""
        return "bernoulli" if self.binary else "gaussian"

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    def __len__(self) -> int:
        return self.pixels.shape[0]

    def __repr__(self) -> str:
        kind = "binary" if self.binary else "grey" if self.shape[0] == 1 else "colour"
        size = "×".join(map(str, self.shape))
        return f"ClassImages({self.name}/{self.split}: {len(self)} {kind} {size} in {self.num_classes} classes)"

    def to(self, device: torch.device | str) -> "ClassImages":
        """Move the images to a device, once; episodes are then drawn there."""
        moved = {name: getattr(self, name).to(device) for name in ("pixels", "start", "count")}
        return dataclasses.replace(self, **moved)

    def images(self, index: Int64[Tensor, "*b"]) -> Float[Tensor, "*b channels height width"]:
        """Give images by number: binary as 0. or 1., others as v/128 − 1 on [−1, 1)."""
        levels = self.pixels[index]
        return levels.float() if self.binary else from_bytes(levels)


def part(split: str, train: int, held: int) -> slice:
    """The classes of a split: the first `train` are to train on, those up to `held` to validate with."""
    return {
        "train": slice(train),
        "validation": slice(train, held),
        "test": slice(held, None),
        "train+validation": slice(held),
    }[split]


def of_bits(
    bits: UInt8[np.ndarray, "classes each packed"],
    names: Sequence[str],
    split: str,
    train: int,
    held: int,
    name: str,
) -> ClassImages:
    """Square binary images, packed, of the classes that a split has in the order of default_rng(0).permutation."""
    order = np.random.default_rng(0).permutation(len(bits))[part(split, train, held)]
    side = math.isqrt(8 * bits.shape[-1])
    return ClassImages.from_labels(
        np.unpackbits(bits[order].reshape(-1, bits.shape[-1]), axis=-1).reshape(-1, 1, side, side),
        np.repeat(np.arange(len(order)), bits.shape[1]),
        binary=True,
        name=name,
        split=split,
        names=[names[i] for i in order],
    )


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)


def changes(then: Int64[Tensor, "N 2"], now: Int64[Tensor, "M 2"]) -> str:
    """What has become of images since `ClassImages.marks` were taken of them; empty if nothing has.

    One that went and one that came in the same class are one that changed. Classes may have other names.
    """
    old, new = then.tolist(), now.tolist()
    parts = [marks[:, 0].unique_consecutive(return_counts=True)[1].tolist() for marks in (then, now)]
    if parts[0] == parts[1] and bool((then[:, 1] == now[:, 1]).all()):
        return ""
    gone = _beyond(old, new)
    came = _beyond(new, old)
    changed = (gone & came).total()
    counts = {"added": came.total() - changed, "removed": gone.total() - changed, "changed": changed}
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return said or "the same images in other classes or in another order"


def _beyond(some: list[list[int]], others: list[list[int]]) -> Counter[int]:
    """The classes of those images that the others do not have, or not as often."""
    left, found = Counter(pixels for _, pixels in others), Counter[int]()
    for kind, pixels in some:
        found[kind] += left[pixels] < 1
        left[pixels] -= 1
    return found


@public
def episodes(
    images: ClassImages,
    batch: Count,
    length: Count,
    classes: Count | None = None,
    generator: torch.Generator | None = None,
    distinct: bool = False,
) -> Float[Tensor, "B T channels height width"]:
    """Draw `batch` episodes of `length` images: a class first, then an image of it, all with replacement.

    With `classes` = n each episode keeps to n distinct classes of its own, every set of n equally likely. With
    `distinct` no image comes twice in an episode: one that would is drawn again. All is drawn on the device of the
    images, from the generator of that device; the host never waits (with `distinct` once). Memory beside the
    images: batch × (number of classes) floats where n is given, and with `distinct` batch × n × (images of the
    largest class) more. Proof: test_episodes_*.
    """
    available, device = images.num_classes, images.device
    images.check_classes(classes)
    check_generator(generator, device)
    if distinct:
        return images.images(_distinct(images, batch, length, classes, generator))
    if classes is None:
        label = torch.randint(available, (batch, length), generator=generator, device=device)
    else:
        chosen = _some(images, batch, classes, generator)
        label = chosen.gather(1, torch.randint(classes, (batch, length), generator=generator, device=device))
    # Counts differ from class to class; the remainder of 62 random bits is uniform to 1e-12 for any real count.
    bits = torch.randint(1 << 62, (batch, length), generator=generator, device=device)
    return images.images(images.start[label] + bits % images.count[label])


def _some(
    images: ClassImages, batch: int, classes: int, generator: torch.Generator | None
) -> Int64[Tensor, "B classes"]:
    """Random sets of classes: the places of the n largest of independent uniform numbers."""
    return torch.rand(batch, images.num_classes, generator=generator, device=images.device).topk(classes).indices


def _distinct(
    images: ClassImages, batch: int, length: int, classes: int | None, generator: torch.Generator | None
) -> Int64[Tensor, "B T"]:
    """The numbers of images of some classes, or of all, none twice in an episode.

    To draw with weights p and draw again what has come is to take the largest of ln(u) / p, with u uniform on
    (0, 1) for each image (Efraimidis and Spirakis, 2006). Class first, then image: p is 1 / (images of the class).
    """
    n, most, device = classes or images.num_classes, images.sizes[-1], images.device
    if (least := images.fewest(n)) < length:
        raise ValueError(
            f"length: expected at most {least} with distinct images, as {n} of the {images.num_classes} "
            f"classes of {images.name}/{images.split} may have no more, got {length}"
        )
    if classes is None:
        chosen = torch.arange(n, device=device).expand(batch, n)
    else:
        chosen = _some(images, batch, n, generator)
    count, which = images.count[chosen][..., None], torch.arange(most, device=device)
    u = torch.rand(batch, n, most, generator=generator, device=device, dtype=torch.float64)
    first = (u.log() * count).masked_fill(which >= count, -torch.inf).flatten(1).topk(length).indices
    return images.start[chosen.gather(1, first // most)] + first % most


def check_generator(generator: torch.Generator | None, device: torch.device) -> None:
    """Check that a generator, if one is given, is where the images are; one of "cuda" is of any GPU."""
    its = device if generator is None else generator.device
    if its.type != device.type or len({its.index, device.index} - {None}) > 1:
        raise ValueError(
            f"generator: expected one on {device} where the images are, got one on {its}; "
            f"torch.Generator('{device}') makes one"
        )
