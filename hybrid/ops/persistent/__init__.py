"""A decode step as one cooperative kernel, built at run time for the model's sizes."""
