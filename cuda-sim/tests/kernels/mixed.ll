target triple = "nvptx64-nvidia-cuda"
@dyn = external addrspace(3) global [0 x i8], align 16
@st = internal addrspace(3) global [64 x float] undef, align 16
@tab = internal addrspace(4) constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0], align 16
@gtab = internal addrspace(1) constant [4 x i16] [i16 1, i16 2, i16 3, i16 4], align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare void @llvm.nvvm.barrier0()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare float @llvm.nvvm.shfl.sync.bfly.f32(i32, float, i32, i32)
declare float @llvm.nvvm.ex2.approx.f(float)
declare float @llvm.nvvm.ex2.approx.ftz.f(float)
declare float @llvm.nvvm.lg2.approx.f(float)
declare float @llvm.nvvm.rsqrt.approx.f(float)
declare float @llvm.sqrt.f32(float)
declare float @llvm.fma.f32(float,float,float)
declare float @llvm.maxnum.f32(float,float)
declare float @llvm.maximum.f32(float,float)
declare i32 @llvm.smax.i32(i32,i32)
declare i64 @llvm.umin.i64(i64,i64)
declare i32 @llvm.ctpop.i32(i32)
declare i32 @llvm.ctlz.i32(i32,i1)
declare float @llvm.floor.f32(float)
declare float @llvm.rint.f32(float)
declare float @llvm.trunc.f32(float)
declare i32 @llvm.fptosi.sat.i32.f32(float)
declare float @llvm.copysign.f32(float,float)
declare float @llvm.fabs.f32(float)
declare void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3), ptr addrspace(1))
declare void @llvm.nvvm.cp.async.cg.shared.global.16.s(ptr addrspace(3), ptr addrspace(1), i32)
declare void @llvm.nvvm.cp.async.commit.group()
declare void @llvm.nvvm.cp.async.wait.group(i32)
declare {i32,i32,i32,i32} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3(ptr addrspace(3))
declare {float,float,float,float} @llvm.nvvm.mma.m16n8k16.row.col.bf16(i32,i32,i32,i32,i32,i32,float,float,float,float)
define ptx_kernel void @k1(ptr addrspace(1) %p, ptr addrspace(1) %q, i64 %n, i64 %f, float %x) {
entry:
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %nt = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %m = mul i32 %b, %nt
  %i = add i32 %m, %t
  %i64 = zext i32 %i to i64
  br label %loop
loop:
  %j = phi i64 [%i64, %entry], [%j2, %body]
  %c = icmp slt i64 %j, %n
  br i1 %c, label %body, label %end
body:
  %pa = getelementptr <4 x float>, ptr addrspace(1) %p, i64 %j
  %v = load <4 x float>, ptr addrspace(1) %pa, align 16, !invariant.load !0
  %v0 = extractelement <4 x float> %v, i32 0
  %v1 = extractelement <4 x float> %v, i32 1
  %v2 = extractelement <4 x float> %v, i32 2
  %v3 = extractelement <4 x float> %v, i32 3
  %e = call float @llvm.nvvm.ex2.approx.f(float %v0)
  %l = call float @llvm.nvvm.lg2.approx.f(float %v1)
  %r = call float @llvm.nvvm.rsqrt.approx.f(float %v2)
  %s = call float @llvm.sqrt.f32(float %v3)
  %d = fdiv float %e, %l
  %fm = call float @llvm.fma.f32(float %d, float %r, float %s)
  %mx = call float @llvm.maxnum.f32(float %fm, float %v0)
  %mm = call float @llvm.maximum.f32(float %mx, float %v1)
  %fl = call float @llvm.floor.f32(float %mm)
  %ri = call float @llvm.rint.f32(float %v2)
  %tr = call float @llvm.trunc.f32(float %v3)
  %cs = call float @llvm.copysign.f32(float %fl, float %ri)
  %ab = call float @llvm.fabs.f32(float %tr)
  %sat = call i32 @llvm.fptosi.sat.i32.f32(float %ab)
  %pop = call i32 @llvm.ctpop.i32(i32 %sat)
  %clz = call i32 @llvm.ctlz.i32(i32 %pop, i1 false)
  %sm = call i32 @llvm.smax.i32(i32 %clz, i32 %sat)
  %um = call i64 @llvm.umin.i64(i64 %j, i64 %f)
  %rem = urem i64 %um, 7
  %dv = sdiv i64 %f, %n
  %df = sitofp i64 %dv to float
  %rf = uitofp i64 %rem to float
  %sf = sitofp i32 %sm to float
  %w0 = insertelement <4 x float> undef, float %cs, i32 0
  %w1 = insertelement <4 x float> %w0, float %df, i32 1
  %w2 = insertelement <4 x float> %w1, float %rf, i32 2
  %w3 = insertelement <4 x float> %w2, float %sf, i32 3
  %qa = getelementptr <4 x float>, ptr addrspace(1) %q, i64 %j
  store <4 x float> %w3, ptr addrspace(1) %qa, align 16
  %j2 = add i64 %j, 1024
  br label %loop
end:
  ret void
}
define ptx_kernel void @k2(ptr addrspace(1) %p, ptr addrspace(1) %q, i64 %n, i64 %xb) {
entry:
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %pa = getelementptr <8 x bfloat>, ptr addrspace(1) %p, i32 %t
  %v = load <8 x bfloat>, ptr addrspace(1) %pa, align 16
  %w = fpext <8 x bfloat> %v to <8 x float>
  %sc = fmul <8 x float> %w, splat(float 2.0)
  %o = fptrunc <8 x float> %sc to <8 x bfloat>
  %add = fadd <8 x bfloat> %o, %v
  %qa = getelementptr <8 x bfloat>, ptr addrspace(1) %q, i32 %t
  store <8 x bfloat> %add, ptr addrspace(1) %qa, align 16
  %sp = getelementptr float, ptr addrspace(3) @st, i32 %t
  %w0 = extractelement <8 x float> %w, i32 0
  store float %w0, ptr addrspace(3) %sp
  call void @llvm.nvvm.barrier0()
  %sp2 = getelementptr float, ptr addrspace(3) @st, i32 3
  %l = load float, ptr addrspace(3) %sp2
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %sh = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %l, i32 16, i32 31)
  %ex = call float @llvm.nvvm.ex2.approx.ftz.f(float %sh)
  %dy = getelementptr float, ptr addrspace(3) @dyn, i32 %t
  store float %ex, ptr addrspace(3) %dy
  %x4 = and i32 %t, 3
  %tp = getelementptr [4 x float], ptr addrspace(4) @tab, i32 0, i32 %x4
  %tv = load float, ptr addrspace(4) %tp
  %gp = getelementptr [4 x i16], ptr addrspace(1) @gtab, i32 0, i32 %x4
  %gv = load i16, ptr addrspace(1) %gp
  %gf = sitofp i16 %gv to float
  %sum = fadd float %tv, %gf
  %half = fptrunc float %sum to half
  %h2 = fadd half %half, 2.0
  %hp = getelementptr half, ptr addrspace(1) %q, i64 %n
  store half %h2, ptr addrspace(1) %hp
  %arr = alloca [8 x i32], align 4
  %xi = trunc i64 %xb to i32
  %xm = and i32 %xi, 7
  %ap = getelementptr [8 x i32], ptr %arr, i32 0, i32 %xm
  store i32 %xi, ptr %ap
  %ap2 = getelementptr [8 x i32], ptr %arr, i32 0, i32 %t
  %al = load i32, ptr %ap2
  %b1 = trunc i32 %al to i8
  %bp = getelementptr i8, ptr addrspace(1) %q, i64 %n
  store i8 %b1, ptr addrspace(1) %bp
  %cmp = icmp ugt i32 %al, 77
  %sel = select i1 %cmp, i64 %n, i64 %xb
  switch i64 %sel, label %e0 [i64 0, label %e1
   i64 1, label %e2
   i64 2, label %e3
   i64 3, label %e4
   i64 4, label %e5]
