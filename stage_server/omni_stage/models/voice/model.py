"""vLLM model class of a VITS voice. Hook (vllm_adapter/hooks.py): OneShotModel.

A request holds one or several utterances: the sentences of a whole text, or one sentence of a text that is still being
written. All utterances of a step are spoken together. Each one's audio is the same as if it ran alone.

vLLM reads neither a voice's configuration nor its weights: a Piper voice has both in one ONNX file. So it gets our
own configuration (hf_config/), loads "dummy" weights, and `warm_up` reads the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_stage.errors import InvalidRequestError, ModelExecutionError, OmniStageError
from omni_stage.models.voice.checkpoint import read_checkpoint
from omni_stage.models.voice.vits import Speaker, Speech, Utterance, Vits
from omni_stage.models.voice.weights import read_weights
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.checks.weights import load_checked
from omni_stage.vllm_adapter.diffusion.admission import DiffusionSettings

_SEEDS = 1 << 63
_NEXT_SEED = 0x9E3779B97F4A7C15
"""Distance of the seeds of neighbouring utterances."""


class VitsVoiceModel(nn.Module, IsAttentionFree):
    """One voice, with one or several speakers."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self._checkpoint = read_checkpoint(vllm_config.model_config.model)
        self._settings = DiffusionSettings.from_additional_config(vllm_config.additional_config)
        self._config, self._weights = read_weights(self._checkpoint)
        self.vits = Vits(self._config).float()
        self.pooler = IdentityPooler()
        self._speaker: Speaker | None = None

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raises NotImplementedError: vLLM requires this method, but a voice has no token embeddings."""
        raise NotImplementedError("a voice has no token embeddings for vLLM; use generate()")

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raises NotImplementedError: vLLM requires this method, but a voice has no autoregressive step."""
        raise NotImplementedError("a voice is not autoregressive; use generate()")

    @torch.inference_mode()
    def generate(self, requests: Sequence[AdditionalInformationPayload]) -> list[dict[str, torch.Tensor] | Exception]:
        """Returns for each request "output", the audio of its utterances in order, float32 [samples] in [-1, 1] on the
        device, and "words" int64 [2, words]: after how many samples each word ends, and its characters of the request.

        An exception in place of the tensors fails only that request.
        """
        results: dict[int, dict[str, torch.Tensor] | Exception] = {}
        utterances: list[Utterance] = []
        ranges: dict[int, range] = {}
        for index, request in enumerate(requests):
            try:
                spoken = self._read(request)
            except OmniStageError as error:
                results[index] = error
                continue
            ranges[index] = range(len(utterances), len(utterances) + len(spoken))
            utterances += spoken
        spoken_all = self._ready().speak(utterances) if utterances else []
        for index, rows in ranges.items():
            parts = [spoken_all[row] for row in rows]
            failed = next((part for part in parts if isinstance(part, ModelExecutionError)), None)
            speech = [part for part in parts if isinstance(part, Speech)]
            results[index] = failed or self._join(speech, requests[index].tensor("words"))
        return [results[index] for index in range(len(requests))]

    def _join(self, speech: Sequence[Speech], words: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns a request's result. words: int64 [2, words]: its ids up to each word's end, and the characters."""
        ends = torch.cat([part.frames for part in speech]).cumsum(0) * self._ready().samples_per_frame
        ends = ends[(words[0] - 1).to(ends.device)]
        return {"output": torch.cat([part.audio for part in speech]), "words": torch.stack([ends.cpu(), words[1]])}

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Load the voice's weights and, if enabled, capture CUDA graphs.

        Raises ConfigurationError if the weights do not fit.
        """
        self.load_weights(self._weights)
        self._speaker = Speaker(self.vits, self._config, use_graphs=self._settings.cuda_graphs)
        self._speaker.warm_up()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the voice's weights. Raises ConfigurationError naming what is missing, unknown or of another shape."""
        mapper = WeightsMapper()
        return load_checked(self.vits, weights, partial(AutoWeightsLoader(self.vits).load_weights), mapper=mapper)

    def _ready(self) -> Speaker:
        if self._speaker is None:
            raise ModelExecutionError("the voice is not loaded")
        return self._speaker

    def _read(self, request: AdditionalInformationPayload) -> list[Utterance]:
        """Returns the utterances of a request. Raises InvalidRequestError."""
        ids = request.tensor("ids").tolist()
        lengths = [int(value) for value in request.list("lengths") if isinstance(value, int)]
        (speaker,), (seed,), (first,) = (request.list(name) for name in ("speaker", "seed", "first"))
        scales = [float(value) for value in request.list("scales") if isinstance(value, int | float)]
        voices = len(self._checkpoint.voices)
        words = request.tensor("words")
        fits = words.dim() == 2 and len(words) == 2 and bool(((words[0] > 0) & (words[0] <= len(ids))).all())
        if sum(lengths) != len(ids) or not lengths or min(lengths) < 1 or len(scales) != 3 or not fits:
            raise InvalidRequestError("the utterances of the request are malformed", field="ids")
        if not isinstance(speaker, int) or not 0 <= speaker < voices or max(ids) >= self._config.vocab_size:
            raise InvalidRequestError("the request names a speaker or a symbol that the voice lacks", field="ids")
        utterances, begin = [], 0
        for index, length in enumerate(lengths):
            number = (int(seed or 0) + _NEXT_SEED * (int(first or 0) + index)) % _SEEDS
            utterances.append(Utterance(ids[begin : begin + length], speaker, number, *scales))
            begin += length
        return utterances
