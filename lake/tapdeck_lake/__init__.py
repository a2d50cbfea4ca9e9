"""Flow tables of many sensors as one table, on engines that exist.

`tapdeck flows` makes Parquet of segments, beside each sensor. The lake brings these files to one
place (`ship`), says which of them are the table (`commit`), and keeps them few (`compact`,
`expire`). Questions are DuckDB's (`sql`). Every segment's file tells what the segment has and
lacks, so the lake knows at any time whether all rows are there (`check`), and which packets nobody
can find because they were never recorded (the view `segments`).

Nothing here reads packets, and nothing talks to a recorder.
"""
