from __future__ import annotations

import torch

from mempo.config import Environment
from mempo.environments.atlas import AtlasWorld
from mempo.policies.codec import Codec
from mempo.policies.tiny import TAGS, tiny_model, tiny_tokenizer


def test_tags_and_semicolons_are_tokens_with_or_without_spaces(atlas_codec: Codec) -> None:
    tight = "<mem>nothing;nothing</mem><think>next</think><answer>done</answer>"
    loose = "\n<mem> nothing ; nothing </mem> <think> next </think> <answer> done </answer>\n"
    assert atlas_codec.encode(tight) == atlas_codec.encode(loose)
    assert len(atlas_codec.encode(tight)) == 11
    assert all(len(atlas_codec.encode(tag)) == 1 for tag in TAGS)


def test_an_unknown_word_is_one_unknown_token(atlas_codec: Codec) -> None:
    assert atlas_codec.encode("zebra") == [atlas_codec.tokenizer.unk_token_id]


def test_the_default_policy_has_half_a_million_parameters() -> None:
    codec = Codec(tiny_tokenizer(AtlasWorld(Environment()).words()))
    model = tiny_model(len(codec.tokenizer), 0)
    assert 4.5e5 < sum(p.numel() for p in model.parameters()) < 6e5
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_it_starts_with_induction_heads() -> None:
    """Tokens a b c ... a b: the fresh policy names c far above chance, wherever c stood."""
    policy = tiny_model(100, 0)
    g = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(40):
        words = torch.randperm(80, generator=g)[:20] + 20
        at = int(torch.randint(0, 18, (), generator=g))
        ids = torch.cat([words, words[at : at + 2]])[None]
        hits += int(policy(ids).logits[0, -1].argmax()) == int(words[at + 2])
    assert hits >= 20
