"""Write the settings of committed models in the names that they have now; no number of a model changes.

python benchmarks/convert.py FILE.safetensors …
"""

import sys
from typing import Any

from kanerva.support.tensors import load, save


def main(paths: list[str]) -> None:
    """Save each file again; one that has been converted stays as it is."""
    for path in paths:
        tensors, about = load(path)
        now = dict(about)
        if "model" in now:
            now["model"] = model(now["model"])
        if run := now.get("run"):
            drawn = run["model"].get("drawn", False)
            now["run"] = run | {"model": model(run["model"]), "train": train(run["train"], drawn)}
            if run["data"]["dataset"] == "omniglot":  # when these were trained, no classes were kept for validation
                now["run"]["data"] = run["data"] | {"split": "train+validation"}
        if now != about:
            save(path, tensors, now)
            after = load(path)[0]
            assert all(x.equal(after[name]) for name, x in tensors.items()), path
            print(path)


def model(old: dict[str, Any]) -> dict[str, Any]:
    """The config of a model."""
    new = {"kind": "dkm"} | {name: value for name, value in old.items() if name not in ("min_scale", "drawn")}
    codec = old.get("codec", {})
    if "norm" in codec:
        style = codec["norm"], codec["activation"], codec["depth"]
        assert style in (("group", "silu", 1), ("none", "relu", 1)), style
        kept = {name: value for name, value in codec.items() if name not in ("norm", "activation", "depth")}
        new["codec"] = kept | {"style": codec["activation"]}
    return new


# What training no longer has; of the first, only what is automatic was ever used.
GONE = (
    *("optimizer", "precision", "capture", "write", "compile"),
    *("weight_decay", "warmup", "log_every", "save_every", "keep_every"),
    *("classes", "unwritten", "plain", "unaugmented"),
)


def train(old: dict[str, Any], drawn: bool) -> dict[str, Any]:
    """The config of a training."""
    old = {name: value for name, value in old.items() if name != "evaluate_images"}
    if "save_every" not in old:
        return old
    assert [old[name] for name in GONE[:5]] == ["adam", "auto", True, "auto", "auto"], old
    new = {name: value for name, value in old.items() if name not in GONE}
    classes, unwritten = old.get("classes"), old.get("unwritten", 0)
    if classes or unwritten:
        new["related"] = [classes or 0, unwritten, 1 - old.get("plain", 0.0)]
    new["augment"] = 1.0 - old.get("unaugmented", 0.0) if old["augment"] else 0.0
    new["bound"] = "strict" if drawn else old["bound"]
    return new


if __name__ == "__main__":
    main(sys.argv[1:])
