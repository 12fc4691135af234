import pytest

from tasks.placement import _cause

STORY = """The actor died of an error in its creation task, \x1b[36mray::Sampler\x1b[39m
  File "actors.py", line 41, in __init__
    raise ValueError("first")
KeyError: 'inner'

During handling of the above exception, another exception occurred:

ValueError: environment.corpus: there is no file x; give one"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (STORY, ("ValueError", "environment.corpus: there is no file x; give one")),
        ("ray.exceptions.OutOfMemoryError: too much", ("OutOfMemoryError", "too much")),
        ("killed by\n  the system", ("ActorDied", "killed by the system")),
    ],
)
def test_the_cause_of_a_dead_actor_is_the_last_error_of_its_story(text, cause):
    assert _cause(text) == cause
