"""GPM: pseudo-inverses against torch's, what is written, its bound, and its score as released."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

import kanerva
from cases import normal
from kanerva import CodecConfig
from kanerva.cli import main
from kanerva.models.rivals.gpm import GPM, GPMConfig, exact, iterated, kl_point, written
from kanerva.training.config import with_model
from small import metrics, tiny

SMALL = GPMConfig(image=(1, 6, 7), code=5, rows=4, memory="exact", codec=CodecConfig((4, 6)))
COLOUR = dataclasses.replace(SMALL, image=(3, 6, 6), likelihood="gaussian", memory="mean", pseudo_inverse="exact")
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


def images(config: GPMConfig, *batch: int) -> Tensor:
    x = normal(*batch, *config.image)
    return (x > 0.5).double() if config.binary else x.clamp(-1, 1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filtered(A: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """The matrix whose singular values are a function of those of A, transposed."""
    U, s, V = torch.linalg.svd(A, full_matrices=False)
    return V.mT @ (of(s)[..., None] * U.mT)


# pseudo-inverses


@pytest.mark.parametrize(("batch", "N", "M"), SIZES)
def test_exact_is_the_pseudo_inverse(batch: tuple[int, ...], N: int, M: int) -> None:
    A = normal(*batch, N, M)
    torch.testing.assert_close(exact(A), torch.linalg.pinv(A), rtol=1e-5, atol=1e-5)
    a = 1e-10 * A.square().sum((-2, -1)) / min(N, M)  # and what the ridge leaves out, to the last digits
    torch.testing.assert_close(
        exact(A), filtered(A, lambda s: s / (s.square() + a[..., None])), rtol=1e-6, atol=1e-9
    )


def test_exact_leaves_out_what_is_not_there() -> None:
    """Rank 2 in a matrix of 5×7, a matrix of zeros, and no rows at all."""
    A = normal(5, 2) @ normal(2, 7, seed=1)
    torch.testing.assert_close(exact(A), torch.linalg.pinv(A, rtol=1e-8), rtol=1e-4, atol=1e-5)
    for inverse in (exact, iterated):
        assert torch.equal(inverse(torch.zeros(3, 4)), torch.zeros(4, 3))
        assert inverse(torch.zeros(0, 4)).shape == (4, 0)


@pytest.mark.parametrize(("batch", "N", "M"), SIZES)
def test_iterated_has_the_error_that_it_says(batch: tuple[int, ...], N: int, M: int) -> None:
    A = normal(*batch, N, M)
    norm = A.square().sum((-2, -1))[..., None]
    torch.testing.assert_close(iterated(A), filtered(A, lambda s: (1 - (1 - s.square() / norm) ** 128) / s))
    if A.numel():
        torch.testing.assert_close(iterated(A, 40), torch.linalg.pinv(A), rtol=1e-6, atol=1e-6)


def test_iterated_is_near_where_singular_values_are_alike() -> None:
    Q, _ = torch.linalg.qr(normal(32, 32))
    error = (iterated(3 * Q) - Q.mT / 3).norm() / (Q.mT / 3).norm()
    assert float(error) == pytest.approx((1 - 1 / 32) ** 128)
    assert float(error) < 0.018


@pytest.mark.parametrize("inverse", [exact, iterated])
@pytest.mark.parametrize(("N", "M"), [(3, 4), (4, 2), (1, 2)])
def test_pseudo_inverses_have_gradients(inverse: Callable[[Tensor], Tensor], N: int, M: int) -> None:
    assert torch.autograd.gradcheck(inverse, [normal(2, N, M).requires_grad_()])


# writing


@pytest.mark.parametrize(("T", "K", "C"), [(1, 4, 5), (3, 4, 5), (4, 4, 5), (9, 4, 5), (3, 7, 4), (2, 1, 3)])
def test_written_codes_are_read_back_best(T: int, K: int, C: int) -> None:
    """M minimises ‖Z − W M‖²; up to K codes that M0 can tell apart are read back to the last digit."""
    Z, M0 = normal(2, T, C), normal(K, C, seed=1)
    W = Z @ torch.linalg.pinv(M0)
    M = written(Z, M0, exact)
    torch.testing.assert_close(M, torch.linalg.pinv(W) @ Z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(W.mT @ (Z - W @ M), torch.zeros_like(M), rtol=0, atol=1e-5)
    if min(K, C) >= T:
        torch.testing.assert_close(Z @ exact(M) @ M, Z, rtol=1e-5, atol=1e-5)


def test_written_again_it_is_the_same() -> None:
    """Writing no new codes leaves a memory as it is, and writing on keeps what fits beside the new."""
    m, x = model(COLOUR), images(COLOUR, 2, 4)
    first = m.write(x[:, :2])
    torch.testing.assert_close(m.write(x[:, :0], first).M, first.M, rtol=1e-4, atol=1e-6)
    both = m.write(x[:, 2:], first).M
    z = m.encode(x)
    torch.testing.assert_close(z @ exact(both) @ both, z, rtol=1e-4, atol=1e-5)
    assert both[0].numel() == m.kept(4) == m.kept(400)


@pytest.mark.parametrize("inverse", [exact, iterated])
def test_written_has_gradients(inverse: Callable[[Tensor], Tensor]) -> None:
    leaves = [normal(2, 3, 4).requires_grad_(), normal(2, 4, seed=1).requires_grad_()]
    assert torch.autograd.gradcheck(lambda z, M0: written(z, M0, inverse), leaves)


# the bound


@torch.no_grad()
@pytest.mark.parametrize("config", [SMALL, COLOUR], ids=["binary", "colour"])
def test_the_bound_charges_what_is_drawn(config: GPMConfig) -> None:
    """Each term from torch.distributions, with the same random numbers: first those of M, then those of w."""
    m, x, draws = model(config), images(config, 2, 3), generator(3)
    inverse: Callable[[Tensor], Tensor] = exact if config.pseudo_inverse == "exact" else iterated
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
    mean = z @ iterated(M)
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
        GPMConfig(memory="exact", noise="released")


def test_divergence_of_the_memory_has_a_gradient() -> None:
    leaves = [normal(2, 3, 4), normal(3, 4, seed=1), torch.tensor(0.2, dtype=torch.float64)]
    assert torch.autograd.gradcheck(kl_point, [x.requires_grad_() for x in leaves])


# recall


def test_recall_reads_with_the_pseudo_inverse() -> None:
    m, x = model(), images(SMALL, 2, 4)
    state = m.write(x)
    found = m.recall(state, x, 2)
    w = m.encode(x) @ iterated(state.M)
    assert found.w is not None
    torch.testing.assert_close(found.w[0], w)
    assert torch.equal(found.x[0], m.decode(w @ state.M).mode())
    assert torch.equal(found.x[1], m.recall(state, found.x[0], 1).last)


def test_samples_are_read_with_weights_from_the_prior() -> None:
    m = model()
    state = m.write(images(SMALL, 4))
    drawn = m.sample(state, 6, 3, generator(2))
    w = torch.randn(6, 4, generator=generator(2), dtype=torch.float64)
    assert torch.equal(drawn.x[0], m.decode(w @ state.M).mode())
    assert torch.equal(drawn.x[1:], m.recall(state, drawn.x[0], 2).x)
    assert torch.equal(m.sample(state, 6, 1, generator(2)).x, drawn.x[:1])


def test_a_memory_of_another_size_is_refused() -> None:
    m, x = model(), images(SMALL, 2, 5)
    other = model(dataclasses.replace(SMALL, rows=3)).write(x)
    for call in (lambda: m.write(x, other), lambda: m.recall(other, x), lambda: m.sample(other, 2)):
        with pytest.raises(
            ValueError, match=r"state\.M: expected shape \(\*b, 4, 5\) with K = 4 as in the GPM, got \(2, 3, 5\)"
        ):
            call()
    with pytest.raises(ValueError, match="batch axes: expected shapes that broadcast"):
        m.write(images(SMALL, 3, 5), m.write(x))


# in use


@pytest.mark.parametrize("pseudo_inverse", ["iterated", "exact"])
@pytest.mark.parametrize("alike", [False, True])
def test_long_episodes_stay_finite_in_float32(pseudo_inverse: Any, alike: bool) -> None:
    """Also where all images are the same, so that W has rank one."""
    torch.manual_seed(0)
    m = GPM(dataclasses.replace(SMALL, rows=32, code=40, pseudo_inverse=pseudo_inverse))
    x = images(SMALL, 2, 200).float()
    x = x[:, :1].expand_as(x) if alike else x
    m(x, generator()).loss().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in m.parameters())
    state = m.write(x, m.write(x))
    assert bool(m.recall(state, x[:, :3], 2).x.isfinite().all())


def test_it_is_trained_and_its_scores_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = with_model(tiny(tmp_path, steps=60, lr=1e-2, evaluate_every=60), "gpm")
    score = kanerva.train(config, tmp_path / "run")
    assert score is not None
    rows: list[dict[str, Any]] = metrics(tmp_path / "run")
    assert score.nats < 0.85 * rows[0]["nats"]
    main(["evaluate", str(tmp_path / "run"), "--images", "256", "--length", "4", "--device", "cpu", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["extra"]) == {"as released"}
    # nothing has been learned yet that noise could spoil
    assert found["extra"]["as released"]["mean"] == pytest.approx(found["nats"], abs=3)
