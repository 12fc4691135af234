import pytest

from conf.study import differing, load_study, studies
from mempo.environments.atlas import AtlasWorld

STUDY = """
description: two learning rates
preset: test
seeds: [1, 2]
set: [iterations=3]
variants:
  slow: {method: Slow, set: [learner.lr=1e-5]}
  fast: {set: [learner.lr=1e-3]}
  start: {method: Start, set: [iterations=0], seeds: [7]}
"""


@pytest.mark.parametrize("name", studies())
def test_every_shipped_study_loads_with_names_that_tell_its_runs_apart(name):
    study = load_study(name)
    names = [child.name for child in study.children]
    assert len(set(names)) == len(names) > 1
    assert len(study.description) > 20
    assert studies()[name] == study.description


def test_the_demo_compares_grpo_and_mempo_from_one_start_with_one_seed():
    by_method = {child.method: child.experiment for child in load_study("demo").children}
    grpo, mempo = by_method["GRPO"], by_method["MemPO"]
    assert (grpo.algorithm, mempo.algorithm) == ("grpo", "mempo")
    assert grpo.model_copy(update={"memory": mempo.memory}) == mempo
    assert by_method["SFT"].iterations == by_method["ReAct"].iterations == 0


def test_variants_times_seeds_with_the_untrained_first(write):
    study = load_study(write(STUDY))
    assert study.name == "mine" and study.description == "two learning rates"
    assert [(c.method, c.variant, c.seed) for c in study.children] == [
        ("Start", "start", 7),
        ("Slow", "slow", 1),
        ("Slow", "slow", 2),
        ("fast", "fast", 1),
        ("fast", "fast", 2),
    ]
    assert [c.experiment.seed for c in study.children] == [7, 1, 2, 1, 2]
    assert [c.experiment.iterations for c in study.children] == [0, 3, 3, 3, 3]
    assert study.children[1].experiment.learner.lr == 1e-5
    assert study.children[1].name == "slow seed 1"


def test_seeds_and_overrides_of_the_call_win(write):
    study = load_study(write(STUDY), seeds=[101], overrides=["learner.lr=0.5"])
    trained = [c for c in study.children if c.experiment.iterations > 0]
    assert [c.seed for c in trained] == [101, 101]
    assert {c.experiment.learner.lr for c in trained} == {0.5}


def test_seed_zero_can_be_asked_for(write):
    study = load_study(write(STUDY), seeds=[0])
    assert {c.seed for c in study.children if c.experiment.iterations > 0} == {0}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (STUDY.replace("preset:", "prest:"), ["mine.yaml", "'prest'", "preset"]),
        ("description: none\n", ["mine.yaml", "variants"]),
        ("variants: [a, b]\n", ["mine.yaml", "variants"]),
        ("set: iterations=3\nvariants: {a: {}}\n", ["mine.yaml", "'set'", "list"]),
        ("variants: {a: {set: loss.clip=3}}\n", ["variants.a.set", "list"]),
        ("variants: {a: {set: [loss.clp=0.1]}}\n", ["loss.clp", "loss.clip"]),
        ("preset: nobody\nvariants: {a: {}}\n", ["unknown preset 'nobody'"]),
    ],
)
def test_a_wrong_study_is_refused_by_name(refused, write, text, parts):
    message = refused(load_study, write(text))
    assert [part for part in parts if part not in message] == []


def test_an_unknown_study_lists_those_there_are(refused):
    message = refused(load_study, "dmeo")
    assert "'dmeo'" in message and "demo" in message
    assert "there is no study file mine/none.yaml" in refused(load_study, "mine/none.yaml")


def children(study):
    return [(c.name, c.experiment.policy.model, c.source) for c in study.children]


CHAIN = """
preset: test
seeds: [1, 2]
variants:
  back: {from: trained, set: [iterations=0, agent.history=all]}
  more: {from: trained, seeds: [2]}
  trained: {set: [iterations=3]}
"""


def test_a_variant_starts_from_the_end_of_another_with_the_same_seed_and_runs_after_it(write):
    study = load_study(write(CHAIN))
    assert children(study) == [
        ("trained seed 1", "tiny", ""),
        ("trained seed 2", "tiny", ""),
        ("back seed 1", "tiny", "trained seed 1"),
        ("back seed 2", "tiny", "trained seed 2"),
        ("more seed 2", "tiny", "trained seed 2"),
    ]
    assert [c.experiment.iterations for c in study.children] == [3, 3, 0, 0, 2]


