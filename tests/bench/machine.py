"""What the numbers of a benchmark were measured on, and the process that measures one command."""

import json
import os
import platform
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """What one run of a command cost."""

    seconds: float
    cpu_seconds: float
    peak_rss_mib: float
    stdout: bytes


def run(command, environment=None):
    """Runs a command to its end. A non-zero exit is an error: a benchmark measures work that was done."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as complaints:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=complaints, env=environment and os.environ | environment
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        complaints.seek(0)
        if process.returncode != 0:
            text = complaints.read().decode(errors="replace")
            raise SystemExit(f"{' '.join(map(str, command))}: exit {process.returncode}\n{text}")
        return Run(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, out.read())


def best(repeats, measure):
    """The fastest of some runs."""
    return min((measure() for _ in range(repeats)), key=lambda run: run.seconds)


def fdatasync(folder, seconds=3.0):
    """Median milliseconds of writing and syncing 4 KiB, and MB/s of writing 256 MiB and syncing once."""
    path, block, times = Path(folder) / "sync-probe", os.urandom(4096), []
    with path.open("wb", buffering=0) as file:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            begun = time.perf_counter()
            file.write(block)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
        chunk = os.urandom(1 << 20)
        begun = time.perf_counter()
        for _ in range(256):
            file.write(chunk)
        os.fdatasync(file.fileno())
        bandwidth = 256 * (1 << 20) / (time.perf_counter() - begun) / 1e6
    path.unlink()
    return sorted(times)[len(times) // 2] * 1e3, bandwidth


def describe(folder):
    """Lines of text: processor, memory, disk, load, versions."""
    cpu = json.loads(subprocess.run(["lscpu", "--json"], check=True, capture_output=True).stdout)["lscpu"]
    fields = {entry["field"].rstrip(":"): entry["data"] for entry in cpu}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    sync_ms, bandwidth = fdatasync(folder)
    return [
        f"{os.cpu_count()} x {fields['Model name']} (family {fields.get('CPU family', '?')}, model "
        f"{fields.get('Model', '?')}), {memory:.0f} GiB memory, Linux {platform.release()}",
        f"disk of the data folder: 4 KiB write + fdatasync {sync_ms:.1f} ms (median), 256 MiB + fdatasync "
        f"{bandwidth:.0f} MB/s",
        f"load average at the start {os.getloadavg()[0]:.1f}",
    ]
