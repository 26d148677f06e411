"""The computation of token2wav: the block-wise diffusion transformer, its solver and the vocoder. Without vLLM.

utterance.py   a request's parameters, and which samples of its audio are returned
blocks.py      packs utterances of any lengths into blocks
transformer.py the diffusion transformer over such a pack
solver.py      from noise to mel: time points and the Runge-Kutta step
vocoder.py     from mel to samples
speech.py      turns utterances into audio with all of these, with CUDA graphs of the solver's step and of the vocoder
"""
