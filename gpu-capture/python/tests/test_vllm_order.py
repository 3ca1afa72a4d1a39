"""Rows of steps in flight, and blocks known in part."""

import unittest
from types import SimpleNamespace

import numpy as np

from gatescope.vllm.facts import Begin, Finish, StepFacts
from gatescope.vllm.partial_block import PartialBlocks
from gatescope.vllm.told import Told


class Listener:
    """Writes down what an agent is told."""

    def __init__(self):
        self.heard = []

    def start(self, request_id, *, attempt, **_):
        self.heard.append(("start", request_id, attempt))

    def preempt(self, request_id):
        self.heard.append(("preempt", request_id))

    def finish(self, request_id, *, completion_tokens):
        self.heard.append(("finish", request_id, completion_tokens))

    def generation(self, generation):
        self.heard.append(("generation", generation))

    def cached_blocks(self, request_id, first_block, hashes, rows):
        self.heard.append(("cached", request_id, first_block, len(hashes)))

    def capture_step(self, request_ids, firsts, offsets, rejected, rows):
        for index, request_id in enumerate(request_ids):
            taken = rows[offsets[index] : offsets[index + 1] - rejected[index]]
            self.heard.append(("rows", request_id, int(firsts[index]), taken.ravel().tolist()))


def begin(attempt=0):
    return Begin("outer", 0, "colocated", 3, 0, attempt, False, None, None, None)


def rows(first, count):
    return np.arange(first, first + count, dtype=np.uint8).reshape(-1, 1, 1)


class Order(unittest.TestCase):
    def setUp(self):
        self.agent = Listener()
        self.told = Told(self.agent, steps_in_flight=2)

    def launch(self, step, request_ids, **facts):
        self.told.step(StepFacts(step=step, **facts), None)
        return SimpleNamespace(request_ids=request_ids, gatescope=self.told.launched(request_ids, step))

    def arrive(self, pending, firsts, counts, rejected=None):
        pending.query_start_loc = np.cumsum([0, *counts], dtype=np.int32)
        pending.num_rejected = np.array(rejected or [0] * len(counts), np.int32)
        pending.routed_experts = np.concatenate([rows(first, count) for first, count in zip(firsts, counts)])
        self.told.captured(pending, np.array(firsts, np.int64))
        self.told.drain()

    def test_rows_wait_until_the_scheduler_has_taken_the_step(self):
        first = self.launch(0, ["a"], begins={"a": begin()})
        self.arrive(first, [0], [3])
        self.assertEqual(self.agent.heard, [("start", "a", 0)])

        self.launch(1, ["a"], settled=0)
        self.told.drain()

        self.assertEqual(self.agent.heard[1:], [("rows", "a", 0, [0, 1, 2])])

    def test_rows_after_the_end_are_left_out(self):
        # A prompt of 3; the second token, sampled by step 1, is the last; step 2 was on its way already.
        steps = [self.launch(0, ["a"], begins={"a": begin()}), self.launch(1, ["a"])]
        self.arrive(steps[0], [0], [3])
        steps.append(self.launch(2, ["a"], settled=0))
        self.arrive(steps[1], [3], [1])
        self.told.step(StepFacts(settled=1, finished={"a": Finish(3, 2)}), None)
        self.arrive(steps[2], [4], [1])

        self.assertEqual(
            self.agent.heard,
            [("start", "a", 0), ("rows", "a", 0, [0, 1, 2]), ("rows", "a", 3, [3]), ("rows", "a", 4, []), ("finish", "a", 2)],
        )

    def test_a_prefill_does_not_say_how_long_the_completion_is(self):
        self.arrive(self.launch(0, ["a"], begins={"a": begin()}), [0], [3])
        self.told.step(StepFacts(settled=0, finished={"a": Finish(3, 1, handed_over=True)}), None)
        self.told.drain()
        self.assertEqual(self.agent.heard[1:], [("rows", "a", 0, [0, 1, 2]), ("finish", "a", None)])

    def test_a_stop_among_accepted_guesses_cuts_them(self):
        step = self.launch(0, ["a", "b"], begins={"a": begin(), "b": begin()})
        self.arrive(step, [0, 7], [6, 4], rejected=[1, 1])

        self.told.step(StepFacts(settled=0, finished={"a": Finish(2, 2)}), None)
        self.told.drain()

        self.assertEqual(self.agent.heard[2:], [("rows", "a", 0, [0, 1, 2]), ("rows", "b", 7, [7, 8, 9]), ("finish", "a", 2)])

    def test_a_preemption_comes_after_the_rows_before_it(self):
        first = self.launch(0, ["a"], begins={"a": begin()})
        second = self.launch(1, ["b"], begins={"b": begin()}, preempted=["a"])
        self.arrive(first, [0], [3])
        third = self.launch(2, ["a"], begins={"a": begin(1)}, settled=0)
        self.arrive(second, [0], [1])
        self.arrive(third, [0], [4])
        self.told.drain(all_of_it=True)

        told = [heard for heard in self.agent.heard if heard[1] == "a"]
        self.assertEqual(
            told,
            [("start", "a", 0), ("rows", "a", 0, [0, 1, 2]), ("preempt", "a"), ("start", "a", 1), ("rows", "a", 0, [0, 1, 2, 3])],
        )

    def test_a_generation_separates_rows(self):
        self.arrive(self.launch(0, ["a"]), [0], [1])
        self.told.step(StepFacts(settled=0), 1)
        self.told.drain()
        self.assertEqual(self.agent.heard, [("rows", "a", 0, [0]), ("generation", 1)])

    def test_a_scheduler_that_says_nothing_holds_up_few_steps(self):
        for step in range(20):
            self.arrive(self.launch(step, ["a"]), [step], [1])
        self.assertGreaterEqual(len(self.agent.heard), 15)

    def test_a_step_without_rows_holds_up_nothing(self):
        steps = [self.launch(step, ["a"]) for step in range(2)]
        self.told.lost(steps[0])
        self.arrive(steps[1], [7], [1])
        self.told.drain(all_of_it=True)
        self.assertEqual(self.agent.heard, [("rows", "a", 7, [7])])

    def test_a_hit_comes_before_the_rows_after_it(self):
        step = self.launch(0, ["a"], begins={"a": begin()})
        self.told.cached("a", 0, [b"h"], rows(0, 4))
        self.arrive(step, [4], [2])
        self.told.drain(all_of_it=True)
        self.assertEqual(self.agent.heard[1:], [("cached", "a", 0, 1), ("rows", "a", 4, [4, 5])])


