"""The search for the highest rate without a loss."""

import math

import pytest

from tapdeck_lab import nodrop, runner, scenario


@pytest.mark.parametrize("limit", [70.0, 333.3, 999.0])
def test_the_no_drop_rate_is_found_to_the_resolution(limit: float) -> None:
    tried: list[float] = []

    def passes(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    found = nodrop.search(passes, 10, 1000, resolution=0.01)
    assert found.rate <= limit < found.failed
    assert found.failed - found.rate <= 0.01 * found.failed
    assert found.trials == len(tried) <= 14


def test_the_no_drop_rate_at_the_ends() -> None:
    assert nodrop.search(lambda _: True, 10, 1000) == nodrop.NoDrop(1000, math.inf, 1)
    assert nodrop.search(lambda _: False, 10, 1000) == nodrop.NoDrop(0.0, 10, 2)


@pytest.mark.parametrize("rate", ["disk:0.8", "no-drop:0.8", "ipg:1us", "max", "5kpps"])
def test_what_a_run_takes_can_be_said_of_any_rate(rate: str) -> None:
    text = (
        f'title = "t"\n[settings]\nrate = "{rate}"\npackets = 10000\n[runs]\nmetrics = ["loss"]\n'
    )
    s = scenario.parse(text, "s")
    assert 0 < runner.expected_s(s, s.plan()[0]) < 10
