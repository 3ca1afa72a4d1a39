//! The kernel through NVRTC, for every architecture that we name. Needs `libnvrtc.so.13` or `.12` on `LD_LIBRARY_PATH`:
//! `tests/gpu/run` gets it from PyPI. `GATESCOPE_PTX` names a folder that takes the PTX.

use gatescope_routing::{LayerSet, RowShape};

use crate::device::Layout;
use crate::device::compile::{Target, compile, nvrtc_present};

fn layout(top_k: u64, experts: u32) -> Layout {
    Layout::new(RowShape::new(48, top_k).unwrap(), experts, &LayerSet::all(48), 8192).unwrap()
}

#[test]
fn nvrtc_compiles_the_kernel_to_ptx_and_sass() {
    if !nvrtc_present() {
        assert!(std::env::var_os("GATESCOPE_PTX").is_none(), "GATESCOPE_PTX is set, and NVRTC is not here");
        assert_eq!(compile(&layout(8, 128), Target::Sass(90)), Err(crate::device::DeviceError::NoNvrtc));
        eprintln!("NOT RUN: NVRTC is not here (tests/gpu/run brings it)");
        return;
    }
    for capability in [80, 90, 100] {
        for top_k in [1, 2, 3, 4, 6, 8, 10, 16, 32] {
            for experts in [128, 384] {
                let layout = layout(top_k, experts);
                let ptx = compile(&layout, Target::Ptx(capability)).unwrap();
                let text = String::from_utf8_lossy(&ptx);
                assert!(text.contains(&format!(".target sm_{capability}")) && text.contains("gatescope_capture"));
                if top_k % 4 == 0 {
                    assert!(text.contains("ld.global.nc.v4"), "ids are read four at a time");
                }
                let sass = compile(&layout, Target::Sass(capability)).unwrap();
                assert_eq!(sass[..4], *b"\x7fELF");
                if let Some(folder) = std::env::var_os("GATESCOPE_PTX") {
                    let bits = layout.width().bytes() * 8;
                    let name = format!("sm_{capability}-top{top_k}-u{bits}.ptx");
                    let text = text.trim_end_matches('\0');
                    std::fs::write(std::path::Path::new(&folder).join(name), text).unwrap();
                }
            }
        }
    }
}