e0: 
  store i64 99, ptr addrspace(1) %q
  ret void
e1:
  store i64 1, ptr addrspace(1) %q
  ret void
e2:
  store i64 12, ptr addrspace(1) %q
  ret void
e3:
  store i64 13, ptr addrspace(1) %q
  ret void
e4:
  store i64 144, ptr addrspace(1) %q
  ret void
e5:
  store i64 15, ptr addrspace(1) %q
  ret void
}
define ptx_kernel void @k3(ptr addrspace(1) %p, ptr addrspace(1) %q, i32 %n) {
entry:
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %s = getelementptr i8, ptr addrspace(3) @dyn, i32 %t
  %g = getelementptr i8, ptr addrspace(1) %p, i32 %t
  call void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3) %s, ptr addrspace(1) %g)
  call void @llvm.nvvm.cp.async.cg.shared.global.16.s(ptr addrspace(3) %s, ptr addrspace(1) %g, i32 %n)
  call void @llvm.nvvm.cp.async.commit.group()
  call void @llvm.nvvm.cp.async.wait.group(i32 1)
  %m = call {i32,i32,i32,i32} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3(ptr addrspace(3) %s)
  %m0 = extractvalue {i32,i32,i32,i32} %m, 0
  %m1 = extractvalue {i32,i32,i32,i32} %m, 1
  %m2 = extractvalue {i32,i32,i32,i32} %m, 2
  %m3 = extractvalue {i32,i32,i32,i32} %m, 3
  %c = call {float,float,float,float} @llvm.nvvm.mma.m16n8k16.row.col.bf16(i32 %m0,i32 %m1,i32 %m2,i32 %m3,i32 %m0,i32 %m1,float 0.0,float 0.0,float 0.0,float 0.0)
  %c0 = extractvalue {float,float,float,float} %c, 0
  %old = atomicrmw fadd ptr addrspace(1) %q, float %c0 monotonic
  %old2 = atomicrmw max ptr addrspace(1) %p, i32 %n monotonic
  %asm = call float asm "tanh.approx.f32 $0, $1;", "=f,f"(float %old)
  store float %asm, ptr addrspace(1) %p
  ret void
}
define ptx_kernel void @k4(ptr addrspace(1) %p, ptr addrspace(1) %q, i64 %n, i32 %m, float %x, double %dd, half %h) {
  %o = fcmp oeq float %x, 0.0
  %u = fcmp uno float %x, %x
  %f = fcmp ult float %x, 1.0
  %or = or i1 %o, %u
  %an = xor i1 %or, %f
  %z = zext i1 %an to i8
  store i8 %z, ptr addrspace(1) %p
  %fi = fptosi float %x to i64
  %fu = fptoui double %dd to i32
  %fz = zext i32 %fu to i64
  %s1 = shl i64 %fi, %n
  %s2 = ashr i64 %s1, %fz
  %s3 = lshr i64 %s2, 3
  %mm = mul i64 %s3, %n
  %m32 = trunc i64 %mm to i32
  %fsh = call i32 @llvm.fshl.i32(i32 %m32, i32 %m, i32 7)
  %bs = call i32 @llvm.bswap.i32(i32 %fsh)
  %sel = select i1 %an, i32 %bs, i32 %m
  %q1 = getelementptr i32, ptr addrspace(1) %q, i64 1
  store i32 %sel, ptr addrspace(1) %q1
  %de = fpext half %h to double
  %dm = call double @llvm.fma.f64(double %de, double %dd, double 2.0)
  store double %dm, ptr addrspace(1) %q
  %w = zext i32 %m to i64
  %w2 = zext i32 %sel to i64
  %wm = mul i64 %w, %w2
  %wa = add i64 %wm, %n
  store i64 %wa, ptr addrspace(1) %p
  %wide = lshr i64 %wm, 32
  %wt = trunc i64 %wide to i32
  store i32 %wt, ptr addrspace(1) %q1
  %hh = fadd half %h, %h
  %hc = fcmp olt half %hh, 3.0
  %hs = select i1 %hc, half %hh, half 4.0
  store half %hs, ptr addrspace(1) %q1
  %b16 = load i8, ptr addrspace(1) %q1
  %bz = sext i8 %b16 to i32
  %fsat = sitofp i32 %bz to half
  store half %fsat, ptr addrspace(1) %p
  ret void
}
declare i32 @llvm.fshl.i32(i32,i32,i32)
declare i32 @llvm.bswap.i32(i32)
declare double @llvm.fma.f64(double,double,double)
!0 = !{}
