"""Which sampling parameters a kind of stage can honour."""

from __future__ import annotations

from omni_proto.stage_config import SamplingDefaults
from omni_stage.errors import InvalidRequestError

DIFFUSION_ONLY = frozenset({"num_inference_steps", "guidance_scale"})
TEXT_ONLY = frozenset({"stop"})


def refuse(sampling: SamplingDefaults, fields: frozenset[str], why: str) -> None:
    """Refuse the first of the fields that is set. Raises InvalidRequestError naming it."""
    for name in sorted(fields):
        if getattr(sampling, name) is not None:
            raise InvalidRequestError(f"sampling.{name}: {why}; leave it out", field=f"sampling.{name}")


def check_text_sampling(sampling: SamplingDefaults) -> None:
    """What a stage that writes text takes. Raises InvalidRequestError."""
    refuse(sampling, DIFFUSION_ONLY, "is for diffusion stages, and this stage writes text")


def check_codec_sampling(sampling: SamplingDefaults) -> None:
    """What a stage that writes codec tokens takes. Raises InvalidRequestError."""
    refuse(sampling, DIFFUSION_ONLY, "is for diffusion stages, and this stage writes codec tokens")
    refuse(sampling, TEXT_ONLY, "is for stages that write text, and this stage writes codec tokens")


def check_diffusion_sampling(sampling: SamplingDefaults) -> None:
    """What a diffusion stage takes: seed, guidance_scale, num_inference_steps from 2. Raises InvalidRequestError."""
    others = frozenset(SamplingDefaults.model_fields) - DIFFUSION_ONLY - {"seed"}
    refuse(sampling, others, "is for stages that write tokens, and this stage makes sound by diffusion")
    if sampling.num_inference_steps == 1:
        raise InvalidRequestError(
            "sampling.num_inference_steps: must be at least 2, the first and the last point of the solver",
            field="sampling.num_inference_steps",
            limit=2,
        )
