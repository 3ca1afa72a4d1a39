// The page in a real browser, in front of `gatescope demo`. Started by ./run.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const program = process.env.GATESCOPE ?? "gatescope";
const pictures = process.env.PICTURES;
const axe = await readFile(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
// Chromium's own background traffic is off: it would fail, loudly, on a machine without a network.
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

let demo, origin, browser;

before(async () => {
  demo = spawn(program, ["demo", "--http", "127.0.0.1:0", "--flight", "127.0.0.1:0", "--postgres", "127.0.0.1:0", "--rate", "1500"], { stdio: ["ignore", "inherit", "pipe"] });
  origin = await new Promise((resolve, reject) => {
    let said = "";
    demo.stderr.on("data", (data) => {
      said += data;
      const found = said.match(/page +(http:\S+?)\/\n/);
      if (found) resolve(found[1]);
    });
    demo.on("exit", (code) => reject(new Error(`the demo ended with ${code}: ${said}`)));
  });
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
  await until(() => ask("SELECT 1 FROM mismatches LIMIT 1"), "no finding within 60 s", 60);
});

after(async () => {
  await browser?.close();
  demo?.kill("SIGINT");
  const code = await new Promise((resolve) => demo?.on("exit", resolve));
  assert.equal(code, 0, "the demo did not stop cleanly");
});

async function ask(query) {
  const answer = await fetch(`${origin}/api/v1/sql`, { method: "POST", body: JSON.stringify({ query }) });
  const rows = await answer.json();
  return rows.length > 0 ? rows : null;
}

async function until(found, otherwise, seconds = 60) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; ) {
    const value = await found();
    if (value) return value;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  throw new Error(otherwise);
}

/** A page that fails the test if anything is complained about on its console. */
async function open(path, { width = 1280, scheme = "light" } = {}) {
  const page = await browser.newPage({ viewport: { width, height: width < 500 ? 844 : 860 }, colorScheme: scheme });
  page.setDefaultTimeout(60_000);
  page.complaints = [];
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) page.complaints.push(message.text()); });
  page.on("pageerror", (error) => page.complaints.push(error.message));
  page.on("request", (request) => { if (!request.url().startsWith(origin) && !request.url().startsWith("blob:")) page.complaints.push(`asked ${request.url()}`); });
  await page.goto(`${origin}/#/${path}`);
  return page;
}

async function close(page) {
  assert.deepEqual(page.complaints, []);
  await page.close();
}

const text = (page, selector) => page.locator(selector).first().innerText();

test("the fleet is there and moves", async () => {
  const page = await open("");
  await page.locator(".card strong").first().waitFor();
  const before = await text(page, ".card strong");
  await until(async () => (await text(page, ".card strong")) !== before, "the number of requests stands still");
  await page.locator("canvas").waitFor();
  assert.match(await text(page, "main"), /d1/);
  assert.match(await text(page, ".alerts"), /GS0\d\d/);
  await close(page);
});

test("from a finding to its request, to both sides' rows", async () => {
  const page = await open("");
  await page.locator(".alerts a", { hasText: "requests" }).first().click();
  await page.locator("tbody a").first().click();
  await page.locator(".lanes .bar.total b").first().waitFor();
  await page.locator("h2", { hasText: "Findings" }).waitFor();
  await page.locator(".tag.error, .tag.warning").first().waitFor();
  await page.locator("#h-rows").waitFor();
  await page.locator("td .ids span").first().waitFor();
  await close(page);
});

test("SQL is answered, refused readably, and by keyboard", async () => {
  const page = await open("sql");
  await page.locator("#query").fill("SELECT 6 * 7 AS answer");
  await page.locator("#query").press("Control+Enter");
  await page.locator(".result td", { hasText: "42" }).waitFor();
  await page.locator("#query").fill("DROP TABLE requests");
  await page.locator("button.first").click();
  await page.locator(".wrong").waitFor();
  assert.ok((await text(page, ".wrong")).length > 10);
  // The browser itself says that an answer was 400.
  page.complaints = page.complaints.filter((complaint) => !complaint.includes("400"));
  await close(page);
});

test("names of requests are text, never markup", async () => {
  const line = { role: "colocated", request_id: "<img src=x onerror=alert(1)>", response: { id: "cmpl-x", choices: [], usage: {} } };
  await fetch(`${origin}/api/v1/responses`, { method: "POST", body: `${JSON.stringify(line)}\n` });
  const page = await open(`request/${encodeURIComponent(line.request_id)}`);
  await page.locator("h1").waitFor();
  assert.equal(await text(page, "h1"), line.request_id);
  assert.equal(await page.locator("main img").count(), 0);
  await close(page);
});

test("the heatmap is read with the arrow keys", async () => {
  const page = await open("experts");
  await page.locator("canvas").first().waitFor();
  await until(async () => (await page.locator(".scale i").count()) > 0, "no heatmap");
  await page.locator("canvas").first().focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  assert.match(await page.locator("#said").textContent(), /layer 1, expert 0: [\d,]+ tokens/);
  await close(page);
});

// Every width and every theme; all four pairs where pictures are wanted.
const LOOKS = [[1280, "light"], [390, "dark"], ...(pictures ? [[1280, "dark"], [390, "light"]] : [])];
for (const [width, scheme] of LOOKS) {
  test(`axe finds nothing serious at ${width} px, ${scheme}`, async () => {
    const one = (await ask("SELECT request_id, run FROM mismatches LIMIT 1"))[0];
    for (const [name, path] of [["fleet", ""], ["experts", "experts"], ["requests", "requests"], ["request", `request/${one.request_id}?run=${one.run}`], ["sql", "sql"]]) {
      const page = await open(path, { width, scheme });
      await page.locator('main[aria-busy="false"]').waitFor({ state: "attached" });
      await page.waitForTimeout(200);
      await page.evaluate(axe);
      const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
      const serious = found.violations.filter((violation) => ["serious", "critical"].includes(violation.impact));
      assert.deepEqual(serious.map((violation) => `${violation.id}: ${violation.nodes.map((node) => node.target).join(" ")}`), [], name);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth + 1);
      assert.ok(!wide, `${name} scrolls sideways at ${width} px`);
      if (pictures) await page.screenshot({ path: `${pictures}/${name}-${width}-${scheme}.png` });
      await close(page);
    }
  });
}

test("first paint within a second, and little to load", async () => {
  const page = await open("");
  await page.locator(".card").first().waitFor();
  const [paint, bytes] = await page.evaluate(() => [
    performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
    performance.getEntriesByType("resource").filter((entry) => !entry.name.includes("/api/")).reduce((sum, entry) => sum + entry.decodedBodySize, 0),
  ]);
  assert.ok(paint < 1000, `first paint after ${paint} ms`);
  assert.ok(bytes > 10_000 && bytes < 500 * 1024, `${bytes} bytes`);
  await close(page);
});
