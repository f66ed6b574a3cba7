"""GPM: pseudo-inverses against torch's, what is written, its bound, and its score as released."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from cases import generator, images, normal
from kanerva import CodecConfig
from kanerva.models.rivals.gpm import GPM, GPMConfig, inverse, kl_point, written

SMALL = GPMConfig(image=(1, 6, 7), code=5, rows=4, codec=CodecConfig((4, 6)), memory="exact")
COLOUR = dataclasses.replace(SMALL, image=(3, 6, 6), likelihood="gaussian", memory="mean")
RELEASED = dataclasses.replace(SMALL, memory="mean", noise="released")
# (batch, rows, columns)
SIZES = [
    ((), 1, 1),
    ((), 1, 7),
    ((3,), 31, 7),
    ((2, 3), 5, 7),
    ((), 32, 32),
    ((), 33, 100),
    ((), 200, 33),
    ((0,), 3, 2),
]


def model(config: GPMConfig = SMALL) -> GPM:
    torch.manual_seed(0)
    return GPM(config).double()


def filtered(A: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """The matrix whose singular values are a function of those of A, transposed."""
    U, s, V = torch.linalg.svd(A, full_matrices=False)
    return V.mT @ (of(s)[..., None] * U.mT)


# pseudo-inverses


def test_what_is_blank_has_a_blank_inverse() -> None:
    assert torch.equal(inverse(torch.zeros(3, 4)), torch.zeros(4, 3))
    assert inverse(torch.zeros(0, 4)).shape == (4, 0)


@pytest.mark.parametrize(("batch", "N", "M"), SIZES)
def test_inverse_has_the_error_that_it_says(batch: tuple[int, ...], N: int, M: int) -> None:
    A = normal(*batch, N, M)
    norm = A.square().sum((-2, -1))[..., None]
    torch.testing.assert_close(inverse(A), filtered(A, lambda s: (1 - (1 - s.square() / norm) ** 128) / s))
    if A.numel():
        torch.testing.assert_close(inverse(A, 40), torch.linalg.pinv(A), rtol=1e-6, atol=1e-6)


def test_inverse_is_near_where_singular_values_are_alike() -> None:
    Q, _ = torch.linalg.qr(normal(32, 32))
    error = (inverse(3 * Q) - Q.mT / 3).norm() / (Q.mT / 3).norm()
    assert float(error) == pytest.approx((1 - 1 / 32) ** 128)
    assert float(error) < 0.018


# writing


@pytest.mark.parametrize(("T", "K", "C"), [(1, 4, 5), (3, 4, 5), (9, 4, 5), (3, 7, 4), (2, 1, 3)])
def test_written_is_its_formula(T: int, K: int, C: int) -> None:
    Z, M0 = normal(2, T, C), normal(K, C, seed=1)
    torch.testing.assert_close(written(Z, M0), inverse(Z @ inverse(M0)) @ Z)


def test_writing_on_writes_the_rows_again_beside_the_new_codes() -> None:
    m, x = model(COLOUR), images(COLOUR, 2, 4)
    first, z = m.write(x[:, :2]), m.encode(x)
    both = written(torch.cat([first.M, z[:, 2:]], 1), m.M0)
    torch.testing.assert_close(m.write(x[:, 2:], first).M, both)
    assert both[0].numel() == m.kept(4) == m.kept(400)


def test_writing_has_gradients() -> None:
    leaves = [normal(2, 3, 4).requires_grad_(), normal(2, 4, seed=1).requires_grad_()]
    assert torch.autograd.gradcheck(written, leaves)
    variance = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    leaves = [normal(2, 3, 4).requires_grad_(), normal(3, 4, seed=1).requires_grad_(), variance]
    assert torch.autograd.gradcheck(kl_point, leaves)


# the bound


@torch.no_grad()
@pytest.mark.parametrize("config", [SMALL, COLOUR], ids=["binary", "colour"])
def test_the_bound_charges_what_is_drawn(config: GPMConfig) -> None:
    """Each term from torch.distributions, with the same random numbers: first those of M, then those of w."""
    m, x, draws = model(config), images(config, 2, 3), generator(3)
    z = m.encode(x)
    M, kl_memory = m.write(x).M, None
    if config.memory == "exact":
        q = Normal(M, (0.5 * m.log_memory_var).exp())
        kl_memory = kl_divergence(q, Normal(m.M0, 1.0)).sum((-2, -1))
        M = M + q.stddev * torch.randn(2, 4, 5, generator=draws, dtype=x.dtype)
    q_w = Normal(z @ inverse(M), (0.5 * m.log_weight_var).exp())
    w = q_w.mean + q_w.stddev * torch.randn(2, 3, 4, generator=draws, dtype=x.dtype)
    terms = m(x, generator(3))
    torch.testing.assert_close(terms.log_lik, m.decode(w @ M).log_prob(x))
    torch.testing.assert_close(terms.log_lik_auto, m.decode(z).log_prob(x))
    torch.testing.assert_close(terms.kl_weights, kl_divergence(q_w, Normal(0.0, 1.0)).sum(-1))
    assert (terms.kl_memory is None) == (kl_memory is None)
    if kl_memory is not None:
        torch.testing.assert_close(terms.kl_memory, kl_memory)


@torch.no_grad()
def test_the_bound_is_below_the_likelihood() -> None:
    """One image, K = 1 and C = 1: ln p(x) is an integral over w and M."""
    m = model(dataclasses.replace(SMALL, rows=1, code=1))
    m.log_memory_var.fill_(-4.0)  # or M could be near zero, where w = z/M is anywhere
    x = images(SMALL, 3, 1)
    line = torch.linspace(-6, 6, 101, dtype=torch.float64)
    # z = w M with w ~ N(0, 1) and M ~ N(M0, 1)
    read = line[:, None] * (m.M0[0, 0] + line)
    joint = Normal(0.0, 1.0).log_prob(line)[:, None] + Normal(0.0, 1.0).log_prob(line)
    given = torch.stack(
        [m.decode(read.reshape(-1, 1)).log_prob(one.expand(101**2, *SMALL.image)) for one in x[:, 0]]
    )
    likelihood = (given + joint.flatten()).logsumexp(-1) + 2 * torch.tensor(12 / 100).log()
    bound = m(x.expand(1000, *x.shape), generator()).bound()
    error = 4 * bound.std(0) / 1000**0.5
    assert bool((bound.mean(0) < likelihood + error).all())
    # not by much: a lost half would show
    assert bool((bound.mean(0) > likelihood - 3).all())


@torch.no_grad()
def test_as_released_one_number_shifts_all_weights() -> None:
    m, x = model(RELEASED), images(RELEASED, 2, 3)
    M, z = m.write(x).M, m.encode(x)
    mean = z @ inverse(M)
    shift = (0.5 * m.log_weight_var).exp() * torch.randn(2, 1, 1, generator=generator(3), dtype=x.dtype)
    terms = m(x, generator(3))
    torch.testing.assert_close(terms.log_lik, m.decode((mean + shift) @ M).log_prob(x))
    # charged for K numbers all the same
    each = kl_divergence(Normal(mean, (0.5 * m.log_weight_var).exp()), Normal(0.0, 1.0)).sum(-1)
    torch.testing.assert_close(terms.kl_weights, each)
    assert terms.kl_memory is None
    (other,) = m.extra_scores(x, generator(3)).values()
    fair = m.given(m.write(x), x, generator(3))
    assert fair.kl_weights is not None
    torch.testing.assert_close(other, (fair.kl_weights - fair.log_lik).mean(-1))


def test_each_way_of_training_reports_the_others() -> None:
    charged, released = "memory at its mean, noise as charged", "as released"
    fair = dataclasses.replace(SMALL, memory="mean")
    for config, names in ((SMALL, [charged, released]), (fair, [released]), (RELEASED, [charged])):
        assert list(model(config).extra_scores(images(config, 2, 3), generator())) == names
    with pytest.raises(
        ValueError, match="noise: expected charged with memory exact, which is a bound, got released"
    ):
        GPMConfig(noise="released", memory="exact")


# recall


def test_recall_reads_with_the_pseudo_inverse() -> None:
    m, x = model(), images(SMALL, 2, 4)
    state = m.write(x)
    found = m.recall(state, x, 2)
    w = m.encode(x) @ inverse(state.M)
    assert found.w is not None
    torch.testing.assert_close(found.w[0], w)
    assert torch.equal(found.x[0], m.decode(w @ state.M).mode())
    assert torch.equal(found.x[1], m.recall(state, found.x[0], 1).last)


@pytest.mark.parametrize("alike", [False, True])
def test_long_episodes_stay_finite_in_float32(alike: bool) -> None:
    """Also where all images are the same, so that W has rank one."""
    torch.manual_seed(0)
    m = GPM(dataclasses.replace(SMALL, rows=32, code=40))
    x = images(SMALL, 2, 200).float()
    x = x[:, :1].expand_as(x) if alike else x
    m(x, generator()).loss().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in m.parameters())
