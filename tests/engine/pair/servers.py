"""The processes of a test: a collector, and vLLM as prefill, decode and colocated twin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

START = 900.0


def environment(name: str) -> str:
    return os.environ[name]


class Process:
    """A child that is its own process group, with a log."""

    def __init__(self, name: str, command: list[str], extra: dict[str, str], health: str) -> None:
        self.name, self._command, self._health = name, command, health
        self._environment = {**os.environ, **extra}
        self.log = Path(environment("OUT")) / f"{name}.log"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, within: float = START) -> None:
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(f"{self.name} has ended with {self._process.returncode}, see {self.log}")
            try:
                with urllib.request.urlopen(self._health, timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise RuntimeError(f"{self.name} is not up after {within:.0f} s, see {self.log}")

    def ended(self, within: float = START) -> int:
        """Its exit code, when it has ended by itself."""
        return self._process.wait(within)

    def stop(self, how: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for each in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, each)
                process.wait(30)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue
        # The group may outlive its leader.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def said(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")


class Collector(Process):
    def __init__(self, name: str = "collector") -> None:
        port = int(environment("PORT")) + 3
        self.http, self.flight = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
        data = Path(environment("OUT")) / name
        command = [environment("GATESCOPE"), "serve", "--data", str(data)]
        # A request that stays in pieces is closed after so long without another.
        command += ["--join-timeout", "90s"]
        command += ["--http", self.http, "--flight", self.flight, "--postgres", f"127.0.0.1:{port + 2}"]
        super().__init__(name, command, {}, f"http://{self.http}/readyz")

    def sql(self, query: str) -> list[dict]:
        request = urllib.request.Request(
            f"http://{self.http}/api/v1/sql",
            json.dumps({"query": query}).encode(),
            {"content-type": "application/json", "accept": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


@dataclass(frozen=True)
class Flags:
    """What the engines of a group of cases are started with."""

    model: str = "tiny-moe"
    every: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()


class Engine(Process):
    def __init__(self, role: str, flags: Flags, collector: Collector | None) -> None:
        self.role = role
        self.port = int(environment("PORT")) + ("prefill", "decode", "colocated").index(role)
        testbed = environment("TESTBED")
        command = [f"{testbed}/bin/vllm", "serve", f"{testbed}/models/{flags.model}", "--served-model-name", "tiny"]
        command += ["--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"]
        # The CPU's attention takes blocks of 32 and multiples of it.
        command += ["--block-size", "32", "--max-num-seqs", "8", "--enable-return-routed-experts"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *flags.every]
        if role != "colocated":
            transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
            transfer["kv_load_failure_policy"] = "recompute"
            command += ["--kv-transfer-config", json.dumps(transfer)]
        if role == "decode":
            command += flags.decode
        extra = {
            "TRITON_INTERPRET": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            # vLLM would bind each worker to one core, all of them to the same.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.port + 1000),
        }
        if collector is not None:
            extra["GATESCOPE_COLLECTOR"] = f"grpc://{collector.flight}"
            extra["GATESCOPE_RUN"] = "twin" if role == "colocated" else "default"
            extra["GATESCOPE_SPOOL"] = str(Path(environment("OUT")) / "spool")
        super().__init__(role, command, extra, f"http://127.0.0.1:{self.port}/health")

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def post(self, path: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", b""), timeout=60):
            pass


@dataclass
class Deployment:
    """Prefill, decode, twin and their collector."""

    flags: Flags
    collector: Collector
    engines: dict[str, Engine] = field(default_factory=dict)

    def start(self) -> None:
        for role in ("prefill", "decode", "colocated"):
            self.engines[role] = Engine(role, self.flags, self.collector)
            self.engines[role].start()
        for engine in self.engines.values():
            engine.wait()

    def stop(self) -> None:
        for engine in self.engines.values():
            engine.stop()
