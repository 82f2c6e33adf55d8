//! Names the library as the loader knows the real one: a later `dlopen("libcublasLt.so")` in the process then finds this one, already loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcublasLt.so");
}
