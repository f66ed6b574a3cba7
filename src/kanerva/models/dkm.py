"""DKM: owns every parameter and strings the parts together. No loop over time and no linear algebra here."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import checks, kernels, memory, storage
from ..codec import Decoder, Encoder
from ..config import ModelConfig, from_dict, to_dict
from ..likelihood import Bernoulli, Gaussian, Likelihood
from ..memory import Inverse, MemoryState
from ..recall import methods as dynamics
from ..recall.methods import Recall


class Terms(NamedTuple):
    """The terms of the bounds, in nats; objective.py weighs them."""

    log_lik: Float[Tensor, "*b T"]
    log_lik_auto: Float[Tensor, "*b T"]
    kl_weights: Float[Tensor, "*b T"]
    kl_memory: Float[Tensor, "*b"]


class DKM(nn.Module):
    """The Dynamic Kanerva Machine [sec. 3]: write images into a memory, recall them from cues, draw new ones."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ModelConfig()
        self.encoder = Encoder(config.image, config.code, config.codec)
        self.decoder = Decoder(config.image, config.code, config.codec)
        # start values of app. B; variances are learned through their logarithms
        self.R0 = nn.Parameter(torch.randn(config.rows, config.code))
        self.log_prior_var = nn.Parameter(torch.tensor(0.0))
        self.log_weight_var = nn.Parameter(torch.tensor(math.log(0.3)))
        self.log_noise_var = nn.Parameter(torch.tensor(0.0))
        if config.likelihood == "gaussian":
            self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.codec_dtype: torch.dtype | None = None
        """bfloat16 runs the codec in it; the memory stays in float32."""
        self.backend: str = "auto"
        """How an episode is written; auto takes the fastest that fits."""

    @property
    def prior_var(self) -> Float[Tensor, ""]:
        """σ²_U, the variance of the memory before anything is written."""
        return self.log_prior_var.exp()

    @property
    def weight_var(self) -> Float[Tensor, ""]:
        """σ²_w, the variance of q(w) (isotropic), or the scale of its covariance (full)."""
        return self.log_weight_var.exp()

    @property
    def noise_var(self) -> Float[Tensor, ""]:
        """σ²_ξ, the variance of codes around what the memory reads."""
        return self.log_noise_var.exp()

    def encode(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b C"]:
        """Images to codes, z = e(x)."""
        self.check_images(x)
        with self._codec_precision(x):
            z = self.encoder(x.flatten(0, -4) if x.ndim > 3 else x[None])
        return z.to(self.R0.dtype).reshape(*x.shape[:-3], self.config.code)

    def decode(self, z: Float[Tensor, "*b C"]) -> Likelihood:
        """Codes to distributions over images, p(x | z) = d(z)."""
        checks.tensor("z", z, ("C",), {"C": self.config.code}, like=self.R0, source="the model's code size")
        with self._codec_precision(z):
            out = self.decoder(z.flatten(0, -2) if z.ndim > 1 else z[None])
        out = out.to(self.R0.dtype).reshape(*z.shape[:-1], *self.config.image)
        if self.config.likelihood == "bernoulli":
            return Bernoulli(out)
        return Gaussian(out, self.config.min_scale + self.log_scale.exp())

    def prior(self, batch: tuple[int, ...] = ()) -> MemoryState:
        """The memory before anything is written."""
        return memory.prior(self.R0, self.prior_var, batch)

    def write(self, x: Float[Tensor, "*b T c h w"], state: MemoryState | None = None) -> MemoryState:
        """Write images into a memory, a blank one unless `state` says which [alg. 1]."""
        self.check_images(x, "T")
        state = self.prior(tuple(x.shape[:-4])) if state is None else state
        return self._write(state, self.encode(x))[0]

    def forward(self, x: Float[Tensor, "*b T c h w"], generator: torch.Generator | None = None) -> Terms:
        """Write an episode, read it back with sampled weights, and return the terms of L_T and L_AE [alg. 1]."""
        z = self.encode(x)
        state, _, log_det, inverse = kernels.write_and_invert(
            self.prior(tuple(x.shape[:-4])), z, self.noise_var, *self._how()
        )
        w = memory.address(z, state, self.noise_var, inverse)
        log_lik, log_lik_auto = self._log_lik(x, z, state, w, inverse, generator)
        kl_memory = memory.kl_prior(state, self.R0, self.prior_var, log_det)
        return Terms(log_lik, log_lik_auto, self.kl_weights(w, inverse), kl_memory)

    def online(
        self, x: Float[Tensor, "*b T c h w"], intermediate: int = 0, generator: torch.Generator | None = None
    ) -> list[Terms]:
        """The terms of B_T, and of `intermediate` earlier B_t, in one pass over the episode [app. C, app. F].

        Weights are those found while writing, and KL(M) is KL(M_t ‖ M_{t−1}) + KL(M_{t−1} ‖ prior) [eq. B_def].
        """
        z, T = self.encode(x), x.shape[-4]
        prior = state = self.prior(tuple(x.shape[:-4]))
        w, done, bounds = z.new_zeros(*z.shape[:-2], 0, self.config.rows), 0, []
        for t in sorted({T * (i + 1) // (intermediate + 1) for i in range(intermediate + 1)} - {0}):
            before, w1 = self._write(state, z[..., done : t - 1, :])
            state, w2 = self._write(before, z[..., t - 1 : t, :])
            w, done = torch.cat([w, w1, w2], dim=-2), t
            inverse = self.inverse(state)
            log_lik, log_lik_auto = self._log_lik(x[..., :t, :, :, :], z[..., :t, :], state, w, inverse, generator)
            kl = memory.kl_memory(state, before) + memory.kl_memory(before, prior)
            bounds.append(Terms(log_lik, log_lik_auto, self.kl_weights(w, inverse), kl))
        return bounds[::-1]

    def recall(
        self,
        state: MemoryState,
        x: Float[Tensor, "*b Q c h w"],
        steps: int = 15,
        method: str = "least-squares",
        **options: Any,
    ) -> Recall:
        """Clean up cues by attractor dynamics: a trajectory of `steps` images, weights and energies [sec. 3.5].

        method: least-squares (the paper's), descent (knows, or finds out, how cues were corrupted, and never raises
        the energy) or stochastic. Options are those of `dynamics.recall`.
        """
        return dynamics.recall(self, state, x, steps, method, **options)

    def sample(
        self,
        state: MemoryState,
        n: int,
        steps: int = 15,
        generator: torch.Generator | None = None,
        method: str = "least-squares",
        **options: Any,
    ) -> Recall:
        """Draw n images like those written: w ~ p(w), then attractor dynamics [sec. 3.5].

        Options are those of `dynamics.sample`: temperature, callback.
        """
        return dynamics.sample(self, state, n, steps, generator, method, **options)

    def energy(
        self, state: MemoryState, x: Float[Tensor, "*b Q c h w"], w: Float[Tensor, "*b Q K"]
    ) -> Float[Tensor, "*b Q"]:
        """The energy of images and weights together [sec. 3.5]."""
        return dynamics.energy(self, state, x, w)

    def inverse(self, state: MemoryState) -> Inverse:
        """(R Rᵀ + noise_var I)⁻¹ of a memory: what all reads of it share."""
        plain = self.config.iterations > 1 or self.config.block > 1  # written, then, by the reference
        return kernels.inverse(state, self.noise_var, "reference" if plain else self.backend)

    def kl_weights(self, w: Float[Tensor, "*b T K"], inverse: Inverse) -> Float[Tensor, "*b T"]:
        """KL(q(w) ‖ p(w)) for q with mean w and the model's covariance in the memory that `inverse` is of."""
        if self.config.weights == "isotropic":
            return memory.kl_weights(w, self.weight_var)
        return memory.kl_weights_full(w, inverse, self.noise_var, self.weight_var)

    def draw_weights(
        self,
        w: Float[Tensor, "*b T K"],
        state: MemoryState,
        inverse: Inverse,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*b T K"]:
        """A reparameterised draw from q(w) with mean w."""
        if self.config.weights == "full":
            return memory.draw_weights_full(w, state, inverse, self.noise_var, self.weight_var, generator)
        noise = torch.randn(w.shape, generator=generator, dtype=w.dtype, device=w.device)
        return w + self.weight_var.sqrt() * noise

    def save(self, path: str | Path) -> None:
        """Write the model to one safetensors file, config included; `kanerva.load` reads it."""
        storage.save(path, {f"model.{k}": v for k, v in self.state_dict().items()}, {"model": to_dict(self.config)})

    def _write(self, state: MemoryState, z: Float[Tensor, "*b T C"]) -> tuple[MemoryState, Float[Tensor, "*b T K"]]:
        return kernels.write(state, z, self.noise_var, *self._how())

    def _how(self) -> tuple[int, int, str]:
        return self.config.iterations, self.config.block, self.backend

    def _log_lik(
        self,
        x: Float[Tensor, "*b T c h w"],
        z: Float[Tensor, "*b T C"],
        state: MemoryState,
        w: Float[Tensor, "*b T K"],
        inverse: Inverse,
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "*b T"], Float[Tensor, "*b T"]]:
        """ln p(x) from the memory with sampled weights, and from the codes themselves; one pass of the decoder."""
        read = memory.read(state, self.draw_weights(w, state, inverse, generator))
        both = self.decode(torch.stack([read, z])).log_prob(x.expand(2, *x.shape))
        return both[0], both[1]

    def _codec_precision(self, x: Tensor) -> torch.autocast:
        return torch.autocast(
            x.device.type, self.codec_dtype or torch.bfloat16, enabled=self.codec_dtype is not None
        )

    def check_images(self, x: Tensor, *axes: str) -> None:
        """Check images, with any named axes before them."""
        image = self.config.image
        if x.ndim < 3 + len(axes) or tuple(x.shape[-3:]) != tuple(image):
            wanted = ", ".join(("*b", *axes, *map(str, image)))
            raise ValueError(f"x: expected images of shape ({wanted}), got {tuple(x.shape)}")
        if x.dtype != self.R0.dtype or x.device != self.R0.device:
            raise TypeError(
                f"x: expected {self.R0.dtype} on {self.R0.device} like the model, got {x.dtype} on {x.device}"
            )
        if checks.deep(x):
            low, high = (0.0, 1.0) if self.config.likelihood == "bernoulli" else (-1.5, 1.5)
            if x.numel() and not (x.detach().amin() >= low and x.detach().amax() <= high):
                wanted = "[0, 1]" if self.config.likelihood == "bernoulli" else "about [−1, 1]"
                raise ValueError(
                    f"x: expected pixels on {wanted} for a {self.config.likelihood} likelihood, got "
                    f"{float(x.amin()):.3g} to {float(x.amax()):.3g}"
                )


def load(path: str | Path) -> DKM:
    """Load a model that comes along ("omniglot"), or what `DKM.save` or training wrote (a file, or a run's folder).

    Weights are the averaged ones where there are any.
    """
    path = storage.find(path)
    tensors, about = storage.load(path)
    with torch.inference_mode(False):  # a model that could not be differentiated would be a surprise later
        model = DKM(from_dict(ModelConfig, about.get("model"), f"{path}: model"))
    storage.fill(model, storage.part(tensors, "average.") or storage.part(tensors, "model."), str(path))
    return model.eval()
