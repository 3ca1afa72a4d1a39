"""Names of requests; runs without vLLM: `python -m unittest` in this folder, with the package installed."""

import unittest

from gatescope.vllm.identity import outer_id


class OuterIds(unittest.TestCase):
    def test_completions_lose_prefix_prompt_index_and_suffix(self):
        self.assertEqual(outer_id("cmpl-abc-0-85eeda8a"), ("abc", 0))

    def test_prompts_of_one_call_are_choices(self):
        self.assertEqual(outer_id("cmpl-abc-3-85eeda8a"), ("abc", 3))

    def test_sequences_of_one_prompt_are_choices(self):
        self.assertEqual(outer_id("2_chatcmpl-abc-85eeda8a"), ("abc", 2))

    def test_chat_and_generate_keep_numbers_at_the_end(self):
        self.assertEqual(outer_id("chatcmpl-turn-7-85eeda8a"), ("turn-7", 0))
        self.assertEqual(outer_id("generate-tokens-abc-85eeda8a"), ("abc", 0))

    def test_a_uuid_stays_whole(self):
        uuid = "7f1b103c-df15-82b0-eab4-77d26415479c"
        self.assertEqual(outer_id(f"cmpl-{uuid}-0-85eeda8a"), (uuid, 0))

    def test_an_id_of_another_form_stays_as_it_is(self):
        self.assertEqual(outer_id("request 5"), ("request 5", 0))
        self.assertEqual(outer_id("5_things"), ("5_things", 0))


if __name__ == "__main__":
    unittest.main()
