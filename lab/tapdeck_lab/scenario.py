"""Scenarios: an experiment as a TOML file, read strictly.

Every key must be known and every value possible; otherwise the file is refused with the line and
the reason, because an experiment that silently ignores half of what it was told measures something
else.

```toml
title = "..."                     # shown in the report
source = "schneider-2005, 6.3.1"  # the reference and its section
asks = "..."                      # the question
found = "..."                     # what the reference found
differs = "..."                   # what is different here, and why
measure = "run"                   # or "no-drop": a binary search is a run

[settings]                        # held: see settings.py
size = "64"

[factors]                         # varied: values of a setting,
rate = ["100mbit", "max"]
[factors.system]                  # or named levels of several settings together
default = { queues = 1 }
tuned = { queues = 2, napi = "thread" }

[runs]
repetitions = 5                   # of each combination, in random order from `seed`
seed = 1
metrics = ["loss", "cpu_busy"]    # the ones that the report is about

[[only]]                          # combinations left out, each a reason and the levels
why = "..."
leave_out = { method = "tcpdump", system = "tuned" }

# What the report makes of it; the classes below say what each holds.
[[plot]] / [[test]] / [anova] / [[claim]] / [[goal]]

[quick.settings] / [quick.factors] / [quick.runs]    # what the quick profile changes
```
"""

from __future__ import annotations

import itertools
import random
import tomllib
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any, cast

from . import settings
from .metrics import METRICS
from .settings import Settings

PROFILES = ("full", "quick", "once")
"""`once` is the full profile with one short run of each combination: does all of it run here?"""
ONCE_S = 0.5


Table = dict[str, Any]
"""A table of a TOML file, whose values may be of any type until they are checked."""


class ScenarioError(Exception):
    """`path:line: reason`, one a line."""


@dataclass(frozen=True)
class Level:
    """A level of a factor: its name, and the settings that make it."""

    name: str
    settings: dict[str, object]


Factors = dict[str, list[Level]]


@dataclass(frozen=True)
class Plot:
    """A picture, with a row for each metric of `y` and a column for each level of `panel`.

    `lines` are means with minimum and maximum, against a factor or a metric; `bars` are means with
    95 % intervals, grouped.
    """

    kind: str
    y: list[str]
    x: str
    by: str = "method"
    panel: str = ""
    title: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Test:
    """Welch's tests of a metric between `base` and every other level of a factor.

    They are made within each combination of the other factors' levels.
    """

    metric: str
    base: str
    factor: str = "method"


@dataclass(frozen=True)
class AnovaOf:
    metric: str
    factors: list[str]
    log: bool = False


@dataclass(frozen=True)
class Claim:
    """What the reference found, in a form that can be tested here.

    `less`, `more`: the metric of level `a` against that of level `b`, all other conditions pooled.
    `same`: their difference lies within `margin` (in the metric's unit). `none`: of level `a` the
    metric is 0 in every run. `explains`: factor `a` has at least `share` of the variation.
    """

    says: str
    expect: str
    metric: str
    a: str
    b: str = ""
    factor: str = "method"
    where: dict[str, str] = field(default_factory=dict)
    margin: float = 0.0
    share: float = 0.5


@dataclass(frozen=True)
class Goal:
    """What the design promises: a metric of `method` is at least (or at most) `goal`.

    Or its ratio: to that of the method `of`, or to its own at the levels `than`. The median of the
    runs counts; where nothing at all is allowed, each of them does.
    """

    says: str
    metric: str
    goal: float
    where: dict[str, str] = field(default_factory=dict)
    of: str = ""
    than: dict[str, str] = field(default_factory=dict)
    method: str = "tapdeck-xdp"
    at_most: bool = False
    best_peer: str = ""
    """The best that was known of a peer when the goal was set."""


Part = Plot | Test | AnovaOf | Claim | Goal
"""What a table of a scenario file may become."""


@dataclass(frozen=True)
class Run:
    """One run of the plan: which levels, which repetition, which seed; `order` is its place."""

    order: int
    levels: dict[str, str]
    settings: Settings
    repetition: int
    seed: int


