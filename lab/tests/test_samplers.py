"""Samplers against processes whose use is known."""

import subprocess
import sys
from pathlib import Path

import pytest

from tapdeck_lab import samplers
from tapdeck_lab.samplers import STATES, Interval, Sampler

# Says "begin", waits for a line, burns so much CPU time at no more than a share of a core, says
# "end", and waits to be killed. Both words come with the CPU time that was used so far, s.
BURN = """
import sys, time
share, cpu_s = float(sys.argv[1]), float(sys.argv[2])
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
print("begin", time.process_time(), flush=True)
sys.stdin.readline()
begin, burnt = time.monotonic(), time.process_time()
while (used := time.process_time() - burnt) < cpu_s:
    if used > share * (time.monotonic() - begin):
        time.sleep(0.002)
print("end", time.process_time(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_known_share_is_measured(share: float) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", BURN, str(share), str(1.5 * share)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin and child.stdout
    try:
        before_said = float(child.stdout.readline().split()[1])
        before = samplers.used([child.pid])
        with Sampler(0.05, None, None, Path("/")) as sampler:
            sampler.pids = [child.pid]
            child.stdin.write("go\n")
            child.stdin.flush()
            after_said = float(child.stdout.readline().split()[1])
        after = samplers.used([child.pid])
    finally:
        child.kill()
        child.wait()
    burnt = after_said - before_said
    # What the process does before and after it reads its own clock is in the sampler's count alone.
    assert after.cpu_s - before.cpu_s == pytest.approx(burnt, rel=0.05, abs=0.01)
    assert burnt == pytest.approx(share * 1.5, rel=0.1)
    assert after.switches > before.switches
    assert after.rss_mib > 64
    assert max(s.used.cpu_s for s in sampler.samples) == pytest.approx(after.cpu_s, abs=0.1)
    assert len(sampler.samples) > 5


def interval(begin: float, idle: float, seconds: float = 1) -> Interval:
    shares = dict.fromkeys(STATES, 0.0) | {"idle": float(idle), "user": 100.0 - idle}
    return Interval(begin, begin + seconds, {"cpu": shares})


def test_the_longest_busy_period_is_kept() -> None:
    busy = [interval(i, idle) for i, idle in enumerate([99, 50, 99, 40, 60, 50, 97, 10, 96])]
    period = samplers.trim(busy)
    assert [i.begin for i in period] == [3, 4, 5]
    assert samplers.mean_shares(period)["idle"] == 50
    assert samplers.trim([interval(0, 99), interval(1, 96)]) == []


def test_shares_add_up() -> None:
    before = samplers.Sample(0.0, {"cpu": [0] * 8}, samplers.Used(), 0, 0)
    after = samplers.Sample(1.0, {"cpu": [10, 0, 20, 60, 0, 0, 10, 0]}, samplers.Used(), 0, 0)
    (only,) = samplers.intervals([before, after])
    assert only.shares["cpu"]["softirq"] == 10
    assert sum(only.shares["cpu"].values()) == pytest.approx(100)
    assert only.busy() == 40
    assert samplers.intervals([before, before]) == []
