//! `OrtEpFactory`: what the plugin is, its devices, and what sessions are given.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use cuattn_ep::cuattn::curt::{self, ProbeReport};
use cuattn_ep::{KernelFactory, Registry};

use crate::abi::{
    API_VERSION, NVIDIA, OrtAllocator, OrtCustomOpDomain, OrtDataTransferImpl, OrtDataType, OrtEp, OrtEpDevice,
    OrtEpFactory, OrtHardwareDevice, OrtKernelCreateFunc, OrtKernelDefBuilder, OrtKernelRegistry, OrtKeyValuePairs,
    OrtLogger, OrtMemoryDevice, OrtMemoryInfo, OrtSessionOptions, OrtSyncStreamImpl, Status, device_type, mem_type,
};
use crate::accelerator::{Accelerator, Kind};
use crate::allocator::Allocator;
use crate::api::{tables, text, warn};
use crate::custom_operators::CustomOperators;
use crate::ep::{Ep, NAME};
use crate::failure::{Failure, Result, callback, callback_or, check};
use crate::kernel;
use crate::options::Options;
use crate::session::Session;
use crate::stream::Stream;
use crate::transfer::{Accelerators, Transfer, create_memcpy};

/// Where this is `1`, the host passes for a GPU.
pub(crate) const HOST_VARIABLE: &str = "CUATTN_ORT_HOST";

/// The device's number among its metadata.
const ORDINAL: &std::ffi::CStr = c"cuda_device_id";

/// The oldest compute capability that kernels run on.
const OLDEST: (u32, u32) = (8, 0);

#[repr(C)]
pub(crate) struct Factory {
    base: OrtEpFactory,
    accelerators: Accelerators,
    kernels: Arc<Kernels>,
    custom: CustomOperators,
    /// Devices that ONNX Runtime did not find itself. They must live as long as the factory.
    hardware: Vec<*mut OrtHardwareDevice>,
}

impl Factory {
    pub(crate) fn into_raw() -> Result<*mut OrtEpFactory> {
        let accelerators: Accelerators = find_accelerators()?.into();
        let base = OrtEpFactory {
            ort_version_supported: API_VERSION,
            GetName: name,
            GetVendor: vendor,
            GetSupportedDevices: supported_devices,
            CreateEp: create_ep,
            ReleaseEp: release_ep,
            GetVendorId: vendor_id,
            GetVersion: version,
            ValidateCompiledModelCompatibilityInfo: None,
            CreateAllocator: create_allocator,
            ReleaseAllocator: release_allocator,
            CreateDataTransfer: create_data_transfer,
            IsStreamAware: is_stream_aware,
            CreateSyncStreamForDevice: create_stream,
            GetHardwareDeviceIncompatibilityDetails: None,
            CreateExternalResourceImporterForDevice: None,
            GetNumCustomOpDomains: custom_domain_count,
            GetCustomOpDomains: custom_domains,
            newer: Default::default(),
        };
        let kernels = Kernels::new(&accelerators)?;
        let custom = CustomOperators::new()?;
        Ok(Box::into_raw(Box::new(Self { base, accelerators, kernels, custom, hardware: Vec::new() })).cast())
    }

