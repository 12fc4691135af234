import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.environments.corpus import read_corpus
from mempo.environments.datasets import data_path, read_questions
from mempo.environments.retrievers import Bm25Retriever
from mempo.environments.world import ToolError
from mempo.types import Passage

# Neither stemmed nor stop words, so that the naive BM25 below sees the same tokens.
WORDS = st.sampled_from(["kiwi", "lamp", "moss", "tulip", "x"])


def passages(*texts: str) -> list[Passage]:
    return [Passage(f"p{i}", "", text) for i, text in enumerate(texts)]


def ids(retriever: Bm25Retriever, query: str, k: int = 9) -> list[str]:
    [found] = retriever.search([query], k)
    assert not isinstance(found, ToolError)
    return [passage.id for passage in found]


def naive_scores(texts: Sequence[Sequence[str]], query: Sequence[str]) -> list[float]:
    """Robertson's BM25 with Lucene's idf, k1 = 1.5, b = 0.75."""
    mean_length = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        counts, score = Counter(text), 0.0
        for word in query:
            holding = sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
            length = 1.5 * (0.25 + 0.75 * len(text) / mean_length)
            score += idf * counts[word] / (counts[word] + length)
        scores.append(score)
    return scores


@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=8), min_size=1, max_size=8),
    st.lists(WORDS, min_size=1, max_size=4, unique=True),
    st.integers(1, 9),
)
def test_the_ranking_is_that_of_bm25(texts, query, k):
    naive = naive_scores(texts, query)
    found = ids(Bm25Retriever(passages(*(" ".join(t) for t in texts))), " ".join(query), k)
    scores = [naive[int(i.removeprefix("p"))] for i in found]
    best = sorted((score for score in naive if score > 0), reverse=True)[:k]
    assert len(set(found)) == len(found)
    assert scores == pytest.approx(best, rel=1e-5)


def test_accents_case_and_word_forms_do_not_matter():
    retriever = Bm25Retriever(passages("Conrad Röntgen discovered rays.", "A city in Iran."))
    assert ids(retriever, "RONTGEN") == ids(retriever, "röntgen") == ["p0"]
    assert ids(retriever, "who discovers a ray") == ["p0"]
    assert ids(retriever, "cities") == ["p1"]


def test_single_characters_are_words():
    retriever = Bm25Retriever(passages("Malcolm X spoke.", "Malcolm Young played.", "Apollo 8"))
    assert ids(retriever, "Malcolm X")[0] == "p0"
    assert ids(retriever, "8") == ["p2"]


def test_a_title_weighs_more_than_the_text():
    text = [Passage("text", "Other", "Paris here"), Passage("title", "Paris", "Other here")]
    assert ids(Bm25Retriever(text), "Paris") == ["title", "text"]


def test_passages_that_share_no_word_are_not_returned():
    retriever = Bm25Retriever(passages("whale", "ship", "the sea"))
    assert ids(retriever, "whale") == ["p0"]
    assert ids(retriever, "the of") == ids(retriever, "zebra") == ids(retriever, "") == []
    assert retriever.search(["zebra", "ship"], 1) == [[], [Passage("p1", "", "ship")]]
    assert retriever.search([], 3) == []
    retriever.check()


@given(st.lists(st.lists(WORDS, max_size=3).map(" ".join), min_size=1, max_size=6))
def test_a_query_finds_the_same_alone_and_among_others(queries):
    retriever = Bm25Retriever(passages("kiwi lamp", "lamp moss moss", "tulip x", "kiwi x moss"))
    together = retriever.search(queries, 2)
    assert together == [result for query in queries for result in retriever.search([query], 2)]


@pytest.fixture(scope="module")
def wiki() -> Bm25Retriever:
    return Bm25Retriever(read_corpus(data_path("builtin:wiki_multihop/corpus.jsonl")))


def test_the_shipped_corpus_is_whole():
    corpus = read_corpus(data_path("builtin:wiki_multihop/corpus.jsonl"))
    assert len({p.id for p in corpus}) == len(corpus) == 5995
    known = {p.id for p in corpus}
    questions = read_questions("builtin:wiki_multihop/questions.jsonl")
    assert all(i in known for q in questions for ids in q.supporting_ids for i in ids)


def test_a_known_supporting_passage_is_found(wiki):
    [found] = wiki.search(["performer of the song Get Low (Dillon Francis and DJ Snake song)"], 3)
    assert not isinstance(found, ToolError)
    assert found[0].title == "Get Low (Dillon Francis and DJ Snake song)"
    assert found[0].id == "1bf074f907"
    [found] = wiki.search(["Dillon Francis"], 3)
    assert not isinstance(found, ToolError)
    [performer] = [p for p in found if p.id == "a766574019"]
    assert performer.title == "Dillon Francis"
    assert "October 5, 1987" in performer.text


def test_the_bare_question_finds_one_supporting_passage_but_rarely_all(wiki):
    questions = read_questions("builtin:wiki_multihop/questions.jsonl")
    one = every = 0
    for question, found in zip(questions, wiki.search([q.text for q in questions], 5), strict=True):
        assert not isinstance(found, ToolError)
        supporting, seen = set(question.supporting_ids[0]), {p.id for p in found}
        one += bool(supporting & seen)
        every += supporting <= seen
    # Several searches are needed, and so a memory.
    assert one / len(questions) > 0.89
    assert every / len(questions) < 0.57


def test_passages_that_say_nothing_are_never_found() -> None:
    """bm25s cannot index them, and an own tool may return an empty text."""
    silent = Bm25Retriever([Passage("1", "", ""), Passage("2", "", "the ; -")])
    assert silent.search(["river", ""], 2) == [[], []]
    assert Bm25Retriever([]).search(["river"], 1) == [[]]
