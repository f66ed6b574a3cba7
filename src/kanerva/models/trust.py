"""read_noise="image": an encoder that gives each number of a code a precision. Only `omniglot-new` has it.

It puts out N(mean, var), as that of a VAE: what is known of a code by its image and a prior N(0, I). The mean is
written. Without the prior it is what the image alone says, which any memory can be read with:

    N(mean, var) / N(0, 1) ∝ N(seen, 1 / known)    known = 1 / var − 1    seen = mean (1 + 1 / known)
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..recall.retriever import Cue

SHARP = 10.0
"""How sharply trust bends where var comes to 1, beyond which an image would say less than nothing of its code."""
LOG_PRECISION = 0.01, 10.0
"""Bounds of −ln var, and so of trust: 0.01 to e^10. Less, and a number that an image says nothing of could have any
size; more, and float32 would lose what the other numbers say. Trained on Omniglot, 6 % of numbers have the least
trust, where var has no gradient; the most is 6,250."""
GENTLE = 3.0
"""ln noise_var at first with read_noise image; trained on Omniglot, it is still 3.0."""


def cue(out: Float[Tensor, "*b n"]) -> Cue:
    """What such an encoder has put out, as a cue with precisions."""
    mean, log_var = out.chunk(2, dim=-1)
    known = softplus(-log_var, SHARP).clamp(*LOG_PRECISION).expm1()  # 1 / var − 1, but above 0
    return Cue(mean, mean * (1 + 1 / known), known)


@torch.no_grad()
def begin(model: Any) -> None:
    """Let each row of a blank memory hold a number of the code.

    With weights full, q(w) in a blank memory is then N(mean, var) of these numbers, and reads are w: a VAE.
    """
    model.memory.R0.copy_(torch.eye(model.config.code)[: model.config.rows])
    model.memory.log_noise_var.fill_(GENTLE)
    if model.config.weights == "full":
        model.log_weight_var.zero_()
    alike(model)


@torch.no_grad()
def alike(model: Any) -> None:
    """Let the encoder say var = ½ of every number, which is a trust of 1."""
    C = model.config.code
    nn.init.zeros_(model.encoder.out.weight[C:])
    nn.init.constant_(model.encoder.out.bias[C:], math.log(0.5))
