"""The house: conf -> flows -> tasks -> mempo, a pure library below, nothing heavy above."""

import ast
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("conf", "flows", "mempo", "tasks")
# What each package may import of our own and of what only the edges know.
EDGES = {"prefect", "prefect_ray", "ray", "mlflow"}
FORBIDDEN = {
    "mempo": {"conf", "flows", "tasks", *EDGES},
    "tasks": {"conf", "flows"},
    "conf": {"flows", "tasks", *EDGES},
    "flows": set(),
}
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "accelerate", "vllm", "deepspeed"}

# Importing the flows and the command where none of HEAVY is installed.
WITHOUT_TORCH = f"""
import importlib, sys
for name in {sorted(HEAVY)!r}:
    sys.modules[name] = None
for name in {{modules!r}}:
    importlib.import_module(name)
"""


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether it is imported with the module) for everything a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for scope in ast.walk(tree)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types_only(scope)
        for node in ast.walk(scope)
    }
    for node in ast.walk(tree):
        at_once = id(node) not in inside
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            yield node.module or "", at_once
            yield from ((f"{node.module}.{alias.name}", at_once) for alias in node.names)


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_down_only(package):
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(package)
        for name, _ in imports(path)
        if name.split(".")[0] in FORBIDDEN[package]
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ["conf", "flows"])
def test_nothing_heavy_is_imported_with_flows_and_conf(package):
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(package)
        for name, at_once in imports(path)
        if at_once and name.split(".")[0] in HEAVY
    ]
    assert wrong == []


def test_no_two_modules_import_each_other_in_a_circle():
    modules = {module_name(path): path for package in PACKAGES for path in files(package)}
    above = {
        name: {other for other, at_once in imports(path) if at_once and other in modules}
        for name, path in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name in done:
            return
        for other in above[name]:
            visit(other, (*trail, name))
        done.add(name)

    for name in modules:
        visit(name, ())


def test_flows_and_conf_load_where_torch_is_missing():
    modules = [module_name(path) for package in ("conf", "flows") for path in files(package)]
    code = WITHOUT_TORCH.format(modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_command_is_light_until_it_works():
    code = (
        "import sys\n"
        "from flows.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        f"print(sorted(set(sys.modules) & {HEAVY | EDGES!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_console_command_is_the_one_that_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"mempo": "flows.cli:main"}
    module, _, name = project["scripts"]["mempo"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_commands_are_those_that_others_rely_on():
    from flows.cli import app

    names = {getattr(command.callback, "__name__", "") for command in app.registered_commands}
    assert names >= {"train", "sft", "evaluate", "ablate", "report", "doctor", "fetch", "bench"}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("mempo.agent.reward", "exact_match"),
        ("mempo.agent.reward", "f1"),
        ("mempo.agent.protocol", "parse_step"),
        ("mempo.environments.datasets", "read_questions"),
        ("mempo.credit.advantage", "trajectory_advantage"),
        ("mempo.credit.advantage", "memory_advantage"),
    ],
)
def test_the_names_of_the_library_that_others_rely_on(module, name):
    assert callable(getattr(importlib.import_module(module), name))


def test_tests_mirror_the_modules():
    """A test module stands where the module stands that it tests, or in a folder of its name."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        folder = path.parent.relative_to(ROOT / "tests")
        there = (ROOT / folder).is_dir() or (ROOT / folder).with_suffix(".py").is_file()
        assert there, f"{path}: no {folder} to test"


def test_no_pickle_is_ever_loaded():
    """It runs what its writer put in it: weights are safetensors, records JSON and Parquet."""
    modules = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    calls = {"torch.load", "pd.read_pickle", "pandas.read_pickle", "mlflow.pytorch.load_model"}
    wrong = []
    for path in (path for package in PACKAGES for path in files(package)):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        wrong += [f"{path}: {name}" for name, _ in imports(path) if name.split(".")[0] in modules]
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            said = {word.arg: ast.unparse(word.value) for word in call.keywords}
            if (name := ast.unparse(call.func)) in calls or said.get("allow_pickle") == "True":
                wrong.append(f"{path}: {name}")
    assert wrong == []


def test_weights_are_read_from_safetensors_alone():
    """Those of policies and checkpoints; a GGUF file is no pickle either."""
    wrong = []
    for folder in ("learners", "policies", "samplers"):
        for path in sorted((ROOT / "mempo" / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(call, ast.Call):
                    continue
                name = ast.unparse(call.func)
                said = {word.arg: ast.unparse(word.value) for word in call.keywords}
                if name.startswith("AutoModel") and said.get("use_safetensors") != "True":
                    wrong.append(f"{path.name}:{call.lineno}")
    assert wrong == []
