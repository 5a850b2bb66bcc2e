"""Measured choices: what the packaged file says, and the rule for shapes that it does not have."""

from __future__ import annotations

from hybrid.ops.tuning import GemvTile, Ranked, RowTile, Tuning, gemv_rule


def test_a_measured_shape_takes_its_tile_and_another_the_rule():
    tuning = Tuning.load()
    assert tuning.gemv("store", 12288, 4096) == GemvTile(8, 512, 4, 1)
    assert ("store", 12289, 4096) not in tuning.gemv_tiles
    assert tuning.gemv("store", 12289, 4096) == gemv_rule("store", 12289, 4096)


def test_rows_take_the_tile_of_their_class_or_the_librarys_product():
    tuning = Tuning.load()
    assert tuning.rows(9, 4096, 4096) == tuning.rows(16, 4096, 4096) == RowTile(16, 32, 128, 4, 6)
    assert tuning.rows(33, 4096, 4096) is None
    assert tuning.rows(500, 4096, 4096) is None


def test_an_algorithm_is_one_part_where_no_parts_are_named():
    ranks = Tuning.load().ranks
    assert ranks[22016, 4096][16] == Ranked(source=32, rank=1, parts=1)
    assert ranks[4096, 11008][16] == Ranked(source=16, rank=1, parts=2)


def test_attention_goes_to_the_library_beyond_what_was_measured():
    tuning = Tuning.load()
    assert tuning.attention(64, 128) != tuning.attention(65, 128)
    assert tuning.attention(1024, 128) is not None
    assert tuning.attention(1025, 128) is None
    assert tuning.attention(64, 80) is None
