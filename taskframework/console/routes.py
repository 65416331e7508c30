"""Serves the files of the console. They are read once, contain no data of any task, and need no API key."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

router = APIRouter()

#: The path of the files; the page itself is at the root.
PREFIX = "/console/"
#: The page may load only files of this server, and no text may become a script, a style or a part of the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is served."""

    content: bytes
    media_type: str
    etag: str


# Plain functions run in threads, so that the first reading of the files does not block the event loop.
@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
def show_console(request: Request) -> Response:
    return _answer(request, "index.html")


@router.get(PREFIX + "{path:path}", include_in_schema=False)
def give_file(request: Request, path: str) -> Response:
    return _answer(request, path)


@cache
def files() -> dict[str, File]:
    """All files of the console by their path below `static`."""
    return dict(_below(resources.files("taskframework.console") / "static", ""))


def _below(folder: Traversable, prefix: str) -> list[tuple[str, File]]:
    found: list[tuple[str, File]] = []
    for entry in folder.iterdir():
        path = prefix + entry.name
        found += _below(entry, f"{path}/") if entry.is_dir() else [(path, _read(entry))]
    return found


def _read(entry: Traversable) -> File:
    content = entry.read_bytes()
    suffix = entry.name[entry.name.rfind(".") :]
    # Our own table comes first: on some machines the system's table gives scripts as plain text, which browsers refuse.
    media_type = _TYPES.get(suffix) or mimetypes.guess_type(entry.name)[0] or "text/plain"
    return File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _answer(request: Request, path: str) -> Response:
    """Answer with the file, or with 304 if the browser has it. It asks each time, so all files are of one release.

    Raises:
        HTTPException: if there is no such file.
    """
    if (file := files().get(path)) is None:
        raise HTTPException(404)
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
