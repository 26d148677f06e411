"""Paced engines: step times from a table, and tokens, rows and audio in a published model's shapes, without a model.

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
