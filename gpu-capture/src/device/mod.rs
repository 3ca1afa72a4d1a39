/*!
Takes a step of routed experts out of an engine's own buffer, on the GPU or in host memory.

The engine has `int32 [tokens, layers, top_k]` and a stream on which it is written. [`ring`] makes a [`Capture`] for the
engine's thread, which reads the buffer once and returns at once, and [`Steps`] for another thread, which finds the rows on
the host: packed to `u8` or `u16`, with what no gate can have chosen counted ([`Faults`]) and, where asked for, tokens per
layer and expert. On the device this is one kernel (`kernel.cu`, compiled for the model by the engine's NVRTC) in the order
of the engine's stream, and a copy into pinned memory on a stream of our own, so the engine's stream waits for the kernel
alone. The ring is bounded; where it is full a step is dropped and counted.

```
use gatescope_capture::device::{Layout, Place, Taken, ring};
use gatescope_routing::{LayerSet, RowShape};

let layout = Layout::new(RowShape::new(2, 2)?, 8, &LayerSet::all(2), 1024)?;
let (mut capture, mut steps) = ring(Place::Host, layout, 4)?;
let ids: [i32; 4] = [3, 1, 7, 7];
// SAFETY: the ids of one token, two layers and two slots, unchanged during the call.
let taken = unsafe { capture.capture(ids.as_ptr() as u64, 1, 0, 42, true)? };
assert_eq!(taken, Taken::Kept);
let step = steps.oldest()?.expect("host memory arrives at once");
assert_eq!((step.tag(), step.rows()), (42, [3, 1, 7, 7].as_slice()));
assert_eq!(step.faults().repeated, 1);
# Ok::<(), Box<dyn std::error::Error>>(())
```
*/

mod compile;
mod cuda;
mod geometry;
mod host;
mod layout;
mod ring;
#[cfg(test)]
mod tests;

pub use layout::{Faults, Layout, LayoutError, MAX_CAPTURED_TOP_K};
pub use ring::{Capture, Place, Step, Steps, Taken, ring};

/// Why a step or a ring could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No `libcuda.so.1`.
    #[error("the CUDA driver (libcuda.so.1) is not here")]
    NoDriver,
    /// No NVRTC of CUDA 12 or 13.
    #[error("NVRTC (libnvrtc.so.13 or .12) is not here; PyTorch's own is in nvidia/*/lib of its site-packages")]
    NoNvrtc,
    /// The calling thread has not set up a device.
    #[error(
        "no CUDA context is current on this thread: make the ring on the engine's thread, after it has set its device"
    )]
    NoContext,
    /// NVRTC refused the kernel.
    #[error("NVRTC: {0}")]
    Nvrtc(String),
    /// The driver refused a call.
    #[error("CUDA driver: {0}")]
    Driver(String),
    /// Copies of a step cannot be part of a graph.
    #[error("the engine's stream is being captured into a CUDA graph: capture after the step, outside of graphs")]
    StreamCapturing,
    /// More rows than the ring was made for.
    #[error("a step of {tokens} tokens: the ring was made for {most}")]
    TooManyTokens {
        /// Tokens of the step.
        tokens: usize,
        /// Most that fit.
        most: usize,
    },
    /// Not the address of 32-bit ids.
    #[error("{0:#x} is not the address of int32 ids")]
    Address(u64),
}

/// Whether the CUDA driver can be loaded here, so that [`Place::Device`] can be tried.
pub fn driver_is_here() -> bool {
    cuda::driver_present()
}
