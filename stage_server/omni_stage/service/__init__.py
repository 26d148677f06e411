"""The gRPC service of a stage: one asyncio process around a StageEngine. Each layer calls only those below it:

    server    the process and its ports: start, probes, drain, watchdog, TLS, metrics
    request   one Generate call, from Start to Summary
    edges     calls to downstream stages, and the tensors of both edges
    media     decoding of images, audio and video in separate processes
    guard     what one caller may cost: quotas, admission, refusals
    metering  metrics, and the timing of responses
    errors    the gRPC status of each error
    wire      the service's names and serializers

Start reading at `request.servicer.StageServicer.generate`, which serves a request in numbered steps, and at
`server.stage_server.run_stage`, which runs the process.
"""
