"""Which of the known words was probably meant."""

import difflib
from collections.abc import Iterable


def nearest(word: object, words: Iterable[str]) -> str:
    """Say which of the words was probably meant, if one is close."""
    found = difflib.get_close_matches(str(word), list(words), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found and found[0] != str(word) else ""
