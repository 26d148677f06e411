"""Checks a checkpoint against the model that loads it: no tensor is missing or left over, every shape fits.

vLLM 0.32 does not do this by itself. `DefaultModelLoader.track_weights_loading` counts every parameter of a module with
a quantization method as loaded, and each of vLLM's linear, embedding and output layers has such a method, quantized or
not. By default, the loader does not call it for quantized checkpoints. It also cannot see that one part of a fused
parameter (q, k, v) is missing. `AutoWeightsLoader` drops unknown biases. So a stage could start and return noise.

Private interfaces of vLLM 0.32 used here, and why:
- `models.utils.WeightsMapper.map_name`: the name under which a model looks for a checkpoint's tensor.
- `models.utils.StageMissingLayer`, `PPMissingLayer`: stand for parts that are left out on purpose, such as encoders of
  media that the stage does not take.
- `RoutedExperts` (layers/fused_moe/routed_experts.py): holds all experts of a layer in `w13_*` and `w2_*`, where
  checkpoints have a tensor for each expert.
- `packed_modules_mapping`: names a model's fused modules, each with the checkpoint's modules that it consists of.
- `quant_method` of modules and `uses_meta_device`, `BaseKVCacheMethod`, `_CONFIG_BUILT_PARAMS`: vLLM's own rules for
  which parameters a checkpoint need not hold, from `DefaultModelLoader.track_weights_loading`.
- `get_cache_scale_mapper`, `get_checkpoint_weight_mapper` of quantization configurations, which vLLM's loader applies.
- `AutoAWQConfig.modules_to_not_convert`, `AutoGPTQConfig.modules_in_block_to_quantize` and `maybe_update_config`:
  where vLLM stores which modules are quantized, and how it finds that out from the checkpoint's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.quantization.auto_awq import AutoAWQConfig
from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.model_loader.default_loader import _CONFIG_BUILT_PARAMS
from vllm.model_executor.models.utils import PPMissingLayer, StageMissingLayer, WeightsMapper

from omni_stage.errors import ConfigurationError

Weights = Iterable[tuple[str, torch.Tensor]]

_EXPERT_PARTS = {"w13": ("gate_proj", "up_proj"), "w2": ("down_proj",)}
"""vLLM's parameters that hold a layer's experts -> the checkpoint's names of one expert's parts."""
_SHOWN = 5
"""Maximum number of names of one kind, missing or unknown, in the error."""
_NAME_LENGTH = 120
_ROTARY_TABLE = "rotary_emb.inv_freq"
"""Computed from the configuration, but GPTQModel stores it anyway. vLLM's loader drops it too."""


def load_checked(
    model: nn.Module,
    weights: Weights,
    load: Callable[[Weights], set[str]],
    *,
    mapper: WeightsMapper,
    ignored: Collection[str] = (),
) -> set[str]:
    """Load the weights with `load`. Returns its result: the names of the parameters that were loaded.

    `weights` are the checkpoint's tensors; those that `mapper` drops belong to other components. `ignored`: the
    checkpoint's names of tensors that this model does not use. Raises ConfigurationError naming what is missing, what
    is left over, or the tensor that does not fit.
    """
    quant_config = getattr(model, "quant_config", None)
    if quant_config is not None:
        # Like AutoWeightsLoader, drop tensors that vLLM does not use, such as GPTQ's g_idx.
        mapper = mapper | quant_config.get_cache_scale_mapper() | quant_config.get_checkpoint_weight_mapper()
    tally = _Tally(_find_expectations(model, quant_config), mapper, frozenset(ignored))
    try:
        loaded = load(tally.watch(weights))
    except ConfigurationError:
        raise
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if tally.current is None:
            raise
        name, shape = tally.current
        raise ConfigurationError(
            f"the checkpoint's tensor {name[:_NAME_LENGTH]} {list(shape)} does not fit the model that config.json "
            f"describes ({_one_line(error)}); do config.json and the weights belong together?",
            field="model.path",
        ) from error
    tally.check()
    return loaded


def quantize_what_is_quantized(quant_config: Any, model_path: str, mapper: WeightsMapper) -> None:
    """Make AWQ and GPTQ treat exactly those modules as quantized whose tensors in the checkpoint are quantized.

    The lists in published configurations are incomplete: AWQ lists name only the vision encoder as not quantized, and
    some lists are empty. Changes `quant_config` in place; does nothing for other quantizations and for None.
    """
    if isinstance(quant_config, AutoAWQConfig):
        quant_config.modules_to_not_convert = []
    elif isinstance(quant_config, AutoGPTQConfig):
        quant_config.modules_in_block_to_quantize = []
    else:
        return
    quant_config.maybe_update_config(model_path)
    quant_config.apply_vllm_mapper(mapper.get_rename_mapper())


@dataclass(frozen=True, slots=True)
class _Expectations:
    """The model's parameter names, with each part of a fused parameter listed separately."""

    required: Mapping[str, torch.Size | None]
    """Names that a checkpoint must hold; with the shape where it is known from the model."""
    optional: frozenset[str]
    """Names that the model can load but does not need."""
    left_out: tuple[str, ...]
    """Prefixes of parts that this stage does not have."""
    open_ended: bool
    """Whether the checkpoint may hold further tensors, such as the scales of other quantizations."""


