#!/bin/sh
# Run once by the image of Postgres, on an empty volume: a database and its owner for each service.
# Prefect and MLflow both have a table alembic_version, and no service needs another's tables.
set -eu

make_database() { # name, password
    psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
        --set name="$1" --set password="$2" <<'SQL'
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE CONNECT ON DATABASE :"name" FROM PUBLIC;
SQL
}

make_database prefect "${PREFECT_DB_PASSWORD:?}"
make_database mlflow "${MLFLOW_DB_PASSWORD:?}"
make_database mempo "${MEMPO_DB_PASSWORD:?}"
