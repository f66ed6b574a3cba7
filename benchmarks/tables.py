"""Write the tables of the pages, and draw their figures, from the files in results/: `make results`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->` in any page, as often as one likes. A figure is
drawn if a page shows it: results/EXPERIMENT/MODEL-END.png comes from results/EXPERIMENT/MODEL.json.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import more as more_of_a_class
import order
from kanerva.lab import EXPERIMENTS, drawing, find
from kanerva.lab.tables import Share, Table
from report import duration, sizes
from report import figure as speed_figure

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def pages() -> list[Path]:
    """Where tables and figures stand."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("weights/*.md")]
    return sorted(page for page in found if page.name != "CHANGELOG.md")


def load(name: str) -> dict[str, Any]:
    """A file of results; nothing where it is missing."""
    path = ROOT / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


# Tables

SCORED = {
    "omniglot": '`kanerva.load("omniglot")`, a DKM of 32×100',
    "omniglot-record": "`omniglot-record`, twice the filters, a separate read noise, written at once",
    "omniglot-one": "`omniglot-record --block 1`, the same written one after another",
    "omniglot-one-refined": "the same, evaluated with `--block 32 --iterations 2`",
    "omniglot-paper": "`omniglot-paper`, the paper's DKM of 32×100",
    "omniglot-new": '`kanerva.load("omniglot-new")`, trained on new images too',
    "omniglot-small": "`omniglot-small`, the paper's codec, our training, a separate read noise",
    "omniglot-gpm": "`omniglot --model gpm`, a pseudo-inverse memory of 32×100",
    "omniglot-gpm-released": "`omniglot --model gpm --noise released`, with the noise of its authors' program",
    "omniglot-km": (
        "`omniglot --model km --steps 20000`, a Kanerva Machine of 64×100; nothing is charged for KL(M), as in its "
        "paper"
    ),
    "omniglot-km-32": "`omniglot --model km --rows 32 --steps 15000`, the same with 32×100",
    "omniglot-dnc": (
        "`omniglot --model dnc --steps 20000`, a differentiable neural computer of 64×100; its score has no KL"
    ),
    "omniglot-vae": "`omniglot --model vae`, a VAE without a memory",
    "omniglot-vae-more": "the same, trained for 25,000 steps more",
}
"""The models of the table of scores, by the names of their files in results/evaluation/."""


def scores() -> Table:
    """Nats per image on test classes, by what is charged and by what the memory holds."""
    head = [
        "nats per image, lower is better",
        "stored images",
        "KL(M)/T",
        "with it: −L_T/T",
        "new images of written classes",
    ]
    return Table([*head, "blank memory", "steps", "also reported"], [score(*one) for one in SCORED.items()])


def score(name: str, label: str) -> list[Any]:
    found = load(f"evaluation/{name}")
    nats, spread, memory = (found.get(key) for key in ("nats", "nats_stderr", "kl_memory"))
    bound = None if memory is None else {"mean": nats + memory}
    also = [
        f"{what}: {one}" for what, one in zip(found.get("extra", {}), shown(found.get("extra", {})), strict=True)
    ]
    return [label, {"mean": nats, "stderr": spread}, memory, bound, *map(found.get, ("new", "blank", "step")), also]


def shown(values: dict[str, Any]) -> list[str]:
    return Table([], [list(values.values())]).text().rows[0]


FRAME = 3 * 32 * 32
"""The dimensions of a frame of the mazes."""


def paper() -> Table:
    """The paper's scores and ours: of stored images alone, what the memory costs, and both together."""
    rows = [
        ["Omniglot, 32×100, nats per image: the paper", "77.2", None, None],
        over_seeds("omniglot-paper", "the same, to the letter: `kanerva train omniglot-paper`"),
        kept_to("omniglot", 'the same memory, pretrained: `kanerva.load("omniglot")`'),
        over_seeds(
            "omniglot-record --block 1", "the same memory, a wider codec: `kanerva train omniglot-record --block 1`"
        ),
        over_seeds(REFINED, "the same, refined as it is written: `kanerva evaluate RUN --block 32 --iterations 2`"),
        kept_to("omniglot-record", "trained to write at once, our best: `kanerva train omniglot-record` (1 seed)"),
        ["DMLab frames, 64×200, bits per dimension: the paper", "2.75", None, None],
        kept_to("mazes-wide", "our mazes, the same memory, our best, by grey levels: `kanerva train mazes`"),
        ["the same with pixels as points, as in the paper", as_points("mazes-wide"), None, None],
        kept_to("mazes", 'the same with a smaller codec, by grey levels: `kanerva.load("mazes")`'),
    ]
    return Table(["lower is better", "stored images", "KL(M)/T", "their sum, which is trained"], rows)


WRITTEN = {
    "omniglot-record": "trained by `kanerva train omniglot-record`, at once",
    "omniglot-record-refined": "the same model evaluated with `--iterations 2`: refined",
    "omniglot-record-one": "with `--block 1`: one after another",
    "omniglot-one": "trained by `kanerva train omniglot-record --block 1`, one after another",
    "omniglot-one-block": "the same model evaluated with `--block 32`: at once",
    "omniglot-one-refined": "with `--block 32 --iterations 2`: at once, refined",
    "omniglot": '`kanerva.load("omniglot")`, trained one after another',
    "omniglot-block": "the same model evaluated with `--block 32`: at once",
}
"""The ways to write, by the names of their files in results/evaluation/."""


REFINED = "omniglot-record --block 1, evaluated with --block 32 --iterations 2"
"""A row of results/evaluation/seeds.json."""


def ways() -> Table:
    """What other ways to write a memory give."""
    head = ["20,480 test images, 32 in a memory", "stored images", "KL(M)/T", "their sum"]
    return Table(head, [kept_to(name, label) for name, label in WRITTEN.items()])


FRAMES = {
    "mazes-wide": "`kanerva train mazes`, in results/models",
    "mazes": '`kanerva.load("mazes")`: a smaller codec',
    "mazes-vae": "a VAE without a memory, of an earlier preset: points, no linear part",
}
"""The models of the table of mazes, by the names of their files in results/evaluation/."""


def frames() -> Table:
    """What a frame of the mazes costs, by what is charged and by what the memory holds."""
    head = ["bits per dimension, lower is better", "stored frames", "KL(M)/T", "their sum"]
    rows = []
    for name, label in FRAMES.items():
        found = load(f"evaluation/{name}")
        rows.append([*kept_to(name, label), as_points(name), found.get("parameters"), found.get("step")])
    return Table([*head, "stored frames, as points", "parameters", "steps"], rows)


def as_points(name: str) -> dict[str, float] | None:
    """Bits per dimension of points within grey levels."""
    found = load(f"evaluation/{name}")
    if not found.get("bits"):  # scored before levels were, or by a model without a codec
        return {"mean": found["bits_per_dimension"], "stderr": found["nats_stderr"] / (math.log(2) * FRAME)}
    return found["bits"]["points"]


def kept_to(name: str, label: str) -> list[Any]:
    """Scores in nats; where the file has bits per dimension, in these."""
    found = load(f"evaluation/{name}")
    if not found:
        return [label, None, None, None]
    nats, error, memory = found["nats"], found["nats_stderr"], found["kl_memory"]
    if (bits := found.get("bits_per_dimension")) is None:
        return [label, {"mean": nats, "stderr": error}, f"{memory:.2f}", f"{nats + memory:.2f}"]
    one = math.log(2) * FRAME  # nats in a bit per dimension
    if memory is None:
        return [label, {"mean": bits, "stderr": error / one}, None, None]
    return [label, {"mean": bits, "stderr": error / one}, f"{memory / one:.3f}", f"{bits + memory / one:.3f}"]


def of_seeds(name: str, *keys: str) -> float | None:
    """A mean over seeds, or the sum of several."""
    found = load("evaluation/seeds").get("rows", {}).get(name)
    return None if found is None else sum(found[key]["mean"] for key in keys)


def of(name: str, *keys: str) -> float | None:
    """A score of one model."""
    found: Any = load(f"evaluation/{name}")
    for key in keys:
        found = (found or {}).get(key)
    return found if isinstance(found, float) else None


GOALS: tuple[tuple[str, str | None, float | Callable[[], float | None], Callable[[], float | None]], ...] = (
    (
        "32×100, the paper's codec (99,577 parameters in all), our training, mean of 3 seeds: stored images",
        "77.2",
        62,
        partial(of_seeds, "omniglot-small", "nats"),
    ),
    ("its −L_T/T", None, 72, partial(of_seeds, "omniglot-small", "nats", "kl_memory")),
    (
        "32×100, our best: stored images",
        "66.24 (Kanerva++)",
        48,
        partial(of, "omniglot-record", "nats"),
    ),
    (
        "32×100, trained one after another, refined as it is written, mean of 3 seeds: stored images",
        "66.24 (Kanerva++)",
        48,
        partial(of_seeds, REFINED, "nats"),
    ),
    ("its −L_T/T", None, 60, partial(of_seeds, REFINED, "nats", "kl_memory")),
    ("new images, ten of each of 4 classes written", None, 95, partial(of, "omniglot-new", "new", "mean")),
    (
        "the same, and below a VAE of the same codec",
        None,
        partial(of, "omniglot-vae", "new", "mean"),
        partial(of, "omniglot-new", "new", "mean"),
    ),
    (
        "200 images of 8 classes: stored images, with 1.5 times the noise of writes",
        None,
        80,
        partial(of, "omniglot-long-200-noisy", "nats"),
    ),
    (
        "the same weights, 32 images of any class, with 0.65 times the noise",
        None,
        60,
        partial(of, "omniglot-long-sure", "nats"),
    ),
    ("the same with the noise that was learned: 200 images", None, 80, partial(of, "omniglot-long-200", "nats")),
    ("and 32 images", None, 60, partial(of, "omniglot-long", "nats")),
    (
        "mazes, 64×200, bits per dimension, by grey levels",
        None,
        2.5,
        partial(of, "mazes-wide", "bits_per_dimension"),
    ),
    (
        "the same with pixels as points",
        "2.75, on other frames",
        2.5,
        partial(of, "mazes-wide", "bits", "points", "mean"),
    ),
)
"""What was aimed at: the published score, the goal, and where the score is."""


def goals() -> Table:
    """What was aimed at, and what was reached."""
    rows = []
    for what, published, wanted, measured in GOALS:
        value, most = measured(), wanted() if callable(wanted) else wanted
        rows.append(
            [
                what,
                published,
                None if most is None else f"{most:.4g}",
                None if value is None else f"{value:.2f}",
                None if value is None or most is None else value <= most,
            ]
        )
    return Table(["lower is better", "published", "goal, at most", "measured", "reached"], rows)


def more() -> Table:
    """What is drawn from ten examples of a class: of the class, and new?"""
    found = load("more/omniglot")
    sets = {one["name"]: one["result"]["sets"] for one in found["models"]}
    head = [f"{found['config']['episodes']} memories; classes told from {found['config']['among'] - 1} others"]
    for name in sets:
        head += [f"`{name}`: of the class", "pixels from the nearest example"]
    rows = []
    for way in next(iter(sets.values())):
        cells = [part for found in sets.values() for part in (Share(found[way]["right"]), found[way]["apart"])]
        rows.append([way, *cells])
    return Table(head, rows)


def over_seeds(name: str, label: str) -> list[Any]:
    """The same of several seeds: means, and the standard deviation over seeds."""
    found = load("evaluation/seeds").get("rows", {}).get(name)
    if found is None:
        return [label, None, None, None]
    nats, memory = found["nats"], found["kl_memory"]["mean"]
    label = f"{label} ({found['seeds']} seeds)"
    return [label, deviating(nats), f"{memory:.2f}", f"{nats['mean'] + memory:.2f}"]


def deviating(found: dict[str, float] | None) -> dict[str, float] | None:
    """A mean over seeds, with its standard deviation where tables have standard errors."""
    return None if found is None else {"mean": found["mean"], "stderr": found["std"]}


KL_MEMORY = "KL(M) / T, not charged"
"""What a Kanerva Machine reports of its memory."""


def seeds() -> Table:
    """How far runs that differ in their seed are apart."""
    head = ["nats per image, test classes", "steps", "stored images: each seed", "mean ± standard deviation"]
    rows = []
    for name, found in load("evaluation/seeds").get("rows", {}).items():
        memory, new = deviating(found.get("kl_memory", found.get(KL_MEMORY))), deviating(found.get("new"))
        each = [f"{run['nats']:.2f}" for run in found["runs"]]
        preset, _, how = name.partition(", evaluated with ")
        label = f"`{preset}`" + (f", evaluated with `{how}`" if how else "")
        rows.append([label, found["runs"][0]["steps"], each, deviating(found["nats"]), memory, new])
    return Table([*head, "KL(M)/T", "new images of written classes"], rows)


RIVALS = {
    "nearest": "`nearest`, every image",
    "hopfield": "`hopfield`, every image",
    "hopfield:omniglot": "`hopfield:omniglot`, every code",
    "omniglot": "`dkm`: `omniglot`",
    "omniglot-paper": "`dkm`: `omniglot-paper`",
    "omniglot-km": "`km`: `omniglot --model km --steps 20000`",
    "omniglot-gpm": "`gpm`: `omniglot --model gpm`",
    "omniglot-dnc": "`dnc`: `omniglot --model dnc --steps 20000`",
    "omniglot-vae": "`vae`: `omniglot --model vae`",
}
"""The models of the comparison, by their names in results/rivals/omniglot.json."""


def rivals() -> Table:
    """What each model remembers of 32 and of 200 images, from 15 % flips, and what it keeps."""
    lengths = (32, 200)
    head = ["15 % of the pixels flipped"]
    for length in lengths:
        head += [f"{length} images: floats kept", "wrong pixels of 784", "right image"]
    rows = []
    for name, label in RIVALS.items():
        result = rival(name)
        found = {f["length"]: f for f in result.get("recall", []) if f["written"] == f["length"]}
        cells = [part for length in lengths for part in remembered(result, found.get(length))]
        rows.append([label, *cells])
    return Table(head, rows)


def rival(name: str) -> dict[str, Any]:
    """The result of one of the models; empty where it is missing."""
    return next((m["result"] for m in load("rivals/omniglot").get("models", []) if m["name"] == name), {})


def remembered(result: dict[str, Any], found: dict[str, Any] | None) -> list[Any]:
    if found is None:
        return [None, None, None]
    cell = found["damage"][result["headline"]]
    return [found["kept"], cell["wrong"], Share(cell["right"])]


def costs() -> Table:
    """What each model costs: parameters, training, writing and recalling an image."""
    head = ["two quiet CPU cores", "parameters", "training steps", "ms to write an image", "ms to recall one"]
    rows = []
    for name, label in RIVALS.items():
        result, steps = rival(name), load(f"evaluation/{name}").get("step")
        times = result.get("seconds", {})
        ms = [float(f"{1e3 * times[what]:.2g}") if times else None for what in ("write", "recall")]
        rows.append([label, result.get("parameters"), steps, *ms])
    return Table(head, rows)


def denoising() -> Table:
    """The last step of recall from every kind of damage, and the stored image that is nearest to the cue."""
    found = load("denoising/omniglot")
    what = f"{found['config']['steps']} steps of recall, {found['config']['episodes']} memories"
    ways = ("least-squares (the paper's)", "descent")
    tries = [
        f"{way}: {part}" for way in ways for part in ("wrong pixels", "right image", "steps that raise the energy")
    ]
    cells = found["models"][0]["result"]["cells"]
    return Table(
        [what, *tries, "nearest stored image: wrong pixels", "right image"], [damage(cell) for cell in cells]
    )


def damage(cell: dict[str, Any]) -> list[Any]:
    found = [part for way in ("least-squares", "descent") for part in tried(cell["methods"][way])]
    return [cell["name"], *found, cell["nearest"]["wrong"], Share(cell["nearest"]["right"])]


def tried(values: dict[str, Any]) -> list[Any]:
    """Wrong pixels, the share of right images and that of steps that raise the energy."""
    return [values["wrong"], Share(values["right"]), Share(values["rose"])]


def dynamics() -> Table:
    """The paper's dynamics alone, from every kind of damage: with the paper's model, and the pretrained one."""
    models = {"omniglot-paper": "the paper's model", "omniglot": "`omniglot`"}
    found = {name: load(f"denoising/{name}") for name in models}
    parts = ("wrong pixels", "right image", "steps that raise the energy")
    cells = [one["models"][0]["result"]["cells"] for one in found.values()]
    config = found["omniglot"]["config"]
    return Table(
        [
            f"{config['steps']} steps of least-squares, {config['episodes']} memories",
            *(f"{name}: {part}" for name in models.values() for part in parts),
        ],
        [
            [both[0]["name"], *(part for cell in both for part in tried(cell["methods"]["least-squares"]))]
            for both in zip(*cells, strict=True)
        ],
    )


def colour(name: str) -> Table:
    """The same for mazes, where pixels have real values: errors, and how far above the cue's the PSNR is."""
    found = load(f"denoising/{name}")
    what = f"{found['config']['steps']} steps of recall, {found['config']['episodes']} memories"
    ways = ("least-squares (the paper's)", "descent")
    parts = ("root mean square error", "PSNR, dB", "right frame")
    head = [f"{way}: {part}" for way in ways for part in parts]
    cells = found["models"][0]["result"]["cells"]
    return Table([what, "the cue: PSNR, dB", *head, "steps that raise the energy"], [off(cell) for cell in cells])


def off(cell: dict[str, Any]) -> list[Any]:
    ways = [cell["methods"][way] for way in ("least-squares", "descent")]
    found = [part for values in ways for part in (values["wrong"], values["psnr"], Share(values["right"]))]
    return [cell["name"], cell["cue"]["psnr"], *found, Share(ways[1]["rose"])]


def recall() -> Table:
    """Recall by descent from 1,024 cues of each kind, in per cent but for the first."""
    rows = [row for row in load("recall/h200")["rows"] if row["what"] == "recall"]
    keys = {
        "wrong": "wrong pixels of 784",
        "right": "right image, %",
        "nearest": "nearest stored image is right, %",
        "certified": "certified, %",
        "cert_wrong": "certified, but wrong, %",
    }
    names = [f"{row['cue']} % flipped" if row["cue"].isdigit() else f"{row['cue']} half erased" for row in rows]
    return Table(["cue", *keys.values()], [[n, *map(row.get, keys)] for n, row in zip(names, rows, strict=True)])


def speed() -> Table:
    """Seconds of a write with its gradient, on two CPU cores and on an H200."""
    cpu, gpu = (writes(f"speed/{name}") for name in ("cpu", "h200"))
    head = ["K rows, C numbers a code, T codes, B episodes", "2 CPU cores: `reference`", "`cpu`", "times faster"]
    rows = [[case, *on_cpu(cpu.get(case, {})), *on_gpu(gpu[case])] for case in gpu]
    return Table([*head, "H200: `reference`", "`triton`, in a graph"], rows)


def writes(name: str) -> dict[str, dict[str, Any]]:
    """The contenders of each size."""
    rows = [row for row in load(name)["parts"]["write"] if row["what"] == "forward + backward"]
    return {", ".join(f"{size:,}" for size in row["case"].values()): row["contenders"] for row in rows}


def on_cpu(found: dict[str, Any]) -> list[str | None]:
    if not found:
        return [None, None, None]
    fast = found["cpu"]
    return [
        duration(found["reference"]["seconds"]),
        duration(fast["seconds"]),
        f"{fast['faster_than']['reference']['ratio']:.3g}",
    ]


def on_gpu(found: dict[str, Any]) -> list[str]:
    return [duration(found[name]["seconds"]) for name in ("reference", "triton, captured")]


def layer(machine: str) -> Table:
    """The layer, and what it stands beside: write and read with gradients, on a machine of results/speed."""
    rows = load(f"speed/{machine}")["later"]["layer"]["rows"]
    masks = list(dict.fromkeys(row["what"] for row in rows))
    head = [part for what in masks for part in (what, "times faster than the loop")]
    found = []
    for size in dict.fromkeys(map(sizes, rows)):
        mine = [row["contenders"] for row in rows if sizes(row) == size]
        found += [[f"{size}: {name}", *(part for one in mine for part in beside(one[name]))] for name in mine[0]]
    return Table(["K, C, T, B", *head], found)


def beside(found: dict[str, Any]) -> list[str]:
    """Seconds, and how many times faster than the loop, with quartiles."""
    times = found["faster_than"].get("loop")
    if times is None:
        return [duration(found["seconds"]), "1"]
    ratio, low, high = (f"{float(f'{x:.3g}'):,g}" for x in (times["ratio"], *times["quartiles"]))
    return [duration(found["seconds"]), f"{ratio} ({low}–{high})"]


TABLES: dict[str, Callable[[], Table]] = {
    "paper": paper,
    "scores": scores,
    "goals": goals,
    "more": more,
    "seeds": seeds,
    "frames": frames,
    "rivals": rivals,
    "costs": costs,
    "denoising": denoising,
    "dynamics": dynamics,
    "colour": partial(colour, "mazes"),
    "colour-wide": partial(colour, "mazes-wide"),
    "ways": ways,
    "recall": recall,
    "speed": speed,
    "layer": partial(layer, "cpu"),
    "layer-gpu": partial(layer, "h200"),
}


def markdown(table: Table) -> str:
    """A table for a page: names to the left, numbers to the right."""
    head, rows = table.text()
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cell or '–' for cell in row)} |" for row in (head, rule, *rows))


def filled(text: str) -> str:
    """A page with its tables as results/ has them now."""
    return MARKED.sub(
        lambda found: f"<!-- table: {found[1]} -->\n\n{markdown(TABLES[found[1]]())}\n\n<!-- end -->", text
    )


# Figures

SCRIPTS: dict[str, Any] = {"order": order, "more": more_of_a_class}
"""Experiments that are scripts here."""


def shown_pictures() -> set[Path]:
    """The pictures in results/ that pages show."""
    links = (
        (page, link) for page in pages() for link in re.findall(r"!\[[^]]*\]\(([^)\s]+\.png)\)", page.read_text())
    )
    paths = {(page.parent / link).resolve() for page, link in links}
    return {path for path in paths if path.is_relative_to(ROOT / "results")}


def figures() -> Iterator[tuple[Path, Figure]]:
    """The pictures that pages show and that come from a file of results."""
    wanted = shown_pictures()
    for path in sorted((ROOT / "results").glob("*/*.json")):
        mine = {
            picture for picture in wanted if picture.parent == path.parent and picture.stem.startswith(path.stem)
        }
        results = json.loads(path.read_text())
        for end, figure in drawn(results).items() if mine else ():
            picture = path.with_name(f"{path.stem}-{end}.png" if end else f"{path.stem}.png")
            if picture in mine:
                yield picture, figure


def drawn(results: dict[str, Any]) -> dict[str, Figure]:
    """The figures of a file of results, by the ends of their names; none of one that has no figure."""
    name = results.get("experiment")
    if name in EXPERIMENTS or name in SCRIPTS:
        return drawing.figures(SCRIPTS.get(name) or find(name), results["models"])
    with drawing.style():
        return {"": speed_figure(results)} if "parts" in results else {}


def main() -> None:
    for page in pages():
        old = page.read_text()
        if (new := filled(old)) != old:
            page.write_text(new)
            print(page.relative_to(ROOT))
    for path, figure in figures():
        path.write_bytes(drawing.picture(figure))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
