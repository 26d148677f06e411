"""compile_stages returns one StageConfig per stage, in the order of the graph."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from omni_proto.pipeline import (
    ModelPathError,
    OmniPipeline,
    PipelineError,
    compile_stages,
    load_pipeline,
    order_stages,
    parse_pipeline,
    resolve_model_paths,
    stages_for_outputs,
)
from omni_proto.stage_config import Listen, Modality, ServerTls, StageConfig, StageConfigError, parse_stage_config

SAMPLES = Path(__file__).parents[4] / "manifests" / "samples"

TREE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: tree}
spec:
  model: {uri: hf://a/b, revision: v2}
  timeouts: {request: 60}
  stages:
  - {name: wav2, component: qwen2_5_omni/token2wav, inputs: [{from: talker2}], outputs: [Audio]}
  - {name: talker1, component: qwen2_5_omni/talker, inputs: [{from: thinker, mode: Stream}],
     resources: {limits: {nvidia.com/gpu: "2"}}, timeouts: {step: 7, queue: 9}}
  - {name: talker2, component: qwen2_5_omni/talker, inputs: [{from: thinker}]}
  - {name: thinker, component: qwen2_5_omni/thinker, outputs: [Text], limits: {maxConcurrentRequests: 3},
     defaultSampling: {temperature: 0.5}, engineArgs: {dtype: bfloat16}, resources: {limits: {nvidia.com/gpu: 4}}}
  - {name: wav1, component: qwen2_5_omni/token2wav, inputs: [{from: talker1}], outputs: [Audio]}
"""


def compile_all(pipeline: OmniPipeline) -> dict[str, StageConfig]:
    configs = compile_stages(
        pipeline, target_for=lambda stage: f"dns:///{stage.name}.:50051", model_path_for=lambda stage: "/model"
    )
    return {config.stage: config for config in configs}


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.yaml")))
def test_the_files_of_samples_are_read_back(name: str) -> None:
    """tests/golden/operator holds their content, in the objects that mount them."""
    configs = compile_all(load_pipeline(SAMPLES / f"{name}.yaml"))
    assert [parse_stage_config(config.to_yaml()) for config in configs.values()] == list(configs.values())


def test_order_is_the_graph_s_branch_by_branch() -> None:
    assert [stage.name for stage in order_stages(parse_pipeline(TREE))] == [
        "thinker",
        "talker1",
        "wav1",
        "talker2",
        "wav2",
    ]


def test_downstream_subtrees_targets_modes_and_outputs() -> None:
    configs = compile_all(parse_pipeline(TREE))
    assert [
        (edge.stage, edge.target, edge.mode.value, edge.stages, edge.outputs) for edge in configs["thinker"].downstream
    ] == [
        ("talker1", "dns:///talker1.:50051", "Stream", ["talker1", "wav1"], [Modality.AUDIO]),
        ("talker2", "dns:///talker2.:50051", "Full", ["talker2", "wav2"], [Modality.AUDIO]),
    ]
    assert configs["thinker"].stages == ["thinker", "talker1", "wav1", "talker2", "wav2"]
    assert configs["wav1"].downstream == []
    assert configs["thinker"].input is None
    talker = configs["talker1"].input
    assert talker is not None
    assert (talker.source, talker.mode.value) == ("thinker", "Stream")


def test_what_a_stage_says_reaches_its_file() -> None:
    configs = compile_all(parse_pipeline(TREE))
    thinker, talker = configs["thinker"], configs["talker1"]
    assert (thinker.tensor_parallel_size, talker.tensor_parallel_size, configs["wav1"].tensor_parallel_size) == (
        4,
        2,
        1,
    )
    assert thinker.limits.max_concurrent_requests == 3
    assert thinker.default_sampling.temperature == 0.5
    assert thinker.engine_args.dtype == "bfloat16"
    assert (talker.timeouts.request, talker.timeouts.step, talker.timeouts.queue) == (60, 7, 9)
    assert (thinker.timeouts.request, thinker.timeouts.step) == (60, None)
    assert (thinker.model.path, thinker.model.uri, thinker.model.revision) == ("/model", "hf://a/b", "v2")


def test_only_the_entry_may_listen_with_tls() -> None:
    configs = compile_all(parse_pipeline(TREE))
    listen = Listen(tls=ServerTls(directory="/tls"))
    with_tls = {name: config.model_copy(update={"listen": listen}) for name, config in configs.items()}
    with pytest.raises(StageConfigError, match=r"listen\.tls: only the entry"):
        parse_stage_config(with_tls["talker1"].to_yaml())
    assert parse_stage_config(with_tls["thinker"].to_yaml()).listen == listen
    assert with_tls["thinker"].config_hash() == configs["thinker"].config_hash()


