"""`make gpu`: whether the stages are correct, fit and are fast on this GPU. One line per check, one file to send back.

checks.py       what a check is; catalogue.py: all of them
environment.py  driver, compilers, limits
wave.py         token2wav with torch and transformers alone; wave_model.py has the model
rows.py         rows that leave the thinker, and rows that enter the talker
serving.py      start, speed and faults of stage servers; sharing.py: three on one GPU
qwen3_omni/     codes, audio and the code predictor of Qwen3-Omni
shaped.py       random weights of a release's sizes; patched/: lets a stage make its own, and fail on purpose
published.py    the published checkpoint
sizes.py, peak.py   arithmetic of memory, and how peaks are measured without a GPU
bundle.py       what a machine without a network needs, as one file
"""
