"""Scenario files: what is right is read, what is wrong is refused with its line and reason."""

import random
from pathlib import Path

import pytest

from tapdeck_lab import methods, scenario, settings
from tapdeck_lab.scenario import ScenarioError

SCENARIOS = Path(scenario.__file__).parents[1] / "scenarios"

GOOD = """\
title = "t"
source = "somewhere"

[settings]
seconds = 1.0

[factors]
method = ["tapdeck-xdp", "tcpdump"]
rate = ["100mbit", "max"]

[factors.system]
default = { }
tuned = { queues = 2, napi = "thread" }

[runs]
repetitions = 3
seed = 7
metrics = ["loss"]

[[only]]
why = "because"
leave_out = { method = "tcpdump", system = "tuned" }

[[plot]]
kind = "bars"
y = ["loss"]
x = "rate"

[[test]]
metric = "loss"
base = "tcpdump"

[[claim]]
says = "less"
expect = "less"
metric = "loss"
a = "tapdeck-xdp"
b = "tcpdump"

[quick.factors]
rate = ["max"]

[quick.runs]
repetitions = 1
"""


def refused(text: str) -> str:
    with pytest.raises(ScenarioError) as error:
        scenario.parse(text, "s", path="s.toml")
    return str(error.value)


def line_of(text: str, words: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if words in line)


def test_a_plan_has_every_combination_as_often_as_asked() -> None:
    s = scenario.parse(GOOD, "s")
    plan = s.plan()
    # 2 methods x 2 rates x 2 systems, less tcpdump on the tuned one.
    assert len(plan) == 3 * 6
    assert [run.order for run in plan] == list(range(18))
    combinations = [tuple(run.levels.values()) for run in plan]
    assert all(combinations.count(c) == 3 for c in combinations)
    assert ("tcpdump", "max", "tuned") not in combinations
    tuned = next(run for run in plan if run.levels["system"] == "tuned")
    assert (tuned.settings["queues"], tuned.settings["napi"], tuned.settings["seconds"]) == (
        2,
        "thread",
        1.0,
    )


def test_the_order_is_random_and_the_seed_makes_it_again() -> None:
    plan, again = (scenario.parse(GOOD, "s").plan() for _ in range(2))
    other = scenario.parse(GOOD.replace("seed = 7", "seed = 8"), "s").plan()
    assert plan == again
    assert [run.levels for run in plan] != [run.levels for run in other]
    # Each repetition has all combinations, so that time hits all alike.
    for repetition in range(3):
        assert (
            len({tuple(run.levels.values()) for run in plan if run.repetition == repetition}) == 6
        )


def test_the_quick_profile_changes_what_it_says() -> None:
    s = scenario.parse(GOOD, "s", "quick")
    assert len(s.plan()) == 3
    assert s.settings["seconds"] == 1.0


