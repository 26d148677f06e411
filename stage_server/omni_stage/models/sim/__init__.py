"""Paced engines run no model: a table gives their step times, and tokens, rows and audio have a real model's shapes.

They serve for load tests of a cluster without GPUs, and for measuring everything but the model. They import neither
torch nor vLLM.

    tables       how long a step takes, read from a table's config.json
    clock        which requests make up an autoregressive step and when it ends, in virtual time; pure
    windows      which windows of audio make up a decoder's step and when it ends, in virtual time; pure
    content      generated text, codes, rows and audio
    thinker, talker, decoder    the stages
    engine, sounding, ticker    run the virtual clocks in real time
    gauges, schemas, manifest   metrics, edge schemas, component facts
"""
