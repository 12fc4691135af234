import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.load import (
    cluster_from_anywhere,
    clusters,
    flatten,
    load,
    presets,
    setting_names,
    sha256,
    to_yaml,
)
from conf.text import ConfigError
from mempo.config import Experiment


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def refused(*args, **kwargs) -> str:
    """The message of a refusal, which is always one line."""
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("cluster", clusters())
@pytest.mark.parametrize("preset", presets())
def test_every_shipped_preset_loads_on_every_shipped_cluster(preset, cluster):
    assert load(preset, cluster=cluster).preset == preset


def test_shipped_files_are_described_in_a_sentence():
    for description in (presets() | clusters()).values():
        assert len(description) > 20


def test_later_layers_win(tmp_path):
    cluster = write(tmp_path / "c.yaml", "threads: 3\ntimeout_s: 11\n")
    preset = write(
        tmp_path / "p.yaml", "extends: demo\nseed: 1\niterations: 5\ncluster:\n  threads: 4\n"
    )
    experiment = load(preset, cluster=cluster, overrides=["iterations=6", "seed=2"], seed=3)
    assert experiment.cluster.timeout_s == 11  # only the cluster file says it
    assert experiment.cluster.threads == 4  # the preset over the cluster file
    assert experiment.iterations == 6  # the override over the preset
    assert experiment.seed == 3  # the argument over the override
    assert experiment.rollout.group_size == load("demo").rollout.group_size  # inherited
    assert experiment.preset == "p"


def test_the_last_of_two_overrides_of_a_setting_wins():
    assert load(overrides=["loss.clip=0.3", "loss.clip=0.4"]).loss.clip == 0.4


def test_a_list_replaces_a_list():
    experiment = load(overrides=["evaluate.objectives=[3]"])
    assert experiment.evaluate.objectives == (3,)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("3E-4", 3e-4), ("0.001", 1e-3), ("1", 1.0), (".5", 0.5)],
)
def test_numbers_as_people_write_them(text, value):
    assert load(overrides=[f"learner.lr={text}"]).learner.lr == value


@settings(deadline=None)
@given(st.floats(min_value=1e-12, max_value=1e3))
def test_every_float_survives_an_override(value):
    assert load(overrides=[f"learner.lr={value!r}"]).learner.lr == value


@pytest.mark.parametrize("text", ["1", "memory", "all"])
def test_text_settings_take_what_looks_like_a_number(text):
    assert load(overrides=[f"agent.history={text}"]).agent.history == text


def test_an_address_with_colons_stays_text():
    override = "cluster.address=ray://head:10001"
    assert load(overrides=[override]).cluster.address == "ray://head:10001"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("loss.clp=0.3", ["'loss.clp'", "did you mean 'loss.clip'"]),
        ("clip=0.3", ["'clip'", "did you mean 'loss.clip'"]),
        ("loss.clip.deep=1", ["'loss.clip.deep'"]),
        ("loss=1", ["'loss'", "section", "loss.clip"]),
        ("loss.clip", ["'loss.clip'", "section.setting=value"]),
        ("=3", ["section.setting=value"]),
        ("loss.clip=high", ["loss.clip", "'high'", "must be a number", "Clip range"]),
        ("loss.clip=1.5", ["loss.clip", "less than 1"]),
        ("loss.clip=.nan", ["loss.clip", "finite"]),
        ("loss.kl=.inf", ["loss.kl", "finite"]),
        ("rollout.questions=0", ["rollout.questions", "greater than 0"]),
        ("rollout.questions=2.5", ["rollout.questions", "whole number"]),
        ("rollout.questions=true", ["rollout.questions", "whole number"]),
        ("evaluate.before=1", ["evaluate.before", "true or false"]),
        ("evaluate.objectives=4", ["evaluate.objectives", "list"]),
        ("evaluate.objectives=[4", ["evaluate.objectives=[4", "quote"]),
        ("reward.answer=bleu", ["reward.answer", "'em' or 'f1'"]),
        ("agent.history=some", ["agent.history", "must match"]),
    ],
)
def test_a_wrong_override_is_refused_by_name_with_a_cure(override, parts):
    message = refused(overrides=[override])
    assert [part for part in parts if part not in message] == []


