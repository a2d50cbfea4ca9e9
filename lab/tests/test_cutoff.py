"""Flows that are cut off: what is told of a run, and what is refused."""

from __future__ import annotations

from typing import cast

import pytest

from tapdeck_lab import cutoff, cycle, settings
from tapdeck_lab.methods import Failed

LAST = {
    "seen": 10,
    "captured": 4,
    "filtered": 0,
    "cutoff": 5,
    "dropped_ring": 1,
    "dropped_other": 0,
    "bytes_captured": 300,
}
SENT = {"bytes": 1000, "streams": [8, 2]}
REPORT = {"by_stream": [{"made": 8, "lost": 4}, {"made": 2, "lost": 2}]}


def test_shares_are_of_what_was_seen_and_sent() -> None:
    assert cutoff.shares(LAST, SENT, REPORT) == {
        "cut_off": 0.5,
        "bytes_kept": 0.3,
        "flows_seen": 0.5,
    }


def test_an_account_that_does_not_hold_fails_the_run() -> None:
    with pytest.raises(Failed):
        cutoff.shares(LAST | {"cutoff": 4}, SENT, REPORT)


@pytest.mark.parametrize("wrong", [{"store": "none"}, {"apps": 2}, {"interruption": "kill"}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    asked = cast(settings.Settings, {**settings.defaults(), "cutoff": "1MiB", **wrong})
    assert "cut" in cycle._contradiction(asked)


def test_runs_of_uneven_flows_are_judged_by_them() -> None:
    asked = settings.defaults() | {"method": "tapdeck-xdp", "store": "disk", "zipf": 1.1}
    assert cutoff.is_wanted(asked)
    assert not cutoff.is_wanted(asked | {"zipf": 0.0})
