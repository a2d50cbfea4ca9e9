"""What all tests of the lake share: the build that they test, and the program of the lake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from servers import postgres as of_postgres
from servers import s3 as of_s3
from servers import spark as of_spark


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--build", type=Path, metavar="DIR", help="the build that is tested, as cargo left it"
    )
    parser.addoption(
        "--s3-server", type=Path, metavar="FILE", help="what scripts/setup-s3.sh has built"
    )
    parser.addoption(
        "--jars", type=Path, metavar="DIR", help="what scripts/setup-spark.sh has fetched"
    )


@pytest.fixture(scope="session")
def tapdeck(pytestconfig: pytest.Config) -> Path:
    """The program `tapdeck` of the build that whoever started the tests has named."""
    directory = pytestconfig.getoption("--build")
    if directory is None:
        pytest.fail("no build is named: run `make test-fleet`, or give --build DIR", pytrace=False)
    program: Path = directory.resolve() / "tapdeck"
    if not os.access(program, os.X_OK):
        pytest.fail(f"{program} is not there: cargo build --workspace", pytrace=False)
    # The program that reads URLs is found so.
    os.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return program


@pytest.fixture(scope="session")
def s3(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[of_s3.Server]:
    """A server of S3, which all processes that are begun afterwards know from the environment."""
    program = pytestconfig.getoption("--s3-server")
    if program is None:
        pytest.fail("no server of S3 is named: run `make test-fleet`, or give --s3-server FILE")
    with of_s3.server(program, tmp_path_factory.mktemp("s3")) as begun:
        os.environ |= begun.environment
        yield begun


@dataclass
class Bucket:
    """A place for a lake on S3, and the directory in which the server has it."""

    url: str
    directory: Path


@pytest.fixture
def bucket(s3: of_s3.Server) -> Bucket:
    """A bucket of a test's own."""
    name = f"lake-{uuid4().hex}"
    return Bucket(f"s3://{name}/of/all", s3.make_bucket(name) / "of" / "all")


@pytest.fixture(scope="session")
def postgres() -> Iterator[of_postgres.Server]:
    """A server of PostgreSQL, whose password whoever is begun afterwards knows."""
    with of_postgres.server() as begun:
        yield begun


@pytest.fixture(scope="session")
def surroundings(tapdeck: Path, s3: of_s3.Server, postgres: of_postgres.Server) -> None:
    """All that Spark finds by its environment, which it is told once: when its Java begins."""
    assert tapdeck.with_name("tapdeck-remote").is_file() and s3.endpoint and postgres.port


@pytest.fixture(scope="session")
def jars(pytestconfig: pytest.Config) -> str:
    """The class path of what Spark needs for Iceberg and its catalogs."""
    directory = pytestconfig.getoption("--jars")
    found = sorted(directory.resolve().glob("*.jar")) if directory else []
    if not found:
        pytest.fail(
            "no classes for Spark are named: run `make test-fleet`, or give --jars DIR",
            pytrace=False,
        )
    return ":".join(map(str, found))


@pytest.fixture(scope="module")
def spark_cluster(
    tmp_path_factory: pytest.TempPathFactory, surroundings: None
) -> Iterator[of_spark.Cluster]:
    """A cluster of a module's own, whose workers its tests may kill."""
    with of_spark.cluster(tmp_path_factory.mktemp("cluster")) as begun:
        yield begun


@pytest.fixture(scope="module")
def spark(
    spark_cluster: of_spark.Cluster, tmp_path_factory: pytest.TempPathFactory, jars: str
) -> Iterator[SparkSession]:
    begun = of_spark.session(spark_cluster.address, tmp_path_factory.mktemp("session"), jars)
    yield begun
    begun.stop()
