target triple = "nvptx64-nvidia-cuda"
@part = internal addrspace(3) global [32 x float] undef, align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare void @llvm.nvvm.barrier0()
declare float @llvm.nvvm.shfl.sync.bfly.f32(i32, float, i32, i32)
declare float @llvm.nvvm.ex2.approx.f(float)
declare float @llvm.maximum.f32(float,float)
; One row a block, 8 bf16 a thread at a time: y = softmax(x).
define internal float @warp_max(float %x) alwaysinline {
  %a = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %x, i32 16, i32 31)
  %b = call float @llvm.maximum.f32(float %x, float %a)
  %c = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %b, i32 8, i32 31)
  %d = call float @llvm.maximum.f32(float %b, float %c)
  %e = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %d, i32 4, i32 31)
  %f = call float @llvm.maximum.f32(float %d, float %e)
  %g = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %f, i32 2, i32 31)
  %h = call float @llvm.maximum.f32(float %f, float %g)
  %i = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %h, i32 1, i32 31)
  %j = call float @llvm.maximum.f32(float %h, float %i)
  ret float %j
}
define internal float @warp_sum(float %x) alwaysinline {
  %a = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %x, i32 16, i32 31)
  %b = fadd float %x, %a
  %c = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %b, i32 8, i32 31)
  %d = fadd float %b, %c
  %e = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %d, i32 4, i32 31)
  %f = fadd float %d, %e
  %g = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %f, i32 2, i32 31)
  %h = fadd float %f, %g
  %i = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %h, i32 1, i32 31)
  %j = fadd float %h, %i
  ret float %j
}
define ptx_kernel void @softmax(ptr addrspace(1) noalias readonly %x, ptr addrspace(1) noalias %y, i64 %n) {
entry:
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %blk = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %nt = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %t64 = zext i32 %t to i64
  %nt64 = zext i32 %nt to i64
  %b64 = zext i32 %blk to i64
  %row = mul i64 %b64, %n
  %xr = getelementptr bfloat, ptr addrspace(1) %x, i64 %row
  %yr = getelementptr bfloat, ptr addrspace(1) %y, i64 %row
  %lane = and i32 %t, 31
  %warp = lshr i32 %t, 5
  %warps = lshr i32 %nt, 5
  br label %l1
l1:
  %i = phi i64 [%t64, %entry], [%i2, %l1b]
  %m = phi float [0xFFF0000000000000, %entry], [%m2, %l1b]
  %c = icmp ult i64 %i, %n
  br i1 %c, label %l1b, label %r1
l1b:
  %p = getelementptr bfloat, ptr addrspace(1) %xr, i64 %i
  %v = load bfloat, ptr addrspace(1) %p, align 2
  %vf = fpext bfloat %v to float
  %m2 = call float @llvm.maximum.f32(float %m, float %vf)
  %i2 = add i64 %i, %nt64
  br label %l1
r1:
  %wm = call float @warp_max(float %m)
  %sp = getelementptr [32 x float], ptr addrspace(3) @part, i32 0, i32 %warp
  %first = icmp eq i32 %lane, 0
  br i1 %first, label %w1, label %b1
w1:
  store float %wm, ptr addrspace(3) %sp
  br label %b1
b1:
  call void @llvm.nvvm.barrier0()
  %lp = getelementptr [32 x float], ptr addrspace(3) @part, i32 0, i32 %lane
  %in = icmp ult i32 %lane, %warps
  br i1 %in, label %g1, label %g2
g1:
  %pv = load float, ptr addrspace(3) %lp
  br label %g2
g2:
  %pm = phi float [0xFFF0000000000000, %b1], [%pv, %g1]
  %bm = call float @warp_max(float %pm)
  call void @llvm.nvvm.barrier0()
  br label %l2
l2:
  %k = phi i64 [%t64, %g2], [%k2, %l2b]
  %s = phi float [0.0, %g2], [%s2, %l2b]
  %kc = icmp ult i64 %k, %n
  br i1 %kc, label %l2b, label %r2
l2b:
  %kp = getelementptr bfloat, ptr addrspace(1) %xr, i64 %k
  %kv = load bfloat, ptr addrspace(1) %kp, align 2
  %kf = fpext bfloat %kv to float
  %kd = fsub float %kf, %bm
  %kl = fmul float %kd, 0x3FF7154760000000
  %ke = call float @llvm.nvvm.ex2.approx.f(float %kl)
  %s2 = fadd float %s, %ke
  %k2 = add i64 %k, %nt64
  br label %l2
r2:
  %ws = call float @warp_sum(float %s)
  br i1 %first, label %w2, label %b2
w2:
  store float %ws, ptr addrspace(3) %sp
  br label %b2
b2:
  call void @llvm.nvvm.barrier0()
  br i1 %in, label %h1, label %h2
h1:
  %sv = load float, ptr addrspace(3) %lp
  br label %h2
h2:
  %ps = phi float [0.0, %b2], [%sv, %h1]
  %bs = call float @warp_sum(float %ps)
  br label %l3
l3:
  %q = phi i64 [%t64, %h2], [%q2, %l3b]
  %qc = icmp ult i64 %q, %n
  br i1 %qc, label %l3b, label %done
l3b:
  %qp = getelementptr bfloat, ptr addrspace(1) %xr, i64 %q
  %qv = load bfloat, ptr addrspace(1) %qp, align 2
  %qf = fpext bfloat %qv to float
  %qd = fsub float %qf, %bm
  %ql = fmul float %qd, 0x3FF7154760000000
  %qe = call float @llvm.nvvm.ex2.approx.f(float %ql)
  %qs = fdiv float %qe, %bs
  %qb = fptrunc float %qs to bfloat
  %qo = getelementptr bfloat, ptr addrspace(1) %yr, i64 %q
  store bfloat %qb, ptr addrspace(1) %qo, align 2
  %q2 = add i64 %q, %nt64
  br label %l3
done:
  ret void
}
