"""The list of ways to break the memory follows the memory: every edit finds its text, and leaves a program."""

import shutil
from pathlib import Path

import mutants


def test_every_mutant_changes_one_file(tmp_path: Path) -> None:
    for name in (*mutants.MUTANTS, *mutants.LAYER):
        for path in mutants.TARGETS:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(mutants.ROOT / path, tmp_path / path)
        mutants.mutate(tmp_path, name)
        after = {path: (tmp_path / path).read_text() for path in mutants.TARGETS}
        changed = [path for path, text in after.items() if text != (mutants.ROOT / path).read_text()]
        assert len(changed) == 1, name
        compile(after[changed[0]], changed[0], "exec")
