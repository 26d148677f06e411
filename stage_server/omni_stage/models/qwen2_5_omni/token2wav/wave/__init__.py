"""How token2wav computes: the block-wise diffusion transformer, its solver and the vocoder. Without vLLM.

utterance.py   what a request asks for, and which samples of its audio are returned
blocks.py      utterances of any lengths as one pack of blocks
transformer.py the diffusion transformer over such a pack
solver.py      from noise to mel: time points and the Runge-Kutta step
vocoder.py     from mel to samples
speech.py      utterances to audio with all of these, with CUDA graphs of the solver's step and of the vocoder
"""
