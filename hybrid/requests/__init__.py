"""Requests in the words of others."""
