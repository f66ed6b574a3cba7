"""The protocol of recall: tasks that are the same for all, what a recall is told, and answers judged by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kanerva import Recall
from kanerva.data.damage import Cue
from kanerva.lab import pictures
from kanerva.lab.measures import Damage, holes, judge, mean, means, noisy, recall, recalls, rises, task
from trials import COLOUR, bits, images, subject, toy


def lines(*ink: int) -> Tensor:
    """Images of 40 pixels in a row, of which the first so many are 1."""
    return (torch.arange(40) < torch.tensor(ink)[:, None]).float()[:, None, None]


def test_outcomes_by_hand() -> None:
    """5 % of 40 pixels are 2. As near to another as to its own is right."""
    stored = lines(10, 20, 1)[None]
    found = judge(lines(12, 13, 18, 0, 0, 3, 15)[None], stored, torch.tensor([0, 0, 0, 0, 2, 2, 1]))
    assert found.wrong.tolist() == [[2, 3, 8, 10, 1, 2, 5]]
    assert found.right.tolist() == [[1, 1, 0, 0, 1, 1, 1]]
    assert found.near.tolist() == [[1, 0, 0, 0, 0, 1, 0]]
    assert found.other.tolist() == [[0, 0, 1, 0, 0, 0, 0]]
    assert found.blank.tolist() == [[0, 0, 0, 1, 1, 0, 0]]


def test_outcomes_of_colours_are_by_their_range() -> None:
    """5 % of a range of 2 is 0.1."""
    stored = torch.stack([torch.full((3, 4, 4), v) for v in (-0.5, 0.5)]) + 0.01 * torch.randn(2, 3, 4, 4)
    end = stored[[0, 0, 0]] + torch.tensor([0.099, 0.101, 0.95])[:, None, None, None]
    found = judge(end[None], stored[None], torch.tensor([0, 0, 0]))
    assert found.right.tolist() == [[1, 1, 0]]
    assert found.near.tolist() == [[1, 0, 0]]
    assert found.other.tolist() == [[0, 0, 1]]


def test_every_step_is_judged_in_its_own_memory() -> None:
    first, second = bits("1100", "0011"), bits("1111", "0000")
    steps = torch.stack([torch.stack([first, second]), torch.stack([second, first])])
    assert judge(steps, torch.stack([first, second])).wrong.tolist() == [[[0, 0], [0, 0]], [[2, 2], [2, 2]]]


def test_a_rise_is_any_rise() -> None:
    energy = torch.tensor([[3.0, 2.0], [2.0, 2.0], [2.0000002, 1.0], [1.0, 1.5]])
    assert rises(energy).tolist() == [[0, 0], [0, 0], [1, 0], [0, 1]]


def test_means_are_over_episodes() -> None:
    values = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    assert mean(values) == {"mean": 4, "stderr": pytest.approx(2)}  # 2 and 6: √8 / √2
    assert means(torch.stack([values, values + 1]))["mean"] == [4, 5]


def test_a_task_is_decided_by_its_seed() -> None:
    kinds = [noisy(True, 0.1), noisy(True, 0.3), *holes(True)]
    one, other = task(images(), kinds, 2, 5, 3), task(images(), kinds[1:], 2, 5, 3)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.cues[1].x, other.cues[0].x)  # whatever else is damaged
    assert not torch.equal(one.x, task(images(), kinds, 2, 5, 4).x)
    assert all(len({image.numpy().tobytes() for image in episode}) == 5 for episode in one.x)
    few, many = (cue.x != one.x for cue in one.cues[:2])
    assert bool((many | ~few).all())  # more noise is the same and some more
    assert torch.equal(one.cues[2].x, one.cues[3].x)  # known or not, the same block


def test_few_of_many_are_asked_for() -> None:
    found = task(images(), [Damage("none", lambda x, _: Cue(x, None))], 2, 5, 0, 2)
    assert found.asked.tolist() == [0, 4]
    assert torch.equal(found.cues[0].x, found.x[:, [0, 4]])


def test_there_must_be_as_many_images_as_are_asked_for() -> None:
    with pytest.raises(ValueError, match="length: expected at most 24, as many images as there are, got 25"):
        task(images(), [], 1, 25, 0)


@pytest.mark.parametrize(("level", "told"), [(0.0, None), (0.3, 0.3), (0.5, None), (1.0, None)])
def test_what_no_channel_could_have_done_is_not_told(level: float, told: float | None) -> None:
    """Half of all bits flipped leave nothing to recall."""
    assert noisy(True, level).noise == told


def test_the_noise_of_colours_is_told_as_a_variance() -> None:
    assert noisy(False, 0.3).noise == pytest.approx(0.09)


ERASED, UNKNOWN = holes(True)[:2]


@pytest.mark.parametrize(
    ("method", "kind", "expected"),
    [
        ("least-squares", ERASED, {"mask"}),
        ("descent", ERASED, {"mask"}),
        ("descent", UNKNOWN, set()),
        ("descent", noisy(True, 0.15), set()),
        ("descent, told", noisy(True, 0.15), {"noise"}),
        ("descent, told", ERASED._replace(noise=0.1), {"noise", "mask"}),
        ("stochastic", noisy(True, 0.15), set()),
    ],
)
def test_a_recall_is_told_what_its_name_says(
    method: str, kind: Damage, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def spy(state: Any, x: Tensor, steps: int, name: str, **options: Any) -> Recall:
        calls.append({"x": x, "name": name, **options})
        return Recall(x[None])

    m, given = subject().model, task(images(), [kind], 2, 4, 0)
    monkeypatch.setattr(m, "recall", spy)
    recall(m, m.write(given.x), given.cues[0], kind, method, 2, 0)
    (call,) = calls
    assert {name for name in ("mask", "noise") if call[name] is not None} == expected
    assert call["name"] == method.removesuffix(", told")
    assert torch.equal(call["x"], given.cues[0].x)


@torch.no_grad()
def test_many_memories_are_recalled_from_as_one_by_one() -> None:
    kind = noisy(True, 0.15)
    m, given = subject().model, task(images(), [kind], 6, 4, 0)
    state, cue = m.write(given.x), given.cues[0]
    whole = recall(m, state, cue, kind, "least-squares", 3, 0)
    assert whole.energy is not None
    for i in range(6):
        alone = m.recall(m.write(given.x[i]), cue.x[i], 3, "least-squares")
        assert torch.equal(whole.x[:, i], alone.x)
        torch.testing.assert_close(whole.energy[:, i], alone.energy)


def test_the_plain_read_comes_first_and_chains_where_they_are_wanted() -> None:
    assert recalls(subject().model) == ["least-squares", "descent", "stochastic"]
    assert recalls(subject().model, chains=False) == ["least-squares", "descent"]
    assert recalls(toy().model) == ["copy"]


@pytest.mark.parametrize("binary", [True, False])
def test_images_in_a_file_come_back(binary: bool) -> None:
    x = images().images(torch.arange(6)) if binary else images(COLOUR).images(torch.arange(6))
    found = pictures.unpack(pictures.pack(x))
    wanted = x if binary else (x + 1) / 2
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0, atol=0)
