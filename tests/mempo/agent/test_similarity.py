from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, BertConfig, BertModel

from mempo.agent.similarity import most_similar

TEXTS = ["the Seine in Paris", "tennis rackets", "a river: the Seine", "cheese"]


def test_texts_that_share_words_come_best_first() -> None:
    assert most_similar("Which river is the Seine?", TEXTS, 2) == [2, 0]
    assert most_similar("Which river is the Seine?", TEXTS, 9) == [2, 0]
    assert most_similar("quantum", TEXTS, 2) == []
    assert most_similar("river", [], 2) == []


def test_an_encoder_compares_meaning_where_one_is_given(tmp_path: Path, codec: Any) -> None:
    """A small one with random weights: a text is most similar to itself."""
    folder = tmp_path / "encoder"
    codec.tokenizer.save_pretrained(folder)
    BertModel(
        BertConfig(
            vocab_size=len(codec.tokenizer), hidden_size=16, num_hidden_layers=1,
            num_attention_heads=2, intermediate_size=16, max_position_embeddings=64,
        )
    ).save_pretrained(folder)  # fmt: skip
    assert AutoTokenizer.from_pretrained(folder)
    for i, text in enumerate(TEXTS):
        assert most_similar(text, TEXTS, 1, model=str(folder)) == [i]
