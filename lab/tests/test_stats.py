"""The statistics against published tables, textbook data and properties that must hold."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
import pytest

from tapdeck_lab import stats

SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]

TOOTH = {
    ("VC", "0.5"): [4.2, 11.5, 7.3, 5.8, 6.4, 10, 11.2, 11.2, 5.2, 7],
    ("VC", "1"): [16.5, 16.5, 15.2, 17.3, 22.5, 17.3, 13.6, 14.5, 18.8, 15.5],
    ("VC", "2"): [23.6, 18.5, 33.9, 25.5, 26.4, 32.5, 26.7, 21.5, 23.3, 29.5],
    ("OJ", "0.5"): [15.2, 21.5, 17.6, 9.7, 14.5, 10, 8.2, 9.4, 16.5, 9.7],
    ("OJ", "1"): [19.7, 23.3, 23.6, 26.4, 20, 25.2, 25.8, 21.2, 14.5, 27.3],
    ("OJ", "2"): [25.5, 26.4, 22.4, 24.5, 24.8, 30.9, 26.4, 27.3, 29.4, 23],
}

# Montgomery, Design and Analysis of Experiments, example 5.1: life of batteries, h.
BATTERIES = {
    ("1", "15"): [130, 155, 74, 180],
    ("1", "70"): [34, 40, 80, 75],
    ("1", "125"): [20, 70, 82, 58],
    ("2", "15"): [150, 188, 159, 126],
    ("2", "70"): [136, 122, 106, 115],
    ("2", "125"): [25, 70, 58, 45],
    ("3", "15"): [138, 110, 168, 160],
    ("3", "70"): [174, 120, 150, 139],
    ("3", "125"): [96, 104, 82, 60],
}

# ONL, table 2: mean throughput of twelve samples, Mbit/s; table 3: the sum of squares of errors.
ONL_MEANS = {
    ("module", "default"): 943.67,
    ("module", "custom"): 951.75,
    ("pf_packet", "default"): 562.17,
    ("pf_packet", "custom"): 495.89,
    ("pf_ring", "default"): 577.08,
    ("pf_ring", "custom"): 747.72,
}
ONL_ERRORS, ONL_SAMPLES = 1519.46, 12


Cells = Mapping[tuple[str, str], Iterable[float]]
"""Values by the levels of two factors."""


def frame(cells: Cells) -> pd.DataFrame:
    rows = [{"a": a, "b": b, "y": y} for (a, b), values in cells.items() for y in values]
    return pd.DataFrame(rows)


def onl() -> pd.DataFrame:
    """Samples with the published means and the published sum of squares about them."""
    each = math.sqrt(ONL_ERRORS / (len(ONL_MEANS) * ONL_SAMPLES))
    spread = each * np.array([1, -1] * (ONL_SAMPLES // 2))
    return frame({cell: mean + spread for cell, mean in ONL_MEANS.items()})


def test_the_interval_of_a_mean_is_that_of_r() -> None:
    # t.test(sleep$extra[1:10])
    s = stats.summarize(SLEEP_1)
    assert (s.n, s.median, s.min, s.max) == (10, 0.35, -1.6, 3.7)
    assert [s.mean, s.low, s.high] == pytest.approx([0.75, -0.5297804, 2.0297804], abs=1e-6)


def test_one_value_has_a_mean_and_no_interval() -> None:
    s = stats.summarize([3.0, math.nan])
    assert (s.n, s.mean) == (1, 3.0)
    assert math.isnan(s.low) and math.isnan(s.sd)


def test_welch_is_that_of_r() -> None:
    # t.test(extra ~ group, sleep)
    d = stats.welch(SLEEP_1, SLEEP_2)
    assert [d.t, d.df, d.p] == pytest.approx([-1.8608, 17.776, 0.07939], rel=1e-4)
    assert [d.low, d.high] == pytest.approx([-3.3654832, 0.2054832], abs=1e-6)
    # t.test(len ~ supp, ToothGrowth)
    oj, vc = ([y for (s, _), ys in TOOTH.items() if s == supp for y in ys] for supp in ("OJ", "VC"))
    d = stats.welch(oj, vc)
    assert [d.t, d.df, d.p] == pytest.approx([1.9153, 55.309, 0.06063], rel=1e-3)


def test_effect_sizes_are_in_standard_deviations() -> None:
    # Means 2 apart, both standard deviations 1.
    d = stats.welch([1.0, 2.0, 3.0], [3.0, 4.0, 5.0])
    assert d.g == pytest.approx(-2 * (1 - 3 / 15))


def test_what_has_no_spread_is_told_apart_by_sight() -> None:
    assert stats.welch([0, 0], [0, 0]).p == 1
    d = stats.welch([1, 1], [0, 0])
    assert (d.difference, d.low, d.p) == (1, 1, 0)
    assert math.isnan(stats.welch([1], [0, 0]).p)


def test_differences_under_several_conditions_add_up() -> None:
    pairs = [([1.0, 3.0], [0.0, 2.0]), ([11.0, 13.0], [10.0, 12.0])]
    d = stats.stratified(pairs)
    assert d.difference == 1
    # Four samples of variance 2 and two values each: the standard error is sqrt(4 * 1) / 2.
    assert d.t == pytest.approx(1.0)
    assert d.df == pytest.approx(4.0)


def test_holm_is_that_of_the_textbook() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    corrected = stats.holm([0.01, math.nan, 0.04])
    assert corrected[0] == pytest.approx(0.02) and math.isnan(corrected[1])


def test_anova_of_batteries_is_montgomerys_table_5_5() -> None:
    result = stats.anova(frame(BATTERIES), "y", "a", "b")
    squares = [e.sum_of_squares for e in result.effects]
    assert squares == pytest.approx([10683.72, 39118.72, 9613.78, 18230.75], abs=0.005)
    assert result.total == pytest.approx(77646.97, abs=0.005)
    assert [e.df for e in result.effects] == [2, 2, 4, 27]
    assert [e.f for e in result.effects[:3]] == pytest.approx([7.91, 28.97, 3.56], abs=0.005)
    assert [e.p for e in result.effects[:3]] == pytest.approx([0.0020, 0.0000, 0.0186], abs=5e-5)
    assert result.assumptions_hold


def test_anova_of_tooth_growth_is_that_of_r() -> None:
    # summary(aov(len ~ supp * factor(dose), ToothGrowth))
    result = stats.anova(frame(TOOTH), "y", "a", "b")
    assert [e.sum_of_squares for e in result.effects] == pytest.approx(
        [205.4, 2426.4, 108.3, 712.1], abs=0.051
    )
    assert [e.f for e in result.effects[:3]] == pytest.approx([15.572, 92.0, 4.107], rel=1e-3)


def test_anova_of_onl_is_their_table_3() -> None:
    """The sums agree to about a hundred-thousandth, since the means were rounded to hundredths."""
    result = stats.anova(onl(), "y", "a", "b")
    published = [2_195_829.29, 25_288.13, 176_177.69, 1519.46]
    assert [e.sum_of_squares for e in result.effects] == pytest.approx(published, rel=2e-4)
    assert [100 * e.share for e in result.effects] == pytest.approx(
        [91.54, 1.05, 7.34, 0.06], abs=0.005
    )
    assert [e.df for e in result.effects] == [2, 1, 2, 66]
    assert [e.f for e in result.effects[:3]] == pytest.approx(
        [47_689.47, 1_098.43, 3_826.26], rel=2e-4
    )
    # The authors looked F up for 40 degrees of freedom, the last line of many a table before 60:
    # 3.23 and 4.08.
    assert [e.f_table for e in result.effects[:3]] == pytest.approx([3.14, 3.99, 3.14], abs=0.005)
    assert result.sum_y2 == pytest.approx(39_006_074.26, rel=1e-4)
    assert result.sum_mean2 == pytest.approx(36_607_259.69, rel=1e-4)
    assert result.total == pytest.approx(2_398_814.57, rel=2e-4)


def test_logarithms_turn_factors_that_multiply_into_factors_that_add() -> None:
    rng = np.random.default_rng(3)
    cells = {
        (a, b): 10.0 ** (x + z + rng.normal(0, 0.01, 6))
        for a, x in [("p", 1), ("q", 2)]
        for b, z in [("r", 0), ("s", 1)]
    }
    plain, logs = (stats.anova(frame(cells), "y", "a", "b", log=log) for log in (False, True))
    assert plain.effect("a x b").share > 0.1
    assert logs.effect("a x b").share < 1e-3
    assert not plain.assumptions_hold and logs.levene_p > 0.05


def test_anova_refuses_what_has_no_replication() -> None:
    with pytest.raises(ValueError, match="two runs"):
        stats.anova(
            frame({("p", "r"): [1], ("p", "s"): [1], ("q", "r"): [1], ("q", "s"): [2]}),
            "y",
            "a",
            "b",
        )
    zero = frame({k: [0.0, *v] for k, v in TOOTH.items()})
    with pytest.raises(ValueError, match="logarithm"):
        stats.anova(zero, "y", "a", "b", log=True)


def test_ranks_find_an_effect_among_outliers_and_none_where_none_is() -> None:
    rng = np.random.default_rng(5)
    by_ranks, by_squares, false = 0, 0, 0
    for _ in range(40):
        cells = {
            (a, b): shift + rng.standard_cauchy(10)
            for a, shift in [("p", 0), ("q", 4)]
            for b in "rs"
        }
        result = stats.anova(frame(cells), "y", "a", "b")
        by_ranks += result.rank["a"] < 0.05
        by_squares += result.effect("a").p < 0.05
        false += result.rank["b"] < 0.05
    assert by_ranks >= 28 and by_ranks >= 1.5 * by_squares
    assert false <= 6


def test_two_identical_methods_differ_in_about_one_of_twenty() -> None:
    """A/A: with 2000 comparisons the share is within 5 % +- 3 standard errors."""
    rng = np.random.default_rng(1)
    values = rng.normal(100, 5, (2000, 2, 5))
    significant = sum(stats.welch(a, b).p < 0.05 for a, b in values)
    assert 0.035 <= significant / 2000 <= 0.065


def test_far_out_values_are_flagged() -> None:
    assert stats.outliers([10, 11, 10, 12, 11, 40]) == [False] * 5 + [True]
    assert stats.outliers([1, 100, 1]) == [False] * 3
