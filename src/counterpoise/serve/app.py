"""The addresses of `poise serve`: each gives the page to a browser and JSON to everything else.

Ids in addresses are percent-encoded, slashes too, so the path is split before it is decoded. An
answer is computed in a thread; a file that is damaged is an answer with status 422 that names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import anyio.to_thread
import duckdb
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from counterpoise.errors import UNEXPECTED_VALUE_ERRORS, PoiseError, first_line
from counterpoise.serve.answers import (
    JSON_TYPE,
    BadRequestError,
    NotFoundError,
    encode_answer,
)
from counterpoise.serve.events import EventFeed
from counterpoise.serve.index.query import ROLLOUT_PARAMETERS
from counterpoise.serve.library import RunLibrary
from counterpoise.serve.offline import rollouts_page, run_page
from counterpoise.serve.views.audit import audit_page, audit_view
from counterpoise.serve.views.batch import group_view, iteration_view
from counterpoise.serve.views.compare import diff_view
from counterpoise.serve.views.prompts import PROMPT_PARAMETERS, prompt_view, prompts_view
from counterpoise.serve.views.rollout import rollout_view
from counterpoise.serve.views.rollouts import rollouts_view
from counterpoise.serve.views.run import overlay_view, run_view, types_view
from counterpoise.serve.views.token import token_view
from counterpoise.serve.views.trace import trace_view

THREADS = 4  # answers that are computed at the same time
MOST_OVERLAID = 12
COMMON_PARAMETERS = ("format",)  # of all addresses
ASSET_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
# A downloaded page must not act in the server's name if a browser shows it all the same.
DOWNLOAD_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"


def make_app(library: RunLibrary) -> Starlette:
    """The application; `AccessGate` goes around it."""
    feed = EventFeed(library)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        watcher = asyncio.create_task(feed.watch())
        yield
        watcher.cancel()
        await asyncio.to_thread(library.close)

    async def answer(request: Request) -> Response:
        segments = path_segments(request)
        if segments == ["events"]:
            if feed.is_full:  # a browser does not connect again after a status other than 200
                return json_response({"problem": "too many pages follow the runs"}, 503)
            return StreamingResponse(feed.stream(request), media_type="text/event-stream")
        if segments[:1] == ["assets"]:
            return asset_response("/".join(segments[1:]))
        if wants_page(request) and not is_download(segments):
            return asset_response("index.html")
        return await anyio.to_thread.run_sync(
            compute_answer, library, segments, request.query_params
        )

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET"])], lifespan=lifespan)


def path_segments(request: Request) -> list[str]:
    """The decoded pieces of the path; a piece may hold slashes that were percent-encoded."""
    raw_path = request.scope.get("raw_path") or request.scope["path"].encode()
    pieces = raw_path.partition(b"?")[0].decode("latin-1").split("/")
    return [unquote(piece) for piece in pieces if piece]


def wants_page(request: Request) -> bool:
    """Whether a browser navigates here, rather than a script."""
    if request.query_params.get("format") == "json":
        return False
    accepted = request.headers.get("accept", "")
    return "text/html" in accepted


def is_download(segments: Sequence[str]) -> bool:
    return len(segments) == 3 and segments[2] in ("page", "rollouts.html", "audit.html")


def compute_answer(
    library: RunLibrary, segments: Sequence[str], parameters: QueryParams
) -> Response:
    """The answer to an address; a fault of a run's files is an answer too."""
    try:
        value = find_view(library, segments, parameters)
    except NotFoundError as fault:
        return json_response({"problem": first_line(fault)}, 404)
    except BadRequestError as fault:
        return json_response({"problem": first_line(fault)}, 400)
    except PoiseError as fault:
        return json_response({"problem": first_line(fault)}, 422)
    except duckdb.Error as fault:  # a segment was replaced, and removed, while it was searched
        reason = first_line(fault)[:300]
        return json_response({"problem": f"the search failed: {reason}. Try again"}, 503)
    # Files that another program wrote may hold anything; the other runs must stay usable.
    except (*UNEXPECTED_VALUE_ERRORS, OSError) as fault:
        reason = f"{type(fault).__name__}: {first_line(fault)}"
        return json_response({"problem": f"the run's files are damaged: {reason[:300]}"}, 422)
    return value if isinstance(value, Response) else json_response(value)


def find_view(library: RunLibrary, segments: Sequence[str], parameters: QueryParams) -> Any:
    """What an address shows, as a value for JSON, or a whole Response for a download."""
    match list(segments):
        case []:
            check_parameters(parameters, ())
            runs = [reader.summary() for reader in library.list_runs()]
            return {"runs": runs, "omissions": library.omissions}
        case ["overlay"]:
            check_parameters(parameters, ("run", "runs"))
            # Older addresses have runs=A,B, which a comma in a name breaks.
            names = parameters.getlist("run") or parameters.get("runs", "").split(",")
            names = [name for name in names if name]
            if not 1 <= len(names) <= MOST_OVERLAID:
                raise BadRequestError(f"overlay takes run=A&run=B: 1 to {MOST_OVERLAID} of them")
            return overlay_view([library.reader(name) for name in names])
        case ["runs", name, *rest]:
            return find_run_view(library, name, rest, parameters)
    raise NotFoundError("there is nothing at this address")


