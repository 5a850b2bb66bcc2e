"""What is taken away holds exactly what was shown."""

from __future__ import annotations

import polars as pl

from webapp import downloads


def test_csv_holds_lists_as_text_and_exact_numbers():
    rows = pl.DataFrame({"ns": [9_007_199_254_740_993], "many": [[1, 2]]})
    assert downloads.csv(rows).decode() == 'ns,many\n9007199254740993,"[1, 2]"\n'