def test_once_is_all_of_the_full_profile_in_short() -> None:
    s = scenario.parse(GOOD.replace("seconds = 1.0", "seconds = 60.0\npackets = 7"), "s", "once")
    full = scenario.parse(GOOD, "s").plan()
    assert [set(r.levels.values()) for r in s.plan()] == [
        set(r.levels.values()) for r in full[: len(full) // 3]
    ]
    assert all(
        r.settings["seconds"] == scenario.ONCE_S and r.settings["packets"] == 7 for r in s.plan()
    )


@pytest.mark.parametrize(
    ("old", "new", "at", "reason"),
    [
        ('source = "somewhere"', 'sauce = "somewhere"', "sauce", "unknown key sauce"),
        ("seconds = 1.0", "secunds = 1.0", "secunds", "no such setting: secunds"),
        ("seconds = 1.0", "seconds = -1", "seconds", "must be a number from 0.05"),
        ("seconds = 1.0", "apps = true", "apps", "must be a number"),
        ('rate = ["100mbit", "max"]', 'rate = ["fast"]', "rate =", "must be a rate like"),
        (
            '"tapdeck-xdp", "tcpdump"]',
            '"tapdeck-xpd", "tcpdump"]',
            "method =",
            "must be one of count",
        ),
        ('napi = "thread"', 'napi = "threads"', "tuned", "must be one of 'softirq', 'thread'"),
        ("repetitions = 3", "repetitions = 0", "repetitions = 0", "whole number from 1"),
        ('metrics = ["loss"]', 'metrics = ["lose"]', "metrics", "no such metric: 'lose'"),
        ('kind = "bars"', 'kind = "pie"', "pie", "kind must be lines or bars"),
        ('x = "rate"', 'x = "rat"', "x =", "x must be a factor or a metric"),
        ('base = "tcpdump"', 'base = "dumpcap"', "base", "method has no level 'dumpcap'"),
        ('expect = "less"', 'expect = "maybe"', "maybe", "expect must be"),
        ('expect = "less"', 'expect = "same"', "[[claim]]", "margin is missing"),
        ('says = "less"\n', "", "[[claim]]", "says is missing"),
        (
            'leave_out = { method = "tcpdump"',
            'leave_out = { methud = "tcpdump"',
            "leave_out",
            "no such factor: 'methud'",
        ),
        (
            "[factors.system]",
            "[factors.loss]",
            "[factors.loss]",
            "loss is a metric: name the factor otherwise",
        ),
        ('rate = ["max"]', 'size = ["64"]', "size", "size is no factor of the full profile"),
        ('title = "t"', 'title = "t', "title", "Illegal character"),
        ('title = "t"\n', "", "source", "title is missing"),
    ],
)
def test_an_error_is_refused_with_line_and_reason(old: str, new: str, at: str, reason: str) -> None:
    assert GOOD.count(old) == 1
    wrong = GOOD.replace(old, new)
    message = refused(wrong)
    assert reason in message
    line = int(message.splitlines()[0].split(":")[1])
    assert abs(line - line_of(wrong, at)) <= (1 if "missing" in reason else 0), message


def test_all_that_is_wrong_is_said_at_once() -> None:
    wrong = GOOD.replace("seconds = 1.0", "secunds = 1.0").replace(
        "repetitions = 3", "repetitions = 0"
    )
    assert len(refused(wrong).splitlines()) == 2


@pytest.mark.parametrize("profile", scenario.PROFILES)
def test_the_scenarios_that_come_with_it_are_right(profile: str) -> None:
    files = sorted(SCENARIOS.glob("*.toml"))
    assert len(files) == 34
    for file in files:
        s = scenario.load(file, profile)
        assert s.plan(), file
        # A level that a claim or test speaks of may be missing from the quick profile only.
        assert s.asks and (s.plots or profile == "quick"), file


def test_every_setting_has_a_type() -> None:
    assert set(settings.SETTINGS) == set(settings.Settings.__annotations__)


def test_every_method_that_can_be_named_is_there() -> None:
    assert set(methods.ALL) == set(settings.METHODS)


def test_whatever_is_written_is_read_or_refused() -> None:
    """Files with lines lost, cut off or given other values never raise an error of another kind."""
    rng = random.Random(4)
    values = ["1", "-1", "true", '"x"', "[]", '["a"]', "{}", "{ a = 1 }", "1.5", "[[1]]"]
    files = [file.read_text() for file in SCENARIOS.glob("*.toml")]
    refused_ones = 0
    for _ in range(400):
        lines = rng.choice(files).splitlines()
        for _ in range(rng.randint(1, 3)):
            i = rng.randrange(len(lines))
            if "=" in lines[i] and rng.random() < 0.6:
                lines[i] = lines[i].partition("=")[0] + "= " + rng.choice(values)
            elif rng.random() < 0.5:
                del lines[i]
            else:
                lines[i] = lines[i][: rng.randrange(len(lines[i]) + 1)]
        said = ""
        try:
            scenario.parse("\n".join(lines), "s", rng.choice(scenario.PROFILES)).plan()
        except ScenarioError as error:
            said = str(error)
            refused_ones += 1
        assert all(line.split(":")[1].isdigit() for line in said.splitlines())
    assert refused_ones > 100
