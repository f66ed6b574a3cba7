"""Break the memory on purpose, one line at a time, and see which tests notice: `make mutants` (about twenty minutes).

Each mutant is one edit of a file of TARGETS, made in a copy of the project,
on which the tests of the memory run, or those of the layer (`python tests/mutants.py layer`: these mutants alone). It
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
TARGETS = [f"src/kanerva/{name}.py" for name in ("memory", "linalg", "nn", "recall/vectors", "recall/counts")]
SUITES = [f"tests/test_{name}.py" for name in ("memory", "frame", "linalg", "gradients", "properties")]
# for LAYER: the first test that notices is enough, and those that try other people's tools are slow and see little
LAYER_SUITES = [
    "tests/test_layer_oracle.py",
    "tests/test_nn.py",
    "tests/test_counts.py",
    "-x",
    "-k",
    "not itself and not distributed and not graph and not test_gradients",
]

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
    "forget: a faded memory is as good as new": ("return _like(state, MemoryState(R - U", "return (MemoryState(R - U"),
    "forget: rounding unnoticed": ("checks.deep(off) and bool((off > FORGOTTEN).any())", "checks.deep(off) and bool((off > 1e9).any())"),
    "forget: rounding forgotten by conversion": ("dtype, eps = state.R.dtype, resolution(state.U)", "dtype, eps = state.R.dtype, torch.finfo(state.R.dtype).eps"),
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
    "absorb: old covariance": ("MemoryState(state.R + U @ H, U)", "MemoryState(state.R + state.U @ H, U)"),
    "absorb: a faded memory is as good as new": ("_like(state, MemoryState(state.R + U @ H, U))", "MemoryState(state.R + U @ H, U)"),
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
    "states forget their kind": ("add_safe_globals([MemoryState, Faded])", "add_safe_globals([])"),
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

# The same for the layer, and for what it has brought to the memory.
LAYER = {
    "masked: the other way round": ("torch.where(mask[..., None], z, 0)", "torch.where(mask[..., None], 0, z)"),
    "masked: zeros by a product": ("return torch.where(mask[..., None], z, 0)", "return z * mask[..., None]"),
    "known: all entries": ("(R[..., None, :, :] * known[..., None, :]) @", "R[..., None, :, :] @"),
    "known: by what z has": ("        z = torch.where(known, z, 0)\n        checks", "        checks"),
    "known: half of D, K > C": ("(R.mT @ R)[..., None, :, :] * D[..., None, :]", "(R.mT @ R)[..., None, :, :]"),
    "known: no ridge, K > C": ("D[..., None, :], noise_var)", "D[..., None, :], 1e-6)"),
    "infer: no noise": ("Weights(mean, noise_var * ridge_inverse(R @ R.mT", "Weights(mean, ridge_inverse(R @ R.mT"),
    "infer: no noise, known": ("noise_var * ridge_inverse(_known_gram(R, known), noise_var)[0])", "ridge_inverse(_known_gram(R, known), noise_var)[0])"),
    "infer: covariance of all entries": ("noise_var * ridge_inverse(_known_gram(R, known), noise_var)[0])", "noise_var * ridge_inverse(R @ R.mT, noise_var)[0][..., None, :, :])"),
    "complete: no noise": ("return m @ R, noise_var + memory[..., None]", "return m @ R, memory[..., None]"),
    "complete: a certain memory": ("memory = (m @ U * m).sum(-1) + (U", "memory = 0 * (m @ U * m).sum(-1) + (U"),
    "complete: no trace": ("(U[..., None, :, :] * S).sum((-2, -1))", "0 * (U[..., None, :, :] * S).sum((-2, -1))"),
    "complete: a certain address": ("address = (S @", "address = 0 * (S @"),
    "energy: no half": ("return 0.5 * (delta.square().sum(-1) / v", "return 1.0 * (delta.square().sum(-1) / v"),
    "energy: no address": ("+ w.square().sum(-1) + spread", "+ spread"),
    "energy: sign of the determinant": ("spread = -log_det_P", "spread = log_det_P"),
    "energy: all entries count": ("torch.where(known, delta, 0), known.sum(-1)", "torch.where(known, delta, 0), R.shape[-1]"),
    "energy: error of all entries": ("delta, count = torch.where(known, delta, 0)", "delta, count = delta"),
    "energy: no noise in the determinant": ("- R.shape[-2] * v.log() + count", "+ count"),
    "drift: keep for its root": ("Faded(R0 + keep**0.5", "Faded(R0 + keep"),
    "drift: towards nought": ("Faded(R0 + keep**0.5 * (state.R - R0)", "Faded(keep**0.5 * state.R"),
    "drift: U never grows": ("ridge(keep * state.U, (1 - keep) * prior_var)", "keep * state.U"),
    "drift: U inflated without end": ("ridge(keep * state.U, (1 - keep) * prior_var)", "state.U / keep"),
    "drift: without a mark": ("return Faded(R0", "return MemoryState(R0"),
    "write: a faded memory is as good as new": ("return Faded(*after) if isinstance(before, Faded) else after", "return after"),
    "frame: of faded memories": ("    checks.unfaded(state)\n    checks.memory", "    checks.memory"),
    "to: what has faded is as good as new": ("return type(self)(self.R.to(", "return MemoryState(self.R.to("),
    "detach: what has faded is as good as new": ("return type(self)(self.R.detach()", "return MemoryState(self.R.detach()"),
    "Memory: R0 as large as the vectors": ("R0_VAR, PRIOR_VAR, NOISE_VAR = 0.02**2, 0.1, 0.1", "R0_VAR, PRIOR_VAR, NOISE_VAR = 1.0, 1.0, 1.0"),
    "Memory: scale for its square": ("checks.scale(scale) ** 2", "checks.scale(scale)"),
    "Memory: scale forgotten in the noise": ("scale_var, NOISE_VAR * scale_var)", "scale_var, NOISE_VAR)"),
    "Memory: scale forgotten in R0": ("R0_VAR * scale_var, ", "R0_VAR, "),
    "Memory.write: addressed by values too": ("codes, self.noise_var, backend=self.backend, keys=self.size\n        )[0]", "codes, self.noise_var, backend=self.backend\n        )[0]"),
    "Memory.write: always blank": ("return kernels.write(\n            self._start(state, codes)", "return kernels.write(\n            self._start(None, codes)"),
    "Memory.write: no mask": ("codes = memory.masked(self.codes(z, values), mask)", "codes = self.codes(z, values)"),
    "Memory.forward: reads with all columns": ("self._part(out.state, self.size)", "out.state"),
    "Memory.forward: cue forgotten": ("codes[..., : self.size] if cue is None else cue)", "codes[..., : self.size])"),
    "Memory.read: all columns": ("return self._wanted(read)", "return read"),
    "Memory.read: keys for values": ("return read[..., self.size :] if self.values else read", "return read[..., : self.size] if self.values else read"),
    "Memory.predict: known forgotten": ("self.noise_var, known)\n        return Prediction", "self.noise_var)\n        return Prediction"),
    "Memory.energy: known forgotten": ("return memory.energy(cue, self._part(state, cue.shape[-1]), self.noise_var, known)", "return memory.energy(cue, self._part(state, cue.shape[-1]), self.noise_var)"),
    "Memory.recall: the frame of a faded memory": ("exact = exact and not isinstance(state, Faded)", "exact = exact and True"),
    "Memory.recall: noise forgotten": ("known, cue_var, valid, steps, exact)", "known, None, valid, steps, exact)"),
    "Memory.contains: keys alone": ("self._first(self.size + self.values), self.codes(z, values)", "self._first(self.size), self.codes(z, values)[..., : self.size]"),
    "Memory.contains: z/√2 for two": ("explained = (times == 1) |", "explained = (times > 0) |"),
    "Memory.contains: without a trace": ("clamp(min=OTHER)) & ~at.faint", "clamp(min=OTHER))"),
    "Memory.contains: longer than was written": ("torch.where(never | too_long, 0", "torch.where(never, 0"),
    "Memory.contains: nearly whole": ("whole &= sure & (off.abs() < bound) & ~full", "whole &= sure & (off.abs() < 0.2) & ~full"),
    "Memory.contains: crowded alone": ("crowded &= there & company &", "crowded &= there &"),
    "Memory.contains: rounding ignored": ("MARGIN * eps * s2 * error /", "0 * eps * s2 * error /"),
    "Memory.contains: several lengths agree": ("torch.where(parallel, equal, (u", "torch.where(parallel, parallel, (u"),
    "Memory.contains: mixtures agree": ("S * S.gather(-1, first))", "1e9)"),
    "Memory.forget: any of several values": ("if bool((times > 1).any()):", "if False:"),
    "Memory.kl: the other way round": ("memory.kl_memory(state, self.prior())", "memory.kl_memory(self.prior(), state)"),
    "Memory.reader: of all columns": ("return Reader(address.to(state.R.dtype), self._wanted(state.R)", "return Reader(address.to(state.R.dtype), (state.R)"),
    "Stream: gradients kept": ("dim=-1).detach()", "dim=-1)"),
    "Stream: fades after a write": ("self.kept = joined(state)\n\n    def forward", "self.kept = joined(state if self.keep == 1 else self.memory.fade(state, self.keep))\n\n    def forward"),
    "Stream: never fades": ("state = self.state if self.keep == 1 else self.memory.fade(self.state, self.keep)", "state = self.state"),
    "Stream: state without a mark": ("kind = Faded if self.faded or self.keep < 1 else MemoryState", "kind = MemoryState"),
    "Stream: the mark is not saved": ("torch.tensor([self.faded] if self.save", "torch.tensor([False] if self.save"),
    "Stream: the mark is lost with keep": ("Faded if self.faded or self.keep < 1", "Faded if self.keep < 1"),
    "Stream: state always saved": ("persistent=save)", "persistent=True)"),
    "Stream: any batch": ("if tuple(batch) != self.batch:", "if False:"),
    "recall: noise of the memory alone": ("else least + cue_var.double()", "else least"),
    "recall: the noisiest noise": ("cost.argmin(-1, keepdim=True)", "cost.argmax(-1, keepdim=True)"),
    "recall: of unknown entries": ("y, D, G = torch.where(known, y.double(), 0), known.double()", "y, D, G = torch.where(known, y.double(), 0), torch.ones_like(known).double()"),
    "recall: never in the frame": ("framed, n = ~(frames.full() | frames.lost()) & exact", "framed, n = (frames.full() & ~frames.full()) & exact"),
    "recall: does not settle": ("return z if valid is None else settle(", "return z if valid is None else valid(z) if True else settle("),
}  # fmt: skip

# A few edits need a line more to be a program at all.
PROLOGUE = {
    "condition: last chunk only": ("    size = max(", "    _first = state\n    size = max("),
    "write: addresses the first memory": ("keys], state.R[..., :keys]", "keys], first.R[..., :keys]"),
}


def mutate(project: Path, name: str) -> None:
    """Make the edits of a mutant in a project, each in the first target that has the text."""
    for old, new in filter(None, ((MUTANTS | LAYER)[name], PROLOGUE.get(name))):
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


def failures(project: Path, name: str | None, group: str = "memory") -> set[str]:
    """The tests that fail on a mutant of a project (None: those of a group, on it as it is)."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(project, copy)
        if name is not None:
            mutate(copy, name)
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
        suites = LAYER_SUITES if name in LAYER or group == "layer" else SUITES
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", *suites]
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
    groups = {"memory": MUTANTS, "layer": LAYER}
    wanted = sys.argv[1:] or list(groups)
    if unknown := set(wanted) - set(groups):
        raise SystemExit(f"expected memory, layer or nothing for both, got {', '.join(sorted(unknown))}")
    names = [name for group in wanted for name in groups[group]]
    noticed: set[str] = set()
    survivors = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        project = snapshot(Path(folder))
        for group in wanted:
            if failures(project, None, group):
                raise SystemExit(f"the tests of the {group} fail as it is")
        for name, failed in zip(names, pool.map(functools.partial(failures, project), names), strict=True):
            tests = {plain(test) for test in failed}
            noticed |= tests
            print(f"{len(tests):3} tests notice  {name}", flush=True)
            if not tests:
                survivors.append(name)
    blind = sorted(every_test() - noticed) if "memory" in wanted else []
    print(f"\n{len(names)} mutants, {len(survivors)} survive: {survivors}")
    print(f"tests that noticed none: {blind}")
    sys.exit(bool(survivors or blind))


if __name__ == "__main__":
    main()
