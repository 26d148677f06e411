"""Paced engines: the time of a table, and tokens, rows and sound of a published model's shapes, without a model.

For load tests of a cluster without GPUs, and for measuring all that is not the model. Imports neither torch nor vLLM.

    tables       what a step costs, read from a table's config.json
    clock        which requests make up an autoregressive step and when it ends, in virtual time; pure
    windows      the same of a decoder, whose step is a window of sound; pure
    content      what is said, heard and handed on; a function of the seed
    thinker, talker, decoder    the stages
    engine, sounding, ticker    the clocks against the real one
"""
