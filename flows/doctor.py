"""Is everything there that a run needs? Asked before the first rollout, answered in lines.

Every probe below returns what it found, or raises a ValueError that names the setting, what is
wrong and the cure. Light to import: what needs torch is imported where it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from conf.load import setting_names
from flows.doctor_credit import check_memory
from flows.doctor_data import Kind, check_data
from flows.doctor_engines import check_backend, check_engine
from flows.doctor_model import check_encoder, check_lengths, check_model, check_words, read_codec
from flows.doctor_tracking import check_tracking
from mempo import own
from mempo.config import Cluster, Experiment
from tasks import store
from tasks.environment import available_cores, pick_threads
from tasks.prefect_server import check_prefect
from tasks.ray_address import LOCAL_HOSTS, check_ray, split_address


class PreflightError(ValueError):
    """A run that could not start; the text is one line: setting, fault, cure."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one probe."""

    setting: str
    ok: bool
    message: str  # what was found or, where `ok` is false, what is wrong and the cure


def check(experiment: Experiment, kind: Kind = "train") -> list[Finding]:
    """Every finding that concerns a run of this kind, in the order in which it would meet them."""
    start = "policy.model"
    if kind == "sft" and experiment.sft.model:
        start = "sft.model"
        policy = experiment.policy.model_copy(update={"model": experiment.sft.model})
        experiment = experiment.model_copy(update={"policy": policy})

    def policy_probe() -> str:
        found = check_model(experiment.policy.model)
        read_codec(experiment.policy, experiment.environment)
        return found

    cluster = experiment.cluster
    probes: list[tuple[str, Callable[[], str]]] = [
        ("cluster", lambda: _machine(cluster, kind)),
        ("cluster.address", lambda: _ray(cluster)),
        ("PREFECT_API_URL", lambda: _prefect(cluster)),
        ("MEMPO_HOME", _store),
        ("tracking.uri", lambda: check_tracking(experiment.tracking.uri)),
        ("policy.model", policy_probe),
    ]
    for setting, path in own.functions(experiment).items():
        probes.append((setting, partial(_own, setting, path)))
    if kind != "sft":
        probes.append(("rollout.engine", lambda: check_engine(experiment)))
        probes.append(("rollout.max_prompt_tokens", lambda: check_lengths(experiment)))
    if kind != "evaluate":
        probes.append(("learner.backend", lambda: check_backend(experiment)))
    if kind == "train":
        probes.append(("learner.minibatches", lambda: _minibatches(experiment)))
        if experiment.iterations > 0:
            probes.append(("memory.weight", lambda: check_memory(experiment)))
    findings = [_finding(setting, probe) for setting, probe in probes]
    readable = all(finding.ok for finding in findings if finding.setting == "policy.model")

    def words_probe() -> str:
        codec = read_codec(experiment.policy, experiment.environment)
        return check_words(experiment, codec, sft=kind == "sft")

    if readable:
        findings.append(_finding("agent.kind", words_probe))
    findings.append(_finding("agent.embedding_model", lambda: check_encoder(experiment.agent)))

    def data_probe() -> str:
        codec = read_codec(experiment.policy, experiment.environment) if readable else None
        return check_data(experiment, kind, codec)

    last = _finding("environment", data_probe)
    # What is wrong with the atlas is wrong with the vocabulary of a policy made for it as well.
    if last.message not in [finding.message for finding in findings]:
        findings.append(last)
    return [
        replace(
            finding,
            setting=finding.setting.replace("policy.model", start),
            message=finding.message.replace("policy.model", start),
        )
        for finding in findings
    ]


def preflight(experiment: Experiment, kind: Kind = "train") -> None:
    """Refuse what cannot run.

    Args:
        experiment: the whole configuration.
        kind: what is about to start, for each needs other things: 'train' draws questions to
            train on and to evaluate on, 'evaluate' only the latter, 'sft' begins from
            `sft.model` and needs questions that the scripted expert can answer.

    Raises:
        PreflightError: the first failing finding, in one line.
    """
    for finding in check(experiment, kind):
        if not finding.ok:
            raise PreflightError(finding.message)


