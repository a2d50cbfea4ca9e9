"""Reports and comparisons of invented results; headless Chromium opens the page."""

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from invent import invent

from tapdeck_lab import __main__ as command_line
from tapdeck_lab import analysis, compare, report, results, scenario
from tapdeck_lab.scenario import Claim
from tapdeck_lab.stats import Anova, Difference

KINDS = ("lwpcap-core", "onl-method-system", "schneider-base", "scoreboard")
SCENARIOS = Path(scenario.__file__).parents[1] / "scenarios"


def load(name: str) -> scenario.Scenario:
    return scenario.load(SCENARIOS / f"{name}.toml", "quick")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one scenario of each kind.

    There are bars, an analysis of variance, lines with panels, goals and a missing method.
    """
    directory = tmp_path_factory.mktemp("results")
    for name in KINDS:
        invent(directory, load(name), missing="netsniff-ng")
    return directory


@pytest.fixture(scope="module")
def page(out: Path) -> Path:
    return report.write(out)


def read(directory: Path) -> dict[str, results.Loaded]:
    return {loaded.scenario.name: loaded for loaded in results.read(directory)}


def chromium() -> str:
    found = next(
        (p for p in ("chromium", "chromium-browser", "google-chrome") if shutil.which(p)), None
    )
    assert found, "headless Chromium is needed: apt-get install chromium"
    return found


def test_the_report_opens_in_chromium_without_an_error(page: Path) -> None:
    command = [
        chromium(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # A browser without a session bus has errors of its own; what concerns the page is said by its
    # console.
    assert "CONSOLE" not in done.stderr, done.stderr
    dom = done.stdout
    assert dom.count("<figure>") == dom.count("</svg>") == len(KINDS) + 1
    assert dom.count("<h2") == len(KINDS)
    # Nothing is fetched from elsewhere, and no identifier is there twice.
    assert not re.search(r'(src|href)="(?!#|data:)', dom.replace("xlink:href", "href"))
    identifiers = re.findall(r'\bid="([^"]+)"', dom)
    assert len(identifiers) == len(set(identifiers))
    drawn = set(re.findall(r'(?:href="#|url\(#)([^")]+)', dom))
    assert drawn <= set(identifiers)


def test_the_report_says_what_it_must(page: Path) -> None:
    text = page.read_text()
    for words in (
        "netsniff-ng is not installed",
        "Where tapdeck loses",
        "What the reference found.",
        "Over all conditions tapdeck-xdp",
        "95 % interval",
        "p by aligned ranks",
        "share of the ceiling, XDP_DROP",
        "in random order from seed 1",
        "Hedges' g",
    ):
        assert words in text, words


def test_the_same_data_make_the_same_page(tmp_path: Path) -> None:
    invent(tmp_path, load("lwpcap-core"))
    text = report.write(tmp_path).read_text()
    assert report.write(tmp_path).read_text() == text


def test_verdicts_on_the_claims(out: Path) -> None:
    found = {v.claim.says: v for v in analysis.verdicts(read(out)["onl-method-system"])}
    assert found["The method explains most of the variation."].verdict == "agrees"
    assert "99." in found["The method explains most of the variation."].found
    (core,) = analysis.verdicts(read(out)["lwpcap-core"])
    assert core.verdict == "agrees" and "in 6 runs: 0 to 0 packets" in core.found
    # What was not run decides nothing.
    absent = read(out)["scoreboard"]
    claim = Claim("x", "less", "loss", "tapdeck-xdp", "netsniff-ng")
    assert analysis._judge(absent, claim)[0] == "not decided"


@pytest.mark.parametrize(
    ("expect", "low", "high", "verdict"),
    [
        ("less", -3, -1, "agrees"),
        ("less", -3, 1, "not decided"),
        ("less", 1, 3, "disagrees"),
        ("less", 0, 0, "disagrees"),
        ("more", 1, 3, "agrees"),
        ("more", -3, -1, "disagrees"),
        ("same", -1, 1, "agrees"),
        ("same", -3, 1, "not decided"),
        ("same", 3, 5, "disagrees"),
    ],
)
def test_an_interval_decides_a_claim(expect: str, low: float, high: float, verdict: str) -> None:
    claim = Claim("x", expect, "loss", "a", "b", margin=2)
    assert analysis.decide(claim, Difference((low + high) / 2, low, high, 0, 1, 0.5, 0)) == verdict


def test_losses_are_counted_as_losses(out: Path) -> None:
    standings = analysis.standings(results.read(out))
    # As it was invented, tapdeck needs less CPU in the hook than tcpdump in its process.
    cpu = [s for s in standings if s.row.metric == "cpu_ms_per_mpkt" and s.other == "tcpdump"]
    assert cpu and all(s.wins is not False for s in cpu)
    assert all(
        s.tapdeck.startswith("tapdeck") and not s.other.startswith("tapdeck") for s in standings
    )


def test_goals_are_ratios_to_the_ceiling(out: Path) -> None:
    rows = analysis.goals(read(out)["scoreboard"])
    ceiling = rows[0]
    assert ceiling.goal.of == "drop" and "drop" not in ceiling.by_method
    assert 0 < ceiling.by_method["tapdeck-xdp"].median <= 1.1
    assert ceiling.reached == (ceiling.by_method["tapdeck-xdp"].median >= 0.9)
    assert rows[1].goal.at_most


def test_goals_are_ratios_to_other_levels(tmp_path: Path) -> None:
    invent(tmp_path, load("pfq-signatures"))
    loaded = read(tmp_path)["pfq-signatures"]
    worst = analysis.goals(loaded)[0].by_method["tapdeck"]
    runs = loaded.good[(loaded.good["method"] == "tapdeck") & (loaded.good["case"] == "worst")]
    one, many = (runs[runs["signatures"] == n]["captured_pps"] for n in ("1", "500"))
    assert worst.median == pytest.approx(many.median() / one.mean())


def test_where_nothing_is_allowed_each_run_counts(tmp_path: Path) -> None:
    invent(tmp_path, load("readers"))
    few = read(tmp_path)["readers"]
    runs = pd.concat([few.runs] * 4, ignore_index=True)
    beside = runs.index[(runs["f.questions"] == "readers") & (runs["status"] == "ok")]
    runs["m.lost"] = 0.0
    for lost, is_reached in ((0.0, True), (1.0, False)):
        runs.loc[beside[0], "m.lost"] = lost
        (goal,) = analysis.goals(results.Loaded(few.scenario, runs, few.planned))
        assert len(beside) > 5 and goal.reached is is_reached


def test_an_analysis_of_variance_leaves_incomplete_methods_out(out: Path) -> None:
    loaded = read(out)["onl-method-system"]
    gone = loaded.runs[
        (loaded.runs["f.method"] == "tapdeck-recv") & (loaded.runs["f.system"] == "tuned")
    ].index
    reduced = results.Loaded(loaded.scenario, loaded.runs.drop(gone), loaded.planned)
    result = analysis.anova(reduced)
    assert isinstance(result, Anova)
    assert result.effect("method").df == 1


def test_a_regression_shows_and_noise_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s = load("onl-method-system")
    for name, seed, slower in (("a", 1, 1.0), ("b", 2, 1.0), ("c", 3, 1.5)):
        invent(tmp_path / name, s, seed, slower)
    a, b, c = (results.read(tmp_path / name) for name in "abc")
    assert not [x for x in compare.changes(a, b) if x.p < 0.05 and x.metric == "captured_mbit"]
    worse = [x for x in compare.changes(a, c) if x.p < 0.05 and x.worse]
    assert {x.metric for x in worse} == {"captured_mbit"}
    assert all(-0.45 < x.difference.difference / x.before < -0.2 for x in worse)
    better = [x for x in compare.changes(c, a) if x.p < 0.05]
    assert better and not any(x.worse for x in better)
    assert command_line.main(["compare", str(tmp_path / "a"), str(tmp_path / "c")]) == 0
    said = capsys.readouterr().out
    assert "worse: onl-method-system" in said and " worse, " in said.splitlines()[-1]


def test_identical_methods_rarely_differ(tmp_path: Path) -> None:
    """A/A through all of the analysis: the same method under two names, a hundred times over."""
    s = load("aa")
    significant = made = 0
    for seed in range(40):
        directory = tmp_path / str(seed)
        invent(directory, s, seed)
        rows = analysis.tests(results.read(directory)[0])
        significant += sum(row.result.p < 0.05 for row in rows if row.metric != "cpu_busy")
        made += 2
    # Binomial with 0.05: more than 10 of 80 has a chance of one in a hundred.
    assert made == 80 and significant <= 10