class PartialBlock(unittest.TestCase):
    def setUp(self):
        self.partial = PartialBlocks(4)
        self.partial.first_forwards["d"] = 6
        self.state = SimpleNamespace(emit_cursor=6)

    def step(self, sampled):
        return SimpleNamespace(request_ids=["d"], num_sampled=[sampled])

    def test_rows_up_to_the_end_of_the_block_go_around_the_buffer(self):
        self.assertEqual(self.partial.take("d", 6, rows(6, 7), False), 2)
        self.assertEqual(self.partial.take("d", 8, rows(8, 2), False), 0)
        self.assertEqual(self.partial.take("d", 9, rows(9, 1), True), 0)
        self.assertEqual(self.partial.first_block("d"), 2)

    def test_other_requests_are_untouched(self):
        self.assertEqual(self.partial.take("c", 6, rows(6, 1), False), 0)
        self.assertEqual(self.partial.first_block("c"), 0)

    def test_rows_from_before_the_first_token_are_put_in_front(self):
        self.partial.take("d", 6, rows(6, 1), False)
        self.assertEqual(self.partial.before(self.step(0), {"d": self.state}), {})
        self.partial.take("d", 7, rows(7, 3), False)

        fronts = self.partial.before(self.step(1), {"d": self.state})
        # vLLM answers from where it knows rows.
        self.assertEqual(self.state.emit_cursor, 8)
        output = SimpleNamespace(token_start=8, rows=rows(8, 5))
        self.partial.after({"d": output}, fronts)

        self.assertEqual((output.token_start, output.rows.ravel().tolist()), (6, list(range(6, 13))))

    def test_what_was_answered_is_not_answered_again(self):
        self.partial.take("d", 6, rows(6, 1), False)
        self.state.emit_cursor = 7
        self.assertEqual(self.partial.before(self.step(1), {"d": self.state}), {})
        self.assertEqual(self.state.emit_cursor, 7)

    def test_requests_that_are_gone_are_forgotten(self):
        for index in range(5000):
            self.partial.first_forwards[f"r{index}"] = 1
        self.partial.forget({"d": self.state})
        self.assertEqual(self.partial.first_forwards, {"d": 6})


if __name__ == "__main__":
    unittest.main()
