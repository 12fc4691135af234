"""The home of the policy that acts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mempo.config import Experiment
from tasks.actors import Metrics, computing, node, set_up


class Sampler:
    """The policy that acts: engine, environment and agent loop."""

    def __init__(self, experiment: Experiment, threads: int):
        set_up(experiment, threads)
        from mempo.environments import make_world
        from mempo.policies.loading import load_codec
        from mempo.samplers.making import make_sampler

        self.experiment = experiment
        self.codec = load_codec(experiment.policy, experiment.environment)
        tokens = experiment.environment.passage_tokens
        self.world = make_world(
            experiment.environment, lambda text: self.codec.shorten(text, tokens)
        )
        with TemporaryDirectory(prefix="mempo-sampler-") as scratch:  # a kill later leaves nothing
            self.engine = make_sampler(experiment, self.codec, Path(scratch))
        self.version = 0

    def load(self, weights: Path, version: int, proof: Any) -> None:
        """Take new weights; WeightsError where they are not the learner's, or not in use."""
        from mempo.policies.weights import check_arrival

        digest = self.engine.load(weights)
        found = self.engine.logprobs(proof.probe.ids)
        exact = self.experiment.policy.dtype == "float32"
        check_arrival(version, digest, found, proof, self.experiment.audit, exact=exact)
        self.version = version

    @computing
    def rollout(self, path: Path, iteration: int, part: int = 0, parts: int = 1) -> Metrics:
        """Sample an iteration's trajectories into the rollout file `path`.

        Of `parts` samplers this one is number `part` and has every parts-th question. What
        `rollout.resample` threw away goes into the file `thrown(path)` beside it. Metrics are those
        of `sampled_metrics`.
        """
        from mempo.credit.resample import has_pair, has_signal, resample
        from mempo.policies.distribution import Sampling
        from mempo.records import write_rollouts

        e = self.experiment
        cycle = e.environment.objectives
        objectives = cycle[iteration % len(cycle)]

        def ask(*key: int | str) -> list:
            key = (e.seed, iteration, *key)
            count = e.rollout.questions
            every = self.world.questions("train", count, objectives=objectives, key=key)
            return list(every[part::parts])  # the same, however many share them

        def run(questions: Any) -> list:
            sampling = Sampling(e.rollout.temperature, e.rollout.top_p, e.rollout.top_k)
            key = (e.seed, "rollout", iteration)
            return self._run(questions, e.rollout.group_size, sampling, key)

        def replace(number: int, flat: list[int]) -> list:
            fresh = ask("resample", number)
            return [fresh[i] for i in flat if i < len(fresh)]

        kept, away = resample(
            run(ask()),
            replace,
            run,
            rounds=e.rollout.resample,
            signal=has_pair if e.loss.policy == "dpo" else has_signal,
        )
        write_rollouts(path, kept)
        if away:
            write_rollouts(thrown(path), away)
        return sampled_metrics(kept, away)

    @computing
    def evaluate(
        self,
        path: Path,
        objectives: int,
        temperature: float,
        passes: int = 1,
        part: int = 0,
        parts: int = 1,
    ) -> Metrics:
        """`passes` trajectories for each evaluation question into `path`; their token counts.

        Of `parts` samplers this one is number `part` and has every parts-th question.
        """
        from mempo.evaluation.metrics import rollout_metrics
        from mempo.policies.distribution import Sampling
        from mempo.records import write_rollouts

        e = self.experiment.evaluate
        questions = self.world.questions("test", e.questions, objectives=objectives, key=(e.seed,))
        sampling = Sampling(temperature, memory_weight=e.memory_weight)
        key = (e.seed, "evaluate", str(temperature))
        trajectories = self._run(questions[part::parts], passes, sampling, key)
        write_rollouts(path, trajectories)
        return rollout_metrics(trajectories)

    def node(self) -> str:
        """The id of the Ray node that it runs on."""
        return node()

    def decode(self, ids: list[int]) -> str:
        """The exact text of token ids."""
        return self.codec.text(ids)

    def describe(self, path: Path, limit: int, every: int = 1) -> list[dict[str, Any]]:
        """`limit` trajectories of a rollout file, each `every`-th, for the trajectory page."""
        from mempo.evaluation.describe import describe
        from mempo.records import read_rollouts

        trajectories, credit = read_rollouts(path)
        return describe(trajectories[: limit * every], credit, self.codec.text, every=every)

    def _run(self, questions: list, group: int, sampling: Any, key: tuple) -> list:
        from mempo.agent.rollout import run_trajectories

        e = self.experiment
        return run_trajectories(
            self.world,
            self.engine,
            self.codec,
            questions,
            agent=e.agent,
            rollout=e.rollout,
            reward=e.reward,
            group_size=group,
            sampling=sampling,
            key=key,
            version=self.version,
        )


def thrown(path: Path) -> Path:
    """Where the rollouts of `path` lie that resampling threw away."""
    return path.with_name(f"{path.stem}-thrown.parquet")


def sampled_metrics(kept: Any, away: Any) -> Metrics:
    """Metrics of all that was sampled, also of what resampling threw away.

    Its tokens were paid for, and rewards of the kept groups alone would show a selection.
    """
    from mempo.environments.atlas import facts_of
    from mempo.evaluation.memory_quality import fact_quality
    from mempo.evaluation.metrics import rollout_metrics

    every = [*kept, *away]
    return {
        **rollout_metrics(every),
        **fact_quality(every, facts_of),
        "group/resampled_frac": len(away) / max(len(every), 1),  # a sampler may have no question
    }
