"""Deployments on a Prefect server: registered for a work pool, with their schedules."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.load import clusters, load
from conf.schedule import FOLDER, Schedule, load_schedules
from conf.study import load_study
from conf.sweep import load_sweep
from conf.text import ConfigError
from flows.deployments import Deployment, deployments
from mempo.config.addresses import redacted

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


def deploy(
    pool: str,
    *,
    cluster: str = "local",
    overrides: Sequence[str] = (),
    image: str = "",
    schedules: Path = FOLDER,
) -> list[str]:
    """Register all deployments for a work pool, and bring their schedules up to date.

    Schedules that the server has keep their switch and their parameters; those whose file is gone
    are removed, as are deployments whose preset is gone; those made by hand stay. Returns what was
    done, a line each.

    Raises:
        ConfigError: a schedule that cannot be used, or a pool that is not there.
    """
    from prefect.client.orchestration import get_client

    wanted = load_schedules(schedules)
    made = deployments(cluster, overrides)
    names = [deployment.full_name for deployment in made]
    for schedule in wanted:
        if schedule.deployment not in names:
            raise ConfigError(
                f"schedule {schedule.file}: there is no deployment "
                f"'{schedule.deployment}'; there are: {', '.join(names)}"
            )
    planned = {
        s.name: (_timing(s), _parameters(s, made, cluster, overrides)) for s in wanted
    }  # what cannot be used is found before anything is changed
    lines: list[str] = []
    with get_client(sync_client=True) as client:
        variables = _job_variables(client, pool, image, cluster)
        for deployment in made:
            found = _register(client, deployment, pool, variables)
            mine = [s for s in wanted if s.deployment == deployment.full_name]
            lines += _reconcile(client, found, deployment.full_name, mine, planned)
        lines += _remove_lost(client, pool, {deployment.settings_of for deployment in made})
    return [f"{len(made)} deployments for work pool {pool}", *lines]


def _parameters(
    schedule: Schedule, made: Sequence[Deployment], cluster: str, overrides: Sequence[str]
) -> dict[str, Any]:
    """A schedule's own parameters, its settings resolved over the preset of its deployment."""
    from prefect.utilities.schema_tools.validation import ValidationError, validate

    (deployment,) = [d for d in made if d.full_name == schedule.deployment]
    where = f"schedule {schedule.file}"
    if foreign := sorted(set(schedule.parameters) - set(deployment.schema["properties"])):
        allowed = ", ".join(deployment.schema["properties"])
        raise ConfigError(f"{where}: unknown parameter '{foreign[0]}'; there are: {allowed}")
    given = {**deployment.parameters, **schedule.parameters}
    if missing := [name for name in deployment.schema.get("required", ()) if name not in given]:
        raise ConfigError(f"{where}: 'parameters' must say {missing[0]}, which has no default")
    if "experiment" in schedule.parameters:
        raise ConfigError(f"{where}: 'parameters.experiment' is whole; change a preset by 'set'")
    try:
        validate(dict(schedule.parameters), dict(deployment.schema), True, ignore_required=True)
    except ValidationError as error:
        # A pattern names all settings there are, which helps nobody.
        fault, pattern, _ = redacted(str(error)).partition(" does not match ")
        fault += " cannot be used: no such setting, or a password" if pattern else ""
        raise ConfigError(f"{where}: 'parameters': {fault}") from None
    try:
        _check_plan(deployment, given)
    except ConfigError as error:
        raise ConfigError(f"{where}: 'parameters': {error}") from None
    if not schedule.settings:
        return dict(schedule.parameters)
    if not deployment.settings_of:
        raise ConfigError(f"{where}: 'set' changes a preset, and {schedule.deployment} has none")
    changes = [*overrides, *schedule.settings]
    try:
        experiment = load(deployment.settings_of, cluster=cluster, overrides=changes)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return {**schedule.parameters, "experiment": experiment.model_dump(mode="json")}


def _check_plan(deployment: Deployment, values: Mapping[str, Any]) -> None:
    """What the flows of `flows.forms` find when they begin: settings that cannot be used."""
    given: dict[str, Any] = {
        "seeds": values.get("seeds"),
        "cluster": values.get("cluster", "local"),
        "overrides": values.get("settings") or (),
    }
    match deployment.full_name:
        case "ablate/study":
            load_study(values.get("study", "demo"), **given)
        case "sweep/search":
            load_sweep(values.get("sweep", "demo"), **given)


def _job_variables(
    client: SyncPrefectClient, pool: str, image: str, cluster: str
) -> dict[str, Any]:
    from prefect.exceptions import ObjectNotFound

    if not re.fullmatch(r"[^/%&><]+", pool):
        raise ConfigError(f"--pool '{pool}': is no name of a work pool; `prefect work-pool ls`")
    try:
        kind = client.read_work_pool(pool).type
    except ObjectNotFound:
        raise ConfigError(
            f"--pool {pool}: there is no such work pool; `prefect work-pool create {pool} --type "
            "process` (or docker, kubernetes) makes it, `mempo serve` needs none"
        ) from None
    if kind == "process":
        if image:
            raise ConfigError(f"--image: work pool {pool} starts processes and uses no image")
        return {"working_dir": str(Path.cwd())}  # relative paths of settings begin there
    if not image:
        raise ConfigError(
            f"--image: work pool {pool} starts containers; name an image that has this package "
            "(infra/Dockerfile makes one)"
        )
    if cluster not in clusters():
        raise ConfigError(
            f"--cluster {cluster}: work pool {pool} starts containers, which do not have this "
            "file; put it under conf/cluster/, here and in the image, and give its name"
        )
    return {"image": image}


