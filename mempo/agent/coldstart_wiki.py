"""The cold start on real questions: scripted trajectories built from supporting passages."""

from __future__ import annotations

from typing import Any

import numpy as np

from mempo.agent.coldstart import calibration_row, script_rows
from mempo.config import Experiment
from mempo.draws import generator
from mempo.environments.datasets import DatasetWorld, compose, data_path
from mempo.environments.experts_wiki import calibration_pairs, script_for
from mempo.environments.hops import plan
from mempo.environments.retrievers import read_corpus
from mempo.policies.codec import Codec
from mempo.types import Passage, Question, Row

CALIBRATIONS = 2  # contexts of calibration per question and pass


class WikiColdStart:
    """Rows from the training questions that the expert solves; held-out rows from the others.

    Each pass over the questions makes fresh scripts, with another quality of memory and other
    groups of questions, in an order of its own.
    """

    def __init__(self, experiment: Experiment, codec: Codec):
        self.experiment, self.codec = experiment, codec
        settings = experiment.environment
        self.world = DatasetWorld(settings, self._shorten)
        self.passages = {p.id: p for p in read_corpus(data_path(settings.corpus))}
        self.solved = self._solved(self.world.pool("train"))
        if not self.solved:
            raise ValueError(
                "environment.questions: the scripted expert solves none of them; it needs "
                "supporting_ids and a corpus that holds these passages (raise environment.top_k "
                "or environment.passage_tokens)"
            )
        sft = experiment.sft
        self._rows: list[Row] = []
        self._first_pass = 0
        while len(self._rows) < (sft.steps + sft.final_steps) * sft.batch_size:
            self._rows += self._make_pass(len(self._rows))
            self._first_pass = self._first_pass or len(self._rows)

    def batch(self, step: int) -> list[Row]:
        size = self.experiment.sft.batch_size
        return self._rows[step * size : (step + 1) * size]

    def held_out(self) -> list[Row]:
        rng = generator(self.experiment.seed, "sft-held-out")
        return [
            row for q in self._solved(self.world.pool("test"))[:24] for row in self._script(q, rng)
        ]

    def facts(self) -> dict[str, Any]:
        sft = self.experiment.sft
        used = self._rows[: (sft.steps + sft.final_steps) * sft.batch_size]
        return {
            "training questions that the expert solves": len(self.solved),
            "rows of a pass over them": self._first_pass,
            "rows to train on": len(used),
            "tokens to train on": sum(len(r.ids) for r in used),
        }

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
            search=self._search,
            passages=self.passages,
            shorten=self._shorten,
            rng=rng,
            sloppy=s.sloppy,
            drop=s.drop,
            miss=s.miss,
            wrong=s.wrong,
            agent=agent.kind,
        )
        return script_rows(self.codec, agent, script) if script else []

    def _calibration(self, question: Question, rng: np.random.Generator) -> list[Row]:
        if self.experiment.agent.kind != "self_memory":
            return []
        pairs = calibration_pairs(
            question,
            search=self._search,
            passages=self.passages,
            shorten=self._shorten,
            rng=rng,
        )
        chosen = rng.permutation(len(pairs))[:CALIBRATIONS]
        contexts = [self.codec.encode(f"<mem>{pairs[i][0]}</mem>") for i in chosen]
        return [calibration_row(self.codec, self.experiment.agent, question, c) for c in contexts]

    def _solved(self, pool: list[Question]) -> list[Question]:
        if self.experiment.environment.question_filter == "solved":
            return [q for q in pool if q.objectives == 1]
        return [q for q in pool if q.objectives == 1 and self._plan(q)]

    def _plan(self, question: Question) -> object:
        return plan(question, search=self._search, passages=self.passages, shorten=self._shorten)

    def _search(self, query: str) -> list[Passage]:
        found = self.world.retriever.search([query], self.experiment.environment.top_k)[0]
        if isinstance(found, Exception):
            raise ConnectionError(str(found))
        return found

    def _shorten(self, text: str) -> str:
        return self.codec.shorten(text, self.experiment.environment.passage_tokens)