def _finding(setting: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(setting, True, probe())
    except (ValueError, ConnectionError) as error:  # the latter is a retriever's
        message = " ".join(str(error).split())
        # A probe may stand for several settings, and its message then names the very one.
        first = re.split(r"[: ]", message, maxsplit=1)[0]
        named = first in (*setting_names(), "MEMPO_HOME", "PREFECT_API_URL")
        return Finding(setting, False, message if named else f"{setting}: {message}")


def _machine(cluster: Cluster, kind: Kind) -> str:
    facts = f"{available_cores()} cores, {pick_threads(cluster)} threads an actor"
    memory = Path("/proc/meminfo")
    if memory.is_file():
        lines = memory.read_text().splitlines()
        kilobytes = {line.split(":")[0]: line.split()[1] for line in lines}
        facts += f", {int(kilobytes['MemAvailable']) / 2**20:.1f} GiB of memory free"
    if cluster.address:
        return facts
    cores = cluster.cpus or available_cores()
    _check_room("cpus", "CPUs", cores, cluster, kind)
    _check_room("gpus", "GPUs", len(list(Path("/dev").glob("nvidia[0-9]*"))), cluster, kind)
    return facts


def _check_room(unit: str, name: str, there: int, cluster: Cluster, kind: Kind) -> None:
    """Whether what the actors of all runs side by side reserve fits on this machine."""
    actors = {"learner": cluster.learners}
    if kind != "sft":
        actors = {"sampler": cluster.samplers, **actors}
    asked = {
        f"cluster.{actor}_{unit}": count * getattr(cluster, f"{actor}_{unit}")
        for actor, count in actors.items()
    }
    one = sum(asked.values())
    if one * cluster.parallel <= there:
        return
    settings = " and ".join(setting for setting, count in asked.items() if count)
    if one <= there:
        raise ValueError(
            f"cluster.parallel: {cluster.parallel} runs reserve {one * cluster.parallel:g} {name}, "
            f"but there are {there}; lower it, or {settings}"
        )
    raise ValueError(
        f"{settings}: a run reserves {one:g} {name}, but there are {there}; reserve fewer, or set "
        "cluster.address to a Ray that has them"
    )


def _ray(cluster: Cluster) -> str:
    if not cluster.address:
        return "a local Ray will be started"
    check_ray(cluster.address)
    return f"a server answers at {cluster.address}"


def _prefect(cluster: Cluster) -> str:
    # Prefect is slow to import, and an address is all that is asked of it here.
    url = os.environ.get("PREFECT_API_URL", "")
    far = bool(cluster.address) and split_address(cluster.address)[0] not in LOCAL_HOSTS
    if far and (not url or urlsplit(url).hostname in LOCAL_HOSTS):
        raise ValueError(
            f"PREFECT_API_URL: the workers of {cluster.address} cannot reach a Prefect server at "
            f"{url or 'this machine alone'}; run one that they reach and set PREFECT_API_URL to it"
        )
    if not url:
        return "not set: the server of the active profile, or one of the command's own"
    check_prefect(url)
    return f"a healthy server at {url}"


def _store() -> str:
    folder = store.home()
    store.check_writable(folder)
    store.check_writable(folder / "artifacts")
    return f"{folder} can be written"


def _own(setting: own.Setting, path: str) -> str:
    return f"{path}, file sha256 {own.digest(setting, path)[:12]}"


def _minibatches(experiment: Experiment) -> str:
    trajectories = experiment.rollout.questions * experiment.rollout.group_size
    minibatches = experiment.learner.minibatches
    if minibatches > trajectories:
        raise ValueError(
            f"{minibatches} minibatches from {trajectories} trajectories an iteration; lower it, "
            "or raise rollout.questions or rollout.group_size"
        )
    return f"{trajectories} trajectories an iteration in {minibatches} minibatches"