def find_run_view(
    library: RunLibrary, name: str, rest: Sequence[str], parameters: Mapping[str, str]
) -> Any:
    reader = library.reader(name)
    check_parameters(parameters, known_parameters(rest))
    match list(rest):
        case []:
            return run_view(reader)
        case ["iterations", iteration]:
            return iteration_view(reader, to_number(iteration))
        case ["iterations", iteration, "groups", group]:
            return group_view(reader, to_number(iteration), group)
        case ["rollouts"]:
            with library.search(reader) as search:
                return rollouts_view(reader, search, parameters)
        case ["rollouts.html"]:
            with library.search(reader) as search:
                page = rollouts_page(reader, search, parameters)
            return download(page, f"{name}-rollouts.html")
        case ["rollouts", iteration, group, index]:
            first_token = to_number(parameters.get("from") or "0")
            return rollout_view(reader, to_number(iteration), group, to_number(index), first_token)
        case ["rollouts", iteration, group, index, "tokens", position]:
            return token_view(
                reader, to_number(iteration), group, to_number(index), to_number(position)
            )
        case ["prompts"]:
            with library.search(reader) as search:
                return prompts_view(reader, search.table, parameters)
        case ["prompts", prompt_id]:
            with library.search(reader) as search:
                return prompt_view(reader, search.table, prompt_id)
        case ["diff"]:
            return diff_view(reader, parameters.get("left", ""), parameters.get("right", ""))
        case ["trace"]:
            with library.search(reader) as search:
                return trace_view(reader, search.table)
        case ["types"]:
            return types_view(reader)
        case ["audit"]:
            return audit_view(reader, library.audits, library.patience)
        case ["audit.html"]:
            page = audit_page(reader, library.audits, library.patience)
            return download(page, f"{name}-audit.html")
        case ["page"]:
            return download(run_page(reader), f"{name}.html")
    raise NotFoundError("there is nothing at this address")


def known_parameters(rest: Sequence[str]) -> Sequence[str]:
    """The names of the parameters that an address of a run takes."""
    match list(rest):
        case ["rollouts" | "rollouts.html"]:
            return ROLLOUT_PARAMETERS
        case ["rollouts", _, _, _]:
            return ("from",)
        case ["prompts"]:
            return PROMPT_PARAMETERS
        case ["diff"]:
            return ("left", "right")
    return ()


def check_parameters(parameters: Mapping[str, str], known: Sequence[str]) -> None:
    """Refuse a parameter that the address does not take: its answer would look filtered."""
    for name in parameters:
        if name not in (*known, *COMMON_PARAMETERS):
            choices = ", ".join((*known, *COMMON_PARAMETERS))
            raise BadRequestError(f"unknown parameter {name[:60]}: choose from {choices}")


def to_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise BadRequestError(f"{text[:60]} is not a number")
    return int(text)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(encode_answer(value), status, media_type=JSON_TYPE)


def download(page: str, file_name: str) -> Response:
    """A page to save; browsers do not show it."""
    readable = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_"
        for letter in file_name
    )
    return Response(
        page.encode("utf-8", "replace"),
        media_type="text/html; charset=utf-8",
        headers={
            "content-disposition": f'attachment; filename="{readable}"',
            "content-security-policy": DOWNLOAD_POLICY,
        },
    )


def asset_response(name: str) -> Response:
    """A file of the packages' assets/; only files that `find_assets` lists are served."""
    asset = find_assets().get(name)
    if asset is None:
        return json_response({"problem": "there is nothing at this address"}, 404)
    read_bytes, media_type = asset
    return Response(read_bytes(), media_type=media_type, headers={"cache-control": "no-cache"})


@cache
def find_assets() -> dict[str, tuple[Callable[[], bytes], str]]:
    """Name -> how to read it, and its type."""
    assets = {}
    # The report's scripts and styles are used here too; its HTML templates are not.
    for prefix, package in (("", "counterpoise.serve"), ("report/", "counterpoise.report")):
        for entry in (files(package) / "assets").iterdir():
            suffix = f".{entry.name.rpartition('.')[2]}"
            is_template = bool(prefix) and suffix == ".html"
            if entry.is_file() and suffix in ASSET_TYPES and not is_template:
                assets[f"{prefix}{entry.name}"] = (entry.read_bytes, ASSET_TYPES[suffix])
    return assets
