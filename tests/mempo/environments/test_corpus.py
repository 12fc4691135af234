import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.environments.corpus import parse_contents, read_corpus
from mempo.types import Passage


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Paris"\nOn the Seine.', "Paris", "On the Seine."),
        ("Paris\nOn the Seine.", "Paris", "On the Seine."),
        ('"Paris"\nOn the\nSeine.\n', "Paris", "On the\nSeine."),
        ("On the Seine.", "", "On the Seine."),
        ('  "Paris"  \n\n On. ', "Paris", "On."),
        ('"In" and "Out"\nA film.', 'In" and "Out', "A film."),
        ('"\nodd', '"', "odd"),
        ("", "", ""),
    ],
)
def test_contents_are_a_title_and_a_text(contents, title, text):
    assert parse_contents(contents) == (title, text)


@given(st.text("ab é", min_size=1), st.text("ab .", min_size=1))
def test_what_was_written_in_the_layout_is_read_back(title, text):
    title, text = title.strip(), text.strip()
    if title and text:
        assert parse_contents(f'"{title}"\n{text}') == (title, text)


def test_a_corpus_keeps_its_order_and_ids(tmp_path):
    file = tmp_path / "corpus.jsonl"
    lines = [
        {"id": "7", "contents": '"Paris"\nParis lies on the Seine.'},
        {"id": 8, "contents": '"Rome"\nRome lies on the Tiber.'},
    ]
    file.write_text("\n\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    assert read_corpus(file) == [
        Passage("7", "Paris", "Paris lies on the Seine."),
        Passage("8", "Rome", "Rome lies on the Tiber."),
    ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "the corpus is empty; give a file with passages"),
        ('{"id": "1", "contents": "a"}\n{"id": "2"}\n', 'line 2: not {"id": ..., "contents"'),
        ('{"contents": "a"}', 'line 1: not {"id"'),
        ('{"id": "1", "contents": 7}', 'line 1: not {"id"'),
        ("[1]", 'line 1: not {"id"'),
        ("oops", 'line 1: not {"id"'),
        ('{"id": 1, "contents": "a"}\n{"id": "1", "contents": "b"}', "line 2: id '1' occurs twice"),
        (b"\xff", "cannot be read as a corpus"),
    ],
)
def test_fault_51_unusable_corpora_are_refused_in_one_line(tmp_path, content, complaint):
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as error:
        read_corpus(file)
    assert str(error.value).startswith(str(file))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)
