import json
import math

from hypothesis import given
from hypothesis import strategies as st

from tasks import journal


def entry(step: int, **metrics: float) -> dict:
    return {"kind": "metrics", "time": 100 + step, "step": step, "metrics": metrics}


def test_entries_come_back_in_order_with_their_ends(tmp_path):
    journal.append(tmp_path / "run", entry(1, a=0.5))
    journal.append(tmp_path / "run", entry(2, a=0.25))
    lines = journal.read(tmp_path / "run")
    assert [line.entry for line in lines] == [entry(1, a=0.5), entry(2, a=0.25)]
    assert lines[-1].end == (tmp_path / "run" / "journal.jsonl").stat().st_size


@given(st.lists(st.floats(), min_size=1, max_size=5))
def test_every_float_survives_in_plain_json(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("journal")
    for step, value in enumerate(values):
        journal.append(folder, entry(step, a=value))

    def no_constants(text: str) -> float:
        raise AssertionError(f"{text} is not JSON")

    for line in (folder / "journal.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=no_constants)
    found = [float(line.entry["metrics"]["a"]) for line in journal.read(folder)]
    pairs = zip(found, values, strict=True)
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def test_half_a_line_of_a_killed_writer_spoils_no_other(tmp_path):
    journal.append(tmp_path, entry(1, a=1.0))
    with (tmp_path / "journal.jsonl").open("a") as stream:
        stream.write('{"kind": "metr')
    assert [line.entry["step"] for line in journal.read(tmp_path)] == [1]
    journal.append(tmp_path, entry(2, a=2.0))
    assert [line.entry["step"] for line in journal.read(tmp_path)] == [1, 2]


def test_settled_means_that_all_bytes_are_confirmed(tmp_path):
    assert journal.settled(tmp_path) and journal.touched(tmp_path) == 0
    journal.append(tmp_path, entry(1, a=1.0))
    assert not journal.settled(tmp_path) and journal.touched(tmp_path) > 0
    journal.mark_sent(tmp_path, journal.read(tmp_path)[-1].end)
    assert journal.settled(tmp_path)


def test_the_first_finite_value_of_a_step_is_its_point(tmp_path):
    for line in [entry(1, a=math.nan, b=1.0), entry(1, a=2.0, b=3.0), entry(2, a=math.inf)]:
        journal.append(tmp_path, line)
    first, second, _ = (line.end for line in journal.read(tmp_path))
    assert journal.first_points(journal.read(tmp_path)) == {
        ("a", 1): journal.Point(second, 101, 2.0),
        ("b", 1): journal.Point(first, 101, 1.0),
    }


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=12), st.integers(0, 12))
def test_what_was_logged_at_some_steps_is_found_without_reading_the_rest(
    tmp_path_factory, written, half
):
    folder = tmp_path_factory.mktemp("journal")
    for number, (metrics, step) in enumerate(written):
        if number == half and number:  # a writer was killed here
            with (folder / "journal.jsonl").open("a") as stream:
                stream.write('{"kind": "metr')
        kind = entry(step, a=float(number)) if metrics else {"kind": "best", "step": step}
        journal.append(folder, kind)
        wanted = [
            line
            for line in journal.read(folder)
            if line.entry["step"] in (step, 1) and line.entry["kind"] == "metrics"
        ]
        assert journal.at_steps(folder, {step, 1}) == wanted
    assert journal.at_steps(folder, {9}) == []


def test_a_growing_journal_is_read_once(tmp_path, monkeypatch):
    """Logging an iteration costs the same after ten as after a thousand."""
    parsed = []
    loads = json.loads
    monkeypatch.setattr(journal.json, "loads", lambda raw: parsed.append(raw) or loads(raw))
    for step in range(50):
        journal.append(tmp_path, entry(step, a=1.0))
        line = journal.read(tmp_path, journal.sent(tmp_path))[-1]
        journal.at_steps(tmp_path, {step})
        journal.mark_sent(tmp_path, line.end)
    assert len(parsed) == 3 * 50
