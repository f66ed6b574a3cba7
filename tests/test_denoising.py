"""Denoising: its measures by hand, what each method is told, and its figures from its file alone."""

import functools
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kanerva import DKM, DKMConfig
from kanerva.data.damage import Cue
from kanerva.experiments import base, plots
from kanerva.experiments import denoising as experiment
from kanerva.experiments.denoising import Denoising, Episode, Measures
from kanerva.experiments.plots import denoising as figures
from kanerva.recall.methods import Recall
from trials import COLOUR, SMALL, bits, generator, run, subject, toy

pytestmark = pytest.mark.usefixtures("short_search")

WORK = Denoising(episodes=2, length=4, steps=3, flips=(0.0, 0.15), noises=(0.0, 0.15), pictures=3)


@functools.cache
def result(config: DKMConfig) -> dict[str, Any]:
    return run(WORK, subject(config))


# measures


def test_a_rise_is_any_rise() -> None:
    energy = torch.tensor([[3.0, 2.0], [2.0, 2.0], [2.0000002, 1.0], [1.0, 1.5]])
    assert experiment.rises(energy).tolist() == [[0, 0], [0, 0], [1, 0], [0, 1]]


def test_measures_by_hand() -> None:
    clean = bits("1100", "0011", "1111")
    steps = torch.stack([bits("1000", "1100", "0000"), bits("1100", "0111", "0111")])
    energy = torch.tensor([[1.0, 2.0, 3.0], [0.5, 2.5, 3.0]])
    found = experiment.measure(Recall(steps, torch.zeros(2, 3, 5), energy), clean)
    assert found.wrong.tolist() == [[1, 4, 4], [0, 1, 1]]
    # of 0111, images 1 and 2 are one pixel away: the first of them is taken, which is right once
    assert found.right.tolist() == [[1, 0, 0], [1, 1, 0]]
    assert found.blank.tolist() == [[0, 0, 1], [0, 0, 0]]
    assert found.energy.tolist() == energy.tolist()
    assert found.rose.tolist() == [[0, 0, 0], [0, 1, 0]]
    assert found.psnr is None


def test_psnr_by_hand() -> None:
    """The range is 2, so an error of 0.2 is a tenth of it, 20 dB; none at all counts as half a grey level."""
    clean = torch.tensor([0.5, -0.5, 0.9]).reshape(3, 1, 1, 1).expand(3, 3, 4, 4)
    end = clean + torch.tensor([0.2, -0.02, 0.0]).reshape(3, 1, 1, 1)
    found = experiment.measure(Recall(end[None], torch.zeros(1, 3, 5)), clean)
    assert found.psnr is not None
    assert found.psnr[0].tolist() == pytest.approx([20, 40, 20 * math.log10(512)], abs=1e-3)


def test_means_are_over_episodes() -> None:
    def made(wrong: float, rose: float) -> Measures:
        last = torch.tensor([[9.0, 9.0], [wrong, wrong + 2], [wrong, wrong + 2]])
        return Measures(last, last, last, last, torch.tensor([[0.0, 0.0], [rose, 0.0], [0.0, 0.0]]), None)

    final = experiment.final([made(1, 1), made(5, 0)])
    assert final["wrong"] == {"mean": 4, "stderr": pytest.approx(2)}  # 2 and 6, two episodes: √8 / √2
    assert final["rose"] == {"mean": 0.125, "stderr": pytest.approx(0.125)}  # ¼ and 0; the first step cannot rise
    steps = experiment.stepwise([made(1, 1), made(5, 0)])
    assert steps["wrong"]["mean"] == [9, 4, 4]
    assert steps["wrong"]["stderr"] == [0, pytest.approx(2), pytest.approx(2)]
    assert steps["rose"]["mean"] == [0, 0.25, 0]


def test_the_yardstick_looks_at_trusted_pixels_alone() -> None:
    stored = bits("1100", "0011")
    cue = Cue(bits("1000", "0000"), bits("1100", "0011"))
    assert experiment.apart(cue, stored, known=False).tolist() == [[1, 3], [2, 2]]
    assert experiment.apart(cue, stored, known=True).tolist() == [[1, 1], [0, 2]]


