"""The small TOML file that names a lake: where its catalog and its data are.

Holds no password and no keys: those come from the environment, ~/.pgpass and AWS's variables.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from analyzer.errors import AnalyzerError

SUFFIX = ".toml"


class ObjectStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An S3-compatible store other than Amazon's own; keys come from AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY.
    """

    endpoint: str = "s3.amazonaws.com"  # host or host:port
    region: str = "us-east-1"
    url_style: str = "path"  # path | vhost
    use_ssl: bool = True


class LakeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a lake file says.

    Attributes:
        catalog: PostgreSQL connection string ("host=... dbname=... user=..."), without password.
        data: A folder that all processes see (relative to the lake file), or s3://bucket/prefix.
        schema: Schema of the catalog's tables in PostgreSQL.
    """

    catalog: str
    data: str
    schema: str = "hostbound"
    s3: ObjectStore = msgspec.field(default_factory=ObjectStore)

    @property
    def in_s3(self) -> bool:
        return self.data.startswith("s3://")


def read_lake_file(db: Path) -> LakeFile:
    """Read a lake file.

    Raises:
        AnalyzerError: It is not there, cannot be read, or says something that no lake has.
    """
    try:
        found = msgspec.toml.decode(db.read_bytes(), type=LakeFile)
    except OSError as error:
        raise AnalyzerError(
            f"{db} cannot be read: {error.strerror}; docs/operations.md shows a lake file."
        ) from error
    except ImportError as error:  # Python 3.10 reads TOML with a package
        raise AnalyzerError(f"{db} cannot be read: pip install 'hostbound[fleet]'.") from error
    except msgspec.DecodeError as error:
        raise AnalyzerError(
            f"{db} is no lake file: {error}; docs/operations.md shows one."
        ) from error
    if "password" in found.catalog:
        raise AnalyzerError(
            f"{db} holds a password, which every SQL query could read; put it into ~/.pgpass or "
            "PGPASSWORD."
        )
    if not found.data.strip() or ("://" in found.data and not found.in_s3):
        raise AnalyzerError(f"{db}: data is {found.data!r}; give a folder or s3://bucket/prefix.")
    data = found.data.rstrip("/") if found.in_s3 else (db.parent / found.data).resolve()
    return msgspec.structs.replace(found, data=f"{data}/")
