"""Reads a trace: from bytes to events, by column."""
