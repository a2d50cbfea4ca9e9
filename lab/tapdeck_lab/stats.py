"""Statistics, on plain sequences of numbers: what can be said of measured values, and how surely.

Everything here is checked against published tables in `tests/test_stats.py`, and nothing here knows
of packets: values have whatever unit the caller gives them, and means, intervals and differences
have the same. Where the values do not allow an answer (one value, no spread) a field is NaN, never
a guess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd
import statsmodels.formula.api as smf
from scipy import stats
from statsmodels.stats.anova import anova_lm
from statsmodels.stats.multitest import multipletests

Numbers = npt.NDArray[np.float64]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """A sample: its mean with the interval by Student's t, and its order statistics."""

    n: int
    mean: float
    low: float
    high: float
    median: float
    sd: float
    min: float
    max: float


def summarize(values: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """Summarize a sample.

    Parameters
    ----------
    values : sequence of float, length n
        The sample; NaNs are left out.
    confidence : float
        Level of the mean's interval, between 0 and 1.

    Returns
    -------
    Summary
        `low` and `high` are NaN below two values, and all fields but `n` where there is none.
    """
    x = np.asarray(values, dtype=float)
    x = x[~np.isnan(x)]
    nan = math.nan
    if len(x) == 0:
        return Summary(0, nan, nan, nan, nan, nan, nan, nan)
    mean, sd, half = float(x.mean()), nan, nan
    if len(x) > 1:
        sd = float(x.std(ddof=1))
        half = float(stats.t.ppf((1 + confidence) / 2, len(x) - 1)) * sd / math.sqrt(len(x))
    return Summary(
        len(x),
        mean,
        mean - half,
        mean + half,
        float(np.median(x)),
        sd,
        float(x.min()),
        float(x.max()),
    )


def outliers(values: Sequence[float]) -> list[bool]:
    """Flag the values more than 3 interquartile ranges from the quartiles (Tukey's "far out").

    Parameters
    ----------
    values : sequence of float, length n
        The sample, which may have NaNs.

    Returns
    -------
    list of bool, length n
        True for a value far out; of fewer than four numbers none is. Nothing is dropped.
    """
    x = np.asarray(values, dtype=float)
    if np.count_nonzero(~np.isnan(x)) < 4:
        return [False] * len(x)
    q1, q3 = np.nanpercentile(x, [25, 75])
    reach = 3 * (q3 - q1)
    return [bool(v < q1 - reach or v > q3 + reach) for v in x]


@dataclass(frozen=True)
class Difference:
    """Mean of a minus mean of b, by Welch's t-test (unequal variances)."""

    difference: float
    low: float
    high: float
    t: float
    df: float
    p: float
    """Two-sided."""
    g: float
    """Hedges' g: the difference in standard deviations, corrected for small samples."""


def welch(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Difference:
    """Compare the means of two samples by Welch's t-test.

    Parameters
    ----------
    a, b : sequence of float, of any two lengths
        The samples, in one unit; NaNs are left out.
    confidence : float
        Level of the difference's interval, between 0 and 1.

    Returns
    -------
    Difference
        Mean of `a` minus mean of `b`; all fields are NaN where a sample has fewer than two values.
    """
    return stratified([(a, b)], confidence)


def stratified(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], confidence: float = CONFIDENCE
) -> Difference:
    """Average the differences of pairs of samples, each pair taken under its own conditions.

    Variances add up, and degrees of freedom are those of Welch and Satterthwaite. With one pair
    this is Welch's test.

    Parameters
    ----------
    pairs : sequence of (sequence of float, sequence of float)
        The samples a and b of each condition, all in one unit; NaNs are left out.
    confidence : float
        Level of the interval, between 0 and 1.

    Returns
    -------
    Difference
        The mean over the conditions of mean of a minus mean of b. All fields are NaN where there is
        no pair, or where a sample has fewer than two values.
    """
    nan = math.nan
    means, parts, standardized = [], [], []
    for a, b in pairs:
        x, y = _clean(a), _clean(b)
        if len(x) < 2 or len(y) < 2:
            return Difference(nan, nan, nan, nan, nan, nan, nan)
        means.append(x.mean() - y.mean())
        parts += [(x.var(ddof=1) / len(x), len(x) - 1), (y.var(ddof=1) / len(y), len(y) - 1)]
        standardized.append(_hedges_g(x, y))
    if not pairs:
        return Difference(nan, nan, nan, nan, nan, nan, nan)
    difference = float(np.mean(means))
    variance = sum(v for v, _ in parts) / len(pairs) ** 2
    g = float(np.mean(standardized))
    if variance == 0:
        # No spread at all: what is seen is all that there is, and no test is needed to see it.
        same = difference == 0
        return Difference(
            difference,
            difference,
            difference,
            0.0 if same else math.inf,
            nan,
            1.0 if same else 0.0,
            g,
        )
    df = sum(v for v, _ in parts) ** 2 / sum(v**2 / n for v, n in parts if v > 0)
    error = math.sqrt(variance)
    half = float(stats.t.ppf((1 + confidence) / 2, df)) * error
    t = difference / error
    return Difference(
        difference,
        difference - half,
        difference + half,
        t,
        df,
        float(2 * stats.t.sf(abs(t), df)),
        g,
    )


def _clean(values: Sequence[float]) -> Numbers:
    x = np.asarray(values, dtype=np.float64)
    known: Numbers = x[~np.isnan(x)]
    return known


def _hedges_g(x: Numbers, y: Numbers) -> float:
    df = len(x) + len(y) - 2
    pooled = math.sqrt(((len(x) - 1) * x.var(ddof=1) + (len(y) - 1) * y.var(ddof=1)) / df)
    difference = x.mean() - y.mean()
    if pooled == 0:
        return 0.0 if difference == 0 else math.copysign(math.inf, difference)
    return float(difference / pooled * (1 - 3 / (4 * df - 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's method.

    Parameters
    ----------
    p_values : sequence of float, length n
        p-values between 0 and 1; NaN where there was no test.

    Returns
    -------
    list of float, length n
        The corrected p-values in the same order; a NaN stays and does not count.
    """
    p = np.asarray(p_values, dtype=float)
    known = ~np.isnan(p)
    corrected = p.copy()
    if known.any():
        corrected[known] = multipletests(p[known], method="holm")[1]
    return [float(x) for x in corrected]


@dataclass(frozen=True)
class Effect:
    """A line of an analysis of variance."""

    name: str
    sum_of_squares: float
    share: float
    """Of the total sum of squares."""
    df: int
    mean_square: float
    f: float
    f_table: float
    """What F must exceed at the level of confidence."""
    p: float


@dataclass(frozen=True)
class Anova:
    """Two factors, A and B, with replication; lines in the order A, B, interaction, errors."""

    effects: list[Effect]
    sum_y2: float
    """Sum of the squared values (Jain's SSY)."""
    sum_mean2: float
    """Sum of the squared grand mean (SS0)."""
    total: float
    """Sum of squares about the mean (SST), on df `total_df`."""
    total_df: int
    log: bool
    fitted: Numbers = field(repr=False)
    residuals: Numbers = field(repr=False)
    shapiro_p: float
    """Shapiro and Wilk's test of the residuals: small means not normal."""
    levene_p: float
    """Brown and Forsythe's test of the cells' variances: small means unequal."""
    rank: dict[str, float]
    """p of each effect by the aligned rank transform, which assumes neither."""

    def effect(self, name: str) -> Effect:
        """Returns the line of one effect, as `Effect.name` has it."""
        return next(e for e in self.effects if e.name == name)

    @property
    def assumptions_hold(self) -> bool:
        """Whether neither check says at 5 % that they fail."""
        return not (self.shapiro_p < 0.05 or self.levene_p < 0.05)


def anova(data: pd.DataFrame, value: str, a: str, b: str, log: bool = False) -> Anova:
    """Analyse the variance of a value over two factors and their interaction.

    Sums of squares are of type II, which for equally many runs in each cell are the only ones.

    Parameters
    ----------
    data : DataFrame, one row a run
        Has the columns `value`, `a` and `b`.
    value : str
        Name of the column of numbers; rows with a NaN are left out.
    a, b : str
        Names of the columns of the factors' levels.
    log : bool
        Whether to take the logarithm (base 10) of the value first, as for effects that multiply.

    Returns
    -------
    Anova
        Sums of squares are in the value's unit squared, or without a unit of logarithms.

    Raises
    ------
    ValueError
        A factor has one level, a combination of levels has fewer than two runs, or a value has no
        logarithm.
    """
    frame = pd.DataFrame(
        {"y": data[value].astype(float), "a": data[a].astype(str), "b": data[b].astype(str)}
    ).dropna()
    cells = frame.groupby(["a", "b"])["y"]
    wanted = frame["a"].nunique() * frame["b"].nunique()
    if frame["a"].nunique() < 2 or frame["b"].nunique() < 2:
        raise ValueError(f"each of {a} and {b} needs two levels")
    if cells.ngroups < wanted or cells.size().min() < 2:
        raise ValueError(f"each combination of {a} and {b} needs two runs")
    if log:
        if (frame["y"] <= 0).any():
            raise ValueError(f"{value} has values that have no logarithm")
        frame["y"] = np.log10(frame["y"])
    model = smf.ols("y ~ C(a) * C(b)", frame).fit()
    table = anova_lm(model, typ=2)
    rows = [(a, "C(a)"), (b, "C(b)"), (f"{a} x {b}", "C(a):C(b)"), ("errors", "Residual")]
    grand = frame["y"].mean()
    total = float(((frame["y"] - grand) ** 2).sum())
    error_df = int(table.loc["Residual", "df"])
    effects = []
    for name, row in rows:
        squares, df = float(table.loc[row, "sum_sq"]), int(table.loc[row, "df"])
        is_error = row == "Residual"
        effects.append(
            Effect(
                name=name,
                sum_of_squares=squares,
                share=squares / total if total > 0 else math.nan,
                df=df,
                mean_square=squares / df,
                f=math.nan if is_error else float(table.loc[row, "F"]),
                f_table=math.nan if is_error else float(stats.f.ppf(CONFIDENCE, df, error_df)),
                p=math.nan if is_error else float(table.loc[row, "PR(>F)"]),
            )
        )
    groups = [g.to_numpy() for _, g in frame.groupby(["a", "b"])["y"]]
    ranks = aligned_ranks(frame)
    return Anova(
        effects=effects,
        sum_y2=float((frame["y"] ** 2).sum()),
        sum_mean2=float(len(frame) * grand**2),
        total=total,
        total_df=len(frame) - 1,
        log=log,
        fitted=model.fittedvalues.to_numpy(),
        residuals=model.resid.to_numpy(),
        shapiro_p=_shapiro(model.resid.to_numpy()),
        levene_p=_levene(groups),
        rank={name: ranks[row] for name, row in rows[:3]},
    )


def aligned_ranks(frame: pd.DataFrame) -> dict[str, float]:
    """Test two factors and their interaction by the aligned rank transform (Wobbrock et al. 2011).

    For each effect the values are freed of the other effects, ranked, and put through the same
    analysis of variance, of which only that effect's line counts.

    Parameters
    ----------
    frame : DataFrame, one row a run
        Has the columns `y` (numbers), `a` and `b` (levels), without NaNs.

    Returns
    -------
    dict of str to float
        p of the effects `C(a)`, `C(b)` and `C(a):C(b)`; NaN where all values have the same rank.
    """
    y = frame["y"]
    mean, mean_a, mean_b = (
        y.mean(),
        y.groupby(frame["a"]).transform("mean"),
        y.groupby(frame["b"]).transform("mean"),
    )
    cell = y.groupby([frame["a"], frame["b"]]).transform("mean")
    residual = y - cell
    estimates = {
        "C(a)": mean_a - mean,
        "C(b)": mean_b - mean,
        "C(a):C(b)": cell - mean_a - mean_b + mean,
    }
    p = {}
    for name, estimate in estimates.items():
        # Rounded, so that equal values that were computed differently tie.
        scale = float(np.abs(y).max()) or 1.0
        aligned = ((residual + estimate) / scale).round(9)
        ranked = frame.assign(y=aligned.rank())
        if ranked["y"].nunique() < 2:
            p[name] = math.nan
            continue
        p[name] = float(
            anova_lm(smf.ols("y ~ C(a) * C(b)", ranked).fit(), typ=2).loc[name, "PR(>F)"]
        )
    return p


def _shapiro(residuals: Numbers) -> float:
    if len(residuals) < 3 or np.ptp(residuals) == 0:
        return math.nan
    return float(stats.shapiro(residuals).pvalue)


def _levene(groups: list[Numbers]) -> float:
    if all(np.ptp(g) == 0 for g in groups):
        return math.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(stats.levene(*groups, center="median").pvalue)
