"""The search by itself: real Optuna, on a database in a folder of the test."""

from __future__ import annotations

from math import inf, log

import optuna
import pytest

from mempo.config.space import Dimension
from tasks.search import Search, importance

SPACE = (
    Dimension("lr", low=1e-4, high=1e-1, log=True),
    Dimension("epochs", low=1, high=8, whole=True),
    Dimension("kind", choices=("a", "b", [1, 2], None, True)),
)


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "search"  # one database: making tables takes long
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("MEMPO_HOME", str(folder))
    monkeypatch.delenv("MEMPO_DATABASE_URL", raising=False)


@pytest.fixture
def search(request):
    def search(name: str = "", method="tpe", trials: int = 12, **more) -> Search:
        arguments = {"method": method, "seed": 3, "trials": trials, **more}
        return Search(f"{request.node.name} {name}", SPACE, **arguments)

    return search


def value(point) -> float:
    """Best at lr = 0.01."""
    return -abs(log(point["lr"] / 1e-2)) + 0.01 * point["epochs"]


def finish(search: Search) -> list:
    """Run to the end; (number, point) in order. Trial 2 fails."""
    asked = []
    going_on = search.unfinished()
    while trial := (going_on.pop(0) if going_on else search.ask()):
        asked.append((trial.number, trial.point))
        if trial.number == 2:
            search.tell(2, "failed", reason="it broke")
        else:
            search.tell(trial.number, "complete", value(trial.point))
    return asked


@pytest.mark.parametrize("method", ["tpe", "random"])
def test_a_search_that_is_cut_off_again_and_again_asks_for_the_same_points(search, method):
    whole = finish(search("whole", method))
    assert [number for number, _ in whole] == list(range(12))
    broken, begun = [], 0
    while not broken or broken[-1][0] < 11:
        one = search("broken", method)  # as a new process would have it
        trial = (one.unfinished() or [one.ask()])[0]
        begun += 1
        if begun % 3 == 1:
            continue  # killed while the trial was measured
        broken.append((trial.number, trial.point))
        state = "failed" if trial.number == 2 else "complete"
        one.tell(trial.number, state, value(trial.point), "it broke" if state == "failed" else "")
    assert broken == whole
    assert search("broken", method).ask() is None
    assert search("broken", method).over() == dict.fromkeys(range(12), "complete") | {2: "failed"}


@pytest.mark.parametrize("method", ["tpe", "random"])
def test_a_kill_in_the_middle_of_a_draw_changes_no_point(search, method, monkeypatch):
    whole = finish(search("whole", method))
    write, left = optuna.storages._CachedStorage.set_trial_param, [0]

    def dies(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(optuna.storages._CachedStorage, "set_trial_param", dies)
    for number in range(12):
        left[0] = number % 3  # after none, one or two of the three settings
        with pytest.raises(KeyboardInterrupt):
            search("broken", method).ask()
        left[0] = 100
        again = search("broken", method)
        (trial,) = again.unfinished()
        assert (trial.number, trial.point) == whole[number]
        state = "failed" if number == 2 else "complete"
        again.tell(number, state, value(trial.point), "it broke")


def test_a_grid_is_asked_for_in_order_once_even_if_it_was_cut_off_while_it_was_made(search):
    grid = [{"lr": lr, "epochs": 2, "kind": kind} for lr in (1e-3, 1e-2) for kind in ("a", [1, 2])]
    enqueue = optuna.Study.enqueue_trial

    def dies(study, point):
        if len(study.trials) == 3:
            raise KeyboardInterrupt
        enqueue(study, point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optuna.Study, "enqueue_trial", dies)
        with pytest.raises(KeyboardInterrupt):
            search(method="grid", trials=4, grid=grid)
    found = finish(search(method="grid", trials=4, grid=grid))
    assert found == list(enumerate(grid))
    assert finish(search(method="grid", trials=4, grid=grid)) == []


def test_choices_come_back_as_what_they_are_and_numbers_stay_in_their_range(search):
    points = [point for _, point in finish(search(method="random", trials=30))]
    assert {str(point["kind"]) for point in points} == {"a", "b", "[1, 2]", "None", "True"}
    assert all(type(p["epochs"]) is int and 1 <= p["epochs"] <= 8 for p in points)
    assert all(1e-4 <= p["lr"] <= 1e-1 for p in points)


def test_another_seed_asks_for_other_points(search):
    one, other = search("one").ask(), search("other", seed=4).ask()
    assert one.point != other.point


def test_two_trials_at_once_are_two_points(search):
    one = search(parallel=2)
    for _ in range(8):
        trial = one.ask()
        one.tell(trial.number, "complete", value(trial.point))
    assert one.ask().point != one.ask().point


def test_a_failed_trial_has_no_value_and_its_reason_stays(search):
    one = search()
    trial = one.ask()
    one.tell(trial.number, "failed", inf, "f1 is inf")
    study = one._study
    assert study.trials[0].value is None
    assert study.trials[0].user_attrs == {"reason": "f1 is inf"}


def test_a_trial_below_the_median_of_the_others_is_stopped(search):
    one = search(trials=9)  # the first three are left alone
    for number, curve in enumerate(([0.2, 0.3], [0.4, 0.5], [0.5, 0.6])):
        assert one.ask().number == number
        assert [one.should_stop(number, step, v) for step, v in enumerate(curve)] == [False] * 2
        one.tell(number, "complete", curve[-1])
    good, poor = one.ask(), one.ask()
    assert not one.should_stop(good.number, 1, 0.55)
    assert one.should_stop(poor.number, 0, 0.39)
    again = search(trials=9)  # cut off before that was told
    assert [trial.number for trial in again.unfinished()] == [3, 4]
    assert again.should_stop(poor.number, 0, 0.39)
    again.tell(poor.number, "pruned", reason="poor")
    assert again.over()[4] == "pruned"


def test_importance_finds_the_setting_that_decides(search):
    points = [point for _, point in finish(search(method="random", trials=40))]
    found = importance(SPACE, points, [value(point) for point in points])
    assert next(iter(found)) == "lr" and found["lr"] > 0.6
    assert sum(found.values()) == pytest.approx(1.0)
    assert importance(SPACE, points[:3], [0.1, 0.2, 0.3]) == {}
    assert importance(SPACE, points, [0.5] * 40) == {}
