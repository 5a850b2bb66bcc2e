"""Sections of pages that are long enough to stand alone, or that only some runs have."""
