#!/usr/bin/env python3
"""Rules and dashboards against real programs: promtool, Prometheus, Alertmanager, gatescope.

    test_dashboards.py rules                                 promtool: rules, their tests, the configuration
    test_dashboards.py types                                 the JSON against @grafana/schema, by tsc (needs npm)
    test_dashboards.py live --gatescope target/debug/gatescope
        a fleet with faults is simulated: /metrics is clean, the alert fires and reaches a webhook, every panel has data
        (its SQL through POST /api/v1/sql), and the alert is resolved after
"""
import argparse
import contextlib
import datetime
import http.server
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards/prometheus"
GRAFANA = ROOT / "dashboards/grafana"
WINDOW = "30s"


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], text=True, capture_output=True, timeout=300, check=False, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def rules():
    run("promtool", "check", "rules", RULES / "recording.yml", RULES / "alerts.yml")
    run("promtool", "test", "rules", RULES / "tests/alerts.yml")
    run("promtool", "check", "config", RULES / "prometheus.yml")
    text = (RULES / "alerts.yml").read_text()
    tests = (RULES / "tests/alerts.yml").read_text()
    runbook = (ROOT / "docs/operations.md").read_text()
    for alert in re.findall(r"alert: (\w+)", text):
        assert f"### {alert}\n" in runbook, f"{alert} has no section in docs/operations.md"
        assert f"operations.md#{alert.lower()}\n" in text, f"{alert} has no link to its section"
        assert f"{alert} fires" in tests and f"{alert} is silent" in tests, f"{alert} is not tested both ways"


