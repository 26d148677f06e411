"""Calls to the API server: the connection, requests and their pace, and the parsing of responses."""
