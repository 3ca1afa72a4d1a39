"""Asking a collector."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
    import pyarrow


class QueryError(Exception):
    """The collector refused a query; the message says why."""


class Client:
    """Queries a collector's HTTP port, e.g. `Client("http://127.0.0.1:7878")`."""

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._timeout = timeout

    def sql(self, query: str) -> pyarrow.Table:
        """The answer of one SQL statement. Needs pyarrow."""
        import pyarrow.ipc

        with pyarrow.ipc.open_stream(io.BytesIO(self._post(query))) as stream:
            return stream.read_all()

    def routing(self, request_id: str, *, run: str | None = None, choice: int = 0) -> numpy.ndarray:
        """The experts of a request, `[positions, layers, top_k]`: all hidden layers' columns that the table has (MoE layers,
        ascending). Raises `QueryError` where the request is unknown or lacks positions."""
        import numpy

        shapes = self.sql("SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'routing\\_%'")
        condition = f"request_id = {_quoted(request_id)} AND choice = {int(choice)}"
        if run is not None:
            condition += f" AND run = {_quoted(run)}"
        for table in shapes["table_name"].to_pylist():
            rows = self.sql(f'SELECT * FROM "{table}" WHERE {condition} ORDER BY position')
            if not rows.num_rows:
                continue
            positions = rows["position"].to_numpy()
            if (positions != numpy.arange(len(positions))).any():
                raise QueryError(f"request {request_id}: rows are missing, or it is in several runs: name one")
            dtype = numpy.dtype("u1" if "_u8" in table else "<u2")
            layers = [name for name in rows.column_names if name[0] == "l" and name[1:].isdigit()]
            columns = [numpy.frombuffer(b"".join(rows[name].to_pylist()), dtype).reshape(len(positions), -1) for name in layers]
            return numpy.stack(columns, axis=1)
        raise QueryError(f"request {request_id}: no rows")

    def _post(self, query: str) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/vnd.apache.arrow.stream"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        body = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self._url}/api/v1/sql", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            raise QueryError(_detail(error)) from None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _detail(error: urllib.error.HTTPError) -> str:
    body = error.read().decode(errors="replace")
    try:
        problem = json.loads(body)
        return problem.get("detail") or problem.get("title") or body
    except ValueError:
        return body or str(error)
