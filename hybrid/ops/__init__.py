"""The operations that a network is made of: one interface, in Triton and in plain torch."""
