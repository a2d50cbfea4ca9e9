"""Invented results of scenarios, so that reports can be made without measuring anything."""

import math
import random
from pathlib import Path

from tapdeck_lab import results
from tapdeck_lab.cycle import pps_of
from tapdeck_lab.results import Results
from tapdeck_lab.scenario import Scenario
from tapdeck_lab.settings import Settings

# Millions of packets a second that each method may take, and CPU, ms for a million packets.
PACE = {
    "tapdeck-xdp": (8.4, 10),
    "tapdeck-tcx": (4.7, 15),
    "tapdeck-netfilter": (3.6, 15),
    "tapdeck-tpacket": (1.4, 101),
    "tapdeck-recv": (0.7, 990),
    "drop": (17.5, 0),
    "count": (6.0, 0),
}

MACHINE = {
    "cpu": "invented",
    "cores": 2,
    "versions": {"tcpdump": "4.99.3"},
    "disk": {"command": "fio", "mb_per_s": 2000.0},
}
"""What `machine.json` says; with `--resume` the lab believes it and measures no disk."""


def metrics(settings: Settings, rng: random.Random) -> dict[str, float]:
    pace, cost = PACE.get(settings["method"], (1.3, 300))
    pace *= 1e6 * rng.gauss(1, 0.03) / settings["apps"]
    size = settings["size"]
    mean = float(size) if size.isdigit() else 640.0
    asked = (
        2.1e6
        if settings["rate"].startswith(("disk", "no-drop"))
        else min(9e6, pps_of(settings["rate"], mean))
    )
    sent = asked * settings["seconds"]
    captured = min(sent, pace * settings["seconds"] * 600 / (600 + mean))
    share = captured / sent
    pps, mbit = asked, asked * mean * 8 / 1e6
    busy = min(100.0, 30 + 100 * asked / 9e6 * rng.gauss(1, 0.02))
    values = {
        "asked": sent,
        "sent": sent,
        "undelivered": 0.0,
        "detected": sent,
        "captured": captured,
        "lost": sent - captured,
        "loss": 1 - share,
        "capture_rate": share,
        "capture_rate_worst": share * 0.9,
        "capture_rate_best": min(1.0, share * 1.1),
        "sent_pps": pps,
        "sent_mbit": mbit,
        "captured_pps": pps * share,
        "captured_mbit": mbit * share,
        "no_drop_pps": pace,
        "trials": 7,
        "cpu_busy": busy,
        "cpu_user": busy / 4,
        "cpu_system": busy / 4,
        "cpu_softirq": busy / 2,
        "cpu_steal": 0.0,
        "cpu_capture": cost * captured / 1e7,
        "cpu_ms_per_mpkt": cost * rng.gauss(1, 0.05),
        "rss_mib": 70 * rng.gauss(1, 0.01),
        "switches_per_s": 1000,
        "disk_mib_per_s": mbit * share / 8.4,
        "index_share": 0.003,
        "queries": rng.randrange(3, 9),
        "query_ms": (12 if settings["query"] == "tapdeck" else 900) * rng.gauss(1, 0.2),
        "marked_found": rng.uniform(0.8, 1),
        "seconds": settings["seconds"],
    }
    return {name: value for name, value in values.items() if not math.isnan(value)}


def invent(
    out: Path, scenario: Scenario, seed: int = 1, slower: float = 1.0, missing: str = ""
) -> None:
    """Write results of all runs of a scenario.

    What is captured is divided by `slower`, and a method may be missing.
    """
    rng = random.Random(seed)
    made = Results.create(out, scenario, resume=False)
    for run in scenario.plan():
        row = {
            "status": "ok",
            "why": "",
            "started": "2026-01-01T00:00:00Z",
            "took_s": "1",
            "capture": "c",
            "generate": "g",
        }
        values = metrics(run.settings, rng)
        for name in ("captured_pps", "captured_mbit", "capture_rate"):
            values[name] /= slower
        if run.settings["method"] == missing:
            row |= {"status": "missing", "why": f"{missing} is not installed"}
            values = {}
        made.add(run, row, values, [])
    results.write_machine(out, MACHINE)
