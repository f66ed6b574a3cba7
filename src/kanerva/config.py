"""What a run is made of, as frozen dataclasses, and the named presets. Every field is a flag of the CLI."""

import dataclasses
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from . import data
from .codec import CodecConfig
from .data import ClassImages
from .models import BaseConfig, DKMConfig, find
from .support import checks

MOST = 2**53  # steps: all that a float can count, which the schedule of the learning rate is computed in


@dataclass(frozen=True)
class DataConfig:
    """The images."""

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
        given = {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) != f.default}
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
    """The training run."""

    steps: int = 10_000
    """Steps of the whole run; a resumed run may have more, and its schedule is then that of the new number."""
    batch: int = 16
    """Episodes in a step, over all processes."""
    lengths: tuple[int, ...] = (32,)
    """Episode length T, drawn anew for each step; repeat an entry to draw it more often."""
    classes: int | None = None
    """Classes that an episode keeps to, so that its images are alike; otherwise every image is of any class."""
    unwritten: int = 0
    """Images of each episode that are read but not written, so that the memory learns to tell of new ones."""
    plain: float = 0.0
    """Share of steps, drawn at random, whose episodes are of all classes and written whole all the same."""
    start: str | None = None
    """Begin with the weights of another model: a checkpoint, the folder of a run, or a pretrained model. It may be
    of another kind; what it does not have begins as usual."""
    autoencoder: float = 1.0
    """Weight of L_AE, the error of the codec without the memory, in the loss; the paper's is 1."""
    bound: Literal["L", "B"] = "L"
    """L: the paper's L_T + L_AE. B: the one-pass bound B_T + L_AE, for online use."""
    intermediate: int = 0
    """Bound B: also this many earlier B_t, evenly spaced."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Adam (the paper), or Adam with decoupled weight decay."""
    lr: float = 1e-3
    """The learning rate; the paper's is 1e-4."""
    weight_decay: float = 0.0
    """For adamw."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """The learning rate after the warm-up: constant (the paper), or falling to zero as half a cosine."""
    warmup: int = 100
    """Steps over which the learning rate rises to lr."""
    clip: float = 10.0
    """Greatest norm of the gradient; 0 leaves it as it is."""
    average: float = 0.0
    """Decay of the running average of the weights that is evaluated and saved beside them; 0 keeps none."""
    augment: bool = False
    """Small random affine changes of the training images."""
    unaugmented: float = 0.0
    """With augment: share of the run, its end, whose images are as they are. Changed ones are harder than tests."""
    mirror: bool = False
    """Mirror half of the training images, left and right: for views and objects, not for characters."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the codec; the memory stays in float32. auto: bfloat16 on a GPU, float32 elsewhere."""
    seed: int = 0
    """Decides the first weights and, with the step, all that is drawn."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, …"""
    capture: bool = True
    """On CUDA: run each step as one graph launch, or two with several processes."""
    write: Literal["auto", "reference", "gram", "cpu", "triton"] = "auto"
    """How an episode is written into the memory; auto takes the fastest that fits."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the codec (torch.compile). auto: on a GPU with a C compiler at hand; takes half a minute."""
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    evaluate_every: int = 1_000
    """Steps between evaluations on validation classes; also after the last step. 0: never."""
    evaluate_images: int = 2_048
    """Images in such an evaluation."""
    save_every: int = 1_000
    """Steps between checkpoints (last.safetensors); also after the last step and on Ctrl-C."""
    keep_every: int = 0
    """Steps between checkpoints that are kept for good; 0 keeps none but last and best."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is not finite stops the run (the state is saved to look at), or skips the step."""

    def __post_init__(self) -> None:
        checks.fields(self, steps=1, batch=1, lengths=1, intermediate=0, lr=0, weight_decay=0, warmup=0, clip=0)
        checks.fields(self, log_every=1, evaluate_every=0, evaluate_images=1, save_every=0, keep_every=0)
        checks.seed(self.seed)
        if self.classes is not None:
            checks.count("classes", self.classes)
        checks.fields(self, unwritten=0, plain=0, unaugmented=0, autoencoder=0)
        if self.unwritten >= min(self.lengths):
            raise ValueError(
                f"unwritten: expected less than {min(self.lengths)}, the shortest of lengths, got {self.unwritten}"
            )
        if self.unwritten and self.bound == "B":
            raise ValueError(f"unwritten: expected 0 with bound B, which reads as it writes, got {self.unwritten}")
        for name in ("plain", "unaugmented"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}: expected a share from 0 to 1, got {getattr(self, name)}")
        if self.plain and not self.unwritten and self.classes is None:
            raise ValueError("plain: expected 0 where all episodes are plain: classes and unwritten are not set")
        for name in ("steps", "warmup"):
            if getattr(self, name) >= MOST:
                raise ValueError(f"{name}: expected less than 2^53, got {getattr(self, name)}")
        if not 0 <= self.average < 1:
            raise ValueError(f"average: expected a decay from 0 to less than 1, got {self.average}")
        if self.unaugmented and not self.augment:
            raise ValueError("unaugmented: expected 0 without augment, where no image is changed")
        if self.weight_decay and self.optimizer != "adamw":
            raise ValueError(f"weight_decay: expected 0 with adam, got {self.weight_decay}; adamw has weight decay")


