"""``brim token``: identities for callers of the API on TCP; the command line itself needs none."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from brim.api.wire import SCHEMA
from brim.cli.controller import client
from brim.cli.job_table import printable, table
from brim.cli.options import JsonOption, OutputOption, output_of, whole
from brim.cli.unconverted import UnconvertedCommand, UnconvertedGroup

app = typer.Typer(
    name="token", cls=UnconvertedGroup, no_args_is_help=True, help="Make, list and revoke tokens for the API on TCP."
)


@app.command(cls=UnconvertedCommand)
def new(
    label: Annotated[str, typer.Argument(metavar="LABEL", help="What it is for.")],
    days: Annotated[str, typer.Option("--days", metavar="N", help="Valid for so many days, 1 to 90.")] = "90",
) -> None:
    """Make a token and print its secret, this once."""
    made = client().new_token(label, whole(days, "--days", 1, 90))
    print(made["secret"])


@app.command("list", cls=UnconvertedCommand)
def list_tokens(output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """List your tokens, without their secrets."""
    wanted, found = output_of(output, as_json), client().tokens()
    if wanted == "json":
        print(json.dumps({"schema": SCHEMA, "tokens": found}))
        return
    rows: list[tuple[str, ...]] = [("TOKEN", "LABEL", "EXPIRES")]
    for each in found:
        expires = time.strftime("%Y-%m-%d %H:%M", time.localtime(each["expires_s"]))
        rows.append((str(each["id"]), printable(each["label"]), expires))
    print(table(rows) if found else "you have no tokens")


@app.command(cls=UnconvertedCommand)
def revoke(token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its number, as in the list.")]) -> None:
    """Revoke a token; it is refused from now on."""
    client().revoke_token(whole(token, "TOKEN"))
