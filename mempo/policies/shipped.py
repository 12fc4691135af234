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
