"""Denoising: what is tried, a plain loop, and models that lack an energy."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch

from kanerva import DKMConfig, Recall
from kanerva.data.damage import Cue
from kanerva.lab import denoising, pictures
from kanerva.lab.measures import task
from trials import COLOUR, SMALL, bits, drawn, images, run, subject, toy

pytestmark = pytest.mark.usefixtures("short_search")

FLIPS = (0.0, 0.15)


@functools.cache
def result(config: DKMConfig) -> dict[str, Any]:
    return run(denoising, subject(config), flips=FLIPS, noises=FLIPS)


def test_psnr_by_hand() -> None:
    """The range is 2, so an error of 0.2 is a tenth of it, 20 dB; none at all counts as half a grey level."""
    clean = torch.tensor([0.5, -0.5, 0.9]).reshape(1, 3, 1, 1, 1).expand(1, 3, 3, 4, 4)
    end = clean + torch.tensor([0.2, -0.02, 0.0]).reshape(3, 1, 1, 1)
    found = denoising.measures(Recall(end[None]), clean)["psnr"]
    assert found[0, 0].tolist() == pytest.approx([20, 40, 20 * math.log10(512)], abs=1e-3)


def test_the_nearest_stored_image_by_hand() -> None:
    x = bits("1100", "0011", "1111")[None]
    found = denoising.yardsticks(Cue(bits("1000", "1100", "0111")[None], None), x, known=False)
    assert found["cue"]["wrong"]["mean"] == pytest.approx((1 + 4 + 1) / 3)
    assert found["nearest"]["right"]["mean"] == pytest.approx(2 / 3)  # the last is as near to its own as to another
    assert found["nearest"]["wrong"]["mean"] == pytest.approx((0 + 4 + 2) / 3)


def test_the_yardstick_looks_at_trusted_pixels_alone() -> None:
    x, mask = bits("1100", "0011")[None], bits("0011", "0011")[None]
    cue = Cue(bits("1111", "1111")[None], mask)
    assert denoising.yardsticks(cue, x, known=False)["nearest"]["wrong"]["mean"] == 2
    assert denoising.yardsticks(cue, x, known=True)["nearest"]["right"]["mean"] == 0.5


def test_the_protocol_of_damage() -> None:
    cells = {cell["name"]: cell for cell in result(SMALL)["cells"]}
    assert result(SMALL)["headline"] == "15 % flips"
    assert cells["30 % salt and pepper"]["noise"] == 0.15
    known = {name for name, cell in cells.items() if cell["known"]}
    assert known == {"25 % block erased", "half erased", "half erased, rest 10 % flips"}
    assert len(cells) == len(FLIPS) + 6
    assert [cell["level"] for cell in result(COLOUR)["cells"]] == [0, 0.15] + 4 * [None]


def test_only_what_has_noise_is_told_of_it_and_only_the_paper_s_noise_meets_the_chain() -> None:
    for cell in result(SMALL)["cells"]:
        assert list(cell["methods"])[:2] == ["least-squares", "descent"]
        assert ("descent, told" in cell["methods"]) == (cell["noise"] is not None)
        assert ("stochastic" in cell["methods"]) == (cell["name"] == "15 % flips")


def test_the_result_is_that_of_a_plain_loop() -> None:
    found, m = result(SMALL), subject().model
    kinds = denoising.damages(True, FLIPS)
    given = task(images(), kinds, 2, 4, 0)
    hits = []
    for cell, cues in zip(found["cells"][:2], given.cues, strict=False):
        wrong, right, rose = [], [], []
        for x, cue in zip(given.x, cues.x, strict=True):
            with torch.no_grad():
                path = m.recall(m.write(x), cue, 3, "least-squares")
            apart = [[int((a != b).sum()) for b in x] for a in path.x[-1]]
            wrong += [row[i] for i, row in enumerate(apart)]
            right += [row[i] == min(row) for i, row in enumerate(apart)]
            rose += (path.energy[1:] > path.energy[:-1]).flatten().tolist()
        numbers = cell["methods"]["least-squares"]
        for key, values in (("wrong", wrong), ("right", right), ("rose", rose)):
            assert numbers[key]["mean"] == pytest.approx(np.mean(values))
        hits += right
    assert 0 < np.mean(hits) < 1
    assert found["steps"]["least-squares"]["wrong"]["mean"][-1] == pytest.approx(numbers["wrong"]["mean"])
    assert found["cells"][0]["cue"]["wrong"]["mean"] == 0
    assert found["cells"][0]["nearest"]["right"]["mean"] == 1


def test_the_picture_has_its_rows() -> None:
    shown, given = result(SMALL)["pictures"], task(images(), denoising.damages(True, FLIPS), 2, 4, 0)
    rows = pictures.unpack(shown["images"])
    steps = [f"{method}, step {step}" for method in ("least-squares", "descent") for step in (1, 2, 3)]
    assert shown["rows"] == ["original", "cue", *steps]
    assert np.array_equal(rows[0], given.x[0].numpy())
    assert np.array_equal(rows[1], given.cues[1].x[0].numpy())


@pytest.mark.parametrize("config", [SMALL, COLOUR])
def test_figures_are_drawn_from_the_file(config: DKMConfig) -> None:
    made = drawn(denoising, a=result(config))
    assert set(made) == {"pictures", "energy"}
    lines = {str(line.get_label()).split(" (")[0]: line for line in made["energy"].axes[0].lines}
    assert list(lines["stochastic"].get_ydata()) == result(config)["steps"]["stochastic"]["energy"]["mean"]


def test_a_model_without_energy_leaves_it_out() -> None:
    found = run(denoising, toy())
    assert (found["kept"], found["stored"]) == (4 * 64, {})
    assert set(found["steps"]["copy"]) == {"wrong", "right", "blank"}
    assert all(cell["methods"]["copy"]["wrong"] == cell["cue"]["wrong"] for cell in found["cells"])
    rows = denoising.table(found).text().rows
    assert [row[0] for row in rows] == ["the cue", "copy", "nearest stored image to the cue"]
    assert rows[1][3] == "–"
    assert set(drawn(denoising, a=result(SMALL), **{"x:y/z": found})) == {
        "pictures-a",
        "energy-a",
        "pictures-x-y-z",
    }
