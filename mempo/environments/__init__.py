"""Where questions and facts come from."""

from __future__ import annotations

from collections.abc import Callable

from mempo.config import Environment
from mempo.environments.world import World


def make_world(settings: Environment, shorten: Callable[[str], str]) -> World:
    """The environment that the settings name; `shorten` cuts a passage to its tokens."""
    world: World
    match settings.name:
        case "atlas":
            from mempo.environments.atlas import AtlasWorld

            world = AtlasWorld(settings)
        case "dataset":
            from mempo.environments.dataset_world import DatasetWorld

            world = DatasetWorld(settings, shorten)
    if settings.tool:
        from mempo.environments.own_tool import OwnTool

        return OwnTool(world, settings.tool)
    return world
