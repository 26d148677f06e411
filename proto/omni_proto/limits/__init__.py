"""Limits of rates and of connections, for servers."""
