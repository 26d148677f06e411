"""The HTTP server: the ASGI app, the limits of its connections, its certificate, and the drain at the end."""
