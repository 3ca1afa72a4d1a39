"""python -m pair [CASE...]: see `tests/engine/run`."""

from __future__ import annotations

import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from pair.cases import CASES, Outcome
from pair.servers import Collector, Deployment, Flags, environment


def main() -> int:
    wanted = sys.argv[1:] or list(CASES)
    unknown = [name for name in wanted if name not in CASES]
    if unknown:
        print(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    # Whoever ends this ends the servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = Path(environment("OUT"))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    collector = Collector()
    collector.start()
    failed = 0
    try:
        collector.wait()
        groups: dict[Flags | None, list[str]] = {}
        for name in CASES:
            if name in wanted:
                groups.setdefault(CASES[name].flags, []).append(name)
        for flags, names in groups.items():
            failed += run_group(flags, names, collector)
    finally:
        collector.stop()
    return 1 if failed else 0


def run_group(flags: Flags | None, names: list[str], collector: Collector) -> int:
    deployment = Deployment(flags or Flags(), collector)
    failed = 0
    try:
        if flags is not None:
            said(f"starting {flags}")
            deployment.start()
        for name in names:
            begun = time.monotonic()
            try:
                outcome = CASES[name].run(deployment, name)
            except Exception as error:
                traceback.print_exc()
                outcome = Outcome(False, f"{type(error).__name__}: {error}")
            failed += not outcome.passed
            verdict = "pass" if outcome.passed else "FAIL"
            print(f"{name:18} {verdict}  {time.monotonic() - begun:5.0f} s  {CASES[name].what}: {outcome.note}", flush=True)
            for fault in outcome.faults[:5]:
                said(f"    {fault}")
    except RuntimeError as error:
        failed += len(names)
        for name in names:
            print(f"{name:18} FAIL  {CASES[name].what}: {error}", flush=True)
    finally:
        deployment.stop()
    return failed


def said(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
