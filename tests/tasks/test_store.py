import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import store


def test_home_is_absolute_and_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEMPO_HOME", raising=False)
    assert store.home() == tmp_path / "runs"
    monkeypatch.setenv("MEMPO_HOME", "elsewhere")
    assert store.home() == tmp_path / "elsewhere"


def test_the_layout_is_the_documented_one(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    assert store.run_folder("r1") == tmp_path / "store/r1"
    assert store.iteration_folder("r1", 12) == tmp_path / "store/r1/iterations/000012"
    assert store.checkpoint_folder("r1", 12) == tmp_path / "store/r1/checkpoints/000012"
    assert store.checkpoint_folder("r1", 3, Path("/x")) == Path("/x/store/r1/checkpoints/000003")


@given(st.text() | st.from_regex(r"[.]{0,2}[/\\\\]?\w*\n?"))
def test_what_people_type_as_a_run_never_leads_out_of_the_store(run_id):
    root = Path("/x")
    try:
        folder = store.run_folder(run_id, root)
    except ValueError as error:
        assert "\n" not in str(error) and "is no id of a run" in str(error)
    else:
        assert folder.parent == root / "store" and folder.name == run_id
        assert folder.resolve().parent == (root / "store").resolve()


@pytest.mark.parametrize("run_id", ["", ".", "..", "../x", "a/b", "/etc", "a\n", "~", "a.b", "ä"])
def test_a_run_that_is_no_id_is_refused_in_one_line(run_id):
    with pytest.raises(ValueError, match="is no id of a run") as error:
        store.checkpoint_folder(run_id, 1)
    assert "\n" not in str(error.value)


def test_check_writable_makes_the_folder_and_leaves_nothing_in_it(tmp_path):
    store.check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere/below"])
def test_fault_51_unwritable_store_is_refused_in_one_line(tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"MEMPO_HOME.*set MEMPO_HOME to") as error:
        store.check_writable(tmp_path / place)
    assert "\n" not in str(error.value)
    assert str(tmp_path / place) in str(error.value)


def test_folder_digest_is_the_documented_hash(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.bin").write_bytes(b"123")
    (tmp_path / "a.txt").write_bytes(b"")
    expected = b"a.txt\0" + bytes(8) + b"b/x.bin\0" + bytes(7) + b"\x03" + b"123"
    assert store.folder_digest(tmp_path) == (3, hashlib.sha256(expected).hexdigest())


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=3), st.binary(max_size=4), max_size=4),
    st.dictionaries(st.text("ab", min_size=1, max_size=3), st.binary(max_size=4), max_size=4),
)
def test_folder_digest_tells_folders_apart_and_knows_copies(tmp_path_factory, one, other):
    def digest(files: dict[str, bytes], order: int) -> tuple[int, str]:
        folder = tmp_path_factory.mktemp("digest")
        for name in list(files)[::order]:
            (folder / name).write_bytes(files[name])
        found = store.folder_digest(folder)
        shutil.rmtree(folder)
        return found

    assert digest(one, 1) == digest(one, -1)
    assert (digest(one, 1) == digest(other, 1)) == (one == other)


def test_folder_digest_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a folder"):
        store.folder_digest(tmp_path / "missing")


def test_a_killed_holder_frees_its_lock(tmp_path):
    script = (
        "import sys, time, pathlib; from tasks import store\n"
        "with store.locked(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")],
        stdout=subprocess.PIPE,
        cwd=Path(store.__file__).parents[1],
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with store.locked(tmp_path / "lock"):
        pass
