//! The device's side of a ring: one kernel on the engine's stream, one copy on a stream of our own.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError, ctx, event, memset_d8_async, memset_d8_sync, module, stream};
use cudarc::driver::sys;

use super::compile::{self, Target};
use super::geometry::{Geometry, THREADS, vector};
use super::{DeviceError, Layout};

impl From<DriverError> for DeviceError {
    fn from(error: DriverError) -> Self {
        Self::Driver(format!("{error}"))
    }
}

/// Whether the CUDA driver can be loaded: cudarc panics where it cannot.
pub(crate) fn driver_present() -> bool {
    // SAFETY: loads the driver, which the engine that we live in has loaded before us.
    unsafe { sys::is_culib_present() }
}

/// The engine's context, the compiled kernel, and a stream for the copies.
pub(crate) struct Device {
    context: sys::CUcontext,
    module: sys::CUmodule,
    kernel: sys::CUfunction,
    copies: sys::CUstream,
    gates: sys::CUdeviceptr,
    multiprocessors: u32,
}

// SAFETY: the handles are the driver's, which locks for itself; none is bound to a thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// On the context that the engine has made current on this thread.
    pub(crate) fn current(layout: &Layout) -> Result<Arc<Self>, DeviceError> {
        if !driver_present() {
            return Err(DeviceError::NoDriver);
        }
        result::init()?;
        let context = ctx::get_current()?.ok_or(DeviceError::NoContext)?;
        let mut ordinal = 0;
        // SAFETY: a context is current; `ordinal` is written once.
        unsafe { sys::cuCtxGetDevice(&mut ordinal) }.result()?;
        let attribute = |name| {
            // SAFETY: the device is the current context's.
            unsafe { result::device::get_attribute(ordinal, name) }
        };
        use sys::CUdevice_attribute_enum as Attribute;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32;
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        // An NVRTC older than the device does not know it; the driver then translates from what both know.
        let image = compile::compile(layout, Target::Sass(10 * major + minor))
            .or_else(|_| compile::compile(layout, Target::Ptx(80)))?;

        let mut device = Self {
            context,
            module: std::ptr::null_mut(),
            kernel: std::ptr::null_mut(),
            copies: std::ptr::null_mut(),
            gates: 0,
            multiprocessors,
        };
        // SAFETY: the image is SASS, or PTX with its final zero, and is only read during the call.
        device.module = unsafe { module::load_data(image.as_ptr().cast()) }?;
        let name = std::ffi::CString::new(compile::NAME).map_err(|_| DeviceError::NoNvrtc)?;
        // SAFETY: the module was loaded above and lives as long as `device`.
        device.kernel = unsafe { module::get_function(device.module, name) }?;
        device.copies = stream::create(stream::StreamKind::NonBlocking)?;
        let gates: Vec<u8> = layout.gates().iter().map(|gate| u8::from(*gate)).collect();
        // SAFETY: freed with `device`.
        device.gates = unsafe { result::malloc_sync(gates.len()) }?;
        // SAFETY: the allocation has `gates.len()` bytes.
        unsafe { result::memcpy_htod_sync(device.gates, &gates) }?;
        Ok(Arc::new(device))
    }

    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is the engine's and outlives the capture in its process.
        unsafe { ctx::set_current(self.context) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // At the end of a process the driver may have gone before us; what it then refuses is freed already.
        if self.enter().is_err() {
            return;
        }
        // SAFETY: made in `current`, freed here alone; slots, which use them, hold the device alive.
        unsafe {
            if self.gates != 0 {
                let _ = result::free_sync(self.gates);
            }
            if !self.copies.is_null() {
                let _ = stream::destroy(self.copies);
            }
            if !self.module.is_null() {
                let _ = module::unload(self.module);
            }
        }
    }
}

/// Memory for one step: on the device and pinned on the host, laid out alike: counts, faults, rows.
pub(crate) struct Slot {
    device: Arc<Device>,
    layout: Arc<Layout>,
    on_device: sys::CUdeviceptr,
    on_host: *mut u8,
    packed: sys::CUevent,
    copied: sys::CUevent,
}

// SAFETY: a slot owns its memory and events; the driver's calls on them are not bound to a thread.
unsafe impl Send for Slot {}

impl Slot {
    pub(crate) fn new(device: Arc<Device>, layout: Arc<Layout>) -> Result<Self, DeviceError> {
        device.enter()?;
        let mut slot = Self {
            device,
            layout,
            on_device: 0,
            on_host: std::ptr::null_mut(),
            packed: std::ptr::null_mut(),
            copied: std::ptr::null_mut(),
        };
        let bytes = slot.rows_at() + slot.layout.packed_bytes(slot.layout.max_tokens());
        // SAFETY: freed with `slot`; zeroed below as far as it is added to.
        slot.on_device = unsafe { result::malloc_sync(bytes) }?;
        // SAFETY: the counts and faults are at the front of the allocation.
        unsafe { memset_d8_sync(slot.on_device, 0, slot.rows_at()) }?;
        // SAFETY: freed with `slot`; zeroed, so that views of it are initialised.
        slot.on_host = unsafe { result::malloc_host(bytes, 0) }?.cast();
        // SAFETY: the allocation has this size, and nobody else has it.
        unsafe { std::ptr::write_bytes(slot.on_host, 0, bytes) };
        slot.packed = event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        slot.copied = event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(slot)
    }

