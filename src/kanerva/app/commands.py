"""The commands of `kanerva`, a function each: its parameters are the flags, its docstring their help.

They call and print, and decide nothing. train.py reads the flags of `kanerva train`; pictures.py has the user's own
pictures, inspect.py a saved memory, sheets.py images on PNG files.
"""

import collections
import dataclasses
import functools
import platform
import re
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from tyro.conf import OmitArgPrefixes, Positional, arg

from .. import __version__, lab
from ..data.own import is_sheet, write_sheet
from ..lab.runner import Subject, find
from ..lab.runner import flags as flags_of
from ..models import MODELS, load
from ..models.checkpoint import LAST, as_dkm, locate, read, save_state, shipped, taken
from ..nn import Writing
from ..support import checks, strict_json
from ..support.files import atomic_write, cache_dir, check_writable
from ..support.pixels import INK
from ..support.say import printable, say, show
from ..training.config import DataConfig
from ..training.evaluate import Score, mean_image_nats
from ..training.evaluate import evaluate as score_of
from ..training.loop import FEW
from ..training.presets import PRESETS
from ..training.processes import choose
from . import pictures, sheets
from .flags import parsed
from .inspect import chosen, inside, often
from .train import train

Device = Annotated[str, arg(help="auto (a GPU if there is one), cpu, cuda, …")]
GLYPHS = DataConfig()
Json = Annotated[bool, arg(help="Print one JSON object and nothing else.")]


