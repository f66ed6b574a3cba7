"""Order: spreads by hand, what must be zero is zero, and what is called out of date is a divergence."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

import order
import trials
from cases import case as random_case
from cases import generator
from kanerva import DKM, DKMConfig, memory
from order import Case, compare, draw, nats, staleness, write
from trials import SMALL, drawn, run, subject


def model(config: DKMConfig = SMALL) -> DKM:
    m = trials.model(config).double().requires_grad_(False)
    m.memory.log_noise_var.fill_(-3.0)  # a memory that holds what is written, so that order matters
    return m


def case_of(length: int = 5, orders: int = 4, episodes: int = 3) -> Case:
    x, order = draw(subject(), episodes, length, orders, generator())
    return Case(x.double(), order)


def result(config: DKMConfig = SMALL) -> dict[str, Any]:
    return run(order, subject(config, model(config).float()), length=5, iterations=(1, 2), blocks=(1, 5))


@pytest.mark.parametrize(("iterations", "block"), [(1, 1), (2, 3)])
def test_each_order_is_written_as_it_says(iterations: int, block: int) -> None:
    m, case = model(), case_of()
    written = write(m, case, iterations, block)
    for o in range(4):
        for b in range(3):
            order = case.order[o, b]
            state, w = memory.write(m.blank(), m.encode(case.x[b, order]), m.noise_var, iterations, block)
            torch.testing.assert_close((written.state.R[o, b], written.state.U[o, b]), tuple(state))
            torch.testing.assert_close(written.w[o, b, order], w)


def spreads(numbers: dict[str, Any]) -> list[float]:
    kinds = [numbers[kind] for kind in ("score", "readout", "memory")]
    return [kind["spread"]["mean"] for kind in kinds] + [kind["share"] for kind in kinds]


@pytest.mark.parametrize("iterations", [1, 3])
def test_one_block_has_no_order(iterations: int) -> None:
    m, case = model(), case_of()
    assert max(spreads(compare(m, case, write(m, case, iterations, 5), 0))) < 1e-9  # rounding
    assert min(spreads(compare(m, case, write(m, case, iterations, 1), 0))) > 1e-4


def test_spreads_by_hand() -> None:
    m, case = model(), case_of()
    written = write(m, case, 1, 1)
    numbers = compare(m, case, written, seed=3)
    z, R = m.encode(case.x), written.state.R
    w = memory.address(z, written.state, m.noise_var)
    scores, reads = nats(m, case.x, m.cue(case.x), written.state, 3).numpy(), (w @ R).numpy()
    R, R0 = R.numpy(), m.R0.numpy()

    def deviations(values: Any) -> Any:  # over orders, of one episode each
        return [((v - v.mean(0)) ** 2).sum() / 3 for v in values.swapaxes(0, 1)]

    def sizes(values: Any) -> Any:
        return [(v**2).sum() / 4 for v in values.swapaxes(0, 1)]

    assert numbers["nats"]["mean"] == pytest.approx(scores.mean())
    assert numbers["score"]["spread"]["mean"] == pytest.approx(scores.std(0, ddof=1).mean())
    between = scores.mean(0).std(ddof=1)
    assert numbers["score"]["share"] == pytest.approx(np.sqrt(np.mean(deviations(scores))) / between)
    relative = np.sqrt(np.divide(deviations(reads), sizes(reads)))
    assert numbers["readout"]["spread"]["mean"] == pytest.approx(relative.mean())
    means = reads.mean(0).reshape(15, 6)
    between = np.sqrt(((means - means.mean(0)) ** 2).sum() / 14)
    assert numbers["readout"]["share"] == pytest.approx(np.sqrt(np.mean(deviations(reads)) / 5) / between)
    relative = np.sqrt(np.divide(deviations(R), sizes(R - R0)))
    assert numbers["memory"]["spread"]["mean"] == pytest.approx(relative.mean())
    between = np.sqrt(((R.mean(0) - R.mean((0, 1))) ** 2).sum() / 2)
    assert numbers["memory"]["share"] == pytest.approx(np.sqrt(np.mean(deviations(R))) / between)
    codes = z.numpy().reshape(15, 6)
    spread_of_codes = ((codes - codes.mean(0)) ** 2).sum() / 14
    assert numbers["error"] == pytest.approx(np.sqrt(((z.numpy() - reads) ** 2).sum(-1).mean() / spread_of_codes))
    kl = memory.kl_memory(written.state, m.blank()).mean(0) / 5
    assert numbers["kl_memory"]["mean"] == pytest.approx(float(kl.mean()))
    assert numbers["each"]["kl_memory"] == pytest.approx(kl.tolist())


@pytest.mark.parametrize("read_noise", ["shared", "own", "image"])
@pytest.mark.parametrize("weights", ["isotropic", "full"])
def test_the_score_is_that_of_the_model(weights: str, read_noise: str) -> None:
    """Written in the order of the episode, with the noise that the model itself would draw."""
    m = model(dataclasses.replace(SMALL, weights=weights, read_noise=read_noise))  # type: ignore[arg-type]
    if read_noise != "shared":
        torch.nn.init.constant_(m.log_read_var, -1.1)
    if read_noise == "image":
        torch.nn.init.normal_(m.encoder.out.weight, generator=generator())
    x, order = case_of(orders=2)
    order = torch.arange(5).expand_as(order)
    written = write(m, Case(x, order), 1, 1)
    exact = m(x, generator(7)).nats()
    torch.testing.assert_close(nats(m, x, m.cue(x), written.state, 7), exact.expand(2, 3))
    found = compare(m, Case(x, order), written, 7)
    assert found["nats"]["mean"] == pytest.approx(float(exact.mean()))
    # weights of writing are held against the best of their own noise, whatever reads have
    best = memory.address(m.encode(x), written.state, m.noise_var)
    stale = staleness(written.w, best, written.state, m.noise_var)
    assert found["stale"]["mean"] == pytest.approx(float(stale.mean()))


def test_what_is_out_of_date_is_a_divergence() -> None:
    """KL of two Gaussians, with any covariance, above the KL of the one with the best mean [eq. dkl_w]."""
    state, w, z, noise_var = random_case(K=4, C=5, T=3)
    best = memory.address(z, state, noise_var)
    cov = torch.linalg.inv(state.R @ state.R.mT / noise_var + torch.eye(4, dtype=torch.float64))
    posterior, any_cov = MultivariateNormal(best, cov), 0.3 * torch.eye(4, dtype=torch.float64)
    least, found = (kl_divergence(MultivariateNormal(mean, any_cov), posterior) for mean in (best, w))
    one = [x[None, None] for x in (w, best)]
    exact = staleness(*one, type(state)(*(x[None, None] for x in state)), noise_var)  # type: ignore[call-arg]
    torch.testing.assert_close(exact[0, 0], found - least)


def test_the_figure_is_drawn_from_the_file() -> None:
    numbers = result()
    axes = drawn(order, a=numbers, b=numbers)[""].axes
    assert len(axes) == 4
    assert axes[0].patches[0].get_height() == pytest.approx(100 * numbers["untrained"]["write"]["score"]["share"])
