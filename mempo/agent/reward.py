"""What an answer is worth: normalised exact match and word F1, and the reward of a trajectory.

Everything here is pure, but for a reward of the user's own. Scores are floats in [0, 1].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mempo import own
from mempo.config import Reward
from mempo.text import normalize_answer
from mempo.types import Trajectory

# HotpotQA's evaluation: these answers are right or wrong, never partly right.
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def exact_match(prediction: str, golds: str | Sequence[str]) -> float:
    """1.0 where the prediction equals one of the aliases after normalisation, else 0.0.

    A text that is empty as written matches only one that is empty as written too: without that
    rule an empty answer would be right wherever the gold normalises to nothing ("A").

    Args:
        prediction: the answer as the policy wrote it.
        golds: the accepted aliases (a lone string is one alias); without any the score is 0.
    """
    return max((_exact(prediction, gold) for gold in _aliases(golds)), default=0.0)


def f1(prediction: str, golds: str | Sequence[str]) -> float:
    """Word F1 of the prediction against its best alias, in [0, 1].

    F1 = 2 P R / (P + R), P and R the shares of the prediction's and of the alias's normalised
    words that both have, counted with multiplicity (SQuAD). Where either side is `yes`, `no` or
    `noanswer`, or has no words, F1 is exact match (HotpotQA). Empty texts: see `exact_match`.

    Args:
        prediction: the answer as the policy wrote it.
        golds: the accepted aliases (a lone string is one alias); without any the score is 0.
    """
    return max((_word_f1(prediction, gold) for gold in _aliases(golds)), default=0.0)


def split_answer(text: str, objectives: int) -> list[str]:
    """The answers to `objectives` questions out of one text `a1; a2; ...`, stripped.

    Missing answers are "". The last piece keeps whatever follows, semicolons included: an answer
    that lists more than was asked is not an exact one, and a single answer is never cut.

    Raises:
        ValueError: `objectives` is below 1.
    """
    if objectives < 1:
        raise ValueError(f"objectives must be at least 1, not {objectives}")
    pieces = [piece.strip() for piece in text.split(";", objectives - 1)]
    return pieces + [""] * (objectives - len(pieces))


def score_answer(answer: str, answers: Sequence[Sequence[str]]) -> tuple[float, float]:
    """(exact match, F1) of a whole answer, each the mean over objectives.

    Args:
        answer: the answers to all objectives, joined with ";".
        answers: accepted aliases per objective, as in `Question.answers`; at least one objective.
    """
    pieces = split_answer(answer, len(answers))
    matches = [exact_match(piece, golds) for piece, golds in zip(pieces, answers, strict=True)]
    overlaps = [f1(piece, golds) for piece, golds in zip(pieces, answers, strict=True)]
    return sum(matches) / len(answers), sum(overlaps) / len(answers)


def trajectory_reward(
    *, all_well_formed: bool, answer: str, em: float, f1: float, settings: Reward
) -> float:
    """R^T = (all steps well formed) x (mean EM or mean F1), plus the format bonus.

    Without an answer the reward is 0 even in perfect format, so doing nothing never earns more
    than a wrong format; the bonus needs a letter or a digit in the answer, so ";" or "..." does
    not collect it. Source: MemPO's trajectory reward (right answer and right format).

    Args:
        all_well_formed: every step of the trajectory followed the protocol.
        answer: the final answer, "" where there is none.
        em: mean exact match over objectives, in [0, 1].
        f1: mean word F1 over objectives, in [0, 1].
        settings: which score counts, and the bonus.
    """
    if not all_well_formed or not answer.strip():
        return 0.0
    score = em if settings.answer == "em" else f1
    says_something = any(character.isalnum() for character in answer)
    return score + (settings.format_bonus if says_something else 0.0)


def own_reward(trajectory: Trajectory, path: str) -> float:
    """R^T by `reward.function`, in place of `trajectory_reward`; NaN rejects the rollout.

    trajectory: complete but for its reward, which is 0.

    Raises:
        ValueError: the function raised, or returned no number; names it, question and rollout.
    """
    where = f"question {trajectory.question.id}, rollout {trajectory.rollout}"
    value = own.call("reward.function", path, where, trajectory)
    [reward] = own.numbers("reward.function", path, where, [value], 1)
    return reward


def _aliases(golds: str | Sequence[str]) -> Sequence[str]:
    return [golds] if isinstance(golds, str) else golds


def _exact(prediction: str, gold: str) -> float:
    if not prediction.strip() or not gold.strip():
        return float(prediction.strip() == gold.strip())
    return float(normalize_answer(prediction) == normalize_answer(gold))


def _word_f1(prediction: str, gold: str) -> float:
    said, right = normalize_answer(prediction), normalize_answer(gold)
    if not said or not right or said in _CLOSED_ANSWERS or right in _CLOSED_ANSWERS:
        return _exact(prediction, gold)
    said_words, right_words = said.split(), right.split()
    common = sum((Counter(said_words) & Counter(right_words)).values())
    # 2 P R / (P + R) with P = common / said and R = common / right.
    return 2 * common / (len(said_words) + len(right_words))