def evaluate(
    checkpoint: Annotated[Positional[str], arg(metavar="MODEL")],
    dataset: str | None = None,
    data_dir: str | None = None,
    length: int = 32,
    classes: int | None = None,
    images: int = 10_000,
    iterations: int | None = None,
    block: int | None = None,
    write_noise: float | None = None,
    seed: int = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Score a trained model on test classes: nats per image, lower is better.

    Args:
        checkpoint: A checkpoint, the folder of a run (its best one), a pretrained model (kanerva info
            lists them), or a model without training: nearest, hopfield, or hopfield:CHECKPOINT for Hopfield
            retrieval on the codes of a model.
        dataset: Other images than those it was trained on: glyphs, omniglot, mazes or a path.
        data_dir: Where the files of omniglot are.
        length: Images in an episode (T).
        classes: Classes in an episode; otherwise any.
        images: Images to score, at least: batches of 16 episodes are scored, two or more.
        iterations: Kind dkm: address-and-update rounds for each image written; otherwise as it was trained.
        block: Kind dkm: images addressed against the same memory and written at once; otherwise as it was trained.
            With as many as an episode has (new images: 40 are written), their order does not matter.
        write_noise: Kind dkm with a separate read noise: multiply the noise variance of writes (noise_var) by this.
            More images want more.
        seed: Decides the episodes and the draws of w.
    """
    whole = {"length": length, "classes": classes, "images": images, "iterations": iterations, "block": block}
    for name, value in whole.items():
        if value is not None:
            checks.count(name, value)
    checks.seed(seed)
    if write_noise is not None and not 1e-6 <= write_noise <= 1e6:
        raise ValueError(f"write_noise: expected a factor from 1e-6 to 1e6, got {write_noise:g}")
    (who,) = find([checkpoint], choose(device), dataset, data_dir)
    told = {"iterations": iterations, "block": block, "write_noise": write_noise}
    told = {name: value for name, value in told.items() if value is not None}
    how = written_by(who, told)
    score = score_of(who.model, who.unseen, length, images, classes, seed, how=how)
    about = {
        **who.about,
        **told,
        "mean_image": mean_image_nats(who.seen, who.unseen),
        "version": __version__,
        "torch": torch.__version__,
    }
    if json:
        print(strict_json.dumps({**dataclasses.asdict(score), **about}, indent=1))
    else:
        show(table(score, about))


def experiment(*arguments: str) -> None:
    """Make one of the paper's experiments: numbers, and figures of them."""
    command = f"kanerva experiment {arguments[0]}"
    work = parsed(flags_of(lab.find(arguments[0]), command), command, list(arguments[1:]))
    path, drawn = work.main()
    results = strict_json.loads(path.read_bytes())
    for model in results["models"]:
        show(f"{printable(model['name'])}\n{work.EXPERIMENT.table(model['result']).lines()}\n")
    show("\n".join(printable(str(file)) for file in (path, *drawn)))
    print(f"{results['seconds']} s")


def plot(file: Annotated[Positional[Path], arg(metavar="FILE")], out: Path | None = None) -> None:
    """Draw the figures of an experiment again, from its file of results alone.

    Args:
        file: The JSON that kanerva experiment has written.
        out: A folder for the figures; otherwise they go beside FILE.
    """
    from ..lab import drawing

    show("\n".join(printable(str(figure)) for figure in drawing.redraw(file, out)))


def report(
    place: Annotated[Positional[str], arg(metavar="RUN")],
    out: Path | None = None,
    experiments: Path | None = None,
) -> None:
    """Put a run's curve, scores and figures on one HTML page, which opens without a network.

    Args:
        place: A run's folder, a checkpoint, or a pretrained model (kanerva info lists them).
        out: The page; otherwise report.html in the run's folder.
        experiments: Where results of experiments are, EXPERIMENT.json or EXPERIMENT/MODEL.json; otherwise
            experiments/ in the run's folder.
    """
    from .report import write

    show(str(write(place, out, experiments)))


def recall(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGES", help_behavior_hint="(required)")],
    others: Annotated[tuple[str, ...], arg(help_behavior_hint="(optional)")] = (),
    damage: Literal["auto", "flips", "noise", "block", "half", "none"] = "auto",
    level: float | None = None,
    method: str | None = None,
    steps: int = 15,
    binary: float = INK,
    ink: Literal["auto", "dark", "light"] = "auto",
    seed: int = 0,
    out: Path = Path("recall.png"),
    memory: Path | None = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Store your own pictures in one memory, ask for them with damaged copies, and see what comes back.

    Args:
        model: A checkpoint, the folder of a run, or a pretrained model (kanerva info lists them).
        images: Image files, or folders of them: the pictures to store. They are brought to the size that the model
            knows.
        others: More pictures, which are asked for but never stored.
        damage: What happens to a picture before it is asked for: a share of its bits flips, noise is added, a block
            or the right half is erased; auto: flips for a model of binary images, and noise for others.
        level: How much of it: the share of bits (otherwise 0.15), the standard deviation of noise (0.15), or the
            share of the area (0.25).
        method: The way to recall; otherwise the model's best.
        steps: Steps of recall.
        binary: Models of binary images: the share of ink from which a pixel is ink.
        ink: Models of binary images: whether ink is dark or light; auto: whatever there is less of in each picture.
        seed: Decides the damage.
        out: The sheet, a PNG file: stored, cue and recalled, one below the other.
        memory: Save the memory as well, in a safetensors file that `kanerva inspect` reads.
    """
    checks.count("steps", steps)
    checks.seed(seed)
    if missing := pictures.left_out(model, images):
        raise ValueError(missing)
    used = load(model).to(choose(device))
    way, shades = used.method(method), used.config.binary
    outputs = {"--memory": memory, "--out": out}
    pictures.check_outputs(outputs, [locate(model)])
    for path in filter(None, outputs.values()):
        check_writable(path)
    asked = pictures.read(used, images, others, binary, ink)
    pictures.check_outputs(outputs, asked.paths)
    rows = getattr(used.config, "rows", asked.stored)
    full = f"more pictures than the memory's {rows} rows: they mix, and nothing can be certified"
    if rows < asked.stored:
        say(full)
    kind = damage if damage != "auto" else "flips" if shades else "noise"
    generator = torch.Generator(used.device).manual_seed(seed)
    answers = pictures.ask(used, asked, pictures.damaged(asked.x, kind, level, generator), way, steps, generator)
    if memory is not None:
        save_state(memory, answers.state)
    bands = [sheets.in_rows(x, shades) for x in (asked.x, answers.cue, answers.x)]
    found = pictures.judge(asked, answers)
    with atomic_write(out) as file:
        write_sheet(pictures.sheet(sheets.mosaic(torch.stack(bands, 1).flatten(0, 1)), found), file)
    level = pictures.LEVELS[kind] if level is None else level
    about = {
        "stored": f"{asked.stored} pictures in one memory, which keeps {used.kept(asked.stored):,} numbers",
        "damage": kind if level is None else f"{kind} {level:g}",
        "recall": f"{way}, {steps} steps, {taken(model) or model}",
        **({"ink": pictures.inks(asked)} if shades else {}),
        "sheet": str(out),
        **({} if memory is None else {"memory": str(memory)}),
        **({"left out": asked.left_out} if asked.left_out else {}),
        "result": pictures.summary(found),
        **({"note": full} if rows < asked.stored else {}),
    }
    if any(one["worse"] for one in found):
        about["worse"] = "the answer is farther from the picture than the cue (in the sheet: a red frame)"
    if answers.certified[0] is not None:
        about["certified"] = "the answer is a stored picture, to the last pixel (in the sheet: a green frame)"
    if json:
        print(strict_json.dumps({**about, "pictures": found}, indent=1))
    else:
        pixels = asked.x[0].numel() if shades else None
        print(f"{pictures.table(found, pixels).lines()}\n\n{lines(about)}")


def inspect(
    state: Annotated[Positional[Path], arg(metavar="STATE")],
    checkpoint: str = "omniglot",
    number: int = 0,
    out: Path | None = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Look into a saved memory: find the images that it holds, without a cue, and put them on a sheet.

    Args:
        state: A safetensors file with the R and U of a memory.
        checkpoint: The model that wrote it: a checkpoint, the folder of a run, or a pretrained model (kanerva
            info lists them).
        number: Which memory, where the file has many.
        out: The sheet, a PNG file; otherwise beside STATE.
    """
    model = as_dkm(load(checkpoint), checkpoint)
    memory, count = chosen(model.memory, state, number)
    end = f"-{number}.png" if count > 1 else ".png"
    path = state.with_name(state.stem + end) if out is None else out
    pictures.check_outputs({"--out": path}, [state, locate(checkpoint)])
    if out is None and path.exists() and not is_sheet(path):
        raise ValueError(f"--out: expected the name of a new file, since {path} is there and no sheet of ours")
    check_writable(path)
    on = choose(device)
    about, x = inside(model.to(on), memory.to(on))
    about = {"file": str(state), "memory": f"number {number} of {count}", **about}
    if len(x):
        sheets.write(sheets.in_rows(x, model.config.binary), path)
        about["sheet"] = str(path)
    found = about["images"].items()
    images = {number: f"{often(one['written'])}, cost {one['cost']} nats" for number, one in found}
    print(strict_json.dumps(about, indent=1) if json else lines({**about, "images": images or "none"}))


def play(
    models: Annotated[
        Positional[tuple[str, ...]],
        arg(metavar="[MODEL ...]", help_behavior_hint="(default: all pretrained models)"),
    ] = (),
    host: str = "127.0.0.1",
    port: int = 7411,
    browser: bool = True,
) -> None:
    """Open a page in the browser on which memories are written, recalled from and looked into.

    Args:
        models: Checkpoints, folders of runs or pretrained models.
        host: The address to listen on; 0.0.0.0 lets everyone in who can reach this machine.
        port: The port to listen on; 0 takes any that is free.
        browser: Open the page in the browser.
    """
    if not 0 <= port < 2**16:
        raise ValueError(f"port: expected 0 to 65535, got {port}")
    from .play.server import serve

    serve(models, host, port, browser, say)


def info(checkpoint: Annotated[Positional[Path | None], arg(metavar="[RUN]")] = None, json: Json = False) -> None:
    """Say which versions, devices, pretrained models and presets there are, or what a checkpoint holds.

    Args:
        checkpoint: A checkpoint, the folder of a run, or a pretrained model.
    """
    about = system() if checkpoint is None else of_checkpoint(checkpoint)
    print(strict_json.dumps(about, indent=1) if json else lines(about))


def data(config: OmitArgPrefixes[DataConfig] = GLYPHS, preview: Path | None = None, json: Json = False) -> None:
    """Load a data set and describe it; omniglot is fetched if it is not at hand.

    Args:
        preview: Also write a sheet of test images to this PNG file.
    """
    if preview is not None and preview.exists() and not is_sheet(preview):
        root = Path(config.dataset).expanduser().resolve()
        if root.exists() and root in (preview.resolve(), *preview.resolve().parents):
            raise ValueError(f"preview: expected a new file, got {preview}, one of those that are read")
    splits = seen, _, unseen = config.load("cpu", "train", "validation", "test")
    about: dict[str, Any] = {
        images.split: {
            "classes": images.num_classes,
            "images": len(images),
            "shape": list(images.shape),
            "kind": "binary" if images.binary else "grey" if images.shape[0] == 1 else "colour",
            "mean": round(float(images.pixels.float().mean()), 4),
        }
        for images in splits
    }
    about["nats of predicting the mean image"] = round(mean_image_nats(seen, unseen), 2)
    if preview is not None:
        sheets.preview(unseen, preview)
        about["preview"] = str(preview)
    print(strict_json.dumps(about, indent=1) if json else lines(about))


COMMANDS = {one.__name__: one for one in (evaluate, plot, report, recall, inspect, play, info, data)}
"""Those whose parameters are their flags."""


def run(command: str, arguments: list[str]) -> None:
    """Read the flags of a command and do what they say."""
    if command == "train":
        train(arguments)
    elif command == "experiment":
        experiment(*arguments)
    else:
        parsed(held(COMMANDS[command]), f"kanerva {command}", arguments)()


def held(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """A command that waits to be called, with the help of each flag on one line: tyro keeps the docstring's."""

    @functools.wraps(command)
    def hold(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return functools.partial(command, *args, **kwargs)

    hold.__doc__ = re.sub(r"\n {8}", " ", cleandoc(command.__doc__ or ""))
    return hold


# What is printed


TOLD = {"iterations": "iterations", "block": "block", "write_noise": "noise"}
"""How a model can be told to write otherwise than it was trained: the flag, and its name in `Writing`."""


def written_by(who: Subject, told: dict[str, Any]) -> Writing | None:
    """How a model is to write, where it is told otherwise than it was trained."""
    if not told:
        return None
    given = " and ".join(f"--{name.replace('_', '-')}" for name in told)
    writing = as_dkm(who.model, f"{given} for {who.name}").writing
    return writing._replace(**{TOLD[name]: value for name, value in told.items()})


def table(score: Score, about: dict[str, Any]) -> str:
    """A score for people."""
    nats = f"{score.nats:.2f} ± {score.nats_stderr:.2f} nats per image{score.in_bits}"
    if score.bound is not None:
        nats += f"; {score.bound:.2f} with KL(M)/T, −L_T/T"
    others = {"new images of written classes": score.new, "a blank memory": score.blank, **score.extra}
    terms = [f"reconstruction {score.reconstruction:.2f}"]
    if score.kl_weights is not None:
        terms[0] += f" + KL({MODELS[about['kind']].LATENT}) {score.kl_weights:.2f}"
    if score.kl_memory is not None:
        terms.append(f"not counted in the first: KL(M)/T {score.kl_memory:.2f}")
    if score.autoencoder is not None:
        terms.append(f"autoencoder alone {score.autoencoder:.2f}")
    terms.append(f"predicting the mean image {about['mean_image']:.2f}")
    extra = "".join(
        f"{value['mean']:.2f} ± {value['stderr']:.2f} nats per image, {name}\n"
        for name, value in others.items()
        if value is not None
    )
    drawn, different = f"{score.images:,} {score.split} images", score.different or 0
    if different < score.images:
        drawn = f"{score.images:,} draws from {different:,} different {score.split} images"
    warning = "" if different >= FEW else f"\n  only {different} different images: too few to say much about others"
    return (
        f"{nats}\n{extra}"
        f"  {drawn} of {about['dataset']} in {score.episodes} episodes of {score.length}, "
        f"seed {score.seed}{written(about)}; lower is better\n"
        f"  {'; '.join(terms)}{warning}"
    )


def written(about: dict[str, Any]) -> str:
    """How memories were written, where `evaluate` was told."""
    said = f", written in blocks of {about['block']}" if "block" in about else ""
    said += f", in {about['iterations']} rounds" if "iterations" in about else ""
    return said + (f", with {about['write_noise']:g} times the noise of writes" if "write_noise" in about else "")


def writes() -> dict[str, str]:
    """How the presets' memories are written on each device that is here, and why: most of them, and the others."""
    shown: dict[str, str] = {}
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        says = {name: MODELS[c.model.kind].says(c.model, device, "auto") for name, (_, c) in PRESETS.items()}
        ways = {name: said.removeprefix("write: ") for name, said in says.items() if said}
        usual = shown[f"on {device}"] = collections.Counter(ways.values()).most_common(1)[0][0]
        shown |= {f"{name} on {device}": way for name, way in ways.items() if way != usual}
    return shown


def system() -> dict[str, Any]:
    """Versions, devices, pretrained models and presets."""
    return {
        "kanerva": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "write": writes(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cache": str(cache_dir()),
        "pretrained": ", ".join(shipped()),
        "presets": {name: text for name, (text, _) in PRESETS.items()},
    }


def of_checkpoint(place: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; of a run's folder the last, which says how far the run has come."""
    found = read(locate(place).with_name(LAST) if taken(place) else place)
    return {"file": str(found.path), "parameters": found.parameters, **found.about}


def lines(about: dict[str, Any], indent: str = "") -> str:
    """Nested dictionaries as indented lines, each entry on one."""
    rows, wide = [], min(40, max([14, *map(len, about)]))
    for name, value in about.items():
        if isinstance(value, dict):
            rows += [f"{indent}{printable(name)}", lines(value, indent + "  ")]
        else:
            rows.append(f"{indent}{printable(name):{wide}} {printable(str(value))}")
    return "\n".join(rows)
