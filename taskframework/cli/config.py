"""`config show`: each setting and where its value comes from."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.text import Text

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Config, Json
from taskframework.cli.output import as_json_text, note, out, print_json, table
from taskframework.settings import ExplainedSetting, explain
from taskframework.submission.schedules import check_settings

app = typer.Typer(no_args_is_help=True, help="The settings in force.")


@app.command()
def show(context: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """Print each setting with its value and its source. Passwords are masked."""
    loaded = Invocation.of(context, config).load()
    check_settings(loaded.settings.schedules.named)
    rows = explain(loaded)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    shown = table("Setting", "Value", "From")
    shown.columns[0].no_wrap = True
    shown.columns[1].overflow = "fold"
    section = ""
    for row in rows:
        if section and not row.key.startswith(section):
            shown.add_row()
        section = row.key.partition(".")[0] + "."
        shown.add_row(row.key, _value(row), Text(row.origin, style="dim" if _is_default(row) else "green"))
    out().print(shown)
    note("Set one in application.yml, as TASKFRAMEWORK_<SECTION>__<KEY> in the environment, or by a command's flag.")


def _is_default(row: ExplainedSetting) -> bool:
    return row.origin == "default"


def _value(row: ExplainedSetting) -> Text:
    value = row.value if isinstance(row.value, str) else as_json_text(row.value)
    return Text("(empty)" if row.value is None else value, style="" if _is_default(row) else "bold")
