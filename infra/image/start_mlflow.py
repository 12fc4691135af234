#!/usr/local/bin/python
"""Start MLflow's server with accounts: the bucket is there, and passwords stand in no argument.

Reads from the environment:
    MLFLOW_DATABASE_URL           postgresql+psycopg2://user:password@host/db, for runs and accounts
    MLFLOW_BUCKET                 where artifacts go; made if it is missing
    MLFLOW_S3_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY   the S3-compatible store
    MLFLOW_AUTH_ADMIN_USERNAME, MLFLOW_AUTH_ADMIN_PASSWORD             the first account
    MLFLOW_FLASK_SERVER_SECRET_KEY                                     signs forms
    MLFLOW_ALLOWED_HOSTS          names under which the server may be called, with ports

MLflow reads the address of its accounts' database from a file alone, so one is written to memory
(/run/mlflow, a tmpfs) and to nowhere else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NEEDED = (
    "MLFLOW_DATABASE_URL",
    "MLFLOW_BUCKET",
    "MLFLOW_S3_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "MLFLOW_AUTH_ADMIN_USERNAME",
    "MLFLOW_AUTH_ADMIN_PASSWORD",
    "MLFLOW_FLASK_SERVER_SECRET_KEY",
    "MLFLOW_ALLOWED_HOSTS",
)


def missing(env: Mapping[str, str]) -> list[str]:
    """Names of settings that are unset or empty: with one empty, a door would stand open."""
    return [name for name in NEEDED if not env.get(name)]


def accounts_file(database_url: str) -> str:
    """Text of MLflow's file about accounts: who is let in, and where they are kept."""
    escaped = database_url.replace("%", "%%")  # configparser interpolates
    return (
        "[mlflow]\n"
        "default_permission = READ\n"
        f"database_uri = {escaped}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )


def make_bucket(s3: Any, name: str) -> bool:
    """Make the bucket unless it is there; whether it was made."""
    if name in {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}:
        return False
    s3.create_bucket(Bucket=name)
    return True


def command(env: Mapping[str, str]) -> list[str]:
    """MLflow's command line: what is secret comes to it in the environment."""
    return [
        "mlflow",
        "server",
        "--host=0.0.0.0",
        "--port=5000",
        f"--workers={env.get('MLFLOW_WORKERS', '2')}",
        "--app-name=basic-auth",
        f"--allowed-hosts={env['MLFLOW_ALLOWED_HOSTS']}",
        f"--artifacts-destination=s3://{env['MLFLOW_BUCKET']}",
    ]


def main() -> int:
    if unset := missing(os.environ):
        print(f"start-mlflow: set {', '.join(unset)}", file=sys.stderr)
        return 2
    import boto3

    path = Path(os.environ.get("MLFLOW_AUTH_CONFIG_PATH", "/run/mlflow/accounts.ini"))
    path.touch(mode=0o600)
    path.write_text(accounts_file(os.environ["MLFLOW_DATABASE_URL"]), encoding="utf-8")
    s3 = boto3.client(
        "s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"], region_name="us-east-1"
    )
    make_bucket(s3, os.environ["MLFLOW_BUCKET"])
    env = {
        **os.environ,
        "MLFLOW_AUTH_CONFIG_PATH": str(path),
        "MLFLOW_BACKEND_STORE_URI": os.environ["MLFLOW_DATABASE_URL"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    line = command(env)
    os.execvpe(line[0], line, env)


if __name__ == "__main__":
    sys.exit(main())
