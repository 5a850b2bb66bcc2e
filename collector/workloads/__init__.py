"""The workloads of each mode: a model's request, step by step."""
