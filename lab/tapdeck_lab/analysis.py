"""What the raw results of a scenario say: cells, tests, analysis of variance, and claims that hold.

All is made from the rows alone (`results.Loaded`). The scenario says what to compare, and `stats`
how.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import pandas as pd

from . import stats
from .metrics import METRICS, number
from .results import Loaded
from .scenario import Claim, Goal
from .stats import Anova, Difference, Summary

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Cell:
    """One combination of levels, and one metric there."""

    levels: dict[str, str]
    metric: str
    summary: Summary
    outliers: int


def conditions(loaded: Loaded, but: Collection[str] = ()) -> list[dict[str, str]]:
    """Combine the levels of all factors but some.

    Parameters
    ----------
    loaded : Loaded
        Whose scenario has the factors.
    but : collection of str
        Names of factors that are left out.

    Returns
    -------
    list of dict of str to str
        Each combination, as the level of each factor; one empty combination where no factor is
        left.
    """
    factors = {
        f: [level.name for level in levels]
        for f, levels in loaded.scenario.factors.items()
        if f not in but
    }
    combinations = itertools.product(*factors.values())
    return [dict(zip(factors, names, strict=True)) for names in combinations]


def values(runs: pd.DataFrame, metric: str, levels: dict[str, str]) -> list[float]:
    """Collect a metric of the runs at some levels.

    Parameters
    ----------
    runs : DataFrame, one row a run
        Has a column for each factor and metric.
    metric : str
        A name of `metrics.METRICS`.
    levels : dict of str to str
        The level that each named factor must have.

    Returns
    -------
    list of float, one for each run that has the metric
        In the unit in which the metric is shown: its base unit times `Metric.scale`.
    """
    wanted = runs[metric].notna().to_numpy()
    for factor, level in levels.items():
        wanted = wanted & (runs[factor] == level).to_numpy()
    scaled = runs[metric].to_numpy(dtype=float)[wanted] * METRICS[metric].scale
    return [float(x) for x in scaled]


def cells(loaded: Loaded) -> list[Cell]:
    """Summarize each metric of the scenario at each combination of levels that has a run."""
    found = []
    for levels in conditions(loaded):
        for metric in loaded.scenario.metrics:
            numbers = values(loaded.good, metric, levels)
            if numbers:
                found.append(
                    Cell(levels, metric, stats.summarize(numbers), sum(stats.outliers(numbers)))
                )
    return found


@dataclass(frozen=True)
class TestRow:
    __test__ = False

    metric: str
    factor: str
    a: str
    b: str
    """The base."""
    where: dict[str, str]
    """Empty: over all conditions."""
    result: Difference
    """a minus b."""
    p: float
    """Corrected by Holm for the number of tests, of those over all conditions or under one."""

    @property
    def significant(self) -> bool:
        return self.p < SIGNIFICANT

    @property
    def a_is_better(self) -> bool | None:
        """None where they do not differ, or no way is better."""
        better = METRICS[self.metric].better
        if not self.significant or not better:
            return None
        return (self.result.difference > 0) == (better == "more")


def tests(loaded: Loaded) -> list[TestRow]:
    """Make the scenario's tests, over all conditions and, where there are several, under each.

    Returns
    -------
    list of TestRow
        First the tests averaged over all conditions, then those under one. A test that lacks runs
        of one side is left out.
    """
    over_all: list[TestRow] = []
    under_each: list[TestRow] = []
    for test in loaded.scenario.tests:
        where = conditions(loaded, {test.factor})
        for level in loaded.scenario.factors[test.factor]:
            if level.name == test.base:
                continue
            names = (test.metric, test.factor, level.name, test.base)
            d = pooled(loaded, *names, {})
            if not math.isnan(d.difference):
                over_all.append(TestRow(*names, where[0] if len(where) == 1 else {}, d, d.p))
            if len(where) == 1:
                continue
            for condition in where:
                a, b = (
                    values(loaded.good, test.metric, condition | {test.factor: n})
                    for n in names[2:]
                )
                if a and b:
                    d = stats.welch(a, b)
                    under_each.append(TestRow(*names, condition, d, d.p))
    return _corrected(over_all) + _corrected(under_each)


def _corrected(rows: list[TestRow]) -> list[TestRow]:
    """Correct the p-values of tests for their number."""
    corrected = stats.holm([row.p for row in rows])
    return [replace(row, p=p) for row, p in zip(rows, corrected, strict=True)]


def anova(loaded: Loaded) -> Anova | str | None:
    """Returns the analysis of variance that the scenario asks for, why there is none, or None."""
    of = loaded.scenario.anova
    if of is None:
        return None
    a, b = of.factors
    runs = loaded.good.dropna(subset=[of.metric])
    # A method that could not be run at one level is left out altogether; the table of what did not
    # run names it.
    for one, other in ((a, b), (b, a)):
        all_of_them = runs[other].nunique()
        complete = runs.groupby(one)[other].nunique()
        runs = runs[runs[one].isin(complete[complete == all_of_them].index)]
    runs = runs.assign(**{of.metric: runs[of.metric] * METRICS[of.metric].scale})
    try:
        return stats.anova(runs, of.metric, a, b, of.log)
    except ValueError as error:
        return str(error)


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    verdict: str
    """`agrees`, `disagrees`, or `not decided`."""
    found: str
    """What was found here, in words."""


def verdicts(loaded: Loaded) -> list[Verdict]:
    """Judge each claim by the 95 % interval of what was measured, over all other conditions."""
    return [Verdict(claim, *_judge(loaded, claim)) for claim in loaded.scenario.claims]


def _judge(loaded: Loaded, claim: Claim) -> tuple[str, str]:
    if claim.expect == "explains":
        result = anova(loaded)
        if not isinstance(result, Anova):
            return "not decided", result or "no analysis of variance"
        share = result.effect(claim.a).share
        return (
            "agrees" if share >= claim.share else "disagrees"
        ), f"{claim.a} explains {100 * share:.1f} % of the variation"
    if claim.expect == "none":
        numbers = values(loaded.good, claim.metric, dict(claim.where) | {claim.factor: claim.a})
        if not numbers:
            return "not decided", f"{claim.a} was not run"
        m = METRICS[claim.metric]
        extent = f"{number(min(numbers))} to {number(max(numbers))} {m.unit}"
        found = f"{m.title} of {claim.a} in {len(numbers)} runs: {extent}"
        return ("agrees" if not any(numbers) else "disagrees"), found
    if not all(_has_level(loaded, claim, name) for name in (claim.a, claim.b)):
        return "not decided", f"{claim.a} and {claim.b} were not both run"
    difference = pooled(loaded, claim.metric, claim.factor, claim.a, claim.b, dict(claim.where))
    return decide(claim, difference), in_words(difference, claim.metric, claim.a, claim.b)


def _has_level(loaded: Loaded, claim: Claim, name: str) -> bool:
    return bool((loaded.good[claim.factor] == name).any())


def decide(claim: Claim, d: Difference) -> str:
    if math.isnan(d.low):
        return "not decided"
    if claim.expect == "same":
        if -claim.margin <= d.low and d.high <= claim.margin:
            return "agrees"
        return "disagrees" if d.low > claim.margin or d.high < -claim.margin else "not decided"
    low, high = (d.low, d.high) if claim.expect == "more" else (-d.high, -d.low)
    if low > 0:
        return "agrees"
    # No difference at all, seen without spread, is no "less" and no "more".
    return "disagrees" if high < 0 or low == high == 0 else "not decided"


def pooled(
    loaded: Loaded, metric: str, factor: str, a: str, b: str, where: dict[str, str]
) -> Difference:
    """Average the difference of two levels over all conditions under which both were measured.

    Parameters
    ----------
    loaded : Loaded
        The runs.
    metric : str
        What is compared.
    factor : str
        The factor that has the levels `a` and `b`.
    where : dict of str to str
        Levels of other factors that the runs must have.

    Returns
    -------
    Difference
        `a` minus `b`, in the unit in which the metric is shown; NaN where no condition has two runs
        of both.
    """
    pairs = []
    for condition in conditions(loaded, {factor, *where}):
        x, y = (values(loaded.good, metric, condition | where | {factor: name}) for name in (a, b))
        if len(x) > 1 and len(y) > 1:
            pairs.append((x, y))
    return stats.stratified(pairs)


def in_words(d: Difference, metric: str, a: str, b: str) -> str:
    m = METRICS[metric]
    unit = "points" if m.unit == "%" else m.unit
    if math.isnan(d.difference):
        return f"{m.title}: too few runs of {a} and {b} to compare"
    if math.isnan(d.low):
        return f"{m.title}: {a} − {b} = {number(d.difference)} {unit}"
    interval = (
        f"95 % interval {number(d.low)} to {number(d.high)}"
        if d.low != d.high
        else "without any spread"
    )
    return f"{m.title}: {a} − {b} = {number(d.difference)} {unit} ({interval}, {p_text(d.p)})"


def p_text(p: float) -> str:
    if math.isnan(p):
        return "p unknown"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def sentence(loaded: Loaded) -> str:
    """Compare, in a sentence, tapdeck's best method with the best of the others.

    The metric is the first of the scenario's for which more or less is better; the sentence is
    empty where there is none.
    """
    metric = next((m for m in loaded.scenario.metrics if METRICS[m].better), None)
    if metric is None or "method" not in loaded.scenario.factors:
        return ""
    m = METRICS[metric]
    means = {}
    for level in loaded.scenario.factors["method"]:
        if level.name in ("count", "drop"):
            continue
        of_level = [
            stats.summarize(v).mean
            for c in conditions(loaded, {"method"})
            if (v := values(loaded.good, metric, c | {"method": level.name}))
        ]
        if of_level:
            means[level.name] = sum(of_level) / len(of_level)
    best = max if m.better == "more" else min
    ours = {n: v for n, v in means.items() if n.startswith("tapdeck")}
    others = {n: v for n, v in means.items() if n not in ours}
    if not ours:
        return ""
    a = best(ours, key=lambda name: ours[name])
    whose = "the best of the others"
    if not others and len(ours) > 1:
        others, whose = {n: v for n, v in ours.items() if n != a}, "the next"
    text = f"Over all conditions {a} has {m.title} of {number(means[a])} {m.unit} in the mean"
    if others:
        b = best(others, key=lambda name: others[name])
        difference = pooled(loaded, metric, "method", a, b, {})
        text += f", and {b}, {whose}, {number(means[b])} {m.unit}; " + in_words(
            difference, metric, a, b
        )
    return text + "."


@dataclass(frozen=True)
class GoalRow:
    scenario: str
    goal: Goal
    by_method: dict[str, Summary]
    reached: bool | None


def goals(loaded: Loaded) -> list[GoalRow]:
    rows = []
    for goal in loaded.scenario.goals:
        where = dict(goal.where)
        by_method = {}
        for level in loaded.scenario.factors["method"]:
            own = {"method": level.name}
            base = [1.0]
            if goal.of or goal.than:
                base = values(
                    loaded.good,
                    goal.metric,
                    where | own | goal.than | ({"method": goal.of} if goal.of else {}),
                )
            numbers = values(loaded.good, goal.metric, where | own)
            if numbers and base and level.name not in ("count", "drop"):
                mean = stats.summarize(base).mean
                by_method[level.name] = stats.summarize([x / mean for x in numbers])
        ours = by_method.get(goal.method)
        reached = None
        if ours and not math.isnan(ours.median):
            most = ours.median if goal.goal else ours.max
            reached = most <= goal.goal if goal.at_most else ours.median >= goal.goal
        rows.append(GoalRow(loaded.scenario.name, goal, by_method, reached))
    return rows


@dataclass(frozen=True)
class Standing:
    """Tapdeck against somebody else, in one test."""

    scenario: str
    row: TestRow
    tapdeck: str
    other: str
    wins: bool | None
    """None: no difference was shown."""


def standings(all_loaded: list[Loaded]) -> list[Standing]:
    found = []
    for loaded in all_loaded:
        for row in tests(loaded):
            a, b = row.a.startswith("tapdeck"), row.b.startswith("tapdeck")
            if (
                row.factor != "method"
                or a == b
                or {row.a, row.b} & {"count", "drop"}
                or not METRICS[row.metric].better
            ):
                continue
            wins = None if row.a_is_better is None else row.a_is_better == a
            ours, other = (row.a, row.b) if a else (row.b, row.a)
            found.append(Standing(loaded.scenario.name, row, ours, other, wins))
    return found


def not_run(loaded: Loaded) -> list[tuple[dict[str, str], str, str]]:
    """Returns levels, status and reason of what could not be run, each method and reason once."""
    frame = loaded.runs[loaded.runs["status"] != "ok"]
    found, seen = [], set()
    for _, row in frame.iterrows():
        levels = {f: row[f"f.{f}"] for f in loaded.scenario.factors}
        # A missing program is missing everywhere.
        key = (levels.get("method"), row["why"])
        if key not in seen:
            seen.add(key)
            found.append((levels, row["status"], row["why"]))
    return found
