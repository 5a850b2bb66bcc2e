"""Arrow columns from Python values: as pyarrow makes them, without the pandas that it imports."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.ingest import arrow

VALUES = st.one_of(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.none() | st.text(st.characters(codec="utf-8"))),
    st.lists(st.none() | st.floats(allow_nan=False)),
    st.lists(st.none() | st.booleans()),
    st.lists(st.none() | st.lists(st.integers(0, 99))),
)


@given(VALUES)
def test_a_column_has_the_values_it_was_made_of(values: list) -> None:
    assert arrow.column(values).to_pylist() == values


@given(st.lists(st.none() | st.lists(st.text("ab"), max_size=3).map(tuple)))
def test_a_column_of_lists_of_texts_has_its_type(values: list) -> None:
    made = arrow.column(values, pa.list_(pa.string()))
    assert made.to_pylist() == [None if value is None else list(value) for value in values]
    assert made.type == pa.list_(pa.string())


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int8, np.float64, bool])
def test_an_array_is_shared_with_its_mask(kind) -> None:
    values = np.array([3, 0, 1, 0, 5, 1, 1, 0, 1], kind)
    has = np.array([True, False, True, True, True, True, True, True, False])
    expected = [v if h else None for v, h in zip(values.tolist(), has.tolist(), strict=True)]
    assert arrow.present(has, values).to_pylist() == expected


def test_a_run_is_loaded_without_pandas(tmp_path) -> None:
    """Importing it takes longer than loading a small run."""
    code = (
        "import sys\n"
        "from analyzer.ingest import ingest\n"
        "ingest(['analyzer/samples/gpt2-bs1-s512'], sys.argv[1])\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "s.duckdb")]
    assert subprocess.run(command, check=False).returncode == 0
