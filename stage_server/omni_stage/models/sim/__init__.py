"""Paced engines run no model: a table gives their step times, and tokens, rows and audio have a real model's shapes.

They are for load tests of a cluster without GPUs, and for measurements of everything except the model. They import
neither torch nor vLLM.

    tables                      how long a step takes, read from a table's config.json
    virtual_time                which requests or windows of audio make up a step and when it ends
    content                     generated text, codes, rows and audio
    stages                      thinker, talker, decoder
    engine, audio_runs          run the virtual clocks in real time
    gauges, schemas, manifest   metrics, edge schemas, component facts
"""
