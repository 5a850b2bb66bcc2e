"""The distinct op calls of a run, from its execution trace: how to call each one again, alone.

A call is a Kineto op that launched kernels (innermost around a launch), tied to a node of the
PyTorch execution trace by name, shapes and strides, and by its scalars where several fit. The node
has the schema with its overload, and the scalars. Tensors are made anew: recorded dims, strides
and dtype; integer tensors get values that are valid as indices.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch

from collector.errors import CollectorError

_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "short": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::Float8_e4m3fn": getattr(torch, "float8_e4m3fn", torch.uint8),
}
_SCHEMA_NAME = re.compile(r"(?P<space>\w+)::(?P<name>\w+)(?:\.(?P<overload>\w+))?\(")
_BARE = re.compile(r"(?<=[\[,:\s])(-?)(inf|nan)(?=[\],}\s])", re.IGNORECASE)
# Vectorised kernels need data aligned to this many bytes.
ALIGNMENT = 16
MOST_VARIANTS = 4
TEXTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


class CannotReplay(Exception):
    """Why an op call cannot be made again, in words that the run keeps."""


@dataclass
class OpCall:
    """One distinct call: the texts by which a trace knows it, and the node that says how to make
    it.

    `key` is (op, input dims, input types, input strides, concrete inputs), as JSON texts of Kineto.
    """

    key: tuple[str, str, str, str, str]
    count: int
    node: dict[str, Any] | None
    reason: str | None = None

    def bind(self, device: str) -> tuple[Any, list[Any], dict[str, Any]]:
        """The operator and fresh arguments.

        Raises:
            CannotReplay: The schema or a value is beyond what can be made again.
        """
        if self.node is None:
            raise CannotReplay(self.reason or "the execution trace has no such op")
        attributes = {a["name"]: a["value"] for a in self.node["attrs"]}
        schema_text = attributes.get("op_schema", "")
        match = _SCHEMA_NAME.match(schema_text)
        if not match:
            raise CannotReplay("the op has no schema (it is no dispatcher op)")
        try:
            packet = getattr(getattr(torch.ops, match["space"]), match["name"])
            operator = getattr(packet, match["overload"] or "default")
            parse: Any = torch._C.parse_schema  # pyright: ignore[reportPrivateUsage]  (no public one)
            schema = parse(schema_text)
        except (AttributeError, RuntimeError) as error:
            raise CannotReplay(
                f"{match['space']}::{match['name']} is not registered here"
            ) from error
        inputs = self.node["inputs"]
        values = [
            _argument(*parts, device)
            for parts in zip(
                inputs["values"], inputs["shapes"], inputs["types"], inputs["strides"], strict=True
            )
        ]
        _fix_values(match["name"], values)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for argument, value in zip(schema.arguments, values, strict=False):
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        return operator, positional, named


def from_run(
    traces: list[list[dict[str, Any]]], execution_trace: list[dict[str, Any]]
) -> list[OpCall]:
    """Distinct op calls of parsed trace events, each tied to its execution-trace node.

    Calls that differ only in how their tensors are aligned are distinct: elementwise kernels come
    in a vectorised form for aligned data and another for the rest.
    """
    exact: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for node in execution_trace:
        if "inputs" in node:
            inputs = node["inputs"]
            exact[node["name"], _norm(inputs["shapes"]), _norm(inputs["strides"])].append(node)
            by_name[node["name"]].append(node)
    counts: dict[tuple[str, str, str, str, str], int] = defaultdict(int)
    for events in traces:
        for op in launching_ops(events):
            counts[op_key(op)] += 1
    calls: list[OpCall] = []
    for key, count in counts.items():
        name, dims, types, strides, concrete = key
        fitting = exact.get((name, _norm(_load(dims)), _norm(_load(strides)))) or [
            # Kineto leaves out the shapes of optional tensor lists, the indices of an index op say.
            node
            for node in by_name[name]
            if _fits(_load(dims), node["inputs"]["shapes"])
        ]
        fitting = [node for node in fitting if _same_types(_load(types), node)]
        if not fitting:
            reason = (
                "the trace has no shapes for it"
                if not dims
                else "the execution trace has no op of this name, shape and dtype"
            )
            calls.append(OpCall(key, count, None, reason))
            continue
        most = max(_agreement(node, concrete) for node in fitting)
        variants: dict[tuple[int, ...], dict[str, Any]] = {}
        for node in fitting:
            if _agreement(node, concrete) == most:
                variants.setdefault(_alignments(node), node)
        calls += [OpCall(key, count, node) for node in [*variants.values()][:MOST_VARIANTS]]
    return calls


def op_key(op: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """The texts by which the analyzer knows an op call."""
    args = op.get("args", {})
    dims, types, strides, concrete = (kineto_text(args[k]) if k in args else "" for k in TEXTS)
    return op["name"], dims, types, strides, concrete


def kineto_text(value: Any) -> str:
    """JSON text as Kineto writes it: a comma and a blank between items; numbers as they stood."""
    if _is_list(value):
        return "[" + ", ".join(kineto_text(item) for item in value) + "]"
    if isinstance(value, _Number):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


class _Number(str):
    __slots__ = ()


def load_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace of ours (.json or .json.gz), numbers as text."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(raw, parse_int=_Number, parse_float=_Number)
    return document["traceEvents"]


def load_execution_trace(path: Path) -> list[dict[str, Any]]:
    """The nodes of a PyTorch execution trace.

    Raises:
        CollectorError: The file is no such trace.
    """
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = _BARE.sub(lambda m: f'"{m[1]}{m[2].lower()}"', raw.decode("utf-8", "replace"))
    try:
        return json.loads(text)["nodes"]
    except (ValueError, KeyError) as error:
        raise CollectorError(f"{path} is no PyTorch execution trace: {error}.") from error


def launching_ops(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The innermost op around each kernel launch, one entry a launch."""
    kernels = {
        e["args"].get("correlation")
        for e in events
        if e.get("cat") == "kernel" and e.get("ph") == "X"
    }
    ops: dict[Any, list[tuple[float, float, dict[str, Any]]]] = defaultdict(list)
    calls: dict[Any, list[float]] = defaultdict(list)
    base = next((float(e["ts"]) for e in events if e.get("ph") == "X"), 0.0)
    for event in events:
        if event.get("ph") != "X":
            continue
        lane = (event.get("pid"), event.get("tid"))
        start = float(event["ts"]) - base
        if event.get("cat") == "cpu_op":
            ops[lane].append((start, start + float(event["dur"]), event))
        elif (
            event.get("cat") in ("cuda_runtime", "cuda_driver")
            and event["args"].get("correlation") in kernels
            and "GraphLaunch" not in event["name"]
        ):
            calls[lane].append(start)
    found: list[dict[str, Any]] = []
    for lane, times in calls.items():
        ordered = sorted(ops[lane], key=lambda op: (op[0], -op[1]))
        stack: list[tuple[float, float, dict[str, Any]]] = []
        begun = 0
        for time in sorted(times):
            while begun < len(ordered) and ordered[begun][0] <= time:
                stack.append(ordered[begun])
                begun += 1
            while stack and stack[-1][1] <= time:
                stack.pop()
            # An op that ended under a still open one is skipped when that one is on top.
            alive = [op for op in stack if op[1] > time]
            if alive:
                found.append(alive[-1][2])
    return found


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _load(text: str) -> Any:
    try:
        return json.loads(text) if text else []
    except ValueError:
        return text


