//! The kernel from source to machine code, by the NVRTC that the engine itself has loaded.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char};

use cudarc::nvrtc::result::{compile_program, create_program, destroy_program, get_program_log, get_ptx};
use cudarc::nvrtc::sys;

use super::{DeviceError, Layout};

/// The kernel.
pub(crate) const SOURCE: &str = include_str!("kernel.cu");
/// Its name.
pub(crate) const NAME: &str = "gatescope_capture";

/// What NVRTC does not know, written for it: the tests have the same for a C++ compiler.
const PRELUDE: &str = "#define SHARED_COUNTS(bins) extern __shared__ unsigned bins[]\n";

/// What to compile for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Machine code of this compute capability, e.g. 90.
    Sass(u32),
    /// PTX that the driver translates for its device; a driver older than NVRTC refuses it.
    Ptx(u32),
}

/// Whether NVRTC can be loaded: cudarc panics where it cannot.
pub(crate) fn nvrtc_present() -> bool {
    // SAFETY: loads the library and runs its initialisers, which NVIDIA's has none of that matter.
    unsafe { sys::is_culib_present() }
}

/// Image for the driver's module loader: SASS, or PTX with its final zero.
pub(crate) fn compile(layout: &Layout, target: Target) -> Result<Vec<u8>, DeviceError> {
    if !nvrtc_present() {
        return Err(DeviceError::NoNvrtc);
    }
    let source = CString::new(format!("{PRELUDE}{SOURCE}")).map_err(|_| DeviceError::NoNvrtc)?;
    let architecture = match target {
        Target::Sass(capability) => format!("--gpu-architecture=sm_{capability}"),
        Target::Ptx(capability) => format!("--gpu-architecture=compute_{capability}"),
    };
    let options = [
        architecture,
        "--std=c++17".to_owned(),
        format!("-DTOP_K={}", layout.shape().top_k()),
        format!("-DID_BYTES={}", layout.width().bytes()),
        format!("-DKERNEL={NAME}"),
    ];
    let program = create_program(&source, Some(c"kernel.cu")).map_err(|error| DeviceError::Nvrtc(error.to_string()))?;
    // SAFETY: the program was made above, is destroyed below and nowhere else; `source` outlives it.
    let image = unsafe { build(program, &options, target) };
    // SAFETY: as above; nothing refers to it any more.
    let destroyed = unsafe { destroy_program(program) };
    let image = image?;
    destroyed.map_err(|error| DeviceError::Nvrtc(error.to_string()))?;
    Ok(image)
}

/// # Safety
/// `program` is alive.
unsafe fn build(program: sys::nvrtcProgram, options: &[String], target: Target) -> Result<Vec<u8>, DeviceError> {
    let failed = |error: cudarc::nvrtc::result::NvrtcError| DeviceError::Nvrtc(error.to_string());
    // SAFETY: the caller's promise; the options have no zero byte in them.
    if let Err(error) = unsafe { compile_program(program, &options.iter().map(String::as_str).collect::<Vec<_>>()) } {
        // SAFETY: the caller's promise.
        let log = unsafe { get_program_log(program) }.map(|log| text(&log)).unwrap_or_default();
        return Err(DeviceError::Nvrtc(format!("{error}: {}", log.trim())));
    }
    match target {
        // SAFETY: the caller's promise.
        Target::Ptx(_) => Ok(unsafe { get_ptx(program) }.map_err(failed)?.into_iter().map(|c| c as u8).collect()),
        Target::Sass(_) => {
            let mut bytes = 0;
            // SAFETY: the caller's promise; `bytes` is written once.
            unsafe { sys::nvrtcGetCUBINSize(program, &mut bytes) }.result().map_err(failed)?;
            let mut image = vec![0; bytes];
            // SAFETY: the buffer has the size that NVRTC asked for.
            unsafe { sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast::<c_char>()) }.result().map_err(failed)?;
            Ok(image)
        }
    }
}

fn text(log: &[c_char]) -> String {
    let bytes: Vec<u8> = log.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
