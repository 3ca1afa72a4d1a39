"""The worker's side inside vLLM's own classes; skipped where vLLM is not installed."""

import importlib.util
import unittest
from threading import Lock
from types import SimpleNamespace

import numpy as np

from gatescope.vllm.facts import Begin, StepFacts
from gatescope.vllm.settings import Settings

BLOCK = 32


def begin(first_forward):
    return Begin("outer", 0, "decode", 120, first_forward, 0, True, "d0", "p0", "inner")


def rows(first, end):
    return np.arange(first, end, dtype=np.uint8).repeat(2).reshape(-1, 1, 2)


@unittest.skipUnless(importlib.util.find_spec("vllm"), "vLLM is not installed")
class Commit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from gatescope.vllm import pair, scheduler, versions, worker

        if reason := versions.unsupported():
            raise unittest.SkipTest(reason)
        cls.settings = Settings("grpc://127.0.0.1:9", "test", None, "d0", None, None)
        for part in (scheduler, worker, pair):
            part.check()
            part.install(cls.settings)

    def setUp(self):
        import torch
        from vllm.distributed.aux_output_connector.routed_experts import RoutedExpertsBuffer
        from vllm.distributed.aux_output_connector.store import BackgroundBlockObjectStore, BlockObjectStore
        from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector

        from gatescope.vllm.worker import WorkerTap

        connector = object.__new__(AuxOutputWorkerConnector)
        connector._buffer = RoutedExpertsBuffer(np.dtype("u1"), (1, 2), BLOCK, 8, 256, 2)
        connector._store = BackgroundBlockObjectStore(
            BlockObjectStore(max_bytes=64 * BLOCK * 2, object_nbytes=BLOCK * 2), max_pending_batches=16
        )
        connector._capturer = SimpleNamespace(shape_per_token=(1, 2))
        connector._requests, connector._pending_outputs = {}, []
        connector._generation, connector._step_metadata = 0, None
        connector._lock, connector._max_concurrent_batches = Lock(), 2
        config = SimpleNamespace(
            kv_transfer_config=None,
            parallel_config=SimpleNamespace(data_parallel_size=1, data_parallel_rank=0),
            model_config=SimpleNamespace(served_model_name="m", model="m", get_num_experts=lambda: 256),
        )
        connector.gatescope = connector._buffer.gatescope = WorkerTap(self.settings, config, torch.nn.Module(), connector)
        self.connector, self.steps = connector, 0
        self.addCleanup(connector.gatescope._agent.close, 0.0)

    def step(self, request_id, first, end, *, emit, begins=None, sampled=0, rejected=0, hashes=0):
        from vllm.distributed.aux_output_connector.connector import AuxOutputConnectorMetadata, PackedBlockHashes
        from vllm.distributed.aux_output_connector.worker import PendingAuxOutput

        packed = {}
        if hashes:
            packed[request_id] = PackedBlockHashes(b"".join(bytes([index]) * 4 for index in range(hashes)), 4)
        metadata = AuxOutputConnectorMetadata(0, {request_id: emit}, packed, ())
        metadata.gatescope = StepFacts(step=self.steps, settled=self.steps - 1, begins=begins or {})
        self.steps += 1
        self.connector.begin_step(metadata)
        pending = PendingAuxOutput(
            connector=self.connector,
            request_ids=[request_id],
            token_starts=np.array([first], np.int32),
            query_start_loc=np.array([0, end - first], np.int32),
            routed_experts_gpu=None,
            routed_experts=rows(first, end),
            num_sampled=np.array([sampled], np.int32),
            num_rejected=np.array([rejected], np.int32),
        )
        self.connector._pending_outputs.append(pending)
        self.connector._requests[request_id].pending_outputs += 1
        self.connector.gatescope.prepared(pending)
        return self.connector.process_output(pending).get(request_id)

    def same(self, output, first, end):
        self.assertEqual(output.token_start, first)
        np.testing.assert_array_equal(output.rows, rows(first, end))

    def captured(self):
        self.connector.gatescope._told.drain(all_of_it=True)
        return self.connector.gatescope._agent.stats()["captured_positions"]

    def test_a_decode_from_the_last_token_of_the_prompt(self):
        self.same(self.step("d", 119, 120, emit=119, begins={"d": begin(119)}, sampled=1, hashes=3), 119, 120)
        for position in range(120, 135):
            self.same(self.step("d", position, position + 1, emit=position, sampled=1), position, position + 1)
        self.assertEqual(self.captured(), 16)

    def test_a_first_forward_inside_a_block_in_chunks(self):
        self.assertIsNone(self.step("d", 40, 100, emit=40, begins={"d": begin(40)}, hashes=3))
        self.same(self.step("d", 100, 120, emit=40, sampled=1), 40, 120)
        self.same(self.step("d", 120, 121, emit=120, sampled=1), 120, 121)
        self.assertEqual(self.captured(), 81)

    def test_chunks_that_end_inside_the_first_block(self):
        self.assertIsNone(self.step("d", 100, 105, emit=100, begins={"d": begin(100)}, hashes=3))
        self.assertIsNone(self.step("d", 105, 110, emit=100))
        self.same(self.step("d", 110, 120, emit=100, sampled=1), 100, 120)
        self.same(self.step("d", 120, 140, emit=120, sampled=1), 120, 140)

    def test_a_failed_load_that_left_whole_blocks(self):
        self.assertIsNone(self.step("d", 64, 110, emit=64, begins={"d": begin(64)}, hashes=3))
        self.same(self.step("d", 110, 120, emit=64, sampled=1), 64, 120)

    def test_rejected_guesses(self):
        self.same(self.step("d", 119, 120, emit=119, begins={"d": begin(119)}, sampled=1, hashes=3), 119, 120)
        self.same(self.step("d", 120, 123, emit=120, sampled=1, rejected=2), 120, 121)
        self.same(self.step("d", 121, 124, emit=121, sampled=2, rejected=1), 121, 123)
        self.assertEqual(self.captured(), 4)

    def test_a_request_that_hits_blocks_from_elsewhere_is_answered_behind_them(self):
        self.step("d", 119, 120, emit=119, begins={"d": begin(119)}, sampled=1, hashes=3)
        # The same prompt without a prefill: vLLM finds three blocks in its cache, and has no row of them.
        output = self.step("c", 96, 120, emit=0, sampled=1, hashes=3)
        self.same(output, 96, 120)

    def test_a_request_that_hits_blocks_of_its_own_engine_is_answered_whole(self):
        self.step("d", 119, 120, emit=119, begins={"d": begin(119)}, sampled=1)
        self.same(self.step("a", 0, 70, emit=0, sampled=1, hashes=2), 0, 70)
        output = self.step("b", 64, 80, emit=0, sampled=1, hashes=2)
        self.same(output, 0, 80)
        self.assertEqual(self.captured(), 1 + 70 + 16)


if __name__ == "__main__":
    unittest.main()