@dataclass(frozen=True)
class Scenario:
    name: str
    text: str
    """The file."""
    profile: str
    title: str
    source: str
    asks: str
    found: str
    differs: str
    measure: str
    settings: dict[str, object]
    factors: dict[str, list[Level]]
    repetitions: int
    seed: int
    metrics: list[str]
    left_out: list[tuple[str, dict[str, str]]]
    plots: list[Plot]
    tests: list[Test]
    anova: AnovaOf | None
    claims: list[Claim]
    goals: list[Goal]

    def plan(self) -> list[Run]:
        """Returns all runs in their order.

        Each repetition goes through all combinations, in an order of its own. So the combinations
        are spread over the time of the experiment, and what changes meanwhile hits all alike.
        """
        rng = random.Random(f"{self.name} {self.seed}")
        combinations = [
            c for c in itertools.product(*self.factors.values()) if not self._is_left_out(c)
        ]
        runs: list[Run] = []
        for repetition in range(self.repetitions):
            shuffled = list(combinations)
            rng.shuffle(shuffled)
            for levels in shuffled:
                values: dict[str, object] = {**settings.defaults(), **self.settings}
                for level in levels:
                    values |= level.settings
                names = {
                    factor: level.name for factor, level in zip(self.factors, levels, strict=True)
                }
                run_settings = cast(Settings, values)
                runs.append(
                    Run(len(runs), names, run_settings, repetition, rng.randrange(1, 2**31))
                )
        return runs

    def _is_left_out(self, combination: tuple[Level, ...]) -> bool:
        names = {
            factor: level.name for factor, level in zip(self.factors, combination, strict=True)
        }
        return any(
            all(names.get(f) == level for f, level in levels.items()) for _, levels in self.left_out
        )


