"""Servers that somebody else runs, named by TASKFRAMEWORK_TEST_RABBITMQ_URL and TASKFRAMEWORK_TEST_MONGODB_URL."""

from __future__ import annotations

import os
import secrets
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx
from pymongo import MongoClient

from tests.support.process import ServerUnavailable


class ExternalRabbit:
    """A broker of others: gives every test a virtual host through the management API."""

    def __init__(self, url: str) -> None:
        """Take the broker at `url`.

        Its management API is expected on port 15672 of the same host, or where
        TASKFRAMEWORK_TEST_RABBITMQ_MANAGEMENT_URL says.
        """
        self._parts = urlsplit(url)
        self._user, self._password = unquote(self._parts.username or "guest"), unquote(self._parts.password or "guest")
        self._management = os.environ.get(
            "TASKFRAMEWORK_TEST_RABBITMQ_MANAGEMENT_URL", f"http://{self._parts.hostname}:15672"
        ).rstrip("/")

    def url_of(self, vhost: str) -> str:
        return urlunsplit(self._parts._replace(path=f"/{quote(vhost, safe='')}"))

    def new_vhost(self) -> str:
        """Create a virtual host with all rights for the URL's user and return its name."""
        name = f"test-{secrets.token_hex(6)}"
        self._call("PUT", f"vhosts/{name}")
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        self._call("PUT", f"permissions/{name}/{quote(self._user, safe='')}", rights)
        return name

    def delete_vhost(self, name: str) -> None:
        self._call("DELETE", f"vhosts/{name}")

    def ensure_running(self) -> None:
        """Nothing to repair: tests do not stop servers of others."""

    def _call(self, method: str, path: str, body: dict[str, str] | None = None) -> None:
        try:
            answer = httpx.request(
                method, f"{self._management}/api/{path}", json=body, auth=(self._user, self._password), timeout=30
            )
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise ServerUnavailable(
                f"RabbitMQ's management API at {self._management} is needed to give every test its own virtual host: "
                f"{error}; set TASKFRAMEWORK_TEST_RABBITMQ_MANAGEMENT_URL, or unset TASKFRAMEWORK_TEST_RABBITMQ_URL "
                "to use a private node"
            ) from None


class ExternalMongo:
    """A MongoDB server of others: gives every test a database."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url_of(self, database: str) -> str:
        # The credentials' database was implied by the path that is replaced here.
        parts = urlsplit(self._url)
        query = parts.query
        if parts.username and "authSource=" not in query:
            query = f"{query}&authSource={parts.path.strip('/') or 'admin'}".lstrip("&")
        return urlunsplit(parts._replace(path=f"/{database}", query=query))

    def drop_database(self, name: str) -> None:
        client: MongoClient[dict[str, Any]] = MongoClient(self._url, serverSelectionTimeoutMS=10_000)
        with client:
            client.drop_database(name)

    def ensure_running(self) -> None:
        """Nothing to repair: tests do not stop servers of others."""
