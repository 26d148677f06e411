"""The only place that touches vLLM's private interfaces, of version 0.32. Each module names those it uses, and why.

By where it runs::

    front end    core/        the engine as the stage server sees it: one interface, its own process or this one
                 process/     the engine's process: environment, template, its end
    scheduler    scheduling/  which requests make up a step, and what the workers get of them
    worker       ar/          autoregressive stages: rows in, rows out, hooks after sampling
                 diffusion/   one-shot stages, their scheduler included: one step is one generation
                 worker/      code that both runners share
                 cpu_workers  the same classes for CPUs; never imported with a GPU
    start-up     checks/      image, GPU driver, the checkpoint's tensors against a model
    between      packing and start_errors (worker to front end), hooks (what a model class may do around a step)
    settings     select       names of the worker and scheduler classes

vLLM gets the classes by name (`select`) and builds them itself: no module of vLLM is patched, and no object's class is
replaced. This package imports nothing when it is imported.
"""
