"""The small dense algebra against torch.linalg."""

import pytest
import torch

import kanerva
from cases import covariance, normal
from kanerva.support import linalg

SIZES = pytest.mark.parametrize(("batch", "N"), [((), 1), ((), 7), ((2, 3), 5), ((0,), 3)])


@SIZES
def test_a_factor_solves_and_has_the_determinant(batch: tuple[int, ...], N: int) -> None:
    A, B = covariance(*batch, K=N), normal(*batch, N, 4, seed=3)
    L = linalg.cholesky(A, "A")
    torch.testing.assert_close(L, torch.linalg.cholesky(A))
    torch.testing.assert_close(linalg.solve(L, B), torch.linalg.solve(A, B))
    torch.testing.assert_close(linalg.solve_lower(L, B), torch.linalg.solve(L, B))
    torch.testing.assert_close(linalg.log_det(L), torch.logdet(A))


@SIZES
def test_a_ridge_is_inverted(batch: tuple[int, ...], N: int) -> None:
    G = linalg.symmetric(covariance(*batch, K=N))
    assert torch.equal(G, G.mT)
    A = G + torch.diag(torch.full((N,), 0.3, dtype=G.dtype))
    torch.testing.assert_close(linalg.ridge(G, 0.3), A)
    P, log_det = linalg.ridge_inverse(G, 0.3)
    torch.testing.assert_close(P, torch.linalg.inv(A))
    torch.testing.assert_close(log_det, -torch.logdet(A))


def test_matrices_get_the_batch_axes_of_all() -> None:
    A, B, z = normal(3, 1, 2, 2), normal(2, 4), normal(5, 7, 2)
    a, b = linalg.broadcast((A, B), z)
    assert torch.equal(a, A.expand(3, 5, 2, 2))
    assert torch.equal(b, B.expand(3, 5, 2, 4))
    assert a.is_contiguous()


def test_what_has_no_factor_is_an_error_or_not_a_number() -> None:
    A = torch.stack([torch.eye(3), -torch.eye(3)]).double()
    with pytest.raises(ValueError, match=r"A: expected a positive definite matrix, got 1 of 2"):
        linalg.cholesky(A, "A")
    with kanerva.deep_checks(False):
        L = linalg.cholesky(A, "A")
    assert torch.equal(L[0], A[0])
    assert bool(L[1].isnan().all())