def _register(
    client: SyncPrefectClient, deployment: Deployment, pool: str, variables: dict[str, Any]
) -> Any:
    """Create or update it; returns its id. Schedules are left as they are."""
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.exceptions import ObjectNotFound

    values: dict[str, Any] = {
        "version": version("mempo"),
        "description": deployment.description,
        "parameters": dict(deployment.parameters),
        "parameter_openapi_schema": dict(deployment.schema),
        "enforce_parameter_schema": True,
        "entrypoint": deployment.entrypoint,
        "work_pool_name": pool,
        "job_variables": variables,
        "tags": [
            "mempo",
            *([f"preset:{deployment.settings_of}"] if deployment.settings_of else ()),
        ],
        "pull_steps": [],
    }
    try:
        found = client.read_deployment_by_name(deployment.full_name)
    except ObjectNotFound:
        flow_id = client.create_flow_from_name(deployment.flow)
        return client.create_deployment(flow_id, deployment.name, **values)
    client.update_deployment(found.id, DeploymentUpdate(**values))
    return found.id


def _reconcile(
    client: SyncPrefectClient,
    deployment_id: Any,
    name: str,
    wanted: Sequence[Schedule],
    planned: Mapping[str, tuple[Any, dict[str, Any]]],
) -> list[str]:
    """Make the server's schedules those of the files; ones without a slug were made by hand.

    `planned`: time and parameters of each schedule, by name.
    """
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    there = {s.slug: s for s in client.read_deployment_schedules(deployment_id) if s.slug}
    lines: list[str] = []
    for schedule in wanted:
        timing, parameters = planned[schedule.name]
        found = there.pop(schedule.name, None)
        if found is None:
            new = DeploymentScheduleCreate(
                schedule=timing,
                active=schedule.active,
                parameters=parameters,
                slug=schedule.name,
            )
            client.create_deployment_schedules(deployment_id, [new])
            state = "on" if schedule.active else "off; switch it on in Prefect's page"
            lines.append(f"schedule {schedule.name} of {name}: new, {state}")
            continue
        if _when(found.schedule) != _when(timing):
            client.update_deployment_schedule(deployment_id, found.id, schedule=timing)
            lines.append(f"schedule {schedule.name} of {name}: its time is that of the file now")
        if found.parameters != parameters:
            lines.append(
                f"schedule {schedule.name} of {name}: keeps the parameters that the server has; "
                "delete it there to take the file's"
            )
    for slug, gone in there.items():
        client.delete_deployment_schedule(deployment_id, gone.id)
        lines.append(f"schedule {slug} of {name}: removed, its file is gone")
    return lines


def _remove_lost(client: SyncPrefectClient, pool: str, kept: Collection[str]) -> list[str]:
    """Remove our deployments of presets that are gone; a line each.

    Ours are tagged with the preset that they are called after, which a copy made on Prefect's page
    is not. Those of other pools may be another installation's.
    """
    from prefect.client.schemas.filters import (
        DeploymentFilter,
        DeploymentFilterTags,
        WorkPoolFilter,
        WorkPoolFilterName,
    )

    found = client.read_deployments(
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
        deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=["mempo"])),
    )
    lines: list[str] = []
    for deployment in found:
        if f"preset:{deployment.name}" not in deployment.tags or deployment.name in kept:
            continue
        name = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
        if any(not schedule.slug for schedule in deployment.schedules):
            lines.append(
                f"deployment {name}: its preset is gone, but a schedule was made by hand; delete "
                "it on Prefect's page"
            )
            continue
        client.delete_deployment(deployment.id)
        lines.append(f"deployment {name}: removed, its preset is gone")
    return lines


def _timing(schedule: Schedule) -> Any:
    """Prefect's form of it. Raises ConfigError where Prefect does not take it."""
    from datetime import timedelta

    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule
    from pydantic import ValidationError as PydanticError

    zone = schedule.timezone
    try:
        match schedule.timing:
            case "cron":
                return CronSchedule(cron=str(schedule.when), timezone=zone)
            case "interval":
                every = timedelta(seconds=int(schedule.when))
                return IntervalSchedule(interval=every, timezone=zone)
            case _:
                return RRuleSchedule(rrule=str(schedule.when), timezone=zone)
    except ValueError as error:
        first = error.errors()[0]["msg"] if isinstance(error, PydanticError) else str(error)
        reason = " ".join(first.split())[:200]
        raise ConfigError(
            f"schedule {schedule.file}: '{schedule.timing}' = {schedule.when!r} cannot be "
            f"used ({reason}); correct it"
        ) from None


def _when(timing: Any) -> tuple[object, ...]:
    """What decides when it fires; the server adds an anchor date of its own to intervals."""
    names = ("cron", "interval", "rrule", "timezone")
    return tuple(getattr(timing, name, None) for name in names)
