#!/usr/bin/env python3
"""Draw the glyphs of kanerva.data.glyphs, from the fonts that matplotlib ships: python benchmarks/glyphs.py [FILE]

Letters and digits of DejaVu Sans, Serif and Mono in their twelve faces; a class is a character, its 20 images are
that character in the faces that have it, each a little turned, sheared, scaled and shifted. 28×28, binary. The file
in the package was drawn with matplotlib 3.11.2 and Pillow 13.0.0; other versions may move single pixels.
"""

import argparse
import unicodedata
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from kanerva.data import glyphs
from kanerva.support.say import bar

# Seeds the random maps, beside the character.
RECIPE = 1
SIZE = 28
VARIANTS = 20
# The longer side of a character before its random scale; Omniglot's characters fill about as much.
BODY = 20.0
# Pixels per em in the drawing that variants are taken from: fine enough that no step shows at 28×28.
EM = 96
# Left out below this share of the em: dots, rings and strokes that are marks rather than characters.
LEAST = 0.3
# The share of the square that ink may cover: below are a few dots, above bold faces whose holes have closed.
LIGHT, HEAVY = 0.03, 0.3
# Two characters are one class when, laid over each other, this share of their joint ink or less is not common.
ALIKE = 0.25
# Upright before slanted and regular before bold: the first face that has a character decides what it looks like.
FACES = (
    "DejaVuSans",
    "DejaVuSerif",
    "DejaVuSansMono",
    "DejaVuSans-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSansMono-Oblique",
    "DejaVuSans-Oblique",
    "DejaVuSerif-Bold",
    "DejaVuSansMono-Bold",
    "DejaVuSerif-BoldItalic",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono-BoldOblique",
)

Array = np.ndarray[Any, np.dtype[Any]]


def draw(limit: int | None = None) -> dict[str, Array]:
    """Draw every class, or the first `limit`: packed bits (classes, VARIANTS, SIZE × SIZE / 8) and code points."""
    fonts = _fonts()
    points = distinct(candidates(fonts), fonts, limit)
    images = np.empty((len(points), VARIANTS, SIZE, SIZE), bool)
    with bar("drawing glyphs", len(points)) as step:
        for image, point in zip(images, points, strict=True):
            image[:] = variants(point, fonts)
            step(1)
    return {
        "bits": np.packbits(images.reshape(len(points), VARIANTS, -1), axis=-1),
        "points": np.array(points, np.int64),
    }


def candidates(fonts: dict[str, "Face"]) -> list[int]:
    """List the characters to choose from: letters and digits as they stand, then joined forms of Arabic letters.

    Letters that Unicode takes apart (é is e and an accent; mathematical and small raised letters) are left out:
    there are many, and they differ too little from each other.
    """
    known = set().union(*(font.points for font in fonts.values()))
    plain = [p for p in known if _category(p) and not unicodedata.decomposition(chr(p))]
    joined = [p for p in known if _joined(unicodedata.decomposition(chr(p)))]
    return sorted(plain) + sorted(joined)


def _category(point: int) -> bool:
    return unicodedata.category(chr(point)) in ("Lu", "Ll", "Lt", "Lo", "Nd")


def _joined(decomposition: str) -> bool:
    """Say whether this is a letter as it stands inside a word, and not a mark on a connecting line (0640)."""
    return decomposition.startswith(("<initial>", "<medial>", "<final>")) and " 0640" not in decomposition


class Face:
    """One font file: which characters it has, and what they look like."""

    def __init__(self, path: Path) -> None:
        # Only these: for any other the font would draw the box that stands for a missing character.
        self.points = set(FT2Font(str(path)).get_charmap())
        # The basic layout draws a character as it is, with or without the shaping library.
        self.font = ImageFont.truetype(str(path), EM, layout_engine=ImageFont.Layout.BASIC)

    def glyph(self, point: int) -> Array | None:
        """Draw a character in grey, cut to its ink; None where there is none."""
        if point not in self.points:
            return None
        left, top, right, bottom = (int(x) for x in self.font.getbbox(chr(point)))
        image = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
        ImageDraw.Draw(image).text((-left, -top), chr(point), fill=255, font=self.font)
        grey = np.asarray(image)
        rows, columns = np.flatnonzero(grey.any(1)), np.flatnonzero(grey.any(0))
        return grey[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] if len(rows) else None


