"""What a run is made of, as frozen dataclasses. Every field is a flag of `kanerva train`."""

import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Literal, get_args

import torch

from .. import data
from ..data import ClassImages
from ..kernels import BACKENDS, Backend
from ..models import BaseConfig, DKMConfig
from ..models.base import CodecModelConfig, find
from ..support import checks

Word = Literal["float32", "bfloat16", "uncaptured", "compiled", "uncompiled", Backend]
# The words of `compute` that answer the same question.
PRECISIONS, COMPILES = ("float32", "bfloat16"), ("compiled", "uncompiled")

MOST = 2**53  # steps: all that a float can count, which the schedule of the learning rate is computed in


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are read."""

    dataset: str = "glyphs"
    """glyphs (built in), omniglot, mazes (kanerva[mazes]), or the path of your own images: a folder or a file."""
    data_dir: str | None = None
    """Where the files of omniglot are; else $KANERVA_DATA, else the user's cache."""
    size: int | None = None
    """Your own images: resize to this height and width. Mazes: 32 (as the paper has them) or 64."""
    binary: float | None = None
    """Your own images: black and white, split at this share of full brightness; otherwise grey or colour."""
    invert: bool = False
    """Your own images: exchange dark and light; binary images want the pattern light (1) on dark (0)."""
    channels: int | None = None
    """Your own images: 1 for grey, 3 for colour; otherwise as they come."""
    mazes: int | None = None
    """Mazes: how many to train on, 64 frames each; 1,000 unless told. The others stay the same."""
    split: Literal["train", "train+validation"] = "train"
    """What to train on. With train+validation no images are left to choose weights by: the last ones are kept."""

    def load(self, device: torch.device | str = "cpu", *splits: str) -> tuple[ClassImages, ...]:
        """Images on a device: of these splits, or those to train on and those to validate with.

        An option that the data set does not have is an error.
        """
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        first, *others = splits or (self.split, "validation")
        given = {name: value for name, value in given.items() if name not in ("dataset", "split")}
        found = [data.load(self.dataset, first, **given).to(device)]
        with warnings.catch_warnings():  # what was left out has been said
            warnings.filterwarnings("ignore", r"(?s).* files left out: ")
            return (*found, *(data.load(self.dataset, split, **given).to(device) for split in others))

    def other(self, dataset: str | None = None, data_dir: str | None = None) -> "DataConfig":
        """The same images, or those of another data set, with the options that it has too, to try a model on.

        Of mazes, as many to train on as usual: more would have to be drawn, and are not asked for anything.
        """
        name = dataset or self.dataset
        shared = {key: getattr(self, key) for key in data.options(name) if hasattr(self, key) and key != "mazes"}
        return DataConfig(name, split=self.split, **(shared | ({"data_dir": data_dir} if data_dir else {})))


