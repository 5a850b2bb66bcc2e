"""Exports of Nsight Systems; `reader` is the interface."""
