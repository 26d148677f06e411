"""A tiny Qwen2 text model, its reference in transformers, and in-process engines that run it with our runners."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind

from omni_stage.payloads import OMNI_PAYLOAD_KEY, OMNI_ROWS_KEY, AdditionalInformationPayload
from omni_stage.payloads.input_digests import OMNI_DIGESTS_KEY
from omni_stage.vllm_adapter.core.inproc import InprocEngineCore
from omni_stage.vllm_adapter.wiring.names import scheduler_cls, worker_cls

HIDDEN = 128
BLOCK_TOKENS = 32


def write_text_checkpoint(directory: Path, seed: int = 0, architecture: str = "Qwen2ForCausalLM") -> Path:
    """Writes a Qwen2 checkpoint (grouped-query attention, 2 layers, vocabulary and context of 512).

    vLLM loads the checkpoint as `architecture`. Returns the directory.
    """
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        # Large enough that greedy choices do not depend on rounding.
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).float().save_pretrained(directory)
    file = directory / "config.json"
    values = json.loads(file.read_text()) | {"architectures": [architecture]}
    file.write_text(json.dumps(values))
    return directory


class Reference:
    """transformers' model of the checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.model = Qwen2ForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.embedding = self.model.get_input_embeddings().weight.detach()

    @torch.no_grad()
    def hidden(self, token_ids: Sequence[int], rows: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns normed hidden states [T, H] and logits [T, V].

        `rows` are added to the input embeddings. The last row is repeated for later positions.
        """
        embeds = self.embedding[torch.tensor(token_ids)]
        if rows is not None:
            embeds = embeds + rows[torch.arange(len(token_ids)).clamp(max=len(rows) - 1)]
        output = self.model(inputs_embeds=embeds[None], output_hidden_states=True)
        return output.hidden_states[-1][0], output.logits[0]

    def generate(self, prompt: Sequence[int], count: int, rows: torch.Tensor | None = None) -> list[int]:
        """Returns `count` greedily sampled tokens."""
        token_ids = list(prompt)
        for _ in range(count):
            token_ids.append(int(self.hidden(token_ids, rows)[1][-1].argmax()))
        return token_ids[len(prompt) :]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Returns a prompt of ordinary tokens."""
    return [(seed * 37 + index * 7) % 500 + 3 for index in range(length)]


@dataclass
class Run:
    """The output of one request."""

    token_ids: list[int] = field(default_factory=list)
    tensors: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def rows(self) -> torch.Tensor:
        """Returns all rows of the request, in order."""
        return torch.cat(self.tensors["rows"])


@dataclass(frozen=True)
class Job:
    """One request."""

    prompt: list[int]
    max_tokens: int = 12
    want_rows: bool = True
    payload: dict[str, Any] | None = None
    digests: bytes = b""

    def params(self) -> SamplingParams:
        """Returns greedy sampling parameters with output as deltas, and our keys in extra_args."""
        extra: dict[str, Any] = {OMNI_ROWS_KEY: True} if self.want_rows else {}
        if self.payload is not None:
            extra[OMNI_PAYLOAD_KEY] = AdditionalInformationPayload.from_mapping(self.payload).to_bytes()
        if self.digests:
            extra[OMNI_DIGESTS_KEY] = self.digests
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=0,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
            extra_args=extra or None,
        )


def watch_computed(scheduler: Any) -> list[int]:
    """Returns a list that gets the number of tokens of each step that the scheduler plans from now on."""
    schedule, computed = scheduler.schedule, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        computed.append(output.total_num_scheduled_tokens)
        return output

    scheduler.schedule = watched
    return computed


class TextEngine:
    """An in-process engine with our autoregressive worker and scheduler."""

    def __init__(self, checkpoint: Path, omni: dict[str, Any] | None = None, **overrides: Any) -> None:
        arguments: dict[str, Any] = {
            "model": str(checkpoint),
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "max_model_len": 256,
            "max_num_batched_tokens": 32,
            "max_num_seqs": 4,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "kv_cache_memory_bytes": 8 << 20,
            "block_size": BLOCK_TOKENS,
            "async_scheduling": False,
            "worker_cls": worker_cls("autoregressive", "cpu"),
            "additional_config": {} if omni is None else {"omni": omni},
            **overrides,
        }
        arguments.setdefault("scheduler_cls", scheduler_cls("autoregressive", arguments["async_scheduling"]))
        self.core = InprocEngineCore(lambda: EngineArgs(**arguments).create_engine_config())
        asyncio.run(self.core.start())

    @property
    def runner(self) -> Any:
        """Returns the worker's model runner."""
        return self._engine_core.model_executor.driver_worker.worker.model_runner

    @property
    def scheduler(self) -> Any:
        """Returns the engine's scheduler."""
        return self._engine_core.scheduler

    def watch_preemptions(self) -> list[str]:
        """Returns a list that gets the ID of each request that is preempted from now on."""
        preempted: list[str] = []
        scheduler, preempt = self.scheduler, self.scheduler._preempt_request

        def watched(request: Any, *args: Any, **kwargs: Any) -> None:
            preempted.append(request.request_id)
            preempt(request, *args, **kwargs)

        scheduler._preempt_request = watched
        return preempted

    def watch_computed(self) -> list[int]:
        """Returns a list that gets the number of tokens of each step from now on."""
        return watch_computed(self.scheduler)

    @property
    def _engine_core(self) -> Any:
        return self.core.llm.engine_core.engine_core

    def run(self, jobs: dict[str, Job], on_output: Callable[[str, Run], bool] | None = None) -> dict[str, Any]:
        """Runs requests concurrently: no step runs before all are added. Returns name -> Run or exception.

        `on_output` is called after each output, and aborts the request by returning True.
        """

        async def one(name: str, job: Job) -> Run:
            run = Run()
            stream = self.core.stream(name, {"prompt_token_ids": job.prompt}, job.params())
            async for output in stream:
                run.token_ids += output.token_ids
                for tensor_name, tensor in output.tensors.items():
                    run.tensors.setdefault(tensor_name, []).append(tensor)
                if on_output is not None and on_output(name, run):
                    await stream.aclose()
                    break
            return run

        async def all_of_them() -> list[Any]:
            added = threading.Event()
            self.core._thread.submit(added.wait)
            runs = [asyncio.create_task(one(name, job)) for name, job in jobs.items()]
            # Each task runs until it waits for the engine's thread to take its request.
            await asyncio.sleep(0)
            added.set()
            return await asyncio.gather(*runs, return_exceptions=True)

        return dict(zip(jobs, asyncio.run(all_of_them()), strict=True))

    def close(self) -> None:
        """Shuts the engine down."""
        asyncio.run(self.core.shutdown())
