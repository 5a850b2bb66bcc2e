"""The shapes of what the API takes and answers, as its OpenAPI description shows them."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model, field_validator

from analyzer.queries.records import Description, Kernel, ListedRun, Run, Trace
from analyzer.server.labels import AuditEntry

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Line = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
Tag = Annotated[str, StringConstraints(pattern=r"^[\w.:/+-]{1,100}$")]
Format = Literal[
    "run-directory.tar",
    "run-directory.tar.gz",
    "trace.json",
    "trace.json.gz",
    "trace.pftrace",
    "trace.pftrace.gz",
    "trace.sqlite",
    "trace.db",
    "trace.xplane.pb",
    "trace.xplane.pb.gz",
    "trace.zip",
]
PROBLEM = "application/problem+json"
MOST_METADATA_BYTES = 16 << 10
JobState = Literal["queued", "running", "done", "failed"]


class Error(BaseModel):
    """Why a request was refused (RFC 9457): `detail` says it in one line."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str | None = None


def problem(status: int, detail: str, request_id: str | None = None) -> dict[str, Any]:
    """An error as it is answered, of the media type PROBLEM."""
    title = http.client.responses.get(status, "Error")
    known: dict[str, Any] = {"type": "about:blank", "title": title, "status": status}
    return {**known, "detail": detail, "request_id": request_id}


class Announcement(BaseModel):
    """What will be uploaded. The hash is the identity: the same content is uploaded once."""

    model_config = ConfigDict(extra="forbid")

    sha256: Sha256
    size: Annotated[int, Field(ge=1, le=2**53)]
    format: Format | None = None
    name: Line | None = None
    host: Line | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    @field_validator("metadata")
    @classmethod
    def _is_small(cls, value: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(value, default=str)) > MOST_METADATA_BYTES:
            raise ValueError(f"it may have {MOST_METADATA_BYTES} bytes as JSON")
        return value


class Conversion(BaseModel):
    """What a job and an upload say of how it went. Times are Unix seconds."""

    error: str | None
    run_ids: list[str]
    sha256: str
    name: str | None
    attempts: int
    started_at: float | None
    finished_at: float | None
    results: list[dict[str, Any]]


class Job(Conversion):
    """A conversion."""

    id: str
    state: JobState
    queued_at: float


class JobList(BaseModel):
    jobs: list[Job]
    counts: dict[str, int]


class Stored(BaseModel):
    """The content is known: no bytes are to be sent."""

    status: Literal["stored"] = "stored"
    sha256: str
    job: Job | None
    run_ids: list[str]


class Incomplete(BaseModel):
    """Send the bytes from `offset` on to `url`, by tus 1.0."""

    status: Literal["incomplete"] = "incomplete"
    protocol: Literal["tus"] = "tus"
    url: str
    offset: int


class UploadState(Conversion):
    """An upload, and what has become of it: the fields of its newest job, whose id is `job_id`.

    While it is "incomplete" there is no job yet.
    """

    id: str
    state: Literal["incomplete", "queued", "running", "done", "failed"]
    size: int
    offset: int
    format: str | None
    host: str | None
    job_id: str | None
    queued_at: float | None


class Usage(BaseModel):
    """What a team uses and what it may, null if there is no bound; `text` says it in a line."""

    team: str
    stored_bytes: int
    stored_bytes_allowed: int | None
    queued: int
    queued_allowed: int | None
    text: str


@dataclass(frozen=True)
class LabelledRun(ListedRun):
    """A run in a list, with what people say of it."""

    tags: list[str]
    note: str | None
    owner: str | None
    is_baseline: bool
    archived_at: float | None


class RunList(BaseModel):
    """Runs in the order asked for; `total` counts those that the filters leave, `next` is the
    `cursor` of the next page.
    """

    runs: list[LabelledRun]
    total: int
    next: str | None


class RunChange(BaseModel):
    """What is to be changed; what is not given stays."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[Line, Field(min_length=1)] = ""
    tags: Annotated[list[Tag], Field(max_length=50)] = Field(default_factory=list[str])
    note: Annotated[str, StringConstraints(max_length=10_000)] | None = None
    owner: Line | None = None
    is_baseline: bool = False
    archived: bool = False


class AuditLog(BaseModel):
    """Lines of the audit log; `next` is the `cursor` of the next page."""

    entries: list[AuditEntry]
    next: int | None


def _with_json(kind: type[Any], **others: Any) -> Any:
    """A record as a model: some of its fields, which hold JSON as text, as what they hold."""
    hints = get_type_hints(kind)
    types = {field.name: (hints[field.name], ...) for field in fields(kind)}
    types |= {name: (other, ...) for name, other in others.items()}
    make: Any = create_model
    return make(f"Described{kind.__name__}", __doc__=kind.__doc__, **types)


_Json = dict[str, Any] | list[Any] | None
_DescribedTrace: Any = _with_json(Trace, metadata=_Json)
_DescribedRun = _with_json(Run, manifest=_Json, trace_metadata=_Json, phases=_Json, versions=_Json)
# What a run is and what it was read from.
Described = _with_json(Description, run=_DescribedRun, traces=list[_DescribedTrace])


class KernelList(BaseModel):
    run_id: str
    kernels: list[Kernel]


class Statement(BaseModel):
    """One SELECT. Its rows are cut at `limit`."""

    model_config = ConfigDict(extra="forbid")

    sql: Annotated[str, StringConstraints(max_length=100_000)]
    limit: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    time_limit_s: Annotated[float, Field(gt=0, le=3600)] | None = None


class Answer(BaseModel):
    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool


class NewToken(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scopes: Annotated[list[Literal["upload", "read", "admin"]], Field(min_length=1)]
    name: Line = ""
    expires_days: Annotated[float, Field(gt=0, le=36500)] | None = None


class Token(BaseModel):
    id: str
    team: str
    name: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    active: bool


class CreatedToken(Token):
    """A new token; `token` is shown this once."""

    token: str


class TokenList(BaseModel):
    tokens: list[Token]


class Deleted(BaseModel):
    deleted: str
