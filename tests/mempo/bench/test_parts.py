"""At no size at all: the arms of each part compute the same numbers, under the promised keys."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mempo.bench import growth, grpo, history, rollout, score, train
from mempo.bench.subject import Sizes, Subject, lived, subject
from mempo.types import Completion

SMALL = Sizes(head=20, memory=6, said=4, reply=8, answer=3)


@pytest.fixture(scope="module")
def tiny() -> Subject:
    return subject("tiny")


@pytest.fixture
def one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes half a minute to start."""
    for module in (grpo, rollout):
        monkeypatch.setattr(module, "engines", lambda: ["transformers"])


def quiet(line: str) -> None:
    pass


def test_steps_have_the_lengths_that_are_asked_for(tiny: Subject) -> None:
    _, ((first, second),) = lived(tiny.codec, steps=2, rollouts=1, sizes=Sizes())
    assert len(first.prompt_ids) == 128
    assert len(first.output_ids) + len(first.observation_ids) == 200
    assert len(second.prompt_ids) == 328
    start, end = first.mem_spans[0]
    assert tiny.codec.text(first.output_ids[start - 1 : end + 1]).startswith(" <mem>")
    assert end - start == 60


def test_arms_of_scoring_agree(tiny: Subject) -> None:
    found = score.measure(tiny, rounds=2, say=quiet, steps=(2, 3), sizes=SMALL)
    assert found.ratios.keys() == {
        "score_vs_rows_t2", "score_vs_rows_t3", "score_vs_padded_t3", "score_vs_padded16_t3",
    }  # fmt: skip
    turns = {name: len(laps) for name, laps in found.laps.items() if "unsorted" not in name}
    assert len(turns) == 5 and set(turns.values()) == {2}
    for steps in (2, 3):
        assert float(found.facts[f"score T={steps}, largest difference of log-probs"]) < 1e-4
        shared, rows = (
            found.facts[f"score T={steps}, tokens {s}"] for s in ("shared", "row by row")
        )
        assert float(shared) < float(rows)


def test_padded_rows_are_scored_as_they_are_alone(tiny: Subject) -> None:
    learner = train.make(tiny, train.TorchLearner, "float32", 10_000, shared=True)
    rows = history.history_rows(tiny, 3, SMALL)
    for a, b in zip(score.padded(learner, rows, 5), score.padded(learner, rows, 1), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_growth_of_histories_is_fitted(tiny: Subject) -> None:
    found = history.measure(tiny, rounds=1, say=quiet, steps=(2, 3, 5), sizes=SMALL)
    assert found.ratios.keys() == {"score_history_growth_exponent"}
    # Tokens that are shared grow with the history, and a little less for the head and the answers.
    assert 0.5 < float(found.facts["exponent of the tokens of histories"]) < 1.05


def test_layouts_of_an_update_have_one_gradient(tiny: Subject) -> None:
    found = train.measure(
        tiny, rounds=1, say=quiet, rollouts=3, steps=2, sizes=SMALL, dtype="float32",
        budgets=(64, 256),
    )  # fmt: skip
    assert found.ratios.keys() == {"train_vs_padded", "train_vs_packed"}
    norms = [
        float(found.facts[f"train, {n}, gradient norm"]) for n in ("shared", "padded", "packed")
    ]
    assert norms[0] > 0
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=1e-5)
    tokens = [float(found.facts[f"train, {n}, tokens"]) for n in ("shared", "packed")]
    assert tokens[0] < tokens[1]


def test_packed_rows_have_the_log_probs_of_padded_ones(tiny: Subject) -> None:
    rows = history.history_rows(tiny, 3, SMALL)
    packed, padded = (
        train.make(tiny, kind, "float32", 100, shared=False).logprobs(rows)
        for kind in (train.PackedLearner, train.TorchLearner)
    )
    for a, b in zip(packed, padded, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_growth_of_an_iteration_is_fitted(tiny: Subject) -> None:
    found = growth.measure(
        tiny, rounds=1, say=quiet, rollouts=(1, 2), steps=(1, 2), replies=(8, 16), sizes=SMALL
    )
    assert found.ratios.keys() == {
        f"iteration_growth_exponent_{letter}" for letter in ("N", "T", "reply")
    }


def test_rollouts_make_all_their_tokens(tiny: Subject, one_engine: None) -> None:
    found = rollout.measure(tiny, rounds=2, say=quiet, questions=2, group=3, prompt=9, output=5)
    assert found.facts["rollout, transformers, tokens"] == 2 * 3 * 5
    assert found.ratios.keys() == {"rollout_transformers_tokens_per_s"}


GRPO: dict[str, Any] = {"questions": 2, "group": 4, "prompt": 12, "output": 6}


class OfUnequalLengths(Subject):
    """A model that ends early now and then: with equal lengths the loss is 0 whatever it is."""

    def model(self, dtype: str) -> Any:
        model = super().model(dtype)
        with torch.no_grad():
            model.get_output_embeddings().weight[self.codec.eos_id] *= 25
        return model


def test_a_step_of_trl_has_our_loss_and_gradient(
    tiny: Subject, one_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    from mempo.bench.trl_step import TrlStep

    subject = OfUnequalLengths(**vars(tiny))
    ours = grpo.Ours(subject, "transformers", {**GRPO, "output": 30}, "float32")
    theirs = TrlStep(
        subject, ours.prompts, grpo.reward, group=4, output=30, dtype="float32", micro_batch=8,
        checkpointing=True,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.step()
    seen = theirs.seen
    assert seen["prompt_ids"][::4].tolist() == ours.prompts
    done = [
        Completion(ids[mask.bool()].tolist(), [], "length")
        for ids, mask in zip(seen["completion_ids"], seen["completion_mask"], strict=True)
    ]
    # TRL adds 1e-4 to the standard deviation, and takes the one of samples.
    advantages = iter(seen["advantages"].split(4))
    monkeypatch.setattr(grpo, "trajectory_advantage", lambda _: next(advantages).tolist())
    with pytest.warns(UserWarning, match="log-probs"):
        metrics = ours.update(done)
    assert float(seen["advantages"].abs().max()) > 0.5
    assert abs(theirs.logged["loss"]) > 1e-3
    assert metrics["loss/grad_norm"] == pytest.approx(theirs.logged["grad_norm"], rel=1e-4)
    assert metrics["loss/policy"] == pytest.approx(theirs.logged["loss"], rel=1e-4)


def test_steps_are_raced_against_trl(tiny: Subject, one_engine: None) -> None:
    pytest.importorskip("trl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = grpo.measure(
            tiny, rounds=2, say=quiet, dtype="float32", micro_batches=(2, 4), **GRPO
        )
    assert found.ratios.keys() == {"grpo_step_vs_trl", "grpo_step_vs_trl_tuned"}
    assert found.facts["grpo, TRL's best micro-batch"] in (2, 4)
    assert {len(laps) for laps in found.laps.values()} == {2}


def test_without_trl_its_lines_say_how_to_get_it(
    tiny: Subject, one_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "mempo.bench.trl_step", raising=False)
    found = grpo.measure(tiny, rounds=1, say=quiet, dtype="float32", **GRPO)
    assert "pip install 'mempo[test]'" in str(found.facts["grpo, TRL"])
    assert not found.ratios


def test_the_model_is_the_same_each_time_and_leaves_the_draws_alone(tiny: Subject) -> None:
    state = torch.get_rng_state()
    a, b = (tiny.model("float32").get_input_embeddings().weight for _ in range(2))
    assert torch.equal(a, b)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert subject().folder == ""  # random weights
    with pytest.raises(ValueError, match="no model folder"):
        subject("nowhere")
