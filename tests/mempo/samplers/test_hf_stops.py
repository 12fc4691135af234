"""Where a generation ends, with a model that says what it is told to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from mempo.agent.protocol import STOP_STRINGS
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.samplers.hf import TransformersSampler
from mempo.types import Completion, Request


@dataclass
class Progress:
    """The scripted model's cache: which script each row follows, and how far."""

    scripts: list[list[int]]
    at: int = 0

    def batch_select_indices(self, keep: torch.Tensor) -> None:
        self.scripts = [self.scripts[i] for i in keep.tolist()]


class Scripted(torch.nn.Module):
    """Says what the script of the prompt's last token says."""

    def __init__(self, vocabulary: int, scripts: dict[int, list[int]], ends: Any = None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.generation_config = SimpleNamespace(eos_token_id=ends)
        self.config = SimpleNamespace(_attn_implementation="none")
        self.vocabulary, self.scripts = vocabulary, scripts

    def forward(self, input_ids: torch.Tensor, past_key_values: Any = None, **_: Any) -> Any:
        cache = past_key_values or Progress([self.scripts[i] for i in input_ids[:, -1].tolist()])
        logits = torch.full((len(input_ids), 1, self.vocabulary), -40.0)
        for row, script in enumerate(cache.scripts):
            logits[row, 0, script[cache.at]] = 40.0
        cache.at += 1
        return CausalLMOutputWithPast(logits=logits, past_key_values=cache)  # type: ignore[arg-type]


def say(
    codec: Codec, *outputs: Sequence[int], ends: Any = None, limit: int = 20,
    stop: Sequence[str] = STOP_STRINGS,
) -> list[Completion]:  # fmt: skip
    """What the sampler returns where the policy would write `outputs` and then go on for ever."""
    filler = codec.encode(" x")[-1]
    scripts = {5 + i: [*o, *[filler] * limit] for i, o in enumerate(outputs)}
    model = Scripted(len(codec.tokenizer), scripts, ends)
    sampler = TransformersSampler(model, codec, stop=stop, batch_size=8)
    asked = [Request([5 + i], limit, ("say", i)) for i in range(len(outputs))]
    return sampler.generate(asked, Sampling())


def test_a_stop_string_of_several_tokens_ends_the_step_and_stays(codec: Codec) -> None:
    ids = [token for c in "<answer>Paris</answer>" for token in codec.encode(c)]
    assert len(ids) > 15  # a token a character
    (done,) = say(codec, ids, limit=40)
    assert (done.ids, done.finish_reason) == (ids, "stop")
    assert len(done.logprobs) == len(ids)


def with_piece(codec: Codec, text: str) -> tuple[Codec, int]:
    """A codec whose vocabulary also has `text` as one ordinary token."""
    other = Codec(codec.tokenizer)
    pieces = list(other._pieces)
    free = next(i for i, p in enumerate(pieces) if p == b"Q")
    pieces[free] = text.encode()
    other.__dict__["_pieces"] = pieces  # fills the cached property
    return other, free


def test_fault_09_a_stop_string_may_end_inside_a_token(codec: Codec) -> None:
    """'</answer' + '>\\n': the ids stay untouched, the text has what follows the stop."""
    odd, token = with_piece(codec, ">\n")
    ids = [*odd.encode("<answer>Paris</answer"), token]
    (done,) = say(odd, ids)
    assert (done.ids, done.finish_reason) == (ids, "stop")
    assert odd.text(done.ids) == "<answer>Paris</answer>\n"


def test_one_token_may_hold_a_whole_stop_string(codec: Codec) -> None:
    odd, token = with_piece(codec, "s</answer>!")
    ids = [*odd.encode("<answer>Pari"), token]
    (done,) = say(odd, ids)
    assert (done.ids, done.finish_reason) == (ids, "stop")


def test_other_closing_tags_do_not_stop(codec: Codec) -> None:
    first = codec.encode("<mem>a > b</mem><think>no</think>")
    (done,) = say(codec, first, limit=len(first) + 3)
    assert done.finish_reason == "length" and len(done.ids) == len(first) + 3


def test_without_stop_strings_only_ends_and_limits_count(codec: Codec) -> None:
    ids = codec.encode("<answer>Paris</answer>")
    (done,) = say(codec, ids, limit=len(ids) + 2, stop=())
    assert done.finish_reason == "length"


@pytest.mark.parametrize("ends", [None, 7, [7, 8]])
def test_end_tokens_of_tokenizer_and_model_end_a_step_and_are_kept(codec: Codec, ends: Any) -> None:
    word = codec.encode("Paris")
    own, listed = say(codec, [*word, codec.eos_id], [*word, 7], ends=ends, limit=9)
    assert (own.ids, own.finish_reason) == ([*word, codec.eos_id], "eos")
    if ends is None:
        assert listed.finish_reason == "length"
    else:
        assert (listed.ids, listed.finish_reason) == ([*word, 7], "eos")


def test_finished_rows_leave_and_the_others_go_on(codec: Codec) -> None:
    def text(n: int) -> list[int]:
        return codec.encode("<answer>" + "river " * n + "</answer>")

    outputs = [text(n) for n in (3, 0, 5, 1, 2)]
    done = say(codec, *outputs, limit=40)
    assert [c.ids for c in done] == outputs
    assert {c.finish_reason for c in done} == {"stop"}
