"""The block-wise transformer equals transformers' dense one, in linear memory and without waiting for the device."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel

from omni_stage.models.qwen2_5_omni.checkpoint import Voice
from omni_stage.models.qwen2_5_omni.token2wav.wave.transformer import (
    BlockPack,
    BlockTransformer,
    Conditions,
    pack_blocks,
)
from support.models.wave_models import DIT_SHAPES, WAITS, Operators, make_utterance, make_wave_model, make_wave_voices

TOLERANCE = 1e-5


def condition(
    transformer: BlockTransformer, pack: BlockPack, codes: list[torch.Tensor], voices: list[Voice], guidance: float
) -> Conditions:
    rows = [transformer.encode_voice(voice) for voice in voices]
    return transformer.condition(pack, codes, rows, [guidance] * len(codes) if guidance else None)


def modulate(transformer: BlockTransformer, time: float) -> torch.Tensor:
    return transformer.modulate(torch.tensor([time]))[0]


@pytest.mark.parametrize(("count", "guidance"), [(1, 0.5), (24, 0.5), (29, 0.5), (29, 0.0), (29, 2.0)])
@pytest.mark.parametrize("shape", DIT_SHAPES)
def test_one_evaluation_is_transformers_own(shape: str, count: int, guidance: float) -> None:
    model = make_wave_model(shape)
    dit, voice = model.code2wav_dit_model, make_wave_voices(model, "a")["a"]
    codes = make_utterance(count).codes
    frames = count * dit.repeats
    mel, time = torch.randn(frames, dit.mel_dim, generator=torch.Generator().manual_seed(2)), torch.tensor(0.3)
    with torch.inference_mode():
        expected = dit(
            hidden_states=mel[None],
            condition_vector=voice.reference_mel,
            speaker_embedding=voice.speaker[:, None].expand(1, frames, -1),
            quantized_code=codes[None],
            time_step=time,
            apply_cfg=bool(guidance),
        )
        if guidance:
            given, dropped = expected.chunk(2)
            expected = given + (given - dropped) * guidance
        transformer = BlockTransformer(dit)
        pack = pack_blocks([frames], dit.block_size)
        conditions = condition(transformer, pack, [codes], [voice], guidance)
        (ours,) = pack.split(transformer.velocity(modulate(transformer, 0.3), pack.fill([mel]), conditions))
    assert expected.std() > 0.1, "the output must vary, or the comparison is meaningless"
    torch.testing.assert_close(ours, expected[0], atol=TOLERANCE, rtol=0)


def test_neighbours_are_seen_and_no_others() -> None:
    """As in transformers, a change in a block reaches only this block, one block before it and two blocks after it."""
    model = make_wave_model("small blocks")
    dit, voice = model.code2wav_dit_model, make_wave_voices(model, "a")["a"]
    transformer = BlockTransformer(dit)
    pack = pack_blocks([7 * dit.block_size], dit.block_size)
    codes = make_utterance(7 * dit.block_size // dit.repeats).codes
    with torch.inference_mode():
        conditions = condition(transformer, pack, [codes], [voice], 0.5)
        mel = torch.randn(7, dit.block_size, dit.mel_dim, generator=torch.Generator().manual_seed(0))
        changed = mel.clone()
        changed[3] += 1
        row = modulate(transformer, 0.5)
        before, after = (transformer.velocity(row, value, conditions) for value in (mel, changed))
    assert [bool((before[block] != after[block]).any()) for block in range(7)] == [
        False,
        False,
        True,
        True,
        True,
        True,
        False,
    ]


def test_memory_is_linear_in_the_length() -> None:
    """With the published shape and 8,192 frames (82 s), no tensor is larger than 200 MiB.

    The largest has query, key and value of all frames. Guidance doubles it. A mask over all pairs of frames for 16
    heads would take 1 GiB at one byte a value.
    """
    with torch.device("meta"):
        dit = Qwen2_5OmniToken2WavDiTModel(Qwen2_5OmniDiTConfig()).eval()
    transformer = BlockTransformer(dit)
    pack = pack_blocks([8192], dit.block_size)
    voice = Voice(0, torch.empty(1, 192), torch.empty(1, 300, 80))
    # Not in inference mode, in which a TorchDispatchMode sees attention as one operator and not its parts.
    with torch.no_grad(), Operators() as operators:
        conditions = condition(transformer, pack, [torch.zeros(4096, dtype=torch.int64)], [voice], 0.5)
        mel = torch.empty(len(pack.positions), dit.block_size, dit.mel_dim, device="meta")
        row = transformer.modulate(torch.empty(1, device="meta"))[0]
        assert transformer.velocity(row, mel, conditions).shape == mel.shape
    assert any("softmax" in name or "attention" in name for name in operators.names), operators.names
    assert 100 << 20 < operators.largest[0] <= 200 << 20, operators.largest
    assert not operators.names & WAITS


def test_an_evaluation_waits_for_nothing_and_compiles_whole() -> None:
    """An evaluation fits a CUDA graph: no operator waits for the device, and shapes depend only on the inputs' shapes.

    torch.compile finds no graph break, and does not recompile for other inputs of the same shapes.
    """
    model = make_wave_model("small blocks")
    dit, voice = model.code2wav_dit_model, make_wave_voices(model, "a")["a"]
    transformer = BlockTransformer(dit)
    pack = pack_blocks([3 * dit.block_size, dit.block_size + 2], dit.block_size)
    codes = [make_utterance(count // dit.repeats).codes for count in pack.frames]
    mel = pack.fill([torch.randn(count, dit.mel_dim) for count in pack.frames])
    with torch.no_grad():
        conditions = condition(transformer, pack, codes, [voice] * 2, 0.5)
        rows = [modulate(transformer, time) for time in (0.1, 0.6)]
        with Operators() as operators:
            expected = transformer.velocity(rows[0], mel, conditions)
        assert not operators.names & WAITS
        torch._dynamo.reset()
        compiled = torch.compile(transformer.velocity, fullgraph=True, dynamic=False, backend="aot_eager")
        torch.testing.assert_close(compiled(rows[0], mel, conditions), expected, atol=TOLERANCE, rtol=0)
        # Other inputs of the same sizes need no recompilation.
        with torch._dynamo.config.patch(error_on_recompile=True):
            compiled(rows[1], mel + 1, conditions)
