"""Shapes in signatures are checked while testing; hypothesis draws the same cases on every run."""

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# Before kanerva is imported: every annotated function then checks the shapes it takes and gives.
install_import_hook("kanerva", "beartype.beartype")

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
# KANERVA_HYPOTHESIS=explore looks for new cases, many more of them.
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("KANERVA_HYPOTHESIS", "fixed"))

# The tests' matrices are small: a second thread only waits.
torch.set_num_threads(1)

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=cuda)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the tests out of the user's cache; what one test has drawn, the others find."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KANERVA_CACHE", str(folder))
        yield folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for one test, and no data but what the test brings."""
    monkeypatch.setenv("KANERVA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KANERVA_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def no_shape_checks() -> Iterator[None]:
    """Call the package as a user does, without the test-time shape checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let recall by descent search for a few steps only, where what is tested is what comes after it."""
    monkeypatch.setattr("kanerva.recall.search.STEPS", (5, 5, 10))
    monkeypatch.setattr("kanerva.recall.frame.RECALL", 1_000)
