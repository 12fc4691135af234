from pathlib import Path

import pytest

from conf.schedule import load_schedules
from conf.text import ConfigError


def write(folder: Path, text: str) -> Path:
    (folder / "mine.yaml").write_text(text)
    return folder


def test_every_schedule_that_ships_can_be_read_and_starts_nothing_unasked():
    shipped = load_schedules()
    assert shipped
    assert not any(schedule.active for schedule in shipped)


def test_an_editor_s_hidden_files_are_no_schedules_and_capitals_do_not_matter(tmp_path):
    write(tmp_path, "deployment: train/demo\ninterval: 3600\n").joinpath("mine.yaml").rename(
        tmp_path / "HOURLY.YML"
    )
    (tmp_path / ".hidden.yaml").write_text("half of")
    assert [schedule.name for schedule in load_schedules(tmp_path)] == ["HOURLY"]


def test_a_schedule_is_read_with_its_defaults(tmp_path):
    text = "deployment: train/demo\ninterval: 3600\nset: [iterations=2]\n"
    (schedule,) = load_schedules(write(tmp_path, text))
    assert (schedule.name, schedule.deployment) == ("mine", "train/demo")
    assert (schedule.timing, schedule.when, schedule.timezone) == ("interval", 3600, "UTC")
    assert schedule.active and schedule.settings == ("iterations=2",) and not schedule.parameters


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("deployment: train/demo\n", "say when by exactly one of cron, interval, rrule"),
        ("deployment: train/demo\ncron: x\ninterval: 5\n", "say when by exactly one of"),
        ("deployment: train\ncron: '* * * * *'\n", "'deployment' must be FLOW/NAME"),
        ("deployment: a/b\ninterval: soon\n", "'interval' = 'soon' must be whole seconds"),
        ("deployment: a/b\ninterval: 0\n", "'interval' = 0 must be"),
        ("deployment: a/b\ninterval: -5\n", "'interval' = -5 must be at least a second"),
        ("deployment: a/b\ncron: 5\n", "'cron' = 5 must be text"),
        ("deployment: a/b\ncron: x\ntimezone: Mars/Base\n", "'timezone' = 'Mars/Base' is unknown"),
        ("deployment: a/b\ncron: x\nactive: 1\n", "'active' must be true or false"),
        ("deployment: a/b\ncron: x\nparameters: [1]\n", "'parameters' must be"),
        ("deployment: a/b\ncron: x\nset: iterations=2\n", "'set' must be a list"),
        ("deployment: a/b\nwhen: x\n", "unknown key 'when'; allowed: deployment, cron"),
    ],
)
def test_a_schedule_that_cannot_be_used_is_refused_in_one_line(tmp_path, text, fault):
    with pytest.raises(ConfigError) as error:
        load_schedules(write(tmp_path, text))
    assert str(error.value).startswith("schedule mine.yaml: ")
    assert fault in str(error.value) and "\n" not in str(error.value)


def test_both_endings_of_a_yaml_file_are_read_and_a_name_counts_once(tmp_path):
    text = "deployment: train/demo\ninterval: 3600\n"
    (tmp_path / "a.yml").write_text(text)
    (tmp_path / "b.yaml").write_text(text)
    (tmp_path / "README.md").write_text("no schedule")
    assert [(s.name, s.file) for s in load_schedules(tmp_path)] == [("a", "a.yml"), ("b", "b.yaml")]
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "a.yb.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"^schedule a\.yml: a\.yaml has its name, too; rename"):
        load_schedules(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^--schedules: there is no folder"):
        load_schedules(tmp_path / "none")
