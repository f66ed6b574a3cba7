"""benchmarks/rescaled.py: strict bounds with the memory's uncertainty at other scales."""

import pytest
import torch

import kanerva
import rescaled
from kanerva import DKM, CodecConfig, DKMConfig, memory
from kanerva.data import ClassImages, episodes
from kanerva.memory import MemoryState
from kanerva.models.dkm import STRICT


@pytest.fixture
def model() -> DKM:
    torch.manual_seed(0)
    config = DKMConfig(rows=6, code=9, codec=CodecConfig((4, 4, 4)), weights="full", read_noise="own", block=32)
    return DKM(config).eval()


@pytest.fixture(scope="module")
def images() -> ClassImages:
    return kanerva.data.load("glyphs", "test")


@torch.no_grad()
def test_a_memory_that_is_sure_is_read_as_its_mean_and_costs_more(model: DKM, images: ClassImages) -> None:
    """At the scale 1e-14 what is drawn is R, so the first term is the usual score, and the second KL(M) there."""
    found = rescaled.strict(model, images, [1e-14], 512)[0]
    generator = torch.Generator().manual_seed(0)
    x = episodes(images, 16, 32, None, generator)
    nats = model(x, generator).nats().double()
    R, U = model.write(x).to(torch.float64)
    blank = memory.prior(model.R0.double(), 1e-14 * model.prior_var.double(), (16,))
    kl_memory = memory.kl_memory(MemoryState(R, 1e-14 * U), blank)
    torch.testing.assert_close(found, nats + kl_memory / 32, rtol=1e-6, atol=0)


@torch.no_grad()
def test_at_its_own_scale_it_is_the_score_with_m_drawn(model: DKM, images: ClassImages) -> None:
    found = rescaled.strict(model, images, [1.0], 2_048)[0]
    score = kanerva.evaluate(model, images, count=2_048)
    assert abs(float(found.mean()) - score.extra[STRICT]["mean"]) < 4 * score.extra[STRICT]["stderr"]


def test_the_scale_is_the_best_of_training_images(
    model: DKM, images: ClassImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescaled, "IMAGES", 512)
    monkeypatch.setattr(rescaled, "SCALES", (1.0, 0.1, 0.01))
    found = rescaled.scaled(model, images, images)
    means = rescaled.strict(model, images, (1.0, 0.1, 0.01), 512).mean(1)
    assert found["scale"] == (1.0, 0.1, 0.01)[int(means.argmin())]
    assert found["training"] == pytest.approx(float(means.min()))
