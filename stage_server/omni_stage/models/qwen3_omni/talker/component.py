"""Component qwen3_omni/talker: reads the thinker's tokens, writes frames of codes in the chosen voice."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.exchange import Array
from omni_stage.models.component import EdgeInput, Emitter, EngineInput, EngineStep, StageRequest, StageStep
from omni_stage.models.qwen3_omni.checkpoint import OmniCheckpoint, SpeechFacts, read_speaking_checkpoint
from omni_stage.models.qwen3_omni.manifest import TALKER
from omni_stage.models.qwen3_omni.model_configs import pick_talker
from omni_stage.models.qwen3_omni.schemas import find_pace, talker2code2wav_schema, thinker2talker_schema
from omni_stage.models.qwen3_omni.talker.conditioning import TalkerConditioning
from omni_stage.models.shared.config_file import torch_dtype
from omni_stage.models.shared.embedding import THINKER_EMBEDDING, EmbeddingTable
from omni_stage.models.shared.talker_feed import TalkerFeed, prepare_whole
from omni_stage.models.shared.voices import pick_voice
from omni_stage.vllm_adapter.scheduling.playback import PACE_KEY

REPEAT_LIMIT = 125
"""The stream ends when this many frames in a row have the same first code: ten seconds of speech."""
GREEDY, SEED = "predictor_greedy", "predictor_seed"
"""Names of the code predictor's settings in a request's payload."""


class Talker:
    """The talker of one checkpoint; see the module's docstring."""

    facts = TALKER
    default_sampling = TALKER.default_sampling

    def __init__(
        self, checkpoint: OmniCheckpoint, speech: SpeechFacts, table: EmbeddingTable, pace: Mapping[str, Any]
    ) -> None:
        """`table`: the thinker's input embedding; `pace`: see schemas.find_pace."""
        self._checkpoint = checkpoint
        self._pace = pace
        self._speech = speech
        self._table = table
        self.voices: Sequence[str] = speech.voices
        self.input_schema = thinker2talker_schema(checkpoint)
        self.output_schema = talker2code2wav_schema(speech)

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns arguments for our model class. The engine needs no tokenizer, because the tokens are not text."""
        return {
            "model": str(self._checkpoint.path),
            "dtype": self._checkpoint.dtype,
            "hf_overrides": pick_talker,
            "skip_tokenizer_init": True,
            # Use vLLM's own defaults, because vLLM knows no name in the checkpoint's generation_config.json.
            "generation_config": "vllm",
            "enable_prefix_caching": False,
            "additional_config": {"omni": {"capture_rows": True}, PACE_KEY: self._pace},
        }

    def prepare(self, request: StageRequest) -> EngineInput:
        """Convert the thinker's tensors. A reply without text ends as EMPTY_INPUT."""
        return prepare_whole(request, self.open_feed(request), component=TALKER.id, missing="token_ids")

    def open_feed(self, request: StageRequest) -> TalkerFeed:
        """Returns a feed that makes the same input as `prepare`, part by part."""
        voice = pick_voice(request.voice, self.voices)
        codec, sampling = self._speech.codec, request.sampling
        conditioning = TalkerConditioning(self._checkpoint, self._speech, self._table, codec.speakers[voice.lower()])
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        temperature = self.default_sampling.temperature if sampling.temperature is None else sampling.temperature
        return TalkerFeed(
            conditioning,
            (codec.end,),
            # With ignore_eos, generation must continue to max_tokens, so the token that ends the stream is suppressed.
            goes_on=bool(sampling.ignore_eos),
            repeat_limit=REPEAT_LIMIT,
            # As in transformers, the code predictor is greedy if the talker is. Otherwise it has its own sampling
            # values.
            settings={GREEDY: [int(temperature == 0.0)], SEED: [seed]},
        )

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns an emitter of frames."""
        return TalkerEmitter(self._speech)

    def warmup_request(self) -> StageRequest:
        """Returns a request for a few frames of a reply of two tokens."""
        text = self._checkpoint.text
        prompt = [text.message_start, text.user, 0, text.message_start, text.assistant, 0]
        tensors = {
            "token_ids": torch.tensor([*prompt, 0, 0]),
            "prompt_tokens": torch.tensor([len(prompt)]),
        }
        return StageRequest(
            request_id="warmup",
            source=EdgeInput(tensors),
            sampling=SamplingDefaults(temperature=0.0, max_tokens=4, ignore_eos=True),
        )


class TalkerEmitter:
    """Publishes frames of codes, except the frame that ends the stream. Stateless."""

    def __init__(self, speech: SpeechFacts) -> None:
        self._speech = speech

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one engine step to one stage step."""
        frames = step.tensors.get("codes")
        tensors: dict[str, Array] = {}
        if frames is not None:
            # In numpy, because a small call into torch takes several microseconds, and this runs for every frame.
            codes = frames.numpy()
            sounded = codes[codes[:, 0] < self._speech.codebook_size]
            if sounded.shape[0]:
                tensors["codes"] = np.ascontiguousarray(sounded, dtype=np.int64)
        made = StageStep.of(step)
        made.tensors = tensors
        return made


def build_component(config: StageConfig) -> Talker:
    """Build the talker of config.model.path. Raises ConfigurationError."""
    checkpoint, speech = read_speaking_checkpoint(config.model.path)
    table = EmbeddingTable(checkpoint.path, THINKER_EMBEDDING, torch_dtype(checkpoint.dtype))
    return Talker(checkpoint, speech, table, find_pace(speech, config))