def test_unknown_presets_and_clusters_list_those_there_are():
    message = refused("dmeo")
    assert "unknown preset 'dmeo'" in message and "did you mean 'demo'" in message
    assert all(name in message for name in presets())
    message = refused(cluster="slurm")
    assert "unknown cluster 'slurm'" in message and "ray" in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("iterations: 1\niterations: 2\n", ["'iterations'", "twice", "line 2"]),
        ("loss: {clip: 0.1, clip: 0.2}\n", ["'clip'", "twice"]),
        ("loss: 3\n", ["'loss'", "section", "mine.yaml"]),
        ("lss: {clip: 0.1}\n", ["'lss'", "mine.yaml"]),
        ("loss: {clop: 0.1}\n", ["'loss.clop'", "mine.yaml", "loss.clip"]),
        ("- 1\n- 2\n", ["mine.yaml", "settings"]),
        ("loss: [\n", ["mine.yaml", "not YAML", "line"]),
        ("1: 2\n", ["key 1", "text"]),
        ("extends: 7\n", ["extends", "7"]),
        ("extends: nobody\n", ["unknown preset 'nobody'"]),
        ("extends: mine.yaml\n", ["extends", "circle"]),
    ],
)
def test_a_wrong_preset_file_is_refused_by_name(tmp_path, text, parts):
    message = refused(write(tmp_path / "mine.yaml", text))
    assert [part for part in parts if part not in message] == []


def test_a_missing_file_is_named(tmp_path):
    assert str(tmp_path / "none.yaml") in refused(str(tmp_path / "none.yaml"))


def test_an_empty_section_and_an_empty_file_change_nothing(tmp_path):
    base = load(write(tmp_path / "a.yaml", ""))
    assert load(write(tmp_path / "a.yaml", "loss:\n")) == base


@pytest.mark.parametrize("preset", presets())
def test_the_recorded_yaml_gives_the_experiment_back(tmp_path, preset):
    experiment = load(preset, cluster="ray", overrides=["agent.history=2"], seed=5)
    path = write(tmp_path / "config.yaml", to_yaml(experiment))
    again = load(path)
    assert again.model_copy(update={"preset": preset}) == experiment


def test_flatten_names_every_setting_once():
    flat = flatten(Experiment())
    assert list(flat) == setting_names()
    assert flat["loss.clip"] == 0 and flat["evaluate.objectives"] == [2, 4, 6]


def test_the_hash_sees_what_decides_results_and_nothing_else():
    base = sha256(load())
    assert len(base) == 64
    assert sha256(load(cluster="ray")) == base
    assert sha256(load(overrides=["tracking.experiment=other"])) == base
    for change in ("learner.lr=2e-4", "seed=1", "policy.model=tiny", "evaluate.questions=97"):
        assert sha256(load(overrides=[change])) != base


def test_a_kl_that_is_no_loss_is_refused_with_the_reason():
    message = refused(overrides=["loss.kl_estimator=k1"])
    assert "loss.kl_estimator" in message and "must be one of 'k2' or 'k3'" in message
    assert "expected gradient is zero" in message


def test_resampling_groups_of_one_is_refused():
    message = refused(overrides=["rollout.resample=2", "rollout.group_size=1"])
    assert message.startswith("rollout.resample") and "rollout.group_size" in message
    assert load(overrides=["rollout.resample=2"]).rollout.resample == 2


@pytest.mark.parametrize(
    "override",
    [
        "loss.clip=0.2",
        "loss.clip_high=0.28",
        "loss.kl=0.1",
        "loss.entropy=0.1",
        "loss.aggregation=token_mean",
        "loss.importance=truncated",
    ],
)
def test_what_weighs_or_clips_tokens_is_refused_with_dpo(override):
    load(overrides=[override])
    with pytest.raises(ConfigError) as caught:
        load(overrides=["loss.policy=dpo", override])
    message = str(caught.value)
    assert override.partition("=")[0] in message and "dpo" in message and "\n" not in message


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], (0.2, 0.2)),
        (["loss.clip_high=0.28"], (0.2, 0.28)),
        (["loss.clip=0.1"], (0.1, 0.1)),
        (["loss.policy=cispo"], (0.2, 0.2)),
        (["loss.policy=gspo"], (3e-4, 4e-4)),
        (["loss.policy=gspo", "loss.clip_high=5e-4"], (3e-4, 5e-4)),
        (["loss.policy=gspo", "loss.clip=0.01"], (0.01, 0.01)),
        (["loss.policy=gspo", "loss.clip=0.01", "loss.clip_high=0.02"], (0.01, 0.02)),
    ],
)
def test_a_policy_has_a_clip_range_of_its_own(overrides, expected):
    assert load(overrides=overrides).loss.clip_range == expected


