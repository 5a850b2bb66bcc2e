"""Texts of ranges (NVTX, ROCTx): operators where PyTorch wrote them, annotations else."""

from __future__ import annotations

import re

from analyzer.trace.columns import UNIT_SEPARATOR
from analyzer.trace.tabular.report import Texts, decoded

# What `torch.autograd.profiler.emit_nvtx` appends to the name of an operator, in this order.
_SEQUENCE, _OP_ID, _SIZES, _INPUTS = b", seq = ", b", op_id = ", b", sizes = ", b", input_op_ids = "
_SEPARATOR = b"\x1e"
_NUMBERED = (
    (re.compile(rb", op_id = \d+"), _OP_ID),
    (re.compile(rb", seq = -?\d+"), _SEQUENCE),
    (re.compile(rb", input_op_ids = [^\x1e]*"), b""),
)
# A range that PyTorch wrote is an operator if autograd numbered it or its name has the form of one:
# `record_function` writes labels with an op_id too, and they enclose operators of all kinds.
_OP_NAME = re.compile(rb"[A-Za-z_]\w*::|triton_|record_param_comms$")
_BARE_OP_NAME = re.compile(rb"(?:aten|c10d|torch|prims|prim)::[\w.]+")


class RangeTexts:
    """What the texts of ranges say, each parsed once."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._known: dict[bytes, int] = {}
        self._parsed: list[tuple[int, int, bool]] = []

    def parsed(self, texts: list[bytes]) -> list[tuple[int, int, bool]]:
        """(id of the name, id of the shape, whether it is an operator) of each text."""
        keys = _without_numbers(texts)
        for key in dict.fromkeys(keys):
            if key not in self._known:
                self._known[key] = len(self._parsed)
                self._parsed.append(self._parse(key))
        return [self._parsed[self._known[key]] for key in keys]

    def _parse(self, text: bytes) -> tuple[int, int, bool]:
        head, _, sizes = text.partition(_INPUTS)[0].partition(_SIZES)
        name = head.partition(_SEQUENCE)[0].partition(_OP_ID)[0]
        is_op = _is_op(name, is_written=len(name) < len(text), has_sequence=_SEQUENCE in head)
        shape = self._texts.id(decoded(sizes) + UNIT_SEPARATOR * 3) if sizes else -1
        return self._texts.id(decoded(name)), shape, is_op


def _without_numbers(texts: list[bytes]) -> list[bytes]:
    """Texts without the numbers that make every one of them another."""
    # All at once: a call of a pattern costs more than its work on one text.
    joined = _SEPARATOR.join(texts)
    for pattern, plain in _NUMBERED:
        joined = pattern.sub(plain, joined)
    keys = joined.split(_SEPARATOR)
    # A text that holds the separator is kept as it is, with all of its piece.
    return keys if len(keys) == len(texts) else texts


def _is_op(name: bytes, is_written: bool, has_sequence: bool) -> bool:
    if not is_written:
        return _BARE_OP_NAME.fullmatch(name) is not None
    return b"#" not in name and (has_sequence or _OP_NAME.match(name) is not None)
