"""A light client of the Kubernetes API server, for programs that watch many objects and write few.

It uses plain JSON, server-side apply, a Lease, and watches. A collection's first watch follows a list, which replaces
the stored objects. The package does not depend on OmniPipelines.

    reflector --> api: client --> transport     parsing of responses: api.wire
        +-------> store                         comparison and decisions: matching, lease, api.timing
"""
