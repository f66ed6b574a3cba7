"""Shapes in signatures are checked while testing; hypothesis draws the same cases on every run."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before torch is imported, and for every process that a test starts: the tests' matrices are small, and pytest runs
# one worker a core, so a second thread only waits. One that has to be there waits without using the core.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


import jaxtyping
import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# Before kanerva is imported: every annotated function then checks the shapes it takes and gives.
install_import_hook("kanerva", "beartype.beartype")

if TYPE_CHECKING:
    from kanerva import DKM

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
# KANERVA_HYPOTHESIS=explore looks for new cases, many more of them.
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("KANERVA_HYPOTHESIS", "fixed"))

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=cuda)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the tests out of the user's cache; what one test has drawn, the others find, in any worker."""
    workers = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if workers else base) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KANERVA_CACHE", str(folder))
        yield folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for one test, and no data but what the test brings."""
    monkeypatch.setenv("KANERVA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KANERVA_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say nothing of progress, however slow the machine is: tests look at what is said."""
    monkeypatch.setattr("kanerva.support.say.FIRST", 1e6)


@pytest.fixture(scope="module")
def no_shape_checks() -> Iterator[None]:
    """Call the package as a user does, without the test-time shape checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> "DKM":
    """For the commands, the model of every name is `mirror`, whose codec no file can hold."""
    from mirror import mirror

    m = mirror()
    m.memory.backend = "reference"  # which need not be compiled
    monkeypatch.setattr("kanerva.app.commands.load", lambda _: m)
    return m


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let recall by descent search for a few steps only, where what is tested is what comes after it."""
    monkeypatch.setattr("kanerva.recall.search.STEPS", (5, 5, 10))
    monkeypatch.setattr("kanerva.recall.frame.TRIAL", 0)
    for name in ("BUDGET", "RECALL"):
        monkeypatch.setattr(f"kanerva.recall.frame.{name}", 1_000)
