//! Compiles the kernels for the CPU, and the runtime that runs them.
//!
//! `OVERSPILL_SANITIZER` (`thread` or `address`) instruments the kernels, and only them: the runtime tells the sanitizer
//! what orders CUDA threads. A process that loads such a library must have the sanitizer's own library preloaded.

use std::path::Path;

fn main() {
    let kernels = Path::new("../kernels/cuda");
    for path in ["host", "../kernels/cuda", "build.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=OVERSPILL_SANITIZER");
    println!("cargo::rerun-if-env-changed=OVERSPILL_KERNEL_SOURCES");
    let kernels = match std::env::var_os("OVERSPILL_KERNEL_SOURCES") {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", path.display());
            path.into()
        }
        None => kernels.to_path_buf(),
    };

    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(1).debug(true).warnings(true).include("host").flag("-fno-strict-aliasing");
    let mut runtime = build.clone();

    build.define("OVERSPILL_HOST", None).include(kernels).flag("-Wno-unknown-pragmas").flag("-Wno-unused-parameter");
    match std::env::var("OVERSPILL_SANITIZER").as_deref() {
        Ok("thread") => {
            build.flag("-fsanitize=thread");
            println!("cargo::rustc-link-lib=dylib=tsan");
        }
        Ok("address") => {
            build.flag("-fsanitize=address,undefined").flag("-fno-sanitize=null");
            println!("cargo::rustc-link-lib=dylib=asan");
            println!("cargo::rustc-link-lib=dylib=ubsan");
        }
        Ok("") | Err(_) => {}
        Ok(other) => panic!("OVERSPILL_SANITIZER is {other:?}; it may be `thread` or `address`"),
    }
    build.file("host/kernels.cpp").compile("overspill_host_kernels");
    runtime.file("host/fiber.cpp").file("host/runtime.cpp").compile("overspill_host_runtime");

    // cudarc looks for libcuda.so first. The dynamic linker gives it the library of that name that is already loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