def test_each_stage_has_ports_and_a_checkpoint_of_its_own() -> None:
    ports = {"thinker": 1, "talker1": 2, "wav1": 3, "talker2": 4, "wav2": 5}
    configs = compile_stages(
        parse_pipeline(TREE),
        target_for=lambda stage: f"127.0.0.1:{ports[stage.name]}",
        model_path_for=lambda stage: f"/models/{stage.name}",
        listen_for=lambda stage: Listen(host="127.0.0.1", grpc_port=ports[stage.name], health_port=0, metrics_port=0),
    )
    assert [config.listen.grpc_port for config in configs] == [1, 2, 3, 4, 5]
    assert [config.model.path for config in configs] == [f"/models/{name}" for name in ports]
    assert [edge.target for edge in configs[0].downstream] == ["127.0.0.1:2", "127.0.0.1:4"]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([], ["thinker", "talker1", "wav1", "talker2", "wav2"]),
        ([Modality.TEXT], ["thinker"]),
        ([Modality.AUDIO], ["thinker", "talker1", "wav1", "talker2", "wav2"]),
    ],
)
def test_stages_for_outputs(outputs: list[Modality], expected: list[str]) -> None:
    assert [stage.name for stage in stages_for_outputs(parse_pipeline(TREE), outputs)] == expected


def test_undeclared_output_is_refused_with_the_declared_ones() -> None:
    pipeline = load_pipeline(SAMPLES / "generic-llm.yaml")
    with pytest.raises(ValueError, match="pipeline 'generic-llm' does not return Audio; it returns Text"):
        stages_for_outputs(pipeline, [Modality.AUDIO])


def test_model_path() -> None:
    tiny, llm = load_pipeline(SAMPLES / "tiny-omni.yaml"), load_pipeline(SAMPLES / "generic-llm.yaml")
    assert set(resolve_model_paths(tiny).values()) == {"/models/tiny-omni"}
    assert set(resolve_model_paths(tiny, "/elsewhere").values()) == {"/elsewhere"}
    assert resolve_model_paths(llm, "/elsewhere") == {"llm": "/elsewhere"}
    with pytest.raises(ModelPathError, match=r"spec\.model\.uri is hf://.*--model-dir DIR"):
        resolve_model_paths(llm)


