"""Pipelines whose stages do not fit together or that use a component in unsupported ways, and valid look-alikes."""

from __future__ import annotations

from typing import Any, Final

from support.specs.spec_edits import S0, S1, S2, Bad, Edit, edit, first, second, third

THINKER, TALKER, TOKEN2WAV = (f"qwen2_5_omni/{name}" for name in ("thinker", "talker", "token2wav"))
LLM, CUSTOM = "generic/llm", "acme/any"
SIM = ("sim/thinker", "sim/talker", "sim/decoder")
_EDGES = "qwen2_5_omni/talker reads qwen2_5_omni/thinker; qwen2_5_omni/token2wav reads qwen2_5_omni/talker"


def _chain(*components: str) -> Edit:
    """Returns an edit that sets the stages a, b, c, d with these components. Each stage reads the one before it."""
    names = "abcd"[: len(components)]
    made: list[dict[str, Any]] = [
        {"name": name, "component": component, "inputs": [{"from": above}] if above else []}
        for above, name, component in zip(["", *names], names, components, strict=False)
    ]
    made[-1]["outputs"] = ["Audio"] if components[-1] in (TOKEN2WAV, CUSTOM, SIM[-1]) else ["Text"]
    return edit("spec/stages", made)


def _no_reader(read: str, by: str) -> tuple[str, str]:
    return "spec.stages", f'stages ["{by}"] cannot read ["{read}"], which publish other tensors or none; {_EDGES}'


def _meaningless(section: str, field: str, component: str, why: str) -> str:
    return f'["{field}"] of component {component}: has no meaning for this stage ({why}); leave it out'


_TEXT, _CODES, _SOLVER = "it writes text token by token", "its tokens are not text", "a diffusion stage"
_STREAMED = "cannot be honoured by a stage that starts before its input is complete; leave it out, or set the stage's"

