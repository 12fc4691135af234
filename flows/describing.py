"""A run's description in MLflow, and the data that it read, for a reader who meets it there."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

from conf.naming import changes
from mempo.config import Experiment
from mempo.config.space import written

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

WHOLES = {"ablate": "study", "sweep": "sweep"}  # runs of many, by kind
SHOWN = 20  # differences in a description
_VALUE = 200  # characters of a value


def description(
    experiment: Experiment, kind: str, run_id: str, *, method: str, parent: str = "", page: str = ""
) -> str:
    """Markdown for MLflow's page of the run: what it is, how to go on, repeat and see it.

    page: the address at which MLflow draws the runs of a study.
    """
    if kind in WHOLES:
        drawn = f", or [its curves]({page})" if page else ""
        return "\n".join(
            [
                f"The {WHOLES[kind]} **{method}**: its runs are nested below this one.",
                "",
                f"- to see: `mempo report {run_id}`{drawn}",
                f"- to go on where it was cut off: `mempo {kind} {method} --resume {run_id}`",
            ]
        )
    if kind == "trial":
        return f"**{method}** of the sweep {parent}: its params are its point, its runs are nested."
    agent, preset = experiment.agent.kind, experiment.preset or "none"
    what = {
        "train": f"Training with {experiment.algorithm}, {experiment.iterations} iterations",
        "sft": "A cold start by supervised fine-tuning",
        "evaluate": "An evaluation without training",
    }[kind if experiment.iterations or kind != "train" else "evaluate"]
    lines = [f"**{method}**. {what}: agent `{agent}`, preset `{preset}`, seed {experiment.seed}."]
    if parent:
        lines.append(f"It belongs to the study {parent}.")
    found = changes(experiment)
    if found:
        lines += ["", "What differs from the preset:", ""]
        lines += [f"- `{name}`: `{_short(value)}`" for name, value in list(found.items())[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"- and {len(found) - SHOWN} more (config.yaml)")
    lines += ["", f"- to see: `mempo report {run_id}`"]
    if kind == "train" and not parent:
        lines.append(f"- to go on where it was cut off: `mempo train --resume {run_id}`")
    lines.append(f"- to repeat and compare: `mempo reproduce {run_id}`")
    return "\n".join(lines)


def datasets(experiment: Experiment, kind: str, digests: dict[str, str]) -> list[DatasetInput]:
    """What a run of the kind reads, as MLflow's dataset inputs with the context train or eval.

    A file has the beginning of its sha256 as digest (`digests`: by setting, from
    `flows.fingerprint.inputs`), the atlas that of the settings that make it. A study reads nothing
    itself.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    contexts = {"train": ("train", "eval"), "sft": ("train",), "evaluate": ("eval",)}.get(kind, ())
    if kind == "train" and not experiment.iterations:
        contexts = ("eval",)
    found = []
    for context in contexts:
        for name, digest, how, source in _read(experiment, kind, context, digests):
            # MLflow takes 36 characters of a digest, and one context of a name and digest.
            data = Dataset(f"{name}, {context}"[:500], digest[:36], how, json.dumps(source))
            found.append(DatasetInput(data, [InputTag("mlflow.data.context", context)]))
    return found


def _read(
    experiment: Experiment, kind: str, context: str, digests: dict[str, str]
) -> list[tuple[str, str, str, dict[str, object]]]:
    """(name, digest, type of source, source) of everything that is read in a context."""
    e, evaluate = experiment.environment, experiment.evaluate
    if e.name == "atlas":
        world = ("entities", "attributes", "values", "reply_facts")
        objectives = experiment.sft.objectives if kind == "sft" else e.objectives
        source: dict[str, object] = {name: getattr(e, name) for name in world}
        source["seed"] = experiment.seed if context == "train" else evaluate.seed
        source["objectives"] = list(objectives if context == "train" else evaluate.objectives)
        digest = sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()
        return [("atlas", digest, "atlas", source)]
    asked = "environment.questions"
    if context == "eval" and e.test_questions:
        asked = "environment.test_questions"
    named = {asked: e.test_questions if asked.endswith(".test_questions") else e.questions}
    if e.retriever == "bm25":
        named["environment.corpus"] = e.corpus
    found = []
    for setting, name in named.items():
        if name:
            digest = digests.get(setting, "unknown")
            source = {"uri": name, "sha256": digest}
            found.append((f"{setting.partition('.')[2]} {name}", digest, "file", source))
    if e.retriever != "bm25":
        source = {"uri": e.retriever_url, "retriever": e.retriever}
        found.append((f"corpus at {e.retriever_url}", "unknown", e.retriever, source))
    return found


def _short(value: object) -> str:
    text = written(value).replace("`", "'")
    return text if len(text) <= _VALUE else text[:_VALUE] + "..."
