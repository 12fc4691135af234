"""Is everything there that a run needs? Asked before the first rollout, answered in lines.

Every probe below returns what it found, or raises a ValueError that names the setting, what is
wrong and the cure. Light to import: what needs torch is imported where it is used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from conf.load import setting_names
from mempo.config import Cluster, Experiment, Policy
from mempo.environments.world import Split
from mempo.policies.shipped import model_path
from tasks import store
from tasks.ray_address import LOCAL_HOSTS, check_ray, split_address
from tasks.services import available_cores, check_prefect, pick_threads

_SERVER_TIMEOUT_S = 10.0


class PreflightError(ValueError):
    """A run that could not start; the text is one line: setting, fault, cure."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one probe."""

    setting: str
    ok: bool
    message: str  # what was found or, where `ok` is false, what is wrong and the cure


def check(experiment: Experiment) -> list[Finding]:
    """Every finding, good or bad, in the order in which a run would meet them."""
    probes: list[tuple[str, Callable[[], str]]] = [
        ("cluster", lambda: _machine(experiment.cluster)),
        ("cluster.address", lambda: _ray(experiment.cluster)),
        ("PREFECT_API_URL", lambda: _prefect(experiment.cluster)),
        ("MEMPO_HOME", _store),
        ("tracking.uri", lambda: _tracking(experiment.tracking.uri)),
        ("policy.model", lambda: _model(experiment.policy)),
        ("rollout.max_prompt_tokens", lambda: _lengths(experiment)),
        ("learner.minibatches", lambda: _minibatches(experiment)),
        ("environment", lambda: _questions(experiment)),
    ]
    return [_finding(setting, probe) for setting, probe in probes]


def preflight(experiment: Experiment) -> None:
    """Refuse what cannot run.

    Raises:
        PreflightError: the first failing finding, in one line.
    """
    for finding in check(experiment):
        if not finding.ok:
            raise PreflightError(finding.message)


def _finding(setting: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(setting, True, probe())
    except ValueError as error:
        message = " ".join(str(error).split())
        # A probe may stand for several settings, and its message then names the very one.
        first = re.split(r"[: ]", message, maxsplit=1)[0]
        named = first in (*setting_names(), "MEMPO_HOME", "PREFECT_API_URL")
        return Finding(setting, False, message if named else f"{setting}: {message}")


def _machine(cluster: Cluster) -> str:
    facts = f"{available_cores()} cores, {pick_threads(cluster)} threads an actor"
    memory = Path("/proc/meminfo")
    if memory.is_file():
        lines = memory.read_text().splitlines()
        kilobytes = {line.split(":")[0]: line.split()[1] for line in lines}
        facts += f", {int(kilobytes['MemAvailable']) / 2**20:.1f} GiB of memory free"
    if cluster.address:
        return facts
    cpus = (cluster.sampler_cpus + cluster.learner_cpus) * cluster.parallel
    cores = cluster.cpus or available_cores()
    if cpus > cores:
        raise ValueError(
            f"cluster.parallel: {cluster.parallel} runs reserve {cpus:g} CPUs, but the local Ray "
            f"has {cores}; lower cluster.parallel, cluster.sampler_cpus or cluster.learner_cpus"
        )
    gpus = (cluster.sampler_gpus + cluster.learner_gpus) * cluster.parallel
    found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if gpus > found:
        raise ValueError(
            f"cluster.sampler_gpus and cluster.learner_gpus: the runs reserve {gpus:g} GPUs, but "
            f"this machine has {found}; set both to 0, or cluster.address to a Ray that has them"
        )
    return facts


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


def _tracking(uri: str) -> str:
    if not uri:
        return f"SQLite, {store.home() / 'mlflow.db'}"
    if not uri.startswith(("http://", "https://")):
        return f"{uri} (looked at when the run starts)"
    cure = "start it, correct the address, or leave it empty for SQLite under MEMPO_HOME"
    try:
        reply = httpx.get(f"{uri.rstrip('/')}/health", timeout=_SERVER_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(f"no MLflow server answers at {uri} ({error}); {cure}") from None
    if "Invalid Host header" in reply.text:
        raise ValueError(f"MLflow at {uri} refuses that host; start it with --allowed-hosts for it")
    if reply.status_code != 200:
        raise ValueError(f"{uri}/health answers {reply.status_code}: no healthy MLflow; {cure}")
    return f"a healthy server at {uri}"


def _model(policy: Policy) -> str:
    if policy.model == "tiny":
        return "a fresh tiny policy"
    folder = Path(model_path(policy.model))
    if folder.is_dir():
        return _model_folder(folder)
    cure = "give an existing folder (`mempo fetch smollm2` makes models/smollm2) or 'tiny'"
    if policy.model.count("/") != 1 or policy.model.startswith(("models/", ".", "~", "/")):
        raise ValueError(f"there is no folder {policy.model}; {cure}")
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(policy.model, "config.json"), str):
        return f"{policy.model}, from the hub's cache"
    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"there is no folder {policy.model}, and HF_HUB_OFFLINE forbids to fetch that name "
            f"from the hub; unset it, or {cure}"
        )
    return f"{policy.model}, to be fetched from the hub"


