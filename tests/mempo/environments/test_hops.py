import pytest

from mempo.environments.hops import plan
from mempo.types import Passage, Question

SONG = Passage("p1", "Low (song)", "Low is a song by Dan Snow. It sold well.")
SINGER = Passage("p2", "Dan Snow", "Dan Snow (born 5 May 1987) is a singer. He lives in Rome.")
OTHER = Passage("p3", "Ice", "Ice is frozen rain.")
PASSAGES = {p.id: p for p in (SONG, SINGER, OTHER)}
ASKED = "When was the performer of song Low (Song) born?"


def question(answers=("5 May 1987",), ids=("p2", "p1"), text=ASKED) -> Question:
    return Question("q", text, 1, [list(answers)], supporting_ids=(tuple(ids),))


def search(query: str) -> list[Passage]:
    """Two passages, those whose titles are nearest to the query's words."""

    def distance(passage: Passage) -> int:
        return len(set(passage.title.lower().split()) ^ set(query.lower().split()))

    return sorted(PASSAGES.values(), key=distance)[:2]


def planned(q: Question, *, search=search, shorten=lambda text: text):
    return plan(q, search=search, passages=PASSAGES, shorten=shorten)


def test_what_the_question_names_is_searched_first_and_then_what_the_reply_brought_up():
    hops = planned(question())
    assert hops is not None
    assert [(h.passage.id, h.query) for h in hops[0]] == [("p1", "Low (Song)"), ("p2", "Dan Snow")]


def test_facts_end_at_the_bridge_and_at_the_answer():
    hops = planned(question())
    assert hops is not None
    assert [(h.fact, h.answer) for h in hops[0]] == [
        ("Low is a song by Dan Snow", ""),
        ("Dan Snow (born 5 May 1987)", "5 May 1987"),
    ]


def test_any_alias_will_do():
    hops = planned(question(answers=("May 5, 1987", "5 May 1987")))
    assert hops is not None
    assert hops[0][1].answer == "5 May 1987"


def test_relation_words_are_added_where_the_bridge_alone_finds_other_things():
    def picky(query: str) -> list[Passage]:
        return [SINGER] if query == "Dan Snow performer born" else [SONG, OTHER]

    hops = planned(question(text="When was the performer of song Low born?"), search=picky)
    assert hops is not None
    assert (hops[0][1].name, hops[0][1].query) == ("Dan Snow", "Dan Snow performer born")


def test_a_passage_that_nothing_names_is_searched_with_the_words_of_the_question():
    def by_words(query: str) -> list[Passage]:
        return [OTHER] if query == "cold stuff made" else [SONG]

    asked = question(("frozen rain",), ("p3",), "What is the cold stuff made of?")
    hops = planned(asked, search=by_words)
    assert hops is not None
    assert [(h.name, h.query) for h in hops[0]] == [("", "cold stuff made")]


def test_an_adjective_or_a_date_is_no_bridge():
    film = Passage("f", "Vale", "Vale is a Danish film of June 1942 by an artist.")
    artist = Passage("a", "Eva Lind", "Eva Lind was a Danish artist, born in June, who liked May.")
    text = "Which month did the maker of Vale like?"
    asked = Question("q", text, 1, [["May"]], supporting_ids=(("f", "a"),))
    queries: list[str] = []

    def search(query: str) -> list[Passage]:
        queries.append(query)
        return [film]

    assert plan(asked, search=search, passages={"f": film, "a": artist}, shorten=str) is None
    assert not {"Danish", "June"} & set(queries)


@pytest.mark.parametrize(("first", "second"), [("Low (song)", "Ice"), ("Ice", "Low (song)")])
def test_a_comparison_takes_its_passages_in_the_order_of_the_question(first, second):
    hops = planned(question(("yes",), ("p3", "p1"), f"Are {first} and {second} both cold?"))
    assert hops is not None
    assert [h.query for h in hops[0]] == [first, second]
    assert [h.answer for h in hops[0]] == ["", ""]


def test_an_answer_that_is_cut_off_cannot_be_given():
    assert planned(question(), shorten=lambda text: text[:10]) is None


def test_a_passage_that_no_query_finds_cannot_be_used():
    assert planned(question(), search=lambda query: [SONG, OTHER]) is None


@pytest.mark.parametrize("ids", [(), ("p1", "missing"), ("p1",) * 6])
def test_unusable_supporting_passages_give_no_plan(ids):
    assert planned(question(ids=ids)) is None


def test_questions_without_supporting_ids_give_no_plan():
    assert planned(Question("q", "Who?", 1, [["x"]])) is None


def test_objectives_are_planned_one_by_one_from_their_own_part():
    other = "Are Ice and Low (song) both cold?"
    both = Question(
        "q",
        f"{ASKED}; {other}",
        2,
        [["5 May 1987"], ["yes"]],
        (ASKED, other),
        (("p1", "p2"), ("p1", "p3")),
    )
    hops = planned(both)
    assert hops is not None
    assert [[h.passage.id for h in part] for part in hops] == [["p1", "p2"], ["p3", "p1"]]
