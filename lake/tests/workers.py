"""A worker of Spark that is killed while it is busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import Row

from servers.spark import Cluster


@contextmanager
def first_worker_killed(
    cluster: Cluster, work: Path
) -> Iterator[Callable[[Iterable[Row]], Iterator[int]]]:
    """Kills the first worker while it is busy. Gives what a question has to be done with.

    That counts the rows of a partition, and the first worker does not come to the end of it.
    """
    begun = work / "begun"

    def count(rows: Iterable[Row]) -> Iterator[int]:
        # Workers keep their files apart, so a task sees whose it is.
        if "worker1" in Path.cwd().parts and not begun.exists():
            begun.touch()
            time.sleep(60)
        yield sum(1 for _ in rows)

    def kill() -> None:
        while not begun.exists():
            time.sleep(0.05)
        cluster.workers[0].kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    yield count
    killer.join()
    assert cluster.workers[0].wait(30) != 0
