"""A service that is not of this tree gets what ours have: the fence, and errors by their names.

Its messages are built here, as protoc would build them from:

    package outside.v1;
    message EchoRequest { trimaran.v1.Caller caller = 1; string text = 2; }
    message EchoResponse { string text = 1; }
    service EchoService { rpc Echo(EchoRequest) returns (EchoResponse); }
"""

from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from trimaran.errors import BehindError, InputError, StaleEpochError
from trimaran.types import Caller
from trimaran.v1 import types_pb2
from trimaran.wire import messages as wire
from trimaran.wire import rpc

CALLER = types_pb2.DESCRIPTOR.message_types_by_name["Caller"].full_name


def build_file():
    file = descriptor_pb2.FileDescriptorProto(
        name="outside/v1/echo.proto",
        package="outside.v1",
        syntax="proto3",
        dependency=[types_pb2.DESCRIPTOR.name],
    )
    field = descriptor_pb2.FieldDescriptorProto
    caller = field(
        name="caller",
        number=1,
        label=field.LABEL_OPTIONAL,
        type=field.TYPE_MESSAGE,
        type_name=f".{CALLER}",
    )
    request = file.message_type.add(name="EchoRequest")
    request.field.extend(
        [caller, field(name="text", number=2, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)]
    )
    response = file.message_type.add(name="EchoResponse")
    response.field.append(
        field(name="text", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    )
    file.service.add(name="EchoService").method.add(
        name="Echo",
        input_type=".outside.v1.EchoRequest",
        output_type=".outside.v1.EchoResponse",
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool.FindFileByName(file.name)


FILE = build_file()
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
    server = rpc.Server("127.0.0.1:0", [rpc.service(FILE, add, EchoServicer())])
    await server.start()
    try:
        async with rpc.connect(server.address) as channel:
            assert await echo(channel, "hello", Caller("run", 2)) == "hello"
            with pytest.raises(BehindError, match="nothing to echo"):
                await echo(channel, "", Caller("run", 2))
            with pytest.raises(StaleEpochError):
                await echo(channel, "hello", Caller("run", 1))
            with pytest.raises(InputError, match="EchoRequest: caller is missing"):
                await echo(channel, "hello")
    finally:
        await server.stop()
