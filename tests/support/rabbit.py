"""A private RabbitMQ node in a temporary folder: own name, ports, cookie, port mapper and data."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.process import Process, ServerFailed, ServerUnavailable, accepts, data_folder, free_ports, wait_until

_START_TIMEOUT = 60.0
_HOW_TO_GET_IT = (
    "RabbitMQ is not on this machine: run `make servers` (installs the package rabbitmq-server), or set "
    "TASKFRAMEWORK_TEST_RABBITMQ_URL to a server with the management plugin"
)
#: How often `erl_call` may try to reach a node.
_CALL_TRIES = 5


class RabbitServer:
    """One node. Data survive `kill()`, `stop()` and `restart()`; `close()` removes everything."""

    def __init__(
        self, *, config: Mapping[str, str] | None = None, advanced: str = "[].", plugins: Sequence[str] = ()
    ) -> None:
        """Prepare a node without starting it.

        Args:
            config: Lines of rabbitmq.conf, for example `{"consumer_timeout": "3000"}`.
            advanced: Erlang terms of advanced.config, for what rabbitmq.conf has no line for.
            plugins: Plugins to enable; none by default.

        Raises:
            ServerUnavailable: No RabbitMQ on this machine.
        """
        self._programs = _find_programs()
        self._config = dict(config or {})
        self._advanced = advanced
        self._plugins = tuple(plugins)
        self._folder = data_folder("rabbitmq")
        self.port, self._node_port, self._epmd_port, self._ctl_port = free_ports(4)
        self.node = f"taskframework-{secrets.token_hex(4)}@localhost"
        self._cookie = secrets.token_hex(16)
        self._environment = self._make_environment()
        self._epmd: Process | None = None
        self._process: Process | None = None
        self._write_files()
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """URL of the default virtual host."""
        return self.url_of("")

    def url_of(self, vhost: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{vhost}"

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        """Start the node and return when it accepts AMQP connections.

        Raises:
            ServerFailed: It did not come up; the message ends with its log.
        """
        if self._epmd is None:
            self._epmd = Process(
                [self._programs["epmd"], "-port", str(self._epmd_port), "-address", "127.0.0.1"],
                log=self._folder / "epmd.log",
                environment=self._environment,
            )
            wait_until(lambda: accepts(self._epmd_port), "epmd listens", timeout=10)
        process = Process(
            [self._programs["rabbitmq-server"]], log=self._folder / "console.log", environment=self._environment
        )
        self._process = process
        try:
            self.wait_ready()
        except ServerFailed as failure:
            self.kill()
            raise ServerFailed(f"{failure}\n{process.log_tail()}") from None

    def wait_ready(self) -> None:
        """Block until the node answers the AMQP handshake (the listener is the last thing a boot opens)."""
        process = self._running()
        wait_until(
            lambda: accepts(self.port, b"AMQP\x00\x00\x09\x01"),
            "RabbitMQ answers",
            timeout=_START_TIMEOUT,
            alive=lambda: process.is_alive,
        )

    def stop(self) -> None:
        """End the node in order."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, timeout=30)
            self._process = None

    def kill(self) -> None:
        """End the node with SIGKILL."""
        if self._process is not None:
            self._process.end(signal.SIGKILL, timeout=10)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the node (SIGSTOP): connections stay open and nothing answers."""
        self._running().pause()

    def resume(self) -> None:
        self._running().send(signal.SIGCONT)

    def ensure_running(self) -> None:
        """Repair what a failed test left behind: start the node if it is gone, wake it if it is frozen."""
        if self._process is None or not self._process.is_alive:
            self.start()
        else:
            self.resume()

    def flush(self) -> None:
        """Make the node write down which quorum queues exist.

        It does so up to a second after a declaration, and a queue that it has not written down is dead after a kill:
        its messages, confirmed or not, are gone and it never gets a leader again (seen with 3.10.8). A test that kills
        the broker for another reason calls this first.
        """
        self._evaluate("[ok = dets:sync(Table) || Table <- dets:all()].")

    def close(self) -> None:
        """End everything that was started and remove the folder; safe to call twice."""
        self.kill()
        if self._epmd is not None:
            self._epmd.end(signal.SIGTERM, timeout=5)
            self._epmd = None
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.close)

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` against this node and return what it printed (takes about a second).

        Raises:
            ServerFailed: It failed; the message holds its output.
        """
        return self._run([self._programs["rabbitmqctl"], "-q", *arguments])

    def new_vhost(self) -> str:
        """Create a virtual host with all rights for guest and return its name."""
        name = f"test-{secrets.token_hex(6)}"
        self._evaluate(
            f'ok = rabbit_vhost:add(<<"{name}">>, <<"tests">>), '
            f'ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{name}">>, '
            '<<".*">>, <<".*">>, <<".*">>, <<"tests">>).'
        )
        return name

    def delete_vhost(self, name: str) -> None:
        """Remove a virtual host with its queues; its connections are closed."""
        self._evaluate(f'rabbit_vhost:delete(<<"{name}">>, <<"tests">>).')

    def _evaluate(self, expression: str) -> None:
        # erl_call answers in 20 ms; rabbitmqctl needs a second, which every test would pay twice.
        if call := self._programs.get("erl_call"):
            answer = self._call([call, "-sname", self.node, "-c", self._cookie, "-e"], expression + "\n")
            if not answer.startswith("{ok,"):  # its return code is 0 either way
                raise ServerFailed(f"{expression}\n{answer}")
        else:
            self.ctl("eval", expression)

    def _call(self, command: Sequence[str], text: str) -> str:
        for _ in range(_CALL_TRIES - 1):  # a call waits for a moment only, which is too short on a crowded machine
            try:
                return self._run(command, text)
            except ServerFailed as failure:
                if "failed to connect to node" not in str(failure):
                    raise
        return self._run(command, text)

    def _run(self, command: Sequence[str], text: str | None = None) -> str:
        done = subprocess.run(
            command, input=text, env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise ServerFailed(f"{' '.join(command)} returned {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _running(self) -> Process:
        if self._process is None:
            raise ServerFailed("RabbitMQ is not running: call start() first")
        return self._process

    def _make_environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        folder = self._folder
        return inherited | {
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self._ctl_port),
            "RABBITMQ_CTL_DIST_PORT_MAX": str(self._ctl_port + 20),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PLUGINS_EXPAND_DIR": str(folder / "plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
            "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
            # Without busy waiting: idle schedulers would take the cores from what is tested.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} "
            "+sbwt none +sbwtdcpu none +sbwtdio none",
            # The start script then becomes the node instead of waiting for it as a child, so that our signals and the
            # kernel's "kill with the parent" reach the node itself.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _write_files(self) -> None:
        cookie = self._folder / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        (self._folder / "rabbitmq-env.conf").touch()
        (self._folder / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")
        lines = {"log.file.level": "warning", "log.console": "false"} | self._config
        (self._folder / "advanced.config").write_text(self._advanced)
        (self._folder / "rabbitmq.conf").write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))


def _find_programs() -> dict[str, str]:
    """Paths of the programs; Debian's wrappers in PATH insist on the user rabbitmq, the scripts behind them do not."""
    places = [Path("/usr/lib/rabbitmq/bin"), *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    found: dict[str, str] = {}
    for name in ("rabbitmq-server", "rabbitmqctl"):
        path = next((place / name for place in places if os.access(place / name, os.X_OK)), None)
        if path is None:
            raise ServerUnavailable(_HOW_TO_GET_IT)
        found[name] = str(path)
    for name in ("epmd", "erl_call"):
        if path_in_path := shutil.which(name):
            found[name] = path_in_path
    if "epmd" not in found:
        raise ServerUnavailable("RabbitMQ is here but epmd (Erlang's port mapper) is not in PATH")
    return found
