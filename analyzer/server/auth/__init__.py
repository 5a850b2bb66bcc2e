"""Who gets in: tokens, sessions, the login, an identity provider, rates."""
