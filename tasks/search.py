"""The search of a sweep: an Optuna study by ask and tell, kept in a database.

Every draw of trial n depends on (seed, n) and on the trials before it alone, so a search that was
cut off and goes on asks for the same points as one that was not (with one trial at a time).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from mempo.config.space import Dimension
from mempo.draws import generator
from tasks import databases

State = Literal["complete", "pruned", "failed"]

_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
REASON = "reason"  # user attribute of a trial: why it failed or was pruned

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Asked:
    """A trial that is to be measured."""

    number: int  # from 0
    point: dict[str, object]


class Search:
    """The trials of one sweep.

    `name` is the study's in the database; `grid` are the points of a grid, empty for the other
    methods. TPE begins with `trials` / 3 random points (at most 10), and the pruner with as many
    trials (at most 5) that it leaves alone: Optuna's own 10 and 5 would leave nothing of a sweep of
    a dozen trials. The pruner is the median rule: unlike successive halving it needs no budget to
    be chosen, and no more trials than people here can afford.

    Raises:
        ValueError: MEMPO_DATABASE_URL is wrong.
    """

    def __init__(
        self,
        name: str,
        space: Sequence[Dimension],
        *,
        method: Literal["grid", "random", "tpe"],
        seed: int,
        trials: int,
        parallel: int = 1,
        grid: Sequence[Mapping[str, object]] = (),
    ):
        self._space = {dimension.setting: dimension for dimension in space}
        self._method, self._seed, self._trials, self._parallel = method, seed, trials, parallel
        early = max(1, trials // 3)
        self._startup = min(10, early)
        self._study = _study(name, optuna.pruners.MedianPruner(n_startup_trials=min(5, early)))
        self._live: dict[int, optuna.Trial] = {}
        for point in grid[len(self._study.trials) :]:
            encoded = {name: self._encoded(name, value) for name, value in point.items()}
            self._study.enqueue_trial(encoded)

    def __len__(self) -> int:
        """Trials that have begun, over or not."""
        return sum(trial.state != TrialState.WAITING for trial in self._study.trials)

    def unfinished(self) -> list[Asked]:
        """Trials that had begun and are not over: those that go on, in order."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [
            self._complete(optuna.Trial(self._study, trial._trial_id), trial.number)
            for trial in sorted(running, key=lambda trial: trial.number)
        ]

    def ask(self) -> Asked | None:
        """The next trial, None after the last one."""
        if len(self) >= self._trials:
            return None
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        first = min((trial.number for trial in waiting), default=len(self._study.trials))
        self._study.sampler = self._sampler(first, "")
        trial = self._study.ask()
        return self._complete(trial, trial.number)

    def should_stop(self, number: int, step: int, value: float) -> bool:
        """Note what a trial measured at a step; whether the pruner would stop it there.

        Safe from several threads. A step that was noted before, by a run that was cut off after
        it, is judged again.
        """
        trial = self._live[number]
        if step not in trial.storage.get_trial(trial._trial_id).intermediate_values:
            trial.report(value, step)
        return trial.should_prune()

    def tell(self, number: int, state: State, value: float = nan, reason: str = "") -> None:
        """End a trial; `value` is that of a complete one, and finite."""
        if reason:
            self._live[number].set_user_attr(REASON, reason)
        told = value if state == "complete" else None
        self._study.tell(number, told, state=_STATES[state])

    def over(self) -> dict[int, State]:
        """How each trial ended that did, by number."""
        names: dict[TrialState, State] = {of: name for name, of in _STATES.items()}  # pyright: ignore[reportAssignmentType]
        return {t.number: names[t.state] for t in self._study.trials if t.state in names}

    def _complete(self, trial: optuna.Trial, number: int) -> Asked:
        """Draw what the trial has no value of yet; each draw by itself, or a kill between two
        would change the second."""
        self._live[number] = trial
        self._study.sampler = self._sampler(number, "")
        _ = trial.relative_params  # of all settings together, with this very sampler
        point: dict[str, object] = {}
        for name, dimension in self._space.items():
            self._study.sampler = self._sampler(number, name)
            point[name] = self._decoded(name, _suggested(trial, dimension))
        return Asked(number, point)

    def _sampler(self, number: int, setting: str) -> optuna.samplers.BaseSampler:
        seed = int(generator("sweep", self._seed, number, setting).integers(2**31))
        if self._method != "tpe":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(
            n_startup_trials=self._startup,
            multivariate=True,
            constant_liar=self._parallel > 1,  # else two at once would ask for the same point
            seed=seed,
        )

    def _encoded(self, name: str, value: object) -> object:
        return json.dumps(value) if self._space[name].choices else value

    def _decoded(self, name: str, value: object) -> object:
        return json.loads(str(value)) if self._space[name].choices else value


def importance(
    space: Sequence[Dimension], points: Sequence[Mapping[str, object]], values: Sequence[float]
) -> dict[str, float]:
    """How much of what parts good trials from the others each setting explains; they sum to 1.

    PED-ANOVA (Watanabe et al. 2023): it compares the settings' distribution among the best trials
    with that among all. Empty below 4 trials, and where all values are equal. Largest first.
    """
    if len(points) < 4 or len(set(values)) < 2:
        return {}
    study = optuna.create_study(direction="maximize")
    distributions = {dimension.setting: _distribution(dimension) for dimension in space}
    for point, value in zip(points, values, strict=True):
        params = {
            d.setting: json.dumps(v) if d.choices else v for d in space for v in (point[d.setting],)
        }
        study.add_trial(
            optuna.create_trial(params=params, distributions=distributions, value=value)
        )
    return optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
    )


def _study(name: str, pruner: optuna.pruners.BasePruner) -> optuna.Study:
    """The study of that name, made where it is missing, and its tables as well."""
    url = databases.optuna_uri()
    local = url.startswith("sqlite:")
    engine = {"connect_args": {"timeout": 60}} if local else {}
    # The first one to touch a fresh database makes its tables, and they only once.
    with databases.creating(url):
        storage = optuna.storages.RDBStorage(url, engine_kwargs=engine)
        return optuna.create_study(
            study_name=name,
            storage=storage,
            direction="maximize",
            pruner=pruner,
            load_if_exists=True,
        )


def _distribution(dimension: Dimension) -> BaseDistribution:
    d = dimension
    if d.choices:
        return CategoricalDistribution([json.dumps(choice) for choice in d.choices])
    if d.whole:
        return IntDistribution(int(d.low), int(d.high), log=d.log, step=int(d.step) or 1)
    return FloatDistribution(d.low, d.high, log=d.log, step=d.step or None)


def _suggested(trial: optuna.Trial, dimension: Dimension) -> object:
    match _distribution(dimension):
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(dimension.setting, choices)
        case IntDistribution(low=low, high=high, log=log, step=step):
            return trial.suggest_int(dimension.setting, low, high, log=log, step=step)
        case FloatDistribution(low=low, high=high, log=log, step=step):
            return trial.suggest_float(dimension.setting, low, high, log=log, step=step)
        case other:
            raise AssertionError(other)
