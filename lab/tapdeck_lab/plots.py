"""Pictures in the manner of the references, as SVG text to be put into a page.

Series differ in colour (Okabe and Ito's, which colour-blind people tell apart), and in marker, dash
and hatch, so that they differ in black and white as well. All axes have titles and units.
"""

from __future__ import annotations

import io
import re
import textwrap

import matplotlib

matplotlib.use("svg")

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats as scipy_stats

from . import analysis, stats
from .metrics import METRICS
from .results import Loaded
from .scenario import Plot
from .settings import SETTINGS
from .stats import Anova

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#999999",
    "#8C6D31",
    "#F0E442",
    "#332288",
)
MARKERS = "os^DvPX*<>hd"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "oo", "++", "||", "**")

pyplot.rcParams.update(
    {
        "font.size": 9,
        "font.family": "DejaVu Sans",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",
        # The same picture has the same identifiers.
        "svg.hashsalt": "tapdeck",
        "legend.frameon": False,
    }
)


def svg(figure: Figure, name: str) -> str:
    """Turn a figure into an element of a page, whose identifiers begin with its name there."""
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)


def draw(loaded: Loaded, plot: Plot) -> Figure | None:
    """Draw the figure of a plot; None where nothing of it was measured."""
    runs = loaded.good
    metrics = [m for m in plot.y if runs[m].notna().any()]
    panels = [level.name for level in loaded.scenario.factors[plot.panel]] if plot.panel else [""]
    series = [level.name for level in loaded.scenario.factors[plot.by]] if plot.by else [""]
    if plot.by:
        series = [s for s in series if (runs[plot.by] == s).any()]
    if not metrics or not series or (plot.x in METRICS and runs[plot.x].isna().all()):
        return None
    width, height = max(5.2, min(11.0, 4.4 * len(panels) + 1.2)), 2.6 * len(metrics) + 0.5
    figure, axes = pyplot.subplots(
        len(metrics),
        len(panels),
        figsize=(width, height),
        squeeze=False,
        sharex="col",
        sharey="row",
        layout="constrained",
    )
    for row, metric in enumerate(metrics):
        extent = []
        for column, panel in enumerate(panels):
            where = {plot.panel: panel} if plot.panel else {}
            axis = axes[row][column]
            extent += (_lines if plot.kind == "lines" else _bars)(
                axis, loaded, plot, metric, series, where
            )
            if row == len(metrics) - 1:
                axis.set_xlabel(x_label(plot.x))
            if column == 0:
                axis.set_ylabel(_wrap(METRICS[metric].label))
            if panel and row == 0:
                axis.set_title(f"{plot.panel}: {panel}", fontsize=9)
        if plot.log_y:
            axes[row][0].set_yscale("log")
        else:
            # All panels of a row share the scale. Whiskers of two or three runs may be longer than
            # all that was measured: whiskers are cut, and bars are not.
            axes[row][0].set_ylim(*_limits(extent, metric))
    named = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    shown = [name for name in series if name in named]
    if len(shown) > 1:
        handles = [named[name] for name in shown]
        figure.legend(
            handles, shown, loc="outside upper center", ncols=min(4, len(shown)), fontsize=8
        )
    return figure


def x_label(x: str) -> str:
    if x in METRICS:
        return METRICS[x].label
    if x not in SETTINGS:
        return x
    what, comma, unit = SETTINGS[x].means.rpartition(", ")
    return f"{what} [{unit}]" if comma and unit in ("bytes", "s", "MiB") else SETTINGS[x].means


def _wrap(label: str) -> str:
    return textwrap.fill(label, 26)


def _lines(
    axis: Axes, loaded: Loaded, plot: Plot, metric: str, series: list[str], where: dict[str, str]
) -> list[float]:
    """Draw means, with bars from the least to the greatest both ways, as Schneider's figures.

    Returns
    -------
    list of float
        The values that are shown, in the unit in which the metric is shown.
    """
    by_factor = plot.x in loaded.scenario.factors
    levels = [level.name for level in loaded.scenario.factors[plot.x]] if by_factor else []
    numeric = by_factor and all(_is_number(level) for level in levels)
    extent: list[float] = []
    for i, name in enumerate(series):
        points = []
        of_series = where | ({plot.by: name} if plot.by else {})
        for condition in analysis.conditions(loaded, {plot.by, plot.panel}):
            levels_here = condition | of_series
            y = stats.summarize(analysis.values(loaded.good, metric, levels_here))
            if y.n == 0:
                continue
            if by_factor:
                at = float(condition[plot.x]) if numeric else float(levels.index(condition[plot.x]))
                points.append((at, at, at, y))
            else:
                along = stats.summarize(analysis.values(loaded.good, plot.x, levels_here))
                points.append((along.mean, along.min, along.max, y))
        if not points:
            continue
        points.sort(key=lambda p: p[0])
        extent += [value for p in points for value in (p[3].min, p[3].max)]
        x = np.array([p[0] for p in points])
        mean, low, high = (
            np.array([getattr(p[3], key) for p in points]) for key in ("mean", "min", "max")
        )
        x_low, x_high = np.array([p[1] for p in points]), np.array([p[2] for p in points])
        axis.errorbar(
            x,
            mean,
            yerr=[np.maximum(0, mean - low), np.maximum(0, high - mean)],
            xerr=None if by_factor else [np.maximum(0, x - x_low), np.maximum(0, x_high - x)],
            label=name,
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            linestyle=DASHES[i % len(DASHES)],
            markersize=4.5,
            linewidth=1.3,
            elinewidth=0.8,
            capsize=2,
        )
    if by_factor and not numeric:
        axis.set_xticks(range(len(levels)), levels)
        _tilt(axis, levels)
    if plot.log_x and (numeric or not by_factor):
        axis.set_xscale("symlog" if numeric and "0" in levels else "log")
    if numeric:
        axis.set_xticks([float(level) for level in levels], levels)
        axis.minorticks_off()
    return extent