def load(path: Path, profile: str = "full") -> Scenario:
    """Read a scenario file.

    Raises
    ------
    ScenarioError
        The file cannot be read, or holds something that is not known or not possible.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    return parse(text, path.stem, profile, str(path))


def parse(text: str, name: str, profile: str = "full", path: str = "scenario") -> Scenario:
    assert profile in PROFILES
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = getattr(error, "lineno", None) or _line_in_message(str(error))
        raise ScenarioError(f"{path}:{line}: {error}") from error
    reader = _Reader(text, path)
    scenario = reader.scenario(table, name, profile)
    if reader.wrong:
        raise ScenarioError("\n".join(reader.wrong))
    return scenario


def _line_in_message(message: str) -> int:
    words = message.replace(",", " ").replace(")", " ").split()
    return int(words[words.index("line") + 1]) if "line" in words else 1


def _is_of(annotation: str, value: object) -> bool:
    match annotation:
        case "float":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "list[str]":
            return isinstance(value, list) and all(isinstance(v, str) for v in value)
        case "dict[str, str]":
            return isinstance(value, dict) and not any(
                isinstance(v, (dict, list)) for v in value.values()
            )
        case _:
            return isinstance(value, {"str": str, "bool": bool}[annotation])


def _short(values: dict[str, object]) -> dict[str, object]:
    """Shorten settings to at most `ONCE_S` of traffic, and a search that soon gives up."""
    limits = {"seconds": ONCE_S, "warmup_s": ONCE_S, "packets": 10_000}
    # What is no number has been refused.
    long = {
        name: most
        for name, most in limits.items()
        if isinstance(value := values.get(name), int | float) and value > most
    }
    return values | long | ({"resolution": 0.5} if "resolution" in values else {})


class _Reader:
    """Takes a parsed file apart and collects all that is wrong with it, each with its line."""

    TOP = ("title", "source", "asks", "found", "differs", "measure")
    TABLES = (
        "settings",
        "factors",
        "runs",
        "only",
        "plot",
        "test",
        "anova",
        "claim",
        "goal",
        "quick",
    )

    def __init__(self, text: str, path: str) -> None:
        self.lines = text.splitlines()
        self.path = path
        self.wrong: list[str] = []

    def refuse(self, where: list[str], reason: str) -> None:
        self.wrong.append(f"{self.path}:{self._line(where)}: {reason}")

    def _line(self, where: list[str]) -> int:
        """Find the line of a key: the last word of `where`, in the table that the others name.

        Entries of an array of tables are named by their number, `plot`, `2`.
        """
        *tables, key = where
        header = ".".join(t for t in tables if not t.isdigit())
        entry = next((int(t) for t in tables if t.isdigit()), 0)
        begin = 0
        if header:
            heads = [
                i for i, line in enumerate(self.lines) if line.strip().strip("[]").strip() == header
            ]
            if not heads:
                return self._line(tables) if tables else 1
            begin = heads[min(entry, len(heads) - 1)]
        for i in range(begin + bool(header), len(self.lines)):
            line = self.lines[i].strip()
            if line.startswith("[") and "=" not in line:
                if line.strip("[]").strip() == f"{header}.{key}".lstrip("."):
                    return i + 1
                if header:
                    break
                continue
            if line.split("=")[0].strip().strip('"') == key:
                return i + 1
        return begin + 1

    def scenario(self, table: Table, name: str, profile: str) -> Scenario:
        for key in table:
            if key not in self.TOP + self.TABLES:
                self.refuse(
                    [key], f"unknown key {key}; there are {', '.join(self.TOP + self.TABLES)}"
                )
        text = {key: self._text(table, [], key) for key in self.TOP}
        measure = text["measure"] or "run"
        if measure not in ("run", "no-drop"):
            self.refuse(["measure"], f"measure must be run or no-drop, not {measure!r}")
        if not text["title"]:
            self.refuse(["title"], "title is missing")
        quick = self._table(table, [], "quick")
        self._known(quick, ["quick"], ("settings", "factors", "runs"))
        values = self._settings(self._table(table, [], "settings"), ["settings"])
        factors = self._factors(self._table(table, [], "factors"), ["factors"])
        runs = self._runs(self._table(table, [], "runs"), ["runs"])
        quick_values = self._settings(
            self._table(quick, ["quick"], "settings"), ["quick", "settings"]
        )
        quick_factors = self._factors(
            self._table(quick, ["quick"], "factors"), ["quick", "factors"]
        )
        quick_runs = self._runs(self._table(quick, ["quick"], "runs"), ["quick", "runs"])
        for factor in quick_factors:
            if factor not in factors:
                self.refuse(
                    ["quick", "factors", factor], f"{factor} is no factor of the full profile"
                )
        if profile == "quick":
            values, factors, runs = (
                values | quick_values,
                factors | quick_factors,
                runs | quick_runs,
            )
        if profile == "once":
            values, runs = _short(settings.defaults() | values), runs | {"repetitions": 1}
            factors = {
                f: [Level(level.name, _short(level.settings)) for level in levels]
                for f, levels in factors.items()
            }
        metrics = runs.get("metrics", [])
        scenario = Scenario(
            name=name,
            text="\n".join(self.lines) + "\n",
            profile=profile,
            **(text | {"measure": measure}),
            settings=values,
            factors=factors,
            repetitions=runs.get("repetitions", 5),
            seed=runs.get("seed", 1),
            metrics=metrics,
            left_out=[
                self._left_out(o, i, factors) for i, o in enumerate(self._tables(table, "only"))
            ],
            plots=[self._plot(p, i, factors) for i, p in enumerate(self._tables(table, "plot"))],
            tests=[self._test(t, i, factors) for i, t in enumerate(self._tables(table, "test"))],
            anova=self._anova(self._table(table, [], "anova"), factors),
            claims=[self._claim(c, i, factors) for i, c in enumerate(self._tables(table, "claim"))],
            goals=[self._goal(g, i, factors) for i, g in enumerate(self._tables(table, "goal"))],
        )
        if not metrics:
            self.refuse(["runs"], "runs.metrics is missing: which metrics is the report about?")
        return scenario

    def _text(self, table: Table, where: list[str], key: str, default: str = "") -> str:
        value = table.get(key, default)
        if not isinstance(value, str):
            self.refuse([*where, key], f"{key} must be text, not {value!r}")
            return default
        return " ".join(value.split())

    def _table(self, table: Table, where: list[str], key: str) -> Table:
        value = table.get(key, {})
        if not isinstance(value, dict):
            self.refuse([*where, key], f"{key} must be a table")
            return {}
        return value

    def _tables(self, table: Table, key: str) -> list[Table]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            self.refuse([key], f"{key} must be written [[{key}]]")
            return []
        return value

    def _known(self, table: Table, where: list[str], keys: tuple[str, ...]) -> None:
        for key in table:
            if key not in keys:
                self.refuse([*where, key], f"unknown key {key}; there are {', '.join(keys)}")

    def _settings(self, table: Table, where: list[str]) -> dict[str, object]:
        for key, value in table.items():
            if reason := settings.check(key, value):
                self.refuse([*where, key], reason)
        return dict(table)

    def _factors(self, table: Table, where: list[str]) -> dict[str, list[Level]]:
        factors = {}
        for factor, levels in table.items():
            here = [*where, factor]
            if factor in METRICS:
                self.refuse(here, f"{factor} is a metric: name the factor otherwise")
            if isinstance(levels, list):
                if factor not in settings.SETTINGS:
                    self.refuse(
                        here,
                        f"no such setting: {factor}; "
                        f"name its levels' settings in [{'.'.join(here)}]",
                    )
                    continue
                for value in levels:
                    if reason := settings.check(factor, value):
                        self.refuse(here, reason)
                factors[factor] = [Level(str(v), {factor: v}) for v in levels]
            elif isinstance(levels, dict):
                for level, values in levels.items():
                    if not isinstance(values, dict):
                        self.refuse([*here, level], f"level {level} must be a table of settings")
                        continue
                    for key, value in values.items():
                        if reason := settings.check(key, value):
                            self.refuse([*here, level], reason)
                factors[factor] = [
                    Level(n, dict(v)) for n, v in levels.items() if isinstance(v, dict)
                ]
            else:
                self.refuse(here, f"factor {factor} must be a list of values or a table of levels")
                continue
            names = [level.name for level in factors[factor]]
            if not names or len(set(names)) < len(names):
                self.refuse(here, f"factor {factor} must have levels, each of them once")
        return factors

    def _runs(self, table: Table, where: list[str]) -> Table:
        self._known(table, where, ("repetitions", "seed", "metrics"))
        for key in ("repetitions", "seed"):
            value = table.get(key, 1)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                self.refuse([*where, key], f"{key} must be a whole number from 1 on, not {value!r}")
        metrics = table.get("metrics", [])
        if not isinstance(metrics, list):
            self.refuse([*where, "metrics"], f"metrics must be a list, not {metrics!r}")
            metrics = []
        for metric in metrics:
            self._metric([*where, "metrics"], metric)
        return dict(table)

    def _metric(self, where: list[str], name: object) -> None:
        if not isinstance(name, str) or name not in METRICS:
            self.refuse(where, f"no such metric: {name!r}; there are {', '.join(METRICS)}")

    def _fields(
        self, table: Table, where: list[str], kind: type[Part], required: tuple[str, ...]
    ) -> Table:
        """Take the fields of a dataclass from a table, each of the type of its annotation.

        What is wrong is refused and left out.
        """
        annotations = {f.name: str(f.type) for f in fields_of(kind)}
        self._known(table, where, tuple(annotations))
        for key in required:
            if key not in table:
                self.refuse(where, f"{key} is missing")
        empty: Table = {"list[str]": [], "float": 0.0}
        fields = {key: empty.get(annotations[key], "") for key in required}
        for key, value in table.items():
            if key not in annotations:
                continue
            if not _is_of(annotations[key], value):
                self.refuse([*where, key], f"{key} must be {annotations[key]}, not {value!r}")
            elif key in ("where", "than"):
                fields[key] = {factor: str(level) for factor, level in value.items()}
            else:
                fields[key] = value
        return fields

    def _factor(self, where: list[str], name: str, factors: Factors) -> None:
        if name not in factors:
            self.refuse(where, f"no such factor: {name!r}; there are {', '.join(factors)}")

    def _level(self, where: list[str], factor: str, name: str, factors: Factors) -> None:
        names = [level.name for level in factors.get(factor, [])]
        # The quick profile may have fewer levels than the file speaks of.
        if factor in factors and name not in names and name not in self._all_levels(factor):
            self.refuse(where, f"{factor} has no level {name!r}; it has {', '.join(names)}")

    def _all_levels(self, factor: str) -> set[str]:
        table = tomllib.loads("\n".join(self.lines)).get("factors", {}).get(factor, [])
        return {str(v) for v in table} if isinstance(table, (list, dict)) else set()

    def _left_out(self, table: Table, i: int, factors: Factors) -> tuple[str, dict[str, str]]:
        where = ["only", str(i)]
        self._known(table, where, ("why", "leave_out"))
        levels = self._table(table, where, "leave_out")
        if not levels:
            self.refuse([*where, "leave_out"], "leave_out is missing: which levels?")
        for factor, level in levels.items():
            self._factor([*where, "leave_out"], factor, factors)
            self._level([*where, "leave_out"], factor, str(level), factors)
        return self._text(table, where, "why"), {f: str(level) for f, level in levels.items()}

    def _plot(self, table: Table, i: int, factors: Factors) -> Plot:
        where = ["plot", str(i)]
        fields = self._fields(table, where, Plot, ("kind", "y", "x"))
        if fields["kind"] not in ("lines", "bars"):
            self.refuse([*where, "kind"], f"kind must be lines or bars, not {fields['kind']!r}")
        for metric in fields["y"]:
            self._metric([*where, "y"], metric)
        if fields["x"] not in factors and fields["x"] not in METRICS:
            self.refuse([*where, "x"], f"x must be a factor or a metric, not {fields['x']!r}")
        for key in ("by", "panel"):
            name = fields.get(key, "method" if key == "by" else "")
            if name:
                self._factor([*where, key], name, factors)
        return Plot(**fields)

    def _test(self, table: Table, i: int, factors: Factors) -> Test:
        where = ["test", str(i)]
        fields = self._fields(table, where, Test, ("metric", "base"))
        factor = fields.get("factor", "method")
        self._metric([*where, "metric"], fields["metric"])
        self._factor([*where, "factor"], factor, factors)
        self._level([*where, "base"], factor, fields["base"], factors)
        return Test(**fields)

    def _anova(self, table: Table, factors: Factors) -> AnovaOf | None:
        if not table:
            return None
        fields = self._fields(table, ["anova"], AnovaOf, ("metric", "factors"))
        self._metric(["anova", "metric"], fields["metric"])
        if len(fields["factors"]) != 2:
            self.refuse(["anova", "factors"], "factors must be two")
        for factor in fields["factors"]:
            self._factor(["anova", "factors"], factor, factors)
        return AnovaOf(**fields)

    def _claim(self, table: Table, i: int, factors: Factors) -> Claim:
        where = ["claim", str(i)]
        fields = self._fields(table, where, Claim, ("says", "expect", "metric", "a"))
        self._metric([*where, "metric"], fields["metric"])
        factor = fields.get("factor", "method")
        if fields["expect"] == "explains":
            self._factor([*where, "a"], fields["a"], factors)
        elif fields["expect"] in ("less", "more", "same", "none"):
            self._factor([*where, "factor"], factor, factors)
            for key in ("a",) if fields["expect"] == "none" else ("a", "b"):
                self._level([*where, key], factor, fields.get(key, ""), factors)
            if fields["expect"] == "same" and not fields.get("margin"):
                self.refuse(
                    [*where, "margin"], "margin is missing: how different is still the same?"
                )
        else:
            self.refuse(
                [*where, "expect"],
                f"expect must be less, more, same, none or explains, not {fields['expect']!r}",
            )
        for name, level in fields.get("where", {}).items():
            self._factor([*where, "where"], name, factors)
            self._level([*where, "where"], name, str(level), factors)
        return Claim(**fields)

    def _goal(self, table: Table, i: int, factors: Factors) -> Goal:
        where = ["goal", str(i)]
        fields = self._fields(table, where, Goal, ("says", "metric", "goal"))
        self._metric([*where, "metric"], fields["metric"])
        for key in ("of", "method"):
            if key in fields:
                self._level([*where, key], "method", fields[key], factors)
        for key in ("where", "than"):
            for name, level in fields.get(key, {}).items():
                self._factor([*where, key], name, factors)
                self._level([*where, key], name, str(level), factors)
        if "method" in factors and not fields.get("method"):
            self._level([*where, "method"], "method", Goal.method, factors)
        return Goal(**fields)
