"""`poise serve`: look at runs in a browser, while they train or afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.errors import PoiseError
from counterpoise.terminal import echo, echo_message


def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            help="Run folders, or folders of runs. Default: ./out, or the current folder.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", min=0, max=65535, help="Default: 8642, or the next free one."),
    ] = None,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on. The default is this machine only."),
    ] = "127.0.0.1",
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let every user of this machine in.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="Folder of the search index. Default: ~/.cache/counterpoise."),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the address in a browser.")
    ] = False,
) -> None:
    """Serve run folders as a local web page: curves, batches, searchable rollouts, tokens.

    It follows runs that are being trained and never writes to their folders. The address that it
    prints holds an access token. Every address also answers in JSON, with `?format=json`.

    - `poise serve`
    - `poise serve out/demo out/theirs --open`
    """
    try:
        from counterpoise.serve.start import ServeOptions
        from counterpoise.serve.start import serve as start_server
    except ModuleNotFoundError as fault:
        raise PoiseError(
            f"poise serve needs the package {fault.name}: pip install 'counterpoise[serve]'"
        ) from fault

    def announce(address: str) -> None:
        echo(address)
        echo_message("Ctrl-C stops it")
        if open_browser:
            import webbrowser

            webbrowser.open(address)

    start_server(ServeOptions(folders or [], host, port, not no_token, cache), announce)
