"""What a saved memory says of itself, for `kanerva inspect`."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..memory import MemoryState, frame
from ..models import DKM
from ..models.checkpoint import load_state
from ..nn import Memory
from ..support.linalg import together
from ..support.say import bar

LINEAR = (
    "none can be found without a cue: with this codec of grey or colour images, mixtures of stored images pass for "
    "images too. Only codecs of black and white images tell them apart"
)
FULL = "yes: it may hold more images than it can tell apart, or another model wrote it; then none are found"


def chosen(layer: Memory, path: Path, number: int) -> tuple[MemoryState, int]:
    """The memory of a number in a file that a model wrote, and how many there are."""
    state = load_state(path)
    layer.inverse(state)  # which refuses what is no memory of this model
    batch = together(*(part.shape[:-2] for part in state))
    count = math.prod(batch)
    if not count:
        raise ValueError(f"{path}: expected a memory, got R of shape {tuple(state.R.shape)}, which is none")
    if not 0 <= number < count:
        raise ValueError(f"number: expected 0 to {count - 1}, as {path} has them, got {number}")
    place = np.unravel_index(number, batch)  # the others are not written out
    one = MemoryState(*(part.expand(*batch, -1, -1)[place] for part in state))
    layer.kl(one)  # which refuses a U that is no covariance
    return one, count


def inside(model: DKM, state: MemoryState) -> tuple[dict[str, Any], Float[Tensor, "n c h w"]]:
    """What a memory says of itself, and the images that are found in it."""
    with torch.no_grad():
        known = frame(state, model.R0, model.prior_var, model.noise_var)
        total, done = int(known.distinct), 0
        with bar("inspect", total) as advance:

            def callback(found: int, _: int) -> None:
                nonlocal done
                advance(found - done)
                done = found

            found = model.contents(state, callback)
        times = model.contains(state, found.x).tolist() if len(found.x) else []
    full = total >= min(state.R.shape)
    about = {
        "rows": model.config.rows,
        "code size": model.config.code,
        "writes told apart": int(known.rank),
        "different images": total,
        "full": FULL if full else "no",
        "found": len(found.x),
        **({"note": why} if (why := lacking(model.config.binary, total, len(found.x))) and not full else {}),
        "images": {
            str(i + 1): {"written": count if count > 0 else None, "cost": float(f"{cost:.2g}")}
            for i, (count, cost) in enumerate(zip(times, found.cost.tolist(), strict=True))
        },
    }
    return about, found.x


def lacking(binary: bool, total: int, found: int) -> str:
    """Why not all that a memory holds was found; empty if it was."""
    if found >= total:
        return ""
    if not (found or binary):
        return LINEAR
    return f"the search ended before {total - found} of {total} were found; recall from a cue may find them"


def often(written: int | None) -> str:
    """How often an image was written; None of one that is not exact."""
    if written is None:
        return "near to one that was written, but for a few pixels"
    return "written once" if written == 1 else f"written {written} times"