@dataclass(frozen=True)
class RunConfig:
    """A whole run."""

    model: BaseConfig = field(default_factory=DKMConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


# name: (what it is, config)
PRESETS: dict[str, tuple[str, RunConfig]] = {
    "demo": (
        "Built-in glyphs, a few minutes on a laptop's CPU.",
        RunConfig(
            model=DKMConfig(weights="full"),
            data=DataConfig("glyphs"),
            train=TrainConfig(steps=1_000, lr=3e-3, evaluate_every=250, save_every=250, log_every=20),
        ),
    ),
    "omniglot-paper": (
        "The paper's Omniglot model and training to the letter.",
        RunConfig(
            model=DKMConfig(),
            data=DataConfig("omniglot", split="train+validation"),
            train=TrainConfig(steps=300_000, lr=1e-4, schedule="constant", warmup=0, clip=0.0, save_every=5_000),
        ),
    ),
    "omniglot": (
        "The pretrained model: the paper's memory, a wider codec, augmentation, a cosine schedule.",
        RunConfig(
            model=DKMConfig(weights="full", codec=CodecConfig((32, 64, 64), norm="group", activation="silu")),
            data=DataConfig("omniglot"),
            train=TrainConfig(steps=100_000, lr=1e-3, warmup=500, augment=True, average=0.999, save_every=5_000),
        ),
    ),
}


def with_model(config: RunConfig, name: str, **fields: Any) -> RunConfig:
    """The same run with another kind of model, which takes over the settings that the two have in common.

    `fields` are settings of its own.
    """
    kind, old = find(name).Config, config.model
    shared = {f.name: getattr(old, f.name) for f in dataclasses.fields(kind) if hasattr(old, f.name)}
    return dataclasses.replace(config, model=kind(**(shared | fields)))


def with_training(config: RunConfig, **fields: Any) -> RunConfig:
    """The same run with other settings of its training."""
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **fields))


