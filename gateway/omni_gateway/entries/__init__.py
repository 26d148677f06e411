"""Entry stages: the pipelines that are served, the connections to their entry stages, and what these stages do."""
