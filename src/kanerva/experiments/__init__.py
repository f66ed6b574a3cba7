"""The paper's experiments, and what its reviewers asked for: each computes numbers, writes JSON, draws figures."""

import glob
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .base import Experiment


class Entry(NamedTuple):
    """Where an experiment is, and what it is, in words for somebody who has not read the paper."""

    module: str
    kind: str
    line: str
    title: str
    about: str
    figures: dict[str, str]
    """What each figure shows, by the end of its name."""


EXPERIMENTS = {
    "capacity": Entry(
        "capacity",
        "Capacity",
        "How well images are recalled as more of them are stored.",
        "Capacity",
        "Episodes of growing length are written into one memory, and every image is then read back. A memory has "
        "a fixed number of rows, so that the more images share them, the worse each is remembered; images of few "
        "classes are alike, and share better. The paper claims that the curves stay flat far beyond the length "
        "that the model was trained with.",
        {
            "": "The score against the number of images in memory, how far a read-out is from its image, and how "
            "often no other stored image is nearer. The dotted line is where there are as many images as rows.",
        },
    ),
    "denoising": Entry(
        "denoising",
        "Denoising",
        "How much of a damaged image recall mends, step by step.",
        "Denoising",
        "Stored images are damaged in ways that training never showed, and the memory is asked for them. Each "
        "step of recall finds where in memory the image may be, reads what is there, and goes on from that. "
        "Least-squares is the paper's rule; descent goes down an energy that knows of the damage, and can be told "
        "what it is like; stochastic is a Markov chain. The yardstick, the nearest stored image, needs all images "
        "to be kept, which a memory does not do.",
        {
            "pictures": "Originals, damaged cues, and what recall makes of them.",
            "steps": "Errors, energy and the share of right answers at every step, from the damage of the paper.",
            "grid": "The last step, for more and less noise (above) and for other kinds of damage (below).",
        },
    ),
    "sampling": Entry(
        "sampling",
        "Sampling",
        "New images like those in memory, and whether recall improves them.",
        "Sampling",
        "Weights are drawn at random, read from a written memory, and improved by the steps of recall. Samples "
        "should come to look like what was stored without being copies of it, or of training images, and should "
        "come from all of the memory. Fresh images of the same kind, which were not stored, say how far away new "
        "ones are.",
        {
            "pictures": "What was written (above), and samples at some steps of each way to recall (below).",
            "steps": "The energy of samples, and their distance to the nearest stored image, at every step.",
            "novelty": "How far samples are from the nearest stored and the nearest training image, beside fresh "
            "images; and how evenly they are spread over the stored ones.",
            "chains": "How fast Markov chains forget where they began: the autocorrelation of their energy.",
        },
    ),
    "basins": Entry(
        "basins",
        "Basins",
        "How far from a stored image recall may start and still arrive at it.",
        "Basins of attraction",
        "If a stored image is an attractor, recall that starts near it ends at it, and all the places from which "
        "it does are its basin. Recall starts from more and more noise, and with more and more images in memory, "
        "and one counts where it ends: nearest to the right image, at it but for a few pixels, at another, or "
        "nowhere, where the image goes blank.",
        {
            "recovery": "Where recall ends, against noise (left) and against the number of images in memory "
            "(right).",
            "energy": "The energy on the plane through the addresses of three stored images, and paths of recall "
            "as they are seen from above. It is a slice: paths leave the plane, by the distances in the titles.",
        },
    ),
    "order": Entry(
        "order",
        "Order",
        "Whether it matters in which order images are written.",
        "Order of writing",
        "An episode is a set, but images are written one by one, and each is placed by what the memory held when "
        "it came. The same images are written in several orders, by this model and by one that was never trained, "
        "and what comes of it is compared; a spread of zero would mean that the order does not matter.",
        {
            "": "How much scores, read-outs and the memory itself differ between orders, before training and "
            "after it; and by how much the weights that were used for writing are out of date when all is "
            "written.",
            "refinement": "The score, the score with what the memory takes, and the spread over orders, when "
            "each image is placed more than once, or several at a time.",
        },
    ),
    "fixed-points": Entry(
        "fixed_points",
        "FixedPoints",
        "Whether recall stays at stored images, and is stable there.",
        "Fixed points",
        "Recall starts at clean stored images, which in theory are fixed points: it should stay there. One sees "
        "how far it moves, and whether it comes to rest, goes round in a cycle, or neither; and whether small "
        "deviations die out, which they do where the spectral radius is below 1. Images that were not stored are "
        "the contrast.",
        {
            "": "How far recall moves from stored and from other images, how many stored images move how far, and "
            "how recall ends.",
            "stability": "Spectral radii of the smooth map of recall: at the image, where recall ends, and where "
            "iterating the map leads. Left of the dashed line small deviations die out.",
            "pictures": "Stored images, what one step of recall makes of them, and where recall ends.",
        },
    ),
}


def find(name: str) -> "type[Experiment]":
    """The class of an experiment, imported now and not before: the list of them is to be quick."""
    entry = EXPERIMENTS[name]
    kind: type[Experiment] = getattr(importlib.import_module(f"{__name__}.{entry.module}"), entry.kind)
    return kind


def figures(path: Path) -> list[Path]:
    """The pictures (PNG) beside a file of results: NAME.png, NAME-END.png."""
    ends = sorted(path.parent.glob(f"{glob.escape(path.stem)}-*.png"))
    return [file for file in (path.with_suffix(".png"), *ends) if file.is_file()]
