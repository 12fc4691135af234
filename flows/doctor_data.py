"""Probes of questions: enough of them, in words that the policy knows, solved by the expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from mempo.config import Experiment
from mempo.environments.world import Split

if TYPE_CHECKING:
    from mempo.policies.codec import Codec

Kind = Literal["train", "evaluate", "sft"]
_LOOKED_AT = 8  # questions of a file whose words are looked up


def check_data(experiment: Experiment, kind: Kind, codec: Codec | None) -> str:
    """Open the very world of the run and draw what the run will draw.

    Args:
        experiment: `policy` is what the run begins from.
        kind: which draws the run makes.
        codec: the policy's tokenizer; None where there is none, and then nothing is asked that
            depends on it (words, the cut of a passage and so the filter of questions).

    Raises:
        ValueError: one line that names the setting.
        ConnectionError: a search failed.
    """
    settings = experiment.environment
    if codec is not None:
        _check_words(experiment, codec)
    if codec is not None and kind == "sft":
        return _cold_start(experiment, codec)
    from mempo.environments import make_world

    if codec is None:
        whole = settings.model_copy(update={"question_filter": "all"})
        world = make_world(whole, lambda text: text)
    else:
        world = make_world(settings, lambda text: codec.shorten(text, settings.passage_tokens))
    if settings.name == "dataset" and not settings.tool:
        from mempo.environments.dataset_world import DatasetWorld

        assert isinstance(world, DatasetWorld)
        world.check()  # the search server is called only here
    draws: list[tuple[str, Split, tuple[int, ...], int]] = []
    if kind == "train":
        count = experiment.rollout.questions
        draws.append(("environment.objectives", "train", settings.objectives, count))
    if kind != "sft":
        evaluate = experiment.evaluate
        draws.append(("evaluate.objectives", "test", evaluate.objectives, evaluate.questions))
    for setting, split, objectives, count in draws:
        for k in objectives:
            try:
                world.questions(split, count, objectives=k, key=("doctor",))
            except ValueError as error:
                # The atlas knows nothing of evaluation, and names the setting of training.
                message = str(error).replace("environment.objectives", setting, 1)
                raise ValueError(message) from None
    served = [f"{list(objectives)} objectives ({split})" for _, split, objectives, _ in draws]
    unknown = "" if codec is not None else " (words and filter unknown without a tokenizer)"
    return f"{settings.name} serves {' and '.join(served) or 'questions'}{unknown}"


def _cold_start(experiment: Experiment, codec: Codec) -> str:
    most = max(experiment.sft.objectives)
    if experiment.environment.name == "dataset":
        from mempo.agent.coldstart_wiki import WikiColdStart

        solved = len(WikiColdStart(experiment, codec).solved)
        return f"the scripted expert solves {solved} training questions"
    from mempo.environments.atlas import AtlasWorld

    try:
        AtlasWorld(experiment.environment).questions("train", 1, objectives=most, key=("doctor",))
    except ValueError as error:
        message = str(error).replace("environment.objectives", "sft.objectives", 1)
        raise ValueError(message) from None
    return f"the atlas serves scripts of up to {most} objectives"


def _check_words(experiment: Experiment, codec: Codec) -> None:
    """Refuse questions with words that the policy can neither read nor write."""
    settings, model = experiment.environment, experiment.policy.model
    if settings.name == "atlas":
        from mempo.environments.atlas import AtlasWorld

        word = _unknown_word(codec, AtlasWorld(settings).words())
        if word:
            raise ValueError(
                f"policy.model: the vocabulary of {model} lacks words of this atlas ({word!r}); "
                "lower environment.entities, environment.attributes or environment.values to what "
                "it was made for, or set policy.model to 'tiny', which is made for any atlas"
            )
        return
    from mempo.environments.dataset_world import named_questions

    questions = named_questions(settings, "questions")
    some = questions[:: max(1, len(questions) // _LOOKED_AT)][:_LOOKED_AT]
    word = _unknown_word(codec, [text for q in some for text in (q.text, q.gold)])
    if word:
        raise ValueError(
            f"policy.model: the vocabulary of {model} lacks words of environment.questions "
            f"({word!r}); give a language model (`mempo fetch smollm2` makes models/smollm2), or "
            "set environment.name to 'atlas'"
        )


def _unknown_word(codec: Codec, texts: Sequence[str]) -> str:
    """The first word that becomes the unknown token, or "" where none does or there is none."""
    unknown = codec.tokenizer.unk_token_id
    for text in texts:
        if unknown is not None and unknown in codec.encode(text):
            return next((w for w in text.split() if unknown in codec.encode(w)), text[:40])
    return ""
