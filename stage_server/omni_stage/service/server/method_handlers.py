"""Generic method handlers for StageService, with serializers that do not copy tensors.

Names and wire format are the same as in the generated code, so generated stubs, reflection and grpcurl work.
"""

from __future__ import annotations

import grpc

from omni_proto.stage.v1 import stage_service_pb2
from omni_stage.service.request.reading import deserialize_request
from omni_stage.service.request.responses import serialize_response
from omni_stage.service.request.servicer import StageServicer
from omni_stage.service.wire import GENERATE, GET_STAGE, SERVICE_NAME


def stage_handlers(servicer: StageServicer) -> tuple[str, dict[str, grpc.RpcMethodHandler]]:
    """Returns the full name of the service, and a handler for each of its methods."""
    methods = {
        GENERATE: grpc.stream_stream_rpc_method_handler(
            servicer.generate,
            request_deserializer=deserialize_request,
            response_serializer=serialize_response,
        ),
        GET_STAGE: grpc.unary_unary_rpc_method_handler(
            servicer.get_stage,
            request_deserializer=stage_service_pb2.GetStageRequest.FromString,
            response_serializer=stage_service_pb2.GetStageResponse.SerializeToString,
        ),
    }
    return SERVICE_NAME, methods
