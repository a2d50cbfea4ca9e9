"""Two directories of results, metric by metric: what became worse, what better, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from . import analysis, stats
from .metrics import METRICS, number
from .results import Loaded


@dataclass(frozen=True)
class Change:
    scenario: str
    levels: dict[str, str]
    metric: str
    before: float
    difference: stats.Difference
    p: float
    """Corrected by Holm for the number of all comparisons."""

    @property
    def worse(self) -> bool:
        return (self.difference.difference < 0) == (METRICS[self.metric].better == "more")


def changes(before: list[Loaded], after: list[Loaded]) -> list[Change]:
    """Test, at each combination that both have, each metric of which more or less is better.

    Parameters
    ----------
    before, after : list of Loaded
        The results of each directory, by scenario.

    Returns
    -------
    list of Change
        After minus before, in the unit in which the metric is shown; what has fewer than two runs
        on one side is left out.
    """
    then = {loaded.scenario.name: loaded for loaded in before}
    found = []
    for now in after:
        old = then.get(now.scenario.name)
        if old is None or set(old.scenario.factors) != set(now.scenario.factors):
            continue
        for levels in analysis.conditions(now):
            for metric in now.scenario.metrics:
                if not METRICS[metric].better:
                    continue
                x, y = (analysis.values(loaded.good, metric, levels) for loaded in (now, old))
                if len(x) > 1 and len(y) > 1:
                    then_mean, difference = stats.summarize(y).mean, stats.welch(x, y)
                    found.append(
                        Change(
                            now.scenario.name, levels, metric, then_mean, difference, difference.p
                        )
                    )
    corrected = stats.holm([change.p for change in found])
    return [replace(change, p=p) for change, p in zip(found, corrected, strict=True)]


def text(before: list[Loaded], after: list[Loaded]) -> str:
    found = changes(before, after)
    differ = sorted((c for c in found if c.p < analysis.SIGNIFICANT), key=lambda c: c.p)
    lines = []
    for title, wanted in (("worse", True), ("better", False)):
        lines += [line(c, title) for c in differ if c.worse == wanted]
    lines.append(
        f"{len(found)} compared: {sum(c.worse for c in differ)} worse, "
        f"{sum(not c.worse for c in differ)} better "
        f"at {100 * analysis.SIGNIFICANT:.0f} % (Welch's tests, corrected by Holm)"
    )
    return "\n".join(lines)


def line(c: Change, title: str) -> str:
    m = METRICS[c.metric]
    d = c.difference
    share = (
        f" ({100 * d.difference / c.before:+.1f} %)"
        if c.before and not math.isinf(c.before)
        else ""
    )
    levels = " ".join(c.levels.values())
    return (
        f"{title}: {c.scenario} {levels}: {m.title} "
        f"{number(c.before)} -> {number(c.before + d.difference)} {m.unit}{share}, "
        f"difference {number(d.low)} to {number(d.high)}, {analysis.p_text(c.p)}"
    )
