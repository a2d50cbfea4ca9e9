"""The search for the highest rate without a loss."""

import math

import pytest

from tapdeck_lab import nodrop


@pytest.mark.parametrize("limit", [70.0, 333.3, 999.0])
def test_the_no_drop_rate_is_found_to_the_resolution(limit):
    tried = []

    def passes(rate):
        tried.append(rate)
        return rate <= limit

    found = nodrop.search(passes, 10, 1000, resolution=0.01)
    assert found.rate <= limit < found.failed
    assert found.failed - found.rate <= 0.01 * found.failed
    assert found.trials == len(tried) <= 14


def test_the_no_drop_rate_at_the_ends():
    assert nodrop.search(lambda _: True, 10, 1000) == nodrop.NoDrop(1000, math.inf, 1)
    assert nodrop.search(lambda _: False, 10, 1000) == nodrop.NoDrop(0.0, 10, 2)
