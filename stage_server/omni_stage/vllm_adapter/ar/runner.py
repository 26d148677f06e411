"""The runner of autoregressive stages: vLLM's own V1 runner, plus rows out (capture) and rows in (conditioning).

`OmniARRunnerMixin` does all the work, by overriding the methods of vLLM's step. `GPUARModelRunner` and its CPU sibling
(cpu_workers.py) only add it to vLLM's two runners, which differ in how they are built. Per step (`sample_tokens` is in
publish.py)::

    execute_model                                            sample_tokens
      _update_states   admit and drop requests                 _capture    gather fresh rows, start one copy
      _preprocess      fill the input-row buffer               super()     sample
      forward, logits                                          _sample     the model acts on sampled tokens
                                                               attach      put rows into pooler_output

Private interfaces of vLLM 0.32 used here, and why:
- `GPUModelRunner._update_states` (v1/worker/gpu_model_runner.py): called in every step, even an empty one, before the
  batch is built; requests begin and end here.
- `GPUModelRunner._preprocess`: runs inside `synchronize_input_prep`, so pinned staging memory may be rewritten.
- `GPUModelRunner._init_mrope_positions`: the M-RoPE positions of a talker come with its request, not from its model.
- `GPUModelRunner._dummy_run`: profiling and CUDA graph capture must see rows of zeros.
- `_determine_batch_execution_and_padding`, `_model_forward` and `ForwardContext.skip_compiled`: a step without graphs
  and compiled code, for the check at start-up (compiled_check); `do_not_compile` of a module that vLLM compiles, which
  also counts in `_dummy_run`: no step with them, if that check fails.

vLLM's V2 runner lacks most of these methods; `gpu_workers.py` refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from vllm.forward_context import get_forward_context
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from omni_stage.errors import ConfigurationError, InvalidTensorError, OmniStageError
from omni_stage.payloads import OMNI_ROWS_KEY
from omni_stage.vllm_adapter.ar.capture import compute_spans
from omni_stage.vllm_adapter.ar.compiled_check import is_compiled
from omni_stage.vllm_adapter.ar.expert_choices import ExpertChoices
from omni_stage.vllm_adapter.ar.input_rows import INPUT_ROWS, InputRowStore, MropePositions
from omni_stage.vllm_adapter.ar.publish import ModelHooks, PublishingMixin, start_positions
from omni_stage.vllm_adapter.hooks import SupportsInputRows
from omni_stage.vllm_adapter.worker.config import check_capture, check_published

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    from omni_stage.payloads import AdditionalInformationPayload


class OmniARRunnerMixin(PublishingMixin):
    """Adds rows in and rows out to a class derived from vLLM's V1 runner."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        """Build vLLM's runner, then ours. Raises ConfigurationError for settings that cannot give correct rows."""
        super().__init__(vllm_config, device)
        check_capture(self._omni, vllm_config, uses_mrope=self.uses_mrope)
        self._mrope: dict[str, MropePositions] = {}
        self._input_rows: InputRowStore | None = None
        self._as_written = False
        self.serves_as_written = False
        """Whether `serve_as_written` was called."""
        self.expert_choices: ExpertChoices | None = None
        """Records the chosen experts of a model that runs compiled or with CUDA graphs, for compiled_check."""

    @property
    def input_row_size(self) -> int:
        """Values in an input row; 0 if the model takes none."""
        return 0 if self._input_rows is None else int(self._input_rows.buffer.shape[1])

    @property
    def no_embedding_token_ids(self) -> tuple[int, ...]:
        """Token ids of placeholders, which may have no embedding."""
        return self._hooks.placeholder_token_ids

    # Eager steps

    @contextmanager
    def as_written(self) -> Iterator[None]:
        """Run steps within this context with the model's own code: no CUDA graph, no compiled code, no padding."""
        self._as_written = True
        try:
            yield
        finally:
            self._as_written = self.serves_as_written

    def serve_as_written(self) -> None:
        """Run all later steps as within `as_written`, also those without requests, and stop recording experts."""
        self._as_written = self.serves_as_written = True
        for module in self.get_model().modules():
            if hasattr(module, "do_not_compile"):
                module.do_not_compile = True
        if self.expert_choices is not None:
            self.expert_choices.end()
            self.expert_choices = None

    def _determine_batch_execution_and_padding(self, *args: Any, **kwargs: Any) -> Any:
        if self._as_written:
            kwargs["force_eager"] = True
        return super()._determine_batch_execution_and_padding(*args, **kwargs)

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._as_written:
            get_forward_context().skip_compiled = True
        return super()._model_forward(*args, **kwargs)

    # Rows in

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model and, if it takes input rows, bind it to their buffer. Raises ConfigurationError."""
        super().load_model(*args, **kwargs)
        model = self.get_model()
        self._hooks = ModelHooks.of(model)
        if self._omni.capture_rows and self._hooks.publishes:
            check_published(self.vllm_config)
        if is_compiled(self.vllm_config):
            self.expert_choices = ExpertChoices.bind(model, self.max_num_tokens, self.device)
        if self._reuses_rows:
            self._check_reusable(model)
            self._ledger.always_delivers_first = self._hooks.select_positions is not None
        if self.cache_config.enable_prefix_caching:
            self._check_comparable(model)
        if not isinstance(model, SupportsInputRows):
            return
        self._input_rows = InputRowStore(self.max_num_tokens, model.input_row_size, self.dtype, self.device)
        model.bind_input_rows(self._input_rows.buffer)

    def _check_comparable(self, model: Any) -> None:
        """Refuse cached prefixes that differ unseen, or whose rows would be missing. Raises ConfigurationError."""
        problem = ""
        if isinstance(model, SupportsInputRows) and not self._omni.hash_inputs:
            problem = "prefix caching compares only token ids, but this model also reads input rows"
        elif self._omni.hash_inputs and self._omni.capture_rows and self._hooks.publishes_positions:
            problem = "cached positions are not computed, but this model publishes rows of them"
        if problem:
            raise ConfigurationError(f"{problem}; set enable_prefix_caching to false", field="enable_prefix_caching")

    def _check_reusable(self, model: Any) -> None:
        """Refuse a cache of rows for a model whose rows depend on more than tokens. Raises ConfigurationError."""
        if isinstance(model, SupportsInputRows) or self._hooks.after_sampling or self._hooks.follower is not None:
            raise ConfigurationError(
                "rows of this model depend on more than tokens and media, so they cannot be reused; set "
                "enable_prefix_caching to false",
                field="enable_prefix_caching",
            )

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        # Drop finished requests first: an aborted request's id may return in the same step. Preempted requests are not
        # finished, so their input rows and captured rows are kept.
        for request_id in scheduler_output.finished_req_ids:
            self._ledger.close(request_id)
            self._failures.pop(request_id, None)
            self._mrope.pop(request_id, None)
            if self._input_rows is not None:
                self._input_rows.drop(request_id)
            if self._hooks.follower is not None:
                self._hooks.follower.end_request(request_id)
        for new_request in scheduler_output.scheduled_new_reqs:
            self._admit(new_request)
        return super()._update_states(scheduler_output)

    def _admit(self, new_request: NewRequestData) -> None:
        request_id = new_request.req_id
        if self._omni.capture_rows and wants_rows(new_request):
            if request_id in self._ledger:
                self._ledger.rewind(request_id, new_request.num_computed_tokens)
            # The scheduler adds the rows of a cached prefix.
            self._ledger.open(request_id, new_request.num_computed_tokens if self._reuses_rows else 0)
        payload: AdditionalInformationPayload | None = getattr(new_request, "additional_information", None)
        if self._hooks.follower is not None:
            self._hooks.follower.begin_request(request_id, payload)
        if payload is None:
            return
        try:
            if self._input_rows is not None:
                self._input_rows.add(request_id, payload)
            elif INPUT_ROWS in payload:
                raise InvalidTensorError(f"{INPUT_ROWS}: this stage's model takes no input rows", field=INPUT_ROWS)
            mrope = MropePositions.from_payload(payload)
            if mrope is not None:
                self._mrope[request_id] = mrope
        except OmniStageError as error:
            self._fail(request_id, error)

    def _init_mrope_positions(self, req_state: CachedRequestState) -> None:
        mrope = self._mrope.get(req_state.req_id)
        if mrope is None:
            super()._init_mrope_positions(req_state)
            return
        req_state.mrope_positions = mrope.of_prompt(req_state.num_prompt_tokens)
        req_state.mrope_position_delta = mrope.delta

    def _preprocess(self, scheduler_output: SchedulerOutput, num_input_tokens: int, *args: Any, **kwargs: Any) -> Any:
        if self._input_rows is not None or self._hooks.follower is not None:
            spans = compute_spans(
                self.input_batch.req_ids, scheduler_output.num_scheduled_tokens, start_positions(scheduler_output)
            )
            if self._input_rows is not None:
                self._input_rows.fill(spans, num_input_tokens)
            if self._hooks.follower is not None:
                self._hooks.follower.begin_step(spans)
        return super()._preprocess(scheduler_output, num_input_tokens, *args, **kwargs)

    def _dummy_run(self, *args: Any, **kwargs: Any) -> Any:
        if self._input_rows is not None:
            self._input_rows.clear()
        if self._hooks.follower is not None:
            self._hooks.follower.begin_step(())
        return super()._dummy_run(*args, **kwargs)


class GPUARModelRunner(OmniARRunnerMixin, GPUModelRunner):
    """vLLM's V1 runner on a GPU, with rows in and out."""


def wants_rows(new_request: NewRequestData) -> bool:
    """Returns whether the front end asked for this request's rows."""
    params = new_request.sampling_params
    return bool(params is not None and params.extra_args and params.extra_args.get(OMNI_ROWS_KEY) is True)
