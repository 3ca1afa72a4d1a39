#!/usr/bin/env python3
"""Writes Grafana's dashboards: dashboards/*.json beside this file.

A dashboard is a list of rows, a row a list of panels that share its 24 columns: panels cannot overlap.
    generate.py            writes them
    generate.py --check    says whether they are as they would be written
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent / "dashboards"
PROMETHEUS = {"type": "prometheus", "uid": "gatescope-prometheus"}
SQL = {"type": "grafana-postgresql-datasource", "uid": "gatescope-sql"}
TITLES = {
    "gatescope-fleet": "Gatescope / Fleet overview",
    "gatescope-rows": "Gatescope / Row integrity",
    "gatescope-experts": "Gatescope / Expert load",
    "gatescope-capture": "Gatescope / Capture and collector health",
}
OF = 'run=~"$run", model=~"$model"'
OF_LAYER = OF + ', role=~"$role", instance=~"$instance", layer=~"$layer"'
WHERE = "run IN (${run:sqlstring}) AND role IN (${role:sqlstring}) AND instance IN (${instance:sqlstring})"
WHERE_LOAD = "$__timeFilter(minute) AND layer IN (${layer:csv}) AND " + WHERE


def prom(*queries):
    """Queries of Prometheus, each with its legend."""
    return PROMETHEUS, [
        {"datasource": PROMETHEUS, "refId": chr(65 + at), "expr": expr, "legendFormat": legend}
        for at, (expr, legend) in enumerate(queries)
    ]


def sql(query, form="table"):
    """A query of the Postgres port."""
    target = {"datasource": SQL, "refId": "A", "rawQuery": True, "rawSql": query, "format": form, "editorMode": "code"}
    return SQL, [target]


def panel(kind, title, about, source, unit="short", steps=(), width=12, options=None, transform=(), custom=None, overrides=()):
    datasource, targets = source
    thresholds = [{"value": None, "color": "green"}, *({"value": at, "color": color} for at, color in steps)]
    defaults = {"unit": unit, "thresholds": {"mode": "absolute", "steps": thresholds}}
    defaults["custom"] = custom or {}
    return {
        "type": kind, "title": title, "description": about, "datasource": datasource, "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)}, "options": options or {},
        "transformations": list(transform), "gridPos": {"w": width},
    }


def lines(title, about, source, unit="short", steps=(), width=12):
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return panel("timeseries", title, about, source, unit, steps, width, {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
                 custom={"fillOpacity": 10, "thresholdsStyle": {"mode": "line" if steps else "off"}})


def number(title, about, query, unit="short", steps=(), width=6):
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "area"}
    return panel("stat", title, about, prom((query, "")), unit, steps, width, options)


def table(title, about, query, width=24, overrides=(), transform=(), custom=None):
    return panel("table", title, about, sql(query), "none", (), width, {"showHeader": True, "cellHeight": "sm"}, transform, custom, overrides)


def matrix(title, about, query, width=24):
    """Rows by columns, coloured by value."""
    cells = panel("table", title, about, sql(query), "short", (), width, {"showHeader": True, "cellHeight": "sm"},
                  [{"id": "groupingToMatrix", "options": {"rowField": "layer", "columnField": "expert", "valueField": "tokens"}}],
                  {"cellOptions": {"type": "color-background"}, "minWidth": 50})
    cells["fieldConfig"]["defaults"]["color"] = {"mode": "continuous-YlRd"}
    return cells


def variable(name, label, query, source=PROMETHEUS):
    return {
        "name": name, "label": label, "type": "query", "datasource": source,
        "query": {"query": query, "refId": name} if source is PROMETHEUS else query, "refresh": 2, "multi": True, "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]}, "sort": 3,
    }


LAYERS = "gatescope_layer_imbalance_ratio"
VARIABLES = [
    variable("model", "Model", "label_values(gatescope_requests_total, model)"),
    variable("run", "Run", 'label_values(gatescope_requests_total{model=~"$model"}, run)'),
    variable("role", "Role", f"label_values({LAYERS}{{{OF}}}, role)"),
    variable("instance", "Instance", f'label_values({LAYERS}{{{OF}, role=~"$role"}}, instance)'),
    variable("layer", "Layer", f"label_values({LAYERS}{{{OF}}}, layer)"),
]
REQUEST = {"name": "request", "label": "Request", "type": "query", "datasource": SQL, "refresh": 2, "multi": False, "includeAll": False,
           "query": "SELECT request_id FROM requests ORDER BY findings DESC, closed_at DESC LIMIT 100", "current": {"text": "", "value": ""}}
PER_RANK = {"name": "experts_per_rank", "label": "Experts per rank", "type": "textbox", "query": "8", "current": {"text": "8", "value": "8"}}

FLEET = [
    (4, [
        number("Requests", "Requests closed a second.", f"sum(rate(gatescope_requests_total{{{OF}}}[$__rate_interval]))", "reqps"),
        number("Incomplete", "Share of closed requests with positions that nobody sent.",
               f'sum(rate(gatescope_requests_total{{{OF}, status="incomplete"}}[$__rate_interval]) or 0 * rate(gatescope_requests_total{{{OF}}}[$__rate_interval]))'
               f" / sum(rate(gatescope_requests_total{{{OF}}}[$__rate_interval]))", "percentunit", [(0.001, "orange"), (0.01, "red")]),
        number("Overlap disagrees", "Share of positions computed twice whose experts differ.",
               f"sum(rate(gatescope_mismatched_positions_total{{{OF}}}[$__rate_interval])) / sum(rate(gatescope_overlap_positions_total{{{OF}}}[$__rate_interval]))",
               "percentunit", [(0.05, "orange"), (0.2, "red")]),
        number("Most imbalanced layer", "Busiest expert over the mean, highest of all layers, last 5 minutes.",
               f"max({LAYERS}{{{OF_LAYER}}})", "none", [(4, "orange"), (8, "red")]),
    ]),
    (8, [
        lines("Requests by status", "Requests closed a second.", prom((f"sum by (status) (rate(gatescope_requests_total{{{OF}}}[$__rate_interval]))", "{{status}}")), "reqps"),
        lines("Positions", "Positions stored a second, by run.", prom((f"sum by (run) (rate(gatescope_positions_total{{{OF}}}[$__rate_interval]))", "{{run}}")), "cps"),
    ]),
    (8, [
        lines("Imbalance by instance", "Busiest expert over the mean, the worst layer of each instance.",
              prom((f"max by (role, instance) ({LAYERS}{{{OF_LAYER}}})", "{{role}} {{instance}}")), "none", [(8, "red")]),
        lines("Findings", "Findings of checks in 5 minutes.", prom((f"sum by (check) (increase(gatescope_row_mismatches_total{{{OF}}}[5m]))", "{{check}}"))),
    ]),
]
FIND = "mismatches WHERE $__timeFilter(at) AND run IN (${run:sqlstring})"
ROWS = [
    (8, [
        lines("Findings by check", "Findings in 5 minutes.", prom((f"sum by (check, severity) (increase(gatescope_row_mismatches_total{{{OF}}}[5m]))", "{{check}} {{severity}}"))),
        lines("Overlap disagreement", "Share of positions computed twice whose experts differ.",
              prom(("run_model:gatescope_overlap_disagreement:ratio_rate5m{" + OF + "}", "{{run}} {{model}}")), "percentunit", [(0.2, "red")]),
    ]),
    (8, [
        table("By layer", "Findings that name a layer.", f"SELECT layer, check, count(*) AS findings, count(DISTINCT request_id) AS requests FROM {FIND} AND layer IS NOT NULL GROUP BY layer, check ORDER BY findings DESC LIMIT 50", 12),
        table("By position", "Findings by their first position, in steps of 64.", f"SELECT position / 64 * 64 AS from_position, check, count(*) AS findings FROM {FIND} AND position IS NOT NULL GROUP BY from_position, check ORDER BY findings DESC LIMIT 50", 12),
    ]),
    (9, [table("Latest findings", "A request's name leads to its rows below.",
               f"SELECT at, severity, check, run, request_id, position, layer, detail FROM {FIND} ORDER BY at DESC LIMIT 100",
               overrides=[{"matcher": {"id": "byName", "options": "request_id"}, "properties": [{"id": "links", "value": [
                   {"title": "Show the request", "url": "/d/gatescope-rows?${__url_time_range}&var-request=${__value.raw}"}]}]}])]),
    (9, [
        table("The request: who computed what", "Segments of $request.",
              "SELECT segment['start'] AS first, segment['end'] AS past_last, segment['role'] AS role, segment['instance'] AS instance FROM (SELECT unnest(segments) AS segment FROM requests WHERE request_id = ${request:sqlstring}) ORDER BY first", 12),
        table("The request: rows", "Accepted rows of $request in the chosen layers, the first 200.",
              "SELECT position, role, layer, array_to_string(experts, ' ') AS experts FROM routing(${request:sqlstring}) WHERE layer IN (${layer:csv}) ORDER BY position, layer LIMIT 200", 12),
    ]),
]


def by_role(role):
    name = role.capitalize()
    return matrix(f"{name}: layer x expert", f"Tokens that each expert got, {role} instances.",
                  f"SELECT layer, expert, sum(tokens) AS tokens FROM expert_load WHERE {WHERE_LOAD} AND role = '{role}' GROUP BY layer, expert ORDER BY layer, expert", 12)


EXPERTS = [
    (8, [
        lines("Imbalance", "Busiest expert over the mean, last 5 minutes; 1 is even.", prom((f"max by (layer) ({LAYERS}{{{OF_LAYER}}})", "layer {{layer}}")), "none", [(8, "red")], 6),
        lines("Entropy", "Entropy of the load over that of an even load; 1 is even.", prom((f"min by (layer) (gatescope_layer_entropy_ratio{{{OF_LAYER}}})", "layer {{layer}}")), "percentunit", (), 6),
        lines("Dead experts", "Experts without a token in 5 minutes.", prom((f"max by (layer) (gatescope_layer_dead_experts{{{OF_LAYER}}})", "layer {{layer}}")), "short", [(1, "orange")], 6),
        lines("Top expert's share", "Share of a layer's tokens that its busiest expert got.", prom((f"max by (layer) (gatescope_layer_top_expert_share_ratio{{{OF_LAYER}}})", "layer {{layer}}")), "percentunit", (), 6),
    ]),
    (12, [by_role("prefill"), by_role("decode")]),
    (9, [
        panel("barchart", "Per rank", "Tokens by expert-parallel rank, experts placed in order.",
              sql(f"SELECT concat('rank ', expert / $experts_per_rank) AS rank, sum(CASE WHEN role = 'prefill' THEN tokens ELSE 0 END) AS prefill, sum(CASE WHEN role = 'decode' THEN tokens ELSE 0 END) AS decode FROM expert_load WHERE {WHERE_LOAD} GROUP BY rank ORDER BY rank"),
              options={"xField": "rank", "orientation": "auto", "stacking": "none"}),
        panel("timeseries", "Busiest experts over time", "Tokens a minute of the ten busiest experts.",
              sql(f"SELECT minute AS time, concat('expert ', expert) AS metric, sum(tokens) AS value FROM expert_load WHERE {WHERE_LOAD} AND expert IN (SELECT expert FROM expert_load WHERE {WHERE_LOAD} GROUP BY expert ORDER BY sum(tokens) DESC LIMIT 10) GROUP BY minute, expert ORDER BY minute", "time_series")),
    ]),
]
CAPTURE = [
    (8, [
        lines("Since agents were heard", "Seconds since the last message of each agent.", prom(("time() - gatescope_agent_last_seen_timestamp_seconds", "{{agent}}")), "s", [(300, "red")], 8),
        lines("Positions lost", "Positions captured and dropped, and expected ones that nobody sent, a second.",
              prom((f"sum(rate(gatescope_capture_lost_positions_total{{{OF}}}[$__rate_interval])) or vector(0)", "dropped"), (f"sum(rate(gatescope_missing_positions_total{{{OF}}}[$__rate_interval]))", "missing")), "cps", (), 8),
        lines("What came", "Bytes a second, by kind.", prom(("sum by (kind) (rate(gatescope_received_bytes_total[$__rate_interval]))", "{{kind}}")), "Bps", (), 8),
    ]),
    (8, [
        lines("Join lag", "From a request's last rows until they are in the tables.", prom(
            ("histogram_quantile(0.5, sum by (le) (rate(gatescope_join_lag_seconds_bucket[$__rate_interval])))", "p50"),
            ("histogram_quantile(0.95, sum by (le) (rate(gatescope_join_lag_seconds_bucket[$__rate_interval])))", "p95")), "s", [(30, "red")], 8),
        lines("Durable after", "From a message's arrival until it was durable.", prom(
            ("histogram_quantile(0.5, sum by (le) (rate(gatescope_ack_latency_seconds_bucket[$__rate_interval])))", "p50"),
            ("histogram_quantile(0.99, sum by (le) (rate(gatescope_ack_latency_seconds_bucket[$__rate_interval])))", "p99")), "s", (), 8),
        lines("Commit", "Time that a commit took.", prom(("histogram_quantile(0.95, sum by (le) (rate(gatescope_commit_latency_seconds_bucket[$__rate_interval])))", "p95")), "s", (), 8),
    ]),
    (8, [
        lines("Write-ahead log", "Bytes of the log.", prom(("gatescope_log_size_bytes", "log")), "bytes", [(4 << 30, "red")], 8),
        lines("Open requests", "Requests that are not closed yet.", prom(("gatescope_open_requests", "open")), "short", (), 8),
        lines("Refused and failed", "Messages refused and commits that failed, a second.", prom(
            ("sum(rate(gatescope_refused_total[$__rate_interval])) or vector(0)", "refused"), ("sum(rate(gatescope_commit_failures_total[$__rate_interval])) or vector(0)", "failed commits")), "cps", (), 8),
    ]),
]


def dashboard(uid, rows, extra=()):
    panels, top = [], 0
    for height, row in rows:
        left = 0
        for each in row:
            width = each["gridPos"]["w"]
            panels.append({"id": len(panels) + 1, **each, "gridPos": {"x": left, "y": top, "w": width, "h": height}})
            left += width
        assert left == 24, (uid, top, left)
        top += height
    links = [{"title": title.split(" / ")[1], "type": "link", "url": f"/d/{other}", "keepTime": True, "includeVars": True, "asDropdown": False,
              "icon": "dashboard", "tags": [], "targetBlank": False, "tooltip": ""} for other, title in TITLES.items() if other != uid]
    return {"uid": uid, "title": TITLES[uid], "tags": ["gatescope"], "schemaVersion": 39, "editable": True, "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "links": links,
            "templating": {"list": [*VARIABLES, *extra]}, "panels": panels}


DASHBOARDS = [
    dashboard("gatescope-fleet", FLEET),
    dashboard("gatescope-rows", ROWS, [REQUEST]),
    dashboard("gatescope-experts", EXPERTS, [PER_RANK]),
    dashboard("gatescope-capture", CAPTURE),
]


def main():
    stale = []
    for each in DASHBOARDS:
        path, text = FOLDER / f"{each['uid']}.json", json.dumps(each, indent=2) + "\n"
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_text() != text:
                stale.append(str(path))
        else:
            path.write_text(text)
    if stale:
        sys.exit(f"not as generate.py writes them: {', '.join(stale)}")


if __name__ == "__main__":
    main()
