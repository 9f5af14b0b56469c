"""The file of margins: each has a value, its unit and a reason, and a study that reads it."""

from __future__ import annotations

from pathlib import Path

from experiments import margins

PROGRAMS = sorted(Path(margins.__file__).parent.rglob("*.py"))


def test_every_margin_is_explained_and_read():
    text = "\n".join(path.read_text(encoding="utf-8") for path in PROGRAMS)
    for study, named in margins.margins().items():
        for name, margin in named.items():
            assert set(margin) == {"value", "unit", "reason"}, (study, name)
            assert margins.margin(study, name) > 0
            assert f'margin("{study}", ' in text, study
            assert f'"{name}"' in text, name