def _norm(value: Any) -> str:
    """Shapes as one text, whether they were numbers or texts of numbers."""
    if _is_list(value):
        parts = [_norm(item) for item in value]
        # A list of scalars has no shape: one writer says [], the other a list of empty ones.
        return "[" + ",".join(parts) + "]" if any(part != "[]" for part in parts) else "[]"
    return str(value)


def _fits(dims: Any, shapes: list[Any]) -> bool:
    """Whether the shapes agree where Kineto wrote some."""
    return (
        _is_list(dims)
        and len(dims) == len(shapes)
        and any(_norm(d) != "[]" for d in dims)
        and all(_norm(d) in ("[]", _norm(s)) for d, s in zip(dims, shapes, strict=True))
    )


def _same_types(types: Any, node: dict[str, Any]) -> bool:
    """Whether the tensors have the same dtypes: a cast has the shapes of its reverse."""
    if not _is_list(types):
        return True
    return all(
        not theirs.startswith("Tensor(") or theirs[7:-1] == ours
        for ours, theirs in zip(types, node["inputs"]["types"], strict=False)
    )


def _alignments(node: dict[str, Any]) -> tuple[int, ...]:
    """Bytes by which each tensor's data begins after an aligned address."""
    inputs = node["inputs"]
    return tuple(
        _offset(value) if kind.startswith("Tensor(") else 0
        for value, kind in zip(inputs["values"], inputs["types"], strict=True)
    )