def types():
    run(sys.executable, GRAFANA / "generate.py", "--check")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(ROOT / "tests/dashboards/package.json", folder)
        run("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=folder)
        source = [
            "import type { Dashboard } from '@grafana/schema';",
            # In JSON a string enumeration is one of its strings.
            "type Json<T> = T extends string ? `${T}` : T extends (infer U)[] ? Json<U>[]"
            " : T extends object ? { [K in keyof T]: Json<T[K]> } : T;",
        ]
        for at, path in enumerate(sorted((GRAFANA / "dashboards").glob("*.json"))):
            source.append(f"// {path.name}\nexport const d{at}: Json<Dashboard> = {path.read_text()};")
        (folder / "check.ts").write_text("\n".join(source))
        run("npx", "tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler", "check.ts", cwd=folder)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait(what, until, seconds=120):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if found := until():
                return found
        time.sleep(0.5)
    sys.exit(f"not within {seconds} s: {what}")


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


class Webhook:
    """What Alertmanager has delivered."""

    def __init__(self):
        self.alerts = []
        seen = self.alerts

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                seen.extend(body["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def has(self, name, status):
        return any(each["labels"]["alertname"] == name and each["status"] == status for each in self.alerts)


class Fleet:
    """gatescope, Prometheus and Alertmanager, on free ports."""

    def __init__(self, stack, folder, gatescope):
        self.folder, self.gatescope = folder, gatescope
        self.http, self.flight, self.prometheus, self.alertmanager = (free_port() for _ in range(4))
        self.webhook = Webhook()
        # The expressions as they are; only times are shorter.
        for name in ("recording.yml", "alerts.yml"):
            text = (RULES / name).read_text().replace("5m", WINDOW)
            (folder / name).write_text(re.sub(r"for: \d+m", "for: 1s", text))
        config = (RULES / "prometheus.yml").read_text().replace("15s", "1s")
        config = config.replace("gatescope:7878", f"127.0.0.1:{self.http}").replace("alertmanager:9093", f"127.0.0.1:{self.alertmanager}")
        (folder / "prometheus.yml").write_text(config)
        (folder / "alertmanager.yml").write_text(json.dumps({
            "route": {"receiver": "test", "group_by": ["alertname"], "group_wait": "1s", "group_interval": "2s", "repeat_interval": "1h"},
            "receivers": [{"name": "test", "webhook_configs": [{"url": f"http://127.0.0.1:{self.webhook.port}", "send_resolved": True}]}],
        }))
        self.start(stack, gatescope, "serve", "--data", folder / "data", "--http", f"127.0.0.1:{self.http}", "--flight",
                   f"127.0.0.1:{self.flight}", "--commit-interval", "2s", "--join-timeout", "10s")
        self.start(stack, "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                   f"--web.listen-address=127.0.0.1:{self.prometheus}")
        self.start(stack, "prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alerts",
                   f"--web.listen-address=127.0.0.1:{self.alertmanager}", "--cluster.listen-address=")
        wait("gatescope ready", lambda: "ready" in get(f"http://127.0.0.1:{self.http}/readyz"))
        wait("Prometheus ready", lambda: get(f"http://127.0.0.1:{self.prometheus}/-/ready"))

    def start(self, stack, *command):
        log = stack.enter_context(open(self.folder / f"{pathlib.Path(str(command[0])).name}-{command[1].split('=')[0].strip('-')}.log", "w"))
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        stack.callback(end, process)
        return process

    def query(self, expr):
        answer = get(f"http://127.0.0.1:{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expr}))
        return json.loads(answer)["data"]["result"]

    def sql(self, query):
        body = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/api/v1/sql", body, {"accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.read().decode()


def end(process):
    process.terminate()
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()


def expanded_prometheus(expr):
    expr = expr.replace("$__rate_interval", WINDOW).replace("5m", WINDOW)
    return re.sub(r"\$(model|run|role|instance|layer)\b", ".*", expr)


def expanded_sql(query, values):
    def time_filter(match):
        since = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
        until = since + datetime.timedelta(hours=2)
        # As Grafana's PostgreSQL data source expands it.
        return f"{match[1]} BETWEEN '{since:%Y-%m-%dT%H:%M:%SZ}' AND '{until:%Y-%m-%dT%H:%M:%SZ}'"

    query = re.sub(r"\$__timeFilter\((\w+)\)", time_filter, query)
    for name, of in values.items():
        query = query.replace(f"${{{name}:sqlstring}}", ",".join("'" + str(each).replace("'", "''") + "'" for each in of))
        query = query.replace(f"${{{name}:csv}}", ",".join(map(str, of)))
    query = query.replace("$experts_per_rank", "8")
    assert "$" not in query, query
    return query


def panels(fleet):
    """The panels whose query fails or has no data."""
    column = lambda query: [next(iter(row.values())) for row in fleet.sql(query)]
    values = {name: column(f"SELECT DISTINCT {name} FROM expert_load") for name in ("run", "role", "instance", "layer")}
    values["request"] = column("SELECT request_id FROM requests WHERE status = 'whole' ORDER BY findings DESC, closed_at DESC LIMIT 1")
    empty = []
    for path in sorted((GRAFANA / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                found = fleet.query(expanded_prometheus(target["expr"])) if "expr" in target else fleet.sql(expanded_sql(target["rawSql"], values))
                if not isinstance(found, list) or not found or all(each.get("value", [0, ""])[1] == "NaN" for each in found):
                    empty.append(f"{path.name}: {panel['title']} {target['refId']}: {found}")
    return empty


def live(gatescope):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        fleet = Fleet(stack, pathlib.Path(folder), gatescope)
        simulate = fleet.start(stack, gatescope, "simulate", "--collector", f"grpc://127.0.0.1:{fleet.flight}", "--prefill", "2", "--decode", "2",
                               "--rate", "4000", "--shape", "6x4", "--experts", "32", "--duration", "10m", "--seed", "7", "--quiet",
                               "--faults", "overlap,zero-row,missing-row,lost-rows", "--fault-rate", "0.2")
        wait("GatescopeRowMismatch reaches the webhook", lambda: fleet.webhook.has("GatescopeRowMismatch", "firing"))
        print("fired: GatescopeRowMismatch")
        begun = time.monotonic()
        metrics = get(f"http://127.0.0.1:{fleet.http}/metrics")
        print(f"/metrics: {len(metrics)} bytes in {(time.monotonic() - begun) * 1e3:.0f} ms")
        run("promtool", "check", "metrics", input=metrics)
        left = []

        def has_data():
            left[:] = panels(fleet)
            return not left

        ends = time.monotonic() + 60
        while not has_data() and time.monotonic() < ends:
            time.sleep(2)
        if left:
            sys.exit("panels without data:\n" + "\n".join(left))
        print("every panel has data")
        end(simulate)
        wait("GatescopeRowMismatch is resolved", lambda: fleet.webhook.has("GatescopeRowMismatch", "resolved"))
        print("resolved: GatescopeRowMismatch")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rules", "types", "live"])
    parser.add_argument("--gatescope", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.what == "live":
        live(arguments.gatescope.resolve())
    else:
        {"rules": rules, "types": types}[arguments.what]()
    print(f"{arguments.what}: passed")


if __name__ == "__main__":
    main()
