"""How a leg can fail, and what that means for the request, the server and the client."""

import asyncio
import os
from dataclasses import dataclass

import aiohttp

from ..errors import ProxyError
from ..servers.table import Role


@dataclass(frozen=True)
class _Kind:
    retryable: bool
    ill: bool  # The server is left alone for a while.
    status: int
    advice: str


# What clients are told comes after the server's role and the text of the failure.
KINDS = {
    "connect": _Kind(True, True, 502, "check that it runs and that its address is right"),
    "stalled": _Kind(True, True, 504, "it is overloaded or stuck; see its log"),
    "broken": _Kind(True, False, 502, "see its log"),
    "server_error": _Kind(True, False, 502, "see its log"),
    "bad_answer": _Kind(True, False, 502, "is it a vLLM server with a KV connector?"),
    "busy": _Kind(True, False, 503, "try again later"),
    "deadline": _Kind(False, False, 504, "raise --request-timeout or ask for fewer tokens"),
    "too_large": _Kind(False, False, 502, "stream it or raise --max-response"),
    "refused": _Kind(False, False, 400, "mend the request"),
}


class LegFailure(Exception):
    """One leg of one request failed. `answer` is what the server said, if it is for the client."""

    def __init__(
        self, role: Role, url: str, reason: str, text: str, answer: tuple[int, bytes] | None = None
    ) -> None:
        super().__init__(f"{role.value} server {url}: {text}")
        self.role = role
        self.url = url
        self.reason = reason
        self.text = text
        self.answer = answer

    @property
    def kind(self) -> _Kind:
        return KINDS[self.reason]

    @property
    def untouched(self) -> bool:
        """True if the server has not seen the request."""
        return self.reason == "connect"

    def for_client(self, attempts: int = 1) -> ProxyError:
        tried = f" (attempt {attempts})" if attempts > 1 else ""
        message = f"the {self.role.value} server {self.url} failed{tried}: {self.text}; "
        retry_after_s = 1.0 if self.kind.status == 503 else None
        return ProxyError(self.kind.status, message + self.kind.advice, retry_after_s)


def reason_of(error: Exception, deadline_passed: bool) -> tuple[str, str]:
    """What aiohttp has raised, as one of our reasons and a text."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "connect", "no connection within --connect-timeout"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return "connect", os.strerror(number) if number else str(error.os_error)
    if isinstance(error, asyncio.TimeoutError):
        if deadline_passed:
            return "deadline", "the request's time is over"
        return "stalled", "no answer in time"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "broken", "it closed the connection without an answer"
    if isinstance(error, (aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
        return "broken", "the connection ended within its answer"
    text = " ".join(str(error).split())[:200]
    return "bad_answer", f"{type(error).__name__}: {text}"
