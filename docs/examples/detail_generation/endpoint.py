"""A stand-in for an OpenAI-compatible endpoint: invents names slowly, and fails as often as a busy one does.

So the example runs without a key and without the internet: python endpoint.py --port 8010
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from itertools import product

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

_FIRST = "Amber Brack Cold Dun East Fern Grey Hollow Iron Kestrel Long Mill North Oak Raven Salt Thorn Winter"
_LAST = "barrow bridge church cliff dale fall field ford gate ham haven hill mere mouth stead wick wood worth"
_NAMES = [first + last for first, last in product(_FIRST.split(), _LAST.split())]
_CHARACTERS_A_TOKEN = 4


class Dies(Response):
    """Promises an answer and closes the connection before it has come."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})


class Endpoint:
    """Answers chat completions."""

    def __init__(
        self, names: int, fastest: float, slowest: float, busy: float, retry_after: float, dies: float
    ) -> None:
        self._names = _NAMES[:names]
        self._retry_after = f"{retry_after:g}"
        self._times = fastest, slowest
        self._busy, self._dies = busy, dies
        self._random = random.Random()

    async def complete(self, request: Request) -> Response:
        """`POST /v1/chat/completions`: as many lines `name | description` as the prompt says in its first number."""
        asked = await request.json()
        luck = self._random.random()
        if luck < self._busy:
            error = {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}
            return JSONResponse({"error": error}, 429, headers={"Retry-After": self._retry_after})
        await asyncio.sleep(self._random.uniform(*self._times))
        if luck < self._busy + self._dies:
            return Dies()
        text = self._invent(asked["messages"][-1]["content"])[: asked["max_tokens"] * _CHARACTERS_A_TOKEN]
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return JSONResponse({"object": "chat.completion", "model": asked["model"], "choices": [choice]})

    def _invent(self, prompt: str) -> str:
        count = re.search(r"\d+", prompt)
        unused = [name for name in self._names if name not in prompt] or self._names
        names = self._random.choices(unused, k=int(count[0]) if count else 1)
        # One in ten is nearly the same as another one, as with real models.
        near = [f"{name}s" if self._random.random() < 0.1 else name for name in names]
        return "\n".join(f"{name} | Somebody knows why it is called {name}." for name in near)


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8010)
    parser.add_argument("--names", type=int, default=len(_NAMES), help="how many it knows")
    parser.add_argument("--fastest", type=float, default=0.3, help="seconds that an answer takes at least")
    parser.add_argument("--slowest", type=float, default=0.8, help="seconds that it takes at most")
    parser.add_argument("--busy", type=float, default=0.05, help="share of calls that are answered 429")
    parser.add_argument("--retry-after", type=float, default=1, help="seconds after which to ask again then")
    parser.add_argument("--dies", type=float, default=0.01, help="share of calls that are never answered")
    options = vars(parser.parse_args())
    port = options.pop("port")
    app = Starlette(routes=[Route("/v1/chat/completions", Endpoint(**options).complete, methods=["POST"])])
    print(f"Listening on http://localhost:{port}/v1", flush=True)
    uvicorn.run(app, port=port, log_level="critical")


if __name__ == "__main__":
    main()
