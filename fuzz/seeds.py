#!/usr/bin/env python3
"""Makes the seeds of the fuzz corpus (corpus/TARGET/seed-*) from the recordings under ../tests/fixtures/.

What it writes is committed, and the same each time. Inputs that the fuzzer found (corpus/TARGET/found-*) stay as they are.
"""

import base64
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE.parent / "tests" / "fixtures"
CODES = {"|u1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<u4": "I", "<i4": "i", "<u8": "Q", "<i8": "q"}


def npy(descr: str, shape: tuple, ids: list, version: int = 1, fortran: bool = False) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}"
    header += " " * (-(11 + len(header)) % 16) + "\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    code = CODES.get(descr, "B")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + struct.pack(f"<{len(ids)}{code}", *ids)


def write(target: str, **seeds: bytes | str) -> None:
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in seeds.items():
        (folder / f"seed-{name}").write_bytes(seed.encode() if isinstance(seed, str) else seed)


def recorded(file: str, line: int) -> dict:
    return json.loads((FIXTURES / f"{file}.jsonl").read_text().splitlines()[line])


def short_lines() -> dict:
    """The shortest line of each recording."""
    files = sorted(FIXTURES.glob("*/*.jsonl"))
    return {file.name.removesuffix(".jsonl"): min(file.read_text().splitlines(), key=len) for file in files}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def main() -> None:
    real = recorded("vllm-0.31/dense.pd", 1)["response"]["choices"][0]["routed_experts"]
    wide = recorded("vllm-0.31/wide.pd", 1)["response"]["choices"][0]["routed_experts"]
    ids = list(range(12))
    unknown = [-1, -1, -1, -1, 4, 5, 6, 7, 8, 9, -1, 11]
    shape = (3, 2, 2)

    files = {
        "real": base64.b64decode(real),
        "wide": base64.b64decode(wide),
        "version-2": npy("<u2", shape, ids, version=2),
        "fortran": npy("|u1", shape, ids, fortran=True),
        "empty": npy("|u1", (0, 2, 2), []),
        "float": npy("<f4", shape, ids),
        "two-axes": npy("|u1", (3, 4), ids),
    }
    for descr in CODES:
        files["dtype-" + descr[1:]] = npy(descr, shape, unknown if "i" in descr else ids)
    write("npy", **files)
    write("vllm", real=real, wide=wide, unknown=b64(npy("<i4", shape, unknown)), fortran=b64(files["fortran"]))

    write(
        "vllm_021",
        small=json.dumps([[[1, 2], [3, 4]], [[5, 6], [7, 300]]]),
        unknown=json.dumps([[[-1, -1], [-1, -1]], [[1, 2], [3, 4]], [[1, 2], [3, -1]]], separators=(",", ":")),
        ragged="[[[1, 2], [3]], [[4, 5]]]",
        empty="[]",
        large="[[[65534, 65535]]]",
    )

    packed = lambda **fields: json.dumps({"data": b64(bytes(ids)), "shape": shape, **fields})
    int32 = struct.pack("<12i", *ids)
    write(
        "prime_rl",
        typed=packed(start=4, dtype="uint8"),
        untyped=packed(),
        wide=packed(data=b64(struct.pack("<12H", *ids)), start=0, dtype="uint16"),
        signed=packed(data=b64(struct.pack("<12h", *unknown)), dtype="int16"),
        base85=packed(data=base64.b85encode(int32).decode()),
        base85_unknown=packed(data=base64.b85encode(struct.pack("<12i", *unknown)).decode()),
        short=packed(shape=(4, 2, 2), dtype="uint8"),
        vast=packed(shape=(2**63, 2, 2)),
    )
    write(
        "base85",
        whole=base64.b85encode(int32),
        highest=base64.b85encode(b"\xff" * 8),
        **{f"rest-{rest}": base64.b85encode(bytes(ids[: 4 + rest])) for rest in (1, 2, 3)},
        overflow="00000~~~~~",
    )
    write(
        "sglang",
        int32="2 2\n" + b64(int32),
        unknown="2 2 int32\n" + b64(struct.pack("<12i", *unknown)),
        uint8="2 2 uint8\n" + b64(bytes(ids)),
        uint16="3 4 uint16\n" + b64(struct.pack("<12H", *ids)),
        part="5 1\n" + b64(int32),
    )
    write(
        "record",
        **short_lines(),
        error='{"role": "decode", "request_id": "r", "response": {"object": "error", "message": "too long", "code": 400}}',
        abort='{"role": "colocated", "response": {"meta_info": {"id": "r", "finish_reason": {"type": "abort"}}}}',
        detail='{"role": "decode", "request_id": "r", "response": {"detail": [{"loc": ["body"], "msg": "missing"}]}}',
        two_disagree='{"role": "decode", "prompt_tokens": 3, "response": {"id": "r", "choices": [{"prompt_token_ids": [1]}]}}',
        asked='{"role": "prefill", "request_id": "r", "run": "x", "attempt": 1, "parent": "q", "prompt_tokens": 3, '
        '"completion_tokens": 1, "routed_experts_prompt_start": 1, "response": {"created": 1.5, "choices": [{"index": 2, '
        f'"logprobs": {{"content": [{{}}]}}, "routed_experts": {packed(start=1, dtype="uint8")}}}]}}}}',
    )


if __name__ == "__main__":
    main()
