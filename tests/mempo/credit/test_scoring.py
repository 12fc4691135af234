"""P(answer | context) against a direct forward pass of the model, unbatched, softmax by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import Learner
from mempo.credit.scoring import gold_texts, score_questions
from mempo.environments.atlas import AtlasWorld
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.codec import Codec
from mempo.types import Question, Row, Step


def p_answer(model: Any, context: Sequence[int], answer: Sequence[int]) -> float:
    """exp(1/L sum_l log pi(a_l | c, a_<l)), one forward pass a token, softmax written out."""
    total = 0.0
    for position, token in enumerate(answer):
        ids = torch.tensor([[*context, *answer[:position]]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, -1].double().tolist()
        largest = max(logits)
        total += logits[token] - largest - log(sum(exp(x - largest) for x in logits))
    return exp(total / len(answer))


@pytest.fixture
def learner(tiny_policy: Any, atlas_codec: Codec) -> TorchLearner:
    with torch.no_grad():
        tiny_policy.model.norm.weight.fill_(1.0)  # a sharper distribution than a fresh policy's
    return TorchLearner(tiny_policy, atlas_codec, Learner(micro_tokens=64))


@pytest.fixture
def words(atlas: AtlasWorld) -> list[str]:
    return list(atlas.words())


def test_p_answer_equals_a_direct_forward_pass(
    learner: TorchLearner,
    atlas_codec: Codec,
    words: list[str],
    make_question: Callable[..., Question],
    write_step: Callable[..., Step],
) -> None:
    codec, model = atlas_codec, learner.model
    question = make_question([[words[0]], [words[1]]])
    first = write_step(
        codec,
        f"<mem>nothing</mem><think>next</think><tool_call>{words[2]}</tool_call>",
        f"{words[3]} {words[4]}",
    )
    second = write_step(
        codec, f"<mem>{words[3]} ; {words[0]}</mem><think>done</think><answer>{words[0]}</answer>"
    )
    other = write_step(codec, f"<mem>{words[1]}</mem><think>done</think><answer>nothing</answer>")
    (got,) = score_questions(
        codec, [(question, [[first, second], [other]])], learner.logprobs, full=True
    )

    head, gold = first.prompt_ids[: first.head_tokens], codec.encode(f"{words[0]}; {words[1]}")
    assert len(gold) == 3  # two words and the ';' between
    opened = codec.encode("<answer>")

    def memory(text: str) -> list[int]:
        return codec.encode(f"<mem>{text}</mem>")

    history = [*first.output_ids, *first.observation_ids]
    expected = [
        [
            (
                p_answer(model, [*head, *memory("nothing"), *opened], gold),
                p_answer(model, [*head, *opened], gold),
            ),
            (
                p_answer(model, [*head, *memory(f"{words[3]} ; {words[0]}"), *opened], gold),
                p_answer(model, [*head, *history, *opened], gold),
            ),
        ],
        [
            (
                p_answer(model, [*head, *memory(words[1]), *opened], gold),
                p_answer(model, [*head, *opened], gold),
            ),
        ],
    ]
    assert [len(steps) for steps in got] == [2, 1]
    for steps, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(steps, wanted, rtol=1e-5)
    assert len({round(p, 6) for steps in got for pair in steps for p in pair}) == 5


def test_probability_is_the_geometric_mean_by_hand(
    atlas_codec: Codec,
    words: list[str],
    make_question: Callable[..., Question],
    write_step: Callable[..., Step],
) -> None:
    def fixed(rows: list[Row]) -> list[np.ndarray]:
        assert [r.targets for r in rows] == [2]
        return [np.log([0.9, 0.4])]

    step = write_step(atlas_codec, "<mem>nothing</mem><think>next</think><answer>done</answer>")
    question = make_question([[f"{words[0]} {words[1]}"]])
    ((((p_mem, p_full),),),) = score_questions(
        atlas_codec, [(question, [[step]])], fixed, full=False
    )
    assert p_mem == pytest.approx(0.6)  # sqrt(.9 * .4)
    assert np.isnan(p_full)


def test_a_step_without_memory_is_missing_but_stays_in_the_history(
    learner: TorchLearner,
    atlas_codec: Codec,
    words: list[str],
    make_question: Callable[..., Question],
    write_step: Callable[..., Step],
) -> None:
    codec, question = atlas_codec, make_question([[words[0]]])
    bare = write_step(codec, f"<think>next</think><tool_call>{words[2]}</tool_call>", words[0])
    last = write_step(codec, "<mem>nothing</mem><think>done</think><answer>done</answer>")
    (((missing, present),),) = score_questions(
        codec, [(question, [[bare, last]])], learner.logprobs, full=True
    )
    assert np.isnan(missing).all()
    head = last.prompt_ids[: last.head_tokens]
    context = [*head, *bare.output_ids, *bare.observation_ids, *codec.encode("<answer>")]
    assert present[1] == pytest.approx(
        p_answer(learner.model, context, codec.encode(words[0])), rel=1e-5
    )


def test_likeliest_alias_under_memory_is_the_one_used_for_the_history(
    atlas_codec: Codec,
    words: list[str],
    make_question: Callable[..., Question],
    write_step: Callable[..., Step],
) -> None:
    codec = atlas_codec
    first, second = codec.encode(words[0]), codec.encode(words[1])
    memory_id = codec.encode("nothing")[0]

    def by_alias(rows: list[Row]) -> list[np.ndarray]:
        """Under the memory alias 2 is likelier, under the history alias 1 is."""
        p = {(True, first[0]): 0.2, (True, second[0]): 0.5,
             (False, first[0]): 0.9, (False, second[0]): 0.3}  # fmt: skip
        return [np.log([p[memory_id in r.ids, r.ids[-1]]]) for r in rows]

    step = write_step(codec, "<mem>nothing</mem><think>next</think><answer>done</answer>")
    question = make_question([[words[0], words[1]]])
    ((((p_mem, p_full),),),) = score_questions(codec, [(question, [[step]])], by_alias, full=True)
    assert (p_mem, p_full) == (pytest.approx(0.5), pytest.approx(0.3))


def test_gold_texts_are_aliases_of_one_objective_or_the_joined_first_ones(
    make_question: Callable[..., Question],
) -> None:
    assert gold_texts(make_question([[f"a{i}" for i in range(10)]])) == [f"a{i}" for i in range(8)]
    assert gold_texts(make_question([["a", "b"], ["c", "d"]])) == ["a; c"]


def test_an_empty_alias_is_not_scored(
    atlas_codec: Codec,
    words: list[str],
    make_question: Callable[..., Question],
    write_step: Callable[..., Step],
) -> None:
    def half(rows: list[Row]) -> list[np.ndarray]:
        return [np.full(r.targets, np.log(0.5)) for r in rows]

    step = write_step(atlas_codec, "<mem>nothing</mem><think>next</think><answer>done</answer>")
    ((((p_mem, _),),),) = score_questions(
        atlas_codec, [(make_question([["", words[0]]]), [[step]])], half, full=True
    )
    assert p_mem == pytest.approx(0.5)
    (((missing,),),) = score_questions(
        atlas_codec, [(make_question([[""]]), [[step]])], half, full=True
    )
    assert np.isnan(missing).all()


def test_equal_contexts_are_scored_once_and_answers_alone_are_targets(
    atlas_codec: Codec,
    words: list[str],
    make_question: Callable[..., Question],
    write_step: Callable[..., Step],
) -> None:
    asked: list[Row] = []

    def record(rows: list[Row]) -> list[np.ndarray]:
        asked.extend(rows)
        return [np.full(r.targets, -1.0) for r in rows]

    step = write_step(atlas_codec, "<mem>nothing</mem><think>next</think><answer>done</answer>")
    question = make_question([[f"{words[0]} {words[1]}"]])
    scores = score_questions(
        atlas_codec, [(question, [[step], [step]]), (question, [[step]])], record, full=True
    )
    assert [[len(s) for s in group] for group in scores] == [[1, 1], [1]]
    assert len(asked) == 2  # one memory, one empty history
    gold = atlas_codec.encode(f"{words[0]} {words[1]}")
    for row in asked:
        assert [t for t, m in zip(row.ids, row.mask, strict=True) if m] == gold
        assert row.ids[-len(gold) :] == gold  # no closing tag, no end token behind


def test_nothing_to_score_asks_nothing(
    atlas_codec: Codec, make_question: Callable[..., Question], make_step: Callable[..., Step]
) -> None:
    def refuse(rows: list[Row]) -> list[np.ndarray]:
        raise AssertionError("the model was asked")

    assert score_questions(atlas_codec, [], refuse, full=True) == []
    (((pair,),),) = score_questions(
        atlas_codec, [(make_question(), [[make_step()]])], refuse, full=True
    )
    assert np.isnan(pair).all()
