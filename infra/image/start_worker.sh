#!/bin/sh
# The Prefect worker: joins Ray as a node without resources, since a driver must be on a node of the
# cluster; registers the deployments; takes flow runs from the pool. Reads MEMPO_RAY_ADDRESS,
# MEMPO_POOL, MEMPO_CLUSTER.
set -eu
: "${MEMPO_RAY_ADDRESS:?}" "${MEMPO_POOL:?}" "${MEMPO_CLUSTER:?}"

ray start --address="$MEMPO_RAY_ADDRESS" --num-cpus=0 --num-gpus=0 --disable-usage-stats

prefect --no-prompt work-pool inspect "$MEMPO_POOL" >/dev/null 2>&1 ||
    prefect --no-prompt work-pool create --type process "$MEMPO_POOL"
mempo deploy --pool "$MEMPO_POOL" --cluster "$MEMPO_CLUSTER"
exec prefect --no-prompt worker start --type process --pool "$MEMPO_POOL" --with-healthcheck
