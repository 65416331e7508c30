"""What the help of each command shows beside what typer makes: an example at its end, and no value for a flag."""

from __future__ import annotations

from typing import Any

#: The task type of the examples; it is that of the quickstart.
_TYPE = "charge-card"
EXAMPLES = {
    "demo": "demo notes/*.txt --output report.md",
    "init": "init orders",
    "dev": "dev --app shop",
    "api": "api --host 0.0.0.0 --port 8000",
    "worker": "worker --app shop --processes 4",
    "submit": """submit charge-card '{"order_id": "A-1", "amount": 9.5}' --wait""",
    "tasks list": "tasks list --status failed --type charge-card",
    "tasks show": "tasks show 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11",
    "tasks explain": "tasks explain 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11",
    "tasks cancel": "tasks cancel 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11 --reason 'ordered twice'",
    "tasks subtasks": "tasks subtasks 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11 --status failed",
    "tasks signal": """tasks signal 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11 approved '{"by": "ada"}'""",
    "tasks retry": "tasks retry --where type=charge-card --rate 10 --dry-run",
    "tasks watch": "tasks watch 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11",
    "batch submit": "batch submit charge-card orders.ndjson --watch",
    "batch list": "batch list --status waiting",
    "batch show": "batch show 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11",
    "batch watch": "batch watch 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11",
    "batch results": "batch results 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11 --follow",
    "batch cancel": "batch cancel 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11 --reason 'wrong file'",
    "batch retry-failed": "batch retry-failed 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11",
    "streams list": "streams list --halted",
    "streams show": "streams show orders/7 --user ada",
    "streams results": "streams results orders/7 --user ada --from 10",
    "streams go-on": "streams go-on orders/7 --user ada",
    "queues list": "queues list",
    "queues pause": "queues pause charge-card --reason 'provider down' --drain",
    "queues resume": "queues resume charge-card",
    "schedules list": "schedules list",
    "schedules show": "schedules show nightly",
    "schedules create": """schedules create nightly charge-card '{"order_id": "A-1"}' --cron '30 2 * * *'""",
    "schedules update": "schedules update nightly --cron '0 3 * * *'",
    "schedules delete": "schedules delete nightly",
    "schedules run": "schedules run nightly",
    "schedules pause": "schedules pause nightly",
    "schedules resume": "schedules resume nightly",
    "dlq list": "dlq list --limit 50",
    "dlq show": "dlq show 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11",
    "dlq groups": "dlq groups --type charge-card",
    "dlq replay": "dlq replay --where fingerprint=9f2c1a0b7d3e4f56 --rate 10 --reason 'the provider is back'",
    "dlq edit": """dlq edit 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11 '{"order_id": "A-1", "amount": 9.5}' --dry-run""",
    "dlq discard": "dlq discard --where fingerprint=9f2c1a0b7d3e4f56 --reason 'the orders were cancelled'",
    "dlq repair": """dlq repair 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11 '{"order_id": "A-1"}' --type charge-card""",
    "replays list": "replays list",
    "replays show": "replays show 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11",
    "replays stop": "replays stop 0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11 --reason 'it fails again'",
    "audit list": "audit list --by ada --action queue",
    "workers": "workers --json",
    "top": "top --every 5s",
    "limits": "limits",
    "keys create": "keys create web --role submitter --expires 90d --rate 20",
    "keys list": "keys list",
    "keys revoke": "keys revoke tf_3f9c2a7b10",
    "events tail": "events tail --url http://localhost:8000",
    "doctor": "doctor --app shop",
    "config show": "config show --json",
    "topology show": "topology show --app shop",
    "topology plan": "topology plan --app shop",
    "topology migrate": "topology migrate --app shop",
    "topology apply": "topology apply --app shop",
}


def complete_help(command: Any, name: str) -> Any:
    """Add an example to the help of a command, or of each command in a group. Flags are shown without a value, because
    they take none; typer shows `<bool>`.
    """
    make_help_option = command.get_help_option
    command.get_help_option = lambda context: _without_value(make_help_option(context))
    for parameter in command.params:
        _without_value(parameter)
    if (example := EXAMPLES.get(name)) is not None:
        said = f" ({_TYPE} stands for a task type of your own.)" if _TYPE in example else ""
        command.epilog = f"Example: taskframework {example}{said}"
    for subcommand_name, subcommand in getattr(command, "commands", {}).items():
        complete_help(subcommand, f"{name} {subcommand_name}")
    return command


def _without_value(parameter: Any) -> Any:
    if getattr(parameter, "is_flag", False):
        parameter.metavar = ""
    return parameter