ODD_COMPONENTS_BAD: Final[dict[str, Bad]] = {
    "talker as entry": Bad(
        (_chain(TALKER, TOKEN2WAV),),
        f"{S0}.component",
        f"component {TALKER} cannot be the entry, because it reads another stage; add inputs: [{{from: STAGE}}]; "
        f"{_EDGES}",
    ),
    "token2wav as entry": Bad((_chain(TOKEN2WAV),), f"{S0}.component", "cannot be the entry"),
    "thinker that speaks": Bad(
        (first(outputs=["Text", "Audio"]),),
        f"{S0}.outputs",
        f'component {THINKER} cannot return ["Audio"]; it can return ["Text"]: leave out the rest, or name another',
    ),
    "token2wav that writes": Bad(
        (third(outputs=["Text"]),), f"{S2}.outputs", 'cannot return ["Text"]; it can return ["Audio"]'
    ),
    "talker that writes": Bad((second(outputs=["Text"]),), f"{S1}.outputs", 'cannot return ["Text"]; it can return []'),
    "llm reads a stream": Bad(
        (_chain(LLM, LLM), second(inputs=[{"from": "a", "mode": "Stream"}])),
        f"{S1}.inputs",
        f"component {LLM} cannot start before its input is complete; set mode: Full",
    ),
    "llm reads thinker": Bad((_chain(THINKER, LLM),), *_no_reader("a", "b")),
    "llm reads codes": Bad(
        (_chain(THINKER, TALKER, LLM),),
        "spec.stages",
        f"text is read by {LLM}, voice/vits and published by asr/whisper, {LLM}",
    ),
    "thinker reads thinker": Bad((_chain(THINKER, THINKER),), f"{S1}.inputs", "reads the client's prompt and no other"),
    "token2wav reads llm": Bad((_chain(LLM, TOKEN2WAV),), *_no_reader("a", "b")),
    "token2wav reads thinker": Bad((_chain(THINKER, TOKEN2WAV),), *_no_reader("a", "b")),
    "talker reads talker": Bad((_chain(THINKER, TALKER, TALKER),), *_no_reader("b", "c")),
    "a custom component reads token2wav": Bad((_chain(THINKER, TALKER, TOKEN2WAV, CUSTOM),), *_no_reader("c", "d")),
    "least tokens of a streamed talker": Bad(
        (second(defaultSampling={"minTokens": 8, "frequencyPenalty": 0}),),
        f"{S1}.defaultSampling",
        f'["minTokens"] of component {TALKER}: {_STREAMED} input mode to Full',
    ),
    "penalty of a streamed talker": Bad(
        (second(defaultSampling={"presencePenalty": 1}),),
        f"{S1}.defaultSampling",
        f'["presencePenalty"] of component {TALKER}: {_STREAMED}',
    ),
    "stop strings of a talker": Bad(
        (second(defaultSampling={"stop": ["."]}, inputs=[{"from": "thinker"}]),), f"{S1}.defaultSampling", '["stop"'
    ),
    "stop strings of a stage that hears": Bad(
        (_chain("asr/whisper"), first(defaultSampling={"stop": ["."]})),
        f"{S0}.defaultSampling",
        "of component asr/whisper: the words end with the audio, which is heard in parts; leave it out",
    ),
    "solver of an llm": Bad(
        (_chain(LLM), first(defaultSampling={"numInferenceSteps": 8})),
        f"{S0}.defaultSampling",
        _meaningless("defaultSampling", "numInferenceSteps", LLM, _TEXT),
    ),
    "solver of a talker": Bad(
        (second(defaultSampling={"guidanceScale": 1}),),
        f"{S1}.defaultSampling",
        _meaningless("defaultSampling", "guidanceScale", TALKER, _CODES),
    ),
    "temperature of a solver": Bad(
        (third(defaultSampling={"temperature": 1}),),
        f"{S2}.defaultSampling",
        _meaningless("defaultSampling", "temperature", TOKEN2WAV, _SOLVER),
    ),
    "a solver of one step": Bad(
        (third(defaultSampling={"numInferenceSteps": 1}),),
        f"{S2}.defaultSampling",
        f"numInferenceSteps 1 of component {TOKEN2WAV}: must be at least 2",
    ),
    "rows of a talker": Bad(
        (second(engineArgs={"rowsCacheMib": 64}),),
        f"{S1}.engineArgs",
        f"rowsCacheMib 64 of component {TALKER}: this component keeps no rows of cached prefixes; leave it out",
    ),
    "embeddings for a thinker that is read": Bad(
        (first(engineArgs={"enablePromptEmbeds": True}),),
        "spec.stages",
        'engineArgs.enablePromptEmbeds of stages ["thinker"]: another stage reads',
    ),
    "embeddings for a talker": Bad(
        (second(engineArgs={"enablePromptEmbeds": True}),), f"{S1}.engineArgs", "enablePromptEmbeds true of component"
    ),
    "prefix cache of a solver": Bad(
        (third(engineArgs={"enablePrefixCaching": True}),), f"{S2}.engineArgs", "enablePrefixCaching true of component"
    ),
    "blocks of a solver": Bad(
        (third(engineArgs={"blockSize": 16}),),
        f"{S2}.engineArgs",
        f'["blockSize"] of component {TOKEN2WAV}: a diffusion stage has no KV cache; leave it out',
    ),
    "blocks of a decoder": Bad(
        (_chain(*SIM), third(engineArgs={"blockSize": 16})),
        f"{S2}.engineArgs",
        '["blockSize"] of component sim/decoder: a decoder stage has no KV cache; leave it out',
    ),
    "prefix cache of a decoder": Bad(
        (_chain(*SIM), third(engineArgs={"enablePrefixCaching": True})),
        f"{S2}.engineArgs",
        "enablePrefixCaching true of component sim/decoder",
    ),
    "embeddings for a paced thinker": Bad(
        (_chain(*SIM), first(engineArgs={"enablePromptEmbeds": True})),
        f"{S0}.engineArgs",
        "enablePromptEmbeds true of component sim/thinker: this component takes no prompt embeddings",
    ),
    "stop strings of a paced thinker": Bad(
        (_chain(*SIM), first(defaultSampling={"stop": ["."]})),
        f"{S0}.defaultSampling",
        "of component sim/thinker: is not supported by a paced engine; use stop_token_ids",
    ),
    "steps of a decoder": Bad(
        (_chain(*SIM), third(defaultSampling={"numInferenceSteps": 4})),
        f"{S2}.defaultSampling",
        _meaningless("sampling", "numInferenceSteps", "sim/decoder", "a decoder stage"),
    ),
    "two gpus for token2wav": Bad(
        (third(resources={"limits": {"nvidia.com/gpu": 2}}),),
        f"{S2}.resources",
        f'component {TOKEN2WAV} can use 1 GPU; ["2 of nvidia.com/gpu"] are requested; lower resources.limits',
    ),
    "sixty-four AMD gpus for code2wav": Bad(
        (
            _chain("qwen3_omni/thinker", "qwen3_omni/talker", "qwen3_omni/code2wav"),
            third(resources={"limits": {"amd.com/gpu": "64"}}, outputs=["Audio"]),
        ),
        f"{S2}.resources",
        'component qwen3_omni/code2wav can use 1 GPU; ["64 of amd.com/gpu"] are requested',
    ),
    "share of media of a talker": Bad(
        (second(engineArgs={"maxMediaShare": 0.3}),),
        f"{S1}.engineArgs",
        f'["maxMediaShare"] of component {TALKER}: this component reads no media; leave it out',
    ),
    "cache of media of a solver": Bad(
        (third(engineArgs={"mmProcessorCacheMib": 64}),),
        f"{S2}.engineArgs",
        f'["mmProcessorCacheMib"] of component {TOKEN2WAV}: this component reads no media; leave it out',
    ),
    "share of media of an llm": Bad(
        (_chain(LLM), first(engineArgs={"maxMediaShare": 1})), f"{S0}.engineArgs", "this component reads no media"
    ),
    "tool calls of a talker": Bad(
        (second(engineArgs={"toolCallParser": "hermes"}),),
        f"{S1}.engineArgs",
        f'["toolCallParser"] of component {TALKER}: this component does not look for tool calls or reasoning',
    ),
    "a form of the text of a talker": Bad(
        (second(engineArgs={"structuredOutput": "All"}),),
        f"{S1}.engineArgs",
        f"structuredOutput All of component {TALKER}: this component writes no text in a given form; leave it out",
    ),
    "queue of an autoregressive stage": Bad(
        (first(timeouts={"queue": 60}),),
        f"{S0}.timeouts",
        f"queue 60 of component {THINKER}: only a stage that generates in one step limits the wait in its queue",
    ),
}
"""Case -> a pipeline that is rejected by a rule which is compiled from the components' facts."""