def _fonts() -> dict[str, Face]:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return {name: Face(folder / f"{name}.ttf") for name in FACES}


def distinct(points: list[int], fonts: dict[str, Face], limit: int | None = None) -> list[int]:
    """Keep the characters that look like none before them (Latin A, but not Greek Alpha), or the first `limit`.

    Each is drawn upright and filling its square, and compared with those kept at every shift of up to one pixel:
    |a xor b| ≤ ALIKE |a or b| is alike.
    """
    kept: list[int] = []
    known = np.zeros((len(points), SIZE * SIZE), np.float32)
    ink = np.zeros((len(points), 1), np.float32)
    for point in points:
        if len(kept) == limit:
            break
        grey = next((g for font in fonts.values() if (g := font.glyph(point)) is not None), None)
        if grey is None or max(grey.shape) < LEAST * EM or _ink(grey) < LIGHT:
            continue
        image = place(grey, np.eye(2) * BODY / max(grey.shape))
        wide, n = np.pad(image, 1), len(kept)
        shifts = [wide[y : y + SIZE, x : x + SIZE].ravel() for y in range(3) for x in range(3)]
        both = known[:n] @ np.array(shifts, np.float32).T
        either = ink[:n] + image.sum() - both
        if n == 0 or bool((either - both > ALIKE * either).all()):
            known[n], ink[n] = image.ravel(), image.sum()
            kept.append(point)
    return kept


def variants(point: int, fonts: dict[str, Face]) -> Array:
    """Draw the images of one class, from the faces in turn, by random maps that depend on the character alone."""
    random = np.random.default_rng([RECIPE, point])
    greys = [grey for font in fonts.values() if (grey := font.glyph(point)) is not None]
    greys = [grey for grey in greys if _ink(grey) <= HEAVY] or greys
    return np.stack([_variant(greys[i % len(greys)], random) for i in range(VARIANTS)])


def _ink(grey: Array) -> float:
    """Say which share of the square a drawing will cover before its random scale."""
    return float(grey.sum() / 255 * (BODY / max(grey.shape) / SIZE) ** 2)


def _variant(grey: Array, random: np.random.Generator) -> Array:
    angle, shear, stretch, size, *shift = random.uniform(-1, 1, 6)
    cos, sin = np.cos(np.radians(10 * angle)), np.sin(np.radians(10 * angle))
    turn = np.array([[cos, -sin], [sin, cos]]) @ [[1, 0.15 * shear], [0, 1]] @ np.diag([1 + 0.1 * stretch, 1])
    height, width = grey.shape
    linear = turn * (BODY / max(height, width)) * (1 + 0.1 * size)
    # All of it stays inside, a pixel from the edge: smaller if need be, and shifted no further than there is room.
    extent = np.abs(linear) @ [width, height]
    fit = min(1.0, (SIZE - 2) / extent.max())
    room = np.minimum(2.0, (SIZE - 2 - fit * extent) / 2)
    return place(grey, fit * linear, room * shift)


def place(grey: Array, linear: Array, shift: Array | tuple[float, float] = (0.0, 0.0)) -> Array:
    """Map a grey drawing by x ↦ linear x + shift about the middle, and set pixels half covered or more."""
    fine = 4  # each pixel is the mean of 4×4
    height, width = grey.shape
    edge = 2  # so that the drawing fades out instead of ending
    back = np.linalg.inv(linear)
    origin = np.array([width, height]) / 2 + edge - back @ (np.array([SIZE, SIZE]) / 2 + np.asarray(shift))
    coefficients = (*back[0] / fine, origin[0], *back[1] / fine, origin[1])
    image = Image.fromarray(np.pad(grey, edge)).transform(
        (SIZE * fine, SIZE * fine), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR
    )
    return np.asarray(image.reduce(fine)) >= 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=glyphs.FILE)
    with parser.parse_args().file.open("wb") as file:
        np.savez_compressed(file, **draw())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
