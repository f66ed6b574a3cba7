"""The named runs, each as it is: kanerva train NAME, or PRESETS[NAME][1]."""

from ..codec import CodecConfig
from ..models import DKMConfig
from .config import DataConfig, RunConfig, TrainConfig

# The nats of a colour image are a sum over thousands of pixels, which get surer as training goes on: gradients have
# norms of 5,000 at first and of up to 300,000 later. With a clip of 10, which cuts every step, mazes take 450 steps
# to where 270 lead without it. A long run with sure pixels is steadier where the largest are cut too: the last of
# mazes have norms of 15,000.
CLIP, LONG_CLIP = 300_000.0, 50_000.0

# name: (what it is, config)
PRESETS: dict[str, tuple[str, RunConfig]] = {
    "demo": (
        "Built-in glyphs, a few minutes on a laptop's CPU.",
        RunConfig(
            DKMConfig(weights="full"),
            DataConfig("glyphs"),
            TrainConfig(steps=1_000, lr=3e-3, evaluate_every=250),
        ),
    ),
    "omniglot": (
        "The pretrained model: the paper's memory, a wider codec, augmentation, a cosine schedule.",
        RunConfig(
            DKMConfig(weights="full", codec=CodecConfig((32, 64, 64), style="silu")),
            DataConfig("omniglot"),
            TrainConfig(steps=100_000, augment=1.0, average=0.999),
        ),
    ),
    "omniglot-paper": (
        "The paper's Omniglot model and training.",
        RunConfig(
            DKMConfig(),
            DataConfig("omniglot", split="train+validation"),
            TrainConfig(steps=300_000, lr=1e-4, schedule="constant", clip=0.0, evaluate_every=5_000),
        ),
    ),
    "omniglot-record": (
        "Our best scores with the paper's memory: about twice the filters, a separate read noise, written at once.",
        RunConfig(
            DKMConfig(weights="full", read_noise="own", block=32, codec=CodecConfig((64, 112, 112), style="silu")),
            DataConfig("omniglot"),
            TrainConfig(steps=55_000, augment=0.9, average=0.999),
        ),
    ),
    "omniglot-small": (
        "The paper's codec with our training, a separate read noise and the full covariance of w.",
        RunConfig(
            DKMConfig(weights="full", read_noise="own"),
            DataConfig("omniglot"),
            TrainConfig(steps=40_000, lr=2e-3, augment=0.9, average=0.999),
        ),
    ),
    "omniglot-new": (
        "For new images of written classes: of 64 images from 4 classes 24 are read but not written.",
        RunConfig(
            DKMConfig(weights="full", read_noise="image", codec=CodecConfig((32, 64, 64), style="silu")),
            DataConfig("omniglot"),
            TrainConfig(
                steps=25_000, lengths=(64,), related=(4, 24, 1.0), autoencoder=0.0, augment=1.0, average=0.999
            ),
        ),
    ),
    "mazes": (
        "Our best with the paper's memory: a wide codec, correlated colours, scored by grey level, 4,000 mazes.",
        RunConfig(
            DKMConfig(
                rows=64,
                code=200,
                weights="full",
                read_noise="own",
                scale="colour",
                pixels="levels",
                # wide: a codec of 80, 64 and 64 filters costs a quarter of a bit per dimension more
                codec=CodecConfig((128, 160, 160), style="silu", linear=True),
            ),
            DataConfig("mazes", mazes=4_000),
            TrainConfig(steps=42_000, lr=5e-4, clip=LONG_CLIP, average=0.999, mirror=True),
        ),
    ),
    "mazes-paper": (
        "The paper's DMLab model and training, on mazes.",
        RunConfig(
            DKMConfig(rows=64, code=200, codec=CodecConfig((256, 256, 256))),
            DataConfig("mazes"),
            TrainConfig(steps=110_000, lr=1e-4, schedule="constant", clip=0.0, evaluate_every=5_000),
        ),
    ),
    "mazes-demo": (
        "Mazes in colour, though blurred: five minutes on two cores of a laptop.",
        RunConfig(
            DKMConfig(
                rows=64,
                code=200,
                weights="full",
                scale="colour",
                codec=CodecConfig((16, 32, 32), style="silu", linear=True),
            ),
            DataConfig("mazes"),
            TrainConfig(steps=1_200, batch=4, lr=2e-3, clip=CLIP, average=0.99, evaluate_every=400),
        ),
    ),
    "colour": (
        "Your own colour images (--dataset DIR), 32×32 or --size: five minutes on two cores.",
        RunConfig(
            # Codes of 400 where the paper's mazes have 200: emoji come back with two thirds of the error.
            DKMConfig(
                rows=64,
                code=400,
                weights="full",
                scale="colour",
                codec=CodecConfig((16, 32, 32), style="silu", linear=True),
            ),
            DataConfig("mazes", size=32),
            TrainConfig(steps=1_200, batch=4, lr=2e-3, clip=CLIP, average=0.99, evaluate_every=400),
        ),
    ),
}
