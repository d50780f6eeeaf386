"""Results of calls as parts of a message, in the forms of four interfaces."""

from typing import assert_never

from holdfast.agent.unified_exec.arguments.schemas import SchemaKind, check_kind
from holdfast.wire.rpc.base64 import encode_base64

__all__ = ["data_url", "image_content", "text_content"]


def text_content(kind: SchemaKind, text: str) -> dict[str, object]:
    """
    Return a text as a part of a result.

    Raises:
        ValueError: `kind` is unknown.
    """
    check_kind(kind)
    return {"type": "input_text" if kind == "openai" else "text", "text": text}


def image_content(kind: SchemaKind, data: bytes, mime_type: str) -> dict[str, object]:
    """
    Return an image as a part of a result.

    Raises:
        ValueError: `kind` is unknown.
    """
    check_kind(kind)
    match kind:
        case "openai":
            url = data_url(data, mime_type)
            return {"type": "input_image", "image_url": url, "detail": "high"}
        case "anthropic":
            encoded = encode_base64(data).decode()
            source = {"type": "base64", "media_type": mime_type, "data": encoded}
            return {"type": "image", "source": source}
        case "langchain":
            image = {"url": data_url(data, mime_type), "detail": "high"}
            return {"type": "image_url", "image_url": image}
        case "mcp":
            return {"type": "image", "data": encode_base64(data).decode(), "mimeType": mime_type}
        case _:
            assert_never(kind)


def data_url(data: bytes, mime_type: str) -> str:
    """Return a URL that contains an image."""
    return f"data:{mime_type};base64,{encode_base64(data).decode()}"
