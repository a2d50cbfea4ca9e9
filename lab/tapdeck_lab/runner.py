"""Runs the plans of scenarios, one run after the other, and keeps what is done whatever happens.

A run that cannot be made (a program is missing, a method refuses) is a row with its reason, and its
combination is not tried again; nor is one that failed twice. Ctrl-C ends the run that goes on and
leaves what was done, from which `--resume` goes on.
"""

from __future__ import annotations

import collections
import datetime
import math
import shutil
import sys
import time
from pathlib import Path

from . import cycle, restart
from .cycle import Lab
from .methods import Failed, Missing, Refused
from .metrics import METRICS, number
from .results import Results
from .scenario import Run, Scenario
from .testbed import TestbedError

OVERHEAD_S = 1.5
"""What a run takes beside its traffic, until measured, s."""
TRIALS = 7
"""Runs of a search, as a guess."""
MOST_FAILURES = 2
STATUS = {Missing: "missing", Refused: "refused"}


def expected_s(scenario: Scenario, run: Run, overhead_s: float = OVERHEAD_S) -> float:
    s = run.settings
    traffic = s["seconds"] + s["warmup_s"]
    if s["packets"]:
        # A share of what is measured later is nothing to reckon with.
        pps = (
            math.inf
            if s["rate"].startswith(("disk:", "no-drop:"))
            else cycle.pps_of(s["rate"], 500)
        )
        traffic = s["packets"] / min(pps, 1e6)
    return (traffic + overhead_s) * (TRIALS if scenario.measure == "no-drop" else 1)


class Progress:
    """Lines on standard error: what was done, and how long the rest will take."""

    def __init__(self, left: list[tuple[Scenario, Run]]) -> None:
        self.total = len(left)
        self.left_s = sum(expected_s(s, r) for s, r in left)
        self.expected = self.took = 0.0
        self.number = 0

    def done(self, scenario: Scenario, run: Run, took_s: float, outcome: str) -> None:
        self.number += 1
        expected = expected_s(scenario, run)
        self.left_s -= expected
        self.expected += expected
        self.took += took_s
        left = self.left_s * self.took / self.expected
        levels = " ".join(run.levels.values())
        print(
            f"[{self.number}/{self.total}] {scenario.name} {levels} #{run.repetition + 1}: "
            f"{outcome}; {duration(left)} left",
            file=sys.stderr,
            flush=True,
        )


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes:02} min"
        if hours
        else f"{minutes} min {seconds:02} s"
        if minutes
        else f"{seconds} s"
    )


def run_all(lab: Lab, out: Path, scenarios: list[Scenario], resume: bool) -> None:
    """Run what is left of the plans of scenarios.

    Raises
    ------
    ResultsError
        A directory holds other results; nothing has been run.
    KeyboardInterrupt
        The user ended it; what was done is kept.
    """
    all_results = [Results.create(out, scenario, resume) for scenario in scenarios]
    left = []
    for results in all_results:
        done = results.done()
        left += [(results, run) for run in results.scenario.plan() if run.order not in done]
    progress = Progress([(results.scenario, run) for results, run in left])
    impossible: dict[tuple[str, ...], tuple[str, str]] = {}
    failures: collections.Counter[tuple[str, ...]] = collections.Counter()
    for results, run in left:
        begin = time.monotonic()
        combination = (results.scenario.name, *run.levels.values())
        outcome, metrics = _run_one(lab, results, run, impossible.get(combination))
        if outcome:
            failures[combination] += 1
            if outcome[0] != "failed" or failures[combination] == MOST_FAILURES:
                impossible[combination] = outcome
        progress.done(
            results.scenario,
            run,
            time.monotonic() - begin,
            _in_words(results.scenario, outcome, metrics),
        )


def _run_one(
    lab: Lab, results: Results, run: Run, impossible: tuple[str, str] | None
) -> tuple[tuple[str, str] | None, dict[str, float]]:
    """Make one run and keep its row.

    Returns
    -------
    tuple of (str, str) or None, dict of str to float
        Status and reason where the run could not be made, and the metrics in their base units.
    """
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    begin = time.monotonic()
    row = {"status": "ok", "why": "", "started": started}
    metrics, samples = {}, []
    if not impossible:
        try:
            measure = cycle.search if results.scenario.measure == "no-drop" else cycle.measure
            measured = measure(lab, run.settings, run.seed)
            metrics, samples = measured.metrics, measured.samples
            row |= {"capture": measured.capture_command, "generate": measured.generate_command}
        except (Missing, Refused, Failed, TestbedError) as error:
            impossible = (STATUS.get(type(error), "failed"), str(error))
    if impossible:
        row |= {"status": impossible[0], "why": impossible[1]}
    row["took_s"] = f"{time.monotonic() - begin:.3f}"
    results.add(run, row, metrics, samples)
    return impossible, metrics


def _in_words(
    scenario: Scenario, outcome: tuple[str, str] | None, metrics: dict[str, float]
) -> str:
    if outcome:
        return ": ".join(outcome)
    shown = []
    for name in scenario.metrics[:2]:
        value = metrics.get(name)
        if value is not None:
            metric = METRICS[name]
            shown.append(f"{metric.title} {number(value * metric.scale)} {metric.unit}".strip())
    return ", ".join(shown)


def clean_up(work: Path) -> None:
    restart.unmount_stale(work)
    shutil.rmtree(work, ignore_errors=True)