def _bars(
    axis: Axes, loaded: Loaded, plot: Plot, metric: str, series: list[str], where: dict[str, str]
) -> list[float]:
    """Draw grouped bars with whiskers of 95 % confidence, and a dot for each run.

    Returns
    -------
    list of float
        The values that are shown, in the unit in which the metric is shown.
    """
    levels = [level.name for level in loaded.scenario.factors[plot.x]]
    same = plot.by == plot.x
    width = 0.8 / (1 if same else len(series))
    extent: list[float] = []
    labelled = set()
    for i, name in enumerate(series):
        for j, level in enumerate(levels):
            if same and name != level:
                continue
            numbers = analysis.values(
                loaded.good, metric, where | {plot.x: level} | ({plot.by: name} if plot.by else {})
            )
            if not numbers:
                continue
            s = stats.summarize(numbers)
            at = j if same else j - 0.4 + width * (i + 0.5)
            axis.bar(
                at,
                s.mean,
                width * 0.92,
                color=COLOURS[i % len(COLOURS)],
                hatch=HATCHES[i % len(HATCHES)],
                edgecolor="black",
                linewidth=0.5,
                label=None if same or name in labelled else name,
                alpha=0.85,
            )
            labelled.add(name)
            if s.n > 1:
                axis.errorbar(
                    at, s.mean, yerr=s.high - s.mean, color="black", capsize=2.5, elinewidth=0.9
                )
            axis.scatter(
                at + width * np.linspace(-0.25, 0.25, s.n + 2)[1:-1],
                numbers,
                s=7,
                color="white",
                edgecolor="black",
                linewidth=0.5,
                zorder=3,
            )
            extent += numbers
    axis.set_xticks(range(len(levels)), levels)
    _tilt(axis, levels)
    axis.grid(axis="x", visible=False)
    return extent


def _tilt(axis: Axes, levels: list[str]) -> None:
    if sum(len(level) for level in levels) > 40:
        axis.tick_params(axis="x", labelrotation=30)
        for label in axis.get_xticklabels():
            label.set_horizontalalignment("right")


def _limits(extent: list[float], metric: str) -> tuple[float, float]:
    """Choose the limits of an axis: from zero on where nothing is below, and shares up to 105 %."""
    low, high = min(extent, default=0.0), max(extent, default=0.0)
    if (
        METRICS[metric].unit == "%"
        and METRICS[metric].scale == 100
        and METRICS[metric].better == "more"
    ):
        return min(low, 0.0), 105.0
    if low >= 0:
        return 0.0, 1.15 * high if high > 0 else 1.0
    margin = 0.1 * (high - low)
    return low - margin, high + margin


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def residuals(result: Anova, unit: str) -> Figure:
    """Draw residuals against predictions, and their quantiles against the normal distribution's."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.2, 3.0), layout="constrained")
    unit = f"log10 of {unit}" if result.log else unit
    left.scatter(
        result.fitted, result.residuals, s=14, color=COLOURS[0], edgecolor="black", linewidth=0.4
    )
    left.axhline(0, color="black", linewidth=0.7)
    left.set_xlabel(f"predicted [{unit}]")
    left.set_ylabel(f"residual [{unit}]")
    left.set_title("residuals against predictions", fontsize=9)
    (normal, ordered), (slope, intercept, _) = scipy_stats.probplot(result.residuals)
    right.scatter(
        normal, ordered, s=14, color=COLOURS[1], marker="^", edgecolor="black", linewidth=0.4
    )
    right.plot(normal, slope * normal + intercept, color="black", linewidth=0.8, linestyle="--")
    right.set_xlabel("quantile of the normal distribution")
    right.set_ylabel(f"quantile of residuals [{unit}]")
    right.set_title("quantile-quantile", fontsize=9)
    return figure