    fn faults_at(&self) -> usize {
        (self.layout.count_cells() * 4).next_multiple_of(256)
    }

    fn rows_at(&self) -> usize {
        self.faults_at() + (self.layout.fault_cells() * 4).next_multiple_of(256)
    }

    /// Queues the kernel on `engine`, and the copy behind it on our own stream. Waits for nothing.
    ///
    /// # Safety
    /// `ids` is device memory of this context with `tokens` rows, and `engine` a stream of it (or null).
    pub(crate) unsafe fn launch(
        &mut self,
        ids: u64,
        tokens: usize,
        engine: u64,
        counts: bool,
    ) -> Result<(), DeviceError> {
        self.device.enter()?;
        let engine = engine as usize as sys::CUstream;
        // SAFETY: the caller's stream.
        if unsafe { stream::is_capturing(engine) }? != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return Err(DeviceError::StreamCapturing);
        }
        // SAFETY: the caller's promise; the events are the slot's.
        unsafe {
            self.queue_kernel(ids, tokens, engine, counts)?;
            event::record(self.packed, engine)?;
            stream::wait_event(self.device.copies, self.packed, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)?;
        }
        let from = if counts { 0 } else { self.faults_at() };
        let bytes = self.rows_at() + self.layout.packed_bytes(tokens) - from;
        // SAFETY: both sides of the slot are laid out alike and as long; the host's side is not read before `copied`.
        // What the kernel adds to is zeroed again behind the copy, in the order of the stream.
        unsafe {
            let to = std::slice::from_raw_parts_mut(self.on_host.add(from), bytes);
            result::memcpy_dtoh_async(to, self.on_device + from as u64, self.device.copies)?;
            memset_d8_async(self.on_device + from as u64, 0, self.rows_at() - from, self.device.copies)?;
            event::record(self.copied, self.device.copies)?;
        }
        Ok(())
    }

    /// The kernel alone.
    ///
    /// # Safety
    /// As for [`Slot::launch`].
    pub(crate) unsafe fn queue_kernel(
        &mut self,
        mut ids: u64,
        tokens: usize,
        engine: sys::CUstream,
        counts: bool,
    ) -> Result<(), DriverError> {
        let geometry = Geometry::of(&self.layout, tokens, counts, self.device.multiprocessors);
        let mut rows = self.on_device + self.rows_at() as u64;
        let mut faults = self.on_device + self.faults_at() as u64;
        let mut counted = if counts { self.on_device } else { 0 };
        let mut gates = self.device.gates;
        let mut of_tokens = tokens as i64;
        let mut layers = self.layout.shape().layers() as i32;
        let mut experts = self.layout.num_experts() as i32;
        let mut group = geometry.group as i32;
        let mut vector = vector(ids);
        let mut in_shared = i32::from(geometry.in_shared);
        let mut parameters: [*mut c_void; 11] = [
            (&raw mut ids).cast(),
            (&raw mut rows).cast(),
            (&raw mut faults).cast(),
            (&raw mut counted).cast(),
            (&raw mut gates).cast(),
            (&raw mut of_tokens).cast(),
            (&raw mut layers).cast(),
            (&raw mut experts).cast(),
            (&raw mut group).cast(),
            (&raw mut vector).cast(),
            (&raw mut in_shared).cast(),
        ];
        // SAFETY: the parameters are the kernel's, in its order and types; the slot's memory has room for `max_tokens`,
        // which the ring has checked; nothing else uses the slot until `copied`.
        unsafe {
            result::launch_kernel(
                self.device.kernel,
                (geometry.blocks_x, geometry.blocks_y, 1),
                (THREADS, 1, 1),
                geometry.shared_bytes,
                engine,
                &mut parameters,
            )
        }
    }

    /// Whether the copy has arrived.
    pub(crate) fn arrived(&self) -> Result<bool, DeviceError> {
        self.device.enter()?;
        // SAFETY: the event is the slot's.
        match unsafe { event::query(self.copied) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn counts(&self) -> &[u32] {
        // SAFETY: inside the allocation, aligned to a page, initialised when it was made; no copy is under way, since
        // the ring gives out slots that have arrived alone.
        unsafe { std::slice::from_raw_parts(self.on_host.cast(), self.layout.count_cells()) }
    }

    pub(crate) fn faults(&self) -> &[u32] {
        // SAFETY: as in `counts`; the offset is a multiple of 256.
        unsafe { std::slice::from_raw_parts(self.on_host.add(self.faults_at()).cast(), self.layout.fault_cells()) }
    }

    pub(crate) fn rows(&self, tokens: usize) -> &[u8] {
        // SAFETY: as in `counts`; `tokens` is at most `max_tokens`.
        unsafe { std::slice::from_raw_parts(self.on_host.add(self.rows_at()), self.layout.packed_bytes(tokens)) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.device.enter().is_err() {
            return;
        }
        // SAFETY: all made in `new`, freed here alone, after what may still write to them: the kernel comes before
        // `packed`, the copy before `copied` (an event that was never recorded counts as done).
        unsafe {
            for event in [self.packed, self.copied] {
                if !event.is_null() {
                    let _ = event::synchronize(event);
                    let _ = event::destroy(event);
                }
            }
            if !self.on_host.is_null() {
                let _ = result::free_host(self.on_host.cast());
            }
            if self.on_device != 0 {
                let _ = result::free_sync(self.on_device);
            }
        }
    }
}
