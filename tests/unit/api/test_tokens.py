"""Tokens of an issuer, beside API keys."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from taskframework.errors import ConfigurationError
from taskframework.model.keys import Role
from taskframework.operations.keys import TokenKeysUnavailableError
from taskframework.operations.token_keys import TokenKeys, require_readable
from taskframework.operations.tokens import TokenRules, Tokens
from taskframework.settings import SecuritySettings
from taskframework.testing import eventually
from tests.support.certificates import Authority
from tests.unit.api.conftest import TASKS, Api, OpenApi, problem_of

_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_EC = ec.generate_private_key(ec.SECP256R1())
_ED = ed25519.Ed25519PrivateKey.generate()
_STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_SHORT = rsa.generate_private_key(public_exponent=65537, key_size=1024)
_PEM = _RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _jwk(key: Any, name: str, **more: Any) -> dict[str, Any]:
    algorithms: dict[Any, Any] = {_RSA: jwt.algorithms.RSAAlgorithm, _EC: jwt.algorithms.ECAlgorithm}
    algorithm = algorithms.get(
        key, jwt.algorithms.RSAAlgorithm if key in (_STRANGER, _SHORT) else jwt.algorithms.OKPAlgorithm
    )
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": name, **more}


_JWKS = {
    "keys": [
        *(_jwk(_RSA, "rsa"), _jwk(_EC, "ec", alg="ES256", use="sig"), _jwk(_ED, "ed"), {"kty": "new", "kid": "new"}),
        *({"kty": "RSA", "kid": "odd", "alg": ["RS256"]}, {"kty": "RSA", "kid": "odd", "n": 5, "e": "AQAB"}),
        {"kty": "RSA", "kid": "bad", "alg": "none", "n": "AQAB", "e": "AQAB"},
        *(
            _jwk(_STRANGER, "enc", use="enc"),
            {"kty": "oct", "kid": "secret", "k": base64.urlsafe_b64encode(b"s").decode()},
        ),
    ]
}


def _claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    whole = {
        "iss": "https://id.example",
        "aud": "tasks",
        "sub": "ada",
        "exp": now + 600,
        "roles": ["submitter"],
        **more,
    }
    return {name: value for name, value in whole.items() if value is not None}


def _token(key: Any = _RSA, algorithm: str = "RS256", kid: str | None = "rsa", **claims: Any) -> str:
    return jwt.encode(_claims(**claims), key, algorithm, {} if kid is None else {"kid": kid})


def _security(tmp_path: Path, content: bytes | None = None, **more: Any) -> dict[str, Any]:
    file = tmp_path / "keys"
    file.write_bytes(orjson.dumps(_JWKS) if content is None else content)
    return {"jwt_keys": str(file), "jwt_issuer": "https://id.example", "jwt_audience": "tasks"} | more


async def _me(api: Api, token: str) -> httpx.Response:
    return await api.get("/api/v1/me", headers={"Authorization": f"Bearer {token}"})


async def test_a_token_says_who_calls(open_api: OpenApi, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "taskframework.operations.tokens")
    async with open_api(security=_security(tmp_path)) as api:
        problem_of(await api.get("/api/v1/me"), 401, "unauthorized")
        ends = int(time.time()) + 100
        for token in (
            *(_token(exp=ends), _token(_EC, "ES256", "ec", exp=ends), _token(_ED, "EdDSA", "ed", exp=ends)),
            *(_token(exp=ends, roles="openid submitter"), _token(exp=ends, aud=["others", "tasks"])),
        ):
            me = (await _me(api, token)).json()
            assert (me["principal"], me["roles"], me["prefix"]) == ("ada", ["submitter"], None)
            assert not me["may_act_for_users"]
            assert me["expires_at"] is not None
        assert (await _me(api, _token(may_act_for_users=True))).json()["may_act_for_users"]
        assert not (await _me(api, _token(may_act_for_users="yes"))).json()["may_act_for_users"]

        mine = {"Authorization": f"Bearer {_token()}"}
        body = {"task_type": "count-words", "parameters": {"text": "one"}}
        task = (await api.post(TASKS, json=body, headers=mine)).json()
        assert task["user_id"] == "ada"
        other = {"Authorization": f"Bearer {_token(sub='eve')}"}
        problem_of(await api.get(f"{TASKS}/{task['task_id']}", headers=other), 404, "task_not_found")
        problem_of(await api.get("/api/v1/admin/queues", headers=mine), 403, "forbidden")
        unknown_roles = {"Authorization": f"Bearer {_token(roles=['root', 7])}"}
        assert "no role" in problem_of(await api.get(TASKS, headers=unknown_roles), 403, "forbidden")["detail"]
        assert "a token of ada has no rights: its claim roles contains no known role" in caplog.text
        _, key = await api.framework.services.keys.create("bob", [Role.READER], by="test")
        assert (await _me(api, key)).json()["principal"] == "bob", "keys count beside tokens"


async def test_a_token_that_the_issuer_did_not_make_for_this_api_is_unauthorized(
    open_api: OpenApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taskframework.operations.tokens")
    now = int(time.time())
    security = _security(tmp_path) | {"failure_limit": None}
    whole = _token()
    head, body, signature = whole.split(".")
    forged = f"{head}.{base64.urlsafe_b64encode(orjson.dumps(_claims(sub='root'))).decode().rstrip('=')}.{signature}"
    refused = {
        "over": _token(exp=now - 31),
        "of another issuer": _token(iss="https://evil.example"),
        "without an issuer": _token(iss=None),
        "for others": _token(aud="others"),
        "for nobody": _token(aud=None),
        "without an end": _token(exp=None),
        "not yet": _token(nbf=now + 100),
        "of a stranger": _token(_STRANGER),
        "by the key for encryption": _token(_STRANGER, kid="enc"),
        "by an unknown key": _token(kid="unknown"),
        "by a key that cannot be used": _token(kid="bad"),
        "without a key's name": _token(kid=None),
        "by an algorithm that is not allowed": _token(algorithm="RS512"),
        "without a signature": jwt.encode(_claims(), "", "none", {"kid": "rsa"}),
        "with the public key as the secret": _signed_by_secret(_PEM, "rsa"),
        "with a secret of the issuer": _signed_by_secret(b"s", "secret"),
        "changed": forged,
        "with the algorithm of another key": _token(_RSA, "RS256", "ec"),
        "without a user": _token(sub=None),
        "with a user that is none": _token(sub="a\nb"),
        "with the user of commands": _token(sub="cli:root"),
        "with a number as user": jwt.encode(_claims(sub="1") | {"exp": "soon"}, _RSA, "RS256", {"kid": "rsa"}),
        "long": _token(more="x" * 10_000),
        "with an end in milliseconds": _token(exp=now * 1000),
        "with an end that no clock shows": _token(exp=10**30),
        "with an end that the system cannot count to": _token(exp=10**18),
        "with the last end there is": _token(exp=253402300799),
        "nothing": "..",
        "half": f"{head}.{body}",
        "no JSON": "e30.e30.e30",
    }
    async with open_api(security=security) as api:
        assert (await _me(api, _token(exp=now - 20))).status_code == 200, "the issuer's clock may be off by 30 s"
        for why, token in refused.items():
            answer = await _me(api, token)
            assert answer.status_code == 401, why
            assert token not in answer.text + caplog.text
    told = [record.message for record in caplog.records if record.name == "taskframework.operations.tokens"]
    assert {
        "a token was refused: its aud is not security.jwt_audience, 'tasks'",
        "a token was refused: its iss is not security.jwt_issuer, 'https://id.example'",
        "a token was refused: Signature has expired",
        "a token was refused: its claim sub is not a user name",
        "a token was refused: its algorithm is not in security.jwt_algorithms",
        "a token was refused: it has no key id (kid), and security.jwt_keys has several keys",
        'a token was refused: Token is missing the "aud" claim',
        'a token was refused: Token is missing the "exp" claim',
    } <= set(told)
    assert len(told) == len(set(told)), "of each kind once, however many come"


def _signed_by_secret(secret: bytes, kid: str) -> str:
    """PyJWT refuses to make such a token."""
    parts = [orjson.dumps({"alg": "HS256", "typ": "JWT", "kid": kid}), orjson.dumps(_claims())]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = base64.urlsafe_b64encode(hmac.digest(secret, signed, hashlib.sha256)).rstrip(b"=")
    return (signed + b"." + signature).decode()


async def test_a_token_is_checked_with_the_key_of_a_pem_file(open_api: OpenApi, tmp_path: Path) -> None:
    claims = {"jwt_roles_claim": "realm_access.roles", "jwt_principal_claim": "email", "jwt_users_claim": "a.b"}
    async with open_api(security=_security(tmp_path, _PEM, **claims)) as api:
        token = _token(kid="any", email="ada@example.org", realm_access={"roles": ["admin"]}, a={"b": True}, roles=[])
        me = (await _me(api, token)).json()
        assert (me["principal"], me["roles"], me["may_act_for_users"]) == ("ada@example.org", ["admin"], True)
        assert (await _me(api, _token(_STRANGER))).status_code == 401


async def test_a_stream_ends_with_its_token(open_api: OpenApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskframework.api.event_streams.REMEMBERED_SECONDS", 0.01)
    async with open_api(security=_security(tmp_path, jwt_leeway="0s")) as api:
        token = _token(exp=int(time.time()) + 2)
        following = asyncio.create_task(api.get("/api/v1/events", headers={"Authorization": f"Bearer {token}"}))
        await eventually(lambda: api.feed.watcher_count)
        async with asyncio.timeout(10):
            assert (await following).status_code == 200, "it ended, as streams do"


async def test_all_tokens_of_a_user_share_one_request_limit(open_api: OpenApi, tmp_path: Path) -> None:
    security = _security(tmp_path, key_limit={"rate": 0.001, "burst_capacity": 2})
    async with open_api(security=security) as api:
        statuses = [(await _me(api, _token(n=n))).status_code for n in range(3)]
        assert statuses == [200, 200, 429]
        assert (await _me(api, _token(sub="eve"))).status_code == 200


class _Issuer:
    """Keys that are asked for, with a clock."""

    def __init__(self) -> None:
        self.now, self.asked = 1000.0, 0
        self.keys: list[dict[str, Any]] = [_jwk(_RSA, "first")]
        self.is_away = False
        self.is_slow = False

    async def load(self) -> bytes:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise httpx.ConnectError("nobody there")
        if self.is_slow:
            await asyncio.sleep(60)
        return orjson.dumps({"keys": self.keys})

    def found(self) -> TokenKeys:
        return TokenKeys("https://user:planted@id.example/keys", self.load, lambda: self.now)


async def test_a_new_key_is_asked_for_but_not_for_each_request(caplog: pytest.LogCaptureFixture) -> None:
    issuer = _Issuer()
    keys = issuer.found()
    assert all(await asyncio.gather(*(keys.find("first") for _ in range(10))))
    assert issuer.asked == 1, "those that come at once wait for one answer"
    issuer.keys = [_jwk(_EC, "second")]
    assert await keys.find("second") is None, "it looked just now"
    issuer.now += 10
    assert await keys.find("second", may_ask=False) is None
    assert await keys.find("second") is not None
    assert await keys.find("first") is None, "the issuer has taken it back"
    assert issuer.asked == 2
    issuer.now += 300
    issuer.is_away = True
    assert await keys.find("second") is not None, "while the issuer is away its keys stay"
    await eventually(lambda: "nobody there" in caplog.text)
    with pytest.raises(TokenKeysUnavailableError, match="could not be read again"):
        await keys.find("third")  # its issuer may have changed its keys, and cannot be asked
    assert await keys.find(None) is not None, "it is the only key"
    issuer.now, issuer.is_away, issuer.keys = issuer.now + 300, False, []
    assert await keys.find("second") is not None
    await eventually(lambda: "there is no usable public key" in caplog.text)
    assert await keys.find("second") is not None, "an answer without keys takes none back"
    assert "planted" not in caplog.text
    with pytest.raises(TokenKeysUnavailableError):
        await issuer.found().find("second")


_RULES = TokenRules("https://id.example", "tasks", ["RS256"], timedelta(0), "sub", "roles", "acts")


def _without_id(key: Any) -> dict[str, Any]:
    jwk = _jwk(key, "")
    del jwk["kid"]
    return jwk


@pytest.mark.parametrize("kid", [None, "named"])
async def test_a_key_without_id_that_the_issuer_replaced_is_read_again(kid: str | None) -> None:
    issuer, newer = _Issuer(), _STRANGER
    issuer.keys = [_without_id(_RSA)]
    tokens = Tokens(_RULES, issuer.found(), lambda: issuer.now)
    assert await tokens.find(_token(_RSA, kid=kid)) is not None
    issuer.keys = [_without_id(newer)]
    assert await tokens.find(_token(newer, kid=kid)) is None, "it looked just now"
    issuer.now += 10
    assert await tokens.find(_token(newer, kid=kid), may_ask=False) is None
    found = await asyncio.gather(*(tokens.find(_token(newer, kid=kid)) for _ in range(5)))
    assert [caller.principal for caller in found if caller is not None] == ["ada"] * 5
    assert await tokens.find(_token(_RSA, kid=kid)) is None, "the issuer has taken it back"
    assert issuer.asked == 2


async def test_a_wrong_signature_does_not_make_the_keys_be_read_for_each_request() -> None:
    issuer = _Issuer()
    issuer.keys = [_without_id(_RSA)]
    tokens = Tokens(_RULES, issuer.found(), lambda: issuer.now)
    for _ in range(5):
        assert await tokens.find(_token(_STRANGER, kid=None)) is None
    assert issuer.asked == 1
    issuer.now += 10
    assert await tokens.find(_token(_STRANGER, kid=None)) is None
    assert await tokens.find(_token(_RSA, kid=None)) is not None
    issuer.keys = [_jwk(_RSA, "first")]
    issuer.now += 300
    assert await tokens.find(_token(_RSA, kid="first")) is not None
    await eventually(lambda: issuer.asked == 3)
    issuer.now += 10
    assert await tokens.find(_token(_STRANGER, kid="first")) is None, "the id says that it is the right key"
    assert issuer.asked == 3


async def test_an_rsa_key_that_others_can_break_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    issuer = _Issuer()
    issuer.keys += [_jwk(_SHORT, "short"), _jwk(_SHORT, "", kid=["odd"])]
    keys = issuer.found()
    for _ in range(3):
        assert await keys.find("short") is None
        assert await keys.find("first") is not None
        issuer.now += 300
    assert issuer.asked >= 2
    assert caplog.text.count("the key 'short' for tokens at") == 1
    assert "/keys is not used: RSA with 1024 bits is too short, it needs 2048" in caplog.text
    assert "planted" not in caplog.text


def test_a_file_with_such_a_key_alone_is_noticed_at_the_start(tmp_path: Path) -> None:
    (file := tmp_path / "keys").write_bytes(
        _SHORT.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(ConfigurationError, match="no usable public key") as refused:
        require_readable(str(file))
    assert refused.value.hint == "Add a public key; one of RSA needs 2,048 bits or more."


async def test_a_slow_issuer_holds_up_no_known_key_and_others_not_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = _Issuer()
    keys = issuer.found()
    await keys.find("first")
    monkeypatch.setattr("taskframework.operations.token_keys._TIMEOUT_SECONDS", 0.2)
    issuer.is_slow, issuer.now = True, issuer.now + 300
    async with asyncio.timeout(0.1):
        assert await keys.find("first") is not None, "it is known, and what is new comes later"
    async with asyncio.timeout(5):
        replies = await asyncio.gather(*(keys.find(name) for name in "abc"), return_exceptions=True)
    assert [type(reply) for reply in replies] == [TokenKeysUnavailableError] * 3, "the issuer may know these keys"
    assert issuer.asked == 2, "all wait for the read that was begun for the known key"
    assert "no whole answer within 0.2 s" in caplog.text
    issuer.is_slow, issuer.now, issuer.keys = False, issuer.now + 300, [_jwk(_EC, "second")]
    assert await keys.find("first") is not None
    await eventually(lambda: issuer.asked == 3)
    assert await keys.find("first") is None, "the issuer has taken it back"
    assert await keys.find("second") is not None


async def test_an_issuer_that_sends_byte_after_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskframework.operations.token_keys._TIMEOUT_SECONDS", 0.2)
    given_up = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # on a busy machine it is given up before it is asked
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b" ")
                await asyncio.sleep(0.02)
        writer.close()
        given_up.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server, asyncio.timeout(30):
        place = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
        with pytest.raises(TokenKeysUnavailableError):
            await TokenKeys.at(place).find("first")
        await given_up.wait()


async def test_without_any_keys_a_token_can_wait(open_api: OpenApi, tmp_path: Path) -> None:
    away = "http://127.0.0.1:9/keys"  # the port of "discard", where nobody listens
    async with open_api(security=_security(tmp_path) | {"jwt_keys": away}) as api:
        answer = await _me(api, _token())
        problem_of(answer, 503, "token_keys_unavailable")
        assert answer.headers["retry-after"]


@asynccontextmanager
async def _issuing(
    content: Callable[[], bytes], tls: ssl.SSLContext | None = None, heard: list[bytes] | None = None
) -> AsyncIterator[str]:
    """Serve keys; give the address without its scheme. `heard` gets what was asked."""
    heard = [] if heard is None else heard

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(content())
        writer.write(head + content())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"


async def test_token_keys_are_fetched_over_http_without_logging_the_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    content, heard = orjson.dumps(_JWKS), list[bytes]()
    async with _issuing(lambda: content, heard=heard) as address:
        keys = TokenKeys.at(f"http://ada:planted@{address}")
        assert (await keys.find("ec")) is not None
        assert base64.b64encode(b"ada:planted") in heard[0]
        assert "planted" not in caplog.text
        assert (await keys.find("secret")) is None
        content = b" " * 300_000
        with pytest.raises(TokenKeysUnavailableError):
            await TokenKeys.at(f"http://{address}").find("ec")


async def test_keys_over_https_of_an_issuer_whose_certificate_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    certificate, private, _ = authority.signed("issuer")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, private)
    jwks = {"keys": [_jwk(_RSA, "first")]}
    async with _issuing(lambda: orjson.dumps(jwks), tls) as address:
        with pytest.raises(TokenKeysUnavailableError):
            await TokenKeys.at(f"https://ada:planted@{address}").find("first")
        assert "certificate verify failed" in caplog.text
        assert "planted" not in caplog.text
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        monkeypatch.setattr("taskframework.operations.token_keys._MIN_READ_INTERVAL_SECONDS", 0.0)
        keys = TokenKeys.at(f"https://{address}")
        assert await keys.find("first") is not None
        jwks["keys"] = [_jwk(_EC, "second")]
        assert await keys.find("second") is not None, "a key that is not known makes it look again"
        assert await keys.find("first") is None, "the issuer has taken it back"


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"keys": []}', b"-----BEGIN PUBLIC KEY-----\nx", b'{"keys": [{"kty": "oct", "k": "cw"}]}'],
)
def test_a_file_without_public_keys_is_noticed_at_the_start(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match="jwt_keys"):
        require_readable(str(file))
    file.write_bytes(_PEM)
    require_readable(str(file))
    file.write_bytes(_RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        require_readable(str(file))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jwt_keys": "keys.pem"}, "needs jwt_issuer and jwt_audience"),
        ({"jwt_keys": "http://id.example/keys", "jwt_issuer": "i", "jwt_audience": "a"}, "must be https://"),
        ({"jwt_algorithms": ["HS256"]}, "accepted"),
        ({"jwt_algorithms": ["none"]}, "accepted"),
        ({"jwt_algorithms": []}, "accepted"),
        ({"jwt_issuer": "i", "jwt_audience": "a"}, "without keys no token is checked"),
        ({"jwt_audience": "a"}, "without keys no token is checked"),
    ],
)
def test_settings_under_which_tokens_could_be_forged_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        SecuritySettings.model_validate(given)