def test_a_variant_has_the_seeds_of_the_one_that_it_starts_from(write):
    text = CHAIN.replace("trained: {", "trained: {seeds: [2, 5], ")
    names = [c.name for c in load_study(write(text)).children]
    assert names == [f"{v} seed {s}" for v in ("trained", "back") for s in (2, 5)] + ["more seed 2"]


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("from: trained, seeds", "from: nobody, seeds", ["variants.more.from", "nobody", "back"]),
        ("trained: {", "trained: {from: more, ", ["circle", "trained -> more -> trained"]),
        ("trained: {", "trained: {from: trained, ", ["circle", "trained -> trained"]),
        ("iterations=3", "iterations=0", ["variants.back.from", "trained trains nothing"]),
        ("seeds: [2]", "seeds: [3]", ["variants.more.from", "no seed 3", "1, 2"]),
        ("agent.history=all", "policy.model=x", ["variants.back.set", "'from'", "policy.model"]),
        ("from: trained, seeds", "from: [trained], seeds", ["variants.more.from"]),
    ],
)
def test_a_start_from_another_variant_that_cannot_be_is_refused(refused, write, old, new, parts):
    message = refused(load_study, write(CHAIN.replace(old, new, 1)))
    assert [part for part in parts if part not in message] == []


STARTS = """
preset: test
seeds: [1, 2]
starts: {a: models/a, b: models/b}
variants:
  untrained: {set: [iterations=0]}
  trained: {}
  back: {from: trained, set: [iterations=0]}
"""


def test_each_variant_runs_from_each_start_and_the_untrained_once_from_each(write):
    study = load_study(write(STARTS))
    assert children(study) == [
        ("untrained start a seed 1", "models/a", ""),
        ("untrained start b seed 1", "models/b", ""),
        ("trained start a seed 1", "models/a", ""),
        ("trained start a seed 2", "models/a", ""),
        ("trained start b seed 1", "models/b", ""),
        ("trained start b seed 2", "models/b", ""),
        ("back start a seed 1", "models/a", "trained start a seed 1"),
        ("back start a seed 2", "models/a", "trained start a seed 2"),
        ("back start b seed 1", "models/b", "trained start b seed 1"),
        ("back start b seed 2", "models/b", "trained start b seed 2"),
    ]
    assert [c.start for c in study.children[:3]] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("{a: models/a, b: models/b}", "[models/a]", ["'starts'", "name"]),
        ("models/a", "3", ["'starts'", "name"]),
        ("trained: {}", "trained: {set: [policy.model=x]}", ["variants.trained.set", "'starts'"]),
        ("seeds: [1, 2]", "set: [policy.model=x]", ["'set' and 'starts'", "policy.model"]),
    ],
)
def test_starts_that_cannot_be_are_refused(refused, write, old, new, parts):
    message = refused(load_study, write(STARTS.replace(old, new, 1)))
    assert [part for part in parts if part not in message] == []


def test_a_policy_for_all_runs_is_refused_where_the_study_has_starts(refused, write):
    assert "--set policy.model" in refused(
        load_study, write(STARTS), overrides=["policy.model=tiny"]
    )


def test_what_does_not_train_runs_once_unless_the_study_says_otherwise(write):
    text = "seeds: [1, 2]\nset: [iterations=0]\nvariants: {x: %s}\n"
    assert [c.seed for c in load_study(write(text % "{}")).children] == [1]
    assert [c.seed for c in load_study(write(text % "{}"), seeds=[8, 9]).children] == [8]
    assert [c.seed for c in load_study(write(text % "{seeds: [1, 2]}")).children] == [1, 2]
    fresh = load_study(write(text % "{set: [policy.model=tiny]}"))
    assert [c.seed for c in fresh.children] == [1, 2]  # its weights are drawn from the seed


def test_seeds_are_said_once_and_at_least_one(refused, write):
    text = "preset: test\nseeds: %s\nvariants: {x: {}}\n"
    assert "says 4 twice" in refused(load_study, write(text % "[4, 5, 4]"))
    assert "'seeds'" in refused(load_study, write(text % "[]"))
    assert "--seeds says 1 twice" in refused(load_study, write(text % "[4]"), seeds=[1, 1])
    assert "variants.x.seeds" in refused(load_study, write("variants: {x: {seeds: []}}\n"))


