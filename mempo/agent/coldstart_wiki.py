"""The cold start on real questions: scripted trajectories built from supporting passages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from mempo.agent.coldstart import calibration_row, memory_probe, script_rows
from mempo.config import Experiment
from mempo.draws import generator
from mempo.environments.dataset_world import DatasetWorld, named_corpus
from mempo.environments.datasets import compose
from mempo.environments.experts_wiki import calibration_pairs, script_for
from mempo.policies.codec import Codec
from mempo.types import Question, Row

CALIBRATIONS = 2  # contexts of calibration per question and pass
HELD_OUT = 64  # at most; questions that the held-out loss is measured on


class WikiColdStart:
    """Rows from the training questions that the expert solves; held-out rows from the others.

    Each pass over the questions makes fresh scripts, with another quality of memory and other
    groups of questions, in an order of its own.
    """

    def __init__(self, experiment: Experiment, codec: Codec):
        """Find the questions that the expert solves; their scripts are made when first asked for.

        Raises:
            ValueError: too few questions are solved, or a file or the search server cannot be
                used; names the setting.
            ConnectionError: a search failed.
        """
        if experiment.agent.kind == "external" or experiment.agent.grains == 2:
            raise ValueError(
                "agent.kind external and agent.grains 2 have no scripted expert on a dataset; "
                "start them from a model that follows instructions, or use environment.name atlas"
            )
        self.experiment, self.codec = experiment, codec
        # The scripts search for what they say, with the world's own search.
        settings = experiment.environment.model_copy(update={"tool": ""})
        self.world = DatasetWorld(settings, self._shorten)
        self.world.check()
        corpus = named_corpus(settings, needed_by="the cold start")
        self.passages = {p.id: p for p in corpus}
        self.solved = list(self._solved(self.world.pool("train")))
        cure = (
            "the expert needs supporting_ids and a corpus that holds these passages (raise "
            "environment.top_k or environment.passage_tokens)"
        )
        if not self.solved:
            raise ValueError(
                f"environment.questions: the scripted expert solves none of them; {cure}"
            )
        most = max(experiment.sft.objectives)
        if most > len(self.solved):
            raise ValueError(
                f"sft.objectives asks for {most} objectives, but the scripted expert solves only "
                f"{len(self.solved)} training questions; lower it or give more questions"
            )
        self.measured = list(islice(self._solved(self.world.pool("test")), HELD_OUT))
        if not self.measured:
            raise ValueError(
                "environment.test_fraction: the scripted expert solves no held-out question, so "
                f"no loss can be measured; raise it or give environment.test_questions; {cure}"
            )

    def batch(self, step: int) -> list[Row]:
        size = self.experiment.sft.batch_size
        return self._rows[0][step * size : (step + 1) * size]

    def held_out(self) -> list[Row]:
        rng = generator(self.experiment.seed, "sft-held-out")
        return [row for question in self.measured for row in self._script(question, rng)]

    def probes(self) -> list[tuple[Row, Row]]:
        rng = generator(self.experiment.seed, "sft-probe")
        agent = self.experiment.agent
        found = []
        for question in self.measured if agent.remembers else []:
            pairs = self._pairs(question, rng)  # the right memory first, the empty one last
            right, empty = pairs[0][0], pairs[-1][0]
            found.append(memory_probe(self.codec, agent, question, right, empty))
        return found

    def facts(self) -> dict[str, Any]:
        sft = self.experiment.sft
        rows, first_pass = self._rows
        used = rows[: (sft.steps + sft.final_steps) * sft.batch_size]
        return {
            "training questions that the expert solves": len(self.solved),
            "rows of a pass over them": first_pass,
            "rows to train on": len(used),
            "tokens to train on": sum(len(r.ids) for r in used),
        }

    @cached_property
    def _rows(self) -> tuple[list[Row], int]:
        """(all rows to learn from, how many of them the first pass made)."""
        sft = self.experiment.sft
        rows: list[Row] = []
        first_pass = 0
        while len(rows) < (sft.steps + sft.final_steps) * sft.batch_size:
            made = self._make_pass(len(rows))
            if not made:
                raise ValueError(
                    f"sft.objectives = {list(sft.objectives)}: no script could be made from "
                    f"{len(self.solved)} questions; lower it, or look whether every search of the "
                    "retriever answers the same"
                )
            rows += made
            first_pass = first_pass or len(rows)
        return rows, first_pass

    def _make_pass(self, start: int) -> list[Row]:
        """Scripts of every solved question alone, and in groups; and their calibration."""
        rng = generator(self.experiment.seed, "sft", start)
        rows: list[Row] = []
        for k in self.experiment.sft.objectives:
            order = [self.solved[i] for i in rng.permutation(len(self.solved))]
            groups = [order[i : i + k] for i in range(0, len(order) - k + 1, k)]
            for n, group in enumerate(groups):
                question = compose(group, k, ("sft", start, n)) if k > 1 else group[0]
                rows += self._script(question, rng)
                rows += self._calibration(question, rng)
        return [rows[i] for i in rng.permutation(len(rows))]

    def _script(self, question: Question, rng: np.random.Generator) -> list[Row]:
        s, agent = self.experiment.sft, self.experiment.agent
        script = script_for(
            question,
            search=self.world.find,
            passages=self.passages,
            shorten=self._shorten,
            rng=rng,
            sloppy=s.sloppy,
            drop=s.drop,
            miss=s.miss,
            wrong=s.wrong,
            agent=agent,
        )
        return script_rows(self.codec, agent, script) if script else []

    def _pairs(self, question: Question, rng: np.random.Generator) -> list[tuple[str, str]]:
        return calibration_pairs(
            question,
            search=self.world.find,
            passages=self.passages,
            shorten=self._shorten,
            rng=rng,
        )

    def _calibration(self, question: Question, rng: np.random.Generator) -> list[Row]:
        if not self.experiment.agent.remembers:
            return []
        pairs = self._pairs(question, rng)
        chosen = rng.permutation(len(pairs))[:CALIBRATIONS]
        contexts = [self.codec.encode(f"<mem>{pairs[i][0]}</mem>") for i in chosen]
        return [calibration_row(self.codec, self.experiment.agent, question, c) for c in contexts]

    def _solved(self, pool: list[Question]) -> Iterable[Question]:
        single = [q for q in pool if q.objectives == 1]
        if self.experiment.environment.question_filter == "solved":
            return single
        return self.world.solved(single, self.passages)

    def _shorten(self, text: str) -> str:
        return self.codec.shorten(text, self.experiment.environment.passage_tokens)
