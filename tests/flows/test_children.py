"""How children are scheduled; a real MLflow store, the runs themselves are stand-ins."""

import threading
from pathlib import Path

import pytest

from conf.load import load
from conf.study import Child, Study
from flows import children
from flows.children import run_children
from flows.recording import Record, RunResult
from mempo import own
from mempo.learners import checkpoint
from tasks import placement, store
from tasks.tracking import Tracker

pytestmark = pytest.mark.filterwarnings("default")  # MLflow's and SQLAlchemy's own


@pytest.fixture
def record(tmp_path_factory, request, monkeypatch) -> Record:
    home = tmp_path_factory.getbasetemp() / "children"  # one store: making its tables takes long
    monkeypatch.setenv("MEMPO_HOME", str(home))
    tracker = Tracker(experiment=request.node.name, home=str(home))
    return Record(tracker, tracker.start(name="a study", kind="ablate", params={}, tags={}))


def child(variant: str, *overrides: str, source: str = "", seed: int = 1) -> Child:
    experiment = load("test", overrides=["cluster.parallel=2", *overrides], seed=seed)
    return Child(variant, variant, seed, experiment, source=source)


def study(*kids: Child) -> Study:
    return Study("mine", "", kids)


WHOLE = {"threads": 1, "metrics": {}, "measured": {}}  # of a checkpoint that a run goes on from


class Trains:
    """Stands for the train flow: a run in MLflow and a checkpoint, or what `ends` raises."""

    def __init__(self, record: Record, ends: dict[str, BaseException] | None = None):
        self.record, self.ends = record, ends or {}
        self.began: list[tuple[str, str]] = []  # name, policy.model
        self.resumed: list[str] = []
        self.at_once, self.most, self.lock = 0, 0, threading.Lock()

    def __call__(self, experiment, *, name, parent, method, tags, resume):
        with self.lock:
            self.resumed += [resume] if resume else []
            self.began.append((name, experiment.policy.model))
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        kind, config = "train", {"mempo.seed": str(experiment.seed)}
        config["mempo.config_sha256"] = children.place(child("x"), experiment)[3]
        code = own.digests(experiment).items()
        config |= {f"mempo.own.{setting}": digest for setting, digest in code}
        run_id = resume or self.record.tracker.start(
            name=name, kind=kind, params={}, tags=tags | config, parent=parent
        )
        self.record.tracker.log_metrics(run_id, {"eval/n1/em": 0.5}, experiment.iterations)
        with self.lock:
            self.at_once -= 1
        if name in self.ends:
            self.record.tracker.finish(run_id, "FAILED")
            raise self.ends[name]
        folder = store.checkpoint_folder(run_id, experiment.iterations)
        folder.mkdir(parents=True)
        self.record.tracker.finish(run_id, "FINISHED")
        return RunResult(run_id, str(folder.parents[1]), str(folder), {"eval/n1/em": 0.5})


@pytest.fixture
def stand_in(record, monkeypatch):
    def stand_in(ends: dict[str, BaseException] | None = None) -> Trains:
        trains = Trains(record, ends)
        monkeypatch.setattr(children, "train", trains)
        return trains

    return stand_in


def test_a_child_starts_at_the_last_checkpoint_of_its_source(record, stand_in):
    trains = stand_in()
    kids = (child("a"), child("b"), child("c", source="a seed 1"), child("d", source="c seed 1"))
    done, failed = run_children(study(*kids), record)
    assert failed == {} and list(done) == ["a seed 1", "b seed 1", "c seed 1", "d seed 1"]
    begun = dict(trains.began)
    assert begun["a seed 1"] == begun["b seed 1"] == "tiny"
    assert begun["c seed 1"] == done["a seed 1"].checkpoint
    assert begun["d seed 1"] == done["c seed 1"].checkpoint
    assert trains.most <= 2
    points = record.tracker.metric_history(record.run_id, "study/runs_over")
    assert [(point.step, point.value) for point in points] == [(n, n) for n in (1, 2, 3, 4)]


def test_a_failed_child_stops_no_other_but_those_that_start_from_it(record, stand_in, capsys):
    trains = stand_in({"a seed 1": RuntimeError("out of\nmemory")})
    kids = (child("a"), child("b"), child("c", source="a seed 1"), child("d", source="c seed 1"))
    done, failed = run_children(study(*kids), record)
    assert list(done) == ["b seed 1"]
    assert failed["a seed 1"] == "RuntimeError: out of memory"
    assert failed["c seed 1"].startswith("it starts from a seed 1, which failed: RuntimeError")
    assert failed["d seed 1"].startswith("it starts from c seed 1, which failed")
    assert sorted(name for name, _ in trains.began) == ["a seed 1", "b seed 1"]
    assert "a seed 1: failed: RuntimeError: out of memory" in capsys.readouterr().err


