"""Perfetto traces that PyTorch wrote."""
