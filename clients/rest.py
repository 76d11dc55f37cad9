"""Sends the requests of all service clients, repeats them, and turns refusals into Droveway's errors."""

from __future__ import annotations

import datetime as dt
import email.utils
import functools
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from droveway import deadlines
from droveway.clients import send_guard
from droveway.errors import StepError

if TYPE_CHECKING:
    import tenacity

ATTEMPTS: Final = 5
_FIRST_SERVER_ERROR: Final = 500
_TOO_MANY_REQUESTS: Final = 429
_UNAUTHORIZED: Final = 401
_COME_AGAIN: Final = (_UNAUTHORIZED, _TOO_MANY_REQUESTS)
"""Refusals that do not concern the request itself: the service accepts it with a new token, or later."""
_UNTIL_NEXT_TOKEN: Final = 1.0
"""Seconds to wait for a new token.

After Keystone has revoked a user's tokens, it also refuses those that the user gets within the same second.
"""
PATIENCE: Final = 10.0
"""The longest pause in seconds before a busy service is asked again, however long it asks for."""

NOT_FOUND: Final = 404
CONFLICT: Final = 409

_Answer = TypeVar("_Answer")


class Adapter(Protocol):
    """Sends requests to one service: an adapter of keystoneauth, a proxy of openstacksdk, or an embedded service."""

    def request(self, url: str, method: str, **options: Any) -> Any:
        """Send one request and return the response, whatever its status is."""


class TryAgainError(Exception):
    """The answer was lost, or somebody else was quicker: read the present state and send the request again."""

    def __init__(self, why: str, *, pause: float = 0.0) -> None:
        """Take the reason, and as ``pause`` the seconds before the service may be asked again."""
        super().__init__(why)
        self.pause = pause


class NotAskedError(StepError):
    """The request could not be sent at all, so that nothing was changed; the command line reports it as a refusal."""

    exit_code = 2


class Rest:
    """Sends requests to one service and judges the answers.

    Errors are `droveway.errors.StepError` with the codes ``NAME-unavailable`` and ``NAME-failed``. The code is
    ``NAME-overdue`` once the running step's deadline has passed. It is checked before each request, and after one that
    got no answer.
    """

    def __init__(self, adapter: Adapter, name: str, on_request: Callable[[str, str], None] | None = None) -> None:
        self._adapter = adapter
        self._name = name
        self._on_request = on_request

    def send(self, method: str, path: str, *, final: Collection[int] = (), **options: Any) -> Any:
        """Return the response to one request; raises `TryAgainError` when none came or the service failed.

        A response with a status in ``final`` is returned even when it is a server error. Anything but a GET is only
        sent if the guard of `droveway.clients.send_guard` raises no error.
        """
        # Most commands ask no service: none of those waits for the import of keystoneauth and requests.
        from keystoneauth1 import exceptions

        self._require_time()
        if self._on_request is not None:
            self._on_request(method, path)
        if method != "GET":
            # The guard is asked right before the request: a process that slept until now may have lost its claim, and
            # the service knows nothing of claims.
            send_guard.ask()
        try:
            response = self._adapter.request(path, method, raise_exc=False, **options)
        except exceptions.ConnectionError as error:
            self._require_time()
            raise TryAgainError(str(error)) from None
        except (exceptions.HttpServerError, exceptions.TooManyRequests) as error:
            self._require_time()
            raise TryAgainError(f"Keystone: {error}", pause=_asked_for(error.response)) from None
        except exceptions.ClientException as error:
            self._require_time()
            why = f"the {self._name} service cannot be asked: {error}"
            raise NotAskedError(why, code=self._code("unavailable")) from None
        failed = response.status_code >= _FIRST_SERVER_ERROR or response.status_code in _COME_AGAIN
        if failed and response.status_code not in final:
            raise TryAgainError(f"HTTP {response.status_code}: {detail_of(response)}", pause=_asked_for(response))
        return response

    def get(self, path: str, **options: Any) -> Any:
        """Return the body of the response to a GET."""
        return self.done("GET", path, self.repeat(lambda: self.send("GET", path, **options))).json()

    def done(self, method: str, path: str, response: Any) -> Any:
        """Return the response; raises `droveway.errors.StepError` when it is a refusal."""
        if response.status_code >= 400:  # noqa: PLR2004
            raise StepError(
                f"the {self._name} service answered {response.status_code} to {method} {path}: {detail_of(response)}",
                code=self._code("failed"),
            )
        return response

    def repeat(self, call: Callable[[], _Answer]) -> _Answer:
        """Call until there is an answer, at most `ATTEMPTS` times; no pause is longer than `PATIENCE`."""
        import tenacity

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=functools.partial(_pause, tenacity.wait_random_exponential(multiplier=0.05, max=2.0)),
            retry=tenacity.retry_if_exception_type(TryAgainError),
            reraise=True,
        )
        try:
            return retrying(call)
        except TryAgainError as error:
            raise StepError(
                f"the {self._name} service failed {ATTEMPTS} times to carry out a request ({error}): look at its log",
                code=self._code("unavailable"),
            ) from None

    def _require_time(self) -> None:
        deadlines.require_time(self._name, code=self._code("overdue"))

    def _code(self, what: str) -> str:
        return f"{self._name.lower()}-{what}"


def _pause(waits: Callable[[tenacity.RetryCallState], float], state: tenacity.RetryCallState) -> float:
    """Return the seconds before the next try, which comes no later than the step's deadline."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_for = error.pause if isinstance(error, TryAgainError) else 0.0
    pause = max(waits(state), min(asked_for, PATIENCE))
    left = deadlines.left()
    return pause if left is None else max(0.0, min(pause, left))


def _asked_for(response: Any) -> float:
    """Return the seconds after which a service that failed asks to be tried again."""
    if response is None:
        return 0.0
    if response.status_code == _UNAUTHORIZED:
        return _UNTIL_NEXT_TOKEN
    told = response.headers.get("Retry-After", "")
    return float(told) if told.isdecimal() else _seconds_until(told)


def _seconds_until(told: str) -> float:
    """Return the seconds until an HTTP date; 0 for a date in the past, and for a text that is no date."""
    try:
        when = email.utils.parsedate_to_datetime(told)
    except (ValueError, OverflowError):
        return 0.0
    # One of the three forms of an HTTP date names no zone. It is UTC.
    when = when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)
    return max(0.0, when.timestamp() - time.time())


def detail_of(response: Any) -> str:
    """Return the message in a refusal; each service puts it into another place of the body."""
    try:
        body = response.json()
    except ValueError:
        body = response.text
    while isinstance(body, (dict, list)):
        if isinstance(body, list):
            body = body[0] if body else ""
        else:
            body = next(
                (body[key] for key in ("detail", "message", "errors") if body.get(key)), [*body.values(), ""][0]
            )
    return " ".join(str(body).split())
