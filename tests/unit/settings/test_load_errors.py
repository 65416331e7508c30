"""Each wrong configuration ends with an error that names the key, the place and the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskframework.errors import ConfigurationError
from taskframework.settings import load_settings
from tests.unit.settings.conftest import Load, Refusal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("broker:\n  delya: auto\n", "broker.delya (application.yml:2) is not a setting. Did you mean broker.delay?"),
        (
            "brokre:\n  url: embedded://\n",
            "brokre (application.yml:1) is not a setting. Did you mean broker?",
        ),
        (
            "borker:\n  url: embedded://\n",
            "borker (application.yml:1) is not a setting. Did you mean worker or broker?",
        ),
        ("port: 8000\n", "port (application.yml:1) is not a setting. Did you mean api.port?"),
        (
            "broker:\n  xyz: 1\n",
            "broker.xyz (application.yml:2) is not a setting. The section broker has: url, ca_file, ",
        ),
        ("nonsense: 1\n", "nonsense (application.yml:1) is not a setting. The sections are: app, broker, store, api,"),
        (
            "worker:\n  heartbeat: 5s\n",
            "worker.heartbeat (application.yml:2) is not a setting. It is always a third of ",
        ),
        ("broker.url: amqp://host\n", "is not a setting. Write it as a group: broker: and below it, indented, url:"),
    ],
)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest(refusal: Refusal, text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TASKFRAMEWORK_BROKER_URL", "is not a setting. Did you mean TASKFRAMEWORK_BROKER__URL?"),
        ("TASKFRAMEWORK_WORKER__CONCURENCY", "is not a setting. Did you mean TASKFRAMEWORK_WORKER__CONCURRENCY?"),
        ("TASKFRAMEWORK_API_PORT", "is not a setting. Did you mean TASKFRAMEWORK_API__PORT?"),
        ("TASKFRAMEWORK_FOO", "is not a setting. Variables are named TASKFRAMEWORK_<SECTION>__<KEY>."),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest(refusal: Refusal, name: str, message: str) -> None:
    assert f"environment {name} {message}" in refusal(environ={name: "1"})


def test_an_address_without_http_is_named(refusal: Refusal) -> None:
    message = refusal(environ={"TASKFRAMEWORK_API": "localhost:8000"})
    assert "'localhost:8000': neither an address such as http://localhost:8000 nor the section in braces" in message


def test_an_unknown_override_is_named(refusal: Refusal) -> None:
    message = refusal(overrides={"api.prot": 1})
    assert "api.prot (command line) is not a setting. Did you mean api.port?" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "worker: {concurrency: many}",
            "worker.concurrency (application.yml:1) is 'many'; accepted: whole number from 1 to",
        ),
        ("worker: {concurrency: 0}", "is 0; accepted: whole number from 1 to 100000"),
        (
            "worker: {prefetch: 0}",
            "worker.prefetch (application.yml:1) is 0; accepted: auto or whole number from 1 to 65535",
        ),
        ("worker: {lease: 30}", "worker.lease (application.yml:1) is 30; it needs a unit: 30s for seconds"),
        ("worker: {lease: 1ms}", "accepted: duration, 100ms or more"),
        ("worker: {lease: 9999999d}", "worker.lease (application.yml:1) is '9999999d'; it must be at most 36,600 days"),
        ("worker: {lease: soon}", "is 'soon'; it must be a duration such as 30s, 5m, 1h30m, 250ms or PT30S"),
        ("worker: {http_port: 70000}", "is 70000; accepted: whole number from 0 to 65535, or empty"),
        ("api: {port: -1}", "is -1; accepted: whole number from 0 to 65535"),
        ("api: {port: null}", "api.port (application.yml:1) is empty; accepted: whole number"),
        ("api: {max_body: 1 byte}", "is '1 byte'; accepted: size such as 1MiB, 1024 or more."),
        ("retry: {jitter_factor: 1.5}", "is 1.5; accepted: number from 0 to 1"),
        ("retry: {backoff_factor: .inf}", "is inf; accepted: number from 1 to 100"),
        ("retry: {backoff_factor: .nan}", "is nan; accepted: number from 1 to 100"),
        (
            "retry: {initial_delay: 2h}",
            "retry.max_delay (default) is '1h'; it must not be less than initial_delay, which",
        ),
        (
            "recovery: {redispatch_max: 1s}",
            "recovery.redispatch_max (application.yml:1) is '1s'; it must not be less than re",
        ),
        ("broker: {delay: maybe}", "is 'maybe'; accepted: auto | plugin | store"),
        ("broker: {prefix: 5}", "is 5; accepted: text"),
        ("broker: {prefix: Tasks!}", "is 'Tasks!'; accepted: text matching `^[a-z0-9][a-z0-9._-]*$`, 50 "),
        (
            "broker: {url: redis://host}",
            "broker.url (application.yml:1) must be embedded://, amqp://user:password@host",
        ),
        (
            "store: {url: mongodb://host}",
            "store.url (application.yml:1) needs one database in its path; write mongodb://host/",
        ),
        ("api: {host: ''}", "api.host (application.yml:1) is ''; accepted: text, not empty"),
        ("app: {modules: one.tasks}", "is 'one.tasks'; accepted: list such as [one, two]"),
        ("app: {modules: [1]}", "app.modules (application.yml:1) is 1; accepted: list such as [one, two]"),
        ("observability: {log_level: debug}", "is 'debug'; accepted: DEBUG | INFO | WARNING | ERROR | CRITICAL"),
        (
            "rate_limiter: {providers: {openai: {rate: 0}}}",
            "rate_limiter.providers.openai.rate (application.yml:1) is 0; accepted: number from 1e-05 to 1000000.",
        ),
        (
            "rate_limiter: {default: {burst_capacity: 2}}",
            "rate_limiter.default.rate (application.yml:1) is missing; accepted: number from 1e-05 to 1000000.",
        ),
        (
            "rate_limiter: {providers: {openai: {rate: 1, burst: 2}}}",
            "rate_limiter.providers.openai.burst (application.yml:1) is not a setting. Did you mean "
            "rate_limiter.providers.openai.burst_capacity?",
        ),
        (
            "rate_limiter: {providers: {openai: 5}}",
            "rate_limiter.providers.openai (application.yml:1) is 5; accepted: group of rate and burst_capacity.",
        ),
        (
            "rate_limiter: {providers: {default: {rate: 1}}}",
            "it must not name a bucket 'default': use lower-case letters, digits, '.', '_' and '-', and for default",
        ),
        ("rate_limiter: {redis_url: localhost}", "is 'localhost'; accepted: text matching `^(rediss?|unix)://"),
        ("store: sqlite:///a.db", "store (application.yml:1) is a group; write its keys below it, indented"),
        ("api:\n  port: 1\n  port: 2\n", "api.port (application.yml:3) is given twice, first in line 2. Keep one"),
        (
            "api: {host: 2026-02-30}",
            "api.host (application.yml:1) is not a valid YAML value. If it is text, put it in quotes",
        ),
        ("- broker", "application.yml must consist of sections, such as broker: with url: below it"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_accepted(refusal: Refusal, text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "worker: {concurrency: true}",
            "worker.concurrency (application.yml:1) is True; it must be a number, not true",
        ),
        ("retry: {max_attempts: yes}", "retry.max_attempts (application.yml:1) is True; it must be a number"),
        ("retry: {backoff_factor: off}", "it must be a number, not false; YAML reads yes, no, on and off as true or"),
        (
            "worker: {processes: true, prefetch: yes}",
            "worker.prefetch (application.yml:1) is True; it must be a number",
        ),
        (
            "concurrency: {limits: {resize: yes}}",
            "concurrency.limits.resize (application.yml:1) is True; it must be a number, not true; YAML reads yes,",
        ),
        ("api: {port: 1:30}", "api.port (application.yml:1) is not a valid YAML value"),
        ("worker: {concurrency: 010}", "worker.concurrency (application.yml:1) is not a valid YAML value"),
        ("worker: {concurrency: 0x10}", "worker.concurrency (application.yml:1) is not a valid YAML value"),
        ("schedules: {nightly: {parameters: {at: [1, 1:30]}}}", "(application.yml:1) is not a valid YAML value"),
    ],
)
def test_a_value_that_yaml_reads_as_another_number_is_refused(refusal: Refusal, text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "rate_limiter:\n  providers:\n    openai: {rate: 1}\n    openai: {rate: 2}\n",
            "rate_limiter.providers.openai (application.yml:4) is given twice, first in line 3. Keep one of the two.",
        ),
        (
            "schedules:\n  nightly:\n    parameters: [{cron: 1,\n      cron: 2}]\n",
            "schedules.nightly.parameters.cron (application.yml:4) is given twice, first in line 3.",
        ),
        ("api: {}\napi: {port: 1}\n", "api (application.yml:2) is given twice, first in line 1."),
    ],
)
def test_a_key_that_is_given_twice_is_refused_at_any_depth(refusal: Refusal, text: str, message: str) -> None:
    assert message in refusal(text)


def test_a_key_that_is_given_twice_in_a_variable_is_refused(refusal: Refusal) -> None:
    message = refusal(environ={"TASKFRAMEWORK_CONCURRENCY__LIMITS": "{a: 1, a: 2}"})
    assert "concurrency.limits.a (environment TASKFRAMEWORK_CONCURRENCY__LIMITS) is given twice. Keep one" in message


def test_a_mapping_that_changes_a_key_of_another_gives_no_key_twice(load: Load) -> None:
    text = "schedules:\n  a: &a {cron: 1, task_type: x}\n  b: &b {<<: *a, cron: 2}\n  c: *b\n"
    named = load(text).settings.schedules.named
    assert named["b"] == named["c"] == {"cron": 2, "task_type": "x"}


def test_a_mapping_may_begin_with_several_others(load: Load) -> None:
    text = "schedules:\n  a: &a {cron: 1}\n  b: &b {task_type: x}\n  c: {<<: *a, <<: *b}\n"
    assert load(text).settings.schedules.named["c"] == {"cron": 1, "task_type": "x"}


def test_numbers_are_read_as_people_write_them(load: Load) -> None:
    settings = load(
        "retry: {max_attempts: 7, backoff_factor: 1.5, jitter_factor: 0.05}\nworker: {concurrency: 1_0}"
    ).settings
    retry = settings.retry
    assert (retry.max_attempts, retry.backoff_factor, retry.jitter_factor) == (7, 1.5, 0.05)
    assert settings.worker.concurrency == 10


def test_a_value_that_fits_none_of_several_types_is_one_problem(refusal: Refusal) -> None:
    assert refusal("worker: {prefetch: 0}").startswith("The configuration is wrong: worker.prefetch")


def test_a_wrong_variable_is_named(refusal: Refusal) -> None:
    message = refusal(environ={"TASKFRAMEWORK_API__PORT": "http", "TASKFRAMEWORK_APP__MODULES": "[one"})
    assert "api.port (environment TASKFRAMEWORK_API__PORT) is 'http'; accepted: whole number from 0" in message
    assert "app.modules (environment TASKFRAMEWORK_APP__MODULES) is not valid JSON or YAML. Write it as [one" in message


def test_all_problems_of_the_settings_are_listed_at_once(load: Load) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load("api:\n  port: x\n  pord: 1\n", {"TASKFRAMEWORK_FOO": "1"}, {"worker.lease": "1"})
    error = caught.value
    assert error.message.startswith("The configuration has 4 problems:\n  - api.pord (application.yml:3) is not")
    assert "\n  - environment TASKFRAMEWORK_FOO is not" in error.message
    assert "\n  - api.port (application.yml:2) is 'x'" in error.message
    assert "\n  - worker.lease (command line) is '1'; it needs a unit" in error.message
    assert error.key == "api.pord"
    assert (
        error.hint == "Correct these and start again; `python -m taskframework.settings.reference` lists every setting."
    )


def test_a_single_problem_is_one_line_with_its_key(load: Load) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load("api:\n  port: x\n")
    assert caught.value.key == "api.port"
    assert "\n" not in str(caught.value)
    assert "settings.reference` lists every setting" in caught.value.hint


def test_no_password_is_in_any_message(refusal: Refusal) -> None:
    message = refusal(
        "broker:\n  url: amqp://user:secret\n  prefix: amqp://user:secret@host\napp: {modules: 'amqp://u:secret@host'}\n"
        "store: {url: ['mongodb://user:secret@host/db']}\n",
        {"TASKFRAMEWORK_API__HOST": "[mongodb://user:secret@host/x"},
        {"api.port": "mongodb://user:secret@host/x"},
    )
    assert "secret" not in message
    assert message.count("\n  - ") == 6


def test_broken_yaml_is_located_without_quoting_the_file(refusal: Refusal) -> None:
    message = refusal("broker:\n  url: 'amqp://user:secret@host\napi: {}\n")
    assert "application.yml:" in message
    assert "is not valid YAML" in message
    assert "Check that line and the one before" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "text", ["a: [1\n", "a: b: c\n", "a: &x {b: *y}\n", "a: 1\n---\nb: 2\n", "\ta: 1\n", "a: \x07\n"]
)
def test_every_kind_of_broken_yaml_is_explained(refusal: Refusal, text: str) -> None:
    message = refusal(text)
    assert message.startswith("application.yml")
    assert "is not valid YAML" in message


def test_a_wrong_value_in_a_setting_with_values_by_name_is_named(load: Load) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(environ={"TASKFRAMEWORK_CONCURRENCY__LIMITS": "{a: 0, b: 1}"})
    assert caught.value.key == "concurrency.limits.a"
    assert (
        "concurrency.limits.a (environment TASKFRAMEWORK_CONCURRENCY__LIMITS) is 0; accepted: whole number from"
        in str(caught.value)
    )


def test_a_file_that_is_not_text_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "application.yml").write_bytes(b"api:\n  host: \xff\n")
    with pytest.raises(ConfigurationError, match=r"application.yml is not UTF-8 text \(byte 13\). Save it as UTF-8"):
        load()


def test_a_missing_explicit_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"own.yml cannot be read: no such file or directory. Check the path"):
        load_settings(tmp_path / "own.yml", environ={})


def test_a_folder_in_place_of_the_file_is_an_error(load: Load, tmp_path: Path) -> None:
    (tmp_path / "application.yml").mkdir()
    with pytest.raises(ConfigurationError, match=r"application.yml cannot be read: is a directory. Check the path"):
        load()


@pytest.mark.parametrize("name", ["prod", "../prod", "logging/x"])
def test_a_missing_profile_is_an_error_that_lists_those_there(load: Load, tmp_path: Path, name: str) -> None:
    (tmp_path / "config").mkdir()
    for file in ("dev.yml", "test.yml", "logging.yml"):
        (tmp_path / "config" / file).write_text("")
    (tmp_path / "prod.yml").write_text("api: {port: 1}\n")
    with pytest.raises(ConfigurationError) as caught:
        load(environ={"TASKFRAMEWORK_PROFILE": name})
    assert f"There is no profile {name!r}" in caught.value.message
    assert "Existing profiles: dev, test. Choose one, or unset TASKFRAMEWORK_PROFILE." in caught.value.hint
