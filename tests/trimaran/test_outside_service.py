"""A service that is not of this tree gets what ours have: the fence, and errors by their names."""

from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from tests.trimaran.run.test_directory import serving
from trimaran.errors import BehindError, InputError, StaleEpochError
from trimaran.types import Caller
from trimaran.wire import messages as wire
from trimaran.wire import rpc

ECHO = """
name: "outside/v1/echo.proto"
package: "outside.v1"
syntax: "proto3"
dependency: "trimaran/v1/types.proto"
message_type {
  name: "EchoRequest"
  field { name: "caller" number: 1 type: TYPE_MESSAGE type_name: ".trimaran.v1.Caller" }
  field { name: "text" number: 2 type: TYPE_STRING }
}
message_type { name: "EchoResponse" field { name: "text" number: 1 type: TYPE_STRING } }
service {
  name: "EchoService"
  method {
    name: "Echo"
    input_type: ".outside.v1.EchoRequest"
    output_type: ".outside.v1.EchoResponse"
  }
}
"""
pool = descriptor_pool.Default()
pool.Add(text_format.Parse(ECHO, descriptor_pb2.FileDescriptorProto()))
FILE = pool.FindFileByName("outside/v1/echo.proto")
Request: Any = message_factory.GetMessageClass(FILE.message_types_by_name["EchoRequest"])
Response: Any = message_factory.GetMessageClass(FILE.message_types_by_name["EchoResponse"])


class EchoServicer:
    async def Echo(self, request, context):
        if not request.text:
            raise BehindError("there is nothing to echo yet")
        return Response(text=request.text)


def add(servicer, server):
    handler = grpc.unary_unary_rpc_method_handler(
        servicer.Echo,
        request_deserializer=Request.FromString,
        response_serializer=Response.SerializeToString,
    )
    name = FILE.services_by_name["EchoService"].full_name
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {"Echo": handler}),)
    )


async def echo(channel, text, caller=None):
    method = channel.unary_unary(
        "/outside.v1.EchoService/Echo",
        request_serializer=Request.SerializeToString,
        response_deserializer=Response.FromString,
    )
    request = Request(text=text, caller=wire.encode_caller(caller) if caller else None)
    return (await rpc.call(method, request, timeout=10)).text


async def test_a_service_of_another_project_is_served_fenced_and_fails_as_ours_do():
    service = rpc.service(FILE, add, EchoServicer())
    async with serving(service) as address, rpc.connect(address) as channel:
        assert await echo(channel, "hello", Caller("run", 2)) == "hello"
        with pytest.raises(BehindError, match="nothing to echo"):
            await echo(channel, "", Caller("run", 2))
        with pytest.raises(StaleEpochError):
            await echo(channel, "hello", Caller("run", 1))
        with pytest.raises(InputError, match="EchoRequest: caller is missing"):
            await echo(channel, "hello")
