"""The learner: log-probs, supervised steps, and what it saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM

from mempo.config import Environment, Learner, Loss, Policy
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.policies.loading import load_codec
from mempo.policies.weights import digest
from mempo.types import Row


def test_a_model_that_rescales_its_logits_is_refused(bench: Any) -> None:
    config = CohereConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, logit_scale=0.5, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="logit_scale"):
        TorchLearner(CohereForCausalLM(config), bench.learner().codec, Learner())


def test_log_probs_are_those_of_an_unbatched_forward_pass(bench: Any) -> None:
    learner, rows = bench.learner(micro_tokens=20), bench.rows()
    got = learner.logprobs(rows, Sampling(0.7))
    for row, values in zip(rows, got, strict=True):
        with torch.no_grad():
            logits = learner.model(input_ids=torch.tensor([row.ids])).logits[0].double() / 0.7
        logp = logits.log_softmax(-1)
        expected = [logp[i - 1, t].item() for i, t in enumerate(row.ids) if row.mask[i]]
        np.testing.assert_allclose(values, expected, atol=1e-5)
    assert learner.tokens == sum(len(r.ids) - 1 for r in rows)  # nothing follows a last token


def test_rows_without_targets_have_no_log_probs(bench: Any) -> None:
    learner = bench.learner()
    got = learner.logprobs([Row([3, 4], [False, False]), Row([3, 4], [False, True])])
    assert [len(g) for g in got] == [0, 1]
    assert learner.logprobs([]) == []


def test_a_missing_reference_is_named(bench: Any) -> None:
    with pytest.raises(ValueError, match=r"loss\.kl"):
        bench.learner().logprobs(bench.rows(), reference=True)


def test_supervise_returns_the_mean_loss_per_target(bench: Any) -> None:
    learner, rows = bench.learner(micro_tokens=18), bench.rows()
    expected = -np.concatenate(learner.logprobs(rows)).mean()
    assert learner.supervise(rows, 1e-2) == pytest.approx(expected, rel=1e-5)
    assert -np.concatenate(learner.logprobs(rows)).mean() < expected


def test_supervise_at_a_temperature_fits_what_is_sampled_at_it(bench: Any) -> None:
    learner, rows = bench.learner(), bench.rows()
    expected = -np.concatenate(learner.logprobs(rows, Sampling(1.25))).mean()
    assert learner.supervise(rows, 1e-2, 1.25) == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(-np.concatenate(bench.learner().logprobs(rows)).mean())


def test_supervise_does_not_depend_on_micro_batches(bench: Any) -> None:
    rows, results = bench.rows(), []
    for budget in (1, 18, 10_000):
        learner = bench.learner(micro_tokens=budget, grad_clip=1e9)
        learner.optimizer.step = lambda lr: 0.0  # type: ignore[method-assign]
        learner.supervise(rows, 1e-3)
        results.append([p.grad.clone() for p in learner.model.parameters()])
    scale = max(float(g.abs().max()) for g in results[0])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5 * scale, rtol=1e-5)


def test_supervise_without_targets_changes_nothing(bench: Any) -> None:
    learner = bench.learner()
    before = digest(learner.model)
    assert learner.supervise([Row([3, 4], [False, False])], 1e-2) == 0
    assert digest(learner.model) == before


def test_a_saved_learner_loads_as_a_transformers_folder(
    bench: Any, atlas_codec: Codec, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    learner = bench.learner(lr=1e-2)
    learner.update(bench.train_rows(learner, bench.rows()), Loss())
    learner.save(tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert digest(model) == digest(learner.model)
    codec = load_codec(Policy(model=str(tmp_path)), Environment())
    assert codec.encode("<mem>nothing</mem>") == atlas_codec.encode("<mem>nothing</mem>")

    resumed = bench.learner(lr=1e-2)
    resumed.restore(tmp_path)
    for other in (learner, resumed):
        other.update(bench.train_rows(other, bench.rows()), Loss())
    assert digest(resumed.model) == digest(learner.model)
