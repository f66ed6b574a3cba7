"""Show the numbers that speed.py wrote as tables and figures: `python benchmarks/report.py FILE`."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from kanerva.lab import plots
from kanerva.lab.plots.speed import duration

Rows = list[dict[str, Any]]

TITLES = {
    "write": "Writing an episode",
    "read": "Addressing T codes of each of B memories",
    "layer": "The layer, write and read with gradients; against a plain loop and against attention",
    "recall": "Recall; against its encoder and decoder passes alone",
    "cues": "Recall of all cues of B memories by the pretrained model",
    "train": "Training steps",
    "memory": "Memory of a write",
    "scaling": "Write and gradient: the exponent a of seconds ~ x^a, over the upper half of x",
}


def table(part: str, rows: Rows) -> Table:
    """The numbers of one part, for people."""
    if part == "memory":
        return memory_table(rows)
    if part == "scaling":
        return scaling_table(rows)
    results = [result for row in rows for result in row["contenders"].values()]
    bases = list(dict.fromkeys(base for result in results for base in result["faster_than"]))
    out = blank(part, "time", "quartiles", *(f"faster than\n{base}" for base in bases))
    if part == "train":
        out.add_column("steps/s", justify="right")
    if part == "cues":
        out.add_column("a cue", justify="right")
        out.add_column("encoder,\ndecoder a cue", justify="right")
    for row in rows:
        for i, (name, result) in enumerate(row["contenders"].items()):
            cells = [duration(result["seconds"]), "–".join(map(duration, result["quartiles"]))]
            cells += [ratio(result["faster_than"].get(base)) for base in bases]
            cells += [f"{1 / result['seconds']:.3g}"] if part == "train" else []
            cells += each_cue(result) if part == "cues" else []
            out.add_row(*place(row, first=i == 0), name, *cells)
        out.add_section()
    out.caption = notes(rows)
    return out


def each_cue(result: dict[str, Any]) -> list[str]:
    passed = (f"{rows:.3g}" for rows in result["evaluations_a_cue"].values())
    return [duration(result["seconds_a_cue"]), ", ".join(passed)]


def memory_table(rows: Rows) -> Table:
    out = blank("memory", "MB", "less than\nreference")
    for row in rows:
        whole = row["bytes"].get("reference")
        for i, (name, used) in enumerate(row["bytes"].items()):
            less = f"{whole / used:.3g}×" if whole and used and name != "reference" else ""
            out.add_row(*place(row, first=i == 0), name, megabytes(used), less)
        out.add_section()
    out.caption = notes(rows)
    return out


def scaling_table(rows: Rows) -> Table:
    out = blank("scaling", "at x =", "time", "a")
    for row in rows:
        a = "" if row["exponent"] is None else f"{row['exponent']:.2f}"
        out.add_row(*place(row), row["contender"], str(row["x"][-1]), duration(row["seconds"][-1]), a)
    return out


def blank(part: str, *columns: str) -> Table:
    out = Table(title=TITLES[part], box=box.SIMPLE, caption_justify="left", title_justify="left")
    for name in ("", *"KCTB"):
        out.add_column(name, justify="right")
    for name in ("x" if part == "scaling" else "", "contender"):
        out.add_column(name)
    for name in columns:
        out.add_column(name, justify="right")
    return out


def place(row: dict[str, Any], first: bool = True) -> list[str]:
    """Device, sizes and what was done; said once for all contenders."""
    cells = [row["device"], *map(str, row["case"].values()), row["what"]]
    return cells if first else [""] * len(cells)


def notes(rows: Rows) -> str:
    """Who was left out and why, each once."""
    found = {(row["device"], name, why): None for row in rows for name, why in row["left_out"].items()}
    return "\n".join(f"{device}, without {name}: {why}" for device, name, why in found)


def megabytes(used: int) -> str:
    return f"{used / 1e6:.3g}" if used < 1e8 else f"{used / 1e6:,.0f}"


def ratio(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    low, high = found["quartiles"]
    return f"{found['ratio']:.3g}× ({low:.3g}–{high:.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what speed.py --out wrote; the figures go beside it")
    path = parser.parse_args().file
    results = json.loads(path.read_text())
    console = Console()
    for part, rows in results["parts"].items():
        console.print(table(part, rows))
    plots.draw(results, path)


if __name__ == "__main__":
    main()