def test_the_nearest_stored_image_by_hand() -> None:
    model = subject().model
    x = bits("1100", "0011", "1111")
    episode = Episode(x, model.prior(), 0)
    cell = experiment.noisy(True, 0.1, True)._replace(corrupt=lambda x, _: Cue(bits("1000", "1100", "0111"), None))
    found = experiment.yardsticks(cell, [episode])
    assert found["cue"]["wrong"]["mean"] == pytest.approx((1 + 4 + 1) / 3)
    assert found["nearest"]["right"]["mean"] == pytest.approx(1 / 3)  # 0, 0 and 1 (a tie)
    assert found["nearest"]["wrong"]["mean"] == pytest.approx((0 + 4 + 2) / 3)


# what is tried


def test_the_grid_is_that_of_the_protocol() -> None:
    cells = {cell.name: cell for cell in experiment.grid(True, Denoising().flips, Denoising().noises)}
    assert [c.level for c in cells.values() if c.kind == "flips"] == [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    assert [name for name, cell in cells.items() if cell.headline] == ["15 % flips"]
    assert cells["20 % flips"].noise == 0.2
    assert cells["0 % flips"].noise is None
    assert cells["30 % salt and pepper"].noise == 0.15
    known = {name for name, cell in cells.items() if cell.known}
    assert known == {"25 % block erased", "half erased", "half erased, rest 10 % flips"}
    colour = {cell.name: cell for cell in experiment.grid(False, Denoising().flips, Denoising().noises)}
    assert [c.level for c in colour.values() if c.kind == "noise"] == [0, 0.15, 0.3]
    assert colour["noise 0.3"].noise == pytest.approx(0.09)  # a variance
    assert [name for name, cell in colour.items() if cell.headline] == ["noise 0.15"]
    assert len(colour) == 7


def test_only_what_has_noise_is_told_of_it_and_only_the_paper_s_noise_meets_the_chain() -> None:
    for cell in experiment.grid(True, Denoising().flips, ()):
        tried = experiment.methods(subject().model, cell)
        assert tried[:2] == ["least-squares", "descent"]
        assert ("descent, told" in tried) == (cell.noise is not None)
        assert ("stochastic" in tried) == (cell.name == "15 % flips")


@pytest.mark.parametrize(
    ("method", "name", "expected"),
    [
        ("least-squares", "half erased", {}),
        ("descent", "half erased", {"mask": True}),
        ("descent", "half blank, not known", {}),
        ("descent", "15 % flips", {}),
        ("descent, told", "15 % flips", {"noise": 0.15}),
        ("descent, told", "half erased, rest 10 % flips", {"noise": 0.1, "mask": True}),
        ("stochastic", "15 % flips", {"generator": True}),
    ],
)
def test_methods_are_told_what_their_names_say(
    method: str, name: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    real = DKM.recall

    def spy(self: DKM, state: Any, x: Tensor, steps: int, method: str = "least-squares", **options: Any) -> Recall:
        calls.append((x, method, options))
        return real(self, state, x, steps, method, **options)

    monkeypatch.setattr(DKM, "recall", spy)
    cell = next(cell for cell in experiment.grid(True, (0.15,), ()) if cell.name == name)
    (episode,) = experiment.draw(subject(), 1, 4, generator())
    with torch.no_grad():
        experiment.recall(subject().model, episode, cell, method, 2, generator())
    ((x, called, options),) = calls
    cue = episode.cue(cell)
    assert torch.equal(x, cue.x)
    assert called == method.removesuffix(", told")
    assert set(options) - {"callback"} == set(expected)
    assert options.get("noise") == expected.get("noise")
    if "mask" in expected:
        assert torch.equal(options["mask"], cue.mask)


def test_cues_share_their_random_numbers() -> None:
    (episode,) = experiment.draw(subject(), 1, 4, generator())
    cells = {cell.name: cell for cell in experiment.grid(True, (0.1, 0.3), ())}
    few, many = (episode.cue(cells[name]).x != episode.x for name in ("10 % flips", "30 % flips"))
    assert bool((many | ~few).all())
    known, unknown = (episode.cue(cells[f"25 % block {name}"]).x for name in ("erased", "blank, not known"))
    assert torch.equal(known, unknown)
    half = episode.cue(cells["half erased, rest 10 % flips"])
    assert half.mask is not None
    assert torch.equal(half.x, episode.cue(cells["10 % flips"]).x * half.mask)


@pytest.mark.parametrize("method", ["descent", "least-squares"])
def test_the_bar_moves_with_every_step_of_recall(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    who = subject(SMALL)
    cell = experiment.grid(True, (0.15,), ())[0]
    episode = experiment.draw(who, 1, 3, generator())[0]
    ticks: list[int] = []
    seen: list[int] = []
    once = type(who.model).recall

    def watched(*args: Any, **options: Any) -> Any:
        found = once(*args, **options)
        seen.append(len(ticks))
        return found

    monkeypatch.setattr(type(who.model), "recall", watched)
    experiment.recall(who.model, episode, cell, method, 6, generator(), lambda: ticks.append(1))
    assert seen[0] > 1  # during recall
    assert len(ticks) == 6  # as many as were promised, also where it came to rest early


# the whole


def test_the_result_is_that_of_a_plain_loop() -> None:
    found = result(SMALL)
    with torch.no_grad():
        who = subject()
        episodes = experiment.draw(who, 2, 4, generator())
        cell = next(cell for cell in experiment.grid(True, WORK.flips, ()) if cell.headline)
        wrong, right, rose = [], [], []
        for episode in episodes:
            path = who.model.recall(who.model.write(episode.x), episode.cue(cell).x, 3, "least-squares")
            apart = [[int((a != b).sum()) for b in episode.x] for a in path.x[-1]]
            wrong += [row[i] for i, row in enumerate(apart)]
            right += [row.index(min(row)) == i for i, row in enumerate(apart)]
            rose += (path.energy[1:] > path.energy[:-1]).flatten().tolist()
    cells = {cell["name"]: cell for cell in found["cells"]}
    numbers = cells["15 % flips"]["methods"]["least-squares"]
    for key, values in (("wrong", wrong), ("right", right), ("rose", rose)):
        assert numbers[key]["mean"] == pytest.approx(np.mean(values))
    assert 0 < np.mean(right) < 1
    assert found["steps"]["least-squares"]["wrong"]["mean"][-1] == numbers["wrong"]["mean"]
    assert len(found["paths"]["descent"]) == 4
    assert len(found["paths"]["descent"][0]) == 3
    assert cells["0 % flips"]["cue"]["wrong"]["mean"] == 0
    assert cells["0 % flips"]["nearest"]["right"]["mean"] == 1


@pytest.mark.parametrize("config", [SMALL, COLOUR])
def test_descent_never_rises_in_any_cell(config: DKMConfig) -> None:
    for cell in result(config)["cells"]:
        for method in ("descent", "descent, told"):
            if method in cell["methods"]:
                assert cell["methods"][method]["rose"] == {"mean": 0, "stderr": 0}


def test_the_picture_has_its_rows() -> None:
    found = result(SMALL)
    (episode, _) = experiment.draw(subject(), 2, 4, generator())
    images = base.unpack(found["pictures"]["images"])
    steps = [f"{method}, step {step}" for method in ("least-squares", "descent") for step in (1, 2, 3)]
    assert found["pictures"]["rows"] == ["original", "cue", *steps]
    assert np.array_equal(images[0], episode.x[:3].numpy())
    cell = next(cell for cell in experiment.grid(True, WORK.flips, ()) if cell.headline)
    assert np.array_equal(images[1], episode.cue(cell).x[:3].numpy())
    with torch.no_grad():
        path = subject().model.recall(episode.state, episode.cue(cell).x, 3, "least-squares")
    assert np.array_equal(images[4], path.x[-1, :3].numpy())


@pytest.mark.parametrize("config", [SMALL, COLOUR])
def test_figures_are_drawn_from_the_file(config: DKMConfig) -> None:
    found = result(config)
    with plots.style():
        drawn = figures.figures({"models": [{"name": "a", "result": found}]})
        for figure in drawn.values():
            figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    assert set(drawn) == {"pictures", "steps", "grid"}
    wrong, right = drawn["grid"].axes[:2]
    levels = [cell for cell in found["cells"] if cell["kind"] != "other"]
    for axes, key in ((wrong, "wrong"), (right, "right")):
        lines = {line.get_label(): line for line in axes.lines}
        expected = [cell["methods"]["descent"][key]["mean"] for cell in levels]
        assert list(lines["descent"].get_ydata()) == expected
        assert list(lines["descent"].get_xdata()) == [cell["level"] for cell in levels]
        assert list(lines[figures.NEAREST].get_ydata()) == [cell["nearest"][key]["mean"] for cell in levels]
    others = [cell["name"] for cell in found["cells"] if cell["kind"] == "other"]
    assert [label.get_text() for label in drawn["grid"].axes[2].get_yticklabels()] == others[::-1]
    energy = {line.get_label(): line for line in drawn["steps"].axes[1].lines}
    assert list(energy["stochastic"].get_ydata()) == found["steps"]["stochastic"]["energy"]["mean"]


def test_models_have_figures_of_their_own() -> None:
    found = result(SMALL)
    with plots.style():
        drawn = figures.figures({"models": [{"name": name, "result": found} for name in ("a", "b")]})
    assert set(drawn) == {f"{end}-{name}" for end in ("pictures", "steps", "grid") for name in ("a", "b")}


def test_what_no_channel_could_have_done_is_not_told() -> None:
    """Half of all bits flipped leave nothing to recall, and descent takes no such level."""
    assert [cell.noise for cell in experiment.grid(True, (0.0, 0.3, 0.5, 1.0), ())[:4]] == [None, 0.3, None, None]


# other models


def test_a_model_is_told_what_its_recalls_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "METHOD, told" is for any recall that takes the noise, and a chain is any that takes a temperature."""
    who = toy().model
    options = {"walk": ("temperature",), "copy": ("noise",), "read": ()}
    monkeypatch.setattr(type(who), "METHODS", tuple(options))
    monkeypatch.setattr(type(who), "READ", "read")
    monkeypatch.setattr(type(who), "options", lambda _, method: options[method])
    flips, harder = experiment.grid(True, (0.15, 0.3), ())[:2]
    assert experiment.methods(who, flips) == ["read", "walk", "copy", "copy, told"]
    assert experiment.methods(who, harder) == ["read", "copy", "copy, told"]


def test_a_model_without_energy_leaves_it_out() -> None:
    found = run(WORK, toy())
    assert (found["kept"], found["stored"], found["paths"]) == (4 * 64, {}, {})
    assert set(found["steps"]) == {"copy"}
    assert set(found["steps"]["copy"]) == {"wrong", "right", "blank"}
    for cell in found["cells"]:
        assert set(cell["methods"]) == {"copy"}
        # what is given back is the cue
        assert cell["methods"]["copy"]["wrong"] == cell["cue"]["wrong"]
    assert found["pictures"]["rows"] == ["original", "cue", "copy, step 1", "copy, step 2", "copy, step 3"]
    rows = Denoising.table(found).text().rows
    assert [row[0] for row in rows] == ["the cue", "copy", "nearest stored image to the cue"]
    assert rows[1][1] == rows[0][1]
    assert rows[1][3] == "–"

    models = [{"name": name, "result": numbers} for name, numbers in (("a", result(SMALL)), ("x:y/z", found))]
    with plots.style():
        drawn = figures.figures({"models": models})
        for figure in drawn.values():
            figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    assert set(drawn) == {f"{end}-{name}" for end in ("pictures", "steps", "grid") for name in ("a", "x-y-z")}
    assert len(drawn["steps-a"].axes) == 3
    wrong, right = drawn["steps-x-y-z"].axes
    assert [line.get_label() for line in wrong.lines] == ["copy", "cue"]
    assert list(right.lines[0].get_ydata()) == found["steps"]["copy"]["right"]["mean"]


def test_known_methods_keep_their_colours_and_others_get_the_next() -> None:
    assert plots.numbers(["new", "descent", "other", "stochastic", "new"]) == {
        "new": 0,
        "descent": 1,
        "other": 2,
        "stochastic": 3,
    }
