"""The gRPC edge of a stage: one asyncio process around a StageEngine.

Start here: `servicer.StageServicer.generate` is a request in numbered steps, `serve.run_stage` is the process.
"""
