"""When the plugin stands back."""

import os
import subprocess
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from gatescope.vllm import log, pair, register, versions
from gatescope.vllm.settings import Settings


class Engine:
    def step(self, rows):
        return [row + 1 for row in rows]


class Versions(unittest.TestCase):
    def test_known(self):
        for version in ("0.31.0", "0.31.0+cpu", "0.32.1", "0.33.0", "0.33.0rc1"):
            self.assertIsNone(versions.unsupported(version), version)

    def test_unknown(self):
        for version in ("0.30.2", "0.34.0", "1.0", "dev"):
            self.assertIn("vLLM", versions.unsupported(version), version)


class Shapes(unittest.TestCase):
    def test_same(self):
        versions.expect(Engine.step, ["self", "rows"], "row + 1")

    def test_other_parameters(self):
        with self.assertRaisesRegex(LookupError, "takes self, rows; expected self, blocks"):
            versions.expect(Engine.step, ["self", "blocks"])

    def test_other_code(self):
        with self.assertRaisesRegex(LookupError, "has no 'row - 1' in it"):
            versions.expect(Engine.step, ["self", "rows"], "row - 1")

    def test_a_method_is_wrapped_once(self):
        engine = type("Engine", (), {"step": lambda self: 1})

        def plus_one(step):
            return lambda self: step(self) + 1

        versions.replace(engine, "step", plus_one)
        versions.replace(engine, "step", plus_one)
        self.assertEqual(engine().step(), 2)


class Environment(unittest.TestCase):
    def test_no_collector(self):
        with mock.patch.dict(os.environ, clear=True):
            self.assertIsNone(Settings.from_environment())

    def test_defaults(self):
        with mock.patch.dict(os.environ, {"GATESCOPE_COLLECTOR": "grpc://h:1"}, clear=True):
            settings = Settings.from_environment()
        self.assertEqual((settings.run, settings.role, settings.spool), ("default", None, None))

    def test_a_role_that_is_none(self):
        values = {"GATESCOPE_COLLECTOR": "grpc://h:1", "GATESCOPE_ROLE": "both"}
        with mock.patch.dict(os.environ, values, clear=True), self.assertRaisesRegex(ValueError, "GATESCOPE_ROLE 'both'"):
            Settings.from_environment()

    def test_unset_it_does_not_look_for_vllm(self):
        code = "import sys, gatescope.vllm as plugin; plugin.register(); sys.exit('vllm' in sys.modules)"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GATESCOPE_")}
        self.assertEqual(subprocess.run([sys.executable, "-c", code], env=environment).returncode, 0)


class Registering(unittest.TestCase):
    def setUp(self):
        log._said.clear()
        environment = mock.patch.dict(os.environ, {"GATESCOPE_COLLECTOR": "grpc://h:1"})
        environment.start()
        self.addCleanup(environment.stop)

    def test_another_version_is_left_alone_and_said_once(self):
        with (
            mock.patch.dict(sys.modules, {"vllm": SimpleNamespace(__version__="0.34.0")}),
            self.assertLogs("vllm.gatescope", "WARNING") as logged,
        ):
            register()
            register()
        self.assertEqual(len(logged.output), 1)
        self.assertIn("stands back, vLLM stays as it is: vLLM 0.34.0", logged.output[0])

    def test_one_part_that_differs_keeps_all_from_being_wrapped(self):
        from gatescope.vllm import scheduler, worker

        with (
            mock.patch.dict(sys.modules, {"vllm": SimpleNamespace(__version__="0.33.0")}),
            mock.patch.object(scheduler, "check"),
            mock.patch.object(worker, "check", side_effect=LookupError("begin_step takes self")),
            mock.patch.object(pair, "check"),
            mock.patch.object(scheduler, "install") as first,
            mock.patch.object(worker, "install") as second,
            mock.patch.object(pair, "install") as third,
            self.assertLogs("vllm.gatescope", "WARNING") as logged,
        ):
            register()
        self.assertEqual([first.called, second.called, third.called], [False] * 3)
        self.assertIn("begin_step takes self", logged.output[0])


class Transfers(unittest.TestCase):
    def test_who_computes_the_prompt(self):
        decode = {"do_remote_prefill": False, "do_remote_decode": False, "remote_engine_id": "p0"}
        prefill = {"do_remote_decode": True, "remote_engine_id": None}
        self.assertTrue(pair.is_remote_decode(decode))
        self.assertFalse(pair.is_remote_decode(prefill))
        self.assertFalse(pair.is_remote_decode(None))
        self.assertTrue(pair.is_remote_prefill(prefill))
        self.assertFalse(pair.is_remote_prefill(decode))

    def test_a_prefill_that_reads_back(self):
        extra = {"bidirectional_kv_xfer": True}
        several = {"connectors": [{"kv_connector": "NixlConnector", "kv_connector_extra_config": extra}]}
        self.assertTrue(pair.reads_back(SimpleNamespace(kv_connector_extra_config=extra)))
        self.assertTrue(pair.reads_back(SimpleNamespace(kv_connector_extra_config=several)))
        self.assertFalse(pair.reads_back(SimpleNamespace(kv_connector_extra_config={})))
        self.assertFalse(pair.reads_back(None))


if __name__ == "__main__":
    unittest.main()
