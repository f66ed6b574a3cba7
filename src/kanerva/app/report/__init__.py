"""A run on one HTML page: what was trained, its scores, its curve, and experiments. It opens without a network.

gather     what is there to show of a run, and what is missing or cannot be read?
page       what does template.html show of it?
figures    which pictures are embedded in the page?
"""

from pathlib import Path

from ...support.files import atomic_write
from ...support.say import bar
from .gather import gather as gather
from .page import page


def write(place: str | Path, out: Path | None = None, results: Path | None = None) -> Path:
    """Write the report of a run's folder, a checkpoint or a pretrained model; returns the page's path."""
    material = gather(str(place), results)
    if out is None:
        end = f"-{material.name}" if Path(place).is_file() else ""
        out = material.folder / f"report{end}.html"
    elif out.is_dir():
        out = out / "report.html"
    elif out.is_file() and not is_page(out):
        raise ValueError(f"--out: expected a new file or an earlier report, got {out}, which is neither")
    with bar("report", None):
        text = page(material)
    with atomic_write(out) as file:
        file.write(text.encode("utf-8", "replace"))
    return out


def is_page(path: Path) -> bool:
    """Whether a file is empty or begins as a page does."""
    with path.open("rb") as file:
        start = file.read(200).strip().lower()
    return not start or start.startswith(b"<!doctype html")
