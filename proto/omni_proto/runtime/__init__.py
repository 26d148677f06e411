"""What every server and worker process needs: logs, spans, the allocator, confinement, limits."""
