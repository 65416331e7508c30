"""The addresses of the interface: which methods they take, and which parameters."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel


def is_documented(app: FastAPI, path: str) -> bool:
    """Whether the OpenAPI document has this path."""
    return _template_of(path, _documented_routes(app)) is not None


def methods_at(app: FastAPI, path: str) -> list[str]:
    """All methods of a path; the router names only those of the first route that it reached.

    The pages that the OpenAPI document leaves out take GET. HEAD is never in the document.
    """
    documented = _documented_routes(app)
    template = _template_of(path, documented)
    methods = {method for route in documented if route.path_format == template for method in route.methods or ()}
    takes_head = any(route.path == path and "HEAD" in (route.methods or ()) for route in _routes(app))
    return [*(sorted(methods) or ["GET"]), *(["HEAD"] if takes_head else ())]


def query_names(route: object) -> list[str]:
    """The parameters that the query of a route may have."""
    if not isinstance(route, APIRoute):
        return []
    names: list[str] = []
    for field in route.dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += kind.model_fields
        else:
            names.append(field.alias)
    more = (route.openapi_extra or {}).get("parameters", ())
    return names + [parameter["name"] for parameter in more if parameter["in"] == "query"]


def _routes(app: FastAPI) -> list[APIRoute]:
    return [route for route in app.routes if isinstance(route, APIRoute)]


def _documented_routes(app: FastAPI) -> list[APIRoute]:
    return [route for route in _routes(app) if route.include_in_schema]


def _template_of(path: str, routes: Sequence[APIRoute]) -> str | None:
    """The path of the route that fits, such as `/tasks/{task_id}`; a route without parameters comes first."""
    if any(route.path_format == path for route in routes):
        return path
    return next((route.path_format for route in routes if route.path_regex.match(path)), None)