@dataclass(frozen=True)
class TrainConfig:
    """Steps, episodes, loss, learning rate and device."""

    steps: int = 10_000
    """Steps of the whole run; a resumed run may have more, and its schedule is then that of the new number."""
    batch: int = 16
    """Episodes in a step, over all processes."""
    lengths: tuple[int, ...] = (32,)
    """Episode length T, drawn anew for each step; repeat an entry to draw it more often."""
    related: tuple[int, int, float] | None = None
    """CLASSES UNWRITTEN SHARE: in this share of steps, the images of an episode are of so many classes (0: of any),
    and so many of them are read but not written, so that the memory learns to tell of new ones. None: all are of
    any class, and written."""
    start: str | None = None
    """Begin with the weights of another model: a checkpoint, the folder of a run, or a pretrained model. It may be
    of another kind; what it does not have begins as usual."""
    autoencoder: float = 1.0
    """Weight of L_AE, the error of the codec without the memory, in the loss; the paper's is 1."""
    bound: Literal["L", "strict", "B"] = "L"
    """L: the paper's L_T + L_AE, read from the mean of M. strict: the same, read from an M that is drawn from q(M),
    which makes L_T a strict bound. B: the one-pass bound B_T + L_AE, for online use."""
    intermediate: int = 0
    """Bound B: also this many earlier B_t, evenly spaced."""
    lr: float = 1e-3
    """The learning rate of Adam; the paper's is 1e-4."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """The learning rate: constant (the paper); or cosine: it rises to lr over the first tenth of the run, or 500
    steps of a long one, and falls to zero as half a cosine."""
    clip: float = 10.0
    """Greatest norm of the gradient; 0 leaves it as it is."""
    average: float = 0.0
    """Decay of the running average of the weights that is evaluated and saved beside them; 0 keeps none."""
    augment: float = 0.0
    """Share of the run, from its beginning, in which images are changed by small random affine maps; 0 is never. An
    end without them pays, since changed images are harder than those of tests."""
    mirror: bool = False
    """Mirror half of the training images, left and right: for views and objects, not for characters."""
    seed: int = 0
    """Decides the first weights and, with the step, all that is drawn."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, …"""
    compute: tuple[Word, ...] = ()
    """How to compute, where the choice should not be automatic: words in any order. The codec in float32 or
    bfloat16 (automatic on a GPU), compiled (automatic on a GPU with a C compiler; half a minute) or uncompiled;
    steps uncaptured, where on CUDA each is one graph launch; episodes written by reference, gram, cpu or triton."""
    evaluate_every: int = 1_000
    """Steps between evaluations on validation images, each followed by a checkpoint (last.safetensors); also after
    the last step. Ctrl-C makes a checkpoint too."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is not finite stops the run (the state is saved to look at), or skips the step."""

    def __post_init__(self) -> None:
        checks.fields(self, steps=1, batch=1, lengths=1, intermediate=0, lr=0, clip=0, autoencoder=0, augment=0)
        checks.fields(self, average=0, evaluate_every=1)
        checks.seed(self.seed)
        for name, sound, wanted in (
            ("steps", self.steps < MOST, "less than 2^53"),
            ("average", self.average < 1, "a decay from 0 to less than 1"),
            ("augment", self.augment <= 1, "a share from 0 to 1"),
            ("intermediate", not self.intermediate or self.bound == "B", f"0 with bound {self.bound}"),
            ("related", sensible(self.related, min(self.lengths)), RELATED),
            (
                "related",
                self.bound != "B" or not self.unwritten,
                "all written with bound B",
            ),
            ("compute", once(self.compute), f"words of {', '.join(get_args(Word))}, no two of which contradict"),
        ):
            if not sound:
                raise ValueError(f"{name}: expected {wanted}, got {getattr(self, name)}")

    @property
    def unwritten(self) -> int:
        """Images of an episode of related ones that are read but not written."""
        return 0 if self.related is None else self.related[1]

    @property
    def warmup(self) -> int:
        """Steps over which the learning rate rises."""
        return 0 if self.schedule == "constant" else min(500, self.steps // 10)

    @property
    def log_every(self) -> int:
        """Steps between lines of metrics.jsonl."""
        return max(1, min(50, self.steps // 50))

    def word(self, words: tuple[str, ...]) -> str:
        """Which of these words `compute` has; auto if none."""
        return next((word for word in words if word in self.compute), "auto")


RELATED = "CLASSES (0: any), UNWRITTEN (fewer than an episode has) and a SHARE of steps above 0 and up to 1"


def sensible(related: tuple[int, int, float] | None, shortest: int) -> bool:
    """Whether an episode of the shortest length can be so."""
    if related is None:
        return True
    classes, unwritten, share = related
    return classes >= 0 and 0 <= unwritten < shortest and (classes or unwritten) > 0 and 0 < share <= 1


def once(compute: tuple[str, ...]) -> bool:
    """Whether words answer each question once at most."""
    questions = (PRECISIONS, COMPILES, BACKENDS)
    return set(compute) <= set(get_args(Word)) and all(sum(w in words for w in compute) < 2 for words in questions)


@dataclass(frozen=True)
class RunConfig:
    """A whole run."""

    model: BaseConfig = field(default_factory=DKMConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


def with_model(config: RunConfig, name: str) -> RunConfig:
    """The same run with another kind of model, which takes over the images and the codec."""
    kind, old = find(name).Config, config.model
    names = {f.name for f in fields(kind)} & {f.name for f in fields(CodecModelConfig)}
    return replace(config, model=kind(**{name: getattr(old, name) for name in names if hasattr(old, name)}))
