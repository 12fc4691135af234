from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from mempo.policies.codec import Codec

TEXT = st.text(alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from("é€😀<>/ \n")))


@pytest.fixture(scope="module")
def table(codec: Codec) -> list[bytes]:
    """[V] the bytes of each byte-level token, by GPT-2's rule: printable bytes stand for
    themselves, the others for the characters from 256 on."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in printable]
    special = set(codec.tokenizer.all_special_ids)
    return [
        token.encode()
        if i in special
        else bytes(ord(c) if ord(c) < 256 else others[ord(c) - 256] for c in token)
        for i, token in enumerate(
            codec.tokenizer.convert_ids_to_tokens(list(range(len(codec.tokenizer))))
        )
    ]


def expected(parts: Sequence[bytes]) -> tuple[str, list[tuple[int, int]]]:
    """The text, and each token's characters: those with at least one byte of the token."""
    whole = b"".join(parts)
    characters: list[tuple[str, int, int]] = []  # with the range of its bytes
    at = 0
    while at < len(whole):
        try:
            good, bad = whole[at:].decode(), 0
        except UnicodeDecodeError as error:
            good, bad = whole[at : at + error.start].decode(), error.end - error.start
        for c in good:
            characters.append((c, at, at + len(c.encode())))
            at += len(c.encode())
        if bad:
            characters.append(("\ufffd", at, at + bad))
            at += bad
    offsets, begin = [], 0
    for part in parts:
        end = begin + len(part)
        mine = [n for n, (_, a, b) in enumerate(characters) if a < end and b > begin]
        offsets.append((mine[0], mine[-1] + 1))
        begin = end
    return "".join(c for c, _, _ in characters), offsets


@given(text=TEXT)
def test_text_is_the_inverse_of_encode(codec: Codec, text: str) -> None:
    assert codec.text(codec.encode(text)) == text


@given(text=TEXT, cuts=st.lists(st.integers(0, 200), max_size=12))
def test_any_split_of_a_text_gives_the_text_and_the_characters_of_each_token(
    codec: Codec, table: list[bytes], text: str, cuts: list[int]
) -> None:
    """Pieces are cut anywhere, also inside a character, as a sampler may spell them."""
    single = {p: i for i, p in enumerate(table) if len(p) == 1}
    data = text.encode()
    bounds = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    ids: list[int] = []
    for a, b in pairwise(bounds):
        try:
            ids += codec.encode(data[a:b].decode())
        except UnicodeDecodeError:
            ids += [single[bytes([byte])] for byte in data[a:b]]
    assert codec.text_and_offsets(ids) == (text, expected([table[i] for i in ids])[1])


@settings(max_examples=300)
@given(data=st.data())
def test_any_ids_give_their_bytes_read_as_utf8(
    codec: Codec, table: list[bytes], data: st.DataObject
) -> None:
    high = [i for i, p in enumerate(table) if p[0] >= 0x80]
    one = st.one_of(st.integers(0, len(table) - 1), st.sampled_from(high))
    ids = data.draw(st.lists(one, max_size=20))
    assert codec.text_and_offsets(ids) == expected([table[i] for i in ids])
    decoded = codec.tokenizer.decode(
        ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert codec.text(ids) == decoded


def test_a_broken_character_belongs_to_its_own_token_only(codec: Codec) -> None:
    broken = codec.encode("€")[0]
    assert codec.text_and_offsets([broken, *codec.encode("</")]) == (
        "\ufffd</",
        [(0, 1), (1, 3)],
    )


def test_special_tokens_are_part_of_the_text(codec: Codec) -> None:
    assert codec.text([codec.eos_id, *codec.encode("a")]) == "<|im_end|>a"


def test_ids_without_a_token_have_no_characters(codec: Codec) -> None:
    assert codec.text_and_offsets([10**6, *codec.encode("a")]) == ("a", [(0, 0), (0, 1)])


def test_an_id_that_the_vocabulary_leaves_out_has_no_characters() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "c": 2, "<eos>": 3}, unk_token="a"))
    holes = Codec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"))
    assert holes.text_and_offsets([0, 1, 2]) == (" a c", [(0, 2), (2, 2), (2, 4)])


def test_word_level_tokens_are_separated_by_a_space_but_for_closing_tags(
    atlas_codec: Codec,
) -> None:
    """Else the closing tag would have a character between the tags: a memory token by METHOD."""
    ids = atlas_codec.encode("<mem>nothing</mem>")
    assert len(ids) == 3
    assert atlas_codec.text_and_offsets(ids) == (
        " <mem> nothing</mem>",
        [(0, 6), (6, 14), (14, 20)],
    )


def test_sentencepiece_tokens_have_spaces_and_bytes() -> None:
    vocabulary = {"<unk>": 0, "</s>": 1, "▁the": 2, "s": 3, "<0xC3>": 4, "<0xA9>": 5, "<0x0A>": 6}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    llama = Codec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>"))
    assert llama.text_and_offsets([2, 3, 4, 5, 6, 1]) == (
        " thesé\n</s>",
        [(0, 4), (4, 5), (5, 6), (5, 6), (6, 7), (7, 11)],
    )


def test_shorten_keeps_the_first_tokens_and_no_half_character(codec: Codec) -> None:
    assert codec.shorten("short", 100) == "short"
    assert len(codec.encode("Paris😀")) == len(codec.encode("Paris")) + 4
    assert codec.shorten("Paris😀", len(codec.encode("Paris")) + 2) == "Paris"


def test_padding_falls_back_on_the_end_token(codec: Codec) -> None:
    assert codec.pad_id == codec.eos_id == codec.encode("<|im_end|>")[0]
    without = copy.deepcopy(codec.tokenizer)
    without.pad_token = None
    assert Codec(without).pad_id == codec.eos_id
