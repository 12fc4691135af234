import re
import time

import pytest
from pydantic import ValidationError

from conf.load import load
from conf.text import ConfigError
from mempo.config import Environment, Tracking
from mempo.config.addresses import NO_PASSWORD, holds_password, redacted

WITH_PASSWORD = (
    "http://me:hunter2@host:5000",
    "https://:hunter2@host/path",
    "postgresql://me:hunter2@host/db",
    "postgresql+psycopg2://me:hunt/er2@host:5432/db",
    "postgresql://me:hunter2@x@host/db",
    "postgresql://me:12/hunter2@host/db",
    "http://me:123456/hunter2@host",
    "http://me:12 hunter2@host:5000",
    "postgresql://me:hunter 2@host/db",
    "postgresql://me:hunt'er2@host/db",
    'http://me:hunt"er2@host/db',
    "postgresql://me:hunt'er,2@host/db",
    "http://me:hunt'er{2}@host",
    "https://hunter2_0123456789@host/repo",
    "https://hunter2_0123456789:x-oauth-basic@host/repo",
)
WITHOUT = (
    "",
    "http://host:5000",
    "http://host:5000/a@b",
    "http://me@host:5000",
    "https://christopher.longstocking@host",
    "http://host/q?max_tokens=7&key=a",
    "postgresql://me@host/db",
    "sqlite:////folder/a:b@c.db",
    "mlruns",
)


@pytest.mark.parametrize("address", WITH_PASSWORD)
def test_a_password_in_an_address_is_seen_and_masked(address):
    assert holds_password(address)
    assert not re.search(NO_PASSWORD, address)  # the form refuses it, too
    shown = redacted(f"(no answer from {address}); start it")
    assert "hunt" not in shown and "er2" not in shown
    assert shown.startswith("(no answer from ") and shown.endswith("); start it")


@pytest.mark.parametrize("text", ["://" * 20_000, "http://a:b " * 5_000, "x?token" * 10_000])
def test_a_long_line_takes_no_long_time(text):
    begun = time.process_time()
    redacted(text)
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("address", WITHOUT)
def test_an_address_without_a_password_is_left_alone(address):
    assert not holds_password(address) and redacted(address) == address
    assert re.search(NO_PASSWORD, address)
    assert Tracking(uri=address).uri == Environment(retriever_url=address).retriever_url == address


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "PASSWORD",
        "token",
        "pwd",
        "sslpassword",
        "access_token",
        "apikey",
        "X-Api-Key",
        "sig",
    ],
)
def test_a_password_in_a_query_is_one(key):
    address = f"postgresql://host/db?{key}=hunt'er2&a=b"
    assert holds_password(address)
    assert redacted(address) == f"postgresql://host/db?{key}=***&a=b"
    assert not re.search(NO_PASSWORD, address)


@pytest.mark.parametrize(
    ("setting", "cure"),
    [
        ("tracking.uri", "MLFLOW_TRACKING_PASSWORD"),
        ("environment.retriever_url", "MEMPO_RETRIEVER_TOKEN"),
        ("environment.questions", "in the environment"),
    ],
)
def test_a_setting_with_a_password_is_refused_without_repeating_it(setting, cure, tmp_path):
    section, name = setting.split(".")
    file = tmp_path / "mine.yaml"
    file.write_text(f"{section}:\n  {name}: http://me:hunter2@host\n")
    messages = []
    with pytest.raises(ConfigError, match=f"^{setting} holds a password") as refused:
        load("test", overrides=[f"{setting}=http://me:hunter2@host"])
    messages.append(str(refused.value))
    with pytest.raises(ConfigError, match=f"^{setting} holds a password") as refused:
        load(str(file))
    messages.append(str(refused.value))
    with pytest.raises(ValidationError) as invalid:
        {"tracking": Tracking, "environment": Environment}[section](
            **{name: "http://me:hunter2@host"}
        )
    assert all(cure in message for message in messages)
    assert "hunter2" not in " ".join([*messages, str(invalid.value)])


@pytest.mark.parametrize(
    "override",
    [
        "tracking.url=http://me:hunter2@host",
        "http://me:hunter2@host",
        "iterations=http://me:hunter2@host",
        "tracking.experiment.uri=http://me:hunter2@host",
        "cluster.address=http://me:hunter2@host",
        "policy.model=https://me:hunter2@host/model",
    ],
)
def test_no_other_refusal_repeats_a_password(override):
    with pytest.raises(ConfigError) as refused:
        load("test", overrides=[override])
    assert "hunter2" not in str(refused.value)
