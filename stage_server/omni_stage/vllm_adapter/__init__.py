"""The only place that uses vLLM's private interfaces (version 0.32). Each module lists the ones that it uses, and why.

By where it runs::

    front end    core/         the engine as the stage server sees it: in a process of its own, or in this process
                 process/      the engine's process: its environment, the template it is forked from, its end, and why
                               it did not start
                 media/        videos with their audio, in vLLM's processors (and in its models, in the worker)
                 text/         vLLM's parsers of reasoning and tool calls; the form of messages that a chat template
                               reads
    scheduler    scheduling/   which requests make up a step, and what the workers get with each request
    worker       ar/           autoregressive stages: rows in, rows out, hooks after sampling
                 diffusion/    one-shot stages, their scheduler included: one step is one generation
                 worker/       code that both runners share
                 gpu_workers   the workers of both kinds of stages
                 cpu_workers   the same classes for CPUs; never imported with a GPU
    start-up     checks/       the image, the GPU's driver, the checkpoint's tensors
    several      wiring/       packed outputs from the worker to the front end, keys and stop reasons, names of the
                               worker and scheduler classes
                 hooks         what a model class may do around a step

vLLM gets the classes by name (`wiring.names`) and builds them itself: no class of vLLM is patched, and no object's
class is replaced. process/template.py replaces one function of vLLM while an engine starts, and ar/expert_choices.py
one method of routers during the check at start-up. Importing this package imports none of its modules.
"""
