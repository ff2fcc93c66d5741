"""What every page shares: the templates, the words of times and numbers, the headers of an answer."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from services.manager.pages.runs.actions import actions
from trimaran.run.runs import Run

POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:"),
        *("connect-src 'self'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"),
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def render(
    request: Request, template: str, *, status: int = 200, headers: Any = None, **values: Any
) -> HTMLResponse:
    """A page, or a part of one. Values are escaped wherever a template puts them."""
    text = TEMPLATES.get_template(template).render(request=request, **values)
    return HTMLResponse(text, status, headers)


def is_partial(request: Request) -> bool:
    """Whether htmx asks, for a part of the page that it shows."""
    return "hx-request" in request.headers


def span(seconds: float) -> str:
    """Such as `3 h 20 min`: the two largest units."""
    seconds = max(seconds, 0.0)
    for (unit, length), (smaller, its) in zip(UNITS, (*UNITS[1:], ("s", 1)), strict=True):
        if seconds >= length:
            rest = seconds % length // its
            return f"{seconds // length:.0f} {unit}" + (f" {rest:.0f} {smaller}" if rest else "")
    return f"{seconds:.0f} s"


def when(seconds: float) -> str:
    """A moment in unix seconds as ISO 8601 in UTC; empty for 0. A script shows it in the browser's zone."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else ""


def clock(seconds: float) -> str:
    """The same for reading."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}" if seconds else ""


def age(seconds: float) -> str:
    """Since that moment."""
    return span(time.time() - seconds) if seconds else ""


def left(run: Run) -> str:
    """Until its estimated end; empty where there is no estimate."""
    seconds = run.seconds_left(time.time())
    return "" if seconds is None else span(seconds)


def number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:,.{digits}g}"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("services.manager.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (span, when, clock, age, left, number, actions)
    environment.filters |= {each.__name__: each for each in filters}
    return environment


TEMPLATES = _environment()
