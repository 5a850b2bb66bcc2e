"""Conversions: their queue, the processes that run them."""
