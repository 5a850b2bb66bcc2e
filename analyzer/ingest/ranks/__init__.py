"""Ranks of one job: their files joined to one run, and the rows of what is told of them."""
