"""benchmarks/classes.py: the same new images in memories of their classes, of none and of others."""

import pytest
import torch

import classes
import kanerva
from kanerva import CodecConfig
from kanerva.evaluate import halves, new_images
from kanerva.models.rivals.vae import VAE, VAEConfig


@torch.no_grad()
def test_scores_are_those_of_evaluate_and_of_other_memories() -> None:
    images = kanerva.data.load("glyphs", "test")
    model = kanerva.load("omniglot-new").eval()
    written, read = halves(images, 6, 4, 20, seed=0)
    found = classes.scored(model, written, read)
    score = new_images(model, images, count=240)
    assert score is not None
    assert float(found[classes.OWN].mean()) == pytest.approx(score["mean"], rel=1e-5)
    shifted = classes.scored(model, written.roll(1, 0), read)
    # float32: a memory comes out a little different at another place in the batch
    torch.testing.assert_close(found[classes.OTHER], shifted[classes.OWN], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[classes.BLANK], shifted[classes.BLANK], rtol=1e-5, atol=0)
    assert (found[classes.OWN] < found[classes.OTHER]).all()
    assert (found[classes.OWN] < found[classes.BLANK]).all()


def test_a_model_without_a_memory_has_one_score() -> None:
    torch.manual_seed(0)
    vae = VAE(VAEConfig(code=9, codec=CodecConfig((4, 4, 4)))).eval()
    written, read = halves(kanerva.data.load("glyphs", "test"), 3, 4, 20, seed=0)
    found = classes.scored(vae, written, read)
    assert torch.equal(found[classes.OWN], found[classes.BLANK])
    table = classes.compared({"dkm": {key: 0 * values for key, values in found.items()}, "vae": found})
    assert table["vae - dkm"][classes.OWN]["mean"] == pytest.approx(float(found[classes.OWN].mean()))
