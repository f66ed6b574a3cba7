"""Shapes in signatures are checked while testing; hypothesis draws the same cases on every run."""

import os
from collections.abc import Iterator

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

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=cuda)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def no_shape_checks() -> Iterator[None]:
    """Call the package as a user does, without the test-time shape checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
