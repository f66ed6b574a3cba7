"""Which of the known words was probably meant."""

import difflib
from collections.abc import Iterable

# What other programs call our flags.
ALIASES = {
    "learning-rate": "lr",
    "batch-size": "batch",
    "epochs": "steps",
    "max-steps": "steps",
    "num-steps": "steps",
    "wd": "weight-decay",
    "output": "out",
    "output-dir": "out",
    "data": "dataset",
    "ema": "average",
    "gpu": "device",
    "force": "overwrite",
}


def close(word: object, words: Iterable[str]) -> str | None:
    """The nearest of the words, if one is close."""
    found = difflib.get_close_matches(str(word), list(words), n=1, cutoff=0.5)
    return found[0] if found else None


def nearest(word: object, words: Iterable[str]) -> str:
    """Say which of the words was probably meant, if one is close."""
    found = close(word, words)
    return f"; did you mean {found!r}?" if found and found != str(word) else ""


def flag(name: str, flags: Iterable[str]) -> str:
    """`nearest` for flags, without their dashes; knows the names that other programs give them."""
    flags = list(flags)
    name = name.rsplit(".", 1)[-1]
    alias = ALIASES.get(name, name)
    found = close(alias, flags) if alias == name else alias if alias in flags else None
    return f"; did you mean --{found}?" if found else ""
