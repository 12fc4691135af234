import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.evaluation.canvas import Style
from mempo.evaluation.describe import describe
from mempo.evaluation.viewer import Words, disagree, trajectories_html, word_changes

NAN = float("nan")
TEXT = st.lists(st.sampled_from(["a", "b", "b,", "c.", "\n", "d  ", "<i>"]), max_size=12).map(
    " ".join
)


def step(memory: str | None = "x", **fields: Any) -> dict[str, Any]:
    defaults = {
        "text": f"<mem>{memory}</mem><think>why</think><tool_call>query</tool_call>",
        "action": "tool_call",
        "query_or_answer": "query",
        "observation": "reply",
        "p_answer_mem": 0.5,
        "p_answer_full": None,
        "adv_mem": None,
        "prompt_tokens": 30,
        "output_tokens": 12,
    }
    return {"memory": memory, **defaults, **fields}


def trajectory(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    defaults = {
        "method": "MemPO",
        "seed": 0,
        "question": "Where?",
        "gold": "Paris",
        "answer": "Rome",
        "status": "answered",
        "reward": 0.0,
        "f1": 0.0,
        "em": 0.0,
        "advantage": None,
    }
    return {**defaults, "steps": list(steps) or [step()], **fields}


def groups(page: Any) -> list[str | None]:
    return [card["data-group"] for card in page.all("details", **{"class": "trajectory"})]


# --- changes of a memory


def test_new_and_dropped_words_stand_where_they_belong():
    before, after = "Paris lies on the Tiber.", "Paris lies on the Seine in France."
    assert word_changes(before, after) == [
        Words("kept", "Paris lies on the "),
        Words("dropped", "Tiber."),
        Words("new", "Seine in France."),
    ]


def test_a_first_memory_is_not_new():
    assert word_changes(None, "Paris") == [Words("kept", "Paris")]


def test_an_emptied_and_a_filled_memory():
    assert word_changes("a b", "") == [Words("dropped", "a b")]
    assert word_changes("", "a b") == [Words("new", "a b")]
    assert word_changes("a b", "a b") == [Words("kept", "a b")]


def test_punctuation_and_white_space_make_no_word_new():
    assert word_changes("Rome, Paris", "Rome Paris; Oslo") == [
        Words("kept", "Rome Paris; "),
        Words("new", "Oslo"),
    ]


@given(TEXT, TEXT)
def test_kept_and_new_words_are_the_memory_and_nothing_else(before, after):
    runs = word_changes(before, after)
    written = "".join(run.text for run in runs if run.change != "dropped")
    assert written == after.lstrip()
    old = " ".join(run.text for run in runs if run.change != "new")
    assert sorted(re.findall(r"\w+", old)) == sorted(re.findall(r"\w+", before))


# --- the page


def test_everything_that_a_model_or_tool_wrote_is_escaped(read_page):
    attack = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    hostile = step(
        f"{attack} old",
        text=f"<think>{attack}</think>",
        query_or_answer=attack,
        observation=attack,
    )
    longer = step(f"{attack} new", action="none", text=attack, observation=attack * 9)
    html = trajectories_html(
        [
            trajectory(hostile, longer, method=attack, question=attack, gold=attack,
                       answer=attack, status=attack, seed=attack),
            trajectory(),
        ]
    )  # fmt: skip
    assert "<script>alert" not in html
    assert "<img" not in html
    page = read_page(html)
    assert len(page.all("script")) == 1  # the page's own filters
    assert not [name for _, attrs in page.elements for name in attrs if name == "onerror"]
    # A reader still sees what was written.
    assert page.text.count("<script>alert(1)</script>") >= 9


def test_changes_of_the_memory_are_marked(read_page):
    page = read_page(
        trajectories_html(
            [trajectory(step("Paris on Tiber"), step("Paris on Seine"), step(None), step("Seine"))]
        )
    )
    assert page.texts["ins"] == ["Seine"]
    # The last memory is compared with the last one written, not with the step that had none.
    assert page.texts["del"] == ["Tiber", "Paris on"]
    assert "no memory written" in page.text


def test_an_agent_without_a_memory_lost_none(read_page):
    page = read_page(trajectories_html([trajectory(step(None), step(None))]))
    assert "no memory written" not in page.text
    assert not page.all("div", **{"class": "text memory"})


def test_a_step_shows_thought_call_reply_and_numbers(read_page):
    one = step("m", p_answer_mem=0.25, p_answer_full=0.75, adv_mem=-1.5)
    last = step("n", action="answer", query_or_answer="Rome", observation="", p_answer_mem=NAN)
    text = read_page(trajectories_html([trajectory(one, last, advantage=0.5)])).text
    for shown in (
        "why",
        "query",
        "reply",
        "30 + 12 tokens",
        "P(answer | memory) 0.25",
        "P(answer | history) 0.75",
        "Aᴹ -1.50",
        "Aᵀ +0.50",
        "Paris",
        "Rome",
        "wrong",
        "2 steps",
    ):
        assert shown in text
    assert "nan" not in text.lower()


def test_an_unreadable_step_shows_its_whole_output(read_page):
    page = read_page(trajectories_html([trajectory(step(action="none", text="gibberish <mem>"))]))
    assert "gibberish <mem>" in page.text
    assert "no readable action" in page.text


def test_a_query_asks_the_store_and_calls_no_tool(read_page):
    asks = step(None, action="query", query_or_answer="segments bob", observation="bob one")
    labels = read_page(trajectories_html([trajectory(asks)])).texts["span"]
    assert {"asks its store", "store"} <= set(labels)
    assert not {"tool call", "information"} & set(labels)
    both = read_page(trajectories_html([trajectory(asks | {"observation": "w " * 200}, step())]))
    assert any(text.startswith("store: w w") for text in both.texts["summary"])
    assert {"tool call", "information"} <= set(both.texts["span"])


def test_long_replies_are_folded(read_page):
    reply = "word " * 100
    page = read_page(trajectories_html([trajectory(step(observation=reply))]))
    assert f"information: {reply[:100]}…" in page.texts["summary"]
    assert reply.strip() in page.text


def test_the_line_of_probabilities_breaks_where_one_is_unknown(read_page):
    steps = [step(p_answer_mem=p) for p in (0.0, 1.0, None, 0.5, 2.0)]
    page = read_page(trajectories_html([trajectory(*steps)]))
    # A box of 132 x 40 with margin 5: x = 5 + 122 i / 4, y = 5 + 30 (1 - p), p cut to [0, 1].
    line = page.all("path")[-1]["d"]
    assert line == "M5.0 35.0L35.5 5.0M96.5 20.0L127.0 5.0"
    assert len(page.all("circle")) == 4
    assert "step 2: 1.00" in page.texts["title"]


def test_without_a_probability_there_is_no_picture(read_page):
    page = read_page(trajectories_html([trajectory(step(p_answer_mem=None))]))
    assert not page.all("svg")


def test_a_right_answer_is_called_so(read_page):
    right = trajectory(em=1.0, f1=1.0, reward=1.0, method="right one")
    half = trajectory(em=0.5, f1=0.667, method="half one")
    none = trajectory(method="no one")
    spans = read_page(trajectories_html([right, half, none])).texts["span"]
    badges = [text for text in spans if "right" in text or text == "wrong"]
    assert badges == ["right", "partly right, F1 0.67", "wrong"]


def test_advantages_tint_what_they_are_of(read_page):
    tinted = trajectory(step(adv_mem=-2.0), step(adv_mem=None), step(adv_mem=0.0), advantage=1.0)
    page = read_page(trajectories_html([tinted]))
    [card] = page.all("details", **{"class": "trajectory"})
    # Blue at half of the full strength for A^T = 1; orange at full strength for A^M = -2.
    assert "--advantage: rgba(0,114,178,0.24)" in (card["style"] or "")
    memories = [m["style"] for m in page.all("div", **{"class": "text memory"})]
    assert memories == [
        "--advantage: rgba(213,94,0,0.40)",
        "--advantage: transparent",
        "--advantage: transparent",
    ]


def test_the_tints_are_explained_where_there_are_any(read_page):
    for advantage, explained in ((1.0, True), (None, False)):
        page = read_page(trajectories_html([trajectory(advantage=advantage)]))
        assert ("blue is positive" in page.text) is explained


def test_a_page_gives_its_colours_to_the_trajectories(read_page):
    styles = {"ours": Style("#123456", "o")}
    page = read_page(trajectories_html([trajectory(method="ours")], styles))
    [card] = page.all("details", **{"class": "trajectory"})
    assert "--method: #123456" in (card["style"] or "")


# --- filters


@pytest.mark.parametrize(
    ("advantage", "memory", "opposed"),
    [
        (1.0, [-0.5, 0.2], True),  # sum -0.3
        (-1.0, [None, 0.1], True),
        (1.0, [0.5, -0.2], False),
        (0.0, [-1.0], False),
        (1.0, [0.0], False),
        (1.0, [None, NAN], False),
        (None, [1.0], False),
        (NAN, [1.0], False),
    ],
)
def test_advantages_disagree_when_their_signs_do(advantage, memory, opposed):
    one = trajectory(*(step(adv_mem=a) for a in memory), advantage=advantage)
    assert disagree(one) is opposed


def test_the_best_and_the_worst_quarter_of_each_method_can_be_chosen(read_page):
    rewards = [0.5, 0.1, 0.9, 0.3, 0.7, 0.6, 0.2, 0.8]
    mine = [trajectory(reward=r) for r in rewards]
    page = read_page(trajectories_html([*mine, trajectory(method="GRPO", reward=0.0)]))
    # Eight of MemPO: two are a quarter; the only one of GRPO is its best and its worst.
    expected = ["", "worst", "best", "", "", "", "worst", "best", "worst best"]
    assert groups(page) == expected
    assert [b["data-value"] for b in page.all("button") if "data-value" in b] == [
        "", "best", "worst", "disagree", "", "GRPO", "MemPO",
    ]  # fmt: skip
    assert "9 of 9 trajectories" in page.texts["p"]


def test_equal_rewards_are_ranked_by_f1_and_then_by_the_last_memory(read_page):
    ranked = [
        trajectory(step(p_answer_mem=0.9), f1=0.5),
        trajectory(step(p_answer_mem=0.9), step(p_answer_mem=0.1), f1=0.4),
        trajectory(step(p_answer_mem=0.2), step(p_answer_mem=None), f1=0.4),
    ]
    assert groups(read_page(trajectories_html(ranked))) == ["best", "worst", ""]


def test_one_method_needs_no_choice_of_methods(read_page):
    page = read_page(trajectories_html([trajectory(), trajectory()]))
    assert not page.all("div", **{"data-filter": "method"})


def test_no_trajectories_make_a_page_that_says_so(read_page):
    page = read_page(trajectories_html([]))
    assert "No trajectories were kept." in page.text
    assert not page.all("script") and not page.all("button")


def test_described_trajectories_can_be_shown(read_page, codec, write_step, make_trajectory):
    written = write_step(
        codec,
        "<mem>nothing yet</mem><think>search</think><tool_call>river</tool_call>",
        observation="The Seine.",
    )
    kept = describe([make_trajectory([written])], {"p_answer_mem": [0.5]}, codec.text)
    page = read_page(trajectories_html([{"method": "MemPO", "seed": 3, **one} for one in kept]))
    for shown in ("nothing yet", "search", "river", "The Seine.", "seed 3"):
        assert shown in page.text
