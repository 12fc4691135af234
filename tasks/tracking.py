"""The MLflow edge: runs, metrics, artifacts, checkpoints and traces, each by explicit run id.

Nothing here knows an "active run", so any process that holds a `Tracker` writes into the run it
names. What is written goes to the run's journal first (journal.py) and from there to MLflow
(delivery.py): an outage of the server, or a kill, delays it and neither loses nor doubles it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mempo.config import Price
from mempo.types import Trajectory
from tasks import connection, databases, delivery, journal, owners, records, store, traces, views
from tasks.connection import OUTAGE
from tasks.owners import STALE_S
from tasks.records import RunInfo, RunStatus

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric

Kind = Literal["train", "sft", "evaluate", "ablate", "sweep", "trial"]

log = logging.getLogger(__name__)
_down: set[str] = set()  # addresses whose outage this process has reported


@dataclass(frozen=True)
class Tracker:
    """Where runs are recorded. Holds only text, so it can be sent to any process.

    `uri` is the address of an MLflow server or database, empty for the default (databases.py);
    `home` is where journals are kept, empty for MEMPO_HOME. Both are resolved at once, so a copy
    in another process or working folder means the same places.
    """

    uri: str = field(default="", repr=False)  # of a database it may hold a password
    experiment: str = "mempo"
    home: str = ""

    def __post_init__(self) -> None:
        home = Path(self.home).absolute() if self.home else store.home()
        object.__setattr__(self, "home", str(home))
        object.__setattr__(self, "uri", self.uri or databases.mlflow_uri(home))

    def start(
        self,
        *,
        name: str,
        kind: Kind,
        params: Mapping[str, object],
        tags: Mapping[str, str],
        parent: str | None = None,
        datasets: Sequence[DatasetInput] = (),
    ) -> str:
        """Open a run that this process owns, and return its id.

        `params` is the flattened configuration, `datasets` what the run reads. `tags` are the
        caller's (`mempo.algorithm`, `mempo.seed`, ...); those that say where the run lives and on
        what code are added. Call it in the process whose end is the run's end.

        Raises:
            ValueError: MEMPO_HOME cannot be written, or the tracking server cannot be used.
        """
        store.check_writable(Path(self.home))
        all_tags = {
            "mempo.kind": kind,
            "mempo.git_commit": records.git_commit(),
            **owners.owner_tags(),
            **({"mlflow.parentRunId": parent} if parent else {}),
            **tags,
        }
        client, experiment_id = self.connect()
        try:
            views.share(client, experiment_id)
            run_id = client.create_run(experiment_id, tags=all_tags, run_name=name).info.run_id
            records.log_params(client, run_id, params)
            if datasets:
                client.log_inputs(run_id, list(datasets))
        except OUTAGE as error:
            raise connection.unusable(self.uri, error) from error
        return run_id

    def resume(self, run_id: str) -> None:
        """Make this process the owner of a run that goes on: RUNNING again, same id.

        Raises:
            ValueError: the tracking server cannot be used, or does not know the run, or the run
                still goes on in a process that lives, or may live.
        """
        client, _ = self.connect()
        folder = self._folder(run_id)
        try:
            client.get_run(run_id)
            with store.locked(folder / "resume.lock"):  # the second of two finds it RUNNING
                self.check_idle(self.run_info(run_id))
                self.flush(run_id)
                client.update_run(run_id, status="RUNNING")
                self.set_tags(run_id, owners.owner_tags())
        except OUTAGE as error:
            raise ValueError(
                f"cannot resume the run {run_id} at {databases.redacted(self.uri)} "
                f"({connection.first_line(error)}); check the id and tracking.uri"
            ) from error

    def check_idle(self, run: RunInfo, stale_s: float = STALE_S) -> None:
        """Raise a ValueError if the run goes on in a process that lives, or may live."""
        owners.check_idle(run, Path(self.home), stale_s)

    def finish(self, run_id: str, status: RunStatus, reason: str = "") -> None:
        """Close a run, with everything that was still waiting to be sent."""
        if reason:
            self.set_tags(run_id, {"mempo.reason": reason})
        self._record(run_id, {"kind": "finish", "status": status})

    def reap(self, stale_s: float = STALE_S) -> list[str]:
        """Close, as KILLED, the RUNNING runs of the experiment whose process is gone.

        Gone means: this machine knows that the very process that owned it has ended (its id may
        belong to another one by now), or, where that cannot be seen from here, no sign of life
        for `stale_s` seconds. Runs without an owner's tags are not ours and stay. An outage of
        the server leaves all as they are. Returns the ids of the closed runs.
        """
        return owners.reap(self, stale_s)

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set or overwrite tags of a run."""
        self._record(run_id, {"kind": "tags", "tags": dict(tags)})

    def log_metrics(self, run_id: str, metrics: Mapping[str, float], step: int) -> None:
        """Log an iteration's metrics; one batch, whatever their number.

        The first finite value of a (metric, step) is the point that MLflow shows, see
        journal.first_points. NaN and infinite values stay in the journal: MLflow's filters
        would take NaN for a small number.

        Raises:
            ValueError: a name that MLflow would refuse.
        """
        delivery.check_names(metrics)
        self._record(run_id, {"kind": "metrics", "step": step, "metrics": dict(metrics)})

    def log_artifact(self, run_id: str, path: Path, folder: str = "") -> None:
        """Copy a local file, as it is now or after an outage then, to the run's artifacts.

        Raises:
            ValueError: there is no such file.
        """
        if not path.exists():
            raise ValueError(f"cannot log {path} as an artifact: there is no such file")
        self._record(run_id, {"kind": "artifact", "path": str(path.absolute()), "folder": folder})

    def log_text(self, run_id: str, text: str, file: str) -> None:
        """Write `text` as the artifact `file` of the run."""
        self._record(run_id, {"kind": "text", "text": text, "file": file})

    def log_checkpoint(
        self, run_id: str, folder: Path, *, step: int, metrics: Mapping[str, float]
    ) -> str | None:
        """Record a checkpoint as a logged model of the run; its bytes stay where they are.

        The model's params are uri, bytes, sha256 and step. `metrics` at this step are points of
        the run and of the model; those that the run has already are not logged twice. Returns
        the model's id, None where the server could not be asked yet.
        """
        delivery.check_names(metrics)
        size, sha256 = store.folder_digest(folder)
        params = {
            "uri": folder.absolute().as_uri(),
            "bytes": str(size),
            "sha256": sha256,
            "step": str(step),
        }
        entry = {
            "kind": "checkpoint",
            "name": f"checkpoint-{step:06d}",
            "step": step,
            "params": params,
            "metrics": dict(metrics),
        }
        if not self._record(run_id, entry):
            return None
        client, experiment_id = self.connect()
        found = delivery.checkpoints(client, experiment_id, run_id, step)
        return next(model.model_id for model in found if model.params == params)

    def drop_checkpoint(self, run_id: str, step: int) -> None:
        """Mark the checkpoint at `step` as deleted (tag mempo.deleted); its record stays."""
        self._record(run_id, {"kind": "drop", "step": step})

    def mark_best(self, run_id: str, step: int) -> None:
        """Mark the checkpoint at `step` as the run's best (tag mempo.best), and no other."""
        self._record(run_id, {"kind": "best", "step": step})

    def log_traces(
        self,
        run_id: str,
        trajectories: Sequence[Trajectory],
        *,
        decode: traces.Decode,
        price: Price | None = None,
    ) -> list[str]:
        """Write trajectories as traces of the run, see traces.py; returns their ids.

        Traces are for looking at, the rollout file has it all: in an outage they are left out.
        """
        try:
            client, experiment_id = self.connect()
            client.get_run(run_id)
        except (*OUTAGE, ValueError) as error:
            self.report(error)
            return []
        return traces.log_traces(
            client, experiment_id, run_id, trajectories, decode=decode, price=price
        )

    def flush(self, run_id: str) -> bool:
        """Send what an outage or a kill left unsent; True when MLflow has everything."""
        folder = self._folder(run_id)
        if journal.settled(folder):
            return True
        with store.locked(folder / "journal.lock"):
            return self._deliver(run_id, folder, check=True)

    def metric_history(self, run_id: str, key: str) -> list[Metric]:
        """The points of a metric in order of their steps."""
        return records.history(self.connect()[0], run_id, key)

    def curves(
        self, run_ids: Sequence[str], metrics: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Points of the runs' metrics as a table: run_id, iteration, metric, value."""
        return records.curves(self.connect()[0], run_ids, metrics)

    def run_info(self, run_id: str) -> RunInfo:
        """A run's name, status, params, tags and latest metrics."""
        return records.describe(self.connect()[0].get_run(run_id))

    def find(self, tags: Mapping[str, str] | None = None, status: str = "") -> list[RunInfo]:
        """The experiment's runs that have all these tags and the status, newest first."""
        return records.find(*self.connect(), tags or {}, status)

    def children(self, run_id: str) -> list[str]:
        """The ids of a run's child runs, in the order they started."""
        return [run.run_id for run in reversed(self.find({"mlflow.parentRunId": run_id}))]

    def connect(self) -> tuple[MlflowClient, str]:
        """The client and the id of the experiment, which is made where it is missing.

        Raises:
            ValueError: the server does not answer, or the experiment cannot be used.
        """
        try:
            return connection.connect(self.uri, self.experiment, self.home)
        except OUTAGE as error:
            raise connection.unusable(self.uri, error) from error

    def report(self, error: Exception) -> None:
        """Warn of an outage, once until it is over."""
        if self.uri not in _down:
            _down.add(self.uri)
            where, why = databases.redacted(self.uri), connection.first_line(error)
            kept = f"journals under {self.home} keep what is logged until it is back"
            log.warning("%s does not answer (%s); runs go on, %s", where, why, kept)

    def _folder(self, run_id: str) -> Path:
        return store.run_folder(run_id, Path(self.home))

    def _record(self, run_id: str, entry: dict[str, Any]) -> bool:
        folder = self._folder(run_id)
        with store.locked(folder / "journal.lock"):
            check = not journal.settled(folder)
            journal.append(folder, {**entry, "time": time.time_ns() // 1_000_000})
            return self._deliver(run_id, folder, check=check)

    def _deliver(self, run_id: str, folder: Path, *, check: bool) -> bool:
        try:
            client, experiment_id = connection.connect(self.uri, self.experiment, self.home)
            delivery.deliver(client, experiment_id, run_id, folder, check=check)
        except OUTAGE as error:
            if delivery.rejected(error):
                raise
            self.report(error)
            return False
        if self.uri in _down:
            _down.discard(self.uri)
            where = databases.redacted(self.uri)
            log.warning("%s answers again and has everything of run %s", where, run_id)
        return True
