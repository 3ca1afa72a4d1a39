"""Rows of finished SGLang requests."""

import unittest
from types import SimpleNamespace

import numpy as np

from gatescope.sglang.rows import Reporter, known, moe_layers


class Listener:
    def __init__(self):
        self.started, self.rows, self.finished = [], {}, []

    def start(self, request_id, **facts):
        self.started.append((request_id, facts))

    def capture_step(self, request_ids, firsts, offsets, rejected, rows):
        for index, row in enumerate(rows):
            self.rows[firsts[0] + index] = row.ravel().tolist()

    def finish(self, request_id, *, completion_tokens):
        self.finished.append((request_id, completion_tokens))


def request(prompt, completion, start=0, room=None):
    positions = np.arange(start, prompt + completion - 1, dtype=np.int32)
    return SimpleNamespace(
        rid="abc",
        origin_input_ids=[0] * prompt,
        output_ids_through_stop=[0] * completion,
        routed_experts_start_len=start,
        routed_experts=np.stack([positions, positions + 1], axis=1)[:, None, :],
        bootstrap_room=room,
        bootstrap_host="p",
        bootstrap_port=8998,
    )


class Reports(unittest.TestCase):
    def report(self, role, **sizes):
        agent = Listener()
        Reporter(agent, role, 128).report(request(**sizes))
        return agent

    def test_colocated(self):
        agent = self.report("colocated", prompt=3, completion=4)
        self.assertEqual(agent.rows, {position: [position, position + 1] for position in range(6)})
        self.assertEqual(agent.finished, [("abc", 4)])

    def test_omitted_prefix(self):
        agent = self.report("colocated", prompt=5, completion=2, start=4)
        self.assertEqual(list(agent.rows), [4, 5])
        self.assertEqual(agent.started[0][1]["prompt_start"], 4)

    def test_halves_of_a_pair_meet(self):
        prefill = self.report("prefill", prompt=3, completion=1, room=7)
        decode = self.report("decode", prompt=3, completion=4, room=7)
        self.assertEqual(list(prefill.rows), [0, 1, 2])
        self.assertEqual(list(decode.rows), [3, 4, 5])
        (name, facts), (_, other) = prefill.started[0], decode.started[0]
        self.assertEqual((facts["engine_id"], name), (other["remote_engine_id"], other["remote_request_id"]))
        self.assertEqual((other["first_forward"], prefill.finished, len(decode.finished)), (3, [], 1))

    def test_unknown_rows_are_left_out(self):
        rows = np.zeros((5, 2, 2), np.int32)
        rows[2, 1, 0] = -1
        self.assertEqual([(first, len(part)) for first, part in known(rows, 8)], [(0, 2), (3, 2)])
        self.assertEqual(list(known(rows[:0], 8)), [])


class Layers(unittest.TestCase):
    def config(self, **values):
        return SimpleNamespace(num_hidden_layers=6, **values)

    def test_families(self):
        self.assertEqual(moe_layers(self.config()), [0, 1, 2, 3, 4, 5])
        self.assertEqual(moe_layers(self.config(mlp_only_layers=[0], decoder_sparse_step=1)), [1, 2, 3, 4, 5])
        self.assertEqual(moe_layers(self.config(decoder_sparse_step=2)), [1, 3, 5])
        self.assertEqual(moe_layers(self.config(first_k_dense_replace=3, moe_layer_freq=1)), [3, 4, 5])
        self.assertEqual(moe_layers(self.config(moe_layer_freq=[0, 1, 1, 0, 1, 1])), [1, 2, 4, 5])


if __name__ == "__main__":
    unittest.main()
