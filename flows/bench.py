"""`mempo bench`: each part in a process of its own, under the environment of a run's workers.

Threads, allocator and waiting are then those of a real run, for us and for peers, and no part
inherits the memory of another. `python -m flows.bench` is such a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from flows.progress import say
from mempo.config import Cluster
from tasks.environment import worker_env

if TYPE_CHECKING:
    from mempo.bench.race import Part

PARTS = {  # in order, and what each compares
    "score": "scoring: shared prefixes against a row at a time and padded batches",
    "history": "growth of P(answer | history) with the history",
    "train": "an update: shared prefixes against padded and packed rows",
    "growth": "growth of scoring and update with rollouts, steps and replies",
    "rollout": "tokens a second of the engines",
    "grpo": "a GRPO step of one turn against TRL's GRPOTrainer",
    "overhead": "what Prefect, Ray and MLflow take of an iteration",
}
KEYS = (
    "grpo_step_vs_trl", "grpo_step_vs_trl_tuned", "score_vs_rows_t3", "score_vs_rows_t6",
    "score_vs_rows_t10", "score_vs_padded_t10", "score_history_growth_exponent",
    "train_vs_padded", "overhead_s_per_iteration", "overhead_frac_wiki",
)  # fmt: skip


def measure_all(
    parts: Sequence[str], model: str, rounds: int, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run parts one after another; all that they found, which `keep` gets after each part.

    Keys of `KEYS` hold the medians of what was measured; `spread` [least, most] of each ratio;
    `cpu` [median, least, most] of those of CPU time, which other work on the machine disturbs less;
    `failed` the parts that ended with an error, after which the others go on;
    `parts` and `machines` the laps, the other facts and the state of the machine, by part.
    """
    found: dict[str, Any] = {}
    record: dict[str, Any] = {"spread": {}, "cpu": {}, "others": {}, "parts": {}, "machines": {}}
    record["failed"] = []
    for part in parts:
        say(f"{part}: {PARTS[part]}")
        with TemporaryDirectory(prefix="mempo-bench-") as folder:
            out = Path(folder) / "found.json"
            command = [sys.executable, "-m", "flows.bench", part, model, str(rounds), str(out)]
            code = subprocess.run(command, env={**os.environ, **worker_env(Cluster())}).returncode
            if code:
                say(f"{part}: ended with status {code}; its lines are above")
                record["failed"].append(part)
                continue
            done = json.loads(out.read_text())
        record["parts"][part] = {"laps": done["laps"], "facts": done["facts"]}
        record["machines"][part] = done["machine"]
        record["machines"][part]["model"] = done["model"]
        record["cpu"] |= {k: [r["median"], r["least"], r["most"]] for k, r in done["cpu"].items()}
        for key, value in done["ratios"].items():
            (found if key in KEYS else record["others"])[key] = value["median"]
            record["spread"][key] = [value["least"], value["most"]]
        keep({**found, **record})
    return {**found, **record}


def table(found: dict[str, Any]) -> str:
    """What was found, for a person, in Markdown."""
    lines = [
        "| measured | median | least | most | in CPU time |",
        "| --- | --- | --- | --- | --- |",
    ]
    for key, (least, most) in found["spread"].items():
        value = found.get(key, found["others"].get(key))
        cpu = "{:.3g} ({:.3g} to {:.3g})".format(*found["cpu"][key]) if key in found["cpu"] else ""
        lines.append(f"| {key} | {value:.3g} | {least:.3g} | {most:.3g} | {cpu} |")
    lines.append("")
    for part, machine in found["machines"].items():
        lines.append(
            f"{part}: model {machine['model']}, {machine['cores']} cores, {machine['threads']} "
            f"threads, load average {machine['load_before']:.1f} before and "
            f"{machine['load_1min']:.1f} after."
        )
    return "\n".join(lines)


def write(found: dict[str, Any], file: Path) -> None:
    """The numbers as JSON, and beside them a picture, where there is something to draw."""
    file.write_text(json.dumps(found, indent=1) + "\n")
    from mempo.bench.picture import NAMES, draw

    if "history" in found["parts"] or NAMES.keys() & {*found, *found["others"]}:
        file.with_suffix(".png").write_bytes(draw(found))


def _measure(part: str, model: str, rounds: int) -> tuple[Part, str]:
    """What a part found, and on what."""
    import torch
    import transformers

    from mempo.bench.subject import subject
    from tasks.environment import pick_threads

    torch.set_num_threads(pick_threads(Cluster()))
    transformers.logging.disable_progress_bar()
    if part == "overhead":
        from flows.overhead import measure

        return measure(rounds), "the presets' own"
    chosen = subject(model)
    say(f"model: {chosen.name}")
    return import_module(f"mempo.bench.{part}").measure(chosen, rounds=rounds, say=say), chosen.name


def main(part: str, model: str, rounds: str, out: str) -> None:
    from mempo.bench.race import machine

    load_before = os.getloadavg()[0]
    begin = time.monotonic()
    found, name = _measure(part, model, int(rounds))
    state = {**machine(), "load_before": load_before, "seconds": time.monotonic() - begin}
    Path(out).write_text(json.dumps({**asdict(found), "machine": state, "model": name}))


if __name__ == "__main__":
    main(*sys.argv[1:])