CASCADE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: cascade}
spec:
  model: {uri: hf://org/llm}
  stages:
  - {name: voice, component: acme/voice, inputs: [{from: llm}], outputs: [Audio], model: {uri: file:///models/voice}}
  - {name: ears, component: acme/ears, outputs: [Text], model: {uri: hf://org/ears, revision: v3}}
  - {name: llm, component: acme/llm, inputs: [{from: ears}], outputs: [Text]}
"""


def test_a_stage_s_own_model_replaces_the_pipeline_s() -> None:
    pipeline = parse_pipeline(CASCADE)
    sources = {name: (config.model.uri, config.model.revision) for name, config in compile_all(pipeline).items()}
    assert sources == {
        "ears": ("hf://org/ears", "v3"),
        "llm": ("hf://org/llm", ""),
        "voice": ("file:///models/voice", ""),
    }


def test_a_stage_knows_whether_all_stages_below_serve_its_checkpoint() -> None:
    def shared(text: str) -> dict[str, bool]:
        return {name: config.is_model_shared for name, config in compile_all(parse_pipeline(text)).items()}

    assert shared(CASCADE) == {"ears": False, "llm": False, "voice": True}
    assert set(shared(TREE).values()) == {True}
    own = TREE.replace("name: wav1,", "name: wav1, model: {uri: hf://a/b, revision: MODEL},")
    assert set(shared(own.replace("MODEL", "v2")).values()) == {True}
    assert [name for name, is_shared in shared(own.replace("MODEL", "v3")).items() if not is_shared] == [
        "thinker",
        "talker1",
    ]


def test_without_a_model_of_the_pipeline_every_stage_needs_one() -> None:
    alone = CASCADE.replace("  model: {uri: hf://org/llm}\n", "")
    with pytest.raises(PipelineError, match="model is missing, and stages llm have no model of their own"):
        parse_pipeline(alone)
    text = alone.replace("component: acme/llm,", "component: acme/llm, model: {uri: hf://org/other},")
    assert compile_all(parse_pipeline(text))["llm"].model.uri == "hf://org/other"


@pytest.mark.parametrize(
    ("model_dir", "stage_dirs", "expected"),
    [
        ("/llm", {"ears": "/ears"}, {"ears": "/ears", "llm": "/llm", "voice": "/models/voice"}),
        (None, {"ears": "/ears", "llm": "/x"}, {"ears": "/ears", "llm": "/x", "voice": "/models/voice"}),
        ("/llm", {"ears": "/ears", "voice": "/v"}, {"ears": "/ears", "llm": "/llm", "voice": "/v"}),
    ],
)
def test_directories_of_several_models(
    model_dir: str | None, stage_dirs: dict[str, str], expected: dict[str, str]
) -> None:
    assert resolve_model_paths(parse_pipeline(CASCADE), model_dir, stage_dirs) == expected


@pytest.mark.parametrize(
    ("model_dir", "stage_dirs", "words"),
    [
        (
            None,
            {},
            "model.uri of stage ears is hf://org/ears, which is not a directory on this machine; give the directory of "
            "the checkpoint with --model-dir ears=DIR\n"
            "spec.model.uri is hf://org/llm, which is not a directory on this machine; give the directory of the "
            "checkpoint with --model-dir DIR",
        ),
        ("/llm", {}, "model.uri of stage ears is hf://org/ears, which is not"),
        ("/llm", {"eras": "/ears"}, "--model-dir eras=DIR names no stage; the stages are ears, llm, voice"),
        (
            "/x",
            {"ears": "/ears", "llm": "/llm"},
            "--model-dir /x replaces spec.model, which no stage uses; give the directory of a stage's own checkpoint "
            "with --model-dir STAGE=DIR",
        ),
    ],
)
def test_directories_that_are_missing_or_not_used(
    model_dir: str | None, stage_dirs: dict[str, str], words: str
) -> None:
    with pytest.raises(ModelPathError, match=re.escape(words)):
        resolve_model_paths(parse_pipeline(CASCADE), model_dir, stage_dirs)


def test_half_a_gpu_is_refused_where_only_types_were_checked() -> None:
    """compile_stages() refuses half a GPU, which the types alone accept."""
    pipeline = parse_pipeline(TREE.replace('nvidia.com/gpu: "2"', "nvidia.com/gpu: 500m"))
    with pytest.raises(PipelineError, match=r"talker1: resources.limits.nvidia.com/gpu.: must be a whole number"):
        compile_all(pipeline)


DIALOGUE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: dialogue}
spec:
  model: {uri: hf://a/b}
  stages:
  - {name: voice, component: acme/voice, inputs: [{from: llm}], outputs: [Audio]}
  - {name: llm, component: acme/llm, inputs: [{from: asr}], outputs: [Text]}
  - {name: asr, component: acme/asr, outputs: [Transcript]}
"""


def test_the_entry_knows_which_stage_answers() -> None:
    configs = compile_all(parse_pipeline(DIALOGUE))
    assert {name: config.answering_stage for name, config in configs.items()} == {
        "asr": "llm",
        "llm": None,
        "voice": None,
    }
    assert configs["asr"].outputs == [Modality.TRANSCRIPT]
    calling = compile_all(
        parse_pipeline(DIALOGUE.replace("outputs: [Text]", "outputs: [Text], engineArgs: {toolCallParser: hermes}"))
    )
    assert [calling[name].answering_tool_call_parser for name in ("asr", "llm", "voice")] == ["hermes", None, None]
    earlier = compile_all(parse_pipeline(DIALOGUE.replace("[Transcript]", "[Text]")))
    assert earlier["asr"].answering_stage == "llm", "of several texts, the last one is the answer"
    between = DIALOGUE.replace("{from: asr}", "{from: tidy}").replace(
        "  - {name: asr", "  - {name: tidy, component: acme/tidy, inputs: [{from: asr}]}\n  - {name: asr"
    )
    assert compile_all(parse_pipeline(between))["tidy"].answering_stage == "llm", "and so does a stage in between"
    alone = compile_all(parse_pipeline(TREE))
    assert alone["thinker"].answering_stage is None, "the stage itself answers"


def test_a_transcript_needs_only_the_stage_that_hears() -> None:
    pipeline = parse_pipeline(DIALOGUE)
    names = {kind: [stage.name for stage in stages_for_outputs(pipeline, [kind])] for kind in Modality}
    assert names == {
        Modality.TEXT: ["asr", "llm"],
        Modality.AUDIO: ["asr", "llm", "voice"],
        Modality.TRANSCRIPT: ["asr"],
    }


def test_a_stage_that_answers_is_below_the_entry() -> None:
    config = compile_all(parse_pipeline(DIALOGUE))["asr"]
    with pytest.raises(StageConfigError, match="answeringStage must be one of the stages below"):
        parse_stage_config(config.to_yaml().replace("answeringStage: llm", "answeringStage: ear"))
