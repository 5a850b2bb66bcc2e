"""Answers as text, tables and files."""
