"""Models of images: what is asked of any, the DKM, and its rivals, each one file.

base         what does every command ask of a model, and through which door?
dkm          how do a codec and a layer make the Dynamic Kanerva Machine?
trust        how can an encoder say how sure it is of each number of a code?
rivals/      what else could remember images?
checkpoint   what is at a place: a file, the folder of a run, a model that comes along?
"""

from .base import MODELS, BaseConfig, CodecModel, CodecModelConfig, Model, Recall, Terms
from .checkpoint import Checkpoint, create, load, read
from .dkm import DKM, DKMConfig
from .rivals.dnc import DNC
from .rivals.gpm import GPM
from .rivals.hopfield import Hopfield
from .rivals.km import KM
from .rivals.nearest import Nearest
from .rivals.vae import VAE

__all__ = [
    "DKM",
    "DNC",
    "GPM",
    "KM",
    "MODELS",
    "VAE",
    "BaseConfig",
    "Checkpoint",
    "CodecModel",
    "CodecModelConfig",
    "DKMConfig",
    "Hopfield",
    "Model",
    "Nearest",
    "Recall",
    "Terms",
    "create",
    "load",
    "read",
]

MODELS.update({kind.Config.kind: kind for kind in (DKM, KM, GPM, VAE, DNC, Hopfield, Nearest)})
