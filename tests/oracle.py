"""The memory as one plain multivariate Gaussian, in NumPy: nothing here knows of rows, columns or updates.

M is flattened row by row; its covariance is kron(U, I_C); codes Z given weights W are kron(W, I_C) vec(M) + noise.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


def array(x: Tensor) -> Array:
    return np.asarray(x.detach().cpu().double().numpy())


def joint(R: Array, U: Array) -> tuple[Array, Array]:
    """Mean and covariance of vec(M)."""
    return R.reshape(-1), np.kron(U, np.eye(R.shape[1]))


def observe(R: Array, U: Array, W: Array, noise_var: float) -> tuple[Array, Array, Array]:
    """Mean and covariance of vec(Z), and its covariance with vec(M)."""
    m, S = joint(R, U)
    H = np.kron(W, np.eye(R.shape[1]))
    return H @ m, H @ S @ H.T + noise_var * np.eye(len(H)), H @ S


def posterior(R: Array, U: Array, W: Array, Z: Array, noise_var: float) -> tuple[Array, Array]:
    """Mean (K×C) and full covariance (KC×KC) of M after Z is seen through W."""
    m, S = joint(R, U)
    mean, cov, cross = observe(R, U, W, noise_var)
    gain = np.linalg.solve(cov, cross).T
    return (m + gain @ (Z.reshape(-1) - mean)).reshape(R.shape), S - gain @ cross


def log_density(x: Array, mean: Array, cov: Array) -> float:
    _, log_det = np.linalg.slogdet(2 * np.pi * cov)
    d = (x - mean).reshape(-1)
    return float(-0.5 * (log_det + d @ np.linalg.solve(cov, d)))


def log_evidence(R: Array, U: Array, W: Array, Z: Array, noise_var: float) -> float:
    """ln p(Z | W), with M integrated out."""
    mean, cov, _ = observe(R, U, W, noise_var)
    return log_density(Z.reshape(-1), mean, cov)


def kl(m1: Array, S1: Array, m0: Array, S0: Array) -> float:
    """KL(N(m1, S1) ‖ N(m0, S0))."""
    d = m0 - m1
    _, log_det1 = np.linalg.slogdet(S1)
    _, log_det0 = np.linalg.slogdet(S0)
    trace = np.trace(np.linalg.solve(S0, S1))
    return float(0.5 * (trace + d @ np.linalg.solve(S0, d) - len(d) + log_det0 - log_det1))
