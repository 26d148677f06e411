"""A light client of the Kubernetes API server, for programs that watch much and write little: plain JSON, watches whose
lists replace, server-side apply, and a Lease. It knows nothing of OmniPipelines.

    reflector --> client --> transport --> connection          what comes: wire, seen
        +-------> store                                        what is compared and decided: matching, lease, pacing
"""
