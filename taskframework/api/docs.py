"""The OpenAPI document; and the page at /docs with every operation and every problem code, which loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from typing import Any, cast

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from taskframework.api.codes import CODES, TASK_CODES
from taskframework.api.openapi import ITEM_SCHEMA
from taskframework.api.problems import root_of, with_root_path

router = APIRouter()

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8886; border-radius: .4rem; }
section { border-top: 1px solid #8886; padding: .5rem 0; }
h3 code { font-size: 16px; }
table { border-collapse: collapse; }
td, th { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0; }
:target { background: #ff06; }
"""
#: The style is in the page itself, and the policy allows exactly this text and no other style.
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p>{description} For programs: <a href="{root}/openapi.json">openapi.json</a>.</p>
{operations}
<h2>Problems</h2>
<p>Every error is an <code>application/problem+json</code> document; programs decide by its <code>code</code>.</p>
<table><tr><th>Code</th><th>Status</th><th>Meaning</th><th>What to do</th></tr>{problems}</table>
<h2>Errors of tasks</h2>
<p>What is in <code>error.code</code> of a task.</p>
<table><tr><th>Code</th><th>Meaning</th><th>What to do</th></tr>{failures}</table>
<h2>Models</h2>
{models}
</body>
</html>
"""


# Plain functions run in threads: to make the document takes a quarter of a second.
@router.head("/openapi.json", include_in_schema=False)
@router.get("/openapi.json", include_in_schema=False)
def give_document(request: Request) -> Response:
    """Give the OpenAPI document, with the path at which the application is mounted."""
    document = cast(FastAPI, request.app).openapi()
    return JSONResponse(document | {"servers": [{"url": root}]} if (root := root_of(request)) else document)


@router.head("/docs", include_in_schema=False)
@router.get("/docs", include_in_schema=False)
def show_docs(request: Request) -> Response:
    """Show everything in the OpenAPI document, for people."""
    document = cast(FastAPI, request.app).openapi()
    return HTMLResponse(render_page(document, root_of(request)), headers={"Content-Security-Policy": _POLICY})


def render_page(document: dict[str, Any], root: str) -> str:
    """The OpenAPI document as HTML; `root` is the path at which the application is mounted."""
    return _PAGE.format(
        style=_STYLE,
        root=html.escape(root),
        title=html.escape(document["info"]["title"]),
        description=html.escape(document["info"]["description"]),
        operations="\n".join(
            _operation(root + path, method, operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        ),
        problems="\n".join(
            f'<tr id="{code}"><td><code>{code}</code></td><td>{status}</td><td>{html.escape(title)}</td>'
            f"<td>{_prose(with_root_path(root, advice))}</td></tr>"
            for code, (status, title, advice) in CODES.items()
        ),
        failures="\n".join(
            f"<tr><td><code>{code}</code></td><td>{_prose(meaning)}</td>"
            f"<td>{_prose(with_root_path(root, advice))}</td></tr>"
            for code, (meaning, advice) in TASK_CODES.items()
        ),
        models="\n".join(
            f'<details id="model-{html.escape(name)}"><summary><code>{html.escape(name)}</code></summary>'
            f"<pre>{html.escape(json.dumps(schema, indent=2))}</pre></details>"
            for name, schema in sorted(document["components"]["schemas"].items())
        ),
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = [
        _row(f"{parameter['name']} ({parameter['in']})", parameter.get("description", ""), parameter["schema"])
        for parameter in operation.get("parameters", ())
    ]
    if (body := operation.get("requestBody")) is not None:
        rows.append(_row("body", "", body["content"]["application/json"]["schema"]))
    for status, response in operation["responses"].items():
        content: dict[str, Any] = next(iter(response.get("content", {}).values()), {})
        rows.append(_row(f"→ {status}", response["description"], content.get("schema") or content.get(ITEM_SCHEMA, {})))
    return (
        f'<section id="{html.escape(operation["operationId"])}">'
        f"<h3><code>{method.upper()} {html.escape(path)}</code> {html.escape(operation['summary'])}</h3>"
        f"<p>{_prose(operation.get('description', ''))}</p><table>{''.join(rows)}</table></section>"
    )


def _row(name: str, meaning: str, schema: dict[str, Any]) -> str:
    return f"<tr><td><code>{html.escape(name)}</code></td><td>{_prose(meaning)} {_model(schema)}</td></tr>"


def _prose(text: str) -> str:
    """Escape a text, and mark its `code`."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def _model(schema: dict[str, Any]) -> str:
    """A link to the model, or the type in parentheses."""
    if "$ref" in schema:
        name = html.escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#model-{name}">{name}</a>'
    return f"({html.escape(str(schema['type']))})" if "type" in schema else ""
