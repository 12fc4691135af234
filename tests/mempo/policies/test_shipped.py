import hashlib
import json

import pytest

from mempo.policies.shipped import FOLDER, model_path

NAMES = sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())


@pytest.mark.parametrize("name", NAMES)
def test_the_record_of_a_policy_that_ships_is_of_these_weights(name: str) -> None:
    lines = [r for r in (FOLDER / "README.md").read_text().splitlines() if r.startswith("| ")]
    head, *rows = ([cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines)
    record = {row[0]: row[head.index(name)] for row in rows}
    weights = (FOLDER / name / "model.safetensors").read_bytes()
    assert record["sha256 of `model.safetensors"] == hashlib.sha256(weights).hexdigest()
    made = json.loads((FOLDER / name / "checkpoint.json").read_text())
    assert record["seed"] == str(made["experiment"]["seed"])


def test_an_unknown_policy_is_refused_with_those_that_ship() -> None:
    assert model_path("models/mine") == "models/mine"
    with pytest.raises(ValueError, match="no builtin:atlas; there are: builtin:atlas-sft, "):
        model_path("builtin:atlas")
