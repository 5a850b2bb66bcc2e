"""Profiles of JAX and XLA; `reader` is the interface."""
