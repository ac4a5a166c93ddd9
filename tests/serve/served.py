"""A server over made-up runs, without a process or a port of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.testclient import TestClient

from counterpoise.report.audit.run_files import Progress
from counterpoise.serve.access import LOOPBACK, AccessGate
from counterpoise.serve.app import make_app
from counterpoise.serve.audit.process import write_audit
from counterpoise.serve.audit.shelf import AuditLauncher
from counterpoise.serve.index.writer import IndexWriter
from counterpoise.serve.library import RunLibrary

PORT = 8642
ORIGIN = f"http://127.0.0.1:{PORT}"


class IndexInThisProcess:
    """Writes indexes when it is asked to."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def follow(self, run_folder: Path, roots: list[Path]) -> None:
        with IndexWriter(run_folder, self.cache, roots) as writer:
            while writer.work():
                pass

    def forget(self, run_folder: Path) -> None: ...

    def close(self) -> None: ...


class AuditInThisProcess:
    """Audits where it is called."""

    def run(
        self, run_folder: Path, roots: Sequence[Path], folder: Path, progress: Progress
    ) -> None:
        write_audit(run_folder, roots, folder, progress)

    def close(self) -> None: ...


@contextmanager
def serve(
    *folders: Path,
    cache: Path,
    token: str | None = None,
    auditor: AuditLauncher | None = None,
) -> Iterator[TestClient]:
    """A client of a server; the index is brought up to date at every request that needs it."""
    library = RunLibrary(folders, cache, IndexInThisProcess(cache), 60, auditor)
    gate = AccessGate(make_app(library), LOOPBACK, PORT, token)
    with TestClient(gate, base_url=ORIGIN, follow_redirects=False) as client:
        client.library = library
        yield client


def get(client: TestClient, address: str, **parameters: Any) -> Any:
    """The JSON of an address that must be answered."""
    # The client would replace the parameters of the address by others.
    path, _, query = address.partition("?")
    asked = dict(parse_qsl(query)) | {name: str(value) for name, value in parameters.items()}
    response = client.get(path, params=asked or None)
    assert response.status_code == 200, response.text
    return response.json()


def encoded(text: str) -> str:
    return quote(text, safe="")


def line(group: str = "1:a", response: str = "yes", reward: Any = 1.0, **fields: Any) -> str:
    """A line of rollouts/ as the store writes it."""
    record = {
        "schema": 1,
        "group": group,
        "prompt_id": group.partition(":")[2],
        "prompt": "How many?",
        "response": response,
        "answer": "3",
        "reward": reward,
        "finished": True,
        **fields,
        "prompt_tokens": [1, 2],
        "response_tokens": [3, 4, 5],
        "sampled_logprobs": [-0.1, -0.2, -0.3],
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def write_rollouts(run: Path, iteration: int, *lines: str) -> Path:
    """rollouts/step_N.jsonl of a run that has nothing else yet."""
    (run / "rollouts").mkdir(parents=True, exist_ok=True)
    (run / "imported.json").write_text(json.dumps({"source": "test", "notes": []}))
    path = run / "rollouts" / f"step_{iteration:05d}.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def all_rows(client: TestClient, address: str, limit: int = 7, **parameters: Any) -> list[Any]:
    """Every row of a table, page after page."""
    rows: list[Any] = []
    page = get(client, address, limit=limit, **parameters)
    while True:
        rows += page["rows"]
        if page["next"] is None:
            return rows
        page = get(client, address, limit=limit, after=page["next"], **parameters)


def places(rows: list[Any]) -> list[str]:
    return [row["place"] for row in rows]