@dataclass(slots=True)
class _Tally:
    """Compares names while the tensors are loaded."""

    expected: _Expectations
    mapper: WeightsMapper
    ignored: frozenset[str]
    current: tuple[str, torch.Size] | None = None
    """The tensor that was given to the model last, by its name in the checkpoint."""
    _seen: set[str] = field(default_factory=set)
    _unexpected: list[str] = field(default_factory=list)

    def watch(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the weights that the model is to load. Raises ConfigurationError if one has the wrong shape."""
        for name, tensor in weights:
            if not self._is_wanted(name, tensor):
                continue
            self.current = (name, tensor.shape)
            yield name, tensor
        self.current = None

    def check(self) -> None:
        """Raises ConfigurationError unless exactly the expected tensors were loaded."""
        missing = [self._name_in_checkpoint(name) for name in self.expected.required if name not in self._seen]
        problems = [
            f"{_count(names)} {what}: {_list(names)}"
            for names, what in ((missing, "missing"), (self._unexpected, "unknown"))
            if names
        ]
        if problems:
            raise ConfigurationError(
                f"the checkpoint does not hold what its config.json describes; {'; '.join(problems)}. Download the "
                "checkpoint again, or use one whose config.json belongs to its weights",
                field="model.path",
            )

    def _is_wanted(self, name: str, tensor: torch.Tensor) -> bool:
        mapped = None if name in self.ignored else self.mapper.map_name(name)
        if mapped is None or mapped.endswith(_ROTARY_TABLE) or mapped.startswith(self.expected.left_out):
            return False
        required = self.expected.required
        if mapped in required:
            shape = required[mapped]
            if shape is not None and tensor.shape != shape:
                raise ConfigurationError(
                    f"the checkpoint's tensor {name[:_NAME_LENGTH]} is {list(tensor.shape)}, and its config.json "
                    f"requires {list(shape)}; do config.json and the weights belong together?",
                    field="model.path",
                )
            self._seen.add(mapped)
            return True
        if mapped in self.expected.optional or self.expected.open_ended:
            return True
        module, _, last = mapped.rpartition(".")
        if last == "bias" and f"{module}.qweight" in required:
            return False  # GPTQ writes a bias of zeros for layers that have none
        self._unexpected.append(name)
        return False

    def _name_in_checkpoint(self, name: str) -> str:
        prefixes = [(new, old) for old, new in self.mapper.orig_to_new_prefix.items() if new is not None]
        new, old = max(((new, old) for new, old in prefixes if name.startswith(new)), default=("", ""), key=_new_length)
        return old + name.removeprefix(new)


def _find_expectations(model: nn.Module, quant_config: Any) -> _Expectations:
    packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    required: dict[str, torch.Size | None] = {}
    optional: set[str] = set()
    left_out: list[str] = []
    known: set[int] = set()
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        if isinstance(module, (StageMissingLayer, PPMissingLayer)):
            left_out.append(dot)
            continue
        method = getattr(module, "quant_method", None)
        for name, parameter in module.named_parameters(recurse=False):
            parts = _split_experts(module, prefix, name) or _split_fused(dot + name, packed)
            if id(parameter) in known or _may_be_missing(method, name, parameter):
                # The first name of a tied parameter is enough.
                optional.update(parts)
            else:
                # With several ranks, each holds a part of vLLM's own layers. The layers' loaders check the shapes.
                shape = None if hasattr(parameter, "weight_loader") or len(parts) > 1 else parameter.shape
                required.update(dict.fromkeys(parts, shape))
            known.add(id(parameter))
        hidden: set[str] = module._non_persistent_buffers_set
        optional.update(dot + name for name, _ in module.named_buffers(recurse=False) if name not in hidden)
    open_ended = quant_config is not None and not isinstance(quant_config, (AutoAWQConfig, AutoGPTQConfig))
    return _Expectations(required, frozenset(optional), tuple(left_out), open_ended)


def _may_be_missing(method: Any, name: str, parameter: nn.Parameter) -> bool:
    if isinstance(method, BaseKVCacheMethod) or parameter.numel() == 0 or name in _CONFIG_BUILT_PARAMS:
        return True
    # Such a method quantizes while loading and computes the scales itself.
    return bool(getattr(method, "uses_meta_device", False)) and name not in ("weight", "bias")


def _split_fused(name: str, packed: Mapping[str, list[str]]) -> list[str]:
    """Returns the checkpoint's names of a fused parameter's parts; the name itself if it is not fused."""
    for fused, parts in packed.items():
        if f".{fused}." in f".{name}":
            return [f".{name}".replace(f".{fused}.", f".{part}.")[1:] for part in parts]
    return [name]


def _split_experts(module: nn.Module, prefix: str, name: str) -> list[str]:
    """Returns the checkpoint's names of all experts' parts, if the parameter holds a layer's experts; else none."""
    kind, _, suffix = name.partition("_")
    if not isinstance(module, RoutedExperts) or kind not in _EXPERT_PARTS:
        return []
    experts = prefix.removesuffix(".routed_experts")
    count: int = module.moe_config.num_logical_experts
    return [f"{experts}.{index}.{part}.{suffix}" for index in range(count) for part in _EXPERT_PARTS[kind]]


def _new_length(pair: tuple[str, str]) -> int:
    return len(pair[0])


def _count(names: Collection[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"


def _list(names: list[str]) -> str:
    shown = ", ".join(name[:_NAME_LENGTH] for name in names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
