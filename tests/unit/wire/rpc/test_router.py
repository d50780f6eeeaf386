"""Method to handler, and exception to code."""

import logging
import os

import pytest

from holdfast.base.errors import (
    CannotEnforce,
    ConnectionLost,
    DuplicateProcess,
    InvalidParams,
    InvalidRequest,
    LocalProtocolError,
    MethodNotFound,
    NotFound,
    OperationFailed,
    Refused,
    SessionAttached,
    SpawnFailed,
    StdinClosed,
    UnknownProcess,
    Unsupported,
)
from holdfast.wire.protocol.methods import METHODS, PROCESS_READ
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import ReadParams, ReadResponse
from holdfast.wire.protocol.wire_types import Empty, Method
from holdfast.wire.rpc.router import ErrorAnswer, Router, error_of

PING = Method("ping", Empty, Empty)


def pong(context: str, params: Empty) -> Empty:
    return params


@pytest.fixture
def router() -> Router[str]:
    router: Router[str] = Router()
    router.add(PING, pong)
    return router


def test_a_method_is_found_with_its_handler_its_types_and_its_family(router: Router[str]) -> None:
    def read(context: str, params: ReadParams) -> ReadResponse:
        raise NotImplementedError

    router.add(PROCESS_READ, read)
    route = router.find("process/read")
    assert (route.name, route.handler, route.family) == ("process/read", read, "exec")
    assert route.decode({"processId": "p"}) == ReadParams(process_id="p")
    assert router.find("ping").family is None
    assert "process/read" in router


@pytest.mark.requirement("envelope.unknown-method")
def test_a_method_nobody_serves_is_refused_with_the_text_of_the_protocol(
    router: Router[str],
) -> None:
    assert "nope" not in router
    with pytest.raises(MethodNotFound) as caught:
        router.find("nope")
    assert str(caught.value) == "exec-server stub does not implement `nope` yet"


def test_params_are_decoded_by_the_route(router: Router[str]) -> None:
    with pytest.raises(InvalidParams):
        router.find("ping").decode([])


def test_a_method_is_served_once(router: Router[str]) -> None:
    with pytest.raises(AssertionError):
        router.add(PING, pong)


@pytest.mark.requirement("envelope.codes")
@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InvalidRequest("not now"), -32600, "not now"),
        (UnknownProcess("p"), -32600, "unknown process id p"),
        (DuplicateProcess("p"), -32600, "process p already exists"),
        (InvalidParams("bad"), -32602, "bad"),
        (MethodNotFound("none"), -32601, "none"),
        (SessionAttached("s"), -32010, "session s is already attached to another connection"),
        (OperationFailed("no"), -32603, "no"),
        (SpawnFailed("gone", errno=2), -32603, "gone"),
        (StdinClosed("closed"), -32603, "closed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_handler_raises_has_a_code(error: Exception, code: int, text: str) -> None:
    answer = error_of(error, "m")
    assert (answer.code, answer.text) == (code, text)
    name = type(error).__name__
    assert answer.data is not None
    assert answer.data["kind"] == name[0].lower() + name[1:]


def test_an_error_as_data_has_the_members_that_there_are() -> None:
    error: Refused = SpawnFailed("gone", errno=2, path="/a b", program="x")
    assert error_of(error, "m").data == {
        "kind": "spawnFailed",
        "errno": 2,
        "path": "file:///a%20b",
        "program": "x",
    }
    error = NotFound("gone", errno=2, path="relative")
    assert error_of(error, "m").data == {"kind": "notFound", "errno": 2, "path": "relative"}
    assert error_of(CannotEnforce("no"), "m").data == {"kind": "cannotEnforce"}


def test_a_path_that_is_not_unicode_keeps_its_bytes() -> None:
    data = error_of(NotFound("gone", path=os.fsdecode(b"/a\xff")), "m").data
    assert data is not None
    assert PathUri.parse(str(data["path"])).native == os.fsdecode(b"/a\xff")


def test_a_class_that_is_not_one_of_the_tree_has_the_kind_of_the_one_above_it() -> None:
    class Particular(OperationFailed):
        """Known to one module only."""

    assert error_of(Particular("no"), "m").data == {"kind": "operationFailed"}


@pytest.mark.parametrize(
    ("error", "code", "text", "kind"),
    [
        (ConnectionLost("the machine is gone"), -32603, "the machine is gone", "operationFailed"),
        (Unsupported(-32601, "no rename"), -32601, "no rename", "methodNotFound"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_another_server_is_the_failure_of_one_request(
    error: Exception, code: int, text: str, kind: str
) -> None:
    assert error_of(error, "m") == ErrorAnswer(code, text, {"kind": kind})


@pytest.mark.parametrize("error", [KeyError("secret"), LocalProtocolError("secret")], ids=repr)
def test_the_unforeseen_is_told_to_the_log_and_not_to_the_caller(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert error_of(error, "process/read") == ErrorAnswer(-32603, "internal error", None)
    (record,) = caplog.records
    assert record.getMessage() == "process/read failed"
    assert record.exc_info is not None


@pytest.mark.requirement("session.before-initialize")
def test_every_method_but_initialize_has_a_family() -> None:
    families = {method.name: method.family for method in METHODS}
    assert [name for name, family in families.items() if family is None] == ["initialize"]
    assert families["process/read"] == "exec"
    assert families["environmentConfig/read"] == "environment config"
