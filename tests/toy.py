"""A model made as CONTRIBUTING's "To add a model" says: it keeps the mean of what was written, and recalls that."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kanerva.support import checks
from kanerva.likelihood import Bernoulli, Gaussian, Likelihood
from kanerva.models.base import BaseConfig, Model, Recall, Terms


@dataclass(frozen=True)
class MeanConfig(BaseConfig):
    """The mean of images, and of a learned blank one that counts as so many."""

    kind: ClassVar[str] = "mean"

    blank: float = 1.0
    """As how many images the blank one counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, blank=0)


class Sum(NamedTuple):
    """Σ x, and how many there were."""

    total: Float[Tensor, "*b c h w"]
    count: Float[Tensor, "*b"]


class Mean(Model):
    """p(x | memory) = p(x | (Σ_t x_t + blank · x_0) / (T + blank)), x_0 learned."""

    TITLE = "Mean image"
    METHODS = ("mean",)
    Config = MeanConfig

    config: MeanConfig

    def __init__(self, config: MeanConfig | None = None) -> None:
        super().__init__(config)
        self.x0 = nn.Parameter(torch.zeros(self.config.image))
        if not self.config.binary:
            self.log_scale = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None) -> Terms:
        return Terms(self.likelihood(self.write(x), x.shape[-4]).log_prob(x))

    def write(self, x: Float[Tensor, "*b T c h w"], state: Sum | None = None) -> Sum:
        self.check_images(x, "T")
        new = Sum(x.sum(-4), x.new_full(x.shape[:-4], x.shape[-4]))
        if state is None:
            return new
        self.check_state(state, Sum, total=self.config.image)
        return Sum(*(a + b for a, b in zip(state, new, strict=True)))

    def recall(
        self, state: Sum, x: Float[Tensor, "*b Q c h w"], steps: int = 15, method: str | None = None, **options: Any
    ) -> Recall:
        self.check_recall(x, steps, method, options)
        self.check_state(state, Sum, total=self.config.image)
        checks.broadcastable({"state": state.count.shape, "x": x.shape[:-4]})
        mode = self.likelihood(state, x.shape[-4]).mode()
        return Recall(mode.expand(steps, *mode.shape))

    def sample(
        self,
        state: Sum,
        n: int,
        steps: int = 15,
        generator: torch.Generator | None = None,
        method: str | None = None,
        **options: Any,
    ) -> Recall:
        self.check_sample(n, steps, generator, method, options)
        self.check_state(state, Sum, total=self.config.image)
        drawn = self.likelihood(state, n).sample(generator)
        return Recall(drawn.expand(steps, *drawn.shape))

    def kept(self, length: int) -> int:
        return self.x0.numel() + 1

    def likelihood(self, state: Sum, n: int) -> Likelihood:
        """The same distribution for each of n images."""
        blank = self.config.blank
        x0 = self.x0.sigmoid() if self.config.binary else self.x0.tanh()
        mean = (state.total + blank * x0) / (state.count + blank)[..., None, None, None]
        each = mean[..., None, :, :, :].expand(*state.count.shape, n, *self.config.image)
        if self.config.binary:
            return Bernoulli(torch.special.logit(each, eps=1e-3))
        return Gaussian(each, self.log_scale.exp())
