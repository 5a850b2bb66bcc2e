"""SQL of people, in child processes on copies of the stores."""
