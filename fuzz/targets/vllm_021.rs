#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| gatescope_fuzz::properties::vllm_021(input));
