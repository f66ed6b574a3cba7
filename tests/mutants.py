"""Break the memory on purpose, one line at a time, and see which tests notice: `make mutants` (about ten minutes).

Each mutant is one edit of src/kanerva/memory.py or linalg.py, made in a copy of the project. All tests run on each. It
fails if a mutant survives every test, or if a test of the memory notices no mutant at all: such a test could not fail.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = ["src/kanerva/memory.py", "src/kanerva/linalg.py"]
SUITES = [f"tests/test_{name}.py" for name in ("memory", "frame", "linalg", "gradients", "properties")]

MUTANTS = {
    "prior: standard deviation for variance": (
        "U0 = prior_var * torch.eye",
        "U0 = prior_var**2 * torch.eye",
    ),
    "prior: views instead of copies": ("MemoryState(R.contiguous(), U0.expand", "MemoryState(R, U0.expand"),
    "prior: cut off the graph": ("R = R0.expand", "R = R0.detach().expand"),
    "address: no ridge": ('L = cholesky(ridge(R @ R.mT, noise_var), "R', 'L = cholesky(ridge(R @ R.mT, 1e-6), "R'),
    "address: no ridge, K > C": ("ridge(R.mT @ R, noise_var)", "ridge(R.mT @ R, 1e-6)"),
    "address: ridge is a standard deviation": (
        "ridge(R @ R.mT, noise_var)",
        "ridge(R @ R.mT, noise_var**0.5)",
    ),
    "address: noise cut off the graph": (
        "ridge(R @ R.mT, noise_var)",
        "ridge(R @ R.mT, float(noise_var))",
    ),
    "address: authors' normal equations": (
        "return solve(L, R @ z.mT).mT",
        'G = R @ R.mT\n        return solve(cholesky(ridge(G @ G, noise_var), "G"), G @ R @ z.mT).mT',
    ),
    "update: no noise in s": ("return delta, c, (w * c).sum(-1) + noise_var", "return delta, c, (w * c).sum(-1)"),
    "update: surprise turned over": ("delta = z - (w", "delta = (w"),
    "update: U grows": ("state.U - u[..., :, None]", "state.U + u[..., :, None]"),
    "update: half a gain": ("(c / s[..., None])[..., :, None]", "(0.5 * c / s[..., None])[..., :, None]"),
    "update: U not symmetric": (
        "return MemoryState(R, state.U - u[..., :, None] * u[..., None, :])",
        "return MemoryState(R, state.U - c[..., :, None] * (c / s[..., None])[..., None, :])",
    ),
    "update: gradient of U lost": ("c = (state.U @ w[..., None])", "c = (state.U.detach() @ w[..., None])"),
    "condition: last chunk only": ("state = _condition_block(state", "state = _condition_block(_first"),
    "condition: chunk of one lost": ("size = max(state.R.shape[-2], 64)", "w, z = w[..., :64, :], z[..., :64, :]\n    size = 64"),
    "condition: no noise": ("ridge(c @ w.mT, noise_var)", "ridge(c @ w.mT, 1e-9)"),
    "condition: U half updated": ("symmetric(state.U - V.mT @ V)", "symmetric(state.U - 0.5 * V.mT @ V)"),
    "condition: U not symmetric": ("symmetric(state.U - V.mT @ V)", "state.U - (V.mT * (1 + 1e-14)) @ V + 1e-15 * V.mT @ V.roll(1, -1)"),
    "condition: R from Z alone": ("solve_lower(L, z - w @ state.R)", "solve_lower(L, z)"),
    "condition: in place": ("    c = w @ state.U\n", "    c = w @ state.U\n    with torch.no_grad():\n        w.mul_(1 + 1e-13)\n"),
    "span: with the prior": ("(whole - R0.double() / prior_var)", "whole"),
    "span: the prior's deviation": ("(whole - R0.double() / prior_var)", "(whole - R0.double() / prior_var**0.5)"),
    "span: of what is read": ("whole = inverse @ R\n", "whole = R\n"),
    "span: rounding counts": ("rounding = (ROUNDING * eps", "rounding = 0 * (ROUNDING * eps"),
    "span: lost memories are blank": ("[..., None]).masked_fill(past.lost, torch.nan)", "[..., None]).masked_fill(past.lost, 0)"),
    "span: in single precision": ("R, U = (part.double() for part in broadcast(state, R0))", "R, U = (part.float() for part in broadcast(state, R0))"),
    "frame: with the prior's covariance": ("symmetric(ridge(inverse, -1 / prior_var))", "symmetric(ridge(inverse, 0.0))"),
    "frame: the prior rounded otherwise than the state": ("torch.as_tensor(prior_var, dtype=state.R.dtype).double()", "torch.as_tensor(prior_var, dtype=torch.bfloat16).double()"),
    "frame: no noise in A": ("A, B = symmetric(noise_var * past.ww), noise_var * past.wz", "A, B = symmetric(past.ww), noise_var * past.wz"),
    "frame: no noise in B": ("A, B = symmetric(noise_var * past.ww), noise_var * past.wz", "A, B = symmetric(noise_var * past.ww), past.wz"),
    "frame: all of B counts": ("P = P * (size > noise_var * past.rounding)", "P = P * (size > -1)"),
    "frame: repeats do not count": ("N = N * (values > noise_var * past.rounding_ww)", "N = 0 * N * (values > 0)"),
    "frame: rounding of repeats counts": ("rounding_ww = ROUNDING * eps", "rounding_ww = 0 * eps"),
    "frame: repeats mix with codes": (" - low * (P @ P.mT)))", "))"),
    "frame: small is left out": ("inside @ A @ inside - low * ridge(-inside, 1.0)", "inside @ A @ inside"),
    "frame: weights by the eigenvalue": ("weights = V.mT * torch.where(kept, root, 0)", "weights = V.mT * torch.where(kept, root**2, 0)"),
    "frame: codes by the eigenvalue": ("torch.where(kept, 1 / root, 0)", "torch.where(kept, 1 / root**2, 0)"),
    "frame: rank of the codes alone": ("for x in (P, torch.cat([P, N], -1)))", "for x in (P, P))"),
    "frame: lost memories are blank": ("Frame(codes.masked_fill(past.lost, torch.nan), weights.masked_fill(past.lost, torch.nan)", "Frame(codes, weights"),
    "frame: carries gradients": ("@torch.no_grad()\ndef frame", "def frame"),
    "forget: writes": ("ridge(-c @ w.mT, s2)", "ridge(c @ w.mT, s2)"),
    "forget: U half restored": ("U = symmetric(U + V.mT @ V)", "U = symmetric(U + 0.5 * V.mT @ V)"),
    "forget: old covariance": ("MemoryState(R - U @ (w.mT @ (z - w @ R)) / s2, U)", "MemoryState(R - (U - V.mT @ V) @ (w.mT @ (z - w @ R)) / s2, U)"),
    "forget: codes alone": ("(w.mT @ (z - w @ R)) / s2", "(w.mT @ z) / s2"),
    "forget: a standard deviation": ("(w.mT @ (z - w @ R)) / s2", "(w.mT @ (z - w @ R)) / s2**0.5"),
    "forget: cut off the graph": ("else noise_var.double()", "else noise_var.double().detach()"),
    "forget: precision lost": ("/ s2, U).to(dtype)", "/ s2, U)"),
    "write: refinement counts a code twice": (
        "state = _condition(old, w_t",
        "state = _condition(state, w_t",
    ),
    "write: refinement ignored": ("for _ in range(iterations):", "for _ in range(1):"),
    "write: refinement forgets": ("keys], state.R[..., :keys]", "keys], old.R[..., :keys]"),
    "write: block ignored": ("z.split(block, dim=-2)", "z.split(1, dim=-2)"),
    "write: addresses the first memory": (
        "        old = state\n        for",
        "        old = state\n        first = first if len(w) > 1 else old\n        for",
    ),
    "write: drops the last code": ("z.split(block, dim=-2) if", "z[..., :-1, :].split(block, dim=-2) if"),
    "write: empty episode makes a step": ("if z.shape[-2] else ()", "if z.shape[-2] else (z.new_zeros(*z.shape[:-2], 1, z.shape[-1]),)"),
    "write: weights cut off the graph": ("w.append(w_t)", "w.append(w_t.detach())"),
    "write: state not broadcast": ("    state = MemoryState(*broadcast(state, z))\n    w = [", "    w = ["),
    "absorb: old covariance": ("    return MemoryState(state.R + U @ H, U)", "    return MemoryState(state.R + state.U @ H, U)"),
    "absorb: no prior": ("symmetric(ridge(L.mT @ G @ L, 1.0))", "symmetric(ridge(L.mT @ G @ L, 1e-3))"),
    "draw_weights_full: no scale": ("w + (scale * noise_var) ** 0.5 * a", "w + noise_var**0.5 * a"),
    "draw_weights_full: only in the span of R": ("noise_var**0.5 * noise[..., :K] + ", "0 * noise[..., :K] + "),
    "kl_weights_full: no half": ("0.5 * (shape[..., None]", "1.0 * (shape[..., None]"),
    "kl_weights_full: sign of the determinant": ("- inverse.log_det\n", "+ inverse.log_det\n"),
    "kl_weights_full: cut off the graph": ("torch.as_tensor(scale * noise_var, dtype=w.dtype)", "torch.as_tensor(float(scale * noise_var), dtype=w.dtype)"),
    "address: inverse not refined": ("return w + (b - w @ ridge(", "return w + 0 * (b - w @ ridge("),
    "address: K×K for K > C": ("if inverse is None or state.R.shape[-2] > state.R.shape[-1]:", "if inverse is None:"),
    "inverse: of R Rᵀ alone": ("ridge_inverse(state.R @ state.R.mT, noise_var)", "ridge_inverse(state.R @ state.R.mT, 1e-3 * noise_var)"),
    "inverse: sign of the determinant": ("return root.mT @ root, -log_det(L)", "return root.mT @ root, log_det(L)"),
    "kl_prior: no half": ("return 0.5 * (C * (trace - K - log_det)", "return 1.0 * (C * (trace - K - log_det)"),
    "kl_prior: one column": ("return 0.5 * (C * (trace - K - log_det)", "return 0.5 * (1 * (trace - K - log_det)"),
    "kl_prior: mean forgotten": ("(q.R - R0).square().sum((-2, -1)) / prior_var", "q.R.square().sum((-2, -1)) / prior_var"),
    "states forget their kind": ("torch.serialization.add_safe_globals([MemoryState])", ""),
    "read: weights halved": ("    return w @ state.R\n", "    return 0.5 * w @ state.R\n"),
    "predict: no noise": ("(w @ state.U * w).sum(-1) + noise_var", "(w @ state.U * w).sum(-1)"),
    "predict: diagonal of U": (
        "(w @ state.U * w).sum(-1)",
        "(w * w * state.U.diagonal(dim1=-2, dim2=-1)[..., None, :]).sum(-1)",
    ),
    "sample: covariance for its root": (
        'cholesky(symmetric(state.U), "state.U") @ noise',
        "state.U @ noise",
    ),
    "sample: generator ignored": ("torch.randn(shape, generator=generator", "torch.randn(shape"),
    "kl_memory: no half": ("return 0.5 * (C * (trace", "return (C * (trace"),
    "kl_memory: diagonal determinant": ("- log_det(L)) + distance", "- q.U.diagonal(dim1=-2, dim2=-1).log().sum(-1)) + distance"),
    "kl_memory: C forgotten": ("0.5 * (C * (trace - K", "0.5 * ((trace - K"),
    "kl_memory: K forgotten": ("(trace - K + log_det", "(trace + log_det"),
    "kl_memory: p's determinant forgotten": ("- K + log_det(L0) -", "- K -"),
    "kl_memory: distance in the wrong metric": ("solve_lower(L0, q.R - p.R)", "(q.R - p.R)"),
    "kl_weights: no half": ("return 0.5 * (w.shape[-1]", "return 1.0 * (w.shape[-1]"),
    "kl_weights: standard deviation": ("(v - 1 - v.log())", "(v**2 - 1 - 2 * v.log())"),
    "kl_update: no half": ("return 0.5 * (C * (torch.log1p", "return 1.0 * (C * (torch.log1p"),
    "kl_update: b outside the log": ("- b) + b * delta", "+ b) + b * delta"),
    "kl_update: surprise forgotten": (" + b * delta.square().sum(-1) / s)", ")"),
    "dtype lost": ("v = torch.as_tensor(weight_var, dtype=w.dtype)", "v = torch.as_tensor(weight_var, dtype=torch.float64)[None]"),
    "float32 by half precision": ("    checks.inputs(state, z=z, noise_var=noise_var)\n    checks.count", "    z = z.bfloat16().to(z.dtype) if z.dtype == torch.float32 else z\n    checks.inputs(state, z=z, noise_var=noise_var)\n    checks.count"),
    "autocast let in": ("@full_precision\ndef write", "def write"),
    "to forgets U": ("self.R.to(*args, **kwargs), self.U.to(*args, **kwargs)", "self.R.to(*args, **kwargs), self.U"),
    "ridge: on every entry": ("a * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)", "a * torch.ones_like(A)"),
    "symmetric: as it came": ("return 0.5 * (A + A.mT)", "return A"),
    "cholesky: failures pass": ("checks.factored(name, A, info)", "pass"),
    "cholesky: failures are not NaN": ("return L.masked_fill(info[..., None, None] > 0, torch.nan)", "return L"),
    "solve: by the factor alone": ("torch.linalg.solve_triangular(L.mT, solve_lower(L, B), upper=True)", "solve_lower(L, B)"),
    "log_det: of the factor": ("return 2 * L.diagonal", "return L.diagonal"),
    "batch summed over": ("(w * c).sum(-1) + noise_var", "(w * c).sum(-1).mean() + noise_var + 0 * c.sum(-1)"),
}  # fmt: skip

# A few edits need a line more to be a program at all.
PROLOGUE = {
    "condition: last chunk only": ("    size = max(", "    _first = state\n    size = max("),
    "write: addresses the first memory": ("keys], state.R[..., :keys]", "keys], first.R[..., :keys]"),
}


def mutate(project: Path, name: str) -> None:
    """Make the edits of a mutant in a project, each in the first target that has the text."""
    for old, new in filter(None, (MUTANTS[name], PROLOGUE.get(name))):
        target = next((project / path for path in TARGETS if old in (project / path).read_text()), None)
        if target is None:
            raise SystemExit(f"mutant {name!r}: no such text in {' or '.join(TARGETS)}: {old!r}")
        target.write_text(target.read_text().replace(old, new, 1))


def snapshot(folder: Path) -> Path:
    """A copy of the project as it is now, so that work on it can go on."""
    for part in ("src", "tests", "benchmarks"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def failures(project: Path, name: str | None) -> set[str]:
    """The tests that fail on a mutant of a project (None: on it as it is)."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(project, copy)
        if name is not None:
            mutate(copy, name)
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", *SUITES]
        output = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True).stdout
    if " passed" not in output and "FAILED" not in output and "[100%]" not in output:
        raise SystemExit(f"mutant {name!r} does not run:\n{output[-2000:]}")
    return {line.split()[1] for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))}


def every_test() -> set[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *SUITES]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    return {plain(line) for line in output.splitlines() if "::" in line}


def plain(test: str) -> str:
    """A test's name without its parameters."""
    return test.split("[")[0]


def main() -> None:
    noticed: set[str] = set()
    survivors = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        project = snapshot(Path(folder))
        if failures(project, None):
            raise SystemExit("the tests fail on the memory as it is")
        for name, failed in zip(MUTANTS, pool.map(functools.partial(failures, project), MUTANTS), strict=True):
            tests = {plain(test) for test in failed}
            noticed |= tests
            print(f"{len(tests):3} tests notice  {name}", flush=True)
            if not tests:
                survivors.append(name)
    blind = sorted(every_test() - noticed)
    print(f"\n{len(MUTANTS)} mutants, {len(survivors)} survive: {survivors}")
    print(f"tests that noticed none: {blind}")
    sys.exit(bool(survivors or blind))


if __name__ == "__main__":
    main()
