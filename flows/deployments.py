"""Deployments built from `conf/`: what Prefect's page can start, and with which form.

A deployment of train, sft and evaluate stands for a preset, whose resolved settings its form shows;
those of studies and sweeps take a name. Flows are found by module, so a worker needs this
package installed and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conf.load import clusters, load, presets, setting_names
from conf.study import studies
from conf.sweep import sweeps
from mempo.config.addresses import NO_PASSWORD

if TYPE_CHECKING:
    from prefect import Flow

# Of children of other flows, and what has a form of its own (`resume`).
HIDDEN = ("parent", "method", "tags", "resume")


@dataclass(frozen=True)
class Deployment:
    """One form: a flow, the values that it starts from, and the schema of what may be changed."""

    flow: str
    name: str
    entrypoint: str  # module.function
    description: str
    parameters: Mapping[str, Any]
    schema: Mapping[str, Any]
    settings_of: str = ""  # the preset behind parameter `experiment`

    @property
    def full_name(self) -> str:
        return f"{self.flow}/{self.name}"


def deployments(cluster: str, overrides: Sequence[str] = ()) -> list[Deployment]:
    """Every deployment that ships; `cluster` and `overrides` change what presets resolve to."""
    from flows import forms
    from flows.evaluate import evaluate
    from flows.promote import promote
    from flows.sft import sft
    from flows.train import train

    found = [
        _of_preset(flow, preset, text, cluster, overrides)
        for flow in (train, sft, evaluate)
        for preset, text in presets().items()
    ]
    places = {"cluster": list(dict.fromkeys([*clusters(), cluster]))}
    tracking = load("demo", cluster=cluster, overrides=overrides).tracking.uri
    named = {"cluster": cluster, "settings": list(overrides)}
    return [
        *found,
        _deployment(forms.ablate, "study", named, {"study": list(studies()), **places}),
        _deployment(forms.sweep, "search", named, {"sweep": list(sweeps()), **places}),
        _deployment(forms.resume, "run", {"cluster": cluster}, places),
        _deployment(promote, "model", {"tracking": tracking}, {}),
    ]


def _of_preset(
    flow: Flow[Any, Any], preset: str, text: str, cluster: str, overrides: Sequence[str]
) -> Deployment:
    experiment = load(preset, cluster=cluster, overrides=overrides)
    values = {"experiment": experiment.model_dump(mode="json")}
    made = _deployment(flow, preset, values, {}, text, preset)
    # The values stand in the form; another name would bring no other ones.
    field = made.schema["definitions"]["Experiment"]["properties"]["preset"]
    field |= {"enum": [experiment.preset], "default": experiment.preset}
    return made


def _deployment(
    flow: Flow[Any, Any],
    name: str,
    parameters: dict[str, Any],
    choices: Mapping[str, Sequence[str]],
    description: str = "",
    settings_of: str = "",
) -> Deployment:
    """`choices`: the names that a parameter takes; `description`: the flow's own by default."""
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(flow.fn).model_dump(exclude_unset=True)
    for hidden in HIDDEN if settings_of else ():
        schema["properties"].pop(hidden, None)
    for parameter, values in choices.items():
        schema["properties"][parameter]["enum"] = list(values)
    if "settings" in schema["properties"]:
        setting = {"type": "string", "pattern": _setting_pattern()}
        schema["properties"]["settings"] = {
            **schema["properties"]["settings"],
            "anyOf": [{"type": "array", "items": setting}, {"type": "null"}],
        }
    # What has a value need not be given.
    schema["required"] = [p for p in schema.get("required", []) if p not in parameters]
    description = description or (flow.description or "").partition("\n")[0]
    entrypoint = f"{flow.fn.__module__}.{flow.fn.__name__}"
    return Deployment(flow.name, name, entrypoint, description, parameters, schema, settings_of)


def _setting_pattern() -> str:
    """For the form, which runs no code of ours: 'section.setting=value' of a setting that exists.

    Values are checked where the run begins. Passwords are refused, as settings are recorded.
    """
    names = "|".join(re.escape(name) for name in setting_names() if name != "preset")
    return rf"{NO_PASSWORD}\s*(?:{names})\s*="
