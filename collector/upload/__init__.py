"""Runs on their way to a server: noted in a spool, sent one after the other."""
