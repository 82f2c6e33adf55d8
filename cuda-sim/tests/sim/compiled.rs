//! Kernels as LLVM 22 writes them (`llc -mtriple=nvptx64 -mcpu=sm_90 -mattr=+ptx78`).

#[test]
fn everything_in_it_is_known() {
    let text = include_str!("../kernels/mixed.ptx");
    let module = pcc_cuda_sim::ptx::Module::load(text).unwrap();
    assert_eq!(module.target, "sm_90");
    let k4 = module.kernel("k4").unwrap();
    assert_eq!(k4.params, [8, 8, 8, 4, 4, 8, 2]);
    assert_eq!(module.kernel("k2").unwrap().shared, 256);
}
