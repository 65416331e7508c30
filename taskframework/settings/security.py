"""Settings that say who may use the HTTP interface, and how many requests are allowed."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from taskframework.settings.limits import BucketSettings
from taskframework.settings.section import ZERO, BoundedDuration, Section
from taskframework.urls import LOOPBACK_HOSTS

#: Algorithms with a public key. With a shared secret, a program that can check a token can also make a token.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"]


class SecuritySettings(Section):
    """Who may use the HTTP interface, and for what; see docs/security.md."""

    key_limit: BucketSettings | None = Field(
        default=None,
        description="Requests per second of each API key and each user of tokens, such as "
        "{rate: 20, burst_capacity: 40}; each process counts separately",
    )
    failure_limit: BucketSettings | None = Field(
        default=BucketSettings(rate=1, burst_capacity=20),
        description="Requests per second with a wrong key from each address; further ones are rejected without a check",
    )
    jwt_issuer: str | None = Field(default=None, min_length=1, max_length=500, description="The `iss` of tokens")
    jwt_audience: str | None = Field(
        default=None, min_length=1, max_length=500, description="Required value in the `aud` of tokens"
    )
    jwt_keys: str | None = Field(
        default=None,
        validate_default=True,
        min_length=1,
        max_length=500,
        description="Public keys of tokens (JWT): a PEM or JWKS file, or https://… of a JWKS; empty: no tokens",
    )
    jwt_algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256", "EdDSA"),
        min_length=1,
        description="Accepted signature algorithms of tokens; never those with a shared secret",
    )
    jwt_leeway: BoundedDuration = Field(
        default=timedelta(seconds=30),
        ge=ZERO,
        le=timedelta(minutes=10),
        description="Allowed difference to the clock of the token issuer",
    )
    jwt_principal_claim: str = Field(
        default="sub", min_length=1, max_length=100, description="The claim that names the user"
    )
    jwt_roles_claim: str = Field(
        default="roles",
        min_length=1,
        max_length=100,
        description="The claim with the roles, a list or a text with spaces; realm_access.roles is a nested claim",
    )
    jwt_users_claim: str = Field(
        default="may_act_for_users",
        min_length=1,
        max_length=100,
        description="The claim that, if true, allows a token to act for all users",
    )

    @field_validator("jwt_keys")
    @classmethod
    def _check_jwt_keys(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            if info.data.get("jwt_issuer") or info.data.get("jwt_audience"):
                raise ValueError("is needed beside jwt_issuer and jwt_audience: without keys no token is checked")
            return None
        if not (info.data.get("jwt_issuer") and info.data.get("jwt_audience")):
            raise ValueError("needs jwt_issuer and jwt_audience, otherwise tokens issued for others would be accepted")
        parts = urlsplit(value)
        if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS:
            raise ValueError("must be https://, otherwise somebody on the network could replace the keys")
        return value
