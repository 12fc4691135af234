"""`mempo up`, `down`, `serve` and `deploy`: Prefect's and MLflow's pages, and what they start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conf.load import cluster_from_anywhere
from conf.schedule import FOLDER
from flows.options import ClusterFile, Overrides
from flows.shell import command, complain

Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, help="Runs that go on at the same time.")
]
Schedules = Annotated[
    Path,
    typer.Option("--schedules", metavar="FOLDER", help="Schedule files; default: conf/schedule."),
]


def up(
    prefect_port: Annotated[int, typer.Option(metavar="N", help="Port of Prefect.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(metavar="N", help="Port of MLflow.")] = 5000,
    ray_port: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Port of the Ray head; the next one is its clients'.",
        ),
    ] = 26379,
    limit: Limit = 4,
    schedules: Schedules = FOLDER,
) -> None:
    """Start Prefect, MLflow, a Ray head and a worker on this machine.

    No containers; they listen on 127.0.0.1 only and go on in the background until `mempo down`.
    Databases are SQLite files under MEMPO_HOME, or the Postgres of MEMPO_DATABASE_URL
    (postgresql://user:password@host/name). While they run, commands of the same MEMPO_HOME use
    this Prefect.

    \b
      mempo up                                then open http://127.0.0.1:4200/deployments
      mempo train --cluster services          a run on the Ray head that all share
      mempo down
    """
    with command():
        from flows import up as services
        from tasks import supervisor

        for name, address in services.up(
            prefect_port, mlflow_port, ray_port, limit, schedules
        ).items():
            print(f"{name}: {address}", flush=True)
        print(f"Runs compared: {services.compared()}")
        print(f"Logs: {supervisor.folder() / 'logs'}\n`mempo down` stops all of it.", flush=True)


def down() -> None:
    """Stop what `mempo up` started.

    Runs that go on are stopped first and closed as KILLED; `mempo train --resume RUN` goes on with
    them.

    \b
      mempo down
    """
    with command():
        from flows import up as services

        print("stopped" if services.down() else "nothing of this MEMPO_HOME was running")


def serve(
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    limit: Limit = 4,
    schedules: Schedules = FOLDER,
) -> None:
    """Offer the flows on Prefect's page, and run here what is started there, until Ctrl-C.

    `mempo up` does this, too. Needs a Prefect server (PREFECT_API_URL, or a running `mempo up`).
    Every preset is a deployment of train, sft and evaluate, whose form shows its settings.

    \b
      mempo serve                             runs on a Ray of their own each
      mempo serve --cluster ray --set cluster.address=head:6379
    """
    with command():
        place = cluster_from_anywhere(cluster)
        from flows.serving import serve as run

        run(place, overrides or (), limit, schedules)


def deploy(
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="Work pool that runs them.")],
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    image: Annotated[
        str, typer.Option("--image", metavar="IMAGE", help="Image of a docker or kubernetes pool.")
    ] = "",
    schedules: Schedules = FOLDER,
) -> None:
    """Register the deployments for a work pool of yours: process, docker or kubernetes.

    Doing it again updates them. Schedules keep the switch and the parameters that the server has;
    one whose file under conf/schedule/ is gone is removed, as is a deployment without its preset.

    \b
      prefect work-pool create gpu --type kubernetes
      mempo deploy --pool gpu --cluster kuberay --image registry/mempo:0.1
    """
    with command():
        place = cluster_from_anywhere(cluster)
        from flows.deploy import deploy as register
        from tasks.prefect_server import check_prefect, configured_prefect_url

        url = configured_prefect_url()
        if not url:
            complain("PREFECT_API_URL: not set; `mempo up` starts a server, or set it to yours")
            raise typer.Exit(2)
        check_prefect(url)
        made = register(
            pool, cluster=place, overrides=overrides or (), image=image, schedules=schedules
        )
        print("\n".join(made))
