"""DNC: every equation of the Nature article's Methods as plain loops, and what follows from them."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import kanerva
from cases import generator, images, normal
from kanerva import CodecConfig
from kanerva.models.base import Preparation
from kanerva.models.rivals import dnc
from kanerva.models.rivals.dnc import DNC, DNCConfig, DNCState, ReadSignals

SMALL = DNCConfig(image=(1, 6, 7), code=5, rows=6, heads=3, hidden=7, codec=CodecConfig((4, 6)))


def model(config: DNCConfig = SMALL) -> DNC:
    torch.manual_seed(0)
    return DNC(config).double().eval()


def weights(*shape: int, seed: int = 0) -> Tensor:
    """Weights that are not negative and sum to less than 1."""
    return 0.9 * normal(*shape, seed=seed).softmax(-1)


def gates(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed).sigmoid()


# the article's equations, row by row, in Python's numbers


def slow_content(memory: list[list[float]], key: list[float], strength: float) -> list[float]:
    def length(a: list[float]) -> float:
        return math.sqrt(sum(x * x for x in a) + dnc.TINY)

    similar = [sum(a * b for a, b in zip(key, row, strict=True)) / length(key) / length(row) for row in memory]
    powers = [math.exp(strength * s) for s in similar]
    return [p / sum(powers) for p in powers]


def slow_usage(u: list[float], w: list[float], read: list[list[float]], free: list[float]) -> list[float]:
    found = []
    for i in range(len(u)):
        retention = 1.0
        for f, r in zip(free, read, strict=True):
            retention *= 1 - f * r[i]
        found.append((u[i] + w[i] - u[i] * w[i]) * retention)
    return found


def slow_allocation(u: list[float]) -> list[float]:
    """With the free list: rows in the order of their usage."""
    raised = [dnc.UNUSED + (1 - dnc.UNUSED) * x for x in u]
    found, product = [0.0] * len(u), 1.0
    for row in sorted(range(len(u)), key=lambda i: u[i]):
        found[row] = (1 - raised[row]) * product
        product *= raised[row]
    return found


def slow_links(links: list[list[float]], p: list[float], w: list[float]) -> list[list[float]]:
    n = range(len(w))
    return [[0.0 if i == j else (1 - w[i] - w[j]) * links[i][j] + w[i] * p[j] for j in n] for i in n]


def slow_read(
    memory: list[list[float]],
    links: list[list[float]],
    w: list[float],
    key: list[float],
    beta: float,
    pi: list[float],
) -> list[float]:
    n, c = range(len(w)), slow_content(memory, key, beta)
    backward = [sum(links[j][i] * w[j] for j in n) for i in n]
    forward = [sum(links[i][j] * w[j] for j in n) for i in n]
    return [pi[0] * backward[i] + pi[1] * c[i] + pi[2] * forward[i] for i in n]


def close(found: Tensor, slow: Any) -> None:
    torch.testing.assert_close(found, torch.tensor(slow, dtype=torch.float64))


@pytest.mark.parametrize("case", ["any", "ties", "unused", "full", "one row"])
def test_allocation(case: str) -> None:
    u = {
        "any": gates(6),
        "ties": torch.tensor([0.5, 0.2, 0.5, 0.2, 1.0, 0.2], dtype=torch.float64),
        "unused": torch.zeros(6, dtype=torch.float64),
        "full": torch.ones(6, dtype=torch.float64),
        "one row": gates(1),
    }[case]
    found = dnc.allocation(u)
    close(found, slow_allocation(u.tolist()))
    if case == "unused":
        assert float(found[0]) > 1 - 2e-6  # all into the first row, but for what usage is raised by
    if case == "full":
        assert float(found.sum()) == 0


def slow_step(m: DNC, s: DNCState, z: Tensor) -> DNCState:
    """One step of writing from its parts, in the article's order; the LSTM is PyTorch's."""
    C, R, H = m.config.code, m.config.heads, m.config.hidden
    part = m.controller
    lstm = torch.nn.LSTMCell(C + R * C, H).double()
    take, keep, give, new = (slice(i * H, (i + 1) * H) for i in range(4))
    order = (take, keep, new, give)  # PyTorch has the gates in another order
    lstm.weight_ih.data = torch.cat(
        [torch.cat([part.input.weight[i], part.recurrent.weight[i, : R * C]], 1) for i in order]
    )
    lstm.weight_hh.data = torch.cat([part.recurrent.weight[i, R * C :] for i in order])
    lstm.bias_ih.data, lstm.bias_hh.data = (
        torch.cat([part.input.bias[i] for i in order]),
        torch.zeros(4 * H).double(),
    )
    vectors = [s.read[r] @ s.memory for r in range(R)]
    hidden, cell = lstm(torch.cat([z, *vectors]), (s.hidden, s.cell))
    out = part.writing(hidden)
    key, erase, add = out[:C], out[C : 2 * C].sigmoid(), out[2 * C : 3 * C]
    strength = 1 + math.log1p(math.exp(float(out[3 * C])))
    allocate, gate = (float(x) for x in out[3 * C + 1 : 3 * C + 3].sigmoid())
    free = out[3 * C + 3 :].sigmoid().tolist()
    M = s.memory.tolist()
    usage = slow_usage(s.usage.tolist(), s.write.tolist(), s.read.tolist(), free)
    a, c = slow_allocation(usage), slow_content(M, key.tolist(), strength)
    w = [gate * (allocate * a[i] + (1 - allocate) * c[i]) for i in range(len(a))]
    M = [[M[i][j] * (1 - w[i] * float(erase[j])) + w[i] * float(add[j]) for j in range(C)] for i in range(len(w))]
    links = slow_links(s.links.tolist(), s.precedence.tolist(), w)
    precedence = [(1 - sum(w)) * s.precedence[i].item() + w[i] for i in range(len(w))]
    read = []
    for r, orders in enumerate(part.reading(hidden).reshape(R, C + 4)):
        beta = 1 + math.log1p(math.exp(float(orders[C])))
        pi = orders[C + 1 :].softmax(0).tolist()
        read.append(slow_read(M, links, s.read[r].tolist(), orders[:C].tolist(), beta, pi))
    found = [torch.tensor(x, dtype=torch.float64) for x in (M, links, usage, precedence, w, read)]
    return DNCState(*(*found, hidden, cell))


@torch.no_grad()
def test_steps_of_writing() -> None:
    m, z = model(), 3 * normal(4, 5)
    state = slow = m.blank()
    for code in z:
        state, slow = m.controller(state, m.controller.input(code)), slow_step(m, slow, code)
        for found, wanted in zip(state, slow, strict=True):
            torch.testing.assert_close(found, wanted)


@torch.no_grad()
def test_reading_is_the_same_equations_for_each_cue() -> None:
    m, z = model(), 3 * normal(4, 5)
    state, c = m.blank(), m.config
    for code in z:
        state = m.controller(state, m.controller.input(code))
    found, last = m.read(state, z)
    for q in range(4):
        hidden, cell = m.start
        w, r = torch.zeros(c.heads, c.rows).double(), torch.zeros(c.heads, c.code).double()
        for _ in range(c.reads):
            hidden, cell = m.controller.lstm(m.controller.input(z[q]), r, hidden, cell)
            w = dnc.read_weights(state.memory, state.links, w, m.controller.how_to_read(hidden))
            r = w @ state.memory
        torch.testing.assert_close(last[q], w)
        torch.testing.assert_close(found[q], m.out(r.flatten()))


# gradients


def test_gradients_of_the_addressing() -> None:
    M, L, u = normal(4, 3), 0.1 * gates(4, 4), gates(4, seed=1)
    w, r, f, p = weights(4, seed=2), weights(2, 4, seed=3), gates(2, seed=4), weights(4, seed=5)
    k, beta, pi = normal(2, 3, seed=6), 1 + gates(2, seed=7), normal(2, 3, seed=8).softmax(-1)
    M[1] = 0  # where a plain norm has no gradient
    cases: list[tuple[Any, tuple[Tensor, ...]]] = [
        (dnc.content, (M, k, beta)),
        (dnc.used, (u, w, r, f)),
        (dnc.allocation, (u,)),
        (dnc.linked, (L, p, w)),
        (lambda M, L, r, *how: dnc.read_weights(M, L, r, ReadSignals(*how)), (M, L, r, k, beta, pi)),
    ]
    for function, inputs in cases:
        # steps that stay within the bend of √(x² + 1e-6) at the blank row
        assert gradcheck(function, [x.clone().requires_grad_() for x in inputs], eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_long_episodes_stay_finite_in_float32(scale: float) -> None:
    """T = 200 in 16 rows, with every gate and strength driven to its ends, and with nothing at all."""
    torch.manual_seed(0)
    m = DNC(dataclasses.replace(SMALL, rows=16))
    with torch.no_grad():
        for name, weight in m.controller.named_parameters():
            weight.mul_(1.0 if name.startswith("recurrent") else scale)
    x = torch.cat(
        [images(SMALL, 2, 100), torch.zeros(2, 50, *SMALL.image), torch.ones(2, 50, *SMALL.image)], 1
    ).float()
    terms = m(x, generator(0))
    terms.loss().backward()
    assert bool(terms.log_lik.isfinite().all())
    assert [name for name, p in m.named_parameters() if p.grad is None or not bool(p.grad.isfinite().all())] == []
    with torch.no_grad():
        state = m.write(x)
    # weights stay weights: rounding errors of 200 steps
    for part in (state.usage, state.write, state.precedence, state.read):
        assert float(part.min()) >= 0
    for part in (state.write, state.precedence, state.read, state.links, state.links.mT):
        assert float(part.sum(-1).max()) <= 1 + 1e-5
    assert float(state.usage.max()) <= 1 + 1e-5


# the model


def test_reading_sees_the_memory_alone() -> None:
    """Not the writing controller: with other values there, and in what is only for writing, it reads the same."""
    m, x = model(), images(SMALL, 2, 4)
    state = m.write(x)
    other = state._replace(
        **{name: part + 1 for name, part in state._asdict().items() if name not in ("memory", "links")}
    )
    assert torch.equal(m.recall(state, x, 2).x, m.recall(other, x, 2).x)
    assert not torch.equal(
        m.read(state, m.encode(x))[0], m.read(state._replace(memory=state.memory + 1), m.encode(x))[0]
    )
    assert not torch.equal(
        m.read(state, m.encode(x))[0], m.read(state._replace(links=state.links + 1), m.encode(x))[0]
    )


def test_cues_are_corrupted_in_training_alone() -> None:
    m, x = model().float(), images(SMALL, 3, 50).float()
    clean = m(x).log_lik
    cue = m.corrupted(x, generator(0))
    shares = (cue != x).double().mean((-3, -2, -1))
    assert 0.2 < float(shares.mean()) < 0.25  # half of 0.45
    assert float(shares.std()) > 0.1
    data = kanerva.data.ClassImages.from_labels(x.flatten(0, 1).to(torch.uint8), torch.arange(150) % 4, binary=True)
    wanted = kanerva.evaluate(m, data, 4, 32)
    m.train()
    z = m.encode(m.corrupted(x, generator(3)))
    torch.testing.assert_close(m(x, generator(3)).log_lik, m.decode(m.read(m.write(x), z)[0]).log_prob(x))
    assert kanerva.evaluate(m, data, 4, 32) == wanted
    assert m.training
    assert not torch.equal(m(x).log_lik, clean)


def test_the_extra_score_is_of_other_memories() -> None:
    m, x = model(), images(SMALL, 3, 4)
    ((name, score),) = m.extra_scores(x).items()
    assert name == "read from another episode's memory"
    for i in range(3):
        found = m.decode(m.read(m.write(x[i - 1]), m.encode(x[i]))[0]).log_prob(x[i])
        torch.testing.assert_close(score[i], -found.mean())
    assert m.extra_scores(x[0]) == m.extra_scores(x[:1]) == {}


def test_recall_reads_again_and_again() -> None:
    m, x = model(), images(SMALL, 2, 4)
    state = m.write(x)
    found = m.recall(state, x, 2)
    once, w = m.read(state, m.encode(x))
    assert torch.equal(found.x[0], m.decode(once).mode())
    assert torch.equal(found.x[1], m.recall(state, found.x[0], 1).last)
    assert found.w is not None
    torch.testing.assert_close(found.w[0], w.mean(-2))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.filterwarnings("default")
def test_a_step_of_writing_is_one_graph() -> None:
    """What `prepare` compiles, forward and backward."""
    m, x = model(), images(SMALL, 2, 3)
    m.prepare(Preparation(None, False, "auto"))
    m(x).loss().backward()
    plain = [p.grad for p in m.parameters()]
    m.zero_grad()
    torch.compiler.reset()
    m.controller.compile(fullgraph=True, backend="aot_eager")
    m(x).loss().backward()
    for p, wanted in zip(m.parameters(), plain, strict=True):
        torch.testing.assert_close(p.grad, wanted)
