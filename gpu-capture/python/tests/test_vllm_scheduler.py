"""The scheduler's side inside vLLM's own class; skipped where vLLM is not installed."""

import importlib.util
import pickle
import unittest
from collections import OrderedDict
from types import SimpleNamespace

from gatescope.vllm.settings import Settings

DECODE = {"do_remote_prefill": True, "remote_engine_id": "p0", "remote_request_id": "cmpl-abc-0-00000001"}
PREFILL = {"do_remote_decode": True, "remote_engine_id": None}


class Request(SimpleNamespace):
    @property
    def num_tokens(self):
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self):
        return self.finished


def request(params=None, prompt=100, computed=0):
    return Request(
        request_id="cmpl-abc-0-85eeda8a",
        kv_transfer_params=params,
        num_prompt_tokens=prompt,
        num_output_tokens=0,
        num_computed_tokens=computed,
        block_hashes=[],
        sampling_params=SimpleNamespace(routed_experts_prompt_start=0),
        finished=False,
    )


@unittest.skipUnless(importlib.util.find_spec("vllm"), "vLLM is not installed")
class Metadata(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from gatescope.vllm import scheduler, versions

        if reason := versions.unsupported():
            raise unittest.SkipTest(reason)
        cls.settings = Settings("grpc://127.0.0.1:9", "test", None, None, None, None)
        scheduler.check()
        scheduler.install(cls.settings)

    def setUp(self):
        from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector

        from gatescope.vllm.scheduler import SchedulerTap

        self.connector = object.__new__(AuxOutputSchedulerConnector)
        nothing_cached = SimpleNamespace(get_cached_block=lambda *_: None)
        self.connector.__dict__.update(
            _sent_hash_counts={},
            _finished_requests={},
            _generation=0,
            # vLLM 0.33 knows more.
            _group_id=0,
            _block_size=32,
            _hash_block_size=32,
            _manager=SimpleNamespace(block_pool=nothing_cached),
            _kv_cached=OrderedDict(),
            _loading={},
            _capacity=8,
            _retained_hashes=[],
            _released_hashes=[],
        )
        config = SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id="d0"))
        self.tap = self.connector.gatescope = SchedulerTap(self.settings, config)

    def step(self, *requests, tokens=1):
        output = SimpleNamespace(num_scheduled_tokens={each.request_id: tokens for each in requests})
        metadata = self.connector.build_connector_meta(output, {each.request_id: each for each in requests})
        # To the workers it goes pickled.
        return pickle.loads(pickle.dumps(metadata))

    def test_a_decode_emits_from_its_first_forward(self):
        decode = request(DECODE, computed=99)
        metadata = self.step(decode)
        self.assertEqual(metadata.requests, {decode.request_id: 99})
        begin = metadata.gatescope.begins[decode.request_id]
        self.assertEqual((begin.outer_id, begin.choice, begin.role, begin.first_forward), ("abc", 0, "decode", 99))
        self.assertEqual(
            (begin.engine_id, begin.remote_engine_id, begin.remote_request_id), ("d0", "p0", "cmpl-abc-0-00000001")
        )
        self.assertEqual(self.step(decode).gatescope.begins, {})

    def test_others_emit_from_the_beginning(self):
        for params, role in ((PREFILL, "prefill"), (None, "colocated")):
            each = request(params)
            metadata = self.step(each, tokens=100)
            self.assertEqual(metadata.requests, {each.request_id: 0})
            begin = metadata.gatescope.begins[each.request_id]
            self.assertEqual((begin.role, begin.first_forward, begin.remote_engine_id), (role, 0, None))
            each.finished = True
            self.connector.request_finished(each)

    def test_the_floor_survives_preemption_and_goes_at_the_end(self):
        decode = request(DECODE, computed=99)
        self.step(decode)
        self.connector.request_finished(decode)
        decode.num_computed_tokens = 0

        metadata = self.step(decode, tokens=100)

        self.assertEqual(metadata.requests[decode.request_id], 99)
        self.assertEqual(metadata.gatescope.preempted, [decode.request_id])
        self.assertEqual(metadata.gatescope.begins[decode.request_id].attempt, 1)
        decode.num_output_tokens, decode.finished = 7, True
        self.connector.request_finished(decode)
        facts = self.step().gatescope
        self.assertEqual(facts.finished[decode.request_id].rows, 106)
        self.assertEqual(self.tap._known, {})

    def test_a_failed_load_lowers_it(self):
        decode = request(DECODE, computed=32)
        self.assertEqual(self.step(decode, tokens=68).requests[decode.request_id], 32)

    def test_a_prefill_hands_over(self):
        prefill = request(PREFILL)
        self.step(prefill, tokens=100)
        prefill.num_output_tokens, prefill.finished = 1, True
        self.connector.request_finished(prefill)
        finish = self.step().gatescope.finished[prefill.request_id]
        self.assertEqual((finish.handed_over, finish.rows), (True, 100))

    def test_steps_are_settled_in_order(self):
        each = request()
        first, second = self.step(each), self.step(each)
        self.assertEqual((first.gatescope.step, second.gatescope.step, second.gatescope.settled), (0, 1, -1))
        self.tap.settle(first)
        third = self.step(each)
        self.assertEqual((third.gatescope.step, third.gatescope.settled), (2, 0))
        each.finished = True
        self.connector.request_finished(each)
        self.assertEqual(self.step().gatescope.step, -1)

    def test_kv_from_elsewhere_is_not_capped_for_a_decode(self):
        if not hasattr(type(self.connector), "cap_external_hit"):
            self.skipTest("this vLLM caps nothing")
        self.assertEqual(self.connector.cap_external_hit(request(DECODE), 0, 100), 100)
        self.assertEqual(self.connector.cap_external_hit(request(), 0, 64), 0)


if __name__ == "__main__":
    unittest.main()
