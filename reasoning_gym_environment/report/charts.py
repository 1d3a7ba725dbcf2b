"""Charts as SVG text to put into the page. Ink and accents take the page's colours, light or dark.

Nothing of a label is read as markup: Matplotlib escapes text in SVG, and its own formula language is switched off.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

LABEL_LENGTH = 44
_INK, _ACCENT, _SECOND, _GRID, _QUIET = "#010203", "#010204", "#010205", "#010206", "#010207"
_PAGE_COLOURS = {
    _INK: "currentColor",
    _ACCENT: "var(--accent)",
    _SECOND: "var(--second)",
    _GRID: "var(--grid)",
    _QUIET: "var(--quiet)",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
}


@dataclass(frozen=True)
class Bar:
    """One bar with its interval; `stands_out` gives it the second colour."""

    label: str
    value: float
    low: float
    high: float
    stands_out: bool = False


def bars(rows: Sequence[Bar], *, axis: str, limits: tuple[float, float] = (0.0, 1.0)) -> str:
    """Horizontal bars in the order given, first on top, values as percentages."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": axis}):
        figure = Figure(figsize=(8.2, 0.7 + 0.24 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        places = list(range(len(rows)))
        colours = [_SECOND if row.stands_out else _ACCENT for row in rows]
        values = [row.value for row in rows]
        below = [max(0.0, row.value - row.low) for row in rows]
        above = [max(0.0, row.high - row.value) for row in rows]
        axes.barh(places, values, height=0.68, color=colours)
        axes.errorbar(values, places, xerr=[below, above], fmt="none", ecolor=_INK, elinewidth=1.0, capsize=2.5)
        axes.set_yticks(places, [shown(row.label) for row in rows])
        axes.invert_yaxis()
        axes.set_ylim(len(rows) - 0.4, -0.6)
        _percent(axes, axis, limits)
        return _svg(figure)


def lines(x: Sequence[float], series: Sequence[tuple[str, Sequence[float]]], *, x_label: str) -> str:
    """Up to two curves of shares over the run."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": x_label}):
        figure = Figure(figsize=(8.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for (name, values), colour, style in zip(series, (_ACCENT, _SECOND, _INK), ("-", "-", ":"), strict=False):
            axes.plot(x, values, style, color=colour, label=name, linewidth=1.8)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel(x_label)
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
        axes.grid(axis="y")
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0))
        return _svg(figure)


def histogram(groups: Sequence[tuple[str, Sequence[float]]], *, x_label: str) -> str:
    """Stacked counts of lengths, up to three kinds."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": x_label}):
        figure = Figure(figsize=(8.2, 2.7), layout="constrained")
        axes = figure.add_subplot()
        axes.hist(
            [list(values) for _, values in groups],
            bins=40,
            stacked=True,
            color=[_ACCENT, _SECOND, _QUIET][: len(groups)],
            label=[name for name, _ in groups],
        )
        axes.set_xlabel(x_label)
        axes.set_ylabel("completions")
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0))
        return _svg(figure)


def shown(label: str) -> str:
    """A label that any font can draw and XML can hold."""
    text = "".join(character if character.isprintable() else "?" for character in label)
    return text if len(text) <= LABEL_LENGTH else f"{text[: LABEL_LENGTH - 1]}…"


def _percent(axes: Axes, label: str, limits: tuple[float, float]) -> None:
    axes.set_xlim(*limits)
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(limits[0] == 0.0)
    if limits[0] < 0:
        axes.axvline(0.0, color=_INK, linewidth=0.8)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # The browser's fonts have what Matplotlib's may miss.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for ours, of_page in _PAGE_COLOURS.items():
        text = text.replace(ours, of_page)
    return text
