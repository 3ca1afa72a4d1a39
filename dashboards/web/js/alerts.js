// What needs someone: derived from findings, load and silence of the last minutes.

import { h } from "./dom.js";
import { HOT } from "./heatmap.js";
import { CHECKS } from "./checks.js";
import { brief, ratio } from "./words.js";

const SILENT_SECONDS = 60;

export function alerts({ findings, rows, instances }) {
  const list = findings.map((finding) => ({
    severity: finding.severity,
    title: `${finding.check} ${CHECKS[finding.check]?.[0] ?? ""}`,
    text: `${CHECKS[finding.check]?.[1] ?? ""} ${brief(finding.requests)} request${finding.requests > 1 ? "s" : ""} in the last 10 minutes${finding.instance ? `, most on ${finding.instance}` : ""}.`,
    href: `#/requests?check=${finding.check}`,
    link: "requests",
  }));
  const hot = rows.filter((row) => row.sum && row.imbalance > HOT).sort((a, b) => b.imbalance - a.imbalance);
  if (hot.length) {
    const [worst] = hot;
    list.push({
      severity: "warning",
      title: "Load imbalance",
      text: `Layer ${worst.layer}: expert ${worst.top} has ${ratio(worst.imbalance)} the mean${hot.length > 1 ? `; ${hot.length} layers are above ${HOT}×` : ""}.`,
      href: "#/experts",
      link: "experts",
    });
  }
  for (const instance of instances.filter((one) => one.silent > SILENT_SECONDS && one.silent < 900)) {
    list.push({
      severity: "warning",
      title: "Agent silent",
      text: `${instance.instance} (${instance.role}) has sent nothing for ${Math.round(instance.silent)} s.`,
      href: "#/requests",
      link: "requests",
    });
  }
  return list.sort((a, b) => a.severity.localeCompare(b.severity));
}

export function alertList(list) {
  if (!list.length) return h("p.calm", {}, h("span", { "aria-hidden": "true" }, "✓"), "Nothing needs you: no finding in the last 10 minutes.");
  return h("ul.alerts", {}, list.map((alert) => h("li", { class: alert.severity },
    h(`span.tag.${alert.severity}`, {}, alert.severity), h("strong", {}, alert.title), h("a", { href: alert.href }, alert.link), h("p", {}, alert.text))));
}