def test_finished_children_are_taken_over_and_the_others_run_anew(record, stand_in, capsys):
    kids = (child("a"), child("b"), child("c", source="a seed 1"))
    stand_in({"b seed 1": RuntimeError("once")})
    first, _ = run_children(study(*kids), record)
    again = stand_in()
    done, failed = run_children(study(*kids), record)
    assert [name for name, _ in again.began] == ["b seed 1"] and failed == {}
    assert list(done) == ["a seed 1", "b seed 1", "c seed 1"]
    for name in ("a seed 1", "c seed 1"):
        assert done[name] == first[name]
    assert f"a seed 1: taken over from run {done['a seed 1'].run_id}" in capsys.readouterr().err
    assert len(record.tracker.children(record.run_id)) == 4
    last = stand_in()
    assert run_children(study(*kids), record)[0] == done
    assert last.began == []


def test_a_child_that_was_cut_off_after_a_checkpoint_goes_on(record, stand_in):
    kids = (child("a"), child("b"))
    stand_in({name: RuntimeError("power cut") for name in ("a seed 1", "b seed 1")})
    run_children(study(*kids), record)
    cut_off = {record.tracker.run_info(r).name: r for r in record.tracker.children(record.run_id)}
    checkpoint.write(store.checkpoint_folder(cut_off["a seed 1"], 1), lambda _: None, WHOLE)
    again = stand_in()
    done, _ = run_children(study(*kids), record)
    assert again.resumed == [cut_off["a seed 1"]] == [done["a seed 1"].run_id]
    assert done["b seed 1"].run_id not in cut_off.values()  # it had nothing to go on from


def test_a_child_with_another_configuration_is_not_taken_over(record, stand_in):
    stand_in()
    run_children(study(child("a"), child("b")), record)
    again = stand_in()
    run_children(study(child("a", "loss.clip=0.3"), child("b"), child("a", seed=2)), record)
    assert sorted(name for name, _ in again.began) == ["a seed 1", "a seed 2"]


def test_what_starts_from_a_lost_checkpoint_is_reported(record, stand_in):
    stand_in()
    done, _ = run_children(study(child("a")), record)
    Path(done["a seed 1"].checkpoint).rmdir()
    _, failed = run_children(study(child("a"), child("b", source="a seed 1")), record)
    assert "a seed 1, whose last checkpoint is not under" in failed["b seed 1"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(1)])
def test_a_stop_ends_those_that_run_and_starts_no_other(record, monkeypatch, stop):
    meanwhile = threading.Event()
    began = []

    def train(experiment, *, name, **_):
        began.append(name)
        if name == "a seed 1":
            meanwhile.wait(10)
            raise stop
        meanwhile.set()
        while True:  # as a flow that goes from stage to stage
            placement.check_stop()

    monkeypatch.setattr(children, "train", train)
    with pytest.raises(type(stop)):
        run_children(study(child("a"), child("b"), child("c")), record)
    assert sorted(began) == ["a seed 1", "b seed 1"]
    placement.check_stop()  # and what comes later is not stopped


def test_a_child_that_other_code_made_is_not_taken_over(record, stand_in, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "children_reward.py"
    file.write_text("def paid(trajectory):\n    return 0.0\n")
    kids = (child("a", "reward.function=children_reward:paid"), child("b"))
    stand_in()
    run_children(study(*kids), record)
    again = stand_in()
    run_children(study(*kids), record)
    assert again.began == []
    file.write_text("def paid(trajectory):\n    return 1.0\n")
    run_children(study(*kids), record)
    assert [name for name, _ in again.began] == ["a seed 1"]


def test_the_work_of_a_run_counts_every_pass_of_its_evaluations():
    # 4 iterations of 2 x 3 trajectories, three times each; before and after, 1 x 5 questions.
    sizes = ["iterations=4", "rollout.questions=2", "rollout.group_size=3"]
    sizes += ["evaluate.objectives=[1]", "evaluate.questions=5"]

    def work(*overrides: str) -> float:
        return children._work(load("test", overrides=[*sizes, *overrides]))

    assert work("evaluate.sampled=false", "evaluate.passes=4") == 72 + 10
    assert work() == 72 + 10 * 2
    assert work("evaluate.passes=4") == 72 + 10 * 5
