#!/usr/bin/env python3
"""Makes recorded responses of a prefill/decode pair, as a vLLM 0.31 server answers, for benchmarks.

    generate.py --bytes 1GiB --out pair.jsonl
    generate.py --positions 10000000 --out pair.jsonl

The model is Qwen3-30B-A3B's shape: 48 layers, top-8 of 128 experts, ids of one byte. Prompt and completion lengths are
log-normal; each layer prefers experts of its own, by a Zipf-like law; ids in a row are distinct, the likelier ones first.
Answers of many requests in flight are interleaved as their decodes end. The same seed gives the same file.
"""

import argparse
import base64
import heapq
import json
import sys
import uuid
from pathlib import Path

import numpy as np

LAYERS, TOP_K, EXPERTS = 48, 8, 128
VOCABULARY = 151_936
MODEL = "Qwen/Qwen3-30B-A3B"
# Rows drawn once. Requests walk through them in their own order with their own slot order, so that neither a request
# nor a compressor's window meets the same bytes again.
POOL = 131_072
IN_FLIGHT = 64
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    """Bytes of `64MiB`, `1GiB` or a plain number."""
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    return int(text)


def lengths(text):
    """`PROMPT,COMPLETION`, both fixed."""
    prompt, completion = (int(part) for part in text.split(","))
    if prompt < 1 or completion < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected two numbers of at least 1")
    return prompt, completion


def draw_pool(rng, rows=POOL, layers=LAYERS):
    """Ids `[layers, rows, top_k]`: per layer, `top_k` distinct experts a row, drawn without replacement by weight."""
    pool = np.empty((layers, rows, TOP_K), np.uint8)
    for layer in range(layers):
        # Gumbel top-k in its exponential form: the smallest of E / weight are a weighted draw without replacement.
        rank = rng.permutation(EXPERTS) + 1
        inverse_weight = (rank.astype(np.float32) + 8) ** np.float32(0.7)
        for begin in range(0, rows, 8192):
            part = pool[layer, begin : begin + 8192]
            race = rng.standard_exponential((len(part), EXPERTS), dtype=np.float32) * inverse_weight
            first = np.argpartition(race, TOP_K, axis=1)[:, :TOP_K]
            order = np.argsort(np.take_along_axis(race, first, axis=1), axis=1)
            part[:] = np.take_along_axis(first, order, axis=1)
    return pool


