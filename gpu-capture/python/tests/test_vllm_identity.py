"""Ids that vLLM 0.31 makes of ids that clients give."""

import unittest
from types import SimpleNamespace

from gatescope.vllm.identity import instance, outer_id

UUID = "7f1b103c-df15-82b0-eab4-77d26415479c"


class OuterIds(unittest.TestCase):
    def test_completion(self):
        self.assertEqual(outer_id(f"cmpl-{UUID}-0-85eeda8a"), (UUID, 0))

    def test_second_prompt_of_a_call(self):
        self.assertEqual(outer_id("cmpl-abc-1-85eeda8a"), ("abc", 1))

    def test_chat(self):
        self.assertEqual(outer_id("chatcmpl-abc-85eeda8a"), ("abc", 0))

    def test_chat_id_that_ends_like_an_index(self):
        self.assertEqual(outer_id("chatcmpl-turn-3-85eeda8a"), ("turn-3", 0))

    def test_generate(self):
        self.assertEqual(outer_id("generate-tokens-abc-0123abcd"), ("abc", 0))

    def test_choice(self):
        self.assertEqual(outer_id("2_cmpl-abc-0-85eeda8a"), ("abc", 2))
        self.assertEqual(outer_id("11_chatcmpl-abc-85eeda8a"), ("abc", 11))

    def test_id_that_looks_like_a_choice(self):
        self.assertEqual(outer_id("chatcmpl-2_abc-85eeda8a"), ("2_abc", 0))

    def test_router_puts_addresses_into_it(self):
        router = "___prefill_addr_10.0.0.1:8000___decode_addr_10.0.0.2:8000_abc"
        self.assertEqual(outer_id(f"chatcmpl-{router}-85eeda8a"), (router, 0))

    def test_id_of_an_offline_engine(self):
        self.assertEqual(outer_id("0-85eeda8a"), ("0", 0))

    def test_no_suffix(self):
        self.assertEqual(outer_id("chatcmpl-abc"), ("abc", 0))

    def test_an_id_of_another_form_stays_as_it_is(self):
        self.assertEqual(outer_id("request 5"), ("request 5", 0))
        self.assertEqual(outer_id("5_things"), ("5_things", 0))

    def test_nothing_is_left_of_it(self):
        self.assertEqual(outer_id("cmpl-0-85eeda8a"), ("0", 0))


def config(engine_id=None, ranks=1, rank=0):
    transfer = None if engine_id is None else SimpleNamespace(engine_id=engine_id)
    parallel = SimpleNamespace(data_parallel_size=ranks, data_parallel_rank=rank)
    return SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel, instance_id="1a2b3")


class Instances(unittest.TestCase):
    def test_engine_that_transfers_kv(self):
        self.assertEqual(instance(config("e0"), None), "e0")

    def test_rank_of_several(self):
        self.assertEqual(instance(config("e0", ranks=2, rank=1), None), "e0_dp1")

    def test_rank_that_vllm_has_put_into_the_id(self):
        self.assertEqual(instance(config("e0_dp1", ranks=2, rank=1), None), "e0_dp1")

    def test_engine_without_kv_transfer(self):
        self.assertTrue(instance(config(), None).endswith("-1a2b3"))

    def test_given_name(self):
        self.assertEqual(instance(config("e0", ranks=2, rank=1), "p0"), "p0_dp1")


if __name__ == "__main__":
    unittest.main()
