"""The lab: experiments that compare ways to capture packets, rerun by one command.

A *scenario* (a TOML file, `scenario`) states what is asked, which settings vary, and what a
reference found. The *runner* makes a randomised plan of runs from it and takes each through the
*cycle*: start samplers and capture, wait until ready, read counters, generate, read counters, stop,
collect. A run needs a *build* of tapdeck, a *testbed* (two ends of a wire), a *method* (who
captures) and *samplers* (what it cost). What comes out is one row a run (`results`), which
`analysis` turns into intervals, tests and tables by `stats`, and `report` into one HTML file; both
read nothing but the rows, so a report can be made again at any time.
"""
