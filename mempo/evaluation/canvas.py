"""How every figure looks: colours of methods, light and dark, panels, titles, files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from mempo.evaluation.stats import ordered

DPI = 160
WIDTH = 5.0  # inches: 800 pixels, so that half size on a phone still shows 9 pt type
PANEL_HEIGHT = 2.3
_VISIBLE = 0.02


@dataclass(frozen=True)
class Style:
    """How one method looks in every figure; marker and line tell it apart without colour."""

    colour: str
    marker: str
    line: str = "-"


@dataclass(frozen=True)
class Theme:
    """Colours of everything that is not data."""

    ink: str
    grid: str
    paper: str


LIGHT = Theme(ink="#222222", grid="#dddddd", paper="#ffffff")
DARK = Theme(ink="#d8dce3", grid="#3a404b", paper="#1c2027")

# Okabe and Ito's palette for colour-blind readers; their black is a grey that both themes show.
_KNOWN = {
    "SFT": Style("#888888", "s"),
    "ReAct": Style("#009E73", "^"),
    "GRPO": Style("#0072B2", "o"),
    "MemPO": Style("#D55E00", "D"),
}
_SPARE = (
    Style("#56B4E9", "v"),
    Style("#CC79A7", "P"),
    Style("#E69F00", "X"),
    Style("#B5A90B", "h"),  # Okabe and Ito's yellow, darkened until white paper shows it
    Style("#56B4E9", "<", "--"),
    Style("#CC79A7", "p", "--"),
    Style("#E69F00", ">", "--"),
    Style("#B5A90B", "*", "--"),
    Style("#56B4E9", "d", ":"),
    Style("#CC79A7", "H", ":"),
    Style("#E69F00", "8", ":"),
    Style("#B5A90B", "X", ":"),
)


def palette(methods: Iterable[str]) -> dict[str, Style]:
    """A style per method: known names always look the same, others take the spare ones by name."""
    names = ordered(methods)
    others = [name for name in names if name not in _KNOWN]
    spare = {name: _SPARE[i % len(_SPARE)] for i, name in enumerate(others)}
    return {name: _KNOWN.get(name) or spare[name] for name in names}


def png(figure: Figure, *, theme: Theme = LIGHT) -> bytes:
    """The figure as a PNG file in the colours of `theme`; the figure itself stays as it was."""
    _ink(figure, theme)
    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, facecolor=theme.paper)
    _ink(figure, LIGHT)
    # A few flat colours and their edges: a palette loses nothing visible and a third of the size.
    Image.open(drawn).convert("RGB").quantize(128).save(small, format="png")
    return small.getvalue()


def save(figure: Figure, data: pd.DataFrame, folder: str | Path, name: str) -> tuple[Path, Path]:
    """Write `folder/name.png` and `folder/name.csv`, making the folder; returns both paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    picture, table = folder / f"{name}.png", folder / f"{name}.csv"
    picture.write_bytes(png(figure))
    data.to_csv(table, index=False)
    return picture, table


def finding(values: Mapping[str, float], where: str, *, lowest: bool = False) -> str:
    """A panel's second title line: which method leads, if one visibly does.

    ({'GRPO': 0.4, 'MemPO': 0.5}, 'at K = 6') -> 'MemPO highest at K = 6: 0.5'. Empty where the
    first two are closer than 2 %, which no reader of the figure could tell apart.
    """
    ranked = sorted(values.items(), key=lambda item: item[1], reverse=not lowest)
    if not ranked:
        return ""
    (leader, best), second = ranked[0], ranked[-1 if len(ranked) == 1 else 1][1]
    shown = f"{best:,.0f}" if abs(best) >= 100 else f"{best:.2g}"
    if len(ranked) == 1:
        return f"{shown} {where}"
    if abs(best - second) <= _VISIBLE * max(abs(best), abs(second)):
        return ""
    return f"{leader} {'lowest' if lowest else 'highest'} {where}: {shown}"


def canvas(panels: int, *, height: float = PANEL_HEIGHT) -> tuple[Figure, list[Axes]]:
    """An empty figure of `panels` axes of `height` inches, one below the other."""
    figure = Figure(figsize=(WIDTH, height * panels + 0.5), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(panels, 1, squeeze=False)[:, 0])


def dress(axes: Axes, *, title: str, ylabel: str, subtitle: str = "") -> None:
    """Give a panel its title (the quantity), subtitle (the finding), axis label and grid."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=18 if subtitle else 6)
    if subtitle:
        axes.annotate(
            subtitle,
            (0, 1),
            (0, 5),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=9,
        ).set_in_layout(False)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(axis="y", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend above all panels, naming each method once."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    names = ordered(entries)
    columns = 4 if max(map(len, names), default=0) < 12 else 2
    figure.legend(
        [entries[name] for name in names],
        names,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=9,
    )
    _ink(figure, LIGHT)


def _ink(figure: Figure, theme: Theme) -> None:
    for text in figure.findobj(Text):
        text.set_color(theme.ink)  # pyright: ignore[reportAttributeAccessIssue]
    for axes in figure.axes:
        axes.set_facecolor("none")
        axes.tick_params(colors=theme.ink, grid_color=theme.grid)
        for spine in axes.spines.values():
            spine.set_edgecolor(theme.ink)