ODD_COMPONENTS_GOOD: Final[dict[str, tuple[Edit, ...]]] = {
    "an llm": (_chain(LLM),),
    "an llm reads an llm's text": (_chain(LLM, LLM), second(inputs=[{"from": "a", "mode": "Full"}])),
    "an llm that takes embeddings and is read": (_chain(LLM, CUSTOM), first(engineArgs={"enablePromptEmbeds": True})),
    "a custom component reads an llm": (_chain(LLM, CUSTOM),),
    "one gpu for token2wav": (third(resources={"limits": {"nvidia.com/gpu": "1"}}),),
    "two gpus for a talker": (second(resources={"limits": {"nvidia.com/gpu": 2}}),),
    "eight gpus for a custom component": (_chain(CUSTOM), first(resources={"limits": {"nvidia.com/gpu": 8}})),
    "no cache of media of a talker": (second(engineArgs={"mmProcessorCacheMib": 0}),),
    "media of a thinker": (first(engineArgs={"mmProcessorCacheMib": 64, "maxMediaShare": 0.3}),),
    "media of a custom component": (_chain(CUSTOM), first(engineArgs={"maxMediaShare": 0.3})),
    "a thinker alone": (_chain(THINKER), first(engineArgs={"enablePrefixCaching": True, "enablePromptEmbeds": True})),
    "no prefix cache of a thinker that is read": (first(engineArgs={"enablePrefixCaching": False}),),
    "prefix cache of a talker": (second(engineArgs={"enablePrefixCaching": True}),),
    "prefix cache of a paced thinker that is read": (_chain(*SIM), first(engineArgs={"enablePrefixCaching": True})),
    "prefix cache of a thinker that is read": (first(engineArgs={"enablePrefixCaching": True, "rowsCacheMib": 64}),),
    "a thinker whose audio nobody makes": (_chain(THINKER, TALKER, TOKEN2WAV),),
    "least tokens of a talker that waits": (
        second(defaultSampling={"minTokens": 8, "presencePenalty": 1}, inputs=[{"from": "thinker", "mode": "Full"}]),
    ),
    "no penalty of a streamed talker": (second(defaultSampling={"presencePenalty": 0, "minTokens": 0}),),
    "queue of a solver": (third(timeouts={"queue": 60, "step": 60}),),
    "a custom component": (_chain(CUSTOM),),
    "a custom component reads the thinker": (_chain(THINKER, CUSTOM),),
    "talker reads a custom component": (_chain(CUSTOM, TALKER, TOKEN2WAV),),
    "a custom component with every argument": (
        _chain(CUSTOM),
        first(
            engineArgs={"enablePrefixCaching": True, "blockSize": 16},
            defaultSampling={"numInferenceSteps": 1, "minTokens": 1},
            timeouts={"queue": 1},
        ),
    ),
    "a misspelt component, which may be a custom one": (_chain("qwen2_5_omni/thinkr"),),
}
"""Case -> edits that make a pipeline which looks odd but is valid."""
