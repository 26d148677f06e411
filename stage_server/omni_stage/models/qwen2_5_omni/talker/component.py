"""Component qwen2_5_omni/talker: reads the thinker's rows, writes codec tokens in the chosen voice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.models.component import (
    EdgeInput,
    Emitter,
    EngineInput,
    EngineStep,
    StageRequest,
    StageStep,
)
from omni_stage.models.component.request import pick_voice
from omni_stage.models.qwen2_5_omni.checkpoint import (
    CodecTokens,
    OmniCheckpoint,
    read_checkpoint,
    read_voices,
)
from omni_stage.models.qwen2_5_omni.manifest import TALKER
from omni_stage.models.qwen2_5_omni.model_configs import pick_talker
from omni_stage.models.qwen2_5_omni.processors import TalkerConditioning, TextRows
from omni_stage.models.qwen2_5_omni.schemas import find_pace, talker2token2wav_schema, thinker2talker_schema
from omni_stage.models.shared.config_file import torch_dtype
from omni_stage.models.shared.talker_feed import (
    THINKER_EMBEDDING,
    EmbeddingTable,
    TalkerFeed,
    prepare_whole,
    repeat_limit,
)
from omni_stage.vllm_adapter.scheduling.playback import PACE_KEY

# The checkpoint's generation_config.json is for the thinker: its end-of-text ids are not codec tokens.
_GENERATION_CONFIG = Path(__file__).parent / "codec_generation"


class Talker:
    """The talker of one checkpoint; see the module's docstring."""

    facts = TALKER
    default_sampling = TALKER.default_sampling

    def __init__(self, checkpoint: OmniCheckpoint, texts: Mapping[str, TextRows], pace: Mapping[str, Any]) -> None:
        """`texts`: TextRows by voice, the default voice first; `pace`: see schemas.find_pace."""
        self._checkpoint = checkpoint
        self._pace = pace
        self._texts = dict(texts)
        self.voices: Sequence[str] = tuple(texts)
        self.input_schema = thinker2talker_schema(checkpoint)
        self.output_schema = talker2token2wav_schema()
        self.first_audio_steps = int(pace["first_tokens"])

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns arguments for our model class. The engine needs no tokenizer, because the tokens are not text."""
        return {
            "model": str(self._checkpoint.path),
            "dtype": self._checkpoint.dtype,
            "hf_overrides": pick_talker,
            "skip_tokenizer_init": True,
            "generation_config": str(_GENERATION_CONFIG),
            "additional_config": {"omni": {"hash_inputs": True}, PACE_KEY: self._pace},
        }

    def prepare(self, request: StageRequest) -> EngineInput:
        """Convert the thinker's tensors. A reply without text ends as EMPTY_INPUT."""
        return prepare_whole(request, self.open_feed(request), component=TALKER.id, missing="x")

    def open_feed(self, request: StageRequest) -> TalkerFeed:
        """Returns a feed that makes the same input as `prepare`, part by part."""
        text = self._texts[pick_voice(request.voice, self.voices)]
        conditioning = TalkerConditioning(text, self._checkpoint.codec, self._checkpoint.talker_positions)
        # With ignore_eos, generation must continue to max_tokens, so the tokens that end the stream are suppressed.
        return TalkerFeed(
            conditioning,
            self._checkpoint.codec.stop_ids,
            ignore_eos=bool(request.sampling.ignore_eos),
            repeat_limit=repeat_limit(self._pace),
        )

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns an emitter that leaves out the tokens that end the stream."""
        return TalkerEmitter(self._checkpoint.codec)

    def warmup_request(self) -> StageRequest:
        """Returns a request for a few tokens: a prompt of two rows and two rows after it. All rows are zeros."""
        rows = torch.zeros(4, self._checkpoint.hidden_size, dtype=next(iter(self._texts.values())).start.dtype)
        tensors = {
            "x": rows,
            "token_ids": torch.zeros(4, dtype=torch.int64),
            "mrope_positions": torch.arange(2)[:, None].repeat(1, 3),
            "mrope_delta": torch.zeros(1, dtype=torch.int64),
        }
        return StageRequest(
            request_id="warmup",
            source=EdgeInput(tensors),
            sampling=SamplingDefaults(temperature=0.0, max_tokens=4, ignore_eos=True),
        )


class TalkerEmitter:
    """Publishes codec tokens, except those that end the stream. Stateless."""

    def __init__(self, codec: CodecTokens) -> None:
        self._stop_ids = frozenset(codec.stop_ids)

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one engine step to one stage step."""
        codes = [token for token in step.token_ids if token not in self._stop_ids]
        made = StageStep.of(step)
        if codes:
            made.tensors = {"codes": np.array(codes, dtype=np.int64)}
        return made


def build_component(config: StageConfig) -> Talker:
    """Build the talker of config.model.path. Raises ConfigurationError."""
    checkpoint = read_checkpoint(config.model.path)
    voices = read_voices(config.model.path)
    ids = [checkpoint.text_end_id, checkpoint.text_padding_id, *(voice.text_start_id for voice in voices.values())]
    # The edge's rows have the dtype that config.json names. Quantized checkpoints store some tensors in other dtypes.
    table = EmbeddingTable(checkpoint.path, THINKER_EMBEDDING, torch_dtype(checkpoint.dtype))
    rows = table.read(torch.tensor(ids))
    end, padding, *starts = (rows[index : index + 1] for index in range(len(ids)))
    texts = {name: TextRows(start=start, end=end, padding=padding) for name, start in zip(voices, starts, strict=True)}
    return Talker(checkpoint, texts, find_pace(checkpoint, config))