def test_groups_are_not_resampled_before_their_reward_is_known():
    with pytest.raises(ConfigError, match=r"rollout\.resample.*memory\.gain_bonus") as caught:
        load(overrides=["rollout.resample=1", "memory.gain_bonus=0.5"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "lonely",
    [["memory.weight=0"], ["loss.policy=dpo"], ["memory.group=step"], ["agent.kind=react"]],
)
def test_a_group_of_one_that_could_never_learn_is_refused(lonely: list[str]) -> None:
    message = refused(overrides=["rollout.group_size=1", *lonely])
    assert message.startswith("rollout.group_size is 1") and "set it to 2 or more" in message
    load("demo", overrides=["rollout.group_size=1", "iterations=0", *lonely])  # only evaluates
    load("demo", overrides=["rollout.group_size=1", "memory.group=question"])


def test_an_upper_clip_below_the_lower_is_refused() -> None:
    assert "loss.clip_high 0.1 is below" in refused(overrides=["loss.clip_high=0.1"])
    assert "loss.clip_high 0.3 is below" in refused(
        overrides=["loss.clip=0.4", "loss.clip_high=0.3"]
    )
    load("demo", overrides=["loss.policy=gspo", "loss.clip_high=0.0004"])  # above its own 3e-4


@pytest.mark.parametrize("override", ["sft.agents=[]", "sft.temperature=0", "sft.temperature=50"])
def test_a_cold_start_of_no_agent_or_at_no_sane_temperature_is_refused(override: str) -> None:
    assert override.partition("=")[0] in refused(overrides=[override])


def test_settings_of_deepspeed_are_a_name_a_file_or_json(tmp_path):
    def stage(value: str) -> int:
        found = load("demo", overrides=[f"learner.deepspeed={value}"]).learner.deepspeed
        return json.loads(found)["zero_optimization"]["stage"]

    mine = tmp_path / "mine.json"
    mine.write_text('{"zero_optimization": {"stage": 1}}')
    assert [stage("zero3"), stage(str(mine)), stage(mine.read_text())] == [3, 1, 1]
    before = load("demo", overrides=["learner.deepspeed=offload"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(before))
    assert load(str(file)) == before
    for wrong in ("zero9", str(tmp_path / "none.json"), "[1]"):
        with pytest.raises(ConfigError, match="neither the name of a file under conf/deepspeed"):
            stage(wrong)
    with pytest.raises(ConfigError, match=r"learner.backend 'torch' is one process"):
        load("demo", overrides=["cluster.learners=2"])


def test_rollouts_of_older_weights_need_their_correction():
    off = "pipeline=one_step_off"
    with pytest.raises(ConfigError, match=r"loss.importance 'truncated' corrects for; set it, or"):
        load("demo", overrides=[off])
    assert load("demo", overrides=[off, "loss.importance=truncated"]).pipeline == "one_step_off"
    assert load("demo", overrides=[off, "loss.policy=dpo"]).loss.importance == "none"
    assert load("demo").pipeline == "sync"


def test_a_cluster_file_may_name_the_engines_of_the_place(tmp_path):
    big = load("wiki", cluster="h200x8")
    assert (big.rollout.engine, big.learner.backend, big.cluster.learners) == (
        "vllm", "deepspeed", 4
    )  # fmt: skip
    assert big.rollout.questions == load("wiki").rollout.questions
    mine = tmp_path / "mine.yaml"
    mine.write_text("samplers: 2\nrollout: {engin: vllm}\n")
    with pytest.raises(ConfigError, match=r"setting 'rollout.engin' \(cluster file mine.yaml\)"):
        load("demo", cluster=str(mine))


def test_a_cluster_is_named_so_that_other_folders_find_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ray.yaml").write_text("address: head:6379\n")
    assert cluster_from_anywhere("ray") == "ray"  # the one that ships
    assert cluster_from_anywhere("ray.yaml") == str(tmp_path / "ray.yaml")
    with pytest.raises(ConfigError, match="did you mean 'services'"):
        cluster_from_anywhere("sercives")
    (tmp_path / "bad.yaml").write_text("adress: head:6379\n")
    with pytest.raises(ConfigError, match=r"cluster\.adress.*did you mean"):
        cluster_from_anywhere("bad.yaml")
