"""What the clients of all cloud services share: sending, repeating, and turning refusals into our errors."""

from __future__ import annotations

import datetime as dt
import email.utils
import time
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol, TypeVar

import tenacity
from keystoneauth1 import exceptions

from droveway import deadlines
from droveway.clients import send_guard
from droveway.errors import StepError

ATTEMPTS: Final = 5
_PAUSES: Final = tenacity.wait_random_exponential(multiplier=0.05, max=2.0)
_FIRST_SERVER_ERROR: Final = 500
_TOO_MANY_REQUESTS: Final = 429
_UNAUTHORIZED: Final = 401
_COME_AGAIN: Final = (_UNAUTHORIZED, _TOO_MANY_REQUESTS)
"""Refusals that say nothing of the request itself: another token, or later, it is taken."""
_UNTIL_NEXT_TOKEN: Final = 1.0
"""Seconds: Keystone takes a token for revoked that was made in the second in which all others were."""
PATIENCE: Final = 10.0
"""Seconds that a busy service is left alone at most, however long it asks for."""

NOT_FOUND: Final = 404
CONFLICT: Final = 409

_Answer = TypeVar("_Answer")


class Adapter(Protocol):
    """A service's root: a keystoneauth adapter, a proxy of openstacksdk or an embedded service."""

    def request(self, url: str, method: str, **options: Any) -> Any:
        """Send one request and answer whatever the status is."""


class TryAgainError(Exception):
    """The answer was lost, or somebody else was quicker: look what stands, then send again."""

    def __init__(self, why: str, *, pause: float = 0.0) -> None:
        """``pause``: the seconds that the service is to be left alone at least."""
        super().__init__(why)
        self.pause = pause


class NotAskedError(StepError):
    """The service could not be asked at all: a refusal to whoever gives a command, since nothing was changed."""

    exit_code = 2


class Rest:
    """One service. Errors are `droveway.errors.StepError` with the codes ``NAME-unavailable`` and ``NAME-failed``.

    It is ``NAME-overdue`` once the running step's deadline has passed, which is asked before and after each request.
    """

    def __init__(self, adapter: Adapter, name: str, on_request: Callable[[str, str], None] | None = None) -> None:
        self._adapter = adapter
        self._name = name
        self._on_request = on_request

    def send(self, method: str, path: str, *, final: Collection[int] = (), **options: Any) -> Any:
        """The answer to one request; raises `TryAgainError` when none came or the service failed.

        Statuses in ``final`` are answers even where they are server errors.  Raises what `droveway.clients.send_guard`
        raises before anything but a GET is sent.
        """
        self._require_time()
        if self._on_request is not None:
            self._on_request(method, path)
        if method != "GET":
            # Last of all: whoever slept until here may have lost its claim, and the service compares nothing with it.
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
        """The body of the answer to a GET."""
        return self.done("GET", path, self.repeat(lambda: self.send("GET", path, **options))).json()

    def done(self, method: str, path: str, response: Any) -> Any:
        """The response, when it is no refusal."""
        if response.status_code >= 400:  # noqa: PLR2004
            raise StepError(
                f"the {self._name} service answered {response.status_code} to {method} {path}: {detail_of(response)}",
                code=self._code("failed"),
            )
        return response

    def repeat(self, call: Callable[[], _Answer]) -> _Answer:
        """Call until there is an answer, a few times within some seconds."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=_pause,
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


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds before the next try, which is made in time to notice that the step's deadline has passed."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_for = error.pause if isinstance(error, TryAgainError) else 0.0
    pause = max(_PAUSES(state), min(asked_for, PATIENCE))
    left = deadlines.left()
    return pause if left is None else max(0.0, min(pause, left))


def _asked_for(response: Any) -> float:
    """Return the seconds for which a service that failed is to be left alone."""
    if response is None:
        return 0.0
    if response.status_code == _UNAUTHORIZED:
        return _UNTIL_NEXT_TOKEN
    told = response.headers.get("Retry-After", "")
    return float(told) if told.isdecimal() else _seconds_until(told)


def _seconds_until(told: str) -> float:
    """Return how far away an HTTP date is; 0 for one that is over, and for what is no date."""
    try:
        when = email.utils.parsedate_to_datetime(told)
    except (ValueError, OverflowError):
        return 0.0
    # One of the three forms names no zone and is meant as UTC.
    when = when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)
    return max(0.0, when.timestamp() - time.time())


def detail_of(response: Any) -> str:
    """The sentence in a refusal, wherever the service puts it."""
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
