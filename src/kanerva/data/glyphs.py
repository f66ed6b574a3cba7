"""Characters of many scripts, drawn from fonts: the data set that needs no download.

Letters and digits of DejaVu Sans, Serif and Mono. A class is a character; its 20 images show it in several faces,
each a little turned, sheared, scaled and shifted. 28×28, binary. benchmarks/glyphs.py drew them all, into the file
beside this one.
"""

from pathlib import Path

import numpy as np

from .episodes import ClassImages, of_bits

FILE = Path(__file__).with_name("glyphs.npz")


def load(split: str = "train") -> ClassImages:
    """Give the characters of a split: 770 to train on, 193 to validate with, 321 to test with."""
    with np.load(FILE) as arrays:
        bits, names = arrays["bits"], [chr(point) for point in arrays["points"]]
    return of_bits(bits, names, split, round(0.6 * len(bits)), round(0.75 * len(bits)), "glyphs")