    /// # Safety
    ///
    /// `factory` came from [`Factory::into_raw`], and is released once.
    pub(crate) unsafe fn release(factory: *mut OrtEpFactory) -> Result {
        let api = tables()?;
        // SAFETY: as the caller promises.
        let factory = unsafe { Box::from_raw(factory.cast::<Self>()) };
        for &hardware in &factory.hardware {
            // SAFETY: it was made by us, and nobody uses it after the factory.
            unsafe { api.ep.ReleaseHardwareDevice(hardware) };
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `factory` came from [`Factory::into_raw`], and is live.
    unsafe fn of<'a>(factory: *const OrtEpFactory) -> &'a Self {
        // SAFETY: as the caller promises; the interface is the struct's first field.
        unsafe { &*factory.cast::<Self>() }
    }

    fn accelerator(&self, ordinal: usize) -> Result<&Arc<Accelerator>> {
        self.accelerators.iter().find(|accelerator| accelerator.ordinal() == ordinal).ok_or_else(|| {
            Failure::invalid(format!(
                "there is no CUDA device {ordinal} that this plugin can use: it has {}",
                self.ordinals()
            ))
        })
    }

    fn ordinals(&self) -> String {
        self.accelerators.iter().map(|accelerator| accelerator.ordinal().to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// The devices that there are: every CUDA device that kernels run on, or the host where that was asked for.
fn find_accelerators() -> Result<Vec<Arc<Accelerator>>> {
    if std::env::var_os(HOST_VARIABLE).is_some_and(|value| value == "1") {
        let message = format!(
            "cuattn computes on the HOST, in float64, with host memory that passes for a GPU's, because {HOST_VARIABLE}=1 \
             is set. This is for tests of graphs. It is slow."
        );
        warn(&message);
        eprintln!("{message}");
        return Ok(vec![Accelerator::new(Kind::Host)?]);
    }
    let report = curt::probe();
    let usable = usable(&report)?;
    usable.into_iter().map(|ordinal| Accelerator::new(Kind::Cuda(ordinal))).collect()
}

/// Ordinals of the devices that kernels run on.
fn usable(report: &ProbeReport) -> Result<Vec<usize>> {
    let (fit, unfit): (Vec<_>, Vec<_>) = report.devices.iter().partition(|device| device.compute_capability >= OLDEST);
    let unfit: Vec<_> = unfit
        .iter()
        .map(|device| {
            let (major, minor) = device.compute_capability;
            format!(
                "device {}, {}, has compute capability {major}.{minor}, and {}.{} or newer is needed",
                device.ordinal, device.name, OLDEST.0, OLDEST.1
            )
        })
        .collect();
    if fit.is_empty() {
        let devices = if unfit.is_empty() { String::new() } else { format!("{}\n", unfit.join("\n")) };
        return Err(Failure::new(format!(
            "no GPU that can be used was found\n{devices}{report}\nTo test graphs without a GPU, set {HOST_VARIABLE}=1."
        )));
    }
    for message in unfit {
        warn(&message);
    }
    Ok(fit.iter().map(|device| device.ordinal).collect())
}

/// What a kernel of the registry is of.
pub(crate) struct Registration {
    pub(crate) registry: Arc<Registry>,
    pub(crate) index: usize,
    pub(crate) version: u32,
}

impl Registration {
    pub(crate) fn factory(&self) -> &dyn KernelFactory {
        self.registry.factories().nth(self.index).expect("registrations are made from the registry's own factories")
    }
}

/// The kernel registry, and what its kernels are made from.
pub(crate) struct Kernels {
    registry: *mut OrtKernelRegistry,
    /// Kernels are made with the addresses of these.
    #[expect(clippy::vec_box, reason = "their addresses must not change when the list grows")]
    _registrations: Vec<Box<Registration>>,
    _accelerators: Box<Accelerators>,
}

// SAFETY: the registry is not changed once it is made.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// Types that an operator's type parameters are registered for, by the names that its schema gives them.
fn type_parameters(domain: &str, op_type: &str) -> &'static [(&'static std::ffi::CStr, &'static [i32])] {
    const FLOATS: &[i32] = &[1, 10, 16];
    match (domain, op_type) {
        ("", "Attention") => &[(c"T1", FLOATS), (c"T2", FLOATS), (c"U", &[1, 10, 16, 9])],
        ("com.microsoft", "MultiHeadAttention") => &[(c"T", FLOATS), (c"M", &[6])],
        _ => &[],
    }
}

impl Kernels {
    fn new(accelerators: &Accelerators) -> Result<Arc<Self>> {
        let api = tables()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        check(unsafe { api.ep.CreateKernelRegistry(&mut handle) })?;
        let mut kernels =
            Self { registry: handle, _registrations: Vec::new(), _accelerators: Box::new(Arc::clone(accelerators)) };
        let registry = Arc::new(Registry::standard());
        let known = |factory: &&dyn KernelFactory| crate::custom_operators::KNOWN.contains(&factory.domain());
        for (index, factory) in registry.factories().enumerate().filter(|(_, factory)| known(factory)) {
            for &version in factory.versions() {
                let registration = Box::new(Registration { registry: Arc::clone(&registry), index, version });
                let definition = Definition {
                    domain: factory.domain(),
                    op_type: factory.op_type(),
                    version,
                    types: type_parameters(factory.domain(), factory.op_type()),
                    input: None,
                    output: None,
                };
                let state = std::ptr::from_ref(&*registration).cast_mut().cast();
                kernels.add(&definition, kernel::create, state)?;
                kernels._registrations.push(registration);
            }
        }
        let (cpu_input, cpu_output) = (Some(mem_type::CPU_INPUT), Some(mem_type::CPU_OUTPUT));
        for (op_type, input, output) in [("MemcpyFromHost", cpu_input, None), ("MemcpyToHost", None, cpu_output)] {
            let definition = Definition { domain: "", op_type, version: 1, types: &[], input, output };
            let state = std::ptr::from_ref(&*kernels._accelerators).cast_mut().cast();
            kernels.add(&definition, create_memcpy, state)?;
        }
        Ok(Arc::new(kernels))
    }

    pub(crate) const fn registry(&self) -> *const OrtKernelRegistry {
        self.registry
    }

    fn add(&self, definition: &Definition, create: OrtKernelCreateFunc, state: *mut std::ffi::c_void) -> Result {
        let api = tables()?;
        let mut builder = std::ptr::null_mut();
        // SAFETY: the pointers are to live handles; builder and definition are released once, and the registry copies.
        unsafe {
            check(api.ep.CreateKernelDefBuilder(&mut builder))?;
            let built = definition.fill(builder).and_then(|()| {
                let mut built = std::ptr::null_mut();
                check(api.ep.KernelDefBuilder_Build(builder, &mut built)).map(|()| built)
            });
            api.ep.ReleaseKernelDefBuilder(builder);
            let built = built?;
            let added = check(api.ep.KernelRegistry_AddKernel(self.registry, built, create, state));
            api.ep.ReleaseKernelDef(built);
            added
        }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if let Ok(api) = tables() {
            // SAFETY: it was made in `new`, and is released once.
            unsafe { api.ep.ReleaseKernelRegistry(self.registry) };
        }
    }
}

/// A kernel of the registry.
struct Definition {
    domain: &'static str,
    op_type: &'static str,
    version: u32,
    types: &'static [(&'static std::ffi::CStr, &'static [i32])],
    /// Where input 0 is, if not on the device.
    input: Option<i32>,
    /// Where output 0 is, if not on the device.
    output: Option<i32>,
}

impl Definition {
    /// # Safety
    ///
    /// `builder` is live.
    unsafe fn fill(&self, builder: *mut OrtKernelDefBuilder) -> Result {
        let api = tables()?;
        let c_text = |text: &str| CString::new(text).unwrap_or_default();
        let (domain, op_type, version) = (c_text(self.domain), c_text(self.op_type), self.version as i32);
        // SAFETY: as the caller promises; all texts are C strings, and the types are those of ONNX Runtime.
        unsafe {
            check(api.ep.KernelDefBuilder_SetOperatorType(builder, op_type.as_ptr()))?;
            check(api.ep.KernelDefBuilder_SetDomain(builder, domain.as_ptr()))?;
            check(api.ep.KernelDefBuilder_SetSinceVersion(builder, version, version))?;
            check(api.ep.KernelDefBuilder_SetExecutionProvider(builder, NAME.as_ptr()))?;
            if let Some(input) = self.input {
                check(api.ep.KernelDefBuilder_SetInputMemType(builder, 0, input))?;
            }
            if let Some(output) = self.output {
                check(api.ep.KernelDefBuilder_SetOutputMemType(builder, 0, output))?;
            }
            for (name, elements) in self.types {
                let mut types: Vec<*const OrtDataType> = Vec::new();
                for &element in *elements {
                    let mut data_type = std::ptr::null();
                    check(api.ep.GetTensorDataType(element, &mut data_type))?;
                    types.push(data_type);
                }
                check(api.ep.KernelDefBuilder_AddTypeConstraint(builder, name.as_ptr(), types.as_ptr(), types.len()))?;
            }
        }
        Ok(())
    }
}

unsafe extern "C" fn name(_: *const OrtEpFactory) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn vendor(_: *const OrtEpFactory) -> *const c_char {
    c"cuattn".as_ptr()
}

unsafe extern "C" fn vendor_id(_: *const OrtEpFactory) -> u32 {
    NVIDIA
}

unsafe extern "C" fn version(_: *const OrtEpFactory) -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

unsafe extern "C" fn is_stream_aware(_: *const OrtEpFactory) -> bool {
    true
}

unsafe extern "C" fn supported_devices(
    factory: *mut OrtEpFactory,
    devices: *const *const OrtHardwareDevice,
    count: usize,
    out: *mut *mut OrtEpDevice,
    most: usize,
    written: *mut usize,
) -> Status {
    callback("GetSupportedDevices", || {
        let api = tables()?;
        // SAFETY: ONNX Runtime calls with a factory of ours, on one thread; the arrays are of the stated sizes.
        unsafe {
            written.write(0);
            let this = &mut *factory.cast::<Factory>();
            let is_nvidia = |&device: &*const OrtHardwareDevice| {
                api.ort.HardwareDevice_Type(device) == device_type::GPU
                    && api.ort.HardwareDevice_VendorId(device) == NVIDIA
            };
            let found: Vec<_> = (0..count).map(|index| *devices.add(index)).filter(is_nvidia).collect();
            let accelerators = Arc::clone(&this.accelerators);
            for (index, accelerator) in accelerators.iter().take(most).enumerate() {
                // ONNX Runtime does not say which CUDA device is which, so its list is used only where it is complete.
                let hardware = if accelerator.kind != Kind::Host && found.len() == accelerators.len() {
                    found[index]
                } else {
                    create_hardware(&mut this.hardware, accelerator)?
                };
                let metadata =
                    Pairs::new(&[(ORDINAL, &accelerator.ordinal().to_string()), (c"mode", mode(accelerator))])?;
                let mut device = std::ptr::null_mut();
                check(api.ep.CreateEpDevice(factory, hardware, metadata.0, std::ptr::null(), &mut device))?;
                check(api.ep.EpDevice_AddAllocatorInfo(device, accelerator.memory_info()))?;
                out.add(index).write(device);
                written.write(index + 1);
            }
        }
        Ok(())
    })
}

fn mode(accelerator: &Accelerator) -> &'static str {
    match accelerator.kind {
        Kind::Cuda(_) => "gpu",
        Kind::Host => "host",
    }
}

fn create_hardware(
    kept: &mut Vec<*mut OrtHardwareDevice>,
    accelerator: &Accelerator,
) -> Result<*const OrtHardwareDevice> {
    let api = tables()?;
    let mut hardware = std::ptr::null_mut();
    let metadata = Pairs::new(&[(ORDINAL, &accelerator.ordinal().to_string())])?;
    let device = u32::try_from(accelerator.ordinal()).unwrap_or(u32::MAX);
    // SAFETY: the name is a C string, the pairs are live, and the pointer is to a live handle.
    check(unsafe {
        let (gpu, name) = (device_type::GPU, c"NVIDIA".as_ptr());
        api.ep.CreateHardwareDevice(gpu, NVIDIA, device, name, metadata.0, &mut hardware)
    })?;
    kept.push(hardware);
    Ok(hardware)
}

/// Keys and values, which whoever gets them copies.
struct Pairs(*mut OrtKeyValuePairs);

impl Pairs {
    fn new(entries: &[(&std::ffi::CStr, &str)]) -> Result<Self> {
        let api = tables()?;
        let mut pairs = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle, and all texts are C strings, which are copied.
        unsafe {
            api.ort.CreateKeyValuePairs(&mut pairs);
            for (key, value) in entries {
                let value = CString::new(*value).unwrap_or_default();
                api.ort.AddKeyValuePair(pairs, key.as_ptr(), value.as_ptr());
            }
        }
        Ok(Self(pairs))
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        if let Ok(api) = tables() {
            // SAFETY: they were made in `new`, and are released once.
            unsafe { api.ort.ReleaseKeyValuePairs(self.0) };
        }
    }
}

unsafe extern "C" fn create_ep(
    factory: *mut OrtEpFactory,
    _: *const *const OrtHardwareDevice,
    metadata: *const *const OrtKeyValuePairs,
    count: usize,
    session: *const OrtSessionOptions,
    _: *const OrtLogger,
    out: *mut *mut OrtEp,
) -> Status {
    callback("CreateEp", || {
        let api = tables()?;
        if count != 1 {
            return Err(Failure::invalid(format!("a session uses one device of this plugin, and {count} were given")));
        }
        // SAFETY: ONNX Runtime calls with a factory of ours; there is one set of metadata, and the pointer is for the answer.
        unsafe {
            let this = Factory::of(factory);
            let ordinal = text(api.ort.GetKeyValue(*metadata, ORDINAL.as_ptr())).parse().unwrap_or(0);
            let options = Options::of(session)?;
            if let Some(wanted) = options.device_id.filter(|&wanted| wanted != ordinal) {
                return Err(Failure::invalid(format!(
                    "option `device_id` is {wanted}, and the device that was chosen for the session is {ordinal}: choose \
                     the one whose ep_metadata has cuda_device_id {wanted}, or leave the option away"
                )));
            }
            let session = Session::new(Arc::clone(this.accelerator(ordinal)?), options)?;
            out.write(Ep::into_raw(session, Arc::clone(&this.kernels)));
        }
        Ok(())
    })
}

unsafe extern "C" fn release_ep(_: *mut OrtEpFactory, ep: *mut OrtEp) {
    callback_or("ReleaseEp", (), || {
        // SAFETY: ONNX Runtime releases a provider of ours once.
        unsafe { Ep::release(ep) };
        Ok(())
    });
}

unsafe extern "C" fn create_allocator(
    factory: *mut OrtEpFactory,
    memory: *const OrtMemoryInfo,
    _: *const OrtKeyValuePairs,
    out: *mut *mut OrtAllocator,
) -> Status {
    callback("CreateAllocator", || {
        // SAFETY: ONNX Runtime calls with a factory of ours, and with a memory info that it was given for a device of ours.
        unsafe {
            let this = Factory::of(factory);
            let same = |accelerator: &&Arc<Accelerator>| std::ptr::eq(accelerator.memory_info(), memory);
            let accelerator = match this.accelerators.iter().find(same) {
                Some(accelerator) => accelerator,
                None => this.accelerator(memory_ordinal(memory)?)?,
            };
            out.write(Allocator::into_raw(Arc::clone(accelerator)));
        }
        Ok(())
    })
}

/// # Safety
///
/// `memory` is live.
unsafe fn memory_ordinal(memory: *const OrtMemoryInfo) -> Result<usize> {
    let api = tables()?;
    let mut id = 0;
    // SAFETY: as the caller promises, and the pointer is to a live integer.
    check(unsafe { api.ort.MemoryInfoGetId(memory, &mut id) })?;
    usize::try_from(id).map_err(|_| Failure::invalid(format!("device {id} of a memory info")))
}

unsafe extern "C" fn release_allocator(_: *mut OrtEpFactory, allocator: *mut OrtAllocator) {
    callback_or("ReleaseAllocator", (), || {
        // SAFETY: ONNX Runtime releases an allocator of ours once.
        unsafe { Allocator::release(allocator) };
        Ok(())
    });
}

unsafe extern "C" fn create_data_transfer(factory: *mut OrtEpFactory, out: *mut *mut OrtDataTransferImpl) -> Status {
    callback("CreateDataTransfer", || {
        // SAFETY: ONNX Runtime calls with a factory of ours, and the pointer is for the answer.
        unsafe { out.write(Transfer::into_raw(Arc::clone(&Factory::of(factory).accelerators))) };
        Ok(())
    })
}

unsafe extern "C" fn create_stream(
    factory: *mut OrtEpFactory,
    device: *const OrtMemoryDevice,
    _: *const OrtKeyValuePairs,
    out: *mut *mut OrtSyncStreamImpl,
) -> Status {
    callback("CreateSyncStreamForDevice", || {
        let api = tables()?;
        // SAFETY: ONNX Runtime calls with a factory of ours and a live device, and the pointer is for the answer.
        unsafe {
            let ordinal = api.place(device).id as usize;
            let accelerator = Factory::of(factory).accelerator(ordinal)?;
            out.write(Stream::into_raw(accelerator, &Options::default())?);
        }
        Ok(())
    })
}

unsafe extern "C" fn custom_domain_count(factory: *mut OrtEpFactory, out: *mut usize) -> Status {
    callback("GetNumCustomOpDomains", || {
        // SAFETY: ONNX Runtime calls with a factory of ours, and the pointer is for the answer.
        unsafe { out.write(Factory::of(factory).custom.domains().len()) };
        Ok(())
    })
}

unsafe extern "C" fn custom_domains(
    factory: *mut OrtEpFactory,
    out: *mut *mut OrtCustomOpDomain,
    count: usize,
) -> Status {
    callback("GetCustomOpDomains", || {
        // SAFETY: ONNX Runtime calls with a factory of ours, and the array is of the stated size.
        unsafe {
            for (index, &domain) in Factory::of(factory).custom.domains().iter().take(count).enumerate() {
                out.add(index).write(domain);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use cuattn_ep::cuattn::curt::{DeviceReport, Finding};

    use super::*;

    fn report(capabilities: &[(u32, u32)]) -> ProbeReport {
        let found = || Finding::Found { path: "lib".into(), version: (13, 0) };
        let devices = capabilities
            .iter()
            .enumerate()
            .map(|(ordinal, &compute_capability)| DeviceReport {
                ordinal,
                name: format!("GPU {ordinal}"),
                compute_capability,
                memory_bytes: 1 << 30,
            })
            .collect();
        ProbeReport { driver: found(), devices, nvrtc: found(), cublaslt: found() }
    }

    #[test]
    fn devices_that_are_too_old_are_left_out() {
        assert_eq!(usable(&report(&[(7, 5), (9, 0), (8, 0)])).unwrap(), [1, 2]);
    }

    #[test]
    fn a_machine_without_a_device_that_can_be_used_is_an_error_that_says_why() {
        let error = usable(&report(&[(7, 5)])).unwrap_err().to_string();
        assert!(error.contains("device 0, GPU 0, has compute capability 7.5, and 8.0 or newer is needed"), "{error}");
        assert!(error.contains(HOST_VARIABLE), "{error}");
        assert!(usable(&report(&[])).is_err());
    }
}
