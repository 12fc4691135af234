"""The page in a real browser: what a phone and a desk show of it, light and dark.

The pictures are kept in the test's folder (`pytest --basetemp FOLDER` says where), to be looked at.
A browser makes no window narrower than some 500 pixels, so the page stands in frames.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from mempo.evaluation.report import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is on the PATH"),
]

GRPO, MEMPO = (0, 114, 178), (213, 94, 0)  # their colours, as the palette has them
PHONE, DESK, NARROW = (390, 844), (1280, 900), (360, 844)
LONG = "Which river flows through the capital of the country whose anthem nobody can sing? " * 3

# What is measured of a framed page: its width, what sticks out of it, and what filters do.
MEASURE = """
const measure = frame => {
  const page = frame.contentDocument, width = frame.contentWindow.innerWidth;
  page.querySelectorAll("details").forEach(one => { one.open = true; });
  const inside = one => one.closest(".wide") && !one.matches(".wide");
  const out = [...page.querySelectorAll("body *")]
    .filter(one => one.getBoundingClientRect().right > width + 1 && !inside(one))
    .map(one => `${one.tagName}.${one.className}`);
  const box = page.querySelector(".wide");
  const press = value => page.querySelector(`button[data-value="${value}"]`).click();
  const shown = () => [...page.querySelectorAll("details.trajectory")].filter(c => !c.hidden);
  const found = {
    page: page.documentElement.scrollWidth, width, out,
    box: box.clientWidth, table: box.querySelector("table").scrollWidth,
    all: shown().length, status: page.querySelector(".shown").textContent,
  };
  press("GRPO"); found.grpo = shown().map(card => card.dataset.method);
  press("worst"); found.worst = shown().map(card => card.querySelector(".plain").textContent);
  page.querySelectorAll("[aria-pressed]")[0].click();
  page.querySelectorAll("[data-filter=method] button")[0].click();
  page.querySelector(".more").click(); found.more = shown().length;
  return found;
};
"""


def task(method: str, seed: int, k: int, question: int) -> dict[str, Any]:
    better = 0.2 * (method == "MemPO")
    f1 = min(1.0, 0.1 * question + 0.05 * seed + better)
    return {
        "method": method, "seed": seed, "mode": "greedy", "objectives": k, "pass": 0,
        "question_id": str(question), "f1": f1, "em": float(f1 > 0.4), "format": 1.0,
        "p_answer": f1, "tt": 300 * k + 10 * question, "pt": 90 + 5 * k, "steps": k + 1,
        "usd": 1e-4, "mem_tokens": 8.0, "em_sum": k * float(f1 > 0.4), "f1_sum": k * f1,
        "step_p_answer": [f1] * (k + 1), "step_mem_tokens": [4] * (k + 1),
        "step_context_tokens": [100 + 20 * s for s in range(k + 1)],
    }  # fmt: skip


def trajectory(method: str, number: int) -> dict[str, Any]:
    step = {
        "memory": f"fact {number} " + "antidisestablishmentarianism" * 4,
        "text": "<think>what is next</think>",
        "action": "answer",
        "query_or_answer": "the Seine",
        "observation": LONG * 2,
        "p_answer_mem": 0.1 * (number % 10),
        "p_answer_full": 0.9,
        "adv_mem": 1.5,
        "prompt_tokens": 30,
        "output_tokens": 12,
    }
    asked = {"method": method, "seed": 0, "question": LONG, "gold": "Seine", "answer": "x" * 200}
    scores = {"status": "answered", "reward": number / 10, "f1": number / 20, "em": 0.0}
    return {**asked, **scores, "advantage": -1.0, "steps": [step, step | {"memory": "less"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small report whose texts are as long and unbroken as models write them."""
    folder = tmp_path_factory.mktemp("screenshots")
    methods = ("GRPO", "MemPO")
    curves = [
        {"method": m, "seed": s, "iteration": i, "metric": "reward/mean", "value": 0.1 * i}
        for m in methods for s in range(3) for i in range(4)
    ]  # fmt: skip
    tasks = [
        task(m, s, k, q) for m in methods for s in range(3) for k in (2, 8, 16) for q in range(5)
    ]
    write_report(
        folder,
        title="study: what a page of this project looks like " + "x" * 60,
        evaluations=pd.DataFrame(tasks),
        curves=pd.DataFrame(curves),
        trajectories=[trajectory(m, n) for m in methods for n in range(13)],
        notes=["A note with an_identifier_that_is_rather_long_" + "y" * 60],
        facts={"runs": "0123456789abcdef" * 8},
    )
    return folder


