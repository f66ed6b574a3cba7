"""Sentences in a memory of 80 kB: is it of any use beside nearest neighbour?

    python examples/sentences.py --out results/examples

First sentences of docstrings (the standard library's and NumPy's) become 256 numbers each by wordllama, whose
weights come in its wheel. Cues are the same sentences with words dropped, with typos, or cut in half.
"""

import ast
import random
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import wordllama
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

import kanerva
from saving import arguments, curves, save, show, spread

ROWS, SIZE = 64, 256
BYTES = 4 * ROWS * (SIZE + ROWS)  # what the memory keeps: R and U, in float32


def docstrings(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def sentences(quick: bool) -> list[str]:
    """Different first sentences of 5 to 30 words."""
    python, numpy = Path(sysconfig.get_paths()["stdlib"]), Path(np.__file__).parent
    files = sorted(python.glob("*.py"))[: 20 if quick else None]
    for folder in () if quick else (numpy, *(f for f in sorted(python.iterdir()) if (f / "__init__.py").exists())):
        files += [
            f for f in sorted(folder.rglob("*.py")) if not {"test", "tests", "lib2to3", "idlelib"} & {*f.parts}
        ]
    found: dict[str, str] = {}
    for text in (text for file in files for text in docstrings(file)):
        first = re.split(r"(?<=[.!?])\s", " ".join(text.split("\n\n")[0].split()))[0]
        if 5 <= len(first.split()) <= 30:
            found.setdefault(first.lower(), first)
    return list(found.values())


def whole(text: str, chance: random.Random) -> str:
    return text


def dropped(text: str, chance: random.Random) -> str:
    return " ".join(word for word in text.split() if chance.random() > 0.4) or text.split()[0]


def typos(text: str, chance: random.Random) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return "".join(chance.choice(letters) if chance.random() < 0.12 else c for c in text)


def half(text: str, chance: random.Random) -> str:
    return " ".join(text.split()[: len(text.split()) // 2])


class Kept:
    """Ways to keep codes z (T, 256): each gives, for cues, the codes that it takes them for."""

    def __init__(self, z: Tensor, layer: kanerva.nn.Memory) -> None:
        self.z, self.layer, self.state = z, layer, layer.write(z)
        self.few = (z[-(BYTES // SIZE) :] * 400).round().clamp(-127, 127) / 400  # as int8: a byte an entry
        n = min(
            BYTES // (len(z) + 4 * SIZE), *z.shape
        )  # components, of which T·n bytes as int8 and a basis are kept
        self.basis = torch.linalg.svd(z, full_matrices=False).Vh[:n]
        self.short = (z @ self.basis.mT * 200).round().clamp(-127, 127) / 200

    def answers(self, cue: Tensor) -> dict[str, tuple[int, Tensor]]:
        """Name: bytes kept, and the codes found."""
        short = self.short[(normalize(cue @ self.basis.mT, dim=-1) @ normalize(self.short, dim=-1).mT).argmax(-1)]
        softened = (20 * cue @ self.few.mT).softmax(-1)
        return {
            "the cue itself": (0, cue),
            "memory": (BYTES, self.layer.read(self.state, cue)),
            "nearest, int8": (self.few.numel(), self.few[(cue @ self.few.mT).argmax(-1)]),
            "Hopfield, int8": (self.few.numel(), softened @ self.few),
            "PCA + nearest, int8": (short.shape[-1] * (len(self.z) + 4 * SIZE), short @ self.basis),
            "nearest, float32, all": (4 * self.z.numel(), self.z[(cue @ self.z.mT).argmax(-1)]),
        }

    def familiar(self, codes: Tensor) -> dict[str, Tensor]:
        """How much each code looks like one that is kept."""
        near = (codes @ self.few.mT).amax(-1)
        return {"memory": -self.layer.energy(self.state, codes), "nearest, int8": near}


def told_apart(high: Tensor, low: Tensor) -> float:
    """How often one of `high` is above one of `low` (the area under the ROC curve)."""
    return float((high[:, None] > low).double().mean())


@torch.no_grad()
def main(given: Sequence[str] | None = None) -> None:
    args = arguments(__doc__, given)
    seeds, lengths = (2, [16, 32]) if args.quick else (5, [64, 256, 1024, 4096])
    texts = sentences(args.quick)
    model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    layer = kanerva.nn.Memory(SIZE, rows=ROWS, scale=1 / SIZE**0.5)  # codes of length 1
    score: dict[tuple[str, int], dict[str, list[float]]] = {}
    for seed in range(seeds):
        chance = random.Random(seed)
        chance.shuffle(texts)
        torch.manual_seed(seed)
        torch.nn.init.normal_(layer.R0, std=0.02 / SIZE**0.5)  # another blank memory for each seed
        z, *cues = (
            torch.from_numpy(model.embed([damage(text, chance) for text in texts], norm=True))
            for damage in (whole, dropped, typos, half)
        )
        for T in lengths:
            kept, new = Kept(z[:T], layer), z[max(lengths) :][:1000]
            for cue in cues:
                for name, (used, found) in kept.answers(cue[:T]).items():
                    which = (normalize(found, dim=-1) @ z[:T].mT).argmax(-1)
                    at = score.setdefault((name, T), {"bytes": [used], "recall": [], "cosine": [], "seen": []})
                    at["recall"].append(float((which == torch.arange(T)).double().mean()))
                    at["cosine"].append(float(cosine_similarity(found, z[:T], dim=-1).mean()))
            stored, others = kept.familiar(z[:T]), kept.familiar(new)
            for name in stored:
                score[name, T]["seen"].append(told_apart(stored[name], others[name]))

    results: list[dict[str, Any]] = []
    for (name, T), at in sorted(score.items(), key=lambda item: item[0][1]):
        # over seeds; a seed's number is the mean over the three kinds of cue
        each = {k: np.reshape(at[k], (seeds, -1)).mean(-1).tolist() for k in ("recall", "cosine", "seen") if at[k]}
        results.append(
            {"kind": name, "stored": T, "bytes": at["bytes"][0]} | {k: spread(v) for k, v in each.items()}
        )
    measures = {"recall": "recall@1", "cosine": "cosine with the clean code", "seen": "stored or new?"}
    rows = [
        [r["kind"], r["stored"], f"{r['bytes']:,}"]
        + [f"{r[m]['mean']:.3f} ± {r[m]['stderr']:.3f}" if m in r else "" for m in measures]
        for r in results
    ]
    show(f"{len(texts)} sentences; three kinds of cue", ["", "stored", "bytes", *measures.values()], rows)
    print("\nTo name a sentence, the cue and the memory need a list of all codes, which is not counted.")
    names = list(dict.fromkeys(name for name, _ in score))
    figure = Figure(figsize=(12, 4), layout="constrained")
    for ax, (measure, title) in zip(figure.subplots(1, 3), measures.items(), strict=True):
        mine = {name: [r[measure]["mean"] for r in results if r["kind"] == name and measure in r] for name in names}
        curves(ax, lengths, mine, xlabel="sentences stored", title=title)
    figure.axes[0].legend(frameon=False, fontsize=8)
    save(args.out, "sentences", {"rows": ROWS, "seeds": seeds, "sentences": len(texts)}, results, figure)


if __name__ == "__main__":
    main()