def _offset(value: Any) -> int:
    """Of a tensor's [id, storage, offset, elements, bytes an element, device]."""
    if not _is_list(value) or len(value) < 5:
        return 0
    return int(value[2]) * int(value[4]) % ALIGNMENT


def _agreement(node: dict[str, Any], concrete: str) -> int:
    """How many scalars of the Kineto text the node has too."""
    texts = _load(concrete)
    if not _is_list(texts):
        return 0
    values = node["inputs"]["values"]
    return sum(
        str(text).replace(" ", "") == str(value).replace(" ", "")
        for text, value in zip(texts, values, strict=False)
        if text != ""
    )


def _argument(value: Any, shape: Any, kind: str, strides: Any, device: str) -> Any:
    if kind.startswith("Tensor("):
        where = value[5] if _is_list(value) and len(value) > 5 else device
        return _tensor(
            shape,
            kind[7:-1],
            strides,
            device if str(where).startswith("cuda") else "cpu",
            _offset(value),
        )
    if kind.startswith("GenericList["):
        inner = _split(kind[len("GenericList[") : -1])
        if inner and inner[0].startswith("Tensor("):
            return [
                _argument(*parts, device)
                for parts in zip(value, shape, inner, strides, strict=True)
            ]
        return [_scalar(item) for item in value] if _is_list(value) else value
    if kind.startswith("OptionalTensorList") or kind in ("None", ""):
        return None
    if kind in ("Device",):
        return torch.device(value)
    if kind in ("Generator",):
        raise CannotReplay("it draws from a random generator that was given")
    if kind in ("Int", "Double", "Bool", "String", "Float"):
        return _scalar(value)
    raise CannotReplay(f"an argument of type {kind} cannot be made again")


def _scalar(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip("-") in ("inf", "nan"):
        return float(value)
    return value


def _split(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _tensor(
    shape: list[int], kind: str, strides: list[int], device: str, offset_bytes: int = 0
) -> torch.Tensor:
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise CannotReplay(f"tensors of {kind} cannot be made again")
    size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
    lead = offset_bytes // dtype.itemsize
    if dtype.is_floating_point:
        flat = torch.empty(lead + size, dtype=dtype, device=device)
        flat.fill_(0.5) if dtype.itemsize == 1 else flat.normal_(0, 0.02)
    else:
        # Zero is a valid index of everything, and a mask of ones selects everything.
        flat = torch.full((lead + size,), int(dtype is torch.bool), dtype=dtype, device=device)
    return flat.as_strided(shape, strides, lead)


def _fix_values(name: str, values: list[Any]) -> None:
    """Values without which an op has no work: offsets of a grouped product rise evenly to the
    number of rows; one element of `nonzero`'s input is not zero."""
    if name == "nonzero" and isinstance(values[0], torch.Tensor) and values[0].numel():
        values[0].fill_(1) if values[0].dim() == 0 else values[0][-1:].fill_(1)
    if "grouped_mm" not in name:
        return
    for value in values:
        if isinstance(value, torch.Tensor) and value.dtype is torch.int32 and value.dim() == 1:
            rows = values[0].shape[0]
            steps = torch.arange(1, len(value) + 1, device=value.device)
            value.copy_((steps * rows) // len(value))
