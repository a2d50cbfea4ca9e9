"""A disk that takes no more than so much: what is counted of a run on one, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tapdeck_lab import cycle, settings, slowdisk
from tapdeck_lab.build import Build


def test_a_flow_is_seen_if_a_packet_of_it_is_there() -> None:
    report = {
        "by_stream": [
            {"made": 4, "lost": 4},
            {"made": 3, "lost": 2},
            {"made": 0, "lost": 0},
        ]
    }
    assert slowdisk.flows_seen(report, [4, 3, 5, 0, 2]) == 3 / 4
    assert slowdisk.flows_seen({"by_stream": []}, [0]) == 0.0


def test_a_share_of_a_limited_disk_is_one_of_its_limit() -> None:
    lab = cycle.Lab(Build(Path("/nowhere")), Path("/nowhere"), tools=Path("/nowhere"))
    asked = settings.defaults() | {"rate": "disk:4.0", "disk_limit_mib": 50}
    assert cycle.resolve_rate(lab, asked, 1) == "1678mbit"


@pytest.mark.parametrize(
    "wrong",
    [
        {"disk_stop_s": 5.0},
        {"disk_limit_mib": 50, "store": "none"},
        {"disk_limit_mib": 50, "interruption": "kill"},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    asked = cast(settings.Settings, {**settings.defaults(), **wrong})
    assert "disk" in cycle._contradiction(asked)
