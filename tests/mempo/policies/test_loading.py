from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mempo.config import Environment, Policy
from mempo.environments.atlas import AtlasWorld
from mempo.policies.codec import Codec
from mempo.policies.loading import load_codec, load_model

SMALL = Environment(entities=10, attributes=4, values=5, reply_facts=3)


def test_the_tiny_policy_knows_every_word_of_its_world() -> None:
    codec = load_codec(Policy(model="tiny"), SMALL)
    words = AtlasWorld(SMALL).words()
    ids = codec.encode(" ".join(words))
    assert len(ids) == len(words) and len(set(ids)) == len(words)
    assert codec.tokenizer.unk_token_id not in ids


def test_the_tiny_policy_is_a_function_of_its_seed() -> None:
    codec = load_codec(Policy(model="tiny"), SMALL)
    first, same, other = (load_model(Policy(model="tiny"), codec, seed=s) for s in (1, 1, 2))
    weights = [m.model.embed_tokens.weight for m in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_tiny_policy_has_the_dtype_of_the_settings() -> None:
    codec = load_codec(Policy(model="tiny"), SMALL)
    model = load_model(Policy(model="tiny", dtype="bfloat16"), codec)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("kind", ["word level", "byte level"])
def test_a_saved_policy_loads_as_it_was(
    kind: str, codec: Codec, atlas_codec: Codec, tiny_policy: Any, tmp_path: Path
) -> None:
    saved = atlas_codec if kind == "word level" else codec
    tiny_policy.save_pretrained(tmp_path)
    saved.tokenizer.save_pretrained(tmp_path)
    policy = Policy(model=str(tmp_path))
    loaded = load_codec(policy, SMALL)
    text = "<mem>the Seine; nothing</mem>\n<think>é</think>"
    assert loaded.encode(text) == saved.encode(text)
    assert loaded.text(loaded.encode(text)) == saved.text(saved.encode(text))
    assert (loaded.eos_id, loaded.pad_id) == (saved.eos_id, saved.pad_id)
    assert loaded.tokenizer.chat_template == saved.tokenizer.chat_template
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(load_model(policy, loaded)(ids).logits, tiny_policy(ids).logits)


def test_a_missing_folder_is_refused_with_the_setting(tmp_path: Path, codec: Codec) -> None:
    for model in (str(tmp_path / "none"), "models/none", "./none", "none"):
        with pytest.raises(ValueError, match=r"policy\.model: there is no folder .*none"):
            load_codec(Policy(model=model), SMALL)
        with pytest.raises(ValueError, match=r"policy\.model: there is no folder .*none"):
            load_model(Policy(model=model), codec)


def test_a_folder_without_a_model_is_refused(tmp_path: Path, codec: Codec) -> None:
    with pytest.raises(ValueError, match=r"policy\.model: .* has no config\.json"):
        load_model(Policy(model=str(tmp_path)), codec)


def test_a_folder_without_a_fast_tokenizer_is_refused(tmp_path: Path, tiny_policy: Any) -> None:
    tiny_policy.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"policy\.model: .* tokenizer"):
        load_codec(Policy(model=str(tmp_path)), SMALL)


@pytest.mark.parametrize("gpu", [True, False])
def test_a_policy_from_a_folder_goes_to_the_gpu_where_there_is_one(
    tmp_path: Path, tiny_policy: Any, codec: Codec, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    tiny_policy.save_pretrained(tmp_path)
    moved: list[str] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr(type(tiny_policy), "to", lambda self, device: moved.append(device) or self)
    load_model(Policy(model=str(tmp_path)), codec)
    assert moved == ["cuda" if gpu else "cpu"]
