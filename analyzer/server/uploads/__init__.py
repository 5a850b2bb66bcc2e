"""Uploads and the originals that they become."""