def browse(folder: Path, sizes: list[tuple[int, int]], script: str, *options: str) -> str:
    """Frame the report at these sizes, run the script once all are there; the browser's output."""
    frames = "".join(f'<iframe width={w} height={h} src="report.html"></iframe>' for w, h in sizes)
    wrapper = folder / "frames.html"
    wrapper.write_text(
        "<!doctype html><style>body { margin: 0 } iframe { border: 0; display: block }</style>"
        f"<pre hidden></pre>{frames}<script>{script}</script>"
    )
    width, height = (max(side) for side in zip(*sizes, (600, 600), strict=True))
    command = [
        str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--allow-file-access-from-files", "--virtual-time-budget=10000",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height + 200}",
        *options, wrapper.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """What the script measures of the page at each size."""
    sizes = [PHONE, DESK, NARROW]
    script = MEASURE + (
        "window.onload = () => { document.querySelector('pre').textContent = "
        "JSON.stringify([...document.querySelectorAll('iframe')].map(measure)); };"
    )
    dom = browse(folder, sizes, script, "--dump-dom")
    match = re.search(r"<pre[^>]*>(\[.*?\])</pre>", dom, re.DOTALL)
    assert match, dom[-2000:]
    return dict(zip(sizes, json.loads(unescape(match[1])), strict=True))


@pytest.fixture(scope="module")
def screenshot(folder: Path) -> Callable[[tuple[int, int], str], np.ndarray]:
    """screenshot(size, theme): the page's pixels [height, width, 3], kept as a PNG too."""

    def take(size: tuple[int, int], theme: str) -> np.ndarray:
        file = folder / f"report-{size[0]}x{size[1]}-{theme}.png"
        preferred = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
        browse(folder, [size], "", f"--screenshot={file}", preferred)
        Image.open(file).convert("RGB").crop((0, 0, *size)).save(file)
        return np.asarray(Image.open(file)).astype(int)

    return take


def share_of(pixels: np.ndarray, colour: tuple[int, int, int]) -> float:
    """The share of pixels that are this colour, but for the rounding of a picture."""
    return float((np.abs(pixels - np.array(colour)).max(axis=2) <= 8).mean())


@pytest.mark.parametrize("size", [PHONE, DESK, NARROW])
def test_the_page_never_scrolls_sideways_and_its_tables_do(
    measured: dict[tuple[int, int], dict[str, Any]], size: tuple[int, int]
) -> None:
    found = measured[size]
    assert found["width"] == size[0]
    assert (found["page"], found["out"]) == (size[0], [])
    assert found["box"] < size[0]
    assert found["table"] > found["box"]  # three K of four quantities: wider than any of the three


def test_filters_choose_trajectories_and_long_lists_come_in_pieces(
    measured: dict[tuple[int, int], dict[str, Any]],
) -> None:
    found = measured[PHONE]
    assert (found["all"], found["more"]) == (20, 26)
    assert found["status"] == "26 of 26 trajectories, the first 20 shown"
    assert found["grpo"] == ["GRPO"] * 13
    assert found["worst"] == ["wrong", "partly right, F1 0.05", "partly right, F1 0.10"]


@pytest.mark.parametrize(("size", "theme"), [(PHONE, "light"), (PHONE, "dark"), (DESK, "light")])
def test_the_picture_shows_the_methods_in_their_colours(
    screenshot: Callable[[tuple[int, int], str], np.ndarray], size: tuple[int, int], theme: str
) -> None:
    pixels = screenshot(size, theme)
    assert pixels.shape == (size[1], size[0], 3)
    background = {"light": (246, 247, 249), "dark": (20, 23, 28)}[theme]
    assert 0.1 < share_of(pixels, background) < 0.9  # neither blank nor of the other theme
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    assert min(share_of(pixels, GRPO), share_of(pixels, MEMPO)) > 2e-5
