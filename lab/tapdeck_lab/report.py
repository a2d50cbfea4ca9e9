"""The report: one HTML file that needs nothing else, made from the raw data alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from . import analysis, methods, plots, results
from .analysis import Standing, p_text
from .metrics import METRICS, number
from .results import Loaded
from .settings import SETTINGS
from .stats import Anova, Summary


@dataclass
class Section:
    """An experiment, as the page shows it."""

    loaded: Loaded
    figures: list[tuple[str, str]] = field(default_factory=list)
    """Caption and SVG."""
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    tests: list[analysis.TestRow] = field(default_factory=list)
    anova: Anova | str | None = None
    anova_figure: str = ""
    verdicts: list[analysis.Verdict] = field(default_factory=list)
    sentence: str = ""
    held: list[tuple[str, str]] = field(default_factory=list)
    """Settings that are not at their defaults."""
    commands: list[tuple[str, str, str]] = field(default_factory=list)
    not_run: list[tuple[dict[str, str], str, str]] = field(default_factory=list)
    flagged: int = 0

    @property
    def agreement(self) -> str:
        words = [v.verdict for v in self.verdicts]
        if not words:
            return ""
        if all(w == "agrees" for w in words):
            return "agrees"
        if all(w == "not decided" for w in words):
            return "not decided"
        return "agrees in part" if "agrees" in words else "disagrees"


def write(out: Path) -> Path:
    """Write `report.html` into a directory of results, and return the file's path."""
    all_loaded = results.read(out)
    sections = [section(loaded) for loaded in all_loaded]
    standings = analysis.standings(all_loaded)
    goals = [row for loaded in all_loaded for row in analysis.goals(loaded)]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": number, "p": p_text, "levels": _levels, "interval": interval}
    page = environment.get_template("report.html.j2").render(
        sections=sections,
        machine=results.read_machine(out),
        wins=[s for s in standings if s.wins],
        losses=sorted((s for s in standings if s.wins is False), key=_by_size),
        undecided=sum(s.wins is None for s in standings),
        metrics=METRICS,
        methods={
            name: method for name, method in methods.ALL.items() if _is_used(name, all_loaded)
        },
        missing=_missing(sections),
        goals=goals,
        math=math,
    )
    path = out / "report.html"
    path.write_text(page)
    return path


def _is_used(name: str, all_loaded: list[Loaded]) -> bool:
    return any(
        name == loaded.scenario.settings.get("method")
        or any(
            name == level.settings.get("method")
            for levels in loaded.scenario.factors.values()
            for level in levels
        )
        for loaded in all_loaded
    )


def _by_size(s: Standing) -> tuple[str, str, bool, float]:
    return (s.scenario, s.row.metric, bool(s.row.where), -abs(s.row.result.difference))


def _missing(sections: list[Section]) -> dict[str, str]:
    return {
        levels.get("method", ""): why
        for s in sections
        for levels, status, why in s.not_run
        if status == "missing"
    }


def _levels(levels: dict[str, str]) -> str:
    return ", ".join(f"{factor} {level}" for factor, level in levels.items()) or "all"


def interval(s: Summary) -> str:
    """Write the mean of a sample and half the width of the mean's interval."""
    if math.isnan(s.low) or s.low == s.high:
        return number(s.mean)
    return f"{number(s.mean)} ± {number(s.high - s.mean)}"


def section(loaded: Loaded) -> Section:
    scenario = loaded.scenario
    made = Section(loaded)
    made.not_run = analysis.not_run(loaded)
    made.held = [
        (SETTINGS[name].means, str(value))
        for name, value in scenario.settings.items()
        if value != SETTINGS[name].default
    ]
    if loaded.good.empty:
        return made
    for i, plot in enumerate(scenario.plots):
        figure = plots.draw(loaded, plot)
        if figure is not None:
            how = (
                "mean, with bars from minimum to maximum"
                if plot.kind == "lines"
                else "mean, 95 % interval, each run a dot"
            )
            made.figures.append(
                (
                    f"{plot.title or scenario.title} ({how})",
                    plots.svg(figure, f"{scenario.name}-{i}"),
                )
            )
    made.columns, made.rows, made.flagged = table(loaded)
    made.tests = analysis.tests(loaded)
    made.anova = analysis.anova(loaded)
    if scenario.anova and isinstance(made.anova, Anova):
        made.anova_figure = plots.svg(
            plots.residuals(made.anova, METRICS[scenario.anova.metric].unit),
            f"{scenario.name}-anova",
        )
    made.verdicts = analysis.verdicts(loaded)
    made.sentence = analysis.sentence(loaded)
    made.commands = _commands(loaded)
    return made


def table(loaded: Loaded) -> tuple[list[str], list[list[str]], int]:
    """Make the table of a scenario: a row for each combination of levels, a column for each metric.

    Returns
    -------
    columns : list of str
        Titles.
    rows : list of list of str
        Levels, the number of runs, and of each metric the mean with its interval, median and range.
    flagged : int
        How many values are far out.
    """
    cells = analysis.cells(loaded)
    metrics = [m for m in loaded.scenario.metrics if any(c.metric == m for c in cells)]
    by_levels: dict[tuple[str, ...], dict[str, analysis.Cell]] = {}
    for cell in cells:
        by_levels.setdefault(tuple(cell.levels.values()), {})[cell.metric] = cell
    rows = []
    for levels, of_metric in by_levels.items():
        row = [*levels, str(max(c.summary.n for c in of_metric.values()))]
        for metric in metrics:
            row.append(_in_table(of_metric[metric]) if metric in of_metric else "-")
        rows.append(row)
    columns = [*loaded.scenario.factors, "runs", *(METRICS[m].label for m in metrics)]
    return columns, rows, sum(c.outliers for c in cells)


def _in_table(cell: analysis.Cell) -> str:
    s = cell.summary
    text = interval(s)
    if s.min != s.max:
        text += f"\n{number(s.median)}, {number(s.min)} to {number(s.max)}"
    return text + (f" ({cell.outliers} far out)" if cell.outliers else "")


def _commands(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Returns of each method its name and the commands of one run, to capture and to generate."""
    runs = loaded.good
    key = "method" if "method" in loaded.scenario.factors else None
    names = [level.name for level in loaded.scenario.factors["method"]] if key else [""]
    found = []
    for name in names:
        of_method = runs[runs[key] == name] if key else runs
        if len(of_method):
            found.append((name, of_method.iloc[0]["capture"], of_method.iloc[0]["generate"]))
    return found
