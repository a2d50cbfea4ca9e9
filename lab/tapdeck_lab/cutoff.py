"""Flows of which no more than their first bytes are stored: what is there of what was sent.

The shares are those of flows after Zipf, where few flows have most of the bytes.
"""

from __future__ import annotations

from typing import Any

from . import restart
from .capture import Capture
from .methods import Failed, Tapdeck
from .settings import Settings
from .slowdisk import flows_seen


def is_wanted(s: Settings) -> bool:
    """Returns whether a run is judged by what is kept of its flows."""
    return bool(s["zipf"]) and s["store"] == "disk" and s["method"].startswith("tapdeck-")


def judge(capture: Capture, sent: dict[str, Any]) -> dict[str, float]:
    """Returns what is there of all that was sent, once the capture was stopped: shares."""
    method = capture.method
    if not isinstance(method, Tapdeck):
        raise Failed(f"{method.name} does not tell what it left out of flows")
    last = method.last_statistics(capture.contexts[0])[-1]
    return shares(last, sent, restart.check(capture, sent))


def shares(last: dict[str, Any], sent: dict[str, Any], report: dict[str, Any]) -> dict[str, float]:
    """Returns the shares that follow from statistics, the generator's record and `check-traffic`.

    Raises
    ------
    Failed
        What is missing from the store is not what was counted.
    """
    gone = last["cutoff"] + last["dropped_ring"] + last["dropped_other"]
    if last["seen"] != last["captured"] + last["filtered"] + gone:
        raise Failed("the account does not hold")
    return {
        "cut_off": last["cutoff"] / last["seen"] if last["seen"] else 0.0,
        "bytes_kept": last["bytes_captured"] / sent["bytes"],
        "flows_seen": flows_seen(report, sent["streams"]),
    }
