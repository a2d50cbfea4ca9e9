"""What Spark has to be told to read and change the Iceberg table of a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import LakeError
from .place import S3, Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .catalog import Lake

EXTENSIONS = "spark.sql.extensions"
"""What has to be set before a session begins."""
PORT = 5432


def settings(lake: Lake) -> dict[str, str]:
    """Returns settings of Spark, by their names. The catalog gets the name `tapdeck`.

    Raises LakeError where Spark cannot read the lake.
    """
    # What it needs takes a while to be read.
    from .iceberg import CATALOG, IcebergTable

    if not isinstance(lake.table, IcebergTable):
        raise LakeError(
            f"{lake.directory} is a lake of plain files, which Spark reads as Parquet: "
            "tapdeck-lake init --iceberg makes one with a table"
        )
    told = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        # The catalog's tables are as PyIceberg makes them.
        ".jdbc.schema-version": "V1",
        ".warehouse": lake.place.uri("iceberg"),
        # The table is changed by others, too, and is to be seen as it is.
        ".cache-enabled": "false",
        **connection(lake),
        **of_s3(lake.place),
    }
    return {
        EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        **{f"spark.sql.catalog.{CATALOG}{name}": value for name, value in told.items()},
    }


def add_to(session: SparkSession, lake: Lake) -> None:
    """Makes the table of a lake known to a session, which was begun with Iceberg's extensions."""
    for name, value in settings(lake).items():
        if name != EXTENSIONS:
            session.conf.set(name, value)


def of_s3(place: Place) -> dict[str, str]:
    """Returns settings of the catalog for files on S3, without keys."""
    if not isinstance(place, S3):
        return {}
    told = {
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".client.region": place.service.region,
    }
    if place.service.endpoint:
        told |= {".s3.endpoint": place.service.endpoint, ".s3.path-style-access": "true"}
    return told


def connection(lake: Lake) -> dict[str, str]:
    """Returns settings of the catalog that say where its database is."""
    from sqlalchemy.engine import URL

    from .iceberg import server_at

    if not lake.server:
        return {".uri": f"jdbc:sqlite:{lake.directory / 'iceberg.db'}"}
    url = server_at(lake.server)
    if not url.host:
        raise LakeError(
            f"{lake.server} names no host, and Spark does not know local sockets: make the lake "
            "with postgresql://USER@HOST:PORT/DATABASE"
        )
    # Java's driver has the same words for what else a URI says.
    of_java = URL.create(
        "jdbc:postgresql", None, None, url.host, url.port or PORT, url.database, url.query
    )
    found = {".uri": of_java.render_as_string()}
    if url.username:
        found[".jdbc.user"] = url.username
    return found
