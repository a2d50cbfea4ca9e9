"""The highest rate without a loss, by binary search in the manner of RFC 2544."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class NoDrop:
    """The highest rate that passed, the lowest that failed, and how many trials it took to know."""

    rate: float
    failed: float
    trials: int


def search(
    passes: Callable[[float], bool], low: float, high: float, resolution: float = 0.02
) -> NoDrop:
    """Search for the highest rate without a loss by halving, as RFC 2544 section 26.1 does.

    Parameters
    ----------
    passes : callable of float
        Whether a trial at a rate loses nothing.
    low, high : float
        The lowest and the highest rate to try, in one unit; `high` is tried first.
    resolution : float
        The search ends when the best and the worst rate are closer than this share of the worst.

    Returns
    -------
    NoDrop
        Rates in the unit of `low` and `high`; a rate of 0 means that none from `low` on passed.
    """
    if passes(high):
        return NoDrop(high, math.inf, 1)
    best, worst, trials = 0.0, high, 1
    rate = low
    while True:
        trials += 1
        if passes(rate):
            best = rate
        elif rate == low and best == 0.0:
            return NoDrop(0.0, low, trials)
        else:
            worst = rate
        if worst - best <= resolution * worst:
            return NoDrop(best, worst, trials)
        rate = (best + worst) / 2
