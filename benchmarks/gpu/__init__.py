"""`make gpu`: checks that the stages are correct, fit into memory and are fast on this GPU.

It prints one line per result, and writes one file with all results, which users can send back.

checks.py           what a check is; catalogue.py lists all checks; child.py runs one in its own process
engines.py          tiny checkpoints, engines and local pipelines that the checks run
environment.py      driver, compilers, limits
wave.py             token2wav with only torch and transformers; wave_model.py has the model
rows.py             rows that leave the thinker, and rows that enter the talker
serving.py          start, speed and faults of stage servers; sharing.py: three stages on one GPU
qwen3_omni/         codes, audio and the code predictor of Qwen3-Omni
shaped.py           checkpoints with a release's sizes and random weights
patched/            lets a stage make its own random weights, and fail on purpose
published.py        the published checkpoint; golden.py compares our answers with published ones
sizes.py, peak.py   computes memory, and measures peaks without a GPU; tables.py writes the tables of
                    docs/gpu-sizing.md
offline/            vLLM on a machine without a network, in three calls
bundle.py           packs all that a machine without a network needs into one file
"""
