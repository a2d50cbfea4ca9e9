"""Raw results: what a run left, one row each, so that everything else can be made again from them.

A directory holds `machine.json` (machine, versions, disk) and for each scenario a directory with
`scenario.toml` (the file as it was), `profile`, `runs.csv` and `samples.csv`. Columns of
`runs.csv`:

| column | |
| --- | --- |
| order, repetition, seed | the run's place in the plan |
| status | `ok`, `missing` (a program), `refused` (the method cannot do it) or `failed` |
| why | the reason, where the status is not `ok` |
| started, took_s | UTC, and how long the whole cycle took |
| f.NAME | the level of each factor |
| m.NAME | each metric (`metrics.py`), in its base unit, empty where it does not apply |
| capture, generate | the commands |

`samples.csv` has the samplers' rows: `order` of the run, `t_s` since sampling began, the share in %
of each CPU state of each core since the row before, and counters of the capture processes, the disk
and the far end since their start.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd

from . import scenario as scenarios
from .metrics import METRICS
from .scenario import Run, Scenario


class ResultsError(Exception):
    """What is wrong with a directory of results."""


@dataclass
class Results:
    """The results of one scenario, as they grow."""

    directory: Path
    scenario: Scenario

    @classmethod
    def create(cls, out: Path, scenario: Scenario, resume: bool) -> Results:
        directory = out / scenario.name
        results = cls(directory, scenario)
        if (directory / "runs.csv").exists():
            if not resume:
                raise ResultsError(
                    f"{directory} has results already: --resume goes on, another --out begins anew"
                )
            then = (
                (directory / "scenario.toml").read_text(),
                (directory / "profile").read_text().strip(),
            )
            if then != (scenario.text, scenario.profile):
                raise ResultsError(
                    f"{directory} is of another scenario file or profile: "
                    "begin anew with another --out"
                )
            results._cut_torn_line()
            return results
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "scenario.toml").write_text(scenario.text)
        (directory / "profile").write_text(scenario.profile + "\n")
        with open(directory / "runs.csv", "w", newline="") as file:
            csv.writer(file).writerow(results.columns)
        return results

    @property
    def columns(self) -> list[str]:
        factors = [f"f.{name}" for name in self.scenario.factors]
        metrics = [f"m.{name}" for name in METRICS]
        return [
            "order",
            "repetition",
            "seed",
            "status",
            "why",
            "started",
            "took_s",
            *factors,
            *metrics,
            "capture",
            "generate",
        ]

    def _cut_torn_line(self) -> None:
        path = self.directory / "runs.csv"
        text = path.read_text()
        path.write_text(text[: text.rfind("\n") + 1])

    def done(self) -> set[int]:
        with open(self.directory / "runs.csv", newline="") as file:
            return {int(row["order"]) for row in csv.DictReader(file)}

    def add(
        self,
        run: Run,
        row: dict[str, Any],
        metrics: dict[str, float],
        samples: list[dict[str, float]],
    ) -> None:
        """Keep the row and the samples of a run.

        The samples are written first, because a run counts as done when it has its row.
        """
        if samples:
            self._append_samples(run, samples)
        row = row | {"order": run.order, "repetition": run.repetition, "seed": run.seed}
        row |= {f"f.{name}": level for name, level in run.levels.items()}
        row |= {
            f"m.{name}": f"{value:.12g}" for name, value in metrics.items() if not math.isnan(value)
        }
        line = io.StringIO()
        csv.DictWriter(line, self.columns, lineterminator="\n").writerow(row)
        with open(self.directory / "runs.csv", "a", newline="") as file:
            file.write(line.getvalue())

    def _append_samples(self, run: Run, samples: list[dict[str, float]]) -> None:
        path = self.directory / "samples.csv"
        new = not path.exists()
        with open(path, "a", newline="") as file:
            writer = csv.DictWriter(
                file, ["order", *samples[0]], lineterminator="\n", extrasaction="ignore"
            )
            if new:
                writer.writeheader()
            writer.writerows({"order": run.order} | sample for sample in samples)


@dataclass
class Loaded:
    """Results as they are read back."""

    scenario: Scenario
    runs: pd.DataFrame
    """One row a run, with columns as in the file; factors' levels are text."""
    planned: int
    """How many runs the plan has."""

    @functools.cached_property
    def good(self) -> pd.DataFrame:
        """The runs that were made, with factors and metrics under their plain names."""
        frame = self.runs[self.runs["status"] == "ok"]
        return frame.rename(columns=lambda c: c[2:] if c[:2] in ("f.", "m.") else c)


def read(out: Path) -> list[Loaded]:
    """Read all scenarios of a directory that have results, in the order of their names.

    Raises
    ------
    ResultsError
        There are none, or a file is not what the lab writes.
    """
    loaded = [_read_one(path.parent) for path in sorted(out.glob("*/runs.csv"))]
    if not loaded:
        raise ResultsError(f"{out} has no results: */runs.csv")
    return loaded


def _read_one(directory: Path) -> Loaded:
    try:
        profile = (directory / "profile").read_text().strip()
        text = (directory / "scenario.toml").read_text()
        scenario = scenarios.parse(text, directory.name, profile, str(directory / "scenario.toml"))
        text_columns = {f"f.{name}": str for name in scenario.factors} | dict.fromkeys(
            ("status", "why", "capture", "generate"), str
        )
        runs = pd.read_csv(
            directory / "runs.csv",
            dtype=text_columns,
            keep_default_na=False,
            na_values={f"m.{m}": [""] for m in METRICS},
        )
    except (OSError, ValueError, scenarios.ScenarioError) as error:
        raise ResultsError(f"{directory}: {error}") from error
    for name in METRICS:
        # Results of an earlier lab may lack a metric.
        column = f"m.{name}"
        runs[column] = pd.to_numeric(runs[column]) if column in runs else float("nan")
    return Loaded(scenario, runs.sort_values("order"), len(scenario.plan()))


def write_machine(out: Path, machine: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "machine.json").write_text(json.dumps(machine, indent=2) + "\n")


def read_machine(out: Path) -> dict[str, Any]:
    """Returns what is known of the machine that made a directory's results; empty if nothing is."""
    path = out / "machine.json"
    return cast(dict[str, Any], json.loads(path.read_text())) if path.exists() else {}