def test_the_settings_that_differ_are_named_seed_and_start_aside(write):
    assert differing(load_study(write(CHAIN))) == ["iterations", "agent.history"]


def test_the_history_study_looks_back_at_one_trained_policy_per_seed():
    study = load_study("history", seeds=[5])
    assert [(c.experiment.agent.history, c.source) for c in study.children] == [
        ("1", ""),
        ("3", "mempo seed 5"),
        ("all", "mempo seed 5"),
        ("memory", "mempo seed 5"),
    ]
    assert [c.experiment.algorithm for c in study.children[:1]] == ["mempo"]
    assert [c.experiment.iterations for c in study.children] == [24, 0, 0, 0]


def test_the_memory_study_crosses_reward_group_and_weight_with_a_control():
    study = load_study("memory_reward", seeds=[5])
    trained = [c.experiment.memory for c in study.children if c.experiment.iterations]
    crossed = [(m.reward, m.group, m.weight) for m in trained if m.weight > 0]
    assert sorted(crossed) == sorted(
        (r, g, w)
        for r in ("contrast", "posterior")
        for g in ("question", "step")
        for w in (0.5, 1, 2)
    )
    assert [m.weight for m in trained].count(0) == 1


def test_the_paper_study_measures_every_agent_at_two_to_ten_objectives():
    study = load_study("paper", seeds=[5])
    experiments = [c.experiment for c in study.children]
    assert {e.evaluate.objectives for e in experiments} == {(2, 4, 6, 8, 10)}
    assert {e.policy.model for e in experiments} == {"models/atlas-agents"}
    assert {e.preset for e in experiments} == {"agents"}
    trained = {(e.agent.kind, e.algorithm) for e in experiments if e.iterations}
    kinds = ("self_memory", "react", "truncation", "summary", "retrieval", "external")
    assert trained == {*((k, "grpo") for k in kinds), ("self_memory", "mempo"), ("external", "dpo")}
    assert set(experiments[0].sft.agents) == set(kinds)


def test_the_cost_study_says_how_to_make_its_start_and_has_replies_of_120_tokens():
    study = load_study("cost")
    e = study.children[0].experiment
    assert "--set environment.reply_facts=24" in study.description
    assert f"--out {e.policy.model}" in study.description
    question = AtlasWorld(e.environment).questions("test", 1, objectives=2, key=(0,))[0]
    [reply] = AtlasWorld(e.environment).reply([question], [question.parts[0]])
    assert isinstance(reply, str) and len(reply.split()) == 24 * 4 + 23


@pytest.mark.parametrize(
    ("variant", "named"),
    [
        ("{sett: [iterations=1]}", "variants.x"),
        ("[iterations=1]", "variants.x"),
        ("{seeds: 3}", "variants.x.seeds"),
        ("{seeds: [a]}", "variants.x.seeds"),
    ],
)
def test_a_variant_that_cannot_be_read_is_refused_by_name(refused, write, variant, named):
    assert named in refused(load_study, write(f"preset: test\nvariants:\n  x: {variant}\n"))


def test_a_variant_may_be_its_name_alone(write):
    (child,) = load_study(write("preset: test\nseeds: [4]\nvariants:\n  x:\n")).children
    assert (child.method, child.seed) == ("x", 4)


def test_the_rule_for_the_best_variant_is_read_and_checked(refused, write):
    text = "preset: test\nvariants:\n  x:\n"
    assert load_study(write(text)).best is None
    best = load_study(write(text + "best: {metric: f1, objectives: 2}\n")).best
    assert best is not None and (best.metric, best.objectives, best.mode) == ("f1", 2, "sampled")
    assert "best" in refused(load_study, write(text + "best: {metrik: f1}\n"))
    assert "best" in refused(load_study, write(text + "best: {metric: accuracy}\n"))
    assert "best" in refused(load_study, write(text + "best: {mode: beam}\n"))
    assert "best" in refused(load_study, write(text + "best: f1\n"))
    assert "evaluate.objectives" in refused(load_study, write(text + "best: {objectives: 9}\n"))


def test_the_baseline_of_a_study_is_one_of_its_methods(refused, write):
    text = "variants:\n  a: {method: Mine, set: [iterations=1]}\n  b: {}\n"
    assert load_study(write(text)).baseline == ""
    assert load_study(write(text + "baseline: Mine\n")).baseline == "Mine"
    assert "there are: Mine, b" in refused(load_study, write(text + "baseline: a\n"))
