"""The gRPC service of a stage: one asyncio process around a StageEngine. Each floor calls only those below it:

    server    the process and its ports: start, probes, drain, watchdog, TLS, metrics
    request   one Generate call, from Start to Summary
    edges     calls to the stages below, and the tensors of both edges; media: decoding in processes of their own
    modules   errors, wire format, metrics, deadlines: what all floors share

Start here: `request.servicer.StageServicer.generate` is a request in numbered steps, `server.stage_server.run_stage`
is the process.
"""