def draw_rows(rng, pool, positions):
    """Ids `[positions, layers, top_k]` of one request."""
    layers, pool_rows, top_k = pool.shape
    words = pool.view(np.uint64).reshape(layers, pool_rows)
    rows = np.empty((positions, layers, top_k), np.uint8)
    # An odd stride visits every row of the pool (its size is a power of two) before one returns.
    walk = np.arange(positions) * (2 * int(rng.integers(pool_rows // 2)) + 1)
    starts = rng.integers(pool_rows, size=layers)
    slots = np.argsort(np.arange(top_k) + rng.normal(0, 1.5, (layers, top_k)), axis=1)
    for layer in range(layers):
        picked = words[layer].take((walk + starts[layer]) & (pool_rows - 1))
        rows[:, layer] = picked.view(np.uint8).reshape(positions, top_k)[:, slots[layer]]
    return rows


def npy(rows):
    """A `.npy` file, version 1.0, as `numpy.save` writes it."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {rows.shape}, }}"
    padding = -(10 + len(header) + 1) % 64
    text = (header + " " * padding + "\n").encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rows.tobytes()


def line(role, request_id, inner_id, created, tokens, prompt_tokens, rows, transfer):
    """One recorded response: the body of `/v1/completions`, with the routing spliced in last (it is most of it)."""
    body = {
        "id": f"cmpl-{request_id}",
        "object": "text_completion",
        "created": created,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "text": "",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": tokens,
                "prompt_logprobs": None,
                "prompt_token_ids": prompt_tokens,
                "routed_experts": "@",
            }
        ],
        "service_tier": None,
        "system_fingerprint": "vllm-0.31.0-9a251146",
        "usage": {
            "prompt_tokens": len(prompt_tokens),
            "total_tokens": len(prompt_tokens) + len(tokens),
            "completion_tokens": len(tokens),
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "kv_transfer_params": transfer and dict(transfer, remote_request_id=inner_id),
        "ec_transfer_params": None,
        "metrics": None,
    }
    record = {"role": role, "request_id": request_id, "response": body}
    before, after = json.dumps(record).split('"@"')
    return b"".join((before.encode(), b'"', base64.b64encode(npy(rows)), b'"', after.encode(), b"\n"))


def draw_lengths(rng):
    """Prompt and completion tokens of one request: the completions of a rollout are the longer part."""
    prompt = int(np.clip(rng.lognormal(np.log(900), 0.8), 16, 16_384))
    completion = int(np.clip(rng.lognormal(np.log(1_600), 0.9), 1, 16_384))
    return prompt, completion


def answers(rng, pool, request, prompt, completion):
    """The prefill's and the decode's line."""
    request_id = str(uuid.UUID(bytes=rng.bytes(16)))
    inner_id = f"cmpl-{request_id}-0-{rng.bytes(4).hex()}"
    rows = draw_rows(rng, pool, prompt + completion - 1)
    tokens = rng.integers(VOCABULARY, size=prompt + completion).tolist()
    created = 1_796_000_000 + request // 8
    transfer = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, 2 + prompt // 16))],
        "remote_engine_id": "578ca9de-7c47-4962-b4fe-2e430baa4277",
        "remote_request_id": inner_id,
        "remote_host": "127.0.0.1",
        "remote_port": 9501,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": prompt,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }
    prefill = line(
        "prefill", request_id, inner_id, created, tokens[prompt : prompt + 1], tokens[:prompt], rows[:prompt], transfer
    )
    decode = line(
        "decode", request_id, inner_id, created, tokens[prompt:], tokens[:prompt], rows[prompt - 1 :], None
    )
    return prefill, decode


def generate(out, rng, max_bytes, max_positions, fixed):
    """Writes whole requests until one more would pass a limit; says how many requests, positions and bytes."""
    pool = draw_pool(rng)
    waiting = []
    requests = positions = written = 0
    full = False
    while not full or waiting:
        if not full:
            prompt, completion = fixed or draw_lengths(rng)
            if max_positions is not None:
                left = max_positions - positions
                if prompt + completion - 1 >= left:
                    # The last request is cut to end at the limit exactly.
                    prompt = min(prompt, left)
                    completion = left - prompt + 1
                    full = True
            prefill, decode = answers(rng, pool, requests, prompt, completion)
            if max_bytes is not None and written + len(prefill) + len(decode) > max_bytes:
                full = True
                continue
            out.write(prefill)
            heapq.heappush(waiting, (positions + IN_FLIGHT * completion, requests, decode))
            requests += 1
            positions += prompt + completion - 1
            written += len(prefill) + len(decode)
        if full or len(waiting) > IN_FLIGHT:
            out.write(heapq.heappop(waiting)[2])
    return requests, positions, written


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    limit = parser.add_mutually_exclusive_group(required=True)
    limit.add_argument("--bytes", type=size, help="at most this much: 64MiB, 1GiB, ...")
    limit.add_argument("--positions", type=int, help="exactly this many positions, prompts and completions together")
    parser.add_argument("--lengths", type=lengths, metavar="PROMPT,COMPLETION", help="of every request, in tokens")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.positions is not None and arguments.positions < 1:
        parser.error("--positions: expected at least 1")
    partial = arguments.out.with_name(arguments.out.name + ".partial")
    with partial.open("wb", buffering=1 << 20) as out:
        requests, positions, written = generate(
            out, np.random.default_rng(arguments.seed), arguments.bytes, arguments.positions, arguments.lengths
        )
    partial.rename(arguments.out)
    print(f"{arguments.out}: {requests} requests, {positions} positions, {written} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
