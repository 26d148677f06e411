"""The only place that touches vLLM's private interfaces, of version 0.32. Each module names those it uses, and why.

By where it runs::

    front end    core, async_llm, inproc, output_processor, env        the engine as the stage server sees it
                 engine_properties                                     what both kinds of cores show of it
    scheduler    scheduler, diffusion_scheduler, diffusion_admission   which requests make up a step
    worker       ar_worker, ar_runner, input_rows                      autoregressive: rows in
                 ar_publish, ar_output, capture                        autoregressive: rows out, acting on tokens
                 diffusion_worker, diffusion_runner, diffusion_output  one shot: one step is one generation
                 cpu_workers                                           their siblings on CPUs, never beside a GPU
                 weight_check                                          a checkpoint's tensors against a model
                 device_failure                                        is a failure the request's or the device's
    between      scheduler_output (scheduler to worker), packing and start_errors (worker to front end)
    models       hooks (what a model class may do around a step), model_hooks (which ones it has)
    settings     config (of the runner), select (names of the worker and scheduler classes)

vLLM gets the classes by name (`select`) and builds them itself: no module of vLLM is patched, no object's class is
exchanged. This package imports nothing when it is imported.
"""
