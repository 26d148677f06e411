"""The pipelines that are served, the connections to their entry stages, and the descriptions of these stages."""
