import pytest

from conf.study import load_study, studies
from conf.text import ConfigError

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


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refused(*args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        load_study(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
def test_a_wrong_study_is_refused_by_name(write, text, parts):
    message = refused(write(text))
    assert [part for part in parts if part not in message] == []


def test_an_unknown_study_lists_those_there_are():
    message = refused("dmeo")
    assert "'dmeo'" in message and "demo" in message


@pytest.mark.parametrize(
    ("variant", "named"),
    [
        ("{sett: [iterations=1]}", "variants.x"),
        ("[iterations=1]", "variants.x"),
        ("{seeds: 3}", "variants.x.seeds"),
        ("{seeds: [a]}", "variants.x.seeds"),
    ],
)
def test_a_variant_that_cannot_be_read_is_refused_by_name(write, variant, named):
    assert named in refused(write(f"preset: test\nvariants:\n  x: {variant}\n"))


def test_a_variant_may_be_its_name_alone(write):
    (child,) = load_study(write("preset: test\nseeds: [4]\nvariants:\n  x:\n")).children
    assert (child.method, child.seed) == ("x", 4)


def test_the_rule_for_the_best_variant_is_read_and_checked(write):
    text = "preset: test\nvariants:\n  x:\n"
    assert load_study(write(text)).best is None
    best = load_study(write(text + "best: {metric: f1, objectives: 2}\n")).best
    assert best is not None and (best.metric, best.objectives, best.mode) == ("f1", 2, "sampled")
    assert "best" in refused(write(text + "best: {metrik: f1}\n"))
    assert "evaluate.objectives" in refused(write(text + "best: {objectives: 9}\n"))
