"""How token2wav computes: the block-wise diffusion transformer, its solver, the vocoder, and CUDA graphs of both.

utterance.py   what a request asks for, and which samples of its audio are returned
blocks.py      utterances of any lengths as one pack of blocks
transformer.py the diffusion transformer over such a pack
solver.py      from noise to mel: time points and the Runge-Kutta step
vocoder.py     from mel to samples
graphs.py      CUDA graphs of the last two at fixed sizes
"""