OWN = dataclasses.replace(
    with_training(PRESETS["omniglot"][1], unaugmented=0.1),
    model=DKMConfig(
        weights="full",
        read_noise="own",
        block=32,
        codec=CodecConfig((64, 112, 112), norm="group", activation="silu"),
    ),
)
PRESETS["omniglot-record"] = (
    "Our best scores with the paper's memory: about twice the filters, a separate read noise, written at once.",
    with_training(OWN, steps=55_000),
)
PRESETS["omniglot-small"] = (
    "The paper's codec with our training, a separate read noise and the full covariance of w.",
    dataclasses.replace(
        with_training(OWN, steps=40_000, lr=2e-3), model=DKMConfig(weights="full", read_noise="own")
    ),
)
PRESETS["omniglot-new"] = (
    "For new images of written classes: of 64 images from 4 classes 24 are read but not written.",
    dataclasses.replace(
        with_training(
            PRESETS["omniglot"][1], steps=25_000, lengths=(64,), classes=4, unwritten=24, autoencoder=0.0
        ),
        model=DKMConfig(
            weights="full",
            read_noise="image",
            codec=CodecConfig((32, 64, 64), norm="group", activation="silu"),
        ),
    ),
)
PRESETS["omniglot-vae"] = (
    "A variational autoencoder with the codec and the training of omniglot, and no memory.",
    with_model(PRESETS["omniglot"][1], "vae"),
)
SHORT = with_training(PRESETS["omniglot"][1], steps=20_000)
PRESETS["omniglot-km"] = (
    "A Kanerva Machine of the published size, 64 rows, with the codec and the training of omniglot.",
    with_model(SHORT, "km", rows=64, memory="mean"),
)
PRESETS["omniglot-gpm"] = (
    "A generative pseudo-inverse memory, with the codec and the training of omniglot.",
    with_model(PRESETS["omniglot"][1], "gpm", memory="mean"),
)
PRESETS["omniglot-dnc"] = (
    "A differentiable neural computer with a memory of 64×100, with the codec and the training of omniglot.",
    with_model(SHORT, "dnc", rows=64),
)

# The nats of a colour image are a sum over thousands of pixels, which get surer as training goes on: gradients have
# norms of 5,000 at first and of up to 300,000 later. With a clip of 10, which cuts every step, mazes take 450 steps
# to where 270 lead without it. A long run with sure pixels is steadier where the largest are cut too: the last of
# mazes have norms of 15,000.
CLIP, LONG_CLIP = 300_000.0, 50_000.0
COLOUR = RunConfig(
    model=DKMConfig(
        rows=64,
        code=200,
        weights="full",
        read_noise="own",
        scale="colour",
        min_scale=0.0025,  # just above √(LEVEL² / 12 + SURE²), below which grey levels take no notice of it
        pixels="levels",
        # wide: a codec of 80, 64 and 64 filters costs a quarter of a bit per dimension more
        codec=CodecConfig((128, 160, 160), norm="group", activation="silu", linear=True),
    ),
    data=DataConfig("mazes", mazes=4_000),
    train=TrainConfig(
        steps=42_000, lr=5e-4, warmup=500, clip=LONG_CLIP, average=0.999, mirror=True, save_every=5_000
    ),
)
PRESETS["mazes-paper"] = (
    "The paper's DMLab model and training to the letter, on mazes.",
    RunConfig(
        model=DKMConfig(rows=64, code=200, codec=CodecConfig((256, 256, 256))),
        data=DataConfig("mazes"),
        train=TrainConfig(steps=110_000, lr=1e-4, schedule="constant", warmup=0, clip=0.0, save_every=5_000),
    ),
)
PRESETS["mazes"] = (
    "Our best with the paper's memory: a wide codec, correlated colours, pixels scored by grey level, 4,000 mazes.",
    COLOUR,
)
PRESETS["mazes-vae"] = (
    "A variational autoencoder with the codec and the training of mazes, and no memory.",
    with_model(COLOUR, "vae"),
)
SKETCH = DKMConfig(
    rows=64,
    code=200,
    weights="full",
    scale="colour",
    codec=CodecConfig((16, 32, 32), norm="group", activation="silu", linear=True),
)
QUICK = dataclasses.replace(
    COLOUR,
    model=SKETCH,
    data=DataConfig("mazes"),
    train=TrainConfig(
        steps=1_200,
        batch=4,
        lr=2e-3,
        clip=CLIP,
        average=0.99,
        evaluate_every=400,
        evaluate_images=512,
        save_every=400,
        log_every=20,
    ),
)
PRESETS["mazes-demo"] = ("Mazes in colour, though blurred: five minutes on two cores of a laptop.", QUICK)
PRESETS["colour"] = (
    "Your own colour images (--dataset DIR), 32×32 or --size: five minutes on two cores.",
    # Codes of 400 where the paper's mazes have 200: emoji come back with two thirds of the error.
    dataclasses.replace(QUICK, model=dataclasses.replace(SKETCH, code=400), data=DataConfig("mazes", size=32)),
)
