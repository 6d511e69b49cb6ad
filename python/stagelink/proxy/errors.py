"""Failures as clients see them: the shape of OpenAI's errors, with what to do in the text."""

import json
from typing import Any

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "request_timeout",
    413: "invalid_request_error",
    502: "bad_gateway",
    503: "service_unavailable",
    504: "gateway_timeout",
}


class ProxyError(Exception):
    """Ends one request with an HTTP status and a text for the client."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, round(self.retry_after_s)))}

    def document(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "internal_error")
        return {
            "error": {"message": self.message, "type": kind, "param": None, "code": self.status}
        }

    def event(self) -> bytes:
        """The same inside a stream whose status line is gone already."""
        return b"data: " + json.dumps(self.document()).encode() + b"\n\n"
