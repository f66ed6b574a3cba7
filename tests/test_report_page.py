"""The report in a browser: nothing is cut off on a phone, figures are readable on dark, the script works."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kanerva.app import report
from kanerva.lab import capacity, denoising
from trials import run, subject

pytestmark = pytest.mark.usefixtures("no_shape_checks")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
OFFLINE = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--no-first-run", "--hide-scrollbars", "--virtual-time-budget=2000"),
]

# What the page looks like before and after its slider is moved and a figure is clicked. It goes into a copy of the
# page without its policy, which would not let it run, and that into a frame: windows are not as narrow as a phone.
PROBE = """<script>
const all = (selector) => [...document.querySelectorAll(selector)];
const box = (e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
const seen = () => all(".strip img").filter((e) => !e.hidden).map((e) => Number(e.dataset.step));
const found = {
  width: innerWidth,
  scroll: document.documentElement.scrollWidth,
  wide: all("body *").filter((e) => box(e)[2] > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80)),
  broken: all("main img, .strip img").filter((e) => !e.naturalWidth).length,
  strips: all(".strip").map(box),
  panels: all(".panels img").map(box),
  before: seen(),
};
const slider = document.querySelector(".scrub input");
slider.value = 0;
slider.dispatchEvent(new Event("input"));
found.after = seen();
const [panel] = all(".panels img");
panel.click();
found.zoomed = document.querySelector("dialog").open && document.querySelector("dialog img").src === panel.src;
parent.postMessage(JSON.stringify(found), "*");
</script></body>"""
FRAME = """<title></title><script>addEventListener("message", (event) => { document.title = event.data; });</script>
<iframe src="probed.html" width="WIDTH" height="HEIGHT" style="border: 0"></iframe>"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of which little is left, with two experiments of two models."""
    folder = tmp_path_factory.mktemp("page") / "run"
    (folder / "experiments").mkdir(parents=True)
    lines = [{"step": i, "loss": 90 - i, "nats": 80 - i, "lr": 1e-3} for i in range(1, 40)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kanerva.recall.search.STEPS", (2, 2, 2))
        patch.setattr("kanerva.recall.frame.TRIAL", 0)
        for name in ("BUDGET", "RECALL"):
            patch.setattr(f"kanerva.recall.frame.{name}", 100)
        for name, experiment, sizes in (("denoising", denoising, {}), ("capacity", capacity, {"classes": (2, 4)})):
            result = run(experiment, subject(), **sizes)
            models = [{"name": which, "kind": "dkm", "result": result} for which in ("first", "second")]
            found = {"experiment": name, "command": f"kanerva experiment {name}", "models": models}
            (folder / "experiments" / f"{name}.json").write_text(json.dumps(found))
    return report.write(folder)


def chromium(path: Path, width: int, height: int, *options: str) -> tuple[str, str]:
    """What the browser makes of a page, and what it says."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OFFLINE, f"--user-data-dir={path.parent / 'browser'}", f"--window-size={width},{height}"]
    done = subprocess.run(
        [*command, "--enable-logging=stderr", *options, path.as_uri()], capture_output=True, text=True, timeout=120
    )
    return done.stdout, done.stderr


def look(page: Path, folder: Path, width: int, height: int) -> dict[str, Any]:
    """What the probe finds in a window of some size."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    (folder / "probed.html").write_text(text.replace("</body>", PROBE))
    (folder / "frame.html").write_text(FRAME.replace("WIDTH", str(width)).replace("HEIGHT", str(height)))
    seen, _ = chromium(folder / "frame.html", 1400, 1000, "--dump-dom")
    (title,) = re.findall(r"<title>(.*?)</title>", seen, re.DOTALL)
    found: dict[str, Any] = json.loads(html.unescape(title))
    return found


@browser
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_nothing_is_cut_off(width: int, height: int, written: Path, tmp_path: Path) -> None:
    found = look(written, tmp_path, width, height)
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["wide"] == []
    assert found["broken"] == 0
    assert found["strips"][3][3] < height  # stored, cue and what was recalled are on the first screen
    first, second = found["strips"][0], found["strips"][4]
    assert (first[1] == second[1]) == (width == 1280)  # side by side, or one below the other
    assert all(right - left > 60 for left, _, right, _ in found["panels"])
    assert found["before"] == 2 * [0, 0, 3, 3]
    assert found["after"] == 2 * [0, 0, 1, 1]
    assert found["zoomed"]


@browser
def test_light_and_dark_and_the_policy(written: Path, tmp_path: Path) -> None:
    bright = {}
    for name, options in {"light": (), "dark": ("--blink-settings=preferredColorScheme=0",)}.items():
        sheet = tmp_path / f"{name}.png"
        seen, said = chromium(written, 1280, 4000, f"--screenshot={sheet}", "--dump-dom", *options)
        assert re.search(r'<p class="scrub"(?! hidden)', seen)  # the script has run
        assert "Content Security Policy" not in said
        assert "CONSOLE" not in said
        with Image.open(sheet) as image:
            bright[name] = float(np.median(np.asarray(image.convert("L"))))
    assert bright["light"] > 240
    assert bright["dark"] < 40
