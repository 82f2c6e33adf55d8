//! Launches of kernels, and of functions of the host.

use super::{Handle, array, call};
use crate::code::Code;
use crate::mutant::Kind;
use crate::state::{Function, Turn};
use crate::work::{Launch, Work};
use pcc_cuda_sim::ptx::Kernel;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// Grid, block and bytes of dynamic shared memory.
#[derive(Clone, Copy)]
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
}

impl Turn {
    fn launch(
        &mut self,
        function: u64,
        shape: Shape,
        stream: Handle,
        params: *const *const u8,
    ) -> Result<(), Code> {
        let of = self.functions.get(function)?;
        let (own, kernel) = (of.context, of.kernel.clone());
        if let Some(why) = shape.refused(of) {
            let why = format!("launch of {}: {why}", kernel.name);
            return Err(self.refuse(Code::INVALID_VALUE, why));
        }
        let stream = self.current_stream(stream)?;
        if self.is_mutant(Kind::SkipLaunch, stream) {
            return Ok(());
        }
        let context = self.streams.get(stream)?.context;
        if context != own {
            let why = format!("launch of {} in a stream of another context", kernel.name);
            return Err(self.refuse(Code::INVALID_HANDLE, why));
        }
        let device = self.sound_context(context)?.device;
        let params = match read_params(&kernel, params) {
            Ok(params) => params,
            Err(code) => {
                let why = format!("launch of {}: {} parameters are needed", kernel.name, kernel.params.len());
                return Err(self.refuse(code, why));
            }
        };
        let Shape { grid, block, shared } = shape;
        let what = format!("kernel {}", kernel.name);
        let launch = Arc::new(Launch { kernel, device, grid, block, shared, params });
        self.submit(stream, Work::Launch(launch), what)?;
        self.run_some();
        Ok(())
    }
}

impl Shape {
    /// Why no device takes it. (CUDA C++ Programming Guide, technical specifications by compute capability.)
    fn refused(&self, function: &Function) -> Option<String> {
        let Shape { grid: [x, y, z], block, shared } = *self;
        if [x, y, z].contains(&0) || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
            return Some(format!("a grid of {x} x {y} x {z} blocks"));
        }
        let [bx, by, bz] = block;
        let threads = u64::from(bx) * u64::from(by) * u64::from(bz);
        let most = u64::from(function.kernel.max_threads.unwrap_or(1024).min(1024));
        if threads == 0 || threads > most || bx > 1024 || by > 1024 || bz > 64 {
            return Some(format!("a block of {bx} x {by} x {bz} threads, {most} at most"));
        }
        if shared > function.dynamic_shared {
            let allowed = function.dynamic_shared;
            return Some(format!(
                "{shared} bytes of dynamic shared memory, {allowed} without asking for more"
            ));
        }
        None
    }
}

/// The bytes of each parameter.
fn read_params(kernel: &Kernel, params: *const *const u8) -> Result<Vec<Vec<u8>>, Code> {
    let pointers = array(params, kernel.params.len())?;
    pointers.into_iter().zip(&kernel.params).map(|(at, &bytes)| array(at, bytes as usize)).collect()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Handle,
    params: *const *const u8,
    extra: *const *const c_void,
) -> Code {
    call(|turn| {
        if !extra.is_null() {
            return Err(turn.refuse(Code::NOT_SUPPORTED, "parameters of a launch in `extra`"));
        }
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        turn.launch(function, shape, stream, params)
    })
}

/// Kernels that synchronise their whole grid are not known to the interpreter, so a cooperative launch is like any other.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchCooperativeKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Handle,
    params: *const *const u8,
) -> Code {
    let none = std::ptr::null();
    cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params, none)
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: Handle,
    attributes: *const c_void,
    count: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: Handle,
    params: *const *const u8,
    extra: *const *const c_void,
) -> Code {
    call(|turn| {
        let LaunchConfig { grid, block, shared, stream, attributes: _, count } =
            *array(config, 1)?.first().ok_or(Code::INVALID_VALUE)?;
        if count != 0 || !extra.is_null() {
            return Err(turn.refuse(Code::NOT_SUPPORTED, "attributes of a launch, or parameters in `extra`"));
        }
        turn.launch(function, Shape { grid, block, shared }, stream, params)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: Option<extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> Code {
    call(|turn| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let stream = turn.current_stream(stream)?;
        let work = Work::HostCall { function, argument: argument as u64 };
        turn.submit(stream, work, "function of the host".to_owned())?;
        turn.run_some();
        Ok(())
    })
}
