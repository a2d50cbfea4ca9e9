"""The command line of the lab."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from . import machine, methods, results, runner, scenario, testbed
from .build import Build, BuildError
from .cycle import Lab

USAGE, FAILED = 2, 1
SCENARIOS = methods.LAB / "scenarios"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="lab", description="Experiments that compare ways to capture packets."
    )
    commands = top.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="run scenarios and write a report")
    run.add_argument(
        "--out", type=Path, required=True, help="directory for raw data and report.html"
    )
    profile = run.add_mutually_exclusive_group()
    profile.add_argument(
        "--quick", action="store_true", help="the quick profile: a quarter of an hour for all"
    )
    profile.add_argument(
        "--once",
        action="store_true",
        help="each combination of the full profile once and briefly, to see that all of it runs "
        "here: half an hour",
    )
    run.add_argument("--only", default="", metavar="NAME[,NAME]", help="these scenarios")
    run.add_argument(
        "--scenario",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a scenario of your own",
    )
    run.add_argument("--resume", action="store_true", help="go on where --out ends")
    run.add_argument(
        "--build",
        type=Path,
        required=True,
        metavar="DIR",
        help="the build that is measured, as cargo left it",
    )
    run.add_argument("--gen-if", default="", help="send by this interface instead of a veth pair")
    run.add_argument("--cap-if", default="", help="and capture on this one")
    run.add_argument(
        "--gen-ssh",
        default="",
        metavar="USER@HOST",
        help="the machine of --gen-if, where tapdeck is in the PATH",
    )
    run.add_argument("--no-report", action="store_true", help="raw data only")

    report = commands.add_parser("report", help="write report.html anew from raw data")
    report.add_argument("directory", type=Path)

    compare = commands.add_parser(
        "compare", help="say what became slower from one directory of results to another"
    )
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)

    check = commands.add_parser("check", help="read scenario files and say what they would take")
    check.add_argument("files", type=Path, nargs="*")
    profile = check.add_mutually_exclusive_group()
    profile.add_argument("--quick", action="store_true")
    profile.add_argument("--once", action="store_true")
    return top


def main(words: list[str] | None = None) -> int:
    # Ended from outside, it cleans up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parser().parse_args(words)
    try:
        return {"run": run, "report": report, "compare": compare, "check": check}[options.command](
            options
        )
    except scenario.ScenarioError as error:
        print(f"lab: {error}", file=sys.stderr)
        return USAGE
    except (BuildError, results.ResultsError, methods.Missing, testbed.TestbedError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return FAILED


def chosen(options: argparse.Namespace) -> list[scenario.Scenario]:
    files = list(options.scenario)
    if options.only or not files:
        there = {file.stem: file for file in sorted(SCENARIOS.glob("*.toml"))}
        names = options.only.split(",") if options.only else list(there)
        for name in names:
            if name not in there:
                raise scenario.ScenarioError(
                    f"there is no scenario {name}; there are {', '.join(there)}"
                )
        files += [there[name] for name in names]
    return [scenario.load(file, profile_of(options)) for file in files]


def profile_of(options: argparse.Namespace) -> str:
    return "quick" if options.quick else "once" if options.once else "full"


def run(options: argparse.Namespace) -> int:
    if bool(options.gen_if) != bool(options.cap_if):
        raise scenario.ScenarioError("--gen-if and --cap-if go together")
    build = Build.at(options.build)
    scenarios = chosen(options)
    out = options.out.resolve()
    work = out / "work"
    runner.clean_up(work)
    testbed.remove_stale()
    work.mkdir(parents=True)
    known = results.read_machine(out) if options.resume else {}
    if not known:
        known = machine.describe(build) | {
            "disk": machine.measure_disk(work, 16 if profile_of(options) == "full" else 4)
        }
        results.write_machine(out, known)
    wire = testbed.Wire(options.gen_if, options.cap_if, options.gen_ssh) if options.gen_if else None
    lab = Lab(
        build,
        work,
        0.5 if profile_of(options) == "full" else 0.1,
        wire,
        disk_mb_per_s=known["disk"].get("mb_per_s", 0),
    )
    interrupted = False
    try:
        runner.run_all(lab, out, scenarios, options.resume)
    except KeyboardInterrupt:
        interrupted = True
        print("lab: interrupted; what is done is kept, and --resume goes on", file=sys.stderr)
    finally:
        runner.clean_up(work)
    if not options.no_report:
        write_report(out)
    return 130 if interrupted else 0


def write_report(out: Path) -> None:
    from . import report

    path = report.write(out)
    print(f"lab: {path}", file=sys.stderr)


def report(options: argparse.Namespace) -> int:
    write_report(options.directory)
    return 0


def compare(options: argparse.Namespace) -> int:
    from . import compare as comparison

    print(comparison.text(results.read(options.before), results.read(options.after)))
    return 0


def check(options: argparse.Namespace) -> int:
    files = options.files or sorted(SCENARIOS.glob("*.toml"))
    total = 0.0
    for file in files:
        one = scenario.load(file, profile_of(options))
        plan = one.plan()
        seconds = sum(runner.expected_s(one, r) for r in plan)
        total += seconds
        print(f"{one.name}: {len(plan)} runs, about {runner.duration(seconds)}")
    print(f"{len(files)} scenarios, about {runner.duration(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