def _model_folder(folder: Path) -> str:
    config = _read_json(folder / "config.json")
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"{folder} has no tokenizer.json; save a fast tokenizer there "
            "(tokenizer.save_pretrained)"
        )
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
    elif not (folder / names[0]).is_file() and (folder / "pytorch_model.bin").is_file():
        return f"{folder}, a {config.get('model_type', 'model')} with pickled weights"
    from safetensors import SafetensorError, safe_open

    for name in names:
        try:
            # Opening reads the header and compares it with the file's length, not the weights.
            with safe_open(folder / name, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"the weights {folder / name} cannot be read ({error}); fetch or save them again"
            ) from None
    size = sum((folder / name).stat().st_size for name in names)
    return f"{folder}, a {config.get('model_type', 'model')} of {size / 1e6:.0f} MB"


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}), so it is no model folder") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no settings, so it is no model folder")
    return content


def _lengths(experiment: Experiment) -> str:
    rollout = experiment.rollout
    asked = rollout.max_prompt_tokens + rollout.max_step_tokens
    config = Path(model_path(experiment.policy.model)) / "config.json"
    known = _read_json(config).get("max_position_embeddings") if config.is_file() else None
    if isinstance(known, int) and asked > known:
        raise ValueError(
            f"{rollout.max_prompt_tokens} and rollout.max_step_tokens {rollout.max_step_tokens} "
            f"together exceed the {known} positions of {experiment.policy.model}; lower one"
        )
    return f"a step may take {asked} tokens"


def _minibatches(experiment: Experiment) -> str:
    trajectories = experiment.rollout.questions * experiment.rollout.group_size
    minibatches = experiment.learner.minibatches
    if minibatches > trajectories:
        raise ValueError(
            f"{minibatches} minibatches from {trajectories} trajectories an iteration; lower it, "
            "or raise rollout.questions or rollout.group_size"
        )
    return f"{trajectories} trajectories an iteration in {minibatches} minibatches"


def _questions(experiment: Experiment) -> str:
    """Open the very world of the run and draw what training and evaluation will draw."""
    from mempo.environments import make_world

    settings, evaluate = experiment.environment, experiment.evaluate
    world = make_world(settings, _shorten(experiment))
    if settings.name == "dataset":
        from mempo.environments.datasets import DatasetWorld

        assert isinstance(world, DatasetWorld)
        world.check()  # the search server is called only here
    wanted: list[tuple[str, Split, tuple[int, ...], int]] = [
        ("environment.objectives", "train", settings.objectives, experiment.rollout.questions),
        ("evaluate.objectives", "test", evaluate.objectives, evaluate.questions),
    ]
    for setting, split, objectives, count in wanted:
        for k in objectives:
            try:
                world.questions(split, count, objectives=k, key=("doctor",))
            except ValueError as error:
                raise ValueError(f"{setting} = {list(objectives)}: {error}") from None
    return (
        f"{settings.name} serves {list(settings.objectives)} objectives for training and "
        f"{list(evaluate.objectives)} for evaluation"
    )


def _shorten(experiment: Experiment) -> Callable[[str], str]:
    """Cuts a passage to its tokens; which questions are extractive depends on the cut."""
    if experiment.environment.question_filter != "extractive":
        return lambda text: text  # nothing here then looks at a passage
    from mempo.policies.loading import load_codec  # imports torch

    try:
        codec = load_codec(experiment.policy, experiment.environment)
    except OSError as error:  # how transformers says that a name is not on the hub
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"policy.model: no tokenizer of {experiment.policy.model} ({reason})"
        ) from None
    return lambda text: codec.shorten(text, experiment.environment.passage_tokens)
