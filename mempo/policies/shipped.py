"""Policies that ship with the package, named `builtin:NAME`."""

from __future__ import annotations

from pathlib import Path

BUILTIN = "builtin:"
FOLDER = Path(__file__).parent / "shipped"


def model_path(name: str) -> str:
    """The folder of a `builtin:` policy; any other name as it is. Raises ValueError if unknown."""
    if not name.startswith(BUILTIN):
        return name
    folder = FOLDER / name.removeprefix(BUILTIN)
    if not folder.is_dir():
        known = ", ".join(f"{BUILTIN}{f.name}" for f in sorted(FOLDER.glob("*")) if f.is_dir())
        raise ValueError(f"policy.model: there is no {name}; there are: {known or 'none'}")
    return str(folder)


def how_to_make(model: str) -> str:
    """What to do where there is no folder `model`: the command that makes it, if one does."""
    made_by = {
        "models/smollm2": "`mempo fetch smollm2`",
        "models/wiki-sft": "`mempo sft --preset wiki`",
        "models/atlas-agents": "`mempo sft --preset agents`",
        "models/atlas-cost": "the command in the description of `mempo ablate cost --list`",
        "models/atlas-cost-react": "the command in the description of `mempo ablate cost --list`",
    }
    if model in made_by:
        return f"{made_by[model]} makes it"
    return "give an existing folder (`mempo fetch smollm2` makes one), a hub name, or 'tiny'"
