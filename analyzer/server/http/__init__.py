"""HTTP: the application, what surrounds it, and its routes."""
